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


def _dots_codes(codes: Any, weights: Any, worth: Any, out: Any) -> None:
    for i in range(codes.size):
        out[i] += weights[codes[i]] * worth[i]


def _dots_times(values: Any, weight: float, worth: Any, out: Any) -> None:
    for i in range(values.size):
        out[i] += weight * (values[i] * worth[i])


def _dots_numbers(values: Any, weight: float, out: Any) -> None:
    for i in range(values.size):
        out[i] += weight * values[i]


dots_codes, dots_times, dots_numbers = (
    numba.jit(loop, nogil=True) for loop in (_dots_codes, _dots_times, _dots_numbers)
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
        for column in range(kinds.size):
            first, place = firsts[column], places[column]
            if kinds[column] == CODE8:
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


def _sum_numbers(values: Any, factors: Any) -> Any:
    total = np.int64(0)
    for i in range(values.size):
        total += factors[i] * values[i]
    return total


sum_codes, sum_numbers = (numba.jit(loop, nogil=True) for loop in (_sum_codes, _sum_numbers))


def _sums(
    kinds: Any, firsts: Any, places: Any, one: Any, c8: Any, c16: Any, c32: Any, times: Any, numbers: Any,
    factors: Any, out: Any,
) -> None:  # fmt: skip
    room = np.empty(TILE, dtype=np.int64)
    for start in range(0, one.size, TILE):
        stop = min(start + TILE, one.size)
        worth, some = room[: stop - start], factors[start:stop]
        for i in range(worth.size):
            worth[i] = some[i] * one[start + i]
        for column in range(kinds.size):
            first, place = firsts[column], places[column]
            if kinds[column] == CODE8:
                sum_codes(c8[place, start:stop], worth, out[first:])
            elif kinds[column] == CODE16:
                sum_codes(c16[place, start:stop], worth, out[first:])
            elif kinds[column] == CODE32:
                sum_codes(c32[place, start:stop], worth, out[first:])
            elif kinds[column] == TIMES:
                out[first, 0] += sum_numbers(times[place, start:stop], worth)
            else:
                out[first, 0] += sum_numbers(numbers[place, start:stop], some)


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


def _pairs(
    kinds: Any, firsts: Any, places: Any, one: Any, c8: Any, c16: Any, c32: Any, times: Any, numbers: Any,
    factors: Any, out: Any,
) -> None:  # fmt: skip
    at, value = np.empty(kinds.size, dtype=np.int64), np.empty(kinds.size, dtype=np.int64)
    for i in range(one.size):
        worth = np.int64(np.rint(one[i] * factors[i]))
        for column in range(kinds.size):
            place = places[column]
            at[column], value[column] = firsts[column], worth
            if kinds[column] == CODE8:
                at[column] += c8[place, i]
            elif kinds[column] == CODE16:
                at[column] += c16[place, i]
            elif kinds[column] == CODE32:
                at[column] += np.int64(c32[place, i])
            elif kinds[column] == TIMES:
                value[column] = worth * times[place, i]
            else:
                value[column] = np.int64(np.rint(numbers[place, i] * factors[i]))
        for a in range(kinds.size):
            for b in range(a, kinds.size):
                out[at[a], at[b]] += value[a] * value[b]


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
    "sums": (_sums, types.void(*_BLOCK, _INTEGERS, _TABLE)),
    "scatter": (_scatter, types.void(*_BLOCK, _INTEGERS, _INTEGERS, _TABLE)),
    "spread": (_spread, types.void(*_BLOCK, _FLOATS, types.int64, types.Array(types.float64, 2, "C"))),
    "pairs": (_pairs, types.void(*_BLOCK, _FLOATS, _TABLE)),
}
