"""Products of rows with weights, and of factors with rows: all that statistics do with features.

Rows are compact, or dense for a kernel. Compiled loops serve compact rows where there are any; the NumPy forms say
what is meant and give the same bits. Sums of whole numbers are exact, so no order matters; :func:`dots` of real
weights adds feature by feature, so that a row's margin does not depend on the rows beside it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskrado.table import inner_loops as loops
from daskrado.table.compact import NUMBER, TIMES, Compact, Layout

Dense = NDArray[np.float64]
Features = Dense | Compact
Integers = NDArray[np.int64]

_ROW_BITS = 27  # of a coordinate on the lattice, with room for noise on it
_TILE_CELLS = 1 << 16  # cells of dense rows that are made at once: they stay in the processor's cache
_SPARSE = 3  # features for each column from which on pairs of columns are fewer products than BLAS needs


def dense(x: Features) -> Dense:
    """The rows feature by feature."""
    return x.dense() if isinstance(x, Compact) else x


def take(x: Features, index: Any) -> Features:
    """Some of the rows."""
    return x.take(index) if isinstance(x, Compact) else np.asfortranarray(x[index])


def feature(x: Features, place: int) -> NDArray[Any]:
    """One feature of each row, in steps of the grid."""
    for kind, first, values in x.columns() if isinstance(x, Compact) else ():
        if first == place and kind == NUMBER:
            return values
    return dense(x)[:, place]


def dots(x: Features, weights: Dense) -> Dense:
    """Each row times ``weights``, added in the order of the features; exact where all sums are below 2**53."""
    out = np.zeros(len(x))
    if not isinstance(x, Compact):
        for feature, weight in enumerate(weights):
            out += x[:, feature] * weight
        return out
    weights = np.ascontiguousarray(weights)
    if (loop := loops.compiled("dots")) is not None:
        loop(*_arrays(x), weights, out)
        return out
    worth = x.one.astype(np.float64)
    for kind, first, values in x.columns():
        if kind == NUMBER:
            out += weights[first] * values
        elif kind == TIMES:
            out += weights[first] * (values * worth)
        else:
            out += weights[first + values.astype(np.intp)] * worth
    return out


def sums(x: Features, factors: Integers, shift: int = 0) -> Integers:
    """The sum of ``factors`` times rows, feature by feature; exact in int64.

    With ``shift`` each product is divided by 2**shift first and truncated toward zero, which lengthens no row.
    """
    if isinstance(x, Compact):
        return _scatter_compact(x, factors, None, 1, shift)[:, 0]
    if not shift:
        return scatter(x, factors, None, 1)[:, 0]
    return np.array([_shifted(factors * values.astype(np.int64), shift).sum() for values in x.T], dtype=np.int64)


def _shifted(products: Integers, shift: int) -> Integers:
    return np.asarray(np.sign(products) * (np.abs(products) >> shift))


def scatter(x: Features, factors: Integers, cells: Integers | None, count: int) -> Integers:
    """The sum of ``factors`` times rows over the rows of each cell, as (features, count); exact in int64.

    A row of cell -1 is in no sum. Without ``cells`` all rows are of cell 0.
    """
    if cells is not None and (len(cells) != len(x) or (len(cells) and not -1 <= cells.min() <= cells.max() < count)):
        raise ValueError(f"cells must be in -1..{count - 1}, one for each row")
    if cells is not None and len(cells) and cells.min() < 0:
        known = cells >= 0
        x, factors, cells = take(x, known), factors[known], cells[known]
    if isinstance(x, Compact):
        return _scatter_compact(x, factors, cells, count)
    out = np.zeros((x.shape[1], count), dtype=np.int64)
    largest = int(np.abs(factors).max(initial=1))
    chunk = 1 << max(0, 53 - _ROW_BITS - largest.bit_length())
    for start in range(0, len(x), chunk):
        piece, some = x[start : start + chunk], factors[start : start + chunk].astype(np.float64)
        if cells is None:
            out[:, 0] += (some @ piece).astype(np.int64)
            continue
        for feature in range(x.shape[1]):
            sums = np.bincount(cells[start : start + chunk], weights=some * piece[:, feature], minlength=count)
            out[feature] += sums.astype(np.int64)
    return out


def _scatter_compact(x: Compact, factors: Integers, cells: Integers | None, count: int, shift: int = 0) -> Integers:
    out = np.zeros((x.layout.width, count), dtype=np.int64)
    factors = np.ascontiguousarray(factors, dtype=np.int64)
    name = "sums" if cells is None else "scatter"
    if (loop := loops.compiled(name)) is not None:
        places = (shift,) if cells is None else (np.ascontiguousarray(cells, dtype=np.int64),)
        loop(*_arrays(x), factors, *places, out)
        return out
    at: Any = 0 if cells is None else cells
    worth = _shifted(factors * x.one, shift)
    for kind, first, values in x.columns():
        if kind == NUMBER:
            products = _shifted(factors * values, shift)
            np.add.at(out[first], at, products if cells is not None else products.sum())
        elif kind == TIMES:
            np.add.at(out[first], at, worth * values if cells is not None else worth @ values.astype(np.int64))
        else:
            np.add.at(out, (first + values.astype(np.intp), at), worth)
    return out


def outer(x: Features, factors: Dense | None = None, weights: Integers | None = None) -> Integers:
    """The sum of s s' over rows, s the row times its factor rounded to whole numbers; exact in int64.

    Without factors s is the row. No |s| may be above 2**26. With ``weights`` each row counts so many times, where
    :func:`weighs` allows it.
    """
    width = x.shape[1]
    out = np.zeros((width, width), dtype=np.int64)
    if weights is None and isinstance(x, Compact) and (loop := _pairs(x)) is not None:
        loop(*_arrays(x), np.ones(len(x)) if factors is None else np.ascontiguousarray(factors), out)
        out += np.triu(out, 1).T
        return out
    heaviest = 1 if weights is None else max(1, int(weights.max(initial=1)))
    for start in range(0, len(x), step := max(1, _TILE_CELLS // width)):
        tile = _tile(x, factors, start, stop := min(start + step, len(x)))
        heavy = tile if weights is None else tile * weights[start:stop]
        chunk = max(1, int(2.0**53 // (_largest(tile) ** 2 * heaviest)))
        for first in range(0, tile.shape[1], chunk):
            some = slice(first, first + chunk)
            out += (heavy[:, some] @ tile[:, some].T).astype(np.int64)
    return out


def weighs(x: Features, heaviest: int) -> bool:
    """Whether sums and :func:`outer` of rows times weights are exact, and one product is the faster way to them."""
    if not isinstance(x, Compact):
        largest = _largest(x)
    elif _pairs(x) is None:
        largest = max([_largest(x.one)] + [_largest(values) for kind, _, values in x.columns() if kind == NUMBER])
    else:
        return False
    return largest**2 * heaviest < min(2.0**53, 2.0**62 / max(1, len(x)))


def _largest(values: NDArray[Any]) -> float:
    return max(1.0, float(values.max(initial=1)), -float(values.min(initial=-1)))


def _pairs(x: Compact) -> Any:
    """The loop over pairs of columns, where that is faster than dense rows."""
    return loops.compiled("pairs") if x.layout.width >= _SPARSE * len(x.layout.kinds) else None


def squares(x: Features) -> Integers:
    """The sum of squares over rows, feature by feature; exact in int64."""
    if not isinstance(x, Compact):
        whole = x.astype(np.int64)
        return np.asarray(np.einsum("ij,ij->j", whole, whole))
    out = sums(x, x.one.astype(np.int64))  # right where a feature is worth ``one``
    for kind, first, values in x.columns():
        if kind in (NUMBER, TIMES):
            whole = values.astype(np.int64) * (1 if kind == NUMBER else x.one)
            out[first] = whole @ whole
    return out


def _tile(x: Features, factors: Dense | None, start: int, stop: int) -> Dense:
    """Some rows times their factors, rounded to whole numbers, as (features, rows)."""
    if isinstance(x, Compact) and (loop := loops.compiled("spread")) is not None:
        out = np.empty((x.layout.width, stop - start))
        scale = np.ones(len(x)) if factors is None else np.ascontiguousarray(factors)
        loop(*_arrays(x), scale, start, out)
        return out
    rows = dense(take(x, slice(start, stop)))
    return np.ascontiguousarray(rows.T if factors is None else np.rint(rows * factors[start:stop, None]).T)


def norms(x: Features) -> tuple[Integers, Integers]:
    """The sum of sizes and the sum of squares of each row."""
    lengths, squares = np.zeros(len(x), dtype=np.int64), np.zeros(len(x), dtype=np.int64)
    if not isinstance(x, Compact):
        return np.abs(x).sum(axis=1).astype(np.int64), np.einsum("ij,ij->i", x, x).astype(np.int64)
    one = x.one.astype(np.int64)
    for kind, _, values in x.columns():
        size = np.abs(values.astype(np.int64)) if kind == NUMBER else one * (values != 0) if kind == TIMES else one
        lengths += size
        squares += size * size
    return lengths, squares


def _arrays(x: Compact) -> tuple[NDArray[Any], ...]:
    """A block as compiled loops take it."""
    return (*_layout_arrays(x.layout), x.one, *x.parts)


@lru_cache(maxsize=16)
def _layout_arrays(layout: Layout) -> tuple[Integers, ...]:
    return tuple(np.array(part, dtype=np.int64) for part in (layout.kinds, layout.firsts, layout.places))
