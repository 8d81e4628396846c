"""Unknown values: the chance of telling one unit's own value, summed exactly, and the whole event."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import pytest
from scipy.stats import norm

from daskrado.errors import UsageError
from daskrado.privacy.accountant import GaussianEvent, compose, event_from_json, event_to_json, group_event
from daskrado.privacy.costs import cost_of
from daskrado.privacy.curves import gaussian_delta
from daskrado.privacy.events import own_delta
from daskrado.privacy.relations import Relation
from daskrado.privacy.unknown_values import FINE, UnknownValues

AR, RO = Relation.ADD_REMOVE, Relation.REPLACE_ONE
ROW = 1 << FINE


@lru_cache(maxsize=2)
def weights(scale: float) -> np.ndarray:
    """exp(-m^2 / 2 scale^2) for m = 0, 1, ..., up to 12 standard deviations, where e^-72 is left."""
    return np.exp(-((np.arange(math.ceil(12 * scale)) / scale) ** 2) / 2)


@lru_cache(maxsize=2)
def sums(scale: float) -> np.ndarray:
    """Of all weights from each m on, the smallest added first."""
    return np.cumsum(weights(scale)[::-1])[::-1]


def tail(scale: float, least: int) -> float:
    """P(X > least) of discrete Gaussian noise, term by term."""
    upper = sums(scale)
    whole = 2 * upper[0] - 1
    return float(upper[least + 1] / whole) if least >= 0 else 1 - tail(scale, -least - 1)


def partitions(rows: int, most: int | None = None) -> Iterator[tuple[int, ...]]:
    """All ways to give so many rows to different values."""
    if rows == 0:
        yield ()
    for first in range(min(rows, most or rows), 0, -1):
        yield from ((first, *rest) for rest in partitions(rows - first, first))


def worst_leak(law: UnknownValues, threshold: int) -> float:
    """The largest chance that a unit's own value is told, over all ways in which its rows may hold values."""
    quiet = [
        math.fsum(math.log1p(-tail(law.scale, threshold - count * ROW)) for count in counts)
        for counts in partitions(law.bound)
    ]
    return -math.expm1(law.columns * min(quiet))


@pytest.mark.parametrize("relation", [AR, RO])
@pytest.mark.parametrize("delta", [1e-3, 1e-8])
@pytest.mark.parametrize("columns", [1, 4])
@pytest.mark.parametrize("bound", [1, 2, 5])
def test_own_values_are_told_with_at_most_delta(bound: int, columns: int, delta: float, relation: Relation) -> None:
    law = UnknownValues(columns, bound, relation, mu=6.0, delta=delta)
    found = worst_leak(law, law.threshold)
    assert found <= delta
    assert found >= delta / (columns * bound) / 2  # the threshold is no higher than it needs to be
    if bound > 1:  # with 1 in place of the bound it is too low
        assert worst_leak(law, law.threshold - (bound - 1) * ROW) > 1.3 * delta


def test_spread_rows_would_tell_more() -> None:
    """A unit spread over n values of weight 1 / n each has n chances: why units are sampled."""
    law, rows = UnknownValues(1, 1, AR, mu=0.1, delta=1e-6), 1000
    spread = -math.expm1(rows * math.log1p(-norm.sf((law.threshold - ROW / rows) / law.scale)))
    assert spread > 400 * law.delta


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0, 8.0])
def test_the_event_covers_a_replaced_row_exactly(epsilon: float) -> None:
    """One row leaves a value of its own for a value that others hold: hockey-stick over all outcomes, both ways.

    The own value is told or not (it does not exist in the other lake); the shared count moves by one row.
    """
    law = UnknownValues(1, 1, RO, mu=2.0, delta=1e-4)
    told, scale = tail(law.scale, law.threshold - ROW), law.scale
    terms = weights(scale)
    mass = np.concatenate([terms[:0:-1], terms]) / (2 * math.fsum(terms) - 1)
    one, other = np.concatenate([mass, np.zeros(ROW)]), np.concatenate([np.zeros(ROW), mass])
    factor = math.exp(epsilon)
    there = told + math.fsum(np.maximum(0.0, (1 - told) * one - factor * other))
    back = math.fsum(np.maximum(0.0, other - factor * (1 - told) * one))
    stated = law.delta + (1 - law.delta) * gaussian_delta(epsilon, law.mu)
    assert max(there, back) <= stated * (1 + 1e-6)


def test_noise_and_threshold_are_in_rows() -> None:
    law = UnknownValues(4, 3, RO, mu=0.5, delta=1e-6)
    assert law.std == pytest.approx(3 * math.sqrt(8) / 0.5)
    assert 1 <= law.threshold - (3 + law.std * norm.isf(1e-6 / 12)) * ROW <= 2.001  # one step more, rounded up
    noisy, told = law.above_threshold(np.full(20_000, 5, dtype=np.int64))
    assert noisy.std() == pytest.approx(law.std, rel=0.03)
    assert noisy.mean() == pytest.approx(5, abs=0.5)
    assert np.array_equal(told, noisy * ROW > law.threshold)


def test_a_leaky_event_is_charged_with_its_leak() -> None:
    event = GaussianEvent(0.3, 1e-8)
    assert event_from_json(event_to_json(event)) == event
    assert event_from_json({"kind": "gaussian", "mu": "0.3"}) == GaussianEvent(0.3)
    assert "delta" not in event_to_json(GaussianEvent(0.3))
    assert float(cost_of(event).delta) == float(own_delta([event])) == 1e-8
    assert cost_of(event).mu2 == cost_of(GaussianEvent(0.3)).mu2
    alone, leaky = (float(compose([e], 1e-6).epsilon) for e in (GaussianEvent(0.3), event))
    assert alone < leaky < alone * 1.01
    assert compose([event], 1e-8).epsilon == math.inf  # the leak leaves nothing


@pytest.mark.parametrize("size", [2, 3, 7])
def test_a_group_pays_for_leaks_that_grow(size: int) -> None:
    """Against the roc curve of t steps, computed step by step with mpmath: x -> delta + (1 - delta) G(x)."""
    mpmath = pytest.importorskip("mpmath")
    mpmath.mp.dps = 40
    event = GaussianEvent(0.3, 1e-6)

    def moved(x: object, mu: object) -> object:
        at = mpmath.sqrt(2) * mpmath.erfinv(2 * x - 1)
        return mpmath.ncdf(at + mu)

    grown = group_event(event, size)
    assert isinstance(grown, GaussianEvent)
    assert grown.mu == pytest.approx(0.3 * size)
    for start in ("1e-12", "1e-7", "1e-3", "0.3"):
        passed = mpmath.mpf(start)
        for _ in range(size):
            passed = mpmath.mpf("1e-6") + (1 - mpmath.mpf("1e-6")) * moved(passed, mpmath.mpf("0.3"))
        allowed = mpmath.mpf(float(grown.delta)) + moved(mpmath.mpf(start), mpmath.mpf("0.3") * size)
        assert passed <= allowed
    assert float(grown.delta) > size * 1e-6  # plain sums of deltas would not do
    assert group_event(GaussianEvent(0.3), size).delta == 0  # type: ignore[union-attr]


def test_other_relations_and_coarse_noise_are_refused() -> None:
    with pytest.raises(UsageError, match="add_remove or replace_one"):
        UnknownValues(1, 1, Relation.LABEL_FLIP, 1.0, 1e-6)
    with pytest.raises(UsageError, match="too coarse"):
        UnknownValues(1, 1, AR, 45.0, 1e-6)
