"""The compiled encoder gives the bits of the NumPy one, on ordinary numbers and on the odd ones."""

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
from loop_forms import both

from daskrado.lake import collect as collecting
from daskrado.lake.collect import collect
from daskrado.lake.scan import open_lake
from daskrado.lake.seeds import SignatureKey
from daskrado.statistics import HadamardRados, MeanOperator, Moments
from daskrado.table import inner_loops as loops
from daskrado.table.compact import CODE8, CODE16, CODE32, Compact, code_kind
from daskrado.table.compact_encoding import CompactTable
from daskrado.table.compiled_loops import TILE
from daskrado.table.domain import Domain
from daskrado.table.encoding import bin_codes, encode_table
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


def encoded(content: pa.Table, lattice: Lattice, start: int = 0) -> tuple[Compact, list[str]]:
    """Compact rows, and the columns that cannot be used."""
    made = encode_table(DOMAIN, content, label=False)
    rows = CompactTable(made).block(start, made.length, lattice)
    return rows, [problem.column for problem in made.problems]


def same_bits(a: Compact, b: Compact) -> bool:
    arrays = zip((a.one, *a.parts), (b.one, *b.parts), strict=True)
    return all(p.dtype == q.dtype and p.shape == q.shape and p.tobytes() == q.tobytes() for p, q in arrays)


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
    assert (np.square(fast[0].dense()).sum(axis=1) <= 4.0**bits).all()


@pytest.mark.parametrize("rows", [TILE - 1, TILE, 3 * TILE + 5])
def test_tiles_have_no_seams(rows: int) -> None:
    fast, plain = both(lambda: encoded(table(rows), Lattice(2.2), start=3))
    assert same_bits(fast[0], plain[0])


@pytest.mark.parametrize("kind", [np.float32, np.float16, np.int64, np.int8])
def test_a_narrow_column_is_encoded_as_its_wide_copy(kind: Any) -> None:
    """A float32 is read where it lies; the numbers are those of its float64 copy."""
    values = np.random.default_rng(3).normal(size=900).astype(kind)
    narrow = both(lambda: encoded(table(900, a=values, b=values), Lattice(2.2)))
    wide = both(lambda: encoded(table(900, a=values.astype(float), b=values.astype(float)), Lattice(2.2)))
    for found in (*narrow, *wide):
        assert same_bits(found[0], wide[0][0])


def test_rows_at_the_bound_end_inside_it() -> None:
    at = {"a": [3 * 0.75**0.5], "b": [5.5], "d": [5**0.5 - 1]}  # beside 3.25 from the other features: norm 2
    fast, plain = both(lambda: encoded(table(1, **at), Lattice(2.0)))
    assert same_bits(fast[0], plain[0])
    assert fast[0].one.tolist() == [2**19 - 1]  # not 2**19: scaled in by some ulps, then truncated


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
        assert not fast[0].dense()[place].any()
        assert fast[0].dense().any(axis=1).sum() == len(values) - 1


def test_every_column_that_is_not_finite_is_named() -> None:
    bad = np.array([1.0, np.nan])
    made = encode_table(DOMAIN, table(2, a=bad, c=bad, d=bad), label=False)
    made.block(0, 2, np.empty((2, DOMAIN.width), order="F"))
    assert sorted(problem.column for problem in made.problems) == ["a", "c", "d"]


@pytest.mark.parametrize("edges", [1, 24, 201])
def test_values_at_an_edge_belong_to_the_bin_above(edges: int) -> None:
    """By counting, value by value; more edges than 200 are searched."""
    steps = sorted(np.random.default_rng(edges).normal(size=edges).tolist())
    values = np.concatenate([steps, np.random.default_rng(1).normal(size=TILE + 3), [-0.0, 1e300, -1e300]])
    for found in both(lambda: bin_codes(values, steps)):
        assert found.tolist() == [sum(edge <= value for edge in steps) for value in values]
        assert found.dtype == np.int32


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


def test_codes_are_as_narrow_as_their_columns_allow() -> None:
    kinds = [code_kind(size) for size in (1, 256, 257, 65_536, 65_537)]
    assert kinds == [CODE8, CODE8, CODE16, CODE16, CODE32]


@pytest.mark.parametrize(("start", "stop"), [(0, 101), (-1, 5), (7, 6)])
def test_rows_that_are_not_there_are_refused(start: int, stop: int) -> None:
    made = CompactTable(encode_table(DOMAIN, table(100), label=False))
    with pytest.raises(ValueError, match="100"):
        made.block(start, stop, Lattice(2.2))


@pytest.mark.slow
@pytest.mark.parametrize("harm", ["off", "damaged", "full"])
def test_loops_that_cannot_be_compiled_or_kept_cost_speed_only(harm: str, tmp_path: Path) -> None:
    code = """
import resource, signal, sys
import numpy as np
from daskrado.losses.elementary import exp_minus
from daskrado.table import inner_loops as loops
import numba
if sys.argv[1] == "full":
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
loops.compile_loops()
assert exp_minus(np.zeros(3)).tolist() == [1.0] * 3
assert (loops.compiled("exp_minus") is not None) == (sys.argv[1] != "off")
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


@pytest.mark.parametrize("kind", [MeanOperator, Moments, lambda width: HadamardRados(width, 32)])
def test_a_lake_has_the_same_sums_with_compiled_loops(
    kind: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    content = table(3001).append_column("y", pa.array(np.random.default_rng(5).random(3001) < 0.4))
    domain = DOMAIN
    lake, key = open_lake(content.to_pandas(), domain), SignatureKey.from_seed(3)

    def work(cells: int) -> tuple[bytes, bool]:
        monkeypatch.setattr(loops, "_known", {})
        monkeypatch.setattr(collecting, "REPAID_CELLS", cells)
        return collect(kind(domain.width), lake, domain, Lattice(2.2), key=key).vector.tobytes(), bool(loops._known)

    fast, plain = work(1), work(10**9)
    assert fast[0] == plain[0]
    assert (fast[1], plain[1]) == (True, False)  # a small lake compiles nothing
