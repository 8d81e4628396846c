"""Compact rows: what a row is before one-hot encoding spreads it out, on the lattice.

A row of twelve codes has twelve bytes here and 2,368 as 296 float64 features, nearly all of them zeros. Each column
keeps its code, its number on the lattice, or -1, 0 or 1; one integer says what a 1 is worth after clipping.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskrado.table.domain import BooleanColumn, Domain, NumericColumn

CODE8, CODE16, CODE32, TIMES, NUMBER = range(5)
"""Kinds of column: a code of 8, 16 or 32 bits (one of its features is a 1), a -1, 0 or 1, a number on the lattice."""

DTYPES = (np.uint8, np.uint16, np.uint32, np.int8, np.int32)


@dataclass(frozen=True, slots=True)
class Layout:
    """For each column, in the order of the features: its kind, its first feature, and its place among its kind."""

    width: int
    kinds: tuple[int, ...]
    firsts: tuple[int, ...]
    places: tuple[int, ...]

    @classmethod
    def of(cls, domain: Domain) -> Layout:
        """The layout of a Domain's rows; a kernel mixes all columns, so its rows have none."""
        if domain.kernel is not None:
            raise ValueError("rows of a kernel are dense")
        kinds: list[int] = []
        sizes: list[int] = []
        for column in domain.columns.values():
            if isinstance(column, NumericColumn) and column.bins is None:
                kinds.append(NUMBER)
            else:
                kinds.append(TIMES if isinstance(column, BooleanColumn) else code_kind(column.size))
            sizes.append(column.size)
            if column.flags:
                kinds.append(TIMES)
                sizes.append(1)
        if domain.intercept:
            kinds.append(TIMES if domain.intercept == 1.0 else NUMBER)
            sizes.append(1)
        firsts = np.cumsum([0, *sizes]).tolist()
        places = tuple(kinds[:i].count(kind) for i, kind in enumerate(kinds))
        return cls(firsts[-1], tuple(kinds), tuple(firsts[:-1]), places)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row's features: its columns, and what a 1 is worth."""
        return 4 + sum(np.dtype(DTYPES[kind]).itemsize for kind in self.kinds)

    def empty(self, rows: int) -> Compact:
        """Room for some rows, not filled."""
        parts = tuple(np.empty((self.kinds.count(kind), rows), dtype=DTYPES[kind]) for kind in range(len(DTYPES)))
        return Compact(self, np.empty(rows, dtype=np.int32), parts)


def code_kind(size: int) -> int:
    """The narrowest code that tells ``size`` values apart."""
    return CODE8 if size <= 1 << 8 else CODE16 if size <= 1 << 16 else CODE32


@dataclass(frozen=True, slots=True, eq=False)
class Compact:
    """A block of rows on the lattice: ``one`` is what a 1 is worth in each row, ``parts`` the columns of each kind.

    Each part is an array of (columns, rows). :meth:`dense` gives the same whole numbers, feature by feature.
    """

    layout: Layout
    one: NDArray[np.int32]
    parts: tuple[NDArray[Any], ...]

    def __repr__(self) -> str:
        return f"<Compact rows of {self.layout.width} features, private>"

    def __len__(self) -> int:
        return len(self.one)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and features."""
        return len(self.one), self.layout.width

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return self.one.nbytes + sum(part.nbytes for part in self.parts)

    def columns(self) -> Iterator[tuple[int, int, NDArray[Any]]]:
        """Kind, first feature and content of each column, in the order of the features."""
        layout = self.layout
        for kind, first, place in zip(layout.kinds, layout.firsts, layout.places, strict=True):
            yield kind, first, self.parts[kind][place]

    def take(self, index: Any) -> Compact:
        """Some of the rows, by a mask, positions or a slice; a copy."""
        one = np.ascontiguousarray(self.one[index])
        return Compact(self.layout, one, tuple(np.ascontiguousarray(part[:, index]) for part in self.parts))

    def dense(self) -> NDArray[np.float64]:
        """The rows feature by feature: whole numbers as float64, column-major."""
        out = np.zeros(self.shape, order="F")
        each = np.arange(len(self.one))
        for kind, first, values in self.columns():
            if kind == NUMBER:
                out[:, first] = values
            elif kind == TIMES:
                np.multiply(values, self.one, out=out[:, first])
            else:
                out[each, first + values.astype(np.intp)] = self.one
        return out

    def codes(self, first: int) -> NDArray[np.int64]:
        """The value of the column that begins at a feature, as a position: where its part is largest, or its sign.

        -1 in a row that counts as nothing.
        """
        for kind, start, values in self.columns():
            if start == first:
                found = (values > 0 if kind == TIMES else values).astype(np.int64)  # in bytes, -1 would be 255
                return np.where(self.one > 0, found, -1)
        raise ValueError(f"no column begins at feature {first}")
