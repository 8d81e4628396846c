"""The contract of statistics that go by position: the law of their subsets, the same bits in any partitioning."""

from __future__ import annotations

import itertools
import math
import pickle
from collections import Counter

import numpy as np
import pytest
from scipy import stats

from daskrado.errors import UsageError
from daskrado.privacy.relations import Relation
from daskrado.statistics import (
    FeatureRados,
    FixedSupportRados,
    HadamardRados,
    NoisyEdgeRados,
    RandomisedRados,
    Rows,
    Statistic,
    UniformRados,
)
from daskrado.statistics.base import Place
from daskrado.statistics.subsets import LEAF, leaf_sizes, membership_matrix
from daskrado.table.lattice import Lattice

WIDTH = 3
LATTICE = Lattice(1.0, 10)
POSITIONAL: list[Statistic] = [
    FixedSupportRados(WIDTH, 6, 40),
    FeatureRados(WIDTH, 6, 1, 2.0),
    NoisyEdgeRados(WIDTH, UniformRados(WIDTH, 6), 30.0),
    NoisyEdgeRados(WIDTH, FixedSupportRados(WIDTH, 4, 7), 300.0),
    RandomisedRados(WIDTH, HadamardRados(WIDTH, 8), (0, 2), 1.0),
]
cases = pytest.mark.parametrize("statistic", POSITIONAL, ids=repr)


def lake(rows: int, seed: int = 0) -> Rows:
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(rows, WIDTH)) / 4
    x[:, 1] = np.where(draw.random(rows) < 0.4, 0.5, -0.5)
    y = draw.choice(np.array([-1, 1], dtype=np.int8), rows)
    place = Place(draw.bytes(32), 0, rows)
    seeds = draw.integers(0, 2**64, rows, dtype=np.uint64)
    return Rows(LATTICE.quantise(np.asfortranarray(x)), y, seeds, place=place)


def cut(rows: Rows, start: int, stop: int) -> Rows:
    assert rows.place is not None
    assert rows.seeds is not None
    place = Place(rows.place.key, start, rows.place.total)
    return Rows(np.asfortranarray(rows.x[start:stop]), rows.y[start:stop], rows.seeds[start:stop], place=place)


@cases
def test_any_partitioning_gives_the_same_bits(statistic: Statistic) -> None:
    rows = lake(LEAF + 2500)
    whole = statistic.partial(rows)
    assert whole.dtype == np.int64
    assert whole.shape == (statistic.size,)
    draw = np.random.default_rng(1)
    for parts in (2, 7, 64):
        edges = [0, *np.sort(draw.choice(len(rows.y), parts - 1, replace=False)).tolist(), len(rows.y)]
        pieces = [cut(rows, a, b) for a, b in itertools.pairwise(edges)]
        total = statistic.zero()
        for at in draw.permutation(len(pieces)):
            total = statistic.merge(total, statistic.partial(pieces[at]))
        assert np.array_equal(total, whole)


@cases
def test_pickles_is_frozen_and_hides_the_key(statistic: Statistic) -> None:
    assert pickle.loads(pickle.dumps(statistic)) == statistic
    with pytest.raises(AttributeError):
        statistic.width = 9  # type: ignore[misc]
    assert repr(Place(b"very secret key material here!!!", 0, 5)) == "<Place>"


@cases
def test_sums_stay_below_the_overflow_guard(statistic: Statistic) -> None:
    rows = lake(200)
    for at in range(60):
        one = cut(rows, at, at + 1)
        assert np.abs(statistic.partial(one)).max() <= statistic.largest_per_row(LATTICE)


@pytest.mark.slow
def test_a_fixed_support_is_a_uniform_subset_across_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven rows in leaves of two: all 35 supports of size 3, equally often."""
    monkeypatch.setattr("daskrado.statistics.subsets.LEAF", 2)
    draw = np.random.default_rng(5)
    seen: Counter[tuple[int, ...]] = Counter()
    for _ in range(60):
        members = membership_matrix(Place(draw.bytes(32), 0, 7), np.full(200, 3), 7)
        assert (members.sum(axis=1) == 3).all()
        seen.update(tuple(np.flatnonzero(row)) for row in members)
    assert len(seen) == math.comb(7, 3)
    assert stats.chisquare(list(seen.values())).pvalue > 1e-4


def test_leaf_sizes_are_multivariate_hypergeometric(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows per leaf 4, 4, 3; supports of 5: the exact joint law by counting."""
    monkeypatch.setattr("daskrado.statistics.subsets.LEAF", 4)
    held, support = (4, 4, 3), 5
    sizes = np.full(20_000, support)
    key = b"k" * 32
    counts = np.stack([leaf_sizes(key, 11, sizes, leaf) for leaf in range(3)])
    assert (counts.sum(axis=0) == support).all()
    seen = Counter(map(tuple, counts.T.tolist()))
    law = {
        parts: math.prod(math.comb(h, k) for h, k in zip(held, parts, strict=True)) / math.comb(11, support)
        for parts in itertools.product(range(5), range(5), range(4))
        if sum(parts) == support
    }
    assert set(seen) <= set(law)
    observed = [seen.get(parts, 0) for parts in law]
    assert stats.chisquare(observed, [p * 20_000 for p in law.values()]).pvalue > 1e-4


def test_fixed_support_rados_are_sums_over_their_members() -> None:
    rows = lake(900)
    statistic = FixedSupportRados(WIDTH, 5, 137)
    assert rows.place is not None
    members = membership_matrix(rows.place, np.full(5, 137), 900)
    assert (members.sum(axis=1) == 137).all()
    expected = members.astype(float) @ (rows.x * rows.y[:, None])
    assert np.array_equal(statistic.partial(rows).reshape(5, WIDTH), expected)
    everything = FixedSupportRados(WIDTH, 2, 900).partial(rows).reshape(2, WIDTH)
    assert np.array_equal(everything, np.tile(rows.y.astype(float) @ rows.x, (2, 1)))


@pytest.mark.parametrize("relation", [Relation.REPLACE_ONE, Relation.LABEL_FLIP, Relation.FEATURE_FLIP])
def test_fixed_support_moves_no_further_than_declared(relation: Relation) -> None:
    statistic = FixedSupportRados(WIDTH, 6, 20)
    declared, worst = statistic.sensitivity(relation), 0.0
    for seed in range(40):
        rows = lake(20 if seed % 2 else 30, seed)  # with a support of all rows, one row is in every rado
        x, y = rows.x.copy(), rows.y.copy()
        big = np.zeros(WIDTH)
        big[1] = 2.0**LATTICE.bits
        rows.x[3] = big
        x[3] = -big if relation is not Relation.LABEL_FLIP else big
        if relation is Relation.LABEL_FLIP:
            y[3] = -y[3]
        change = statistic.partial(rows) - statistic.partial(Rows(x, y, rows.seeds, place=rows.place))
        moved = change * statistic.blocks[0].normalised_step(LATTICE)
        worst = max(worst, float(np.linalg.norm(moved)))
        assert np.abs(moved).sum() <= declared.l1 + 1e-9
    assert declared.l2 * 0.999 <= worst <= declared.l2 + 1e-9
    with pytest.raises(UsageError, match="no derived sensitivity under add_remove"):
        statistic.sensitivity(Relation.ADD_REMOVE)


def test_a_support_larger_than_the_lake_is_refused_with_both_numbers() -> None:
    with pytest.raises(UsageError, match="support 40 is larger than the lake, which has 39 rows"):
        FixedSupportRados(WIDTH, 6, 40).check_rows(39)
