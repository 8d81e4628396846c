"""One odd value in a pandas frame changes the dtype of its column: it refuses nothing and moves no other row."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import daskrado
from daskrado.errors import DataError
from daskrado.lake.blocks import PartOfLake
from daskrado.lake.collect import collect
from daskrado.lake.frame_blocks import values_of
from daskrado.lake.holdout import Part, check_column
from daskrado.lake.scan import Lake, open_lake
from daskrado.lake.units import units_of
from daskrado.models.linear import LinearModel
from daskrado.privacy.protect import Protect
from daskrado.privacy.statement import PrivacyStatement
from daskrado.statistics import MeanOperator
from daskrado.table.domain import Domain
from daskrado.table.encoding import encode_groups, encode_table
from daskrado.table.lattice import Lattice
from daskrado.table.yaml_file import parse

DOMAIN = parse(
    Domain,
    {
        "label": {"column": "y", "positive": 1, "negative": 0},
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
A_DAY = datetime.date(2026, 11, 16)
ROW: dict[str, Any] = {"a": 0.5, "day": A_DAY, "sex": "F", "ward": 1, "smoker": True, "y": 1}
ODD = [
    None,
    math.inf,
    1e300,
    2**70,
    -0.5,
    "seven",
    "",
    "\ud800",
    b"c",
    9,
    A_DAY,
    pd.Timestamp(A_DAY),
    [9],
    Decimal("sNaN"),
    np.datetime64("NaT"),
    Ellipsis,  # an object of no type that a table knows; its repr has no address, which would name the test
]


def frame(column: str, values: list[Any]) -> pd.DataFrame:
    whole = pd.DataFrame([{**ROW, "p": 1}] * len(values))
    kind = object if "\ud800" in values else None  # which pandas takes as an object alone
    return whole.assign(**{column: pd.Series(values, dtype=kind)})


def weights(lake: Lake, unit: dict[str, str]) -> list[int]:
    protect = Protect.model_validate({"relation": "add_remove", "unit": {**unit, "name": "x"}})
    units = units_of(lake, protect, bytes(32), None)
    assert units is not None
    return [int(own) for _, part in units.of_lake(lake) for own in part]


def held_out(lake: Lake) -> list[bool]:
    check_column(lake, "who")
    part = Part("d", "who", 0.5, "training")
    return [bool(own) for p in lake.partitions for _, table in p.tables(["who"]) for own in part.absent(table)]


ROLES: dict[str, Callable[[Lake], list[Any]]] = {
    "unit": lambda lake: weights(lake, {"column": "who"}),
    "within": lambda lake: weights(lake, {"column": "p", "within": "who"}),
    "holdout": held_out,
}
DAYS = [pd.Timestamp("2026-11-17"), pd.Timestamp("2026-11-17"), pd.Timestamp("2026-11-18 07:30")]
USUAL = [
    [7, 7, 8],
    [7.0, 7.0, 8.0],
    ["a", "a", "b"],
    ["7", "7", 8],
    [b"a", b"a", b"b"],
    [[7], [7], [8]],
    [False, False, True],
    DAYS,
    [day.date() for day in DAYS],
    [day - DAYS[0] for day in DAYS],
]


@pytest.mark.parametrize("odd", ODD, ids=repr)
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("usual", USUAL, ids=repr)
def test_in_a_column_of_ids_it_moves_no_other_row(role: str, usual: list[Any], odd: Any) -> None:
    before, after = (ROLES[role](open_lake(frame("who", values), DOMAIN)) for values in (usual, [*usual, odd]))
    assert after[:3] == before
    assert len(after) == 4


@pytest.mark.parametrize("odd", [odd for odd in ODD if not isinstance(odd, float)], ids=repr)
@pytest.mark.parametrize("usual", USUAL, ids=repr)
def test_in_a_column_of_blocks_it_is_in_no_other_block(usual: list[Any], odd: Any) -> None:
    """Names of blocks are public: a fraction among them is refused, in ``jobs/test_blocks.py``."""
    whole = frame("who", [*usual, odd])
    known = values_of(frame("who", usual), "who")
    assert len(known) == 2
    assert known <= values_of(whole, "who")
    assert open_lake(PartOfLake(whole, "who", tuple(known)), DOMAIN).rows == 3


@pytest.mark.parametrize("odd", ODD, ids=repr)
@pytest.mark.parametrize("column", ROW)
def test_in_a_column_of_the_domain_it_moves_no_other_row(column: str, odd: Any) -> None:
    """The sum over a frame is that of its usual rows and that of the odd one alone, or with the odd one as a gap."""
    statistic, lattice = MeanOperator(DOMAIN.width), Lattice(3.0, 12)

    def total(values: list[Any]) -> np.ndarray:
        return np.asarray(collect(statistic, open_lake(frame(column, values), DOMAIN), DOMAIN, lattice).vector)

    usual = [ROW[column]] * 3
    assert np.array_equal(total([*usual, odd]) - total([ROW[column], odd]), 2 * total([ROW[column]]))


@pytest.mark.parametrize("odd", ODD, ids=repr)
@pytest.mark.parametrize(
    ("label", "usual"),
    [
        ({"column": "y", "kind": "number", "bounds": [0, 2]}, 1),
        ({"column": "y", "classes": [1, 2, 3]}, 2),
        ({"column": "y", "classes": ["low", "middle", "high"]}, "low"),
        ({"column": "y", "positive": "yes", "negative": "no"}, "yes"),
        ({"column": "y", "positive": True, "negative": False}, True),
    ],
    ids=str,
)
def test_in_a_label_of_any_kind_it_changes_no_other_label(label: dict[str, Any], usual: Any, odd: Any) -> None:
    own = parse(Domain, {"label": label, "norm_bound": 3.0, "columns": {"a": DOMAIN.columns["a"]}}, "here")
    found = []
    for values in ([usual] * 3, [usual] * 3 + [odd]):
        ((_, table),) = open_lake(frame("y", values), own).partitions[0].tables(["a", "y"])
        encoded = encode_table(own, table)
        assert encoded.labels is not None
        assert not encoded.refused(strict=False)
        found.append(np.asarray(encoded.labels)[:3].tolist())
    assert found[0] == found[1]


@pytest.mark.parametrize("odd", [None, "seven", 7.5, b"c", [9], True], ids=repr)
@pytest.mark.parametrize(
    "usual", [[1, 2], [1.0, 2.0], ["u", "v"], [True, False], ["2026-11-17", "2026-11-18"]], ids=repr
)
def test_in_a_column_of_groups_it_is_in_no_other_group(usual: list[Any], odd: Any, own_ledger: Path) -> None:
    """Of a private evaluation, which tells rows of each group apart: refused or not, and where the others are."""
    found = []
    for values in ([usual[0], *usual], [usual[0], *usual, odd]):
        whole = frame("g", values)
        job = {"kind": "evaluate", "dataset": "d", "lake": whole, "domain": DOMAIN, "output": "unused"}
        job |= {
            "model": LinearModel(DOMAIN, np.ones(DOMAIN.width), PrivacyStatement.none(), "moments"),
            "by": [{"column": "g", "values": usual}],
        }
        job |= {"protect": {"relation": "add_remove", "unit": "x"}, "budget": {"epsilon": 0.1, "delta": 1e-6}}
        daskrado.run({**job, "ledger": {"first_limit": {"epsilon": 9, "delta": 1e-5}}}, write=False)
        ((_, table),) = open_lake(whole, DOMAIN).partitions[0].tables([*ROW, "g"])
        encoded = encode_table(DOMAIN, table)
        encode_groups(encoded, table.column("g"), "g", usual, optional=True)
        assert encoded.groups is not None
        found.append([int(place) for place in encoded.groups[:3]])
    assert found == [[0, 0, 1]] * 2


@pytest.mark.parametrize("values", [[1.0, 2.0], [1, 2], [1.0, None], [1, "x"]], ids=repr)
def test_a_column_of_numbers_names_nobody_whatever_it_holds(values: list[Any]) -> None:
    with pytest.raises(DataError, match=r"protect\.unit\.column 'a' is double, but a unit is named by whole numbers"):
        weights(open_lake(frame("a", values), DOMAIN), {"column": "a"})


@pytest.mark.parametrize("value", [1.0, 1.5])
def test_types_that_no_value_decides_are_refused(value: float) -> None:
    table = pa.Table.from_pandas(frame("who", [value]))
    for unit, said in (
        ({"column": "who"}, "column 'who' is double"),
        ({"column": "p", "within": "who"}, "within 'who'"),
    ):
        with pytest.raises(DataError, match=said):
            weights(open_lake(table, DOMAIN), unit)
