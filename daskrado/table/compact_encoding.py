"""From the columns of a table straight to compact rows on the lattice: no dense row is made on the way."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskrado.table import inner_loops as loops
from daskrado.table.compact import NUMBER, TIMES, Compact, Layout
from daskrado.table.domain import BooleanColumn, NumericColumn
from daskrado.table.encoded_table import EncodedTable, scale_column, scaling
from daskrado.table.lattice import Lattice, inward_factors, just_inside

FLOAT64, FLOAT32, INDEX, SIGN, CONSTANT = range(5)  # what a compiled loop finds at a column's address


@dataclass(frozen=True, slots=True)
class Source:
    """One column of compact rows before clipping: its name, its values, and how they are scaled."""

    name: str
    kind: int
    values: NDArray[Any]
    factor: float = 1.0
    offset: float = 0.0

    def scaled(self, start: int, stop: int) -> NDArray[np.float64]:
        """A number's values between -1 and 1, or a constant."""
        if self.kind == CONSTANT:
            return np.full(stop - start, self.factor)
        out = np.empty(stop - start)
        scale_column(self.factor, self.offset, self.values[start:stop], out)
        return out


class CompactTable:
    """An encoded table from which compact blocks are cut; made once for a table."""

    def __init__(self, encoded: EncodedTable) -> None:
        self._encoded = encoded
        self._layout = Layout.of(encoded.domain)
        self._find_sources()

    def _find_sources(self) -> None:
        self._sources = _sources(self._encoded)
        self._arrays = _addresses(self._sources, self._layout)

    def _settle(self) -> None:
        """Some number is not finite: find them all, and take the columns as they are then."""
        self._encoded.fill_missing()
        self._find_sources()

    def block(self, start: int, stop: int, lattice: Lattice) -> Compact:
        """Rows start..stop, clipped and truncated onto the grid; one that counts as nothing is 0 in all features."""
        if not 0 <= start <= stop <= self._encoded.length:
            raise ValueError(f"rows {start}..{stop} of a table of {self._encoded.length}")
        out = self._layout.empty(stop - start)
        if (loop := loops.compiled("encode")) is None:
            self._fill(start, stop, lattice, out)
        else:
            clip = *self._clip(lattice), out.one, *out.parts
            if not loop(*self._arrays, start, *clip):
                self._settle()
                loop(*self._arrays, start, *clip)
        if self._encoded.unusable is not None:
            unusable = self._encoded.unusable[start:stop]
            out.one[unusable] = 0
            out.parts[NUMBER][:, unusable] = 0
        return out

    def sketch(
        self, lattice: Lattice, y: NDArray[Any], seeds: NDArray[np.uint64], count: int, first: int
    ) -> NDArray[np.int64] | None:
        """Sums of signs times rows by bucket, as (features, ``count``), and of labels times rows in bucket 0.

        In one loop from the columns of a whole table; None where it is not compiled or does not apply. Buckets from
        ``first`` on and signs are those of ``HadamardRados``; labels must be +1 or -1.
        """
        loop = loops.compiled("sketch")
        numbers = all(source.kind in (FLOAT64, FLOAT32, CONSTANT) for source in self._sources)
        if loop is None or self._encoded.unusable is not None or not numbers:
            return None
        sums = np.zeros((self._layout.width, count), dtype=np.int64)
        most = (1 << (31 - lattice.bits)) - 1
        return sums if loop(*self._arrays[:4], *self._clip(lattice), seeds, y, first, most, sums) else None

    def _clip(self, lattice: Lattice) -> tuple[float, float, float]:
        """Norm bound, the share of it to which rows are scaled in, and steps of the grid for it."""
        return lattice.norm_bound, just_inside(self._layout.width), math.ldexp(1.0, lattice.bits)

    def _fill(self, start: int, stop: int, lattice: Lattice, out: Compact) -> None:
        """The NumPy form: squares are added in the order of the features, as for dense rows."""
        if not self._encoded.is_finite(start, stop):
            self._settle()
        squares = np.zeros(stop - start)
        numbers = []
        for source, (kind, _, target) in zip(self._sources, out.columns(), strict=True):
            if kind == NUMBER:
                values = source.scaled(start, stop)
                numbers.append((values, target))
                squares += values * values
            else:
                piece = source.values if source.kind == CONSTANT else source.values[start:stop]
                squares += np.abs(piece) if kind == TIMES else 1.0
                target[:] = piece
        steps = math.ldexp(1.0, lattice.bits)
        factors = inward_factors(np.sqrt(squares), lattice.norm_bound, self._layout.width) * steps
        out.one[:] = np.trunc(factors)
        for values, target in numbers:
            target[:] = np.trunc(values * factors)


def _sources(encoded: EncodedTable) -> list[Source]:
    found = []
    for name, column in encoded.domain.columns.items():
        values = encoded.values[name]
        if isinstance(column, NumericColumn) and column.bins is None:
            kind = FLOAT32 if values.dtype == np.float32 else FLOAT64
            factor, offset = scaling(column)
            # An offset of -0.0 would turn zeros over.
            found.append(Source(name, kind, np.ascontiguousarray(values), factor, offset + 0.0))
        elif isinstance(column, BooleanColumn):
            found.append(Source(name, SIGN, np.ascontiguousarray(values, dtype=np.int8)))
        else:
            found.append(Source(name, INDEX, np.ascontiguousarray(values, dtype=np.int32)))
        if column.flags:
            found.append(Source(name, SIGN, np.ascontiguousarray(encoded.nulls[name], dtype=np.int8)))
    if constant := encoded.domain.intercept:
        found.append(Source("intercept", CONSTANT, np.ones(1, dtype=np.int8), constant))
    return found


def _addresses(sources: list[Source], layout: Layout) -> tuple[NDArray[Any], ...]:
    """Kinds, addresses, factors, offsets of the sources, and kinds and places of their columns."""
    return (
        np.array([source.kind for source in sources], dtype=np.int64),
        np.array([source.values.ctypes.data for source in sources], dtype=np.int64),
        np.array([source.factor for source in sources]),
        np.array([source.offset for source in sources]),
        np.array(layout.kinds, dtype=np.int64),
        np.array(layout.places, dtype=np.int64),
    )
