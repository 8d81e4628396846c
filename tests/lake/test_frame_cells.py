"""Cells of pandas columns of objects: each decides its own row alone, whatever it is and whatever the others are."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from daskrado.lake.frame_cells import declared_cells
from daskrado.lake.scan import open_lake
from daskrado.table.domain import CategoricalColumn, Domain
from daskrado.table.yaml_file import parse

A_DAY = datetime.date(2026, 11, 17)
MIDNIGHT = datetime.datetime(2026, 11, 17)
DOMAIN = parse(
    Domain,
    {
        "label": {"column": "y", "positive": 1, "negative": 0},
        "id": "id",
        "norm_bound": 3.0,
        "columns": {
            "a": {"kind": "numeric", "lower": -2, "upper": 2},
            "day": {"kind": "date", "lower": "2026-01-01", "upper": "2026-12-31"},
            "sex": {"kind": "categorical", "values": ["F", "M"]},
            "ward": {"kind": "categorical", "values": [1, 2]},
            "smoker": {"kind": "boolean"},
        },
    },
    "here",
)
ROW: dict[str, Any] = {"a": 0.5, "day": A_DAY, "sex": "F", "ward": 1, "smoker": True, "y": 1, "id": 1}
OBJECTS: dict[str, list[list[Any]]] = {
    "a": [
        [0.5, 1, 2.0],
        [Decimal("0.5"), Decimal(1), Decimal(2)],
        ["0.5", "1", "2"],
        [True, False, True],
        [None] * 3,
    ],
    "day": [[A_DAY] * 3, [pd.Timestamp(A_DAY)] * 3, [np.datetime64(A_DAY)] * 3, ["2026-11-17"] * 3, [None] * 3],
    "sex": [["F", "M", "F"], [b"F", b"M", b"F"], [1, 2, 1], [None] * 3],
    "ward": [[1, 2, 1], [1.0, 2.0, 1.0], ["1", "2", "1"], [Decimal(1), Decimal(2), Decimal(1)], [None] * 3],
    "smoker": [
        [True, False, True],
        [np.True_, np.False_, np.True_],
        ["true", "false", "true"],
        [1, 0, 1],
        [None] * 3,
    ],
    "y": [[1, 0, 1], [1.0, 0.0, 1.0], ["1", "0", "1"], [True, False, True], [None] * 3],
    "id": [[7, 8, 9], [7.0, 8.0, 9.0], ["7", "8", "9"], [b"7", b"8", b"9"], [True, False, True], [None] * 3],
}


class _Mute:
    """Something that has no text."""

    def __str__(self) -> str:
        raise RuntimeError("private")


ODD = [
    None,
    float("inf"),
    1e300,
    -0.5,
    2.5,
    3,
    2**70,
    10**30,
    10**5000,
    complex(1, 2),
    complex(1, 0),
    True,
    np.False_,
]
ODD += [Decimal("1e60"), Decimal("NaN"), "seven", "7", "", "\ud800", b"c", [9], {"a": 1}, np.array([1, 2]), object()]
ODD += [A_DAY, pd.Timestamp(A_DAY), datetime.datetime(9999, 1, 1), datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)]
ODD += [Decimal("sNaN"), np.datetime64("NaT"), np.timedelta64("NaT"), pd.NaT, pd.NA, Decimal("1e999999999"), _Mute()]


@pytest.mark.parametrize("form", ["objects", "categories", "dask"])
@pytest.mark.parametrize("column", OBJECTS)
def test_a_cell_of_objects_decides_its_own_row_alone(column: str, form: str) -> None:
    """Types and values of all other rows are those that they have without it."""

    def read(values: list[Any]) -> tuple[pa.DataType, list[Any]]:
        whole = pd.DataFrame([ROW] * len(values))
        whole[column] = pd.Series(values, dtype=object)
        if form == "categories":
            whole[column] = pd.Series(
                pd.Categorical(whole[column], categories=pd.Index(_distinct(values), dtype=object))
            )
        source = whole
        if form == "dask":
            with dask.config.set({"dataframe.convert-string": False}):
                source = dd.from_pandas(whole, npartitions=1)
        (part,) = open_lake(source, DOMAIN, ids=True).partitions
        table = part.content if isinstance(part.content, pa.Table) else part.content.compute()
        return table.schema.field(column).type, table.column(column).to_pylist()

    for usual in OBJECTS[column]:
        kind, before = read(usual)
        for odd in ODD if form == "objects" else ["seven", 3, None, True, b"c"]:
            now, after = read([*usual, odd])
            assert (kind, before) == (now, after[:3]), (usual, odd)


def test_dask_makes_texts_of_objects_and_no_row_is_moved() -> None:
    """One odd value makes objects of a column, and Dask makes texts of them, unless it is told not to."""
    whole = pd.DataFrame([ROW] * 3)
    for column in ("a", "ward", "smoker", "y"):
        for source in (whole, pd.DataFrame([*[ROW] * 3, {**ROW, column: "seven"}])):
            (part,) = open_lake(dd.from_pandas(source, npartitions=1), DOMAIN).partitions
            assert part.content.compute().column(column).to_pylist()[:3] == [ROW[column]] * 3
    days = pd.DataFrame([{**ROW, "day": pd.Timestamp(A_DAY)}] * 3)
    for source in (
        days,
        pd.concat([days.astype({"day": object}), pd.DataFrame([{**ROW, "day": "seven"}])], ignore_index=True),
    ):
        (part,) = open_lake(dd.from_pandas(source, npartitions=1), DOMAIN).partitions
        assert part.content.compute().column("day").to_pylist()[:3] == [MIDNIGHT] * 3


def _distinct(values: list[Any]) -> list[Any]:
    return list(dict.fromkeys(value for value in values if value is not None and value == value))


@pytest.mark.parametrize(
    ("column", "values", "read"),
    [
        ("a", [0.5, Decimal("1.5"), "2", "x", True, 2**70, complex(1, 1)], [0.5, 1.5, 2.0, None, 1.0, 2.0**70, None]),
        ("day", [A_DAY, pd.Timestamp("2026-11-17 12:00"), "x"], [MIDNIGHT, MIDNIGHT.replace(hour=12), None]),
        ("ward", [1, 2.0, "2", 2.5, [1]], [1.0, 2.0, 2.0, 2.5, None]),
        ("sex", ["F", 3, b"M", None], ["F", "3", "b'M'", None]),
        ("smoker", [True, np.False_, 1, "true"], [True, False, None, None]),
        (
            "big",
            [2**60 + 1, float(2**60), "1152921504606846977", 0.5, 2**70],
            [2**60 + 1, 2**60, 2**60 + 1, None, None],
        ),
    ],
)
def test_cells_of_objects_are_read_as_declared(column: str, values: list[Any], read: list[Any]) -> None:
    big = parse(CategoricalColumn, {"kind": "categorical", "values": [2**60, 2**60 + 1]}, "here")
    domain = DOMAIN.model_copy(update={"columns": {**DOMAIN.columns, "big": big}})
    assert declared_cells(domain, column, pd.Series(values, dtype=object)).to_pylist() == read
