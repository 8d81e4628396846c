"""Units that own several rows: exact, the same in any partitioning, and never moved further than declared."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from daskrado.losses.margin import Huber
from daskrado.privacy.relations import Relation
from daskrado.statistics import HadamardRados, Histogram, MeanOperator, Moments, Rows, Statistic
from daskrado.statistics.bounded import WEIGHT_BITS, Bounded, finished, in_flight, unit_weights
from daskrado.statistics.risk import Mistakes
from daskrado.statistics.slopes import SlopeSum
from daskrado.statistics.universe import Axis, Universe
from daskrado.table.lattice import Lattice

WIDTH = 4
LATTICE = Lattice(norm_bound=1.0, bits=12)
UNIVERSE = Universe((Axis("a", ("x", "y", "z"), 0), Axis("label", ("0", "1"), None)))
STATISTICS: list[Statistic] = [
    MeanOperator(WIDTH),
    Moments(WIDTH),
    HadamardRados(WIDTH, 8),
    SlopeSum.at(np.array([0.3, -0.2, 0.5, 0.1]), Huber(0.5), LATTICE),
    Histogram(WIDTH, UNIVERSE),
]
cases = pytest.mark.parametrize("statistic", STATISTICS, ids=lambda s: s.name)
bounds = pytest.mark.parametrize("bound", [1, 3])


def rows_of(draw: np.random.Generator, owned: list[int], bound: int, *, extreme: bool = False) -> list[Rows]:
    """The rows of each unit, weighted by how many it owns."""
    found = []
    for count in owned:
        x = draw.normal(size=(count, WIDTH)) * (50 if extreme else 1)
        x[:, :3] = np.eye(3)[draw.integers(0, 3, count)]  # one-hot, for the histogram
        y = draw.choice(np.array([-1, 1], dtype=np.int8), count)
        seeds = draw.integers(0, 2**64, count, dtype=np.uint64)
        weights = unit_weights(np.full(count, count), bound)
        found.append(Rows(LATTICE.quantise(np.asfortranarray(x)), y, seeds, weights=weights))
    return found


def joined(parts: list[Rows]) -> Rows:
    def one(name: str) -> Any:
        return np.concatenate([getattr(part, name) for part in parts])

    return Rows(np.asfortranarray(one("x")), one("y"), one("seeds"), weights=one("weights"))


@cases
@bounds
def test_sums_are_those_of_exact_weights_for_any_partitioning(statistic: Statistic, bound: int) -> None:
    draw = np.random.default_rng(3)
    units = rows_of(draw, [1, 2, 3, 7, 40, 1, 5], bound)
    whole = Bounded(WIDTH, statistic, bound, LATTICE.bits)
    rows = joined(units)
    flight = in_flight(whole)
    for parts in (1, 2, 7):
        cuts = np.array_split(draw.permutation(len(rows.y)), parts)
        total = sum((flight.partial(rows.take(cut)) for cut in cuts), flight.zero())
        found = whole.finished(total)
        expected = np.zeros(statistic.size, dtype=object)
        for unit in units:
            for i in range(len(unit.y)):
                one = statistic.partial(Rows(unit.x[i : i + 1], unit.y[i : i + 1], unit.seeds[i : i + 1]))
                expected += int(unit.weights[i]) * one.astype(object)
        at = 0
        for block, inner in zip(whole.blocks, statistic.blocks, strict=True):
            shift = WEIGHT_BITS - (block.fine - inner.fine)
            for value, exact in zip(found[at : at + block.size], expected[at : at + block.size], strict=True):
                assert value == exact >> shift
            at += block.size


@cases
@bounds
@pytest.mark.parametrize("relation", [Relation.ADD_REMOVE, Relation.REPLACE_ONE, Relation.LABEL_FLIP])
def test_a_whole_unit_never_moves_a_sum_further_than_declared(
    statistic: Statistic, bound: int, relation: Relation
) -> None:
    """Adversarial units: forty equal rows of full length in one direction against forty in the opposite one."""
    whole = Bounded(WIDTH, statistic, bound, LATTICE.bits)
    far = whole.sensitivity(relation)
    steps = np.concatenate([np.full(b.size, b.normalised_step(LATTICE)) for b in whole.blocks])
    public = np.concatenate([np.full(b.size, b.name in far.public) for b in whole.blocks])
    draw = np.random.default_rng(5)
    farthest = 0.0
    for trial in range(60):
        rest = rows_of(draw, [1, 4, 9], bound)
        owned = int(draw.choice([1, 2, 3, 40]))
        mine = rows_of(draw, [owned], bound, extreme=bool(trial % 2))[0]
        if trial % 3 == 0:  # all rows alike
            mine = mine.take(np.zeros(owned, dtype=np.intp))
        other: list[Rows] = []
        if relation is Relation.REPLACE_ONE:
            again = int(draw.choice([1, owned, 40]))
            opposite = rows_of(draw, [again], bound, extreme=True)[0]
            if trial % 3 == 0:
                opposite = Rows(
                    np.repeat(-mine.x[:1], again, axis=0),
                    np.repeat(mine.y[:1], again),
                    opposite.seeds,
                    weights=opposite.weights,
                )
            other = [opposite]
        elif relation is Relation.LABEL_FLIP:
            signs = draw.choice(np.array([-1, 1], dtype=np.int8), owned) if trial % 2 else np.int8(-1)
            other = [Rows(mine.x, mine.y * signs, mine.seeds, weights=mine.weights)]
        moved = whole.partial(joined([*rest, mine])) - whole.partial(joined([*rest, *other]))
        vector = (moved * steps)[~public]
        assert not moved[public].any() or relation is not Relation.LABEL_FLIP
        assert np.abs(vector).sum() <= far.l1
        assert np.linalg.norm(vector) <= far.l2
        farthest = max(farthest, float(np.linalg.norm(vector)))
    assert farthest > 0.3 * far.l2  # the bound is not idle


def test_the_sensitivity_of_one_person_is_that_of_one_row() -> None:
    for statistic in STATISTICS:
        for relation in (Relation.ADD_REMOVE, Relation.REPLACE_ONE):
            one = Bounded(WIDTH, statistic, 1, LATTICE.bits).sensitivity(relation)
            assert one.l2 == pytest.approx(statistic.sensitivity(relation).l2, rel=3e-3)


def test_vectors_that_are_never_released_are_weighted_too() -> None:
    draw = np.random.default_rng(8)
    units = rows_of(draw, [1, 2, 40], 1)
    rows, inner = joined(units), Mistakes(WIDTH, np.eye(WIDTH)[:, :2])
    found = finished(inner, in_flight(inner).partial(rows))
    expected = sum(
        Fraction(int(w), 1 << WEIGHT_BITS)
        * Fraction(int(inner.partial(Rows(rows.x[i : i + 1], rows.y[i : i + 1]))[0]))
        for i, w in enumerate(rows.weights)
    )
    assert found[0] == float(expected)
