"""Products of compact rows, compiled; imported by ``inner_loops.compile_loops`` alone, for it takes seconds.

Each does the operations of its form in ``products`` on the same numbers; where they are not whole, in the same order.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import types

from daskrado.table.compact import CODE8, CODE16, CODE32, NUMBER, TIMES
from daskrado.table.inner_loops import Loop

TILE = 2048  # rows that go through all columns before the next ones: they stay in the processor's cache


def _four(kinds: Any, column: int) -> bool:
    """Whether this column and the three after it are codes of 8 bits: those go together, for less traffic."""
    if column + 4 > kinds.size:
        return False
    return bool((kinds[column : column + 4] == CODE8).all())


four = numba.jit(_four, nogil=True)


def _dots_four(a: Any, b: Any, c: Any, d: Any, firsts: Any, weights: Any, worth: Any, out: Any) -> None:
    at_a, at_b, at_c, at_d = weights[firsts[0] :], weights[firsts[1] :], weights[firsts[2] :], weights[firsts[3] :]
    for i in range(a.size):  # each is added as if it came alone
        total = out[i] + at_a[a[i]] * worth[i]
        total += at_b[b[i]] * worth[i]
        total += at_c[c[i]] * worth[i]
        out[i] = total + at_d[d[i]] * worth[i]


def _dots_codes(codes: Any, weights: Any, worth: Any, out: Any) -> None:
    for i in range(codes.size):
        out[i] += weights[codes[i]] * worth[i]


def _dots_times(values: Any, weight: float, worth: Any, out: Any) -> None:
    for i in range(values.size):
        out[i] += weight * (values[i] * worth[i])


def _dots_numbers(values: Any, weight: float, out: Any) -> None:
    for i in range(values.size):
        out[i] += weight * values[i]


dots_four, dots_codes, dots_times, dots_numbers = (
    numba.jit(loop, nogil=True) for loop in (_dots_four, _dots_codes, _dots_times, _dots_numbers)
)


def _dots(
    kinds: Any, firsts: Any, places: Any, one: Any, c8: Any, c16: Any, c32: Any, times: Any, numbers: Any,
    weights: Any, out: Any,
) -> None:  # fmt: skip
    room = np.empty(TILE)
    for start in range(0, one.size, TILE):
        stop = min(start + TILE, one.size)
        worth, part = room[: stop - start], out[start:stop]
        for i in range(worth.size):
            worth[i] = one[start + i]
        column = -1
        while column + 1 < kinds.size:
            column += 1
            first, place = firsts[column], places[column]
            if four(kinds, column):
                a, b, c, d = c8[place], c8[place + 1], c8[place + 2], c8[place + 3]
                some = firsts[column : column + 4]
                dots_four(a[start:stop], b[start:stop], c[start:stop], d[start:stop], some, weights, worth, part)
                column += 3
            elif kinds[column] == CODE8:
                dots_codes(c8[place, start:stop], weights[first:], worth, part)
            elif kinds[column] == CODE16:
                dots_codes(c16[place, start:stop], weights[first:], worth, part)
            elif kinds[column] == CODE32:
                dots_codes(c32[place, start:stop], weights[first:], worth, part)
            elif kinds[column] == TIMES:
                dots_times(times[place, start:stop], weights[first], worth, part)
            else:
                dots_numbers(numbers[place, start:stop], weights[first], part)


def _sum_codes(codes: Any, worth: Any, out: Any) -> None:
    for i in range(codes.size):
        out[codes[i], 0] += worth[i]


def _sum_four(a: Any, b: Any, c: Any, d: Any, firsts: Any, worth: Any, out: Any) -> None:
    at_a, at_b, at_c, at_d = out[firsts[0] :], out[firsts[1] :], out[firsts[2] :], out[firsts[3] :]
    for i in range(a.size):
        at_a[a[i], 0] += worth[i]
        at_b[b[i], 0] += worth[i]
        at_c[c[i], 0] += worth[i]
        at_d[d[i], 0] += worth[i]


def _sum_numbers(values: Any, factors: Any, shift: int) -> Any:
    total, below = np.int64(0), (np.int64(1) << shift) - 1
    for i in range(values.size):
        product = factors[i] * values[i]
        total += (product + ((product >> 63) & below)) >> shift  # toward zero
    return total


sum_codes, sum_four, sum_numbers = (numba.jit(loop, nogil=True) for loop in (_sum_codes, _sum_four, _sum_numbers))


def _sums(
    kinds: Any, firsts: Any, places: Any, one: Any, c8: Any, c16: Any, c32: Any, times: Any, numbers: Any,
    factors: Any, shift: int, out: Any,
) -> None:  # fmt: skip
    room, below = np.empty(TILE, dtype=np.int64), (np.int64(1) << shift) - 1
    for start in range(0, one.size, TILE):
        stop = min(start + TILE, one.size)
        worth, some = room[: stop - start], factors[start:stop]
        for i in range(worth.size):
            product = some[i] * one[start + i]
            worth[i] = (product + ((product >> 63) & below)) >> shift
        column = -1
        while column + 1 < kinds.size:
            column += 1
            first, place = firsts[column], places[column]
            if four(kinds, column):
                a, b, c, d = c8[place], c8[place + 1], c8[place + 2], c8[place + 3]
                which = firsts[column : column + 4]
                sum_four(a[start:stop], b[start:stop], c[start:stop], d[start:stop], which, worth, out)
                column += 3
            elif kinds[column] == CODE8:
                sum_codes(c8[place, start:stop], worth, out[first:])
            elif kinds[column] == CODE16:
                sum_codes(c16[place, start:stop], worth, out[first:])
            elif kinds[column] == CODE32:
                sum_codes(c32[place, start:stop], worth, out[first:])
            elif kinds[column] == TIMES:
                out[first, 0] += sum_numbers(times[place, start:stop], worth, 0)
            else:
                out[first, 0] += sum_numbers(numbers[place, start:stop], some, shift)


def _scatter_codes(codes: Any, worth: Any, cells: Any, out: Any) -> None:
    for i in range(codes.size):
        out[codes[i], cells[i]] += worth[i]


def _scatter_numbers(values: Any, factors: Any, cells: Any, out: Any) -> None:
    for i in range(values.size):
        out[cells[i]] += factors[i] * values[i]


scatter_codes, scatter_numbers = (numba.jit(loop, nogil=True) for loop in (_scatter_codes, _scatter_numbers))


def _scatter(
    kinds: Any, firsts: Any, places: Any, one: Any, c8: Any, c16: Any, c32: Any, times: Any, numbers: Any,
    factors: Any, cells: Any, out: Any,
) -> None:  # fmt: skip
    worth = factors * one
    for column in range(kinds.size):  # one column over all rows: its sums stay in the cache
        first, place = firsts[column], places[column]
        if kinds[column] == CODE8:
            scatter_codes(c8[place], worth, cells, out[first:])
        elif kinds[column] == CODE16:
            scatter_codes(c16[place], worth, cells, out[first:])
        elif kinds[column] == CODE32:
            scatter_codes(c32[place], worth, cells, out[first:])
        elif kinds[column] == TIMES:
            scatter_numbers(times[place], worth, cells, out[first])
        else:
            scatter_numbers(numbers[place], factors, cells, out[first])


def _pair(at: Any, other_at: Any, value: Any, other: Any, out: Any) -> None:
    for i in range(at.size):
        out[at[i], other_at[i]] += value[i] * other[i]


pair = numba.jit(_pair, nogil=True)


def _pairs(
    kinds: Any, firsts: Any, places: Any, one: Any, c8: Any, c16: Any, c32: Any, times: Any, numbers: Any,
    factors: Any, out: Any,
) -> None:  # fmt: skip
    at, value = np.empty((kinds.size, TILE), dtype=np.int64), np.empty((kinds.size, TILE), dtype=np.int64)
    for start in range(0, one.size, TILE):
        size = min(TILE, one.size - start)
        for column in range(kinds.size):
            place, here, what = places[column], at[column], value[column]
            for i in range(size):
                worth = np.int64(np.rint(one[start + i] * factors[start + i]))
                here[i], what[i] = firsts[column], worth
                if kinds[column] == CODE8:
                    here[i] += c8[place, start + i]
                elif kinds[column] == CODE16:
                    here[i] += c16[place, start + i]
                elif kinds[column] == CODE32:
                    here[i] += np.int64(c32[place, start + i])
                elif kinds[column] == TIMES:
                    what[i] = worth * times[place, start + i]
                else:
                    what[i] = np.int64(np.rint(numbers[place, start + i] * factors[start + i]))
        for a in range(kinds.size):
            for b in range(a, kinds.size):
                pair(at[a, :size], at[b, :size], value[a, :size], value[b, :size], out)


def _spread_codes(codes: Any, one: Any, factors: Any, out: Any) -> None:
    for i in range(codes.size):
        out[codes[i], i] = np.rint(one[i] * factors[i])


def _spread_numbers(values: Any, factors: Any, out: Any) -> None:
    for i in range(values.size):
        out[i] = np.rint(values[i] * factors[i])


def _spread_times(values: Any, one: Any, factors: Any, out: Any) -> None:
    for i in range(values.size):
        out[i] = np.rint(one[i] * factors[i]) * values[i]


spread_codes, spread_numbers, spread_times = (
    numba.jit(loop, nogil=True) for loop in (_spread_codes, _spread_numbers, _spread_times)
)


def _spread(
    kinds: Any, firsts: Any, places: Any, one: Any, c8: Any, c16: Any, c32: Any, times: Any, numbers: Any,
    factors: Any, start: int, out: Any,
) -> None:  # fmt: skip
    stop = start + out.shape[1]
    worth, some = one[start:stop], factors[start:stop]
    for column in range(kinds.size):
        first, place = firsts[column], places[column]
        last = firsts[column + 1] if column + 1 < kinds.size else out.shape[0]
        part = out[first:last]
        if kinds[column] == NUMBER:
            spread_numbers(numbers[place, start:stop], some, part[0])
        elif kinds[column] == TIMES:
            spread_times(times[place, start:stop], worth, some, part[0])
        else:
            part[:] = 0.0
            if kinds[column] == CODE8:
                spread_codes(c8[place, start:stop], worth, some, part)
            elif kinds[column] == CODE16:
                spread_codes(c16[place, start:stop], worth, some, part)
            else:
                spread_codes(c32[place, start:stop], worth, some, part)


def _read_only(item: Any, dimensions: int) -> Any:
    return types.Array(item, dimensions, "C", readonly=True)


_BLOCK = (
    *(_read_only(types.int64, 1) for _ in range(3)),
    _read_only(types.int32, 1),
    *(_read_only(item, 2) for item in (types.uint8, types.uint16, types.uint32, types.int8, types.int32)),
)
_FLOATS, _INTEGERS = _read_only(types.float64, 1), _read_only(types.int64, 1)
_TABLE = types.Array(types.int64, 2, "C")

PRODUCTS: dict[str, Loop] = {
    "dots": (_dots, types.void(*_BLOCK, _FLOATS, types.Array(types.float64, 1, "C"))),
    "sums": (_sums, types.void(*_BLOCK, _INTEGERS, types.int64, _TABLE)),
    "scatter": (_scatter, types.void(*_BLOCK, _INTEGERS, _INTEGERS, _TABLE)),
    "spread": (_spread, types.void(*_BLOCK, _FLOATS, types.int64, types.Array(types.float64, 2, "C"))),
    "pairs": (_pairs, types.void(*_BLOCK, _FLOATS, _TABLE)),
}
