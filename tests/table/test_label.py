"""Labels of several values, thresholds, nulls and blanks: sides worked out by hand, through every reader."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from daskrado.errors import UsageError
from daskrado.lake.collect import collect
from daskrado.lake.folder_values import folder_readers
from daskrado.lake.scan import open_lake
from daskrado.models.linear import LinearModel
from daskrado.privacy.statement import PrivacyStatement
from daskrado.statistics.column_cells import ColumnCells
from daskrado.statistics.mean_operator import MeanOperator
from daskrado.table.cells import describing
from daskrado.table.compact_encoding import CompactTable
from daskrado.table.domain import Domain
from daskrado.table.encoding import encode_table, type_problem
from daskrado.table.label import Label
from daskrado.table.lattice import Lattice
from daskrado.table.products import dense
from daskrado.table.yaml_file import parse

NAN = math.nan


def domain_of(label: dict[str, Any], **columns: dict[str, Any]) -> Domain:
    columns = columns or {"age": {"kind": "numeric", "lower": 0, "upper": 100}}
    return parse(Domain, {"label": {"column": "y", **label}, "norm_bound": 2.0, "columns": columns}, "here")


CASES: dict[str, tuple[dict[str, Any], Any, list[int]]] = {  # label, column, sides: 0 counts as nothing
    "a value against the rest": (
        {"positive": ["<30"], "negative": "rest"},
        pa.array(["<30", ">30", "NO", None]),
        [1, -1, -1, 0],
    ),
    "the rest is positive": (
        {"positive": "rest", "negative": ["NO"]},
        pa.array(["<30", ">30", "NO", None]),
        [1, 1, -1, 0],
    ),
    "several a side": (
        {"positive": [1, 2], "negative": [3]},
        pa.array([1, 2, 3, 4, None]),
        [1, 1, -1, 0, 0],
    ),
    "nulls are negative": (
        {"positive": ["a"], "negative": "rest", "nulls": "negative"},
        pa.array(["a", None]),
        [1, -1],
    ),
    "nulls are positive": ({"positive": 1, "negative": 0, "nulls": "positive"}, pa.array([0, None]), [-1, 1]),
    "nulls are dropped": ({"positive": 1, "negative": 0, "nulls": "drop"}, pa.array([0, None, 1]), [-1, 0, 1]),
    "above": ({"above": 15}, pa.array([15, 16, -3, None]), [-1, 1, -1, 0]),
    "above a fraction": ({"above": 0.5}, pa.array([0.5, 0.75, NAN, math.inf]), [-1, 1, 0, 0]),
    "below": ({"below": 7.0}, pa.array([7.0, 6.5], pa.float32()), [-1, 1]),
    "above, nulls a side": ({"above": 1, "nulls": "negative"}, pa.array([2.0, None, NAN]), [1, -1, -1]),
    "decimals": ({"above": 1.5}, pa.array([1, 2]).cast(pa.decimal128(30, 2)), [-1, 1]),
    "blanks": (
        {"positive": ">50K", "negative": "<=50K", "trim": True},
        pa.array([" >50K", "<=50K\t", ">50K", "> 50K"]),
        [1, -1, 1, 0],
    ),
    "a dictionary": (
        {"positive": ["a", "b"], "negative": "rest"},
        pa.array(["a", "c", "b"]).dictionary_encode(),
        [1, -1, 1],
    ),
    "bytes that are no text": (
        {"positive": ["a"], "negative": "rest", "trim": True},
        pa.array([b" a", b"\xff "]).view(pa.string()),
        [1, -1],
    ),
    "no value at all": ({"above": 1, "nulls": "drop"}, pa.nulls(2), [0, 0]),
}


@pytest.mark.parametrize("case", CASES)
def test_each_value_is_on_the_declared_side(case: str) -> None:
    label, column, sides = CASES[case]
    domain = domain_of(label)
    assert type_problem(domain, "y", column.type) is None
    table = encode_table(domain, pa.table({"age": [50.0] * len(column), "y": column}))
    assert table.labels is not None
    assert table.labels.tolist() == sides
    nothing = [side == 0 for side in sides]
    assert (table.unusable is not None and table.unusable.tolist() == nothing) or not any(nothing)
    lattice = Lattice(domain.norm_bound, 12)
    plain = table.block(0, table.length, np.empty((table.length, domain.width), order="F"))
    compact = dense(CompactTable(table).block(0, table.length, lattice))
    assert compact.tolist() == lattice.quantise(plain.copy()).tolist()
    assert [not row.any() for row in compact] == nothing


def test_dropped_nulls_stop_no_run_and_other_nulls_only_strict_ones() -> None:
    columns = pa.table({"age": [1.0, 2.0], "y": pa.array([1, None])})
    dropped = encode_table(domain_of({"positive": 1, "negative": 0, "nulls": "drop"}), columns)
    assert not dropped.refused(strict=True)
    counted = encode_table(domain_of({"positive": 1, "negative": 0}), columns)
    assert not counted.refused(strict=False)
    assert [str(problem) for problem in counted.refused(strict=True)] == ["column 'y': label outside [1, 0]"]


def test_a_lake_with_dropped_nulls_is_summed_without_them() -> None:
    frame = pd.DataFrame({"age": [100.0, 0.0, 100.0], "y": ["a", None, "c"]})
    domain = domain_of({"positive": ["a"], "negative": "rest", "nulls": "drop"})
    total = collect(
        MeanOperator(domain.width), open_lake(frame, domain, strict=True), domain, Lattice(2.0, 8), strict=True
    )
    assert total.vector.tolist()[:2] == [0, 0]  # 1 * (1, 1) - 1 * (1, 1); the null adds nothing


@pytest.mark.parametrize("case", CASES)
def test_a_description_counts_the_sides(case: str) -> None:
    label, column, sides = CASES[case]
    open_domain, columns = describing(domain_of(label))
    frame = pa.table({"age": [50.0] * len(column), "y": column})
    summary = collect(
        ColumnCells(open_domain.width, columns), open_lake(frame, open_domain, label=False), open_domain, Lattice(9.0)
    )
    counts = dict(zip(columns[-1].cells, (summary.vector >> 16).tolist()[-6:-2], strict=True))
    nulls = column.null_count
    if "above" in label or "below" in label:
        nulls = len(column) - sum(x is not None and math.isfinite(x) for x in column.to_pylist())
    given = {"positive": 0, "negative": 1}.get(label.get("nulls", ""), -1)
    assert counts["null"] == nulls
    assert counts["positive"] == sides.count(1) - (nulls if given == 0 else 0)
    assert counts["negative"] == sides.count(-1) - (nulls if given == 1 else 0)
    assert counts["other"] == len(column) - nulls - counts["positive"] - counts["negative"]


@pytest.mark.parametrize(
    ("label", "pair"),
    [
        ({"positive": ["a"], "negative": "rest"}, ("rest", "a")),
        ({"positive": [1, 2], "negative": [3]}, ("3", "1 or 2")),
        ({"positive": [True], "negative": [False]}, (False, True)),
        ({"above": 15}, ("at most 15", "above 15")),
        ({"below": 0.5}, ("at least 0.5", "below 0.5")),
    ],
)
def test_predictions_have_names(label: dict[str, Any], pair: tuple[Any, Any]) -> None:
    model = LinearModel(domain_of(label), np.array([1.0, 0.0]), PrivacyStatement.none(), "by hand")
    assert model.predict(pd.DataFrame({"age": [0.0, 100.0]})).tolist() == list(pair)
    again = LinearModel.from_json(model.to_json())
    assert again.domain == model.domain


def test_old_files_and_digests_stay_as_they_were() -> None:
    old = domain_of(
        {"positive": "yes", "negative": "no"},
        smoker={"kind": "boolean"},
        sex={"kind": "categorical", "values": ["f"]},
    )
    content = old.model_dump(mode="json")
    assert content["label"] == {"column": "y", "positive": "yes", "negative": "no"}
    assert content["columns"]["smoker"] == {"nulls": "error", "kind": "boolean"}
    assert content["columns"]["sex"] == {"nulls": "error", "kind": "categorical", "values": ["f"], "other": True}


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ({"positive": "a", "negative": "rest"}, "can be meant in two ways"),
        ({"positive": ["a", "b"], "negative": ["b"]}, "repeat b"),
        ({"positive": [], "negative": "rest"}, "empty"),
        ({"positive": ["a"], "negative": [1]}, "mix types"),
        ({"positive": ["a"]}, "negative is missing"),
        ({"above": 1, "below": 2}, "one threshold"),
        ({"above": 1, "positive": 1, "negative": 0}, "one threshold"),
        ({"above": 1, "trim": True}, "trim is for texts"),
        ({"positive": [" a"], "negative": "rest", "trim": True}, "without blanks"),
        ({"positive": 1, "negative": 0, "nulls": "keep"}, "label.nulls"),
    ],
)
def test_mistakes_are_named(label: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        domain_of(label)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("label", "kind", "hint"),
    [
        ({"positive": True, "negative": False}, pa.int64(), "write numbers"),
        ({"positive": True, "negative": False}, pa.string(), "quote them"),
        ({"positive": "1", "negative": "0"}, pa.int64(), "without quotes"),
        ({"above": 1}, pa.string(), "is a threshold on numbers; give positive and negative values"),
    ],
)
def test_a_type_that_does_not_fit_has_a_way_out(label: dict[str, Any], kind: pa.DataType, hint: str) -> None:
    assert hint in str(type_problem(domain_of(label), "y", kind))


def test_truths_written_as_something_else() -> None:
    label = {"positive": 1, "negative": 0}
    columns = {
        "a": {"kind": "boolean", "values": [0, 1]},
        "b": {"kind": "boolean", "values": ["N", "Y"], "nulls": {"fill": True}},
        "c": {"kind": "categorical", "values": ["u", "v"], "trim": True},
    }
    domain = domain_of(label, **columns)
    table = pa.table({"a": [0, 1, 1, 2], "b": ["Y", "N", None, "Y"], "c": [" u", "v\n", "w", "u"], "y": [1, 0, 1, 1]})
    encoded = encode_table(domain, table)
    rows = encoded.block(0, 4, np.empty((4, domain.width), order="F"))
    assert rows.tolist() == [
        [-1, 1, 0, 1, 0, 0, 1],
        [1, -1, 0, 0, 1, 0, 1],
        [1, 1, 1, 0, 0, 1, 1],
        [0, 0, 0, 0, 0, 0, 0],  # 2 is neither false nor true: the row counts as nothing
    ]
    model = LinearModel(domain, np.arange(1.0, 8.0), PrivacyStatement.none(), "by hand")
    duckdb = pytest.importorskip("duckdb")
    found = duckdb.sql(model.sql("table")).fetchall()
    expected = model.margins(table.slice(0, 3))
    assert [row[0] for row in found[:3]] == pytest.approx(expected.tolist())
    assert found[3][0] is None


def test_folders_named_after_a_label_are_read_by_its_sides() -> None:
    rest = folder_readers(domain_of({"positive": ["a"], "negative": "rest"}), ["y"], strict=True)["y"]
    assert rest("z") == (pa.string(), "z")
    number = folder_readers(domain_of({"above": 3}), ["y"], strict=True)["y"]
    assert number("4") == (pa.float64(), 4.0)


def test_what_writes_labels_asks_for_two_values() -> None:
    with pytest.raises(UsageError, match="needs a label of two single values"):
        Label(column="y", above=3).two_values("this")
    assert Label(column="y", positive="a", negative="b").two_values("this") == ("b", "a")
