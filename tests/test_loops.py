"""The compiled loops give the bits of the NumPy ones, on ordinary numbers and on the odd ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from daskrado import loops
from daskrado.domain import Domain, parse
from daskrado.lake import collect as collecting
from daskrado.lake.collect import collect
from daskrado.lake.scan import open_lake
from daskrado.lake.seeds import SignatureKey
from daskrado.lattice import Lattice
from daskrado.statistics import HadamardRados, MeanOperator, Moments

ANY = st.floats(width=64)
FINITE = st.floats(allow_nan=False, allow_infinity=False, width=64)
SIZES = st.integers(0, 70)  # around the widths of vector registers


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


@given(arrays(np.float64, SIZES, elements=ANY))
def test_finite(values: np.ndarray) -> None:
    assert both(lambda: loops.finite(values)) == (np.isfinite(values).all(),) * 2


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 500, 999])
def test_one_bad_value_is_found_wherever_it_is(odd: float, place: int) -> None:
    values = np.full(1000, 1e200)  # finite, though its squares are not
    assert both(lambda: loops.finite(values)) == (True, True)
    values[place] = odd
    assert both(lambda: loops.finite(values)) == (False, False)


@given(arrays(np.float64, SIZES, elements=FINITE), FINITE, st.floats(-3, 3))
@example(np.array([-0.0, 0.0]), 0.5, -0.0)
@example(np.array([-0.0, 0.0]), 0.5, 0.0)
def test_scale(values: np.ndarray, factor: float, offset: float) -> None:
    def work() -> np.ndarray:
        out = np.empty_like(values)
        loops.scale(values, factor, offset, out)
        return out

    assert same_bits(*both(work))


@given(arrays(np.float64, SIZES, elements=st.floats(-1, 1)), st.floats(0, 9))
def test_add_squares(values: np.ndarray, start: float) -> None:
    def work() -> np.ndarray:
        total = np.full(len(values), start)
        loops.add_squares(values, total)
        return total

    assert same_bits(*both(work))


@given(st.data(), SIZES)
def test_to_grid(data: st.DataObject, size: int) -> None:
    values = data.draw(arrays(np.float64, size, elements=st.floats(-1, 1)))
    factors = data.draw(arrays(np.float64, size, elements=st.floats(0, 2**26)))

    def work() -> np.ndarray:
        out = values.copy()
        loops.to_grid(out, factors)
        return out

    assert same_bits(*both(work))


@given(st.data(), SIZES)
def test_sums(data: st.DataObject, size: int) -> None:
    values = data.draw(arrays(np.float64, size, elements=st.integers(-(2**20), 2**20).map(float)))
    cells = data.draw(arrays(np.int64, size, elements=st.integers(0, 6)))
    fast, plain = both(lambda: loops.sums(values, cells, 7))
    assert same_bits(fast, plain)
    assert fast.tolist() == [sum(v for v, c in zip(values, cells, strict=True) if c == k) for k in range(7)]


def test_columns_with_gaps() -> None:
    rows = np.random.default_rng(1).normal(size=(50, 3))  # row-major: a column has gaps
    column, out = rows[:, 1], np.empty((50, 3))
    fast, plain = both(lambda: (loops.scale(column, 0.3, 0.1, out[:, 2]), out[:, 2].copy())[1])
    assert same_bits(fast, plain)


@pytest.mark.parametrize("kind", [MeanOperator, Moments, lambda width: HadamardRados(width, 32)])
def test_a_lake_has_the_same_sums_with_compiled_loops(
    kind: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = np.random.default_rng(5)
    frame = pd.DataFrame(draw.normal(size=(3001, 3)) * [1, 10, 0.1], columns=list("abc"))
    frame["d"] = draw.exponential(size=3001)
    frame["y"] = frame.a + draw.normal(size=3001) > 0
    domain = parse(
        Domain,
        {
            "label": {"column": "y", "positive": True, "negative": False},
            "norm_bound": 1.2,
            "columns": {
                "a": {"kind": "numeric", "lower": -3, "upper": 3},
                "b": {"kind": "numeric", "lower": -10, "upper": 21},
                "c": {"kind": "numeric", "lower": -1, "upper": 1, "bins": [-0.1, 0, 0.1]},
                "d": {"kind": "numeric", "lower": 0, "upper": 4, "transform": "log1p"},
            },
        },
        "test",
    )
    lake, key = open_lake(frame, domain), SignatureKey.from_seed(3)

    def work() -> np.ndarray:
        return collect(kind(domain.width), lake, domain, Lattice(1.2), key=key).vector

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
