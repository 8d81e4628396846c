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

from daskrado.privacy.relations import Relation
from daskrado.statistics import (
    BalancedRados,
    FixedSupportRados,
    HadamardRados,
    MeanOperator,
    Moments,
    NoisyColumnRados,
    RandomisedRados,
    Rows,
    Statistic,
    UniformRados,
)
from daskrado.statistics.base import Place
from daskrado.statistics.number_cells import NumberCells
from daskrado.statistics.score_cells import Score, ScoreCells
from daskrado.statistics.second_moments import SecondMoments
from daskrado.statistics.universe import Universe
from daskrado.table.domain import Domain
from daskrado.table.encoding import encode_table
from daskrado.table.lattice import Lattice
from daskrado.table.yaml_file import parse

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
WIDTH = DOMAIN.width
STATISTICS: list[Statistic] = [
    MeanOperator(WIDTH),
    Moments(WIDTH),
    SecondMoments(WIDTH),
    SecondMoments(WIDTH, pairs=False),
    HadamardRados(WIDTH, 8),
    UniformRados(WIDTH, 8),
    BalancedRados(WIDTH, 8),
]
NUMBERS = tuple(DOMAIN.feature_names.index(name) for name in ("time", "dose"))
FLAG = DOMAIN.feature_names.index("flag")
BY_POSITION: list[Statistic] = [FixedSupportRados(WIDTH, 8, 2)]  # no sensitivity where positions shift
FLIPPED: list[Statistic] = [NoisyColumnRados(WIDTH, 8, (FLAG,), 1 / DOMAIN.norm_bound)]
FLIPPED += [NoisyColumnRados(WIDTH, 8, (FLAG,), 1 / DOMAIN.norm_bound, balanced=False)]
WEIGHTS = np.linspace(-1, 1, WIDTH)
SCORED = [Score.of(WEIGHTS, LATTICE, 3.0, np.linspace(-1, 1, 9)), Score.of(-WEIGHTS, LATTICE, 3.0, np.zeros(1))]
GROUPED = tuple(Universe.of(DOMAIN, [name]).axes[0] for name in ("visits", "ward", "smoker"))
WHOLE: list[Statistic] = [
    ScoreCells(WIDTH, tuple(SCORED), LATTICE.bits, GROUPED),
    ScoreCells(WIDTH, (SCORED[0],), LATTICE.bits, labels=False),
]
COUNTED = [NumberCells(WIDTH, NUMBERS, 8, LATTICE.step)]
CASES = [(statistic, relation) for statistic in (*STATISTICS, *COUNTED) for relation in Relation]
CASES += [(statistic, relation) for statistic in BY_POSITION for relation in Relation if relation.rows_public]
CASES += [(statistic, relation) for statistic in WHOLE for relation in (Relation.ADD_REMOVE, Relation.REPLACE_ONE)]
CASES += [(statistic, Relation.FEATURE_FLIP) for statistic in FLIPPED]


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


def vector(
    rows: list[dict[str, Any]], types: dict[str, pa.DataType], statistic: Statistic, domain: Domain = DOMAIN
) -> np.ndarray:
    names = [*domain.columns, "y"]
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
    encoded = encode_table(domain, pa.table(columns))
    x = encoded.block(0, encoded.length, np.empty((encoded.length, domain.width), order="F"))
    assert not encoded.problems
    assert encoded.labels is not None
    seeds = np.array([row["seed"] for row in rows], dtype=np.uint64)
    place = Place(b"a key of thirty-two bytes, public", 0, len(rows))
    grid = Lattice(domain.norm_bound, LATTICE.bits)
    return statistic.partial(Rows(grid.quantise(x), encoded.labels, seeds, place=place))


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


def moved(statistic: Statistic, relation: Relation, change: np.ndarray) -> np.ndarray:
    """The change of the normalised joint vector; public blocks must not have moved."""
    declared, parts = statistic.sensitivity(relation), statistic.split(change)
    assert not any(parts[name].any() for name in declared.public)
    noisy = [b for b in statistic.blocks if b.name not in declared.public]
    return np.concatenate([np.zeros(0), *(parts[b.name].ravel() * b.normalised_step(LATTICE) for b in noisy)])


@pytest.mark.parametrize(("statistic", "relation"), CASES, ids=lambda case: getattr(case, "name", str(case)))
def test_neighbouring_files_move_the_sums_no_further_than_declared(statistic: Statistic, relation: Relation) -> None:
    draw = np.random.default_rng(list(Relation).index(relation))
    declared = statistic.sensitivity(relation)
    for _ in range(60):
        types = {name: kinds[draw.integers(0, len(kinds))] for name, kinds in TYPES.items()}
        rows = [random_row(draw) for _ in range(int(draw.integers(2, 40)))]
        change = vector(rows, types, statistic) - vector(changed(relation, rows, draw), types, statistic)
        found = moved(statistic, relation, change)
        assert np.abs(found).sum() <= declared.l1 + 1e-9
        assert np.linalg.norm(found) <= declared.l2 + 1e-9


@pytest.mark.parametrize(("norm_bound", "intercept"), [(0.3, 0.0), (1.7, 2.5), (40.0, 1.0)])
def test_a_flipped_boolean_moves_nothing_but_its_own_feature(norm_bound: float, intercept: float) -> None:
    """Whatever is clipped: the encoded rows on the grid differ in one place, by sign."""
    draw = np.random.default_rng(3)
    changes = {"norm_bound": norm_bound, "intercept": intercept}
    domain = parse(Domain, {**DOMAIN.model_dump(mode="json"), **changes}, "here")
    types: dict[str, pa.DataType] = {"time": pa.float64(), "dose": pa.float64(), "visits": pa.float32()}
    statistics = [type(s)(domain.width, *([8] if hasattr(s, "count") else [])) for s in STATISTICS]
    for _ in range(6):
        rows = [random_row(draw) for _ in range(4)]
        other = changed(Relation.FEATURE_FLIP, rows, draw)
        for statistic in statistics:
            declared = statistic.sensitivity(Relation.FEATURE_FLIP)
            change = vector(rows, types, statistic, domain) - vector(other, types, statistic, domain)
            found = moved(statistic, Relation.FEATURE_FLIP, change)
            assert np.abs(found).sum() <= declared.l1 + 1e-9
            assert np.linalg.norm(found) <= declared.l2 + 1e-9
            if isinstance(statistic, MeanOperator):
                assert np.flatnonzero(change).tolist() in ([], [domain.feature_names.index("flag")])


def test_randomised_flags_see_the_truth_in_their_own_column_alone() -> None:
    """Under one key, the answers of neighbours differ by sign in that column: all else is the same bits."""
    draw = np.random.default_rng(4)
    types: dict[str, pa.DataType] = {"time": pa.float64(), "dose": pa.float64(), "visits": pa.float32()}
    for base in (UniformRados(WIDTH, 8), HadamardRados(WIDTH, 8)):
        statistic = RandomisedRados(WIDTH, base, (FLAG,), 1.0)
        rows = [random_row(draw) for _ in range(20)]
        other = changed(Relation.FEATURE_FLIP, rows, draw)
        change = vector(rows, types, statistic) - vector(other, types, statistic)
        block = change.reshape(base.blocks[0].shape)
        columns = block if isinstance(base, HadamardRados) else block.T
        assert np.flatnonzero(columns.any(axis=1)).tolist() in ([], [FLAG])


def test_a_boolean_that_may_be_null_moves_further_than_a_flip_is_declared_to() -> None:
    """Why pipelines refuse it under feature_flip: (1, 0) becomes (-1, 1) / sqrt(2), which is 1 + sqrt(2) in L1."""
    columns = {"smoker": DOMAIN.columns["smoker"]}
    domain = DOMAIN.model_copy(update={"columns": columns, "norm_bound": 1.0, "intercept": 0.0})
    row = {"smoker": True, "y": "yes", "seed": 1}
    statistic = MeanOperator(domain.width)
    change = vector([row], {}, statistic, domain) - vector([{**row, "smoker": None}], {}, statistic, domain)
    found = np.abs(moved(statistic, Relation.FEATURE_FLIP, change)).sum()
    assert found == pytest.approx(1 + np.sqrt(2), abs=1e-3)
    assert found > statistic.sensitivity(Relation.FEATURE_FLIP).l1
    flag = domain.model_copy(update={"columns": {"flag": DOMAIN.columns["flag"]}})
    encoded = encode_table(flag, pa.table({"flag": pa.array([True, None])}), label=False)
    assert [problem.column for problem in encoded.problems] == ["flag"]  # elsewhere a null is refused, not encoded


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
