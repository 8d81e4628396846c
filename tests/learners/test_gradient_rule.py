"""The public rule of the noisy gradient, against the theory it is derived from; and the public rule of bin edges."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from scipy.optimize import minimize, minimize_scalar

from daskrado.lake.collect import open_passes
from daskrado.lake.scan import open_lake
from daskrado.learners.base import Learner
from daskrado.learners.on_passes import gradient
from daskrado.learners.on_passes.gradient import GROWTH_NOISE, MAX_STEPS, MIN_STEPS, PrivateGradient
from daskrado.learners.on_passes.iterative import GOOD_NORM, Session
from daskrado.learners.on_passes.smoothing import NEIGHBOUR_SHARE, OWN_DEVIATIONS, follower, smoother
from daskrado.losses.margin import Huber, Logistic, Loss, SmoothHinge
from daskrado.privacy.accountant import gaussian_mu
from daskrado.privacy.perturbation import PublicFacts
from daskrado.privacy.relations import Relation
from daskrado.registry import make
from daskrado.table.domain import Domain
from daskrado.table.encoding import encode_table
from daskrado.table.lattice import Lattice

RELATIONS = (Relation.ADD_REMOVE, Relation.REPLACE_ONE)


def facts(epsilon: float, relation: Relation = Relation.ADD_REMOVE) -> PublicFacts:
    return PublicFacts(40_000, 100, 1.0, relation, epsilon, 1e-6, lattice_bits=20 if relation.rows_public else 12)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("epsilon", [0.03, 0.1, 0.3, 1.0, 3.0])
def test_the_length_of_descent_is_the_best_of_the_bound(epsilon: float, relation: Relation) -> None:
    """rate x steps minimises D^2/(2 l) + l v^2/2, found here by a search; v from the noise of one gradient.

    D is GOOD_NORM, and larger where noise is low; the forecast is about GOOD_NORM.
    """
    plan = PrivateGradient().schedule(facts(epsilon, relation))
    far = 1 if relation is Relation.ADD_REMOVE else 2
    ratio = far / gaussian_mu(epsilon, 1e-6) * np.sqrt(100) / 40_000

    def best(norm: float) -> Any:
        return minimize_scalar(
            lambda log: norm**2 / (2 * np.exp(log)) + np.exp(log) * ratio**2 / 2, bounds=(0, 20), method="bounded"
        )

    norm = GOOD_NORM if ratio > GROWTH_NOISE else GOOD_NORM * np.sqrt(GROWTH_NOISE / ratio)
    assert plan.growth == pytest.approx(plan.rate * plan.count * ratio / GOOD_NORM)
    corner = 0.5 * min(2.0, norm / GOOD_NORM)
    assert isinstance(plan.loss, Huber)
    assert plan.loss.h == pytest.approx(corner)
    assert plan.rate * plan.count == pytest.approx(min(np.exp(best(norm).x), MAX_STEPS**2 * 2 * corner), rel=1e-3)
    assert PrivateGradient().excess(facts(epsilon, relation)) == pytest.approx(best(GOOD_NORM).fun, rel=1e-6)
    assert MIN_STEPS <= plan.count <= MAX_STEPS


def radius(rate: float, momentum: float, curvature: float) -> float:
    """Of (u, u') -> ((1 + m - r) u - m u', u), r = rate (1 - m) c, descent with momentum: below 1 it contracts."""
    r = rate * (1 - momentum) * curvature
    return float(np.abs(np.linalg.eigvals([[1 + momentum - r, -momentum], [1, 0]])).max())


@pytest.mark.parametrize("loss", [Huber(0.5), Logistic(), SmoothHinge(0.3)], ids=lambda loss: loss.name)
@pytest.mark.parametrize("epsilon", [0.07, 3.0], ids=["uncapped", "capped"])
def test_steps_are_stable_at_the_largest_curvature(loss: Loss, epsilon: float) -> None:
    """Half of the limit, less the rounding of steps: by their number, and where that has an end by momentum."""
    plan = PrivateGradient(loss).schedule(facts(epsilon))
    assert loss.smoothness is not None
    assert plan.count > MIN_STEPS
    assert (plan.momentum == 0.9) == (epsilon < 1) == (plan.count < MAX_STEPS)
    assert radius(1.9 * plan.rate, plan.momentum, loss.smoothness) < 1
    assert radius(2.2 * plan.rate, plan.momentum, loss.smoothness) > 1


@pytest.mark.parametrize("loss", [Huber(0.5), Logistic()], ids=lambda loss: loss.name)
def test_momentum_remembers_at_most_half_of_the_longest_run(loss: Loss) -> None:
    """Ten million rows leave so little noise that the rule would descend for ever: 1 / (1 - m) stays below T / 2."""
    plan = PrivateGradient(loss).schedule(
        PublicFacts(10_000_000, 30, 1.0, Relation.ADD_REMOVE, 1.0, 1e-6, lattice_bits=12)
    )
    assert plan.count == MAX_STEPS
    assert 1 / (1 - plan.momentum) == pytest.approx(MAX_STEPS / 2, rel=0.01)
    assert plan.rate * plan.count * (loss.smoothness or 1.0) == pytest.approx(MAX_STEPS**2)


def test_given_steps_or_rate_are_kept_and_the_length_follows() -> None:
    ruled = PrivateGradient().schedule(facts(0.1))
    given = PrivateGradient(steps=97).schedule(facts(0.1))
    assert given.count == 97
    assert given.rate * 97 == pytest.approx(ruled.rate * ruled.count)
    few = PrivateGradient(Huber(0.5), steps=37).schedule(facts(0.1))
    assert few.rate * 37 == pytest.approx(37**2)  # as far as momentum of half the run can go
    assert 1 / (1 - few.momentum) == pytest.approx(37 / 2, rel=0.05)
    rated = PrivateGradient(rate=12.0).schedule(facts(0.1))
    assert rated.rate == 12.0
    assert rated.count * 12.0 == pytest.approx(ruled.rate * ruled.count, rel=0.01)
    both = PrivateGradient(steps=5, rate=3.0).schedule(facts(0.1))
    assert (both.count, both.rate) == (5, 3.0)


def test_a_pipeline_that_names_no_corner_leaves_it_to_the_rule() -> None:
    def loss(**keys: Any) -> Loss | None:
        learner = make(Learner, ("daskrado.learners",), {"kind": "gradient", **keys})
        assert isinstance(learner, PrivateGradient)
        return learner.loss

    assert loss() is None
    assert loss(loss="huber", h=0.5) == Huber(0.5)
    assert loss(loss="logistic") == Logistic()
    assert PrivateGradient(Huber(0.5)).schedule(facts(1.0)).loss == Huber(0.5)


def binned(kernel: dict[str, Any] | None = None) -> Domain:
    """Bins, categories, a number and a null flag between them."""
    columns = {
        "a": {"kind": "numeric", "lower": 0, "upper": 10, "bins": [2, 3, 5, 8], "nulls": {"fill": 1}},
        "b": {"kind": "categorical", "values": ["x", "y", "z"]},
        "c": {"kind": "numeric", "lower": 0, "upper": 10, "bins": list(range(1, 10))},
        "d": {"kind": "numeric", "lower": 0, "upper": 1},
    }
    label = {"column": "label", "positive": 1, "negative": 0}
    return Domain.model_validate({"label": label, "norm_bound": 1.0, "columns": columns, "kernel": kernel})


def test_smoothing_is_the_correlation_of_bins_within_a_column_and_nothing_else() -> None:
    domain = binned()
    smooth = np.column_stack([smoother(domain)(unit) for unit in np.eye(domain.width)])
    expected = np.eye(domain.width)
    for start, size in ((0, 5), (10, 10)):
        far = np.abs(np.subtract.outer(np.arange(size), np.arange(size)))
        expected[start : start + size, start : start + size] = NEIGHBOUR_SHARE * np.exp(-10 * far / size)
    assert [domain.feature_names[at] for at in (5, 6, 9, 20)] == ["a is null", "b=x", "b=other", "d"]
    assert smooth == pytest.approx(expected, abs=1e-12)


def test_smoothing_leaves_the_noise_and_the_curvature_that_the_rule_counts_with() -> None:
    """trace S <= d, S is positive, and x.Sx <= |x|^2 for rows: they have one bin in each column."""
    domain = binned()
    smooth = np.column_stack([smoother(domain)(unit) for unit in np.eye(domain.width)])
    assert domain.width - 15 * (1 - NEIGHBOUR_SHARE) == pytest.approx(np.trace(smooth))
    assert np.linalg.eigvalsh(smooth).min() > 0
    table = pa.table(
        {"a": [0.5, 2.0, None, 9.9], "b": ["x", "q", "z", "y"], "c": [0, 1, 5, 9.5], "d": [0, 0.2, 1, 0.7]}
    )
    rows = encode_table(domain, table.append_column("label", pa.array([0, 1, 1, 0])))
    x = rows.block(0, 4, np.empty((4, domain.width), order="F"))
    bins = np.r_[0:5, 10:20]
    expected = (x**2).sum(axis=1) - (1 - NEIGHBOUR_SHARE) * (x[:, bins] ** 2).sum(axis=1)
    assert np.einsum("ij,jk,ik->i", x, smooth, x) == pytest.approx(expected)


def test_a_step_is_smoothed_after_its_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """With draws that are the same, a smoothed step is what follows from the plain one, and from its noise."""
    domain, draw = binned(), np.random.default_rng(0)
    columns = {"a": draw.uniform(0, 10, 50), "b": draw.choice(["x", "y"], 50), "c": draw.uniform(0, 10, 50)}
    lake = open_lake(pd.DataFrame(columns | {"d": draw.random(50), "label": draw.integers(0, 2, 50)}), domain)
    noise = draw.integers(-(2**40), 2**40, domain.width)
    monkeypatch.setattr(gradient, "discrete_gaussian", lambda vector, _scale: vector + noise)
    known = PublicFacts(50, domain.width, 1.0, Relation.ADD_REMOVE, 1.0, 1e-6, lattice_bits=12)
    with open_passes(lake, domain, Lattice(1.0)) as passes:
        plain, smooth = (
            PrivateGradient(steps=1, rate=1.0, smooth=smooth).learn(Session(passes, lambda: None), known).weights
            for smooth in (False, True)
        )
    assert not np.allclose(smooth, plain)
    deviation = PrivateGradient(steps=1, rate=1.0).schedule(known).noise / 50 * 0.1  # of V, a tenth of which is new
    assert (np.abs(plain) > OWN_DEVIATIONS * deviation).any()
    assert smooth == pytest.approx(follower(domain)(plain, deviation))


def test_bins_go_their_own_way_where_they_stand_out_and_nothing_else_does() -> None:
    domain = binned()
    bins = np.zeros(domain.width, dtype=bool)
    bins[np.r_[0:5, 10:20]] = True
    for size, beyond in ((0.99 * OWN_DEVIATIONS, 0.0), (10.0, 10.0 - OWN_DEVIATIONS), (-10.0, OWN_DEVIATIONS - 10.0)):
        vector = np.full(domain.width, 3.0 * size)
        moved = follower(domain, growth=2.0)(vector, 3.0) - smoother(domain, growth=2.0)(vector)
        assert moved == pytest.approx(np.where(bins, 3.0 * beyond, 0.0))
        plain = follower(domain, neighbours=False, growth=2.0)(vector, 3.0)
        assert (plain == smoother(domain, neighbours=False, growth=2.0)(vector)).all()


@pytest.mark.parametrize(("epsilon", "steps"), [(3.0, 40), (0.5, 3)])
def test_the_deviation_that_bins_are_held_against_is_that_of_the_noise(
    monkeypatch: pytest.MonkeyPatch, epsilon: float, steps: int
) -> None:
    """Weights are kept at 0, so that all sums of gradients are alike but for the noise that was really drawn."""
    edges = np.linspace(0, 1, 400)[1:-1].tolist()
    columns = {"a": {"kind": "numeric", "lower": 0, "upper": 1, "bins": edges}}
    label = {"column": "label", "positive": 1, "negative": 0}
    domain = Domain.model_validate({"label": label, "norm_bound": 1.0, "intercept": 0, "columns": columns})
    lake = open_lake(pd.DataFrame({"a": [0.2] * 30 + [0.7] * 30, "label": [0, 1, 1] * 20}), domain)
    known = PublicFacts(60, domain.width, 1.0, Relation.ADD_REMOVE, epsilon, 1e-6, lattice_bits=12)
    seen: list[tuple[Any, float]] = []

    def standing(*_: Any, **__: Any) -> Any:
        return lambda vector, deviation: seen.append((vector.copy(), deviation)) or np.zeros(domain.width)

    monkeypatch.setattr(gradient, "follower", standing)
    with open_passes(lake, domain, Lattice(1.0)) as passes:
        PrivateGradient(steps=steps).learn(Session(passes, lambda: None), known)
    empty = np.ones(domain.width, dtype=bool)
    empty[[int(np.searchsorted(edges, value, side="right")) for value in (0.2, 0.7)]] = False
    for vector, deviation in (seen[0], seen[steps // 2], seen[-1]):
        chi = float((vector[empty] ** 2).sum() / deviation**2)
        assert abs(chi - empty.sum()) < 5 * np.sqrt(2 * empty.sum())


def test_features_of_a_kernel_are_not_smoothed() -> None:
    domain = binned({"kind": "gaussian", "gamma": 0.5, "features": 40})
    vector = np.arange(float(domain.width))
    assert (smoother(domain)(vector) == vector).all()
    assert domain.feature_names[-1] == "intercept"
    assert smoother(domain, growth=4.0)(np.ones(41)).tolist() == [1.0] * 40 + [0.25]


def test_numbers_go_farther_than_indicators() -> None:
    """Of bins, null flag, categories, number and intercept the number alone keeps its step."""
    domain = binned()
    paces = smoother(domain, neighbours=False, growth=4.0)(np.ones(domain.width))
    named = dict(zip(domain.feature_names, paces.tolist(), strict=True))
    assert named.pop("d") == 1.0
    assert set(named.values()) == {0.25}
    both = smoother(domain, growth=4.0)(np.ones(domain.width))
    assert both == pytest.approx(smoother(domain)(np.ones(domain.width)) * paces)
    assert (follower(domain, growth=4.0)(np.ones(domain.width), 1.0) == both).all()


@pytest.mark.slow
def test_a_category_that_is_never_seen_gathers_no_more_noise_than_good_norm_allows() -> None:
    """Its weight is all noise: of standard deviation GOOD_NORM / sqrt(d) at most, however long numbers descend."""
    domain, draw = binned(), np.random.default_rng(3)
    columns = {"a": draw.uniform(0, 10, 4000), "b": draw.choice(["x", "y"], 4000), "c": draw.uniform(0, 10, 4000)}
    frame = pd.DataFrame(columns | {"d": draw.random(4000), "label": draw.integers(0, 2, 4000)})
    known = PublicFacts(4000, domain.width, 1.0, Relation.ADD_REMOVE, 3.0, 1e-6, lattice_bits=12)
    learner = PrivateGradient()
    assert learner.schedule(known).growth > 3
    unseen = [domain.feature_names.index(name) for name in ("b=z", "b=other")]
    with open_passes(open_lake(frame, domain), domain, Lattice(1.0)) as passes:
        weights = [learner.learn(Session(passes, lambda: None), known).weights[unseen] for _ in range(10)]
    assert 0.3 < np.std(weights) / (GOOD_NORM / np.sqrt(domain.width)) < 1.4


@pytest.fixture(scope="module")
def scripts() -> Any:
    """Import a reproduction script by its name."""
    before = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[2] / "pipelines" / "reproduce"))
        yield importlib.import_module
    for name in {"dp_erm", "gradient_rule", "newton", "peers", "public_bins", "tables"} - before:
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def bins(scripts: Any) -> Any:
    return scripts("public_bins")


def test_noisy_newton_without_noise_finds_the_minimiser(scripts: Any) -> None:
    """The prototype is Newton's method: with an endless budget it lands where scipy's minimiser does."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(4000, 6)) / 4
    x *= np.where(draw.random(4000) < 1 / (1 + np.exp(-x @ draw.normal(size=6))), 1, -1)[:, None]
    found = scripts("newton").newton(x, 1e16, Logistic(), 8, 0.5, 1e-9, draw)
    best = minimize(lambda w: np.logaddexp(0, -x @ w).mean(), np.zeros(6), method="BFGS", options={"gtol": 1e-8})
    assert found == pytest.approx(best.x, abs=1e-4)


def test_the_excess_of_a_choice_is_over_the_best_of_each_table(scripts: Any) -> None:
    tables = {"one": {"8": [0.3, 0.2], "16": [0.2, 0.2]}, "two": {"8": [0.1, 0.1], "16": [0.1, 0.3]}}
    assert scripts("gradient_rule").excess(tables) == {"8": 0.025, "16": 0.05}


def test_bin_edges_by_hand(bins: ModuleType) -> None:
    assert bins.equal(0, 100).edges(*bins.COARSE) == list(range(5, 100, 5))
    assert bins.whole(1, 4).edges(*bins.COARSE) == [2, 3, 4]
    assert bins.amount(40).edges(4, (1.0, 2.0, 5.0)) == [1, 2, 5, 10, 20, 30]
    assert bins.amount(200).edges(*bins.COARSE) == sorted(
        {1, 1.25, 1.6, 2, 2.5, 3.15, 4, 5, 6.3, 8, 12.5, 16, 25, 31.5, 63, 125, *range(10, 200, 10)}
    )


def test_published_classes_cut_every_numeric_column_within_its_range(bins: ModuleType) -> None:
    ranges = bins.RANGES["adult"]
    assert set(bins.CLASSES["adult"]) == set(ranges) - set(bins.DROPPED["adult"])
    for name, edges in bins.CLASSES["adult"].items():
        assert edges == sorted(set(edges))
        assert ranges[name].lower < edges[0] <= edges[-1] <= ranges[name].upper


def test_finer_bins_hold_the_coarser_edges_and_follow_public_facts(bins: ModuleType) -> None:
    assert bins.rule(40_699, 0.1) == bins.COARSE
    assert bins.rule(10_000, 1.0) == bins.FINE
    for ranges in bins.RANGES.values():
        for column in ranges.values():
            coarse, fine = column.edges(*bins.COARSE), column.edges(*bins.FINE)
            assert set(coarse) <= set(fine)
            assert fine == sorted(set(fine))
            assert column.lower < fine[0]
            assert fine[-1] <= column.upper
