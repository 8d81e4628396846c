"""Margins within bags: which rows of a bag have its largest margins, found exactly over partitions.

Weights and rows are whole numbers, so margins are too. A bag's k-th largest margin is found digit by digit: one pass
counts the leading digit of all margins, the next the following digit of those that share the leading ones, and so on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from daskrado.statistics.base import Block, Groups, IntVector, Rows
from daskrado.statistics.features import LabelFree, group_sums
from daskrado.table.lattice import Lattice
from daskrado.table.products import dots

WEIGHT_BITS = 30
_HALF = 15
TOTAL_BITS = 58  # |weights| < 2^31 and |row| <= 2^26 in grid steps: margins fit with their sign


@dataclass(frozen=True)
class _BagMargins(LabelFree):
    groups: Groups
    weights: tuple[int, ...]

    compact: ClassVar[bool] = True

    @property
    def grouped_by(self) -> Groups | None:
        """The bags."""
        return self.groups

    def margins(self, rows: Rows) -> NDArray[np.int64]:
        """Whole margins, shifted to be positive: exact in int64 whatever the order of the sums."""
        high, low = np.divmod(np.array(self.weights, dtype=np.int64), 1 << _HALF)  # so that floats are exact, too
        leading, trailing = (dots(rows.features, half.astype(np.float64)).astype(np.int64) for half in (high, low))
        return np.asarray((leading << _HALF) + trailing + (1 << (TOTAL_BITS - 1)))


@dataclass(frozen=True)
class MarginDigits(_BagMargins):
    """For each bag, how many margins that begin with the bag's ``prefix`` go on with each digit."""

    prefixes: tuple[int, ...]
    digit_bits: int
    shift: int

    name: ClassVar[str] = "margin_digits"

    @property
    def blocks(self) -> tuple[Block, ...]:
        """Counts by bag and digit."""
        return (Block("counts", (len(self.groups.values), 1 << self.digit_bits), power=0),)

    def partial(self, rows: Rows) -> IntVector:
        """One block of rows."""
        assert rows.groups is not None
        margins, bags = self.margins(rows), rows.groups.astype(np.int64)
        prefix = np.array(self.prefixes, dtype=np.int64)
        mine = (margins >> (self.shift + self.digit_bits)) == prefix[bags]
        digit = (margins[mine] >> self.shift) & ((1 << self.digit_bits) - 1)
        return np.bincount((bags[mine] << self.digit_bits) + digit, minlength=self.size).astype(np.int64)

    def largest_per_row(self, lattice: Lattice) -> int:
        """One."""
        del lattice
        return 1


@dataclass(frozen=True)
class SplitAtMargins(_BagMargins):
    """For each bag, sum and count of its rows with a margin above the bag's cut, and of those exactly at it."""

    cuts: tuple[int, ...]

    name: ClassVar[str] = "split_at_margins"

    @property
    def blocks(self) -> tuple[Block, ...]:
        """Above, then at the cut."""
        bags = len(self.groups.values)
        return (
            Block("above", (bags, self.width)),
            Block("at", (bags, self.width)),
            Block("count_above", (bags,), power=0),
            Block("count_at", (bags,), power=0),
        )

    def partial(self, rows: Rows) -> IntVector:
        """One block of rows."""
        assert rows.groups is not None
        bags, count = rows.groups, len(self.groups.values)
        gap = self.margins(rows) - np.array(self.cuts, dtype=np.int64)[bags]
        picks = (gap > 0, gap == 0)
        sums = [group_sums(rows.features, np.where(pick, bags, -1), count).ravel() for pick in picks]
        counts = [np.bincount(bags[pick], minlength=count) for pick in picks]
        return np.concatenate([*sums, *counts]).astype(np.int64)

    def largest_per_row(self, lattice: Lattice) -> int:
        """One coordinate of one row."""
        return 1 << lattice.bits
