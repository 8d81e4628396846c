"""The integer grid on which rows are summed: clip, truncate toward zero, guard against overflow."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from daskrado.errors import UsageError

INT64_ROOM = 2**62  # half of int64: the other half is left to noise


@dataclass(frozen=True, slots=True)
class Lattice:
    """Rows become integers: one step is ``norm_bound * 2**-bits``.

    After :meth:`quantise` the *integer* row satisfies ``sum(q**2) <= 4**bits`` exactly, so a sensitivity that is
    derived for rows of norm at most 1 holds for ``q / 2**bits`` with no rounding term.

    Reference: truncation toward zero never lengthens a row, where rounding to nearest does; integer sums have
    none of the reordering leaks of float sums (Casacuberta et al. 2022).
    """

    norm_bound: float
    bits: int = 20

    def __post_init__(self) -> None:
        if not (math.isfinite(self.norm_bound) and self.norm_bound > 0):
            raise UsageError(f"norm_bound must be a positive number, got {self.norm_bound}")
        if not 4 <= self.bits <= 26:
            raise UsageError(f"lattice_bits must be between 4 and 26, got {self.bits}")

    @property
    def step(self) -> float:
        """What one integer step is worth in the units of the encoded features."""
        return math.ldexp(self.norm_bound, -self.bits)

    def quantise(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Clip each row to the norm bound and truncate it onto the grid, in place.

        The result holds whole numbers as float64, all below 2**53, so that BLAS sums them exactly.
        """
        norm = np.sqrt(np.einsum("ij,ij->i", rows, rows))
        scale = np.ldexp(1.0, self.bits) / np.maximum(norm, self.norm_bound)
        rows *= scale[:, None]
        np.trunc(rows, out=rows)
        # Float rounding of the scale can leave a clipped row just above the bound: re-clip until it fits.
        limit = 4.0**self.bits
        while (over := np.flatnonzero(np.einsum("ij,ij->i", rows, rows) > limit)).size:
            rows[over] = np.trunc(rows[over] * (1 - math.ldexp(1.0, -self.bits)))
        return rows

    def guard(self, rows: int, largest_per_row: int) -> None:
        """Refuse before summing if ``rows`` contributions could leave int64."""
        if rows * largest_per_row > INT64_ROOM:
            raise UsageError(
                f"{rows} rows of up to {largest_per_row} grid steps could overflow 64-bit sums: "
                f"lower lattice_bits (now {self.bits})"
            )
