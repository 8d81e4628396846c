"""The public rule of the noisy gradient, against the theory it is derived from; and the public rule of bin edges."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from scipy.optimize import minimize

from daskrado.errors import UsageError
from daskrado.jobs.load import load_job
from daskrado.lake.collect import open_passes
from daskrado.lake.scan import open_lake
from daskrado.learners.base import Learner
from daskrado.learners.on_passes.gradient import PrivateGradient
from daskrado.learners.on_passes.iterative import GOOD_NORM, Session
from daskrado.learners.on_passes.outlook import ERROR
from daskrado.learners.on_passes.preconditioner import (
    NEIGHBOUR_SHARE,
    OWN_DEVIATIONS,
    OWN_SHARE,
    Preconditioner,
)
from daskrado.learners.on_passes.schedule import LEAST_WEIGHT, Schedule, noises
from daskrado.losses.margin import Huber, HuberLogistic, Logistic
from daskrado.privacy.accountant import gaussian_mu
from daskrado.privacy.perturbation import PublicFacts
from daskrado.privacy.relations import Relation
from daskrado.registry import make
from daskrado.table.domain import Domain
from daskrado.table.encoding import encode_table
from daskrado.table.lattice import Lattice

RELATIONS = (Relation.ADD_REMOVE, Relation.REPLACE_ONE)


def facts(epsilon: float, relation: Relation = Relation.ADD_REMOVE, **changes: Any) -> PublicFacts:
    known = {"rows": 40_000, "width": 100, "norm_bound": 1.0, "relation": relation, "epsilon": epsilon, "delta": 1e-6}
    return PublicFacts(**{**known, "lattice_bits": 11, **changes})


def test_the_loss_goes_from_huber_to_logistic_and_weights_may_grow_as_noise_falls() -> None:
    plans = [PrivateGradient().schedule(facts(epsilon)) for epsilon in (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 50.0)]
    shares = [plan.loss.share for plan in plans if isinstance(plan.loss, HuberLogistic)]
    assert shares[0] == 1.0
    assert shares == sorted(shares, reverse=True)
    assert len(set(shares)) == 5  # 0.03 to 0.3 have the same
    assert shares[-1] < 0.25
    for sizes in ([plan.numbers for plan in plans], [plan.indicators for plan in plans]):
        assert sizes == sorted(sizes)
    assert all(plan.count <= 50 and plan.indicators >= LEAST_WEIGHT for plan in plans)
    each = 1 / gaussian_mu(1.0, 1e-6) / np.sqrt(0.95) / 40_000
    assert plans[3].ratio == pytest.approx(each * 10)
    assert plans[3].indicators == pytest.approx(4 * np.cbrt(1.4e-4 / each))
    assert plans[3].numbers == pytest.approx(4.4 * (1.4e-4 / each) ** 0.6)
    assert PrivateGradient().excess(facts(1.0)) == pytest.approx(GOOD_NORM * each * 10)


def test_given_steps_loss_and_length_are_kept() -> None:
    ruled, given = (PrivateGradient(**keys).schedule(facts(0.1)) for keys in ({}, {"steps": 97, "length": 3.0}))
    assert given.count == 97
    assert given.noise == pytest.approx(ruled.noise * np.sqrt(97 / ruled.count))
    assert (given.numbers, given.indicators) == pytest.approx((3 * ruled.numbers, 3 * ruled.indicators))
    assert PrivateGradient(Huber(0.5)).schedule(facts(1.0)).loss == Huber(0.5)


def test_a_pipeline_that_names_no_corner_leaves_it_to_the_rule() -> None:
    def made(**keys: Any) -> PrivateGradient:
        learner = make(Learner, ("daskrado.learners",), {"kind": "gradient", **keys})
        assert isinstance(learner, PrivateGradient)
        return learner

    assert made().loss is made(loss="huber").loss is None
    assert made(loss="huber", h=0.5).loss == Huber(0.5)
    assert made(loss="logistic").loss == Logistic()
    assert made(steps=None) == made()
    with pytest.raises(UsageError, match="gradient has no rate"):
        made(rate=2.0)


def pairs_of_units(draw: np.random.Generator, width: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the unit ball, many of them at its border, near each other or opposite, or small."""
    x = draw.normal(size=(rows, width))
    x[: rows // 2] += draw.choice([0.0, 3.0, 30.0]) * draw.normal(size=width)
    x *= (draw.choice([1.0, 1.0, 1.0, 0.3], size=rows) / np.linalg.norm(x, axis=1))[:, None]
    return x, draw.choice([-1.0, 1.0], rows)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("unit", [1, 3])
def test_no_unit_costs_more_than_mu_over_moments_and_all_gradients(relation: Relation, unit: int) -> None:
    """sum of (|change| / noise)^2 with the worst slopes in every step is at most mu^2, and some pair reaches it.

    Units of many rows that weigh ``unit`` together are among them, as are rows that are alike but for their label.
    """
    draw, mu, steps = np.random.default_rng(1), 0.7, 5
    known = facts(1.0, relation, rows_per_unit=unit)
    far = (1.0, 1.0) if relation is Relation.ADD_REMOVE else (np.sqrt(2), 2.0)
    on_moments, on_slopes = noises(known, mu, steps, unit * far[0], unit * far[1])
    worst = 0.0
    for trial in range(4000):
        rows = 1 if trial % 2 else int(draw.integers(2, 7))
        x, y = pairs_of_units(draw, int(draw.integers(1, 6)), 2 * rows)
        if trial % 5 == 0:
            x[rows:] = x[:rows] * draw.choice([-1.0, 1.0])
        weights = draw.random((2, rows))
        weights *= unit / weights.sum(axis=1, keepdims=True)
        if relation is Relation.ADD_REMOVE:
            weights[1] = 0.0
        signed = np.concatenate([weights[0], -weights[1]])
        cost = np.linalg.norm((x * signed[:, None]).T @ x) ** 2 / on_moments**2
        for _ in range(steps):
            slopes = draw.choice([0.0, 1.0, 1.0, 1.0], 2 * rows) * (
                y if trial % 3 else np.sign(x @ x[0]) * np.sign(signed)
            )
            cost += np.linalg.norm((slopes * signed) @ x) ** 2 / on_slopes**2
        worst = max(worst, cost)
    assert worst <= mu**2 * (1 + 1e-9)
    assert worst > 0.98 * mu**2


def test_moments_are_free_where_a_row_is_replaced_but_not_with_more_than_half_of_the_precision() -> None:
    """4 B is the most that gradients cost alone; with A = B / 2 no pair costs more, with A = 0.6 B one does."""
    c = np.linspace(0, 1, 1001)

    def dearest(a: float) -> float:
        return float((a * (2 - 2 * c**2) + (2 + 2 * c)).max())

    assert dearest(0.5) == 4.0
    assert dearest(0.6) > 4.01
    known = facts(1.0, Relation.REPLACE_ONE)
    on_moments, on_slopes = noises(known, 1.0, 40, np.sqrt(2), 2.0)
    assert (on_slopes, on_moments) == pytest.approx((2 * np.sqrt(40), np.sqrt(8)))
    rounded = noises(known, 1.0, 40, np.sqrt(2) + 1e-3, 2.0)
    assert rounded[1] > on_slopes
    many = facts(1.0, Relation.REPLACE_ONE, width=20_000)  # squares alone are not free
    assert noises(many, 1.0, 40, np.sqrt(2), 2.0) == pytest.approx((np.sqrt(2 / 0.05), 2 * np.sqrt(40 / 0.95)))
    labels = facts(1.0, Relation.LABEL_FLIP)
    assert noises(labels, 1.0, 40, 0.0, 1.0) == pytest.approx((0.0, np.sqrt(40)))


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


def plan_for(domain: Domain, rows: int, noise: float = 1e-9, **changes: Any) -> Schedule:
    known = {"loss": Logistic(), "rows": rows, "count": 40, "momentum": 0.75, "pairs": True, "moments_noise": 0.0}
    return Schedule(**{**known, "noise": noise, "ratio": 0.1, "numbers": 16.0, "indicators": 4.0, **changes})


def encoded(domain: Domain, rows: int, seed: int = 0) -> np.ndarray:
    """Rows of ``binned``, in the unit ball."""
    draw = np.random.default_rng(seed)
    columns = {
        "a": draw.uniform(0, 10, rows),
        "b": draw.choice(["x", "q", "y"], rows),
        "c": draw.uniform(0, 10, rows),
    }
    made = encode_table(domain, pa.table(columns | {"d": draw.random(rows), "label": draw.integers(0, 2, rows)}))
    x = made.block(0, rows, np.empty((rows, domain.width), order="F"))
    return np.asarray(x / np.maximum(1.0, np.linalg.norm(x, axis=1))[:, None])


def inverse(domain: Domain, metric: Preconditioner, alone: np.ndarray | None = None) -> np.ndarray:
    """The matrix that a preconditioner inverts."""
    solve = metric.at(np.zeros(domain.width) if alone is None else alone)
    return np.linalg.inv(np.column_stack([solve(unit) for unit in np.eye(domain.width)]))


def moments_of(x: np.ndarray, pairs: bool) -> np.ndarray:
    whole = x.T @ x
    return np.concatenate([np.diag(whole), whole[np.triu_indices(x.shape[1], 1)]]) if pairs else np.diag(whole)


def test_without_rows_it_is_the_precision_of_bins_numbers_and_the_rest() -> None:
    """drag over size on the diagonal; bins have the inverse of their correlation, and a part of their own."""
    domain = binned()
    for pairs in (True, False):
        plan = plan_for(domain, 1000, 2.0, pairs=pairs)
        assert plan.drag == pytest.approx(2.0 * np.sqrt(40) / 1000 / 0.25)
        sizes = np.full(domain.width, 4.0)
        sizes[domain.feature_names.index("d")] = 16.0 * np.sqrt(6)  # four columns, a flag, the intercept
        expected = np.diag(1 / sizes)
        alone = np.linspace(0, 1, domain.width)
        for start, size in ((0, 5), (10, 10)):
            where = slice(start, start + size)
            far = np.abs(np.subtract.outer(np.arange(size), np.arange(size)))
            shared = NEIGHBOUR_SHARE * np.exp(-10 * far / size) + np.diag(OWN_SHARE + alone[where])
            expected[where, where] = np.linalg.inv(4.0 * shared)
        nothing = moments_of(np.zeros((1, domain.width)), pairs)
        found = inverse(domain, Preconditioner(domain, plan, nothing), alone)
        assert found == pytest.approx(plan.drag * expected, rel=1e-6, abs=1e-9)
        plain = inverse(domain, Preconditioner(domain, plan, nothing, neighbours=False), alone)
        assert plain == pytest.approx(plan.drag * np.diag(1 / sizes))


@pytest.mark.parametrize("pairs", [True, False])
def test_steps_are_stable_at_the_largest_curvature(pairs: bool) -> None:
    """No eigenvalue of P c S is above 1, so that Nesterov's descent contracts at any momentum below 1."""
    domain = binned()
    for seed in range(5):
        x = encoded(domain, 400, seed)
        if seed == 4:
            x = x[:1].repeat(400, axis=0)  # all rows alike: all curvature is in one direction
        plan = plan_for(domain, 400, pairs=pairs)
        whole = inverse(domain, Preconditioner(domain, plan, moments_of(x, pairs)))
        curved = np.linalg.eigvals(np.linalg.solve(whole, 0.25 * x.T @ x / 400)).real
        assert curved.max() <= 1 + 1e-6
        assert curved.max() > (0.9 if pairs else 0.2)


def test_noisy_moments_have_a_floor_in_lengths_of_their_noise() -> None:
    domain = binned()
    low = moments_of(np.zeros((1, domain.width)), pairs=True) - 50.0  # by chance all too small
    found = inverse(domain, Preconditioner(domain, plan_for(domain, 1000, moments_noise=30.0), low))
    floor = 0.25 * 0.25 * np.sqrt(2 * domain.width) * 30 / 1000
    assert np.diag(found).min() >= floor * (1 - 1e-9)
    assert np.linalg.eigvalsh(found).min() > 0


def test_bins_go_their_own_way_where_they_stand_out_and_nothing_else_does() -> None:
    domain = binned()
    metric = Preconditioner(domain, plan_for(domain, 100), moments_of(np.zeros((1, domain.width)), pairs=True))
    bins = np.zeros(domain.width, dtype=bool)
    bins[np.r_[0:5, 10:20]] = True
    for size, beyond in (
        (0.99 * OWN_DEVIATIONS, 0.0),
        (10.0, 1 - OWN_DEVIATIONS / 10),
        (-10.0, 1 - OWN_DEVIATIONS / 10),
    ):
        found = metric.standing_out(np.full(domain.width, 3.0 * size), 3.0)
        assert found == pytest.approx(np.where(bins, beyond, 0.0))
    assert metric.standing_out(np.zeros(domain.width), 3.0).tolist() == [0.0] * domain.width


@pytest.mark.parametrize(("epsilon", "steps"), [(3.0, 40), (0.5, 4)])
def test_the_deviation_that_bins_are_held_against_is_that_of_the_noise(
    monkeypatch: pytest.MonkeyPatch, epsilon: float, steps: int
) -> None:
    """Weights are kept at 0, so that all sums of gradients are alike but for the noise that was really drawn."""
    edges = np.linspace(0, 1, 400)[1:-1].tolist()
    columns = {"a": {"kind": "numeric", "lower": 0, "upper": 1, "bins": edges}}
    label = {"column": "label", "positive": 1, "negative": 0}
    domain = Domain.model_validate({"label": label, "norm_bound": 1.0, "intercept": 0, "columns": columns})
    lake = open_lake(pd.DataFrame({"a": [0.2] * 30 + [0.7] * 30, "label": [0, 1, 1] * 20}), domain)
    known = facts(epsilon, rows=60, width=domain.width)
    seen: list[tuple[Any, float]] = []

    def standing(self: Preconditioner, gathered: Any, deviation: float) -> Any:
        seen.append((gathered.copy(), deviation))
        return np.zeros(domain.width)

    monkeypatch.setattr(Preconditioner, "standing_out", standing)
    monkeypatch.setattr(Preconditioner, "at", lambda self, alone: lambda vector: np.zeros(domain.width))
    with open_passes(lake, domain, Lattice(1.0, 11)) as passes:
        PrivateGradient(steps=steps).learn(Session(passes, lambda: None), known)
    assert len(seen) == 1 + int(np.log2(steps))  # after 1, 2, 4, ... steps
    empty = np.ones(domain.width, dtype=bool)
    empty[[int(np.searchsorted(edges, value, side="right")) for value in (0.2, 0.7)]] = False
    for vector, deviation in (seen[0], seen[1], seen[-1]):
        chi = float((vector[empty] ** 2).sum() / deviation**2)
        assert abs(chi - empty.sum()) < 5 * np.sqrt(2 * empty.sum())


def test_features_of_a_kernel_are_numbers() -> None:
    domain = binned({"kind": "gaussian", "gamma": 0.5, "features": 40})
    assert domain.feature_names[-1] == "intercept"
    plan = plan_for(domain, 100, 2.0)
    found = inverse(domain, Preconditioner(domain, plan, moments_of(np.zeros((1, 41)), pairs=True)))
    assert found == pytest.approx(np.diag([plan.drag / (16.0 * np.sqrt(41))] * 40 + [plan.drag / 4.0]))


@pytest.mark.slow
def test_a_category_that_is_never_seen_gathers_no_more_noise_than_is_expected_of_a_weight() -> None:
    """Where noise could hide many of its rows its weight is left to the descent: all noise, of the expected size."""
    domain, draw = binned(), np.random.default_rng(3)
    columns = {"a": draw.uniform(0, 10, 4000), "b": draw.choice(["x", "y"], 4000), "c": draw.uniform(0, 10, 4000)}
    frame = pd.DataFrame(columns | {"d": draw.random(4000), "label": draw.integers(0, 2, 4000)})
    known = facts(3.0, rows=4000, width=domain.width)
    learner = PrivateGradient()
    unseen = [domain.feature_names.index(name) for name in ("b=z", "b=other")]
    with open_passes(open_lake(frame, domain), domain, Lattice(1.0, 11)) as passes:
        weights = [learner.learn(Session(passes, lambda: None), known).weights[unseen] for _ in range(10)]
    assert 0.2 < np.std(weights) / learner.schedule(known).indicators < 1.1


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


def test_a_plan_forecasts_for_other_numbers_of_rows_where_theirs_is_secret() -> None:
    """Noise over signal falls as one over the rows, and the forecast of error follows it."""
    label = {"column": "y", "positive": 1, "negative": 0}
    domain = {"label": label, "columns": {"a": {"kind": "numeric", "lower": 0, "upper": 1}}}
    keys = {"dataset": "d", "lake": "nowhere", "domain": domain, "output": "o", "rows": 50_000}
    protect = {"relation": "add_remove", "unit": "one row"}
    job = load_job({**keys, "protect": protect, "budget": {"epsilon": 0.05, "delta": 1e-6}, "learner": "gradient"})
    (line,) = [text for name, text in job.plan() if text.startswith("were there other numbers of rows: ")]
    found = [float(part.split(" at ")[0]) for part in line.partition("error ")[2].split(", ") if part[0].isdigit()]
    ratio = PrivateGradient(centre=False).schedule(replace(job.facts, rows=10_000)).ratio  # type: ignore[attr-defined]
    assert found == pytest.approx([ERROR.at(ratio / times).value for times in (1, 10, 100)], rel=0.05)
