"""Rows by cell of every column: how much is null, unknown, clipped, unusable, positive."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from daskrado.privacy.relations import Relation, Sensitivity
from daskrado.statistics.base import Block, IntVector, Rows, Statistic
from daskrado.table.cells import CellColumn
from daskrado.table.lattice import Lattice

FINE = 16  # bits: noise on counts is drawn on so fine a grid that it counts as normal


@dataclass(frozen=True)
class ColumnCells(Statistic):
    """``cells``: for each column the number of rows in each of its cells, then of rows that are usable and unusable.

    Rows are those of the describing Domain (``table.cells``), in which none counts as nothing. ``whole`` says whether
    usable rows are counted.

    Sensitivity
        With c columns, the row as a whole among them where it is counted, a row lies in exactly one cell of each:
        adding or removing it moves c counts by 1, (c, sqrt(c)); replacing it takes 1 from as many and gives 1 to as
        many, (2 c, sqrt(2 c)).
    """

    columns: tuple[CellColumn, ...]
    whole: bool = True

    name: ClassVar[str] = "column_cells"
    compact: ClassVar[bool] = True

    @property
    def label_use(self) -> Literal["required", "optional", "none"]:
        """The label is one of the columns."""
        return "none"

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The cells of all columns, one after another."""
        size = sum(len(column.cells) for column in self.columns) + 2 * self.whole
        return (Block("cells", (size,), power=0, fine=FINE),)

    def partial(self, rows: Rows) -> IntVector:
        """Count, in steps of 2^-FINE."""
        x = rows.features
        counts: list[Any] = []
        usable = np.ones(len(x), dtype=bool)
        for column in self.columns:
            codes = column.codes(x)
            counts.append(np.bincount(codes, minlength=len(column.cells)))
            usable &= np.array(column.allowed)[codes]
        if self.whole:
            counts.append([total := int(usable.sum()), len(x) - total])
        return np.concatenate(counts).astype(np.int64) << FINE

    def sensitivity(self, relation: Relation) -> Sensitivity:
        """See the class."""
        count = len(self.columns) + self.whole
        moved = {Relation.ADD_REMOVE: count, Relation.REPLACE_ONE: 2 * count}
        if relation not in moved:
            self.unsupported(relation)
        return Sensitivity(float(moved[relation]), math.sqrt(moved[relation]))

    def largest_per_row(self, lattice: Lattice) -> int:
        """A row counts once in a cell, shifted."""
        del lattice
        return 1 << FINE
