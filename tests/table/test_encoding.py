"""Encoding: expected rows worked out by hand from the Domain."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from daskrado.table.domain import Domain
from daskrado.table.encoding import encode_groups, encode_table, type_problem
from daskrado.table.type_hints import values_hint
from daskrado.table.yaml_file import parse

DOMAIN = parse(
    Domain,
    {
        "label": {"column": "y", "positive": 1, "negative": 0},
        "norm_bound": 2.0,
        "intercept": 0.5,
        "columns": {
            "age": {"kind": "numeric", "lower": 20, "upper": 80, "nulls": {"fill": 50}},
            "dose": {"kind": "numeric", "lower": 0, "upper": 7, "transform": "log1p"},
            "visits": {"kind": "numeric", "lower": 0, "upper": 30, "bins": [1, 5]},
            "ward": {"kind": "categorical", "values": ["a", "b"], "nulls": {"fill": "b"}},
            "code": {"kind": "categorical", "values": [3, 5], "other": False},
            "smoker": {"kind": "boolean"},
        },
    },
    "here",
)
COLUMNS = {
    "age": [20.0, None, 95.0],
    "dose": [0, 1, 9],
    "visits": [0, 1, 31],
    "ward": ["a", None, "zzz"],
    "code": [3, 5, 3],
    "smoker": [True, False, True],
    "y": [1, 0, 1],
}
EXPECTED = [
    # age, age null, dose, visits x 3, ward a, b, other, ward null, code 3, 5, smoker, intercept
    [-1, 0, -1, 1, 0, 0, 1, 0, 0, 0, 1, 0, 1, 0.5],
    [0, 1, 2 * math.log(2) / math.log(8) - 1, 0, 1, 0, 0, 1, 0, 1, 0, 1, -1, 0.5],
    [1, 0, 1, 0, 0, 1, 0, 0, 1, 0, 1, 0, 1, 0.5],
]


def encoded(columns: dict[str, object]) -> np.ndarray:
    table = encode_table(DOMAIN, pa.table(columns))
    assert not table.problems
    return table.block(0, table.length, np.empty((table.length, DOMAIN.width), order="F"))


def test_rows_are_scaled_by_public_bounds_and_one_hot() -> None:
    assert encoded(COLUMNS) == pytest.approx(np.array(EXPECTED), abs=1e-15)
    assert encode_table(DOMAIN, pa.table(COLUMNS)).labels.tolist() == [1, -1, 1]


@pytest.mark.parametrize(
    "kind", [pa.int8(), pa.uint16(), pa.int64(), pa.float32(), pa.float64(), pa.decimal128(30, 2)]
)
def test_every_number_type_encodes_alike(kind: pa.DataType) -> None:
    columns = {**COLUMNS, "visits": pa.array([0, 1, 31]).cast(kind), "dose": pa.array([0, 1, 9]).cast(kind)}
    assert encoded(columns) == pytest.approx(np.array(EXPECTED), abs=1e-6 if kind == pa.float32() else 1e-15)


def test_dictionary_columns_and_all_null_files_encode() -> None:
    ward = pa.array(["a", None, "zzz"]).dictionary_encode()
    assert encoded({**COLUMNS, "ward": ward}) == pytest.approx(np.array(EXPECTED), abs=1e-15)
    blank = encoded({**COLUMNS, "ward": pa.nulls(3), "age": pa.nulls(3)})
    assert blank[:, 0].tolist() == [0, 0, 0]
    assert blank[:, 1].tolist() == [1, 1, 1]
    assert blank[:, 7].tolist() == [1, 1, 1]  # ward = b, the fill
    assert blank[:, 9].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("dose", [0.0, math.nan, 1.0], "column 'dose': NaN or infinite"),
        ("dose", [math.inf, 0.0, -math.inf], "column 'dose': NaN or infinite"),
        ("visits", [math.nan, 0.0, 1.0], "column 'visits': NaN or infinite"),
        ("dose", [None, 1, None], "column 'dose': null, and its null policy is error"),
        ("code", [3, 4, 9], "column 'code': outside [3, 5], and the Domain declares no other"),
        ("smoker", [None, True, True], "column 'smoker': null, and its null policy is error"),
        ("y", [1, 2, None], "column 'y': label outside [1, 0]"),
    ],
)
def test_unusable_values_are_neither_shown_nor_counted(column: str, values: list[object], message: str) -> None:
    table = encode_table(DOMAIN, pa.table({**COLUMNS, column: values}))
    table.block(0, 3, np.empty((3, DOMAIN.width), order="F"))
    assert [str(p) for p in table.refused(strict=True)] == [message]
    assert not table.refused(strict=False)


def test_huge_finite_numbers_are_clipped_not_refused() -> None:
    rows = encoded({**COLUMNS, "dose": [1e308, 1e200, 0.0], "age": [1e300, -1e300, 50.0]})
    assert rows[:, 2].tolist() == [1, 1, -1]
    assert rows[:, 0].tolist() == [1, -1, 0]


@pytest.mark.parametrize(
    ("column", "kind", "message", "way_out"),
    [
        ("age", pa.string(), "is string, but the Domain says numeric", "ingest the source again with --missing"),
        ("age", pa.bool_(), "is bool, but the Domain says numeric", "say kind: boolean"),
        ("age", pa.binary(), "is binary, but the Domain says numeric", "leave it out"),
        ("smoker", pa.int8(), "is int8, but the Domain says boolean", "false and true, as in values: [0, 1]"),
        ("ward", pa.int64(), "is int64, but the Domain's values are ['a', 'b']", "without quotes"),
        ("code", pa.string(), "is string, but the Domain's values are [3, 5]", "quote them"),
        ("y", pa.string(), "is string, but the Domain's label values are [1, 0]", "quote them"),
        ("y", pa.bool_(), "is bool, but the Domain's label values are [1, 0]", "write true and false"),
    ],
)
def test_types_that_do_not_fit_are_explained_with_a_way_out(
    column: str, kind: pa.DataType, message: str, way_out: str
) -> None:
    found = type_problem(DOMAIN, column, kind)
    assert found is not None
    assert found.startswith(f"{message}; ")
    assert way_out in found


def test_yes_and_no_without_quotes_are_truths() -> None:
    assert "quote them" in values_hint([True, False], pa.string())


def test_pandas_missing_values_are_nulls() -> None:
    frame = pd.DataFrame(COLUMNS)
    assert frame["age"].isna().sum() == 1
    table = encode_table(DOMAIN, pa.Table.from_pandas(frame, preserve_index=False))
    assert table.block(0, 3, np.empty((3, DOMAIN.width), order="F")) == pytest.approx(np.array(EXPECTED), abs=1e-15)


def test_one_null_in_a_file_does_not_change_how_other_rows_are_encoded() -> None:
    """Casacuberta et al. (2022): a record must move the sum by its own contribution and nothing else."""
    times = np.float32(1.6e9) + np.arange(0, 8640, 128, dtype=np.float32)
    domain = parse(
        Domain,
        {
            "label": {"column": "y", "positive": 1, "negative": 0},
            "norm_bound": 2.0,
            "columns": {"t": {"kind": "numeric", "lower": 1.6e9, "upper": 1.6e9 + 8640, "nulls": {"fill": 1.6e9}}},
        },
        "here",
    )
    for kind in (pa.float32(), pa.float64()):
        values = [float(t) for t in times]
        blocks = []
        for column in (pa.array(values, kind), pa.array([*values, None], kind)):
            table = encode_table(domain, pa.table({"t": column, "y": [1] * len(column)}))
            blocks.append(table.block(0, table.length, np.empty((table.length, domain.width), order="F")))
        assert np.array_equal(blocks[0], blocks[1][:-1])


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64()])
def test_minus_zero_is_zero_among_categories_labels_and_groups(kind: pa.DataType) -> None:
    domain = parse(
        Domain,
        {
            "label": {"column": "y", "positive": 0.0, "negative": 1.0},
            "norm_bound": 1.0,
            "columns": {"c": {"kind": "categorical", "values": [0.5, 0.0], "other": False}},
        },
        "here",
    )
    numbers = pa.array(np.array([-0.0, 0.0, -0.0]), pa.float64()).cast(kind)
    encoded = encode_table(domain, pa.table({"c": numbers, "y": numbers}))
    encode_groups(encoded, pa.chunked_array([numbers]), "g", [0.25, 0.0])
    assert not encoded.problems
    assert encoded.labels.tolist() == encoded.groups.tolist() == [1, 1, 1]
    assert encoded.block(0, 3, np.empty((3, 3), order="F"))[:, :2].tolist() == [[0, 1]] * 3
