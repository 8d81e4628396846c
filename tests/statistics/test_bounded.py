"""Units that own several rows: exact, the same in any partitioning, and never moved further than declared."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from daskrado import registry
from daskrado.losses.margin import Huber
from daskrado.privacy.relations import Relation
from daskrado.statistics import (
    BalancedRados,
    HadamardRados,
    Histogram,
    MeanOperator,
    Moments,
    NoisyColumnRados,
    Rows,
    Statistic,
    UniformRados,
)
from daskrado.statistics.base import Groups
from daskrado.statistics.boosting import MistakeCounts
from daskrado.statistics.bounded import WEIGHT_BITS, Bounded, finished, in_flight, unit_weights
from daskrado.statistics.class_cells import ClassCells
from daskrado.statistics.class_moments import ClassMoments
from daskrado.statistics.class_rados import ClassRados
from daskrado.statistics.column_cells import ColumnCells
from daskrado.statistics.label_means import BagCounts, LabelMeans
from daskrado.statistics.margins import MarginHistogram
from daskrado.statistics.number_cells import NumberCells
from daskrado.statistics.number_moments import NumberMoments
from daskrado.statistics.residual_spread import ResidualSpread
from daskrado.statistics.risk import Mistakes
from daskrado.statistics.score_cells import Score, ScoreCells
from daskrado.statistics.second_moments import SecondMoments
from daskrado.statistics.slopes import SlopeSum
from daskrado.statistics.softmax_slopes import SoftmaxSlopes
from daskrado.statistics.universe import Axis, Universe
from daskrado.table.cells import CellColumn
from daskrado.table.lattice import Lattice

WIDTH = 4
LATTICE = Lattice(norm_bound=1.0, bits=12)
UNIVERSE = Universe((Axis("a", ("x", "y", "z"), 0), Axis("label", ("0", "1"), None)))
STATISTICS: list[Statistic] = [
    MeanOperator(WIDTH),
    Moments(WIDTH),
    NumberMoments(WIDTH),
    ClassMoments(WIDTH, 3),
    ClassRados(WIDTH, 8, classes=3),
    ResidualSpread.at(np.array([0.4, -1.0, 0.2, 0.0]), 0.3, LATTICE),
    SoftmaxSlopes.at(np.array([[0.3, -9.0, 1, 0], [1, 9, 0, 2], [0, 0, 0.5, 0]]), LATTICE),
    SecondMoments(WIDTH),
    SecondMoments(WIDTH, pairs=False),
    HadamardRados(WIDTH, 8),
    SlopeSum.at(np.array([0.3, -0.2, 0.5, 0.1]), Huber(0.5), LATTICE),
    Histogram(WIDTH, UNIVERSE),
    UniformRados(WIDTH, 6),
    BalancedRados(WIDTH, 6),
    MarginHistogram(WIDTH, ((1 << 24, -(1 << 24), 1 << 24, 1 << 24), (0, 0, 0, 1 << 26)), LATTICE.bits, 10),
    ScoreCells(WIDTH, (Score((1 << 24, 5, 3, 0), (-(1 << 36), 0, 1 << 35)), Score((0, 1, 0, 0), ())), LATTICE.bits),
    ScoreCells(WIDTH, (Score((1 << 24, 5, 3, 0), (0,)),), LATTICE.bits, (Axis("a", ("x", "y", "z"), 0),)),
    ClassCells(
        WIDTH, tuple(Score(votes, ()) for votes in ((1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 0, 1))), 12, labels=False
    ),
    LabelMeans.loosest(WIDTH, LATTICE.bits),
    BagCounts(WIDTH, Groups("ward", ("a", "b"), optional=True)),
    NoisyColumnRados(WIDTH, 6, (2, 3), 1.0),
    NumberCells(WIDTH, (0, 2), 6, LATTICE.step),
    ColumnCells(WIDTH, (CellColumn("a", ("declared", "other", "null"), (0, 0, 1), (True, False, False), 0),)),
]
ROWS_CHANGE = (Relation.ADD_REMOVE, Relation.REPLACE_ONE)
RELATIONS = {
    "label_means": (Relation.LABEL_FLIP,),
    "noisy_column_rados": (Relation.FEATURE_FLIP,),
    "column_cells": ROWS_CHANGE,
    "number_moments": ROWS_CHANGE,
    "class_moments": ROWS_CHANGE,
    "class_rados": ROWS_CHANGE,
    "residual_spread": ROWS_CHANGE,
    "class_cells": ROWS_CHANGE,
    "softmax_slopes": ROWS_CHANGE,
    "score_cells": ROWS_CHANGE,
}
changes = [
    (statistic, relation)
    for statistic in STATISTICS
    for relation in RELATIONS.get(statistic.name, (*ROWS_CHANGE, Relation.LABEL_FLIP))
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
        weights, groups = unit_weights(np.full(count, count), bound), draw.integers(-1, 2, count, dtype=np.int32)
        found.append(Rows(LATTICE.quantise(np.asfortranarray(x)), y, seeds, groups, weights=weights))
    return found


def joined(parts: list[Rows]) -> Rows:
    def one(name: str) -> Any:
        return np.concatenate([getattr(part, name) for part in parts])

    return Rows(np.asfortranarray(one("x")), one("y"), one("seeds"), one("groups"), weights=one("weights"))


def _meant(statistic: Statistic, parts: list[Rows]) -> Rows:
    """With labels that the statistic is meant for: the largest numbers of either sign, or one of two classes."""
    rows = joined(parts)
    if "classes" in statistic.targets:
        return replace(rows, y=np.where(rows.y > 0, 1, 2).astype(np.int8))
    return rows if "sides" in statistic.targets else replace(rows, y=rows.y.astype(np.int16) * np.int16(2047))


def test_every_statistic_that_bounds_units_is_fuzzed_by_whole_units() -> None:
    """All but those that refuse units, or leave out rows of a unit and have noise on those that stay."""
    known = {
        kind
        for kind in registry.kinds(Statistic, "daskrado.statistics").values()
        if kind.__module__.startswith("daskrado.") and not kind.needs_place
    }
    elsewhere = {MistakeCounts}  # whose scores of a choice are fuzzed below
    assert {kind for kind in known if kind.released} - elsewhere == {type(s) for s in STATISTICS}


@cases
@bounds
def test_sums_are_those_of_exact_weights_for_any_partitioning(statistic: Statistic, bound: int) -> None:
    draw = np.random.default_rng(3)
    units = [_meant(statistic, [unit]) for unit in rows_of(draw, [1, 2, 3, 7, 40, 1, 5], bound)]
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
                one = statistic.partial(replace(unit.take(slice(i, i + 1)), weights=None))
                expected += int(unit.weights[i]) * one.astype(object)
        at = 0
        for block, inner in zip(whole.blocks, statistic.blocks, strict=True):
            shift = WEIGHT_BITS - (block.fine - inner.fine)
            for value, exact in zip(found[at : at + block.size], expected[at : at + block.size], strict=True):
                assert value == exact >> shift
            at += block.size


@pytest.mark.parametrize(("statistic", "relation"), changes, ids=str)
@bounds
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
                features = np.repeat(-mine.x[:1], again, axis=0)
                opposite = replace(opposite, features=features, y=np.repeat(mine.y[:1], again))
            other = [opposite]
        elif relation is Relation.LABEL_FLIP:
            signs = draw.choice(np.array([-1, 1], dtype=np.int8), owned) if trial % 2 else np.int8(-1)
            other = [replace(mine, y=mine.y * signs)]
        elif relation is Relation.FEATURE_FLIP:
            signs = draw.choice([-1.0, 1.0], (owned, 2)) if trial % 2 else -np.ones((owned, 2))
            other = [replace(mine, features=mine.x * np.column_stack([np.ones((owned, 2)), signs]))]
        moved = whole.partial(_meant(statistic, [*rest, mine])) - whole.partial(_meant(statistic, [*rest, *other]))
        vector = (moved * steps)[~public]
        assert not moved[public].any() or relation in ROWS_CHANGE
        assert np.abs(vector).sum() <= far.l1
        assert np.linalg.norm(vector) <= far.l2
        farthest = max(farthest, float(np.linalg.norm(vector)))
    assert farthest > 0.3 * far.l2 or public.all()  # the bound is not idle


def test_the_sensitivity_of_one_person_is_that_of_one_row() -> None:
    for statistic in STATISTICS:
        for relation in () if statistic.name in RELATIONS else ROWS_CHANGE:
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


def test_a_unit_moves_no_count_of_mistakes_by_more_than_its_bound() -> None:
    """What the exponential mechanism needs: the largest entry, exactly, for forty rows that come or go."""
    draw = np.random.default_rng(9)
    candidates = np.vstack([draw.normal(size=(5, WIDTH)), np.zeros((1, WIDTH))])
    inner = MistakeCounts(WIDTH, candidates.tobytes())
    worst = Fraction(0)
    for bound in (1, 3):
        whole, rest = Bounded(WIDTH, inner, bound, LATTICE.bits), rows_of(draw, [1, 5], bound)
        (block,) = whole.blocks
        for owned in (1, 2, 3, 40):
            moved = whole.partial(joined([*rest, *rows_of(draw, [owned], bound)])) - whole.partial(joined(rest))
            share = Fraction(int(np.abs(moved).max()), 1 << block.fine) / bound
            assert share <= 1
            worst = max(worst, share)
    assert worst == 1
