"""Mechanisms: calibrated from derived sensitivity, single use, and tests that reject wrong scales."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
from scipy import stats

from daskrado.errors import UsageError
from daskrado.ledger.ledger import Ledger
from daskrado.privacy.accountant import GaussianEvent, PureEvent, compose, gaussian_mu
from daskrado.privacy.mechanisms import DiscreteGaussian, DiscreteLaplace, L2Gamma, Mechanism, Target, mechanism
from daskrado.privacy.relations import Relation
from daskrado.privacy.release import release
from daskrado.privacy.shares import GaussianShares
from daskrado.privacy.statement import PrivacyStatement
from daskrado.statistics import HadamardRados, MeanOperator, Moments, Summary
from daskrado.statistics.label_means import LabelMeans
from daskrado.statistics.moments import FINE
from daskrado.table.lattice import Lattice

LATTICE = Lattice(3.0, 12)
STATEMENT = PrivacyStatement(
    private=True,
    relation=Relation.REPLACE_ONE,
    unit="one row",
    epsilon=1.0,
    delta=0.0,
    mechanism="x",
    theorem="x",
    accountant="x",
)


@pytest.mark.parametrize("relation", Relation)
def test_a_statement_says_how_many_records_a_unit_may_have(relation: Relation) -> None:
    one, five = (STATEMENT.model_copy(update={"relation": relation, "rows_per_unit": rows}) for rows in (1, 5))
    assert "one record" in one.sentence()
    assert "up to 5 records" in five.sentence()
    assert "one record" not in five.sentence()


def target(statistic: Any, relation: Relation = Relation.REPLACE_ONE, rows: int = 1) -> Target:
    return Target(statistic, LATTICE, relation, rows)


def test_scales_follow_from_the_statistic_the_relation_and_the_group() -> None:
    mu = gaussian_mu(1.0, 1e-6)
    assert DiscreteGaussian(target(Moments(5)), 1.0, 1e-6).event == GaussianEvent(mu)
    for relation, l2 in ((Relation.ADD_REMOVE, math.sqrt(2)), (Relation.REPLACE_ONE, math.sqrt(4.5))):
        for rows in (1, 4):
            chosen = DiscreteGaussian(target(Moments(5), relation, rows), 1.0, 1e-6)
            assert chosen.scale == pytest.approx(rows * l2 / mu)
    laplace = DiscreteLaplace(target(MeanOperator(9)), 0.5)
    assert laplace.scale == pytest.approx(2 * 3 / 0.5)
    assert laplace.noise_std()["mean"] == pytest.approx(3.0 * laplace.scale * math.sqrt(2), rel=1e-6)
    assert laplace.noise_std()["count"] == 0


def test_public_blocks_are_left_alone_and_private_ones_are_not() -> None:
    chosen = DiscreteGaussian(target(Moments(3), Relation.LABEL_FLIP), 1.0, 1e-6)
    vector = np.arange(9, dtype=np.int64)
    noisy = chosen.perturb(vector)
    assert np.array_equal(noisy[3:], vector[3:])
    assert (noisy[:3] != vector[:3]).any()


def test_each_mechanism_draws_once() -> None:
    chosen = DiscreteLaplace(target(MeanOperator(2)), 1.0)
    chosen.perturb(np.zeros(3, dtype=np.int64))
    with pytest.raises(RuntimeError, match="used already"):
        chosen.perturb(np.zeros(3, dtype=np.int64))


MAKERS = [
    lambda t, epsilon: DiscreteLaplace(t, epsilon),
    lambda t, epsilon: DiscreteGaussian(t, epsilon, 1e-6),
    lambda t, epsilon: L2Gamma(t, epsilon),
    lambda t, epsilon: GaussianShares(t, epsilon, 1e-6, honest=2, sites=3),
]


@pytest.mark.parametrize("make", MAKERS)
def test_noise_that_could_not_be_drawn_is_refused_when_a_mechanism_is_made(make: Any) -> None:
    """Not when it is used, which is after the budget is spent."""
    wide = Target(HadamardRados(4, 64), Lattice(1.0, 24), Relation.REPLACE_ONE, 10_000)
    make(wide, 1.0)
    with pytest.raises(UsageError, match=r"hadamard_rados, block sketch: the noise scale .* at most 2.52 grid steps"):
        make(wide, 1e-7)


@pytest.mark.parametrize("make", MAKERS)
def test_a_sensitivity_of_zero_is_refused_by_every_mechanism_alike(make: Any) -> None:
    """All features 0, so that no label can be seen: one rounds its scale up from 0 and another does not."""
    with pytest.raises(UsageError, match="label_means has sensitivity 0 under label_flip"):
        make(target(LabelMeans(3, 0, 0, LATTICE.bits), Relation.LABEL_FLIP), 1.0)


def draws(make: Any, blocks: int) -> np.ndarray:
    """Noise on the normalised joint vector of a wide statistic, one mechanism for each block of draws."""
    parts = []
    for _ in range(blocks):
        chosen: Mechanism = make(target(HadamardRados(25, 64)))
        noise = chosen.perturb(np.zeros(25 * 64, dtype=np.int64)) * 2.0**-LATTICE.bits
        parts.append(noise / chosen.scale)
    return np.concatenate(parts)


@pytest.mark.parametrize(
    ("make", "law"),
    [
        (lambda t: DiscreteLaplace(t, 1.0), stats.laplace),
        (lambda t: DiscreteGaussian(t, 1.0, 1e-6), stats.norm),
    ],
    ids=["laplace", "gaussian"],
)
def test_the_noise_has_the_declared_scale_and_not_two_thirds_or_three_halves_of_it(make: Any, law: Any) -> None:
    sample = draws(make, 3)
    assert stats.kstest(sample, law().cdf).pvalue > 1e-5
    for wrong in (2 / 3, 3 / 2):
        assert stats.kstest(sample, law(scale=wrong).cdf).pvalue < 1e-12


def test_laplace_likelihood_ratios_never_exceed_epsilon_for_the_worst_neighbours() -> None:
    """The exact ratio of two discrete Laplace vectors is exp(sum |move_k| / scale_k)."""
    epsilon = 0.7
    statistic = MeanOperator(4)
    for relation in Relation:
        chosen = DiscreteLaplace(target(statistic, relation), epsilon)
        scales = {b.name: chosen.grid_scale(b) for b in statistic.blocks}
        full = 2**LATTICE.bits
        flat = full // 2  # (1/2, 1/2, 1/2, 1/2): norm 1, the largest L1 norm
        moves = {
            Relation.ADD_REMOVE: ([flat] * 4, 1),
            Relation.REPLACE_ONE: ([2 * flat] * 4, 0),
            Relation.LABEL_FLIP: ([2 * flat] * 4, 0),
            Relation.FEATURE_FLIP: ([2 * full, 0, 0, 0], 0),
        }[relation]
        loss = sum(moves[0]) / scales["mean"] + moves[1] / scales["count"]
        assert loss <= epsilon * (1 + 1e-12)
        assert loss >= 0.999 * epsilon


def test_gaussian_joint_blocks_cost_what_the_event_says() -> None:
    statistic = Moments(2)
    chosen = DiscreteGaussian(target(statistic), 1.0, 1e-6)
    # The worst replacement: x = (1, 0), x' = (-1/2, sqrt(3)/2), same label; both moments move.
    x, other = np.array([1.0, 0.0]), np.array([-0.5, math.sqrt(0.75)])
    first = x - other
    second = (np.outer(x, x) - np.outer(other, other))[np.triu_indices(2)]
    mean_scale, second_scale = (chosen.grid_scale(b) for b in statistic.blocks)
    grid = 2.0**LATTICE.bits
    mu = math.sqrt(
        ((first * grid * 2**FINE / mean_scale) ** 2).sum() + ((second * grid**2 / second_scale) ** 2).sum()
    )
    assert isinstance(chosen.event, GaussianEvent)
    assert 0.9 * chosen.event.mu <= mu <= chosen.event.mu * (1 + 1e-12)


def test_release_spends_before_it_draws_and_checks_what_was_granted(tmp_path: Any) -> None:
    statistic = MeanOperator(2)
    summary = Summary(statistic, LATTICE, np.array([4096, 0, 7], dtype=np.int64), 7)
    chosen = DiscreteLaplace(target(statistic), 1.0)
    with Ledger.open(tmp_path / "l.sqlite") as ledger:
        ledger.set_limit("d", Relation.REPLACE_ONE, 5, 0)
        other = ledger.reserve("d", Relation.REPLACE_ONE, PureEvent(2), theorem="t", run="r0")
        with pytest.raises(ValueError, match="another event"):
            release(summary, chosen, other, partial(ledger.spend, other), STATEMENT)
        grant = ledger.reserve("d", Relation.REPLACE_ONE, chosen.event, theorem="t", run="r1")
        wrong = Summary(statistic, Lattice(3.0, 13), summary.vector, 7)
        with pytest.raises(ValueError, match="another statistic or lattice"):
            release(wrong, chosen, grant, partial(ledger.spend, grant), STATEMENT)
        assert [e.state for e in ledger.entries()] == ["reserved", "reserved"]
        released = release(summary, chosen, grant, partial(ledger.spend, grant), STATEMENT)
        assert [e.state for e in ledger.entries()] == ["reserved", "spent"]
        assert released.values["count"] == 7  # public under replace-one
        # On the grid: every released entry is a whole number of steps.
        steps = released.values["mean"] / LATTICE.step
        assert np.array_equal(steps, np.round(steps))
        with pytest.raises(Exception, match=r"spent|used"):
            release(summary, chosen, grant, partial(ledger.spend, grant), STATEMENT)


def test_a_crash_while_drawing_leaves_the_grant_spent(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    statistic = MeanOperator(2)
    chosen = DiscreteLaplace(target(statistic), 1.0)
    monkeypatch.setattr(chosen, "_noisy", lambda *a: (_ for _ in ()).throw(MemoryError()))
    with Ledger.open(tmp_path / "l.sqlite") as ledger:
        ledger.set_limit("d", Relation.REPLACE_ONE, 5, 0)
        grant = ledger.reserve("d", Relation.REPLACE_ONE, chosen.event, theorem="t", run="r1")
        empty = Summary(statistic, LATTICE, statistic.zero(), 0)
        with pytest.raises(MemoryError):
            release(empty, chosen, grant, partial(ledger.spend, grant), STATEMENT)
        assert [e.state for e in ledger.entries()] == ["spent"]


def test_composing_one_event_is_within_the_request() -> None:
    for epsilon in (0.01, 0.1, 1.0, 10.0):
        event = DiscreteGaussian(target(MeanOperator(2)), epsilon, 1e-6).event
        assert isinstance(event, GaussianEvent) == (epsilon < 10)  # then the grid of 13 bits is too coarse
        assert 0.999 * epsilon < float(compose([event], 1e-6).epsilon) <= epsilon


@pytest.mark.parametrize(
    ("name", "epsilon", "delta"),
    [
        ("gaussian", 1.0, 0.0),
        ("laplace", 0.0, 0.0),
        ("laplace", math.nan, 0.0),
        ("laplace", 51, 0),
        ("cauchy", 1.0, 0.1),
    ],
)
def test_bad_budgets_and_names_are_refused(name: str, epsilon: float, delta: float) -> None:
    with pytest.raises(UsageError):
        mechanism(name, target(MeanOperator(2)), epsilon, delta)
