"""Sensitivity from end to end: neighbouring Arrow tables, through encoding, clipping and grid, to the sums.

The suite of statistics starts from rows on the lattice. This one starts from the file, where a null, a narrow type or
a value beyond its bounds could change how *other* rows are read.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from daskrado.domain import Domain, parse
from daskrado.encoding import encode_table
from daskrado.lattice import Lattice
from daskrado.relations import Relation
from daskrado.statistics import HadamardRados, MeanOperator, Moments, Rows, Statistic

DOMAIN = parse(
    Domain,
    {
        "label": {"column": "y", "positive": "yes", "negative": "no"},
        "norm_bound": 1.7,
        "columns": {
            "time": {"kind": "numeric", "lower": 1.6e9, "upper": 1.6e9 + 86400, "nulls": {"fill": 1.6e9}},
            "dose": {"kind": "numeric", "lower": 0, "upper": 7, "transform": "log1p", "nulls": {"fill": 0}},
            "visits": {"kind": "numeric", "lower": 0, "upper": 30, "bins": [1, 5], "nulls": {"fill": 2}},
            "ward": {"kind": "categorical", "values": ["a", "b"], "nulls": {"fill": "a"}},
            "smoker": {"kind": "boolean", "nulls": {"fill": False}},
            "flag": {"kind": "boolean"},
        },
    },
    "here",
)
TYPES = {
    "time": [pa.float32(), pa.float64(), pa.int64()],
    "dose": [pa.float16(), pa.float32(), pa.float64()],
    "visits": [pa.int8(), pa.float32(), pa.decimal128(12, 2)],
}
LATTICE = Lattice(DOMAIN.norm_bound, 16)
STATISTICS: list[Statistic] = [MeanOperator(DOMAIN.width), Moments(DOMAIN.width), HadamardRados(DOMAIN.width, 8)]


def random_row(draw: np.random.Generator) -> dict[str, Any]:
    def perhaps(value: Any) -> Any:
        return None if draw.random() < 0.15 else value

    return {
        "time": perhaps(int(1.6e9 + draw.integers(-5, 700) * 128)),
        "dose": perhaps(float(np.float16(draw.exponential(4)))),
        "visits": perhaps(int(draw.integers(0, 40))),
        "ward": perhaps(str(draw.choice(["a", "b", "zz", ""]))),
        "smoker": perhaps(bool(draw.random() < 0.5)),
        "flag": bool(draw.random() < 0.5),
        "y": str(draw.choice(["yes", "no"])),
        "seed": int(draw.integers(0, 2**63)),
    }


def vector(rows: list[dict[str, Any]], types: dict[str, pa.DataType], statistic: Statistic) -> np.ndarray:
    names = [*DOMAIN.columns, "y"]
    kinds = {"ward": pa.string(), "smoker": pa.bool_(), "flag": pa.bool_(), "y": pa.string(), **types}
    columns = {}
    for name in names:
        values = [row[name] for row in rows]
        wide = pa.float64() if name in types and kinds[name] != pa.int64() else kinds[name]
        if kinds[name] in (pa.int8(),):
            wide = pa.int64()
        columns[name] = pa.array(values, wide)
        if wide != kinds[name]:
            columns[name] = pa.array(values, pa.float64()).cast(kinds[name], safe=False)
    encoded = encode_table(DOMAIN, pa.table(columns))
    x = encoded.block(0, encoded.length, np.empty((encoded.length, DOMAIN.width), order="F"))
    assert not encoded.problems
    assert encoded.labels is not None
    seeds = np.array([row["seed"] for row in rows], dtype=np.uint64)
    return statistic.partial(Rows(LATTICE.quantise(x), encoded.labels, seeds))


def changed(relation: Relation, rows: list[dict[str, Any]], draw: np.random.Generator) -> list[dict[str, Any]]:
    other = copy.deepcopy(rows)
    at = int(draw.integers(0, len(rows)))
    if relation is Relation.ADD_REMOVE:
        del other[at]
    elif relation is Relation.REPLACE_ONE:
        other[at] = random_row(draw)
    elif relation is Relation.LABEL_FLIP:
        other[at]["y"] = "no" if other[at]["y"] == "yes" else "yes"
    else:
        other[at]["flag"] = not other[at]["flag"]
    return other


@pytest.mark.parametrize("relation", list(Relation))
@pytest.mark.parametrize("statistic", STATISTICS, ids=lambda s: s.name)
def test_neighbouring_files_move_the_sums_no_further_than_declared(statistic: Statistic, relation: Relation) -> None:
    draw = np.random.default_rng(list(Relation).index(relation))
    declared = statistic.sensitivity(relation)
    for _ in range(60):
        types = {name: kinds[draw.integers(0, len(kinds))] for name, kinds in TYPES.items()}
        rows = [random_row(draw) for _ in range(int(draw.integers(2, 40)))]
        change = vector(rows, types, statistic) - vector(changed(relation, rows, draw), types, statistic)
        parts = statistic.split(change)
        assert not any(parts[name].any() for name in declared.public)
        moved = np.concatenate(
            [
                parts[b.name].ravel() * b.normalised_step(LATTICE)
                for b in statistic.blocks
                if b.name not in declared.public
            ]
        )
        assert np.abs(moved).sum() <= declared.l1 + 1e-9
        assert np.linalg.norm(moved) <= declared.l2 + 1e-9


def test_this_suite_would_see_rows_that_lean_on_their_neighbours() -> None:
    """A planted bug of that kind: the column is scaled in float32 unless it holds a null."""
    draw = np.random.default_rng(1)
    types: dict[str, pa.DataType] = {"time": pa.float64(), "dose": pa.float64(), "visits": pa.float32()}
    rows = [{**random_row(draw), "time": int(1.6e9 + 300 * i)} for i in range(250)]

    def broken(given: list[dict[str, Any]], exact: Callable[[float], float]) -> np.ndarray:
        rounded = [{**row, "time": exact(row["time"]) if row["time"] is not None else None} for row in given]
        return vector(rounded, types, MeanOperator(DOMAIN.width))

    with_null = [*rows, {**rows[0], "time": None}]
    change = broken(with_null, float) - broken(rows, lambda t: float(np.float32(t)))
    moved = change[: DOMAIN.width] * 2.0**-LATTICE.bits
    assert np.linalg.norm(moved) > 1 or np.abs(moved).sum() > np.sqrt(DOMAIN.width)
