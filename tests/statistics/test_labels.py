"""Label statistics: exact under any cut of the rows, sensitivity against brute force, refusals."""

import hashlib
import pickle
from inspect import isabstract

import numpy as np
import pytest

from daskrado.errors import DataError, UsageError
from daskrado.losses.linear_odd import AbsoluteOdd, EvenPart, make_odd_loss
from daskrado.privacy.relations import Relation
from daskrado.statistics import bag_margins, even_risk, features, label_means
from daskrado.statistics.bag_margins import MarginDigits, SplitAtMargins
from daskrado.statistics.base import Groups, Rows, Statistic
from daskrado.statistics.even_risk import EvenRisk
from daskrado.statistics.features import FeatureDigest, FeatureFacts, digest_text
from daskrado.statistics.label_means import BagCounts, LabelMeans
from daskrado.table.lattice import Lattice

BITS, WIDTH = 12, 5
LATTICE = Lattice(2.0, BITS)
GROUPS = Groups("site", ("a", "b", "c"))


def sample(n=40, seed=1, missing=False):
    draw = np.random.default_rng(seed)
    x = LATTICE.quantise(np.asfortranarray(3 * draw.normal(size=(n, WIDTH))))
    y = draw.choice(np.array([-1, 0, 1] if missing else [-1, 1], dtype=np.int8), size=n)
    return Rows(x, y, draw.integers(0, 2**63, size=n).astype(np.uint64), draw.integers(0, 3, size=n).astype(np.int32))


def piece(rows, part):
    return Rows(rows.x[part], rows.y[part], rows.seeds[part], rows.groups[part])


def facts_of(rows):
    return int(np.abs(rows.x).sum(axis=1).max()), int((rows.x.astype(np.int64) ** 2).sum(axis=1).max())


def statistics(rows):
    l1, square = facts_of(rows)
    weights = (0.3, -1.2, 0.7, 2.0, -0.01)
    return [
        FeatureFacts(WIDTH),
        FeatureFacts(WIDTH, GROUPS, squares=True),
        FeatureDigest(WIDTH),
        LabelMeans(WIDTH, l1, square, BITS, missing=True),
        LabelMeans(WIDTH, l1, square, BITS, GROUPS, missing=True),
        BagCounts(WIDTH, GROUPS),
        EvenRisk(WIDTH, make_odd_loss("logistic"), weights, BITS),
        EvenRisk(WIDTH, make_odd_loss("square"), weights, BITS),
        MarginDigits(WIDTH, GROUPS, (5, -3, 2, 0, 1), (1 << 53,) * 3, 4, 0),
        SplitAtMargins(WIDTH, GROUPS, (5, -3, 2, 0, 1), ((1 << 57), (1 << 57) + 900, 1)),
    ]


def test_every_label_statistic_is_under_contract():
    found = set()
    for module in (bag_margins, even_risk, features, label_means):
        for kind in vars(module).values():
            if isinstance(kind, type) and kind.__module__ == module.__name__ and issubclass(kind, Statistic):
                found |= set() if isabstract(kind) else {kind}
    assert found == {type(statistic) for statistic in statistics(sample())}


def test_a_grid_too_fine_to_sum_exactly_is_refused():
    with pytest.raises(UsageError, match="at most 22"):
        EvenRisk(WIDTH, make_odd_loss("logistic"), (0.0,) * WIDTH, 23)


@pytest.mark.parametrize("kind", range(10))
def test_empty_blocks_pickles_and_the_overflow_guard(kind):
    rows = sample(30, missing=True)
    statistic = statistics(rows)[kind]
    assert pickle.loads(pickle.dumps(statistic)) == statistic
    np.testing.assert_array_equal(statistic.partial(piece(rows, slice(0, 0))), statistic.zero())
    if statistic.name == "feature_digest":
        return  # a digest wraps around on purpose
    for i in range(30):
        parts = statistic.split(statistic.partial(piece(rows, slice(i, i + 1))))
        summed = [part for name, part in parts.items() if name != "largest"]  # a maximum is never summed
        assert max(np.abs(part).max() for part in summed) <= statistic.largest_per_row(LATTICE)


@pytest.mark.parametrize("kind", range(10))
def test_any_cut_and_order_gives_the_same_bits(kind):
    rows = sample(60, missing=True)
    statistic = statistics(rows)[kind]
    whole = statistic.partial(rows)
    assert whole.dtype == np.int64
    assert whole.shape == (statistic.size,)
    draw = np.random.default_rng(2)
    for parts in (2, 7, 60):
        order = draw.permutation(60)
        total = statistic.zero()
        for part in np.array_split(order, parts):
            total = statistic.merge(total, statistic.partial(piece(rows, part)))
        np.testing.assert_array_equal(total, whole)
    np.testing.assert_array_equal(statistic.merge(whole, statistic.zero()), whole)


def test_facts_against_plain_numpy():
    rows = sample()
    part = FeatureFacts(WIDTH, GROUPS, squares=True)
    found = part.split(part.partial(rows))
    assert tuple(found["largest"]) == facts_of(rows)
    for g in range(3):
        mine = rows.x[rows.groups == g].astype(np.int64)
        np.testing.assert_array_equal(found["sum"][g], mine.sum(axis=0))
        assert found["count"][g] == len(mine)
        assert found["squares"][g] == (mine**2).sum()


@pytest.mark.parametrize("groups", [None, GROUPS])
def test_a_label_flip_moves_label_means_by_no_more_than_declared_and_reaches_it(groups):
    rows = sample(30)
    l1, square = facts_of(rows)
    statistic = LabelMeans(WIDTH, l1, square, BITS, groups)
    declared = statistic.sensitivity(Relation.LABEL_FLIP)
    base = statistic.split(statistic.partial(rows))
    moved = []
    for i in range(30):
        y = rows.y.copy()
        y[i] = -y[i]
        other = statistic.split(statistic.partial(Rows(rows.x, y, None, rows.groups)))
        np.testing.assert_array_equal(base["labelled"], other["labelled"])  # public, as declared
        step = (other["mean"] - base["mean"]).ravel() * 2.0**-BITS
        moved.append((np.abs(step).sum(), np.sqrt((step**2).sum())))
    worst = np.max(moved, axis=0)
    assert worst[0] <= declared.l1
    assert worst[1] <= declared.l2
    assert worst[0] == pytest.approx(declared.l1, rel=1e-12)  # the bound is tight: it is not merely safe
    assert worst[1] == pytest.approx(declared.l2, rel=1e-12)
    assert declared.l1 > 2.0  # the published algorithm would have taken 2


def test_rows_above_the_measured_norms_are_refused():
    rows = sample()
    l1, square = facts_of(rows)
    for small in (LabelMeans(WIDTH, l1 - 1, square, BITS), LabelMeans(WIDTH, l1, square - 1, BITS)):
        with pytest.raises(DataError, match="features changed"):
            small.partial(rows)


@pytest.mark.parametrize("relation", [Relation.ADD_REMOVE, Relation.REPLACE_ONE, Relation.FEATURE_FLIP])
def test_only_labels_are_protected(relation):
    for statistic in (LabelMeans(WIDTH, 1, 1, BITS), FeatureFacts(WIDTH), FeatureDigest(WIDTH)):
        with pytest.raises(UsageError, match="no derived sensitivity"):
            statistic.sensitivity(relation)
    assert FeatureFacts(WIDTH).sensitivity(Relation.LABEL_FLIP).l1 == 0


def test_bag_counts_move_as_declared_under_every_relation():
    """All neighbours of a small lake, by enumeration."""
    statistic = BagCounts(WIDTH, GROUPS)
    every = [(g, y) for g in range(3) for y in (-1, 1)]

    def counts(pairs):
        groups, labels = (
            np.array([p[0] for p in pairs], dtype=np.int32),
            np.array([p[1] for p in pairs], dtype=np.int8),
        )
        return statistic.partial(Rows(np.zeros((len(pairs), WIDTH)), labels, None, groups))

    base = [(0, 1), (1, -1), (2, 1), (2, -1)]
    neighbours = {
        Relation.LABEL_FLIP: [[*base[:i], (g, -y), *base[i + 1 :]] for i, (g, y) in enumerate(base)],
        Relation.ADD_REMOVE: [[*base, p] for p in every] + [base[:i] + base[i + 1 :] for i in range(4)],
        Relation.REPLACE_ONE: [[*base[:i], p, *base[i + 1 :]] for i in range(4) for p in every],
    }
    for relation, lakes in neighbours.items():
        declared = statistic.sensitivity(relation)
        keep = np.array([True] * 3 + ["count" not in declared.public] * 3)
        steps = np.array([(counts(lake) - counts(base))[keep] for lake in lakes])
        assert np.abs(steps).sum(axis=1).max() == declared.l1
        assert np.sqrt((steps**2).sum(axis=1)).max() == pytest.approx(declared.l2, rel=1e-12)
    with pytest.raises(UsageError):
        statistic.sensitivity(Relation.FEATURE_FLIP)


def test_the_digest_sees_every_change_and_no_order():
    rows = sample(20)
    statistic = FeatureDigest(WIDTH)
    base = statistic.partial(rows)
    changes = []
    for i in range(20):
        x = rows.x.copy()
        x[i, i % WIDTH] += 1
        changes.append(statistic.partial(Rows(x, rows.y, rows.seeds)))
    swapped = rows.seeds.copy()
    swapped[[0, 1]] = swapped[[1, 0]]
    changes.append(statistic.partial(Rows(rows.x, rows.y, swapped)))
    changes.append(statistic.partial(piece(rows, slice(1, None))))
    for other in changes:
        assert not np.array_equal(other, base)
    flipped = Rows(rows.x, -rows.y, rows.seeds)
    np.testing.assert_array_equal(statistic.partial(flipped), base)  # labels have no part in it
    # one row, against the hash written out
    row = np.concatenate([rows.seeds[:1].view(np.int64), rows.x[0].astype(np.int64)]).astype("<i8").tobytes()
    words = np.frombuffer(hashlib.blake2b(row, digest_size=32).digest(), dtype="<i8")
    np.testing.assert_array_equal(statistic.partial(piece(rows, slice(0, 1))), words)
    assert digest_text(base, 20, LATTICE) != digest_text(base, 21, LATTICE) != digest_text(base, 20, Lattice(2.0, 13))


@pytest.mark.parametrize(
    "loss", [make_odd_loss("logistic"), make_odd_loss("matsushita"), make_odd_loss("square"), AbsoluteOdd(1, 0.1)]
)
@pytest.mark.parametrize("scale", [0.0, 0.01, 3.0])
def test_even_risk_against_plain_floats(loss, scale):
    rows = sample(200)
    weights = scale * np.array([0.3, -1.2, 0.7, 2.0, -0.01])
    statistic = EvenRisk(WIDTH, loss, tuple(weights), BITS)
    value, slope, curvature = statistic.read(statistic.partial(rows))
    x = rows.x * 2.0**-BITS
    even, z = EvenPart(loss), x @ statistic.grid_weights
    np.testing.assert_allclose(statistic.grid_weights, weights, rtol=1e-6, atol=1e-8 * scale)
    assert value == pytest.approx(even.value(z).mean(), abs=1e-7)
    top = max(np.abs(even.slope(np.array([np.linalg.norm(weights)])))[0], 1e-9)
    np.testing.assert_allclose(slope, x.T @ even.slope(z) / 200, atol=2e-9 * max(top, 1.0))
    exact = (x * even.curvature(z)[:, None]).T @ x / 200
    np.testing.assert_allclose(curvature, exact, atol=3e-3 * max(np.abs(exact).max(), 1e-3))
    assert np.linalg.eigvalsh(curvature).min() > -1e-12
