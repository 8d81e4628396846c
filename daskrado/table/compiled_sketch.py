"""Encode numbers and add them up by bucket in one loop; imported by ``inner_loops.compile_loops`` alone.

Rows go through in tiles that stay in the processor's cache: a column is read from memory once, and nothing is written
but sums. A row's sign is folded into its clip factor. Its cell says its bucket and whether sign and label agree: the
sum over all cells of those that agree, less the others, is the mean operator. Two features share one 64-bit sum, as
long as no cell has so many rows that the lower one could run over; two such sums are added at once.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from daskrado.table.compact_encoding import FLOAT32, FLOAT64
from daskrado.table.compiled_loops import TILE, doubles_at, floats_at, scale
from daskrado.table.inner_loops import Loop

_LOW = np.int64((1 << 32) - 1)
_HALF = np.int64(1 << 31)


def _cells(seeds: Any, y: Any, first: int, count: int, cells: Any, signs: Any) -> None:
    for i in range(seeds.size):
        bucket = ((seeds[i] >> np.uint64(32)) * np.uint64(count - first)) >> np.uint64(32)
        sign = 1 - 2 * np.int64(seeds[i] & np.uint64(1))
        cells[i] = 2 * (np.int64(bucket) + first) + (1 if sign * y[i] > 0 else 0)
        signs[i] = sign


def _crowded(cells: Any, seen: Any) -> int:
    most = np.int64(0)
    for i in range(cells.size):
        seen[cells[i]] += 1
        most = max(most, seen[cells[i]])
    return int(most)


def _signed_factors(squares: Any, bound: float, inward: float, steps: float, signs: Any) -> None:
    for i in range(squares.size):
        norm = np.sqrt(squares[i])
        squares[i] = (inward / max(norm, bound) if norm >= bound * inward else 1.0 / bound) * steps * signs[i]


def _pack(a: Any, b: Any, c: Any, d: Any, factors: Any, packed: Any) -> None:
    for i in range(factors.size):
        packed[i, 0] = np.int64(np.int32(a[i] * factors[i])) + (np.int64(np.int32(b[i] * factors[i])) << 32)
        packed[i, 1] = np.int64(np.int32(c[i] * factors[i])) + (np.int64(np.int32(d[i] * factors[i])) << 32)


def _add(packed: Any, cells: Any, sums: Any) -> None:
    for i in range(cells.size):
        sums[cells[i], 0] += packed[i, 0]
        sums[cells[i], 1] += packed[i, 1]


def _flush(fours: Any, sketch: Any, mean: Any) -> None:
    for column in range(sketch.shape[0]):
        sums, high = fours[column // 4, :, column % 4 // 2], column % 2
        for cell in range(sums.size):
            low = ((sums[cell] + _HALF) & _LOW) - _HALF
            total = (sums[cell] - low) >> 32 if high else low
            sketch[column, cell >> 1] += total
            mean[column] += (2 * (cell & 1) - 1) * total
    fours[:] = 0


find_cells, crowded, signed_factors, pack, add, flush = (
    numba.jit(loop, nogil=True, error_model="numpy")  # no look at each divisor
    for loop in (_cells, _crowded, _signed_factors, _pack, _add, _flush)
)


def _sketch(
    sources: Any, addresses: Any, factors: Any, offsets: Any, bound: float, inward: float, steps: float,
    seeds: Any, y: Any, first: int, most: int, sketch: Any,
) -> bool:  # fmt: skip
    columns, count = sketch.shape
    fours = np.zeros(((columns + 3) // 4, 2 * count, 2), dtype=np.int64)
    mean, seen = np.zeros(columns, dtype=np.int64), np.zeros(2 * count, dtype=np.int64)
    scaled, every = np.zeros((4 * fours.shape[0], TILE)), np.empty(TILE)
    cells, packed, signs = np.empty(TILE, dtype=np.int64), np.empty((TILE, 2), dtype=np.int64), np.empty(TILE)
    usable = True
    for start in range(0, seeds.size, TILE):
        size = min(TILE, seeds.size - start)
        find_cells(seeds[start : start + size], y[start : start + size], first, count, cells[:size], signs[:size])
        if crowded(cells[:size], seen) > most:
            flush(fours, sketch, mean)
            seen[:] = 0
            usable &= crowded(cells[:size], seen) <= most
        squares = every[:size]
        squares[:] = 0.0
        for column in range(columns):
            out = scaled[column, :size]
            if sources[column] == FLOAT64:
                doubles = numba.carray(doubles_at(addresses[column] + 8 * start), size)
                usable &= scale(doubles, factors[column], offsets[column], out, squares)
            elif sources[column] == FLOAT32:
                floats = numba.carray(floats_at(addresses[column] + 4 * start), size)
                usable &= scale(floats, factors[column], offsets[column], out, squares)
            else:
                out[:] = factors[column]
                squares += factors[column] * factors[column]
        if not usable:
            return False
        signed_factors(squares, bound, inward, steps, signs[:size])
        for four in range(fours.shape[0]):
            a, b, c, d = scaled[4 * four], scaled[4 * four + 1], scaled[4 * four + 2], scaled[4 * four + 3]
            pack(a, b, c, d, squares, packed)
            add(packed, cells[:size], fours[four])
    flush(fours, sketch, mean)
    sketch[:, 0] += mean
    return True


_SIGNATURE = (
    "boolean(int64[::1], int64[::1], float64[::1], float64[::1], float64, float64, float64,"
    " Array(uint64, 1, 'C', readonly=True), Array(int8, 1, 'C', readonly=True), int64, int64, int64[:, ::1])"
)
SKETCH: dict[str, Loop] = {"sketch": (_sketch, _SIGNATURE)}
