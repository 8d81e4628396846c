"""The inner loops of a pass, compiled; imported by ``inner_loops.compile_loops`` alone, for it takes seconds.

Each does the operations of its NumPy form on the same numbers in the same order, so it gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba import types
from numba.extending import intrinsic

from daskrado.table.inner_loops import FLAG, ONE_HOT, SCALED

TILE = 2048  # rows that go through all steps of encoding before the next ones: they stay in the processor's cache
_LARGEST = float(np.finfo(np.float64).max)


def _jit(loop: Callable[..., Any], signature: str) -> Any:
    try:
        return numba.jit(signature, nogil=True, cache=True)(loop)
    except Exception:  # nowhere to keep compiled code, or what is kept is damaged: compile it in every process
        return numba.jit(signature, nogil=True)(loop)


def _pointer_to(item: Any) -> Any:
    """A function of compiled code that takes an address for an array's first item."""

    def pointer(context: Any, address: Any) -> Any:
        del context, address

        def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], target.get_value_type(signature.return_type))

        return types.CPointer(item)(types.intp), generate

    return intrinsic(pointer)


_floats = _pointer_to(types.float64)
_numbers = _pointer_to(types.int32)
_bytes = _pointer_to(types.uint8)


def _scale(values: Any, factor: float, offset: float, out: Any, squares: Any) -> bool:
    finite = True
    for i in range(values.size):
        value = values[i]
        finite &= abs(value) <= _LARGEST
        value = value * factor - offset
        value = 1.0 if value > 1.0 else value
        value = -1.0 if value < -1.0 else value
        out[i] = value
        squares[i] += value * value
    return finite


def _one_hot(index: Any, out: Any, first: int, squares: Any) -> bool:
    width = out.shape[0]
    out[:, first : first + index.size] = 0.0
    for i in range(index.size):
        if index[i] < 0 or index[i] >= width:
            return False
        out[index[i], first + i] = 1.0
        squares[i] += 1.0
    return True


def _flag(values: Any, out: Any, squares: Any) -> None:
    for i in range(values.size):
        value = float(values[i])
        out[i] = value
        squares[i] += value * value


def _shrink(squares: Any, bound: float, inward: float, steps: float) -> None:
    for i in range(squares.size):
        norm = np.sqrt(squares[i])
        squares[i] = (inward / max(norm, bound) if norm >= bound * inward else 1.0 / bound) * steps


def _truncate(values: Any, factors: Any) -> None:
    for i in range(values.size):
        values[i] = np.trunc(values[i] * factors[i])


def _multiply(values: Any, factors: Any) -> None:
    for i in range(values.size):
        values[i] = values[i] * factors[i]


scale, one_hot, flag, shrink, truncate, multiply = (
    numba.jit(loop, nogil=True) for loop in (_scale, _one_hot, _flag, _shrink, _truncate, _multiply)
)


def _encode(
    kinds: Any,
    addresses: Any,
    factors: Any,
    offsets: Any,
    widths: Any,
    start: int,
    rows: int,
    bound: float,
    inward: float,
    steps: float,
    whole: bool,
    out: Any,
) -> bool:
    usable = True
    every = np.empty(TILE)
    for first in range(0, rows, TILE):
        last = min(first + TILE, rows)
        squares = every[: last - first]
        squares[:] = 0.0
        feature = 0
        for column in range(kinds.size):
            if kinds[column] == SCALED:
                values = numba.carray(_floats(addresses[column] + 8 * (start + first)), last - first)
                piece = out[feature, first:last]
                usable &= scale(values, factors[column], offsets[column], piece, squares)
            elif kinds[column] == ONE_HOT:
                index = numba.carray(_numbers(addresses[column] + 4 * (start + first)), last - first)
                usable &= one_hot(index, out[feature : feature + widths[column]], first, squares)
            elif kinds[column] == FLAG:
                flags = numba.carray(_bytes(addresses[column] + start + first), last - first)
                flag(flags, out[feature, first:last], squares)
            else:
                out[feature, first:last] = factors[column]
                squares += factors[column] * factors[column]
            feature += widths[column]
        shrink(squares, bound, inward, steps)
        for at in range(feature):
            if whole:
                truncate(out[at, first:last], squares)
            else:
                multiply(out[at, first:last], squares)
    return usable


def _signed_sums(values: Any, cells: Any, sketch: Any) -> None:
    count = sketch.shape[1]
    sums = np.empty(2 * count)
    for feature in range(values.shape[0]):
        sums[:] = 0.0
        column = values[feature]
        for i in range(cells.size):
            sums[cells[i]] += column[i]
        for bucket in range(count):
            sketch[feature, bucket] = np.int64(sums[bucket] - sums[count + bucket])


encode = _jit(
    _encode,
    "boolean(int64[::1], int64[::1], float64[::1], float64[::1], int64[::1],"
    " int64, int64, float64, float64, float64, boolean, float64[:, ::1])",
)
signed_sums = _jit(_signed_sums, "void(float64[:, :], int64[::1], int64[:, ::1])")
