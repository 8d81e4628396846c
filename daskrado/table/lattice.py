"""The integer grid on which rows are summed: clip, truncate toward zero, guard against overflow."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from daskrado.errors import UsageError

INT64_ROOM = 2**62  # half of int64: the other half is left to noise
MOST_ROWS = 2**40  # of a lake whose number of rows is secret: its grid has room for them all, whatever it holds

LEAST_BITS = 4


@dataclass(frozen=True, slots=True)
class Lattice:
    """Rows become integers: one step is ``norm_bound * 2**-bits``.

    After :meth:`quantise` the *integer* row satisfies ``sum(q**2) <= 4**bits`` exactly, so a sensitivity that is
    derived for rows of norm at most 1 holds for ``q / 2**bits`` with no rounding term.

    Reference: truncation toward zero never lengthens a row, where rounding to nearest does; integer sums have
    none of the reordering leaks of float sums (Casacuberta et al. 2022).

    >>> grid = Lattice(norm_bound=2.0, bits=4)
    >>> grid.step
    0.125
    >>> rows = np.array([[1.0, 0.0], [3.0, 4.0]])  # the second has norm 5: it is clipped to (1.2, 1.6)
    >>> grid.quantise(rows).tolist()
    [[8.0, 0.0], [9.0, 12.0]]
    """

    norm_bound: float
    bits: int = 20

    def __post_init__(self) -> None:
        if not (math.isfinite(self.norm_bound) and self.norm_bound > 0):
            raise UsageError(f"norm_bound must be a positive number, got {self.norm_bound}")
        if not LEAST_BITS <= self.bits <= 26:
            raise UsageError(f"lattice_bits must be between {LEAST_BITS} and 26, got {self.bits}")

    @property
    def step(self) -> float:
        """What one integer step is worth in the units of the encoded features."""
        return math.ldexp(self.norm_bound, -self.bits)

    def quantise(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Clip each row to the norm bound and truncate it onto the grid, in place.

        The result holds whole numbers as float64, all below 2**53, so that BLAS sums them exactly.
        """
        scale = _inward(rows, self.norm_bound)
        scale *= math.ldexp(1.0, self.bits)
        for feature in range(rows.shape[1]):
            rows[:, feature] *= scale
        return np.trunc(rows, out=rows)

    def guard(self, rows: int | None, largest_per_row: int) -> None:
        """Refuse before summing if ``rows`` contributions could leave int64; None where their number is secret.

        Then the grid is judged by MOST_ROWS: a refusal that depended on the rows would tell their number.
        """
        if (rows or MOST_ROWS) * largest_per_row > INT64_ROOM:
            many = (
                "a secret number of rows needs room for 2^40 of them"
                if rows is None
                else "the lake has too many rows"
            )
            raise UsageError(f"{many} for exact 64-bit sums on a 2^-{self.bits} grid: lower lattice_bits")


def clip_rows(rows: NDArray[np.float64], norm_bound: float) -> NDArray[np.float64]:
    """Clip each row to the norm bound in place, off the grid: for sums in floating point."""
    rows *= (_inward(rows, norm_bound) * norm_bound)[:, None]
    return rows


def _inward(rows: NDArray[np.float64], norm_bound: float) -> NDArray[np.float64]:
    """The factor that brings each row into the unit ball."""
    return inward_factors(row_norms(rows), norm_bound, rows.shape[1])


def inward_factors(norm: NDArray[np.float64], norm_bound: float, width: int) -> NDArray[np.float64]:
    """The factor that brings a row of some norm and ``width`` features into the unit ball."""
    inward = just_inside(width)
    clipped = norm >= norm_bound * inward
    return np.where(clipped, inward / np.maximum(norm, norm_bound), 1.0 / norm_bound)


def just_inside(width: int) -> float:
    """The norm, in bounds, from which on rows are scaled in, and to which.

    Rounding makes norm, scale and product wrong by at most (width/2 + 8) ulps together: rows at the bound are scaled
    that much further in, so that no row can end above the bound.
    """
    return 1.0 - (width + 16) * 2.0**-52


def row_norms(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Euclidean norm of each row, feature by feature: element-wise operations round alike on every processor."""
    square = np.zeros(len(rows))
    for feature in range(rows.shape[1]):
        square += rows[:, feature] * rows[:, feature]
    return np.sqrt(square, out=square)
