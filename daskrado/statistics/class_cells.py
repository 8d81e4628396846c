"""Rows by their class and the class that a model predicts, by group: all that a confusion matrix needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from daskrado.privacy.relations import Relation, Sensitivity
from daskrado.statistics.base import Block, IntVector, Rows
from daskrado.statistics.score_cells import FINE, ScoreCells
from daskrado.table.label import Target


@dataclass(frozen=True)
class ClassCells(ScoreCells):
    """``cells``: for each model, rows by group, own class and predicted class, every group column by itself.

    ``scores`` holds one score of each of ``classes`` classes for each model, without edges; the largest is predicted,
    the first of equal ones.

    Sensitivity
        That of :class:`ScoreCells`: with K models and g group columns a row is in K g cells.
    """

    classes: int = 3

    name: ClassVar[str] = "class_cells"

    @property
    def targets(self) -> tuple[Target, ...]:  # type: ignore[override]
        return ("classes",)

    @property
    def models(self) -> int:
        """How many models are compared."""
        return len(self.scores) // self.classes

    @property
    def blocks(self) -> tuple[Block, ...]:
        """One array of groups, own and predicted classes for each model."""
        shape = (sum(self.sizes), self.classes, self.classes)
        return tuple(Block(f"cells {k}" if k else "cells", shape, power=0, fine=FINE) for k in range(self.models))

    def partial(self, rows: Rows) -> IntVector:
        """Count, in steps of 2^-FINE."""
        rows = rows.where(rows.y != 0)
        codes, own = self._codes(rows), rows.y.astype(np.int64) - 1
        parts: list[IntVector] = []
        for k in range(self.models):
            mine = self.scores[k * self.classes : (k + 1) * self.classes]
            cell = own * self.classes + np.argmax([score.scores(rows) for score in mine], axis=0)
            parts += self._counted(codes, cell, self.classes**2)
        return np.concatenate(parts).astype(np.int64) << FINE

    def sensitivity(self, relation: Relation) -> Sensitivity:
        """See the class."""
        return self._moved(relation, self.models)
