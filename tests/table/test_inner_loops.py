"""The compiled loops give the bits of the NumPy ones, on ordinary numbers and on the odd ones."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from daskrado.lake import collect as collecting
from daskrado.lake.collect import collect
from daskrado.lake.scan import open_lake
from daskrado.lake.seeds import SignatureKey
from daskrado.statistics import HadamardRados, MeanOperator, Moments
from daskrado.table import inner_loops as loops
from daskrado.table.compiled_loops import TILE
from daskrado.table.domain import Domain
from daskrado.table.encoding import encode_table
from daskrado.table.lattice import Lattice
from daskrado.table.yaml_file import parse

FINITE = st.floats(allow_nan=False, allow_infinity=False, width=64)
DOMAIN = parse(
    Domain,
    {
        "label": {"column": "y", "positive": True, "negative": False},
        "norm_bound": 2.2,
        "intercept": 0.5,
        "columns": {
            "a": {"kind": "numeric", "lower": -3, "upper": 3},
            "b": {"kind": "numeric", "lower": -10, "upper": 21, "nulls": {"fill": 2}},
            "c": {"kind": "numeric", "lower": -1, "upper": 1, "bins": [-0.1, 0, 0.1]},
            "d": {"kind": "numeric", "lower": 0, "upper": 4, "transform": "log1p"},
            "e": {"kind": "categorical", "values": ["u", "v"], "other": True},
            "f": {"kind": "boolean"},
        },
    },
    "test",
)


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> Any:
    before = dict(loops._compiled)
    loops.compile_loops()
    yield
    loops._compiled.clear()
    loops._compiled.update(before)


def both(work: Callable[[], Any]) -> tuple[Any, Any]:
    """What a function gives with the compiled loops, and without them."""
    fast = work()
    kept = dict(loops._compiled)
    loops._compiled.clear()
    try:
        return fast, work()
    finally:
        loops._compiled.update(kept)


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def encoded(table: pa.Table, lattice: Lattice, start: int = 0) -> tuple[np.ndarray, list[str]]:
    """Rows on the grid in a buffer larger than the table, and the columns that cannot be used."""
    made = encode_table(DOMAIN, table, label=False)
    out = np.full((made.length + 3, DOMAIN.width), 7.5, order="F")
    rows = made.on_grid(start, made.length, out, lattice)
    assert (out[made.length - start :] == 7.5).all()
    return rows.copy(), [problem.column for problem in made.problems]


def table(rows: int, **columns: Any) -> pa.Table:
    draw = np.random.default_rng(rows)
    frame = pd.DataFrame(draw.normal(size=(rows, 3)) * [1, 10, 0.1], columns=list("abc"))
    frame["d"] = draw.exponential(size=rows)
    frame["e"] = draw.choice(["u", "v", "w"], rows)
    frame["f"] = draw.random(rows) < 0.3
    made = pa.Table.from_pandas(frame, preserve_index=False)
    holes = pa.array(frame.b, mask=draw.random(rows) < 0.2)
    made = made.set_column(made.column_names.index("b"), "b", holes)
    for name, values in columns.items():
        made = made.set_column(made.column_names.index(name), name, pa.array(values))
    return made


@pytest.mark.slow
@given(st.data(), st.integers(0, 70), st.sampled_from([4, 20, 26]))  # sizes around the widths of vector registers
@settings(max_examples=60)
def test_any_numbers_are_encoded_alike(data: st.DataObject, rows: int, bits: int) -> None:
    odd = {name: data.draw(arrays(np.float64, rows, elements=FINITE)) for name in "abcd"}
    fast, plain = both(lambda: encoded(table(rows, **odd), Lattice(2.2, bits)))
    assert same_bits(fast[0], plain[0])
    assert fast[1] == plain[1] == []
    assert (np.square(fast[0]).sum(axis=1) <= 4.0**bits).all()
    fast, plain = both(lambda: clipped(table(rows, **odd)))
    assert same_bits(fast, plain)


def clipped(content: pa.Table) -> np.ndarray:
    made = encode_table(DOMAIN, content, label=False)
    return made.clipped(0, made.length, np.empty((made.length + 3, DOMAIN.width), order="F"), 2.2).copy()


@pytest.mark.parametrize("rows", [TILE - 1, TILE, 3 * TILE + 5])
def test_tiles_have_no_seams(rows: int) -> None:
    fast, plain = both(lambda: encoded(table(rows), Lattice(2.2), start=3))
    assert same_bits(fast[0], plain[0])


def test_rows_at_the_bound_end_inside_it() -> None:
    at = {"a": [3 * 0.75**0.5], "b": [5.5], "d": [5**0.5 - 1]}  # beside 3.25 from the other features: norm 2
    fast, plain = both(lambda: encoded(table(1, **at), Lattice(2.0)))
    assert same_bits(fast[0], plain[0])
    ones = fast[0][0][fast[0][0] > 0].max()
    assert ones == 2**19 - 1  # not 2**19: scaled in by some ulps, then truncated


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("column", ["a", "b", "c", "d"])
@pytest.mark.parametrize("place", [0, TILE + 500])
def test_one_bad_value_is_found_wherever_it_is(odd: float, column: str, place: int) -> None:
    values = np.full(TILE + 501, 1e200)  # finite, though its squares are not
    assert both(lambda: encoded(table(len(values), **{column: values}), Lattice(2.2))[1]) == ([], [])
    values[place] = odd
    fast, plain = both(lambda: encoded(table(len(values), **{column: values}), Lattice(2.2)))
    assert same_bits(fast[0], plain[0])
    if column == "b":  # a number that is not finite is a null, and this column has a fill
        filled = pa.array(values, mask=np.arange(len(values)) == place)
        assert fast[1] == plain[1] == []
        assert same_bits(fast[0], encoded(table(len(values), b=filled), Lattice(2.2))[0])
    else:
        assert fast[1] == plain[1] == [column]
        assert not fast[0][place].any()
        assert fast[0].any(axis=1).sum() == len(values) - 1


def test_every_column_that_is_not_finite_is_named() -> None:
    bad = np.array([1.0, np.nan])
    made = encode_table(DOMAIN, table(2, a=bad, c=bad, d=bad), label=False)
    made.block(0, 2, np.empty((2, DOMAIN.width), order="F"))
    assert sorted(problem.column for problem in made.problems) == ["a", "c", "d"]


@pytest.mark.parametrize("positive", [True, False])
def test_boolean_labels(positive: bool) -> None:
    label = {"column": "y", "positive": positive, "negative": not positive}
    domain = parse(Domain, {**DOMAIN.model_dump(mode="json"), "label": label}, "test")
    made = encode_table(domain, table(3).append_column("y", pa.array([True, False, True])))
    assert made.labels is not None
    assert made.labels.tolist() == ([1, -1, 1] if positive else [-1, 1, -1])
    assert made.labels.dtype == np.int8
    holes = encode_table(domain, table(2).append_column("y", pa.array([True, None])))
    assert [problem.column for problem in holes.problems] == ["y"]


def test_a_compiled_loop_writes_only_features_that_there_are() -> None:
    encode, out = loops.encoder(), np.full((2, 4), 7.5)
    assert encode is not None
    for index in (-1, 2, 2**31 - 1):
        sources = loops.Sources(4)
        sources.one_hot(np.array([0, index, 1, 0], dtype=np.int32), 2)
        assert not encode(*sources.arrays, 0, 4, 1.0, 1.0, 1.0, True, out)
        assert np.isin(out, [0.0, 1.0, 7.5]).all()


@pytest.mark.parametrize(
    ("start", "stop", "rows", "width"),
    [
        (0, 100, 50, DOMAIN.width),
        (0, 101, 200, DOMAIN.width),
        (0, 100, 100, DOMAIN.width - 1),
        (-1, 5, 9, DOMAIN.width),
    ],
)
def test_a_compiled_loop_stays_within_its_arrays(start: int, stop: int, rows: int, width: int) -> None:
    made, raw = encode_table(DOMAIN, table(100), label=False), np.full(rows * width + 5000, 7.5)
    out = raw[: rows * width].reshape((rows, width), order="F")
    with pytest.raises((ValueError, IndexError)):
        made.on_grid(start, stop, out, Lattice(2.2))
    assert (raw[rows * width :] == 7.5).all()


def test_a_column_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="3 rows"):
        loops.Sources(3).scaled(np.zeros(2))


@pytest.mark.parametrize("cells", [[0, 1], [0, 1, 6], [0, -1, 2]])
def test_cells_that_are_not_there_are_refused(cells: list[int]) -> None:
    def refused() -> bool:
        with pytest.raises(ValueError, match=r"0..5"):
            loops.signed_sums(np.ones((3, 2)), np.array(cells), 3)
        return bool(loops._compiled)

    assert both(refused) == (True, False)  # by either form


def test_rows_that_compiled_code_does_not_take_are_summed_all_the_same() -> None:
    values = np.arange(6.0).reshape(3, 2)
    values.flags.writeable = False
    assert loops.signed_sums(values, np.array([0, 9, 1, 9, 5])[::2], 3).tolist() == [[0, 2, -4], [1, 3, -5]]


@pytest.mark.slow
@pytest.mark.parametrize("harm", ["off", "damaged", "full"])
def test_loops_that_cannot_be_compiled_or_kept_cost_speed_only(harm: str, tmp_path: Path) -> None:
    code = """
import resource, signal, sys
import numpy as np
from daskrado.table import inner_loops as loops
import numba, daskrado.statistics
if sys.argv[1] == "full":
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
loops.compile_loops()
assert bool(loops._compiled) == (sys.argv[1] != "off")
assert loops.signed_sums(np.ones((3, 1)), np.array([0, 0, 1]), 1).tolist() == [[1]]
"""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)} | (
        {"NUMBA_DISABLE_JIT": "1"} if harm == "off" else {}
    )

    def run() -> None:
        subprocess.run([sys.executable, "-c", code, harm], env=environment, check=True, timeout=600)

    run()
    if harm == "damaged":
        kept = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert kept
        for path in kept:
            path.write_bytes(b"")
        run()


@pytest.mark.slow
@given(st.data(), st.integers(0, 70))
def test_signed_sums(data: st.DataObject, size: int) -> None:
    values = data.draw(arrays(np.float64, (size, 2), elements=st.integers(-(2**20), 2**20).map(float)))
    cells = data.draw(arrays(np.int64, size, elements=st.integers(0, 5)))
    fast, plain = both(lambda: loops.signed_sums(values, cells, 3))
    assert same_bits(fast, plain)
    for feature in range(2):
        sums = [sum(v for v, c in zip(values[:, feature], cells, strict=True) if c == k) for k in range(6)]
        assert fast[feature].tolist() == [sums[k] - sums[3 + k] for k in range(3)]


def test_columns_of_a_buffer_that_is_not_full() -> None:
    buffer = np.random.default_rng(1).integers(-9, 9, (50, 3)).astype(float, order="F")
    cells = np.arange(40) % 6
    fast, plain = both(lambda: loops.signed_sums(buffer[:40], cells, 3))
    assert same_bits(fast, plain)


@pytest.mark.parametrize("kind", [MeanOperator, Moments, lambda width: HadamardRados(width, 32)])
def test_a_lake_has_the_same_sums_with_compiled_loops(
    kind: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    content = table(3001).append_column("y", pa.array(np.random.default_rng(5).random(3001) < 0.4))
    domain = DOMAIN
    lake, key = open_lake(content.to_pandas(), domain), SignatureKey.from_seed(3)

    def work() -> np.ndarray:
        return collect(kind(domain.width), lake, domain, Lattice(2.2), key=key).vector

    monkeypatch.setattr(collecting, "REPAID_CELLS", 1)
    fast = work()
    loops._compiled.clear()
    monkeypatch.setattr(collecting, "REPAID_CELLS", 10**9)
    plain = work()
    assert not loops._compiled  # a small lake compiles nothing
    monkeypatch.setattr(collecting, "REPAID_CELLS", 1)
    again = work()
    assert loops._compiled
    assert same_bits(fast, plain)
    assert same_bits(again, plain)
