"""A statistic of one's own: the sum of the rows of each class."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from daskrado.privacy.relations import Relation, Sensitivity
from daskrado.statistics.base import Block, IntVector, Rows, Statistic, integers
from daskrado.table.lattice import Lattice


@dataclass(frozen=True)
class SideSums(Statistic):
    """``sides``: the sum of x over positive rows, and over negative rows.

    Sensitivity
        A row of norm at most 1 is in one of two sums: 1 when it is added or removed; replaced, or its label flipped,
        it leaves one sum and enters the other, at most sqrt(2), or 2 within one sum. L1 by Cauchy-Schwarz.
    """

    name: ClassVar[str] = "side_sums"

    @property
    def blocks(self) -> tuple[Block, ...]:
        """Two rows of sums."""
        return (Block("sides", (2, self.width)),)

    def partial(self, rows: Rows) -> IntVector:
        """Both sums."""
        return integers(np.stack([rows.x[rows.y > 0].sum(axis=0), rows.x[rows.y < 0].sum(axis=0)]))

    def sensitivity(self, relation: Relation) -> Sensitivity:
        """See the class."""
        far = 1.0 if relation is Relation.ADD_REMOVE else 2.0
        return Sensitivity(far * math.sqrt(self.width), far)

    def largest_per_row(self, lattice: Lattice) -> int:
        """One coordinate of one row."""
        return 1 << lattice.bits
