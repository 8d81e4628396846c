"""Counts: the histogram over a finite universe, and the plain sums of the encoded features."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from daskrado.lattice import Lattice
from daskrado.relations import Relation, Sensitivity
from daskrado.statistics.base import Block, IntVector, Rows, Statistic, integers
from daskrado.statistics.universe import Universe


@dataclass(frozen=True)
class Histogram(Statistic):
    """``cells``: the number of rows in each cell of a universe.

    A categorical or binned column is one-hot in the encoded row, so its value is where its part is largest; a boolean
    is a sign. Clipping and truncation change neither.

    Sensitivity
        A row lies in one cell: adding or removing it moves the vector by 1; replacing it takes 1 from one cell and
        gives 1 to another, (2, sqrt(2)). A label flip does the same where the label is an axis, else nothing.
    """

    universe: Universe

    name: ClassVar[str] = "histogram"

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The cells."""
        return (Block("cells", (self.universe.size,), power=0),)

    def partial(self, rows: Rows) -> IntVector:
        """Count the rows of each cell."""
        cell = np.zeros(len(rows.y), dtype=np.int64)
        for axis in self.universe.axes:
            count = len(axis.values)
            if axis.start is None:
                code = (rows.y > 0).astype(np.int64)
            elif axis.values == ("false", "true"):
                code = (rows.x[:, axis.start] > 0).astype(np.int64)
            else:
                code = rows.x[:, axis.start : axis.start + count].argmax(axis=1)
            cell = cell * count + code
        return np.bincount(cell, minlength=self.universe.size).astype(np.int64)

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


@dataclass(frozen=True)
class FeatureSums(Statistic):
    """``sums`` = sum of x_i, ``labels`` = sum of y_i and ``count`` = number of rows.

    For one-hot features ``sums`` are counts. It is used on reports of local mechanisms, which are public already.

    Sensitivity
        A row of norm at most 1 moves ``sums`` by 1 and each of the others by 1 when added or removed, jointly
        sqrt(3); replacing it moves ``sums`` by 2 and ``labels`` by 2. A label flip moves ``labels`` by 2 only; a
        feature flip moves one coordinate of ``sums`` by at most 2.
    """

    name: ClassVar[str] = "feature_sums"

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The sums, then the labels and the count."""
        return (Block("sums", (self.width,)), Block("labels", (), power=0), Block("count", (), power=0))

    def partial(self, rows: Rows) -> IntVector:
        """Column sums of whole numbers, exactly."""
        labels = int(rows.y.astype(np.int64).sum())
        return np.concatenate([integers(np.ones(len(rows.y)) @ rows.x), [labels, len(rows.y)]]).astype(np.int64)

    def sensitivity(self, relation: Relation) -> Sensitivity:
        """See the class; L1 from L2 by Cauchy-Schwarz."""
        root = math.sqrt(self.width)
        match relation:
            case Relation.ADD_REMOVE:
                return Sensitivity(root + 2.0, math.sqrt(3.0))
            case Relation.REPLACE_ONE:
                return Sensitivity(2 * root + 2.0, math.sqrt(8.0), frozenset({"count"}))
            case Relation.LABEL_FLIP:
                return Sensitivity(2.0, 2.0, frozenset({"sums", "count"}))
            case Relation.FEATURE_FLIP:
                return Sensitivity(2.0, 2.0, frozenset({"labels", "count"}))

    def largest_per_row(self, lattice: Lattice) -> int:
        """One coordinate of one row."""
        return 1 << lattice.bits
