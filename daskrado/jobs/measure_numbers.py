"""How models of a number are measured on private rows: one release of counts of residuals and of labels.

What is told of them is told of models of several classes, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from daskrado.errors import UsageError
from daskrado.jobs.base import Run
from daskrado.jobs.measure import BITS, Gather, Measurement
from daskrado.jobs.section import Section
from daskrado.models.class_evaluation import ClassCounts
from daskrado.models.decision import Decision
from daskrado.models.evaluation import Estimate
from daskrado.models.linear import LinearModel
from daskrado.models.number_evaluation import LABEL_CELLS, NumberCells, number_evaluation, residual_edges
from daskrado.privacy.protect import Private
from daskrado.privacy.release import Release
from daskrado.statistics.score_cells import Score, ScoreCells, reach_of
from daskrado.table.label_sides import LABEL_BITS

Cells = NumberCells | ClassCounts
Groups = Mapping[str, Mapping[str, Cells]]
Found = tuple[Cells, Groups]


@dataclass(frozen=True)
class CellsMeasured:
    """Evaluations by name, that of the model first."""

    evaluations: Mapping[str, Found]
    label: str
    where: str = ""
    decision: Decision = Decision()  # noqa: RUF009 - frozen

    @property
    def cells(self) -> Cells:
        """Of the model itself, all groups together."""
        return next(iter(self.evaluations.values()))[0]

    @property
    def groups(self) -> Groups:
        """Of the model itself."""
        return next(iter(self.evaluations.values()))[1]

    def figures(self) -> dict[str, Estimate]:
        """The headline."""
        found = self.cells.headline(self.label)
        for name, (cells, _) in list(self.evaluations.items())[1:]:
            found |= {f"{key}, {name}": one for key, one in cells.few().items()}
        return found

    def facts(self) -> dict[str, Any]:
        """For a manifest."""
        return {"evaluation": {name: figure.to_json() for name, figure in self.figures().items()}}

    def to_json(self) -> dict[str, Any]:
        """For a file: figures, and the released counts that they follow from."""
        return {
            "schema": "daskrado.evaluation/1",
            "rows": self.where,
            "confidence": 0.95,
            "label": self.label,
            "figures": self.facts()["evaluation"],
            "groups": {
                column: {
                    name: {key: one.to_json() for key, one in cells.few().items()} for name, cells in found.items()
                }
                for column, found in self.groups.items()
            },
            "counts": {name: cells.to_json() for name, (cells, _) in self.evaluations.items()},
        }

    def lines(self) -> Iterator[str]:
        """For a terminal."""
        yield f"with 95 % intervals{' ' if self.where else ''}{self.where}:"
        for name, figure in self.figures().items():
            yield f"  {name}: {figure}"
        for column, found in self.groups.items():
            for name, cells in found.items():
                told = ", ".join(f"{key} {one}" for key, one in cells.few().items())
                yield f"  {column} {name}: {told if cells.seen else 'nobody who stands out of the noise'}"

    def sections(self) -> list[Section]:
        """Results, and those by group."""
        where = f" These figures are {self.where}: expect worse on new rows." if self.where else ""
        header = ("figure", "estimate", "95 % interval")
        found = [
            Section(
                "How good the model is",
                text="Each figure has a 95 % interval: it covers the noise, and what another sample of as many would "
                f"change.{where}",
                header=header,
                rows=[_row(name, figure) for name, figure in self.figures().items()],
            )
        ]
        found += [Section(title, header=top, rows=rows) for title, top, rows in self.cells.tables()]
        for column, groups in self.groups.items():
            rows = [_row(f"{name}: {key}", one) for name, cells in groups.items() for key, one in cells.few().items()]
            found.append(Section(f"By {column}", header=header, rows=rows))
        return found


def _row(name: str, figure: Estimate) -> tuple[str, str, str]:
    return name, f"{figure.value:.4f}", f"{figure.low:.4f} to {figure.high:.4f}"


@dataclass(frozen=True)
class NumberMeasurement(Measurement):
    """The public plan of an evaluation of models of a number.

    Sensitivity
        That of :class:`daskrado.statistics.score_cells.ScoreCells` with one score more than there are models: a row
        is in one cell of residuals for each model, and in one of labels.
    """

    target: ClassVar[str] = "number"
    steps: ClassVar[tuple[str, ...]] = ("count residuals",)

    def __post_init__(self) -> None:
        if self.keys.threshold is not None or self.keys.bins is not None:
            raise UsageError("threshold and bins are for labels of two sides: drop them")
        super().__post_init__()

    @property
    def half(self) -> float:
        """Half of what is between the label's bounds."""
        return self.domain.label.span[1]

    def _statistic(self, weights: Sequence[np.ndarray]) -> ScoreCells:
        edges = np.linspace(-self.half, self.half, LABEL_CELLS + 1)[1:-1]
        scores = [self._score(one, residual_edges(self.half), folded=True) for one in weights]
        scores.append(self._score(np.zeros(self.domain.width), edges, folded=False))
        return ScoreCells(self.domain.width, tuple(scores), BITS, self.axes, self.outside, labels=False)

    def _score(self, weights: np.ndarray, edges: np.ndarray, *, folded: bool) -> Score:
        reach = max(reach_of(self.domain, weights), 2 * self.half)
        return Score.of(weights, self.lattice, reach, edges, label=-self.half / 2**LABEL_BITS, folded=folded)

    def _shape(self) -> tuple[ScoreCells, ...]:
        return (self._statistic([np.zeros(self.domain.width)] * self.models),)

    @cached_property
    def _parts(self) -> tuple[Private, ...]:
        assert self.private is not None
        return (self.private,)

    @property
    def _counted(self) -> str:
        return f"units by the size of their residual, and by {self.domain.label.column}"

    def measure(self, run: Run, models: Sequence[LinearModel], gather: Gather) -> tuple[list[Any], Release]:
        """Count, add noise once; cells of each model, and what was released."""
        counted = self._released(run, 0, self._statistic([model.weights for model in models]), gather)
        units = 1 if self.private is None else self.private.protect.rows_per_unit
        *residuals, labels = counted.values.values()
        assert self.domain.label.bounds is not None
        std = counted.noise_std["cells"]
        turned = labels[..., ::-1]  # the score of a label is its negative
        return [
            number_evaluation(one, turned, self.domain.label.bounds, std, self.columns, units) for one in residuals
        ], counted

    def measured(
        self, names: Sequence[str], found: Sequence[Any], where: str, about: str, model: LinearModel
    ) -> CellsMeasured:
        del about, model
        return CellsMeasured(dict(zip(names, found, strict=True)), self.domain.label.column, where)
