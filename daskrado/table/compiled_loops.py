"""Encoding and losses, compiled; imported by ``inner_loops.compile_loops`` alone, for it takes seconds.

Each does the operations of its NumPy form on the same numbers in the same order, so it gives the same bits.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import types
from numba.extending import intrinsic

from daskrado.table.compact import CODE8, CODE16, CODE32, NUMBER
from daskrado.table.compact_encoding import CONSTANT, FLOAT32, FLOAT64, INDEX
from daskrado.table.inner_loops import STEPS, Loop

TILE = 1024  # rows that go through all steps before the next ones: they stay in the processor's cache
_LARGEST = float(np.finfo(np.float64).max)


def _pointer_to(item: Any) -> Any:
    """A function of compiled code that takes an address for an array's first item."""

    def pointer(context: Any, address: Any) -> Any:
        del context, address

        def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], target.get_value_type(signature.return_type))

        return types.CPointer(item)(types.intp), generate

    return intrinsic(pointer)


doubles_at = _pointer_to(types.float64)
floats_at = _pointer_to(types.float32)
_numbers = _pointer_to(types.int32)
_bytes = _pointer_to(types.int8)


def _scale(values: Any, factor: float, offset: float, out: Any, squares: Any) -> bool:
    finite = True
    for i in range(values.size):
        value: Any = np.float64(values[i])
        finite &= abs(value) <= _LARGEST
        value = value * factor - offset
        value = 1.0 if value > 1.0 else value
        value = -1.0 if value < -1.0 else value
        out[i] = value
        squares[i] += value * value
    return finite


def _codes(index: Any, out: Any, squares: Any) -> None:
    for i in range(index.size):
        out[i] = index[i]
        squares[i] += 1.0


def _signs(values: Any, out: Any, squares: Any) -> None:
    for i in range(values.size):
        out[i] = values[i]
        squares[i] += abs(np.float64(values[i]))


def _shrink(squares: Any, bound: float, inward: float, steps: float, one: Any) -> None:
    for i in range(squares.size):
        norm = np.sqrt(squares[i])
        squares[i] = (inward / max(norm, bound) if norm >= bound * inward else 1.0 / bound) * steps
        one[i] = np.int32(squares[i])


def _truncate(values: Any, factors: Any, out: Any) -> None:
    for i in range(values.size):
        out[i] = np.int32(values[i] * factors[i])


scale, codes, signs, shrink, truncate = (
    numba.jit(loop, nogil=True, error_model="numpy") for loop in (_scale, _codes, _signs, _shrink, _truncate)
)


def _encode(
    sources: Any, addresses: Any, factors: Any, offsets: Any, kinds: Any, places: Any, start: int,
    bound: float, inward: float, steps: float, one: Any, c8: Any, c16: Any, c32: Any, times: Any, numbers: Any,
) -> bool:  # fmt: skip
    usable = True
    every, scaled = np.empty(TILE), np.empty((numbers.shape[0], TILE))
    for first in range(0, one.size, TILE):
        last = min(first + TILE, one.size)
        size = last - first
        squares = every[:size]
        squares[:] = 0.0
        for column in range(sources.size):
            source, address, place = sources[column], addresses[column], places[column]
            if source == FLOAT64:
                doubles = numba.carray(doubles_at(address + 8 * (start + first)), size)
                usable &= scale(doubles, factors[column], offsets[column], scaled[place, :size], squares)
            elif source == FLOAT32:
                floats = numba.carray(floats_at(address + 4 * (start + first)), size)
                usable &= scale(floats, factors[column], offsets[column], scaled[place, :size], squares)
            elif source == INDEX:
                index = numba.carray(_numbers(address + 4 * (start + first)), size)
                if kinds[column] == CODE8:
                    codes(index, c8[place, first:last], squares)
                elif kinds[column] == CODE16:
                    codes(index, c16[place, first:last], squares)
                elif kinds[column] == CODE32:
                    codes(index, c32[place, first:last], squares)
            elif source == CONSTANT:
                squares += factors[column] * factors[column]
                if kinds[column] == NUMBER:
                    scaled[place, :size] = factors[column]
                else:
                    times[place, first:last] = 1
            else:
                signs(numba.carray(_bytes(address + start + first), size), times[place, first:last], squares)
        if not usable:
            return False
        shrink(squares, bound, inward, steps, one[first:last])
        for place in range(numbers.shape[0]):
            truncate(scaled[place, :size], squares, numbers[place, first:last])
    return True


def _count(values: Any, edge: float, counts: Any) -> None:
    for i in range(values.size):
        counts[i] += 1.0 if values[i] >= edge else 0.0


count = numba.jit(_count, nogil=True)


def _bins(values: Any, edges: Any, out: Any) -> None:
    every = np.empty(TILE)
    for start in range(0, values.size, TILE):
        stop = min(start + TILE, values.size)
        counts = every[: stop - start]
        counts[:] = 0.0
        for edge in edges:
            count(values[start:stop], edge, counts)
        for i in range(counts.size):
            out[start + i] = np.int32(counts[i])


def _places(a: Any, farthest: float, out: Any, at: Any) -> None:
    for i in range(a.size):
        size = abs(a[i])
        size = size if size < farthest else farthest
        at[i] = np.int32(size * STEPS)
        out[i] = size - at[i] * (1.0 / STEPS)


def _series(coefficients: Any, out: Any) -> None:
    c0, c1, c2, c3, c4, c5, c6 = coefficients
    for i in range(out.size):
        rest = out[i]
        out[i] = (((((c6 * rest + c5) * rest + c4) * rest + c3) * rest + c2) * rest + c1) * rest + c0


def _look_up(at: Any, whole: Any, parts: Any, out: Any) -> None:
    for i in range(out.size):
        out[i] = out[i] * whole[at[i] // STEPS] * parts[at[i] % STEPS]


places, series, look_up = (numba.jit(loop, nogil=True) for loop in (_places, _series, _look_up))  # vectors, each


def _exp_sizes(a: Any, whole: Any, parts: Any, coefficients: Any, farthest: float, out: Any) -> None:
    """exp(-|a|) of at most a tile."""
    at = np.empty(TILE, dtype=np.int32)[: a.size]
    places(a, farthest, out, at)
    seven = (
        coefficients[0], coefficients[1], coefficients[2], coefficients[3], coefficients[4], coefficients[5],
        coefficients[6],
    )  # fmt: skip
    series(seven, out)
    look_up(at, whole, parts, out)


exp_sizes = numba.jit(_exp_sizes, nogil=True)


def _exp_minus(a: Any, whole: Any, parts: Any, coefficients: Any, farthest: float, out: Any) -> None:
    for start in range(0, a.size, TILE):
        stop = min(start + TILE, a.size)
        exp_sizes(a[start:stop], whole, parts, coefficients, farthest, out[start:stop])


def _signed(y: Any, dots: Any, unit: float, out: Any) -> None:
    for i in range(out.size):
        out[i] = y[i] * dots[i] * unit


def _mixed_slopes(z: Any, small: Any, share: float, h: float, grid: float, out: Any) -> None:
    rest = 1 - share
    for i in range(out.size):
        corner = (1.0 - z[i]) / h
        corner = -1.0 if corner < -1.0 else corner
        corner = 1.0 if corner > 1.0 else corner
        above = -small[i] if z[i] > 0 else -1.0
        out[i] = (share * (-(1.0 + corner) / 2.0) + rest * (above / (1.0 + small[i]))) * grid


def _times_labels(slopes: Any, y: Any, out: Any) -> None:
    for i in range(out.size):
        out[i] = np.int64(slopes[i]) * y[i]


signed, mixed_slopes, times_labels = (
    numba.jit(loop, nogil=True, error_model="numpy") for loop in (_signed, _mixed_slopes, _times_labels)
)


def _slope_steps(
    dots: Any, y: Any, unit: float, share: float, h: float, grid: float,
    whole: Any, parts: Any, coefficients: Any, farthest: float, out: Any,
) -> None:  # fmt: skip
    z, small, found = np.empty(TILE), np.empty(TILE), np.empty(TILE)  # where they overlapped, loops would be slow
    for start in range(0, dots.size, TILE):
        stop = min(start + TILE, dots.size)
        margins, powers, slopes = z[: stop - start], small[: stop - start], found[: stop - start]
        signed(y[start:stop], dots[start:stop], unit, margins)
        exp_sizes(margins, whole, parts, coefficients, farthest, powers)
        mixed_slopes(margins, powers, share, h, grid, slopes)
        times_labels(slopes, y[start:stop], out[start:stop])


def _log_one_plus(s: Any, table: Any, coefficients: Any, out: Any) -> None:
    steps = table.size - 1
    for i in range(s.size):
        at = np.int64(s[i] * steps)
        before = at * (1.0 / steps)
        rest = (s[i] - before) / (1.0 + before)
        total = coefficients[-1]
        for n in range(coefficients.size - 2, -1, -1):
            total = total * rest + coefficients[n]
        out[i] = table[at] + rest * total


_ENCODE = (
    "boolean(int64[::1], int64[::1], float64[::1], float64[::1], int64[::1], int64[::1], int64, float64, float64,"
    " float64, int32[::1], uint8[:, ::1], uint16[:, ::1], uint32[:, ::1], int8[:, ::1], int32[:, ::1])"
)
_VECTOR = "float64[::1]"
LOOPS: dict[str, Loop] = {
    "encode": (_encode, _ENCODE),
    "bins": (_bins, "void(Array(float64, 1, 'C', readonly=True), float64[::1], int32[::1])"),
    "exp_minus": (_exp_minus, f"void({_VECTOR}, {_VECTOR}, {_VECTOR}, {_VECTOR}, float64, {_VECTOR})"),
    "slope_steps": (
        _slope_steps,
        f"void({_VECTOR}, Array(int8, 1, 'C', readonly=True), float64, float64, float64, float64,"
        f" {_VECTOR}, {_VECTOR}, {_VECTOR}, float64, int64[::1])",
    ),
    "log_one_plus": (_log_one_plus, f"void({_VECTOR}, {_VECTOR}, {_VECTOR}, {_VECTOR})"),
}
