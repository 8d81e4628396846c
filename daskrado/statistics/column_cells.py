"""Rows by cell of every column: how much is null, unknown, clipped, unusable, positive."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from daskrado.privacy.relations import Relation, Sensitivity
from daskrado.statistics.base import Block, IntVector, Rows, Statistic
from daskrado.table.cells import CellColumn
from daskrado.table.lattice import Lattice

FINE = 16  # bits: noise on counts is drawn on so fine a grid that it counts as normal


@dataclass(frozen=True)
class ColumnCells(Statistic):
    """``cells``: for each column the number of rows in each of its cells, then of rows that are usable and unusable.

    Rows are those of the describing Domain (``table.cells``), in which none counts as nothing.

    Sensitivity
        With c columns, and one more for the row as a whole, a row lies in exactly one cell of each: adding or
        removing it moves c + 1 counts by 1, (c + 1, sqrt(c + 1)); replacing it takes 1 from as many and gives 1 to as
        many, (2 (c + 1), sqrt(2 (c + 1))).
    """

    columns: tuple[CellColumn, ...]

    name: ClassVar[str] = "column_cells"

    @property
    def label_use(self) -> Literal["required", "optional", "none"]:
        """The label is one of the columns."""
        return "none"

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The cells of all columns, one after another."""
        return (Block("cells", (sum(len(column.cells) for column in self.columns) + 2,), power=0, fine=FINE),)

    def partial(self, rows: Rows) -> IntVector:
        """Count, in steps of 2^-FINE."""
        x, counts = rows.x, []
        usable = np.ones(len(x), dtype=bool)
        for column in self.columns:
            codes = column.codes(x)
            counts.append(np.bincount(codes, minlength=len(column.cells)))
            usable &= np.array(column.allowed)[codes]
        total = int(usable.sum())
        return np.concatenate([*counts, [total, len(x) - total]]).astype(np.int64) << FINE

    def sensitivity(self, relation: Relation) -> Sensitivity:
        """See the class."""
        count = len(self.columns) + 1
        moved = {Relation.ADD_REMOVE: count, Relation.REPLACE_ONE: 2 * count}
        if relation not in moved:
            self.unsupported(relation)
        return Sensitivity(float(moved[relation]), math.sqrt(moved[relation]))

    def largest_per_row(self, lattice: Lattice) -> int:
        """A row counts once in a cell, shifted."""
        del lattice
        return 1 << FINE
