"""Sums of independent losses: never below exact enumeration, near it, and near the optimal composition theorem."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daskrado.privacy import repeated_losses as module
from daskrado.privacy.accountant import ApproximateEvent, PureEvent
from daskrado.privacy.composition import Parts, loss_distribution, optimal
from daskrado.privacy.repeated_losses import repeated_losses
from daskrado.privacy.total_loss import Losses

losses_strategy = st.lists(
    st.tuples(st.floats(-3, 3).map(lambda v: round(v, 6)), st.integers(1, 1000)), min_size=1, max_size=4
)


def law_of(atoms: list[tuple[float, int]], leak: float) -> Losses:
    weights = np.array([weight for _, weight in atoms], dtype=float)
    return Losses(np.array([value for value, _ in atoms]), weights / weights.sum() * (1 - leak), leak)


def delta_of(losses: Losses, epsilon: float) -> float:
    return losses.leak + float(np.dot(losses.chances, np.maximum(-np.expm1(epsilon - losses.values), 0.0)))


def enumerated(terms: list[tuple[Losses, int]], epsilon: float) -> float:
    """E[(1 - exp(epsilon - L))_+] over all tuples of atoms; a leak anywhere leaks."""
    every = [law for law, times in terms for _ in range(times)]
    finite = math.prod(1 - law.leak for law in every)
    hit = []
    for atoms in itertools.product(*(zip(law.values, law.chances, strict=True) for law in every)):
        loss = math.fsum(value for value, _ in atoms)
        hit.append(math.prod(chance for _, chance in atoms) * max(-math.expm1(epsilon - loss), 0.0))
    return 1 - finite + math.fsum(hit)


@given(losses_strategy, losses_strategy, st.integers(1, 4), st.integers(1, 2), st.sampled_from([0.0, 1e-3]))
@settings(max_examples=60, deadline=None)
def test_delta_is_never_below_enumeration_and_near_it(first, second, once, twice, leak) -> None:
    terms = [(law_of(first, leak), once), (law_of(second, 0.0), twice)]
    found = repeated_losses(terms, 1e-6)
    for epsilon in (0.0, 0.3, 1.0, 2.5, 6.0):
        truth = enumerated(terms, epsilon)
        assert truth * (1 - 1e-12) - 1e-15 <= delta_of(found, epsilon) <= truth + 2e-3


def test_no_mass_is_lost_on_the_way() -> None:
    law = law_of([(-0.31, 3), (0.07, 5), (0.4, 2)], 1e-7)
    for times in (1, 2, 3, 100, 4097, 10**6):
        found = repeated_losses([(law, times)], 1e-6)
        assert float(found.chances.sum()) + found.leak == pytest.approx(1, abs=1e-5)
        assert float(found.chances.sum()) + found.leak >= 1 - 1e-15
        assert found.leak >= -math.expm1(times * math.log1p(-1e-7)) * (1 - 1e-12)
        assert len(found.values) <= 2**13 + 2
        # The mean of a sum is the sum of the means; splitting atoms raises it by less than a cell.
        mean = times * float(np.dot(law.values, law.chances)) / (1 - law.leak)
        spread = math.sqrt(times) * 0.3
        assert -1e-9 <= float(np.dot(found.values, found.chances) / found.chances.sum()) - mean <= spread * 1e-2


def test_a_tail_that_is_cut_counts_as_a_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    """With tails that are not negligible: the upper one leaks, the lower one moves up, and no mass is lost."""
    monkeypatch.setattr(module, "_NEGLIGIBLE", 1e3)
    law = law_of([(-0.31, 3), (0.07, 5), (0.4, 2)], 0.0)
    for times in (2, 5, 7):
        found = repeated_losses([(law, times)], 0.2)
        assert found.leak > 1e-3
        assert float(found.chances.sum()) + found.leak == pytest.approx(1, abs=1e-9)
        for epsilon in (0.0, 0.5, 1.0):
            assert delta_of(found, epsilon) >= enumerated([(law, times)], epsilon)


def test_one_value_and_no_loss_at_all() -> None:
    still = repeated_losses([(Losses(np.zeros(1), np.ones(1), 0.0), 1000)], 1e-6)
    assert delta_of(still, 0.0) <= 1e-12
    always = repeated_losses([(Losses(np.full(1, 0.25), np.ones(1), 0.0), 8)], 1e-6)
    assert delta_of(always, 1.0) == pytest.approx(-math.expm1(-1.0), rel=1e-6)


@pytest.mark.parametrize(
    ("events", "delta"),
    [
        ([PureEvent("0.1")] * 100, "1e-6"),
        ([PureEvent("0.1")], "1e-6"),
        ([PureEvent("0.003")] * 70_000, "1e-6"),
        ([PureEvent(50)] * 3, "1e-6"),
        ([ApproximateEvent("0.3", "1e-8")] * 5 + [PureEvent("0.037")] * 60 + [PureEvent(2)], "1e-6"),
        ([PureEvent("1e-9")] * 1000, "1e-12"),
        ([PureEvent(1)] * 1000, "1e-100"),
    ],
)
def test_the_loss_distribution_is_the_optimal_theorem_rounded_up(events, delta) -> None:
    parts = Parts.of(events)
    least, found = (
        float(optimal(parts, Fraction(delta)).epsilon),
        float(loss_distribution(parts, Fraction(delta)).epsilon),
    )
    assert least * (1 - 1e-9) <= found <= least * (1 + 1e-4)


def test_deltas_that_leave_nothing_have_no_loss_distribution() -> None:
    parts = Parts.of([ApproximateEvent("0.1", "1e-6")])
    assert loss_distribution(parts, Fraction("1e-6")).epsilon == math.inf
    assert loss_distribution(Parts.of([]), Fraction("1e-6")).epsilon == 0
