"""Second moments: against NumPy on dense rows, in both forms of the loops, in any partitioning."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from loop_forms import both

from daskrado.errors import UsageError
from daskrado.statistics import Moments
from daskrado.statistics.base import Rows
from daskrado.statistics.bounded import WEIGHT_BITS, in_flight, unit_weights
from daskrado.statistics.number_moments import NumberMoments
from daskrado.statistics.second_moments import MOST_FEATURES, SecondMoments, matrix
from daskrado.table.compact_encoding import CompactTable
from daskrado.table.domain import Domain
from daskrado.table.encoding import encode_table
from daskrado.table.label_sides import LABEL_BITS
from daskrado.table.lattice import Lattice

DOMAIN = Domain.model_validate(
    {
        "label": {"column": "y", "positive": 1, "negative": 0},
        "norm_bound": 2.2,
        "intercept": 0.5,
        "columns": {
            "a": {"kind": "numeric", "lower": -3, "upper": 3, "nulls": {"fill": 1}},
            "c": {"kind": "numeric", "lower": -1, "upper": 1, "bins": [-0.1, 0, 0.1]},
            "e": {"kind": "categorical", "values": ["u", "v"], "other": True},
            "f": {"kind": "boolean"},
        },
    }
)


def frame(rows: int) -> pd.DataFrame:
    draw = np.random.default_rng(4)
    numbers = {"a": np.where(draw.random(rows) < 0.1, np.nan, draw.normal(size=rows)), "c": draw.normal(size=rows)}
    others = {"e": draw.choice(["u", "v", "w"], rows), "f": draw.random(rows) < 0.3}
    return pd.DataFrame(numbers | others | {"y": draw.integers(0, 2, rows)})


def compact_rows(rows: int, bits: int) -> Rows:
    encoded = encode_table(DOMAIN, pa.Table.from_pandas(frame(rows), preserve_index=False))
    assert encoded.labels is not None
    return Rows(CompactTable(encoded).block(0, rows, Lattice(2.2, bits)), encoded.labels)


@pytest.mark.parametrize("bits", [4, 11, 16])
@pytest.mark.parametrize("pairs", [True, False])
def test_sums_are_those_of_dense_rows_in_any_partitioning(pairs: bool, bits: int) -> None:
    rows = compact_rows(701, bits)
    x = rows.x.astype(np.int64)
    expected = x.T @ x
    statistic = SecondMoments(DOMAIN.width, pairs)
    for parts in (1, 2, 7):
        pieces = np.array_split(np.random.default_rng(parts).permutation(701), parts)
        for found in both(lambda p=pieces: sum(statistic.partial(rows.take(piece)) for piece in p)):
            got = matrix(statistic, found) if pairs else np.diag(found)
            assert (got == (expected if pairs else np.diag(np.diag(expected)))).all()
    assert (statistic.partial(replace(rows, features=rows.x)) == found).all()  # a kernel's rows are dense


def test_the_normalised_length_is_the_frobenius_norm() -> None:
    """Each product stands twice in x x': so its noise may be 1 / sqrt(2) of that on a square."""
    rows, lattice = compact_rows(1, 16), Lattice(2.2, 16)
    statistic = SecondMoments(DOMAIN.width)
    parts = statistic.split(statistic.partial(rows))
    steps = {block.name: block.normalised_step(lattice) for block in statistic.blocks}
    length = math.sqrt(sum(float(((part * steps[name]) ** 2).sum()) for name, part in parts.items()))
    assert length == pytest.approx((rows.x**2).sum() * 4.0**-16, rel=1e-12)
    assert length > 0.5


def test_many_features_have_squares_alone() -> None:
    SecondMoments(MOST_FEATURES)
    with pytest.raises(UsageError, match="at most 1,000 features, got 20,000"):
        SecondMoments(20_000)
    assert SecondMoments(20_000, pairs=False).size == 20_000


@pytest.mark.parametrize("kind", [Moments, NumberMoments])
@pytest.mark.parametrize("bits", [11, 16, 22, 26])
def test_moments_times_weights_are_those_of_single_rows(kind: type[Moments], bits: int) -> None:
    """In one product where that is exact, else one weight after another: exact integers at any fineness."""
    rows = compact_rows(400, bits)
    weights = np.random.default_rng(bits).choice(unit_weights(np.array([0, 1, 2, 3, 7, 40]), 1), 400)
    statistic = kind(rows.features.shape[1])
    if kind is NumberMoments:
        rows = replace(rows, y=np.random.default_rng(1).integers(-(1 << LABEL_BITS), 1 << LABEL_BITS, 400))
    weighted = in_flight(statistic)
    high, low = weighted.partial(replace(rows, weights=weights.astype(np.uint16))).astype(object).reshape(2, -1)
    ones = [statistic.partial(rows.take(slice(i, i + 1))).astype(object) for i in range(400)]
    assert ((high << 24) + low == sum(int(w) * one for w, one in zip(weights, ones, strict=True))).all()
    assert (statistic.weighted(replace(rows, weights=weights), 1 << WEIGHT_BITS) is not None) == (bits < 20)
