"""Counts: the histogram over a finite universe."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from daskrado.privacy.relations import Relation, Sensitivity
from daskrado.statistics.base import Block, IntVector, Rows, Statistic
from daskrado.statistics.universe import Universe
from daskrado.table.lattice import Lattice


@dataclass(frozen=True)
class Histogram(Statistic):
    """``cells``: the number of rows in each cell of a universe.

    A categorical or binned column is one-hot in the encoded row, so its value is where its part is largest; a boolean
    is a sign. Clipping and truncation change neither. A row that counts as nothing lies in no cell.

    Sensitivity
        A row lies in at most one cell: adding or removing it moves the vector by 1; replacing it takes 1 from one
        cell and gives 1 to another, (2, sqrt(2)). A label flip does the same where the label is an axis, else
        nothing: then labels are not read.
    """

    universe: Universe

    name: ClassVar[str] = "histogram"
    compact: ClassVar[bool] = True

    @property
    def label_use(self) -> Literal["required", "optional", "none"]:
        """Only where the label is an axis."""
        return "required" if any(axis.start is None for axis in self.universe.axes) else "none"

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The cells."""
        return (Block("cells", (self.universe.size,), power=0),)

    def partial(self, rows: Rows) -> IntVector:
        """Count the rows of each cell."""
        cell, inside = np.zeros(len(rows.y), dtype=np.int64), np.ones(len(rows.y), dtype=bool)
        for axis in self.universe.axes:
            codes = axis.codes(rows.features, rows.y)
            cell, inside = cell * len(axis.values) + codes, inside & (codes >= 0)
        return np.bincount(cell[inside], minlength=self.universe.size).astype(np.int64)

    def sensitivity(self, relation: Relation) -> Sensitivity:
        """See the class."""
        if relation is Relation.ADD_REMOVE:
            return Sensitivity(1.0, 1.0)
        if relation is Relation.LABEL_FLIP and all(axis.start is not None for axis in self.universe.axes):
            return Sensitivity(0.0, 0.0, frozenset({"cells"}))
        return Sensitivity(2.0, math.sqrt(2.0))

    def largest_per_row(self, lattice: Lattice) -> int:
        """One row counts once."""
        del lattice
        return 1
