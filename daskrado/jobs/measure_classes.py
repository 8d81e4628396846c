"""How models of several classes are measured on private rows: one release of a confusion matrix."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from daskrado.jobs.base import Run
from daskrado.jobs.measure import BITS, Gather
from daskrado.jobs.measure_numbers import NumberMeasurement
from daskrado.models.class_evaluation import ClassCounts
from daskrado.models.linear import LinearModel
from daskrado.privacy.release import Release
from daskrado.statistics.class_cells import ClassCells
from daskrado.statistics.score_cells import Score, ScoreCells, reach_of


@dataclass(frozen=True)
class ClassMeasurement(NumberMeasurement):
    """The public plan of an evaluation of models of several classes.

    Sensitivity
        That of :class:`daskrado.statistics.class_cells.ClassCells`.
    """

    target: ClassVar[str] = "classes"
    steps: ClassVar[tuple[str, ...]] = ("count predictions",)

    @property
    def classes(self) -> tuple[str, ...]:
        """Their names."""
        assert self.domain.label.classes is not None
        return tuple(map(str, self.domain.label.classes))

    def _statistic(self, weights: Sequence[np.ndarray]) -> ScoreCells:
        none, scores = np.zeros(0), []
        for one in weights:  # classes of a model are on one scale, so that their scores compare
            rows = one if one.ndim == 2 else np.zeros((len(self.classes), self.domain.width))
            reach = max(reach_of(self.domain, row) for row in rows)
            scores += [Score.of(row, self.lattice, reach, none) for row in rows]
        shape = (self.domain.width, tuple(scores), BITS, self.axes, self.outside, False)
        return ClassCells(*shape, classes=len(self.classes))

    @property
    def _counted(self) -> str:
        return "units by own and predicted class"

    def measure(self, run: Run, models: Sequence[LinearModel], gather: Gather) -> tuple[list[Any], Release]:
        """Count, add noise once; the confusion matrix of each model, and what was released."""
        counted = self._released(run, 0, self._statistic([model.weights for model in models]), gather)
        units = 1 if self.private is None else self.private.protect.rows_per_unit
        std = counted.noise_std["cells"] / units
        found: list[Any] = []
        for values in counted.values.values():
            counts, at, groups = values / units, 0, {}
            first = len(next(iter(self.columns.values()), ("all",)))
            whole = ClassCounts(self.classes, counts[:first].sum(axis=0), std * math.sqrt(first))
            for column, names in self.columns.items():
                own = zip(names, counts[at : at + len(names)], strict=True)
                groups[column] = {name: ClassCounts(self.classes, one, std) for name, one in own}
                at += len(names)
            found.append((whole, groups))
        return found, counted
