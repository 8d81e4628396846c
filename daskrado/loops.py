"""The inner loops over one column of a block, in NumPy and, for large lakes, compiled.

Both forms do the same operations on the same numbers in the same order, so they give the same bits: the NumPy form
says what is meant, the compiled one makes fewer trips through memory. Compiling costs a worker about two seconds,
once per machine; :func:`compile_loops` is called where a lake is large enough to repay it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.float64]

REPAID_CELLS = 10_000_000  # rows times features of a lake from which on compiling pays

_compiled: dict[str, Callable[..., Any]] = {}


def compile_loops() -> None:
    """Use the compiled forms from now on in this process."""
    if _compiled:
        return
    import numba  # half a second: only where it is needed

    made = {}
    for loop, fast in (
        (_finite, {"reassoc"}),
        (_scale, False),
        (_add_squares, False),
        (_to_grid, False),
        (_sums, False),
    ):
        options = {"nogil": True, "fastmath": fast}
        try:
            made[loop.__name__] = numba.njit(loop, cache=True, **options)
        except RuntimeError:  # nowhere to keep compiled code: compile it in every process
            made[loop.__name__] = numba.njit(loop, **options)
    _compiled.update(made)


def finite(values: Column) -> bool:
    """Whether a column holds neither NaN nor infinity."""
    loop = _form("_finite", values)
    with np.errstate(over="ignore", invalid="ignore"):
        fine = bool(np.isfinite(np.dot(values, values))) if loop is None else loop(values)
    return fine or bool(np.isfinite(values).all())


def scale(values: Column, factor: float, offset: float, out: Column) -> None:
    """``values * factor - offset``, clipped to [-1, 1]."""
    loop = _form("_scale", values, out)
    if loop is not None:
        loop(values, factor, offset + 0.0, out)  # -0.0 would turn zeros over
        return
    with np.errstate(over="ignore"):  # beyond the bounds anyway
        np.multiply(values, factor, out=out)
    if offset:
        out -= offset
    np.clip(out, -1.0, 1.0, out=out)


def add_squares(values: Column, total: Column) -> None:
    """Add the squares of a column to ``total``."""
    loop = _form("_add_squares", values, total)
    if loop is not None:
        loop(values, total)
        return
    total += values * values


def to_grid(values: Column, factors: Column) -> None:
    """``values * factors``, truncated toward zero, in place."""
    loop = _form("_to_grid", values, factors)
    if loop is not None:
        loop(values, factors)
        return
    values *= factors
    np.trunc(values, out=values)


def sums(values: Column, cells: NDArray[np.int64], count: int) -> Column:
    """The sum of the values of each cell 0..count-1."""
    loop = _form("_sums", values, cells)
    if loop is None:
        return np.asarray(np.bincount(cells, weights=values, minlength=count), dtype=np.float64)
    total = np.zeros(count)
    loop(values, cells, total)
    return total


def _form(name: str, *columns: NDArray[Any]) -> Callable[..., Any] | None:
    """The compiled form, where there is one and the columns have no gaps."""
    loop = _compiled.get(name)
    return loop if loop is not None and all(column.flags.c_contiguous for column in columns) else None


def _finite(values: Column) -> bool:
    total = 0.0
    for i in range(values.size):
        total += values[i] - values[i]  # 0, or NaN for ever
    return total == 0.0


def _scale(values: Column, factor: float, offset: float, out: Column) -> None:
    for i in range(values.size):
        value = values[i] * factor - offset
        value = 1.0 if value > 1.0 else value  # NaN stays, as in NumPy
        out[i] = -1.0 if value < -1.0 else value


def _add_squares(values: Column, total: Column) -> None:
    for i in range(values.size):
        total[i] += values[i] * values[i]


def _to_grid(values: Column, factors: Column) -> None:
    for i in range(values.size):
        values[i] = np.trunc(values[i] * factors[i])


def _sums(values: Column, cells: NDArray[np.int64], total: Column) -> None:
    for i in range(values.size):
        total[cells[i]] += values[i]
