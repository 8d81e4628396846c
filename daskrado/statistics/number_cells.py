"""Rows by cell of every plain number: where its values lie, for a descent that centres and scales them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from daskrado.errors import UsageError
from daskrado.privacy.relations import Relation, Sensitivity
from daskrado.statistics.base import Block, IntVector, Rows, Statistic
from daskrado.table.label import Target
from daskrado.table.lattice import Lattice
from daskrado.table.products import feature

FINE = 16  # bits: noise on counts is drawn on so fine a grid that it counts as normal


@dataclass(frozen=True)
class NumberCells(Statistic):
    """``cells``: for each feature of ``numbers``, rows by which of ``count`` equal parts of [-1, 1] its value is in.

    ``step`` is what an integer step of a row is worth. Values beyond the ends count in the outer cells, and rows
    without a usable label in none. Whether a row is in a cell is decided by its own numbers alone, each rounded
    alike on every processor.

    Sensitivity
        With c numbers a row lies in exactly one cell of each: adding or removing it moves c counts by 1,
        (c, sqrt(c)); replacing it takes 1 from as many and gives 1 to as many, (2 c, sqrt(2 c)). Flipping one feature
        does that in one number at most, (2, sqrt(2)); no number has a label.

    Reference
        Dwork, McSherry, Nissim and Smith (2006), histograms of disjoint cells.

    >>> cells = NumberCells(2, (1,), 4, 0.5)
    >>> rows = Rows(np.array([[9.0, -2.0], [9.0, 0.0], [9.0, 2.0]]), np.array([1, -1, 1], dtype=np.int8))
    >>> (cells.partial(rows) >> FINE).tolist()
    [1, 0, 1, 1]
    """

    numbers: tuple[int, ...]
    count: int
    step: float

    name: ClassVar[str] = "number_cells"
    compact: ClassVar[bool] = True
    targets: ClassVar[tuple[Target, ...]] = ("sides", "number", "classes")

    def __post_init__(self) -> None:
        if not self.numbers or not all(0 <= place < self.width for place in self.numbers) or self.count < 2:
            raise UsageError(f"number_cells needs features below {self.width} and at least 2 cells")

    @property
    def blocks(self) -> tuple[Block, ...]:
        """One row of cells for each number."""
        return (Block("cells", (len(self.numbers), self.count), power=0, fine=FINE),)

    def partial(self, rows: Rows) -> IntVector:
        """Count, in steps of 2^-FINE."""
        rows = rows.where(rows.y != 0)
        found = []
        for place in self.numbers:
            values = feature(rows.features, place) * self.step
            cells = np.clip((values + 1.0) * (self.count / 2), 0, self.count - 1).astype(np.int64)
            found.append(np.bincount(cells, minlength=self.count))
        return np.concatenate(found).astype(np.int64) << FINE

    def sensitivity(self, relation: Relation) -> Sensitivity:
        """See the class."""
        if relation is Relation.LABEL_FLIP:
            return Sensitivity(0.0, 0.0, frozenset({"cells"}))
        moved = (
            2 if relation is Relation.FEATURE_FLIP else len(self.numbers) * (1 + (relation is Relation.REPLACE_ONE))
        )
        return Sensitivity(float(moved), math.sqrt(moved))

    def largest_per_row(self, lattice: Lattice) -> int:
        """A row counts once in a cell, shifted."""
        del lattice
        return 1 << FINE
