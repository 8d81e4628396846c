"""Every sum over rows has the same bits on compact and on dense rows, compiled and in NumPy, however rows are cut."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from loop_forms import both

import daskrado.statistics  # noqa: F401  (registers the subclasses)
from daskrado import registry
from daskrado.lake.partial import Job, Share
from daskrado.losses.margin import Huber, HuberLogistic, Logistic, SmoothHinge, Square
from daskrado.statistics import HadamardRados, Histogram, MarginHistogram, MeanOperator, Moments, UniformRados
from daskrado.statistics.bag_margins import MarginDigits, SplitAtMargins
from daskrado.statistics.base import Additive, Groups, Place, Rows
from daskrado.statistics.boosting import ColumnMaxima, MistakeCounts, WeightedEdges
from daskrado.statistics.class_cells import ClassCells
from daskrado.statistics.class_moments import ClassMoments
from daskrado.statistics.class_rados import ClassRados
from daskrado.statistics.column_cells import ColumnCells
from daskrado.statistics.even_risk import EvenRisk
from daskrado.statistics.features import FeatureDigest, FeatureFacts
from daskrado.statistics.label_means import BagCounts, LabelMeans
from daskrado.statistics.margins import whole_votes
from daskrado.statistics.number_cells import NumberCells
from daskrado.statistics.number_moments import NumberMoments
from daskrado.statistics.protected_rados import NoisyColumnRados, NoisyEdgeRados, RandomisedRados
from daskrado.statistics.rados import BalancedRados
from daskrado.statistics.residual_spread import ResidualSpread
from daskrado.statistics.risk import Mistakes, RiskSum
from daskrado.statistics.score_cells import Score, ScoreCells
from daskrado.statistics.second_moments import SecondMoments
from daskrado.statistics.slopes import SlopeSum
from daskrado.statistics.softmax_slopes import SoftmaxSlopes
from daskrado.statistics.subset_rados import FeatureRados, FixedSupportRados
from daskrado.statistics.universe import Universe
from daskrado.table.cells import CellColumn
from daskrado.table.columns import plain_numbers
from daskrado.table.compact_encoding import CompactTable
from daskrado.table.domain import Domain
from daskrado.table.encoding import encode_table
from daskrado.table.lattice import Lattice
from daskrado.table.products import dots, outer, sums

ROWS = 211
LABEL = {"column": "y", "positive": True, "negative": False}
DOMAIN = Domain.model_validate(
    {
        "label": LABEL,
        "norm_bound": 2.1,
        "columns": {
            "number": {"kind": "numeric", "lower": -3, "upper": 3},
            "bins": {"kind": "numeric", "lower": -3, "upper": 3, "bins": [-1, 0, 0.5, 1]},
            "holes": {"kind": "numeric", "lower": -3, "upper": 3, "nulls": {"fill": 0}},
            "colour": {"kind": "categorical", "values": ["red", "green", "blue"]},
            "many": {"kind": "categorical", "values": list(range(300))},
            "truth": {"kind": "boolean"},
            "quiet": {"kind": "numeric", "lower": -3, "upper": 3, "nulls": {"fill": 1, "flag": False}},
            "gaps": {"kind": "categorical", "values": ["a", "b"], "nulls": {"fill": "a"}},
        },
    }
)
NUMBERS = Domain.model_validate(
    {
        "label": LABEL,
        "norm_bound": 1.7,
        "intercept": 0.3,
        "columns": {f"x{i}": {"kind": "numeric", "lower": -3, "upper": 2 + i} for i in range(5)},
    }
)
WIDTH = DOMAIN.width
LATTICE = Lattice(DOMAIN.norm_bound, 20)
DRAW = np.random.default_rng(8)
WEIGHTS = DRAW.normal(size=WIDTH)
ZERO = np.zeros(WIDTH)
WHOLE = tuple(DRAW.integers(-(2**29), 2**29, WIDTH).tolist())
GROUPS = Groups("g", ("a", "b", "c"))
UNIVERSE = Universe.of(DOMAIN, ["bins", "truth", "colour", "y"])

GAPS = DOMAIN.feature_names.index("gaps=a")
CELLS = CellColumn("gaps", ("declared", "other", "null"), (0, 0, 1), (True, False, False), GAPS)

EXAMPLES: list[Additive] = [
    MeanOperator(WIDTH),
    Moments(WIDTH),
    SecondMoments(WIDTH),
    UniformRados(WIDTH, 6),
    BalancedRados(WIDTH, 6),
    HadamardRados(WIDTH, 8),
    HadamardRados(WIDTH, 4, bucket_zero=True),
    NoisyColumnRados(WIDTH, 6, (0,), 1.0),
    NoisyEdgeRados(WIDTH, HadamardRados(WIDTH, 8), 5.0),
    RandomisedRados(WIDTH, BalancedRados(WIDTH, 6), (WIDTH - 2,), 1.0),
    FixedSupportRados(WIDTH, 3, 7),
    FeatureRados(WIDTH, 3, WIDTH - 2, 2.0),
    SlopeSum.at(WEIGHTS, Huber(0.5), LATTICE),
    SlopeSum.at(WEIGHTS, Logistic(), LATTICE),
    SlopeSum.at(100 * WEIGHTS, HuberLogistic(0.3, 0.7), LATTICE),
    SlopeSum.at(WEIGHTS, SmoothHinge(0.5), LATTICE),
    RiskSum(WIDTH, Logistic(), WEIGHTS, LATTICE, ROWS),
    RiskSum(WIDTH, Square(), WEIGHTS, LATTICE, ROWS),
    RiskSum(WIDTH, SmoothHinge(0.3), 20 * WEIGHTS, LATTICE, 10**9),
    RiskSum(WIDTH, Huber(0.3), 0 * WEIGHTS, LATTICE, ROWS, second=False),
    RiskSum(WIDTH, Logistic(), WEIGHTS, LATTICE, ROWS, every=16),
    Mistakes(WIDTH, np.stack([WEIGHTS, -WEIGHTS], axis=1)),
    MistakeCounts(WIDTH, np.rint(np.stack([WEIGHTS, -WEIGHTS]) * 1000).tobytes()),
    ScoreCells(WIDTH, (Score.of(WEIGHTS, Lattice(2.1, 20), 9.0, np.linspace(-2, 2, 20)),), 20),
    MarginHistogram(WIDTH, (whole_votes(WEIGHTS, [1.0] * WIDTH, 2.1),), 20, bins=50),
    ClassCells(WIDTH, tuple(Score.of(w, Lattice(2.1, 20), 9.0, np.empty(0)) for w in (WEIGHTS, -WEIGHTS, ZERO)), 20),
    ClassMoments(WIDTH, 3),
    ClassRados(WIDTH, 8, classes=3),
    ResidualSpread.at(WEIGHTS, 0.3, LATTICE),
    Mistakes(WIDTH, np.stack([np.stack([WEIGHTS, -WEIGHTS, ZERO]), np.stack([ZERO, WEIGHTS, ZERO])], axis=-1)),
    SoftmaxSlopes.at(np.stack([WEIGHTS, -WEIGHTS, ZERO]), LATTICE),
    Histogram(WIDTH, UNIVERSE),
    ColumnCells(WIDTH, (CELLS,)),
    NumberMoments(WIDTH),
    NumberCells(WIDTH, plain_numbers(DOMAIN), 32, LATTICE.step),
    ColumnCells(WIDTH, (CELLS,), whole=False),
    FeatureFacts(WIDTH, GROUPS, squares=True),
    FeatureFacts(WIDTH),
    FeatureDigest(WIDTH),
    LabelMeans.loosest(WIDTH, 20, GROUPS),
    LabelMeans.loosest(WIDTH, 20),
    BagCounts(WIDTH, GROUPS),
    EvenRisk(WIDTH, Logistic(), tuple(WEIGHTS.tolist()), 20),
    MarginDigits(WIDTH, GROUPS, WHOLE, (0, 0, 1), 4, 53),
    SplitAtMargins(WIDTH, GROUPS, WHOLE, (2**57, 2**57 + 2**40, 2**57)),
    ColumnMaxima(WIDTH),
    WeightedEdges(WIDTH, theta=tuple((WEIGHTS * 1e-6).tolist())),
]
FLOATS = {"weighted_edges"}  # the baseline of boosting on rows: sums of exponentials, in a fixed order of merges


def test_every_sum_over_rows_is_under_contract() -> None:
    known = {
        kind
        for kind in registry.kinds(Additive, "daskrado.statistics").values()
        if kind.__module__.startswith("daskrado.")
    }
    assert known <= {type(statistic) for statistic in EXAMPLES}


def table(rows: int = ROWS) -> pa.Table:
    draw = np.random.default_rng(3)
    holes = draw.normal(size=rows)
    return pa.table(
        {
            "number": draw.normal(size=rows),
            "bins": draw.normal(size=rows),
            "holes": pa.array(holes, mask=draw.random(rows) < 0.2),
            "colour": draw.choice(["red", "green", "blue", "pink"], rows),
            "many": draw.integers(0, 302, rows),
            "truth": draw.random(rows) < 0.3,
            "quiet": pa.array(holes, mask=draw.random(rows) < 0.2),
            "gaps": pa.array(draw.choice(["a", "b", "c"], rows), mask=draw.random(rows) < 0.2),
            "y": draw.random(rows) < 0.4,
            **{f"x{i}": draw.normal(size=rows) for i in range(5)},
        }
    )


def compact_rows(domain: Domain = DOMAIN, lattice: Lattice = LATTICE) -> Rows:
    encoded = encode_table(domain, table())
    assert encoded.labels is not None
    draw = np.random.default_rng(4)
    seeds = draw.integers(0, 2**64, ROWS, dtype=np.uint64)
    features = CompactTable(encoded).block(0, ROWS, lattice)
    groups = draw.integers(0, 3, ROWS).astype(np.int32)
    return Rows(features, encoded.labels, seeds, groups, Place(bytes(32), 0, ROWS))


def pieces(rows: Rows, parts: int) -> Iterator[Rows]:
    edges = np.linspace(0, ROWS, parts + 1).astype(int)
    for start, stop in itertools.pairwise(edges):
        place = Place(bytes(32), int(start), ROWS)
        yield replace(rows.take(slice(start, stop)), place=place, first=int(start))


def total(statistic: Additive, parts: list[Rows], share: Share | None = None) -> np.ndarray:
    job = Job(statistic, DOMAIN, LATTICE, by_record=False, seeded=True, share=share)
    vector = statistic.zero()
    for rows in parts:
        vector = statistic.merge(vector, job.partial(rows))
    return vector


@pytest.mark.parametrize("statistic", EXAMPLES, ids=lambda s: s.name)
def test_compact_dense_compiled_and_numpy_give_the_same_bits(statistic: Additive) -> None:
    rows = compact_rows()
    if "classes" in getattr(statistic, "targets", ()):
        rows = replace(rows, y=(np.arange(ROWS) % 3 + 1).astype(np.int8))
    dense = replace(rows, features=rows.features.dense())  # type: ignore[union-attr]
    whole = total(statistic, [dense])
    assert np.any(whole)
    for parts in (1, 2, 7, 64):
        here = total(statistic, list(pieces(dense, parts)))
        if statistic.name not in FLOATS:
            assert here.tobytes() == whole.tobytes()
        for found in both(lambda n=parts: total(statistic, list(pieces(rows, n)))):  # type: ignore[misc]
            assert found.tobytes() == here.tobytes()


@pytest.mark.parametrize("statistic", [s for s in EXAMPLES if s.name in ("slopes", "risk", "moments")], ids=repr)
def test_a_share_has_the_same_rows_in_either_form(statistic: Additive) -> None:
    rows = compact_rows()
    dense = replace(rows, features=rows.features.dense())  # type: ignore[union-attr]
    for index in range(2):
        share = Share(index, 2)
        for parts in (1, 7):
            here = total(statistic, list(pieces(dense, parts)), share)
            for found in both(lambda n=parts, s=share: total(statistic, list(pieces(rows, n)), s)):  # type: ignore[misc]
                assert found.tobytes() == here.tobytes()


@pytest.mark.parametrize("bits", [4, 20, 26])
@pytest.mark.parametrize("domain", [DOMAIN, NUMBERS], ids=["codes", "numbers"])
def test_compact_rows_are_the_dense_ones(domain: Domain, bits: int) -> None:
    """Against the dense encoder, clipped and truncated: the definition of a row on the lattice."""
    lattice = Lattice(domain.norm_bound, bits)
    raw = encode_table(domain, table()).block(0, ROWS, np.empty((ROWS, domain.width), order="F"))
    expected = lattice.quantise(raw)
    for rows in both(lambda: compact_rows(domain, lattice)):
        assert np.array_equal(rows.features.dense(), expected)  # type: ignore[union-attr]
        assert rows.features.shape == expected.shape


def test_numbers_alone_have_the_same_bits() -> None:
    """No codes at all, and an intercept that is not 1."""
    lattice = Lattice(NUMBERS.norm_bound)
    rows, width = compact_rows(NUMBERS, lattice), NUMBERS.width
    dense: Any = replace(rows, features=rows.features.dense())  # type: ignore[union-attr]
    statistics = [
        Moments(width),
        HadamardRados(width, 16),
        RiskSum(width, Logistic(), WEIGHTS[:width], lattice, ROWS),
        FeatureFacts(width),
    ]
    for statistic in statistics:
        for found in both(lambda s=statistic: s.partial(rows)):  # type: ignore[misc]
            assert found.tobytes() == statistic.partial(dense).tobytes()


@pytest.mark.parametrize("columns", [3, 4, 9])
def test_columns_of_codes_that_go_together_have_the_same_bits(columns: int) -> None:
    """Four codes of 8 bits in a row are added at once: in the order of the features, also where weights are real."""
    edges = [-1.5, -0.5, 0.5, 1.0]
    kinds = {f"x{i}": {"kind": "numeric", "lower": -3, "upper": 3, "bins": edges} for i in range(columns)}
    domain = Domain.model_validate(
        {"label": LABEL, "norm_bound": 1.9, "columns": {"n": kinds["x0"] | {"bins": None}, **kinds}}
    )
    draw = np.random.default_rng(6)
    count = 5_000  # more than two tiles
    content = {name: draw.normal(size=count) for name in domain.columns} | {"y": draw.random(count) < 0.4}
    encoded = encode_table(domain, pa.table(content))
    compact = CompactTable(encoded).block(0, count, Lattice(1.9, 16))
    dense, weights = compact.dense(), draw.normal(size=domain.width)
    factors = draw.integers(-(2**16), 2**16, count)
    for margins, sum_, products in both(lambda: (dots(compact, weights), sums(compact, factors), outer(compact))):
        assert margins.tobytes() == dots(dense, weights).tobytes()
        assert sum_.tobytes() == sums(dense, factors).tobytes()
        assert products.tobytes() == outer(dense).tobytes()
