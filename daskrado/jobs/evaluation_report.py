"""What is said and drawn of an evaluation: figures with intervals, ROC, calibration, groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from daskrado.jobs.report import Section, draw
from daskrado.models.decision import Decision
from daskrado.models.evaluation import Cells, Estimate, Evaluation
from daskrado.models.link import Link

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = ("#2b6cb0", "#c05621", "#2f855a", "#6b46c1")
CHOSEN = (
    " The threshold was chosen on the counts that its error is from, where it is the best of many: expect a little "
    "more error on new rows."
)
UNKNOWN = (
    " What is not known may be anything from 0 to 1: there are too few rows for this budget. Evaluate more rows, "
    "fewer groups, or at a larger epsilon."
)
_SHOWN = 10  # bins of the calibration plot, thresholds of the table


@dataclass(frozen=True)
class Measured:
    """Evaluations by name, that of the model first; ``labels`` are what its predictions are called."""

    evaluations: Mapping[str, Evaluation]
    labels: tuple[Any, Any]
    where: str = ""  # said where the rows were not held out
    decision: Decision = Decision()  # noqa: RUF009 - frozen
    own: Link | None = None  # the model's, before it was fitted to these counts

    @property
    def cells(self) -> Cells:
        """Of the model itself, all groups together."""
        return next(iter(self.evaluations.values())).cells

    @property
    def _at(self) -> int:
        return next(iter(self.evaluations.values())).at

    @property
    def groups(self) -> Mapping[str, Mapping[str, Cells]]:
        """Of the model itself."""
        return next(iter(self.evaluations.values())).groups

    @property
    def auc(self) -> Estimate:
        """The chance that a positive has a larger score than a negative."""
        return self.cells.auc

    @property
    def error(self) -> Estimate:
        """The error of the model's own labels."""
        return self.cells.error(self._at)

    @property
    def base_rate(self) -> Estimate:
        """The share of positives."""
        return self.cells.base_rate

    def gain(self, other: Estimate) -> Estimate:
        """How much less often the model errs than another guess; the two are taken as independent, which is wide."""
        mine = self.error
        low = ((mine.high - mine.value) ** 2 + (other.value - other.low) ** 2) ** 0.5
        high = ((mine.value - mine.low) ** 2 + (other.high - other.value) ** 2) ** 0.5
        value = other.value - mine.value
        return Estimate(value, value - low, value + high)

    def figures(self) -> dict[str, Estimate]:
        """The headline."""
        found = {
            "error": self.error,
            "error of the constant guess": self.cells.constant_error,
            "less error than the constant guess": self.gain(self.cells.constant_error),
            **({f"error where {self.decision.chosen}": self._chosen} if self.decision.chosen else {}),
            "area under the ROC curve": self.auc,
            f"share of {self.labels[1]}": self.base_rate,
        }
        for name, other in list(self.evaluations.items())[1:]:
            theirs = other.cells.error(other.at)
            found |= {
                f"error, {name}": theirs,
                f"less error than {name}": self.gain(theirs),
                f"area under the ROC curve, {name}": other.cells.auc,
            }
        return found

    @property
    def _chosen(self) -> Estimate:
        return self.cells.error(self.cells.place(self.decision.threshold))

    def facts(self) -> dict[str, Any]:
        """For a manifest."""
        return {"evaluation": {name: figure.to_json() for name, figure in self.figures().items()}}

    def to_json(self) -> dict[str, Any]:
        """For a file: figures, and the released counts that they follow from."""
        return {
            "schema": "daskrado.evaluation/1",
            "rows": self.where or ("" if self.decision.link is None else self.decision.link.about),
            "confidence": 0.95,
            "labels": {"negative": self.labels[0], "positive": self.labels[1]},
            "figures": self.facts()["evaluation"],
            "decision": self.decision.to_json(),
            "groups": {
                column: {name: _group(cells, self._at) for name, cells in found.items()}
                for column, found in self.groups.items()
            },
            "counts": {name: one.to_json() for name, one in self.evaluations.items()},
        }

    def lines(self) -> Iterator[str]:
        """For a terminal."""
        where = f" {self.where}" if self.where else ""
        yield f"with 95 % intervals{where}:"
        for name, figure in self.figures().items():
            yield f"  {name}: {in_words(figure)}"
        if self.decision.chosen:
            yield f" {CHOSEN}"
        if not all(map(known, self.figures().values())):
            yield f" {UNKNOWN}"
        for column, found in self.groups.items():
            for name, cells in found.items():
                figures = f"error {in_words(cells.error(self._at))}, area {in_words(cells.auc)}"
                yield f"  {column} {name}: {figures if cells.seen else 'nobody who stands out of the noise'}"

    def sections(self) -> list[Section]:
        """Results, ROC, calibration, groups, thresholds."""
        where = f" These figures are {self.where}: expect worse on new rows." if self.where else ""
        found = [
            Section(
                "How good the model is",
                text="Each figure has a 95 % interval: it covers the noise, and what another sample of as many would "
                f"change.{where}{'' if all(map(known, self.figures().values())) else UNKNOWN}",
                header=("figure", "estimate", "95 % interval"),
                rows=[_row(name, figure) for name, figure in self.figures().items()],
            ),
            self._thresholds(),
            self._calibration(),
        ]
        for column, groups in self.groups.items():
            found.append(
                Section(
                    f"By {column}",
                    header=("group", "units", "error", f"share of {self.labels[1]}", "called so", "found", "area"),
                    rows=[(name, *_group_row(cells, self._at)) for name, cells in groups.items()],
                )
            )
        return found

    def _roc(self) -> str:
        def paint(axes: Axes) -> None:
            for (name, one), colour in zip(self.evaluations.items(), _COLOURS, strict=False):
                label = f"{name}, area {one.cells.auc.value:.3f}"
                axes.plot(*one.cells.roc(), color=colour, linewidth=1.4, label=label)
            axes.plot([0, 1], [0, 1], ":", color="#718096", linewidth=1)

        return draw(paint, "false positives", "true positives", legend="", height=4.2)

    def _calibration(self) -> Section:
        """Observed shares of positives against margins."""
        cells = self.cells
        pieces = cells.coarser(_SHOWN)
        edges = ["", *(f"{edge:.3g}" for edge in cells.edges), ""]
        seen = [cells.observed(*piece) for piece in pieces]
        places = [_middle(cells, *piece) for piece in pieces]

        def paint(axes: Axes) -> None:
            value = np.array([one.value for one in seen])
            spread = [value - [one.low for one in seen], [one.high for one in seen] - value]
            line = np.linspace(min(places), max(places), 200)
            for link, style, label in ((self.own, ":", "the model's own link"), (self.decision.link, "-", "fitted")):
                if link is not None:
                    axes.plot(line, link(line), style, color="#c05621", linewidth=1.2, label=label)
            axes.errorbar(
                places, value, yerr=spread, fmt="o", markersize=4, color=_COLOURS[0], capsize=2, label="counted"
            )
            axes.set_ylim(-0.02, 1.02)

        rows = [
            (f"{edges[first] or 'lowest'} to {edges[last] or 'highest'}", *_row("", one)[1:])
            for (first, last), one in zip(pieces, seen, strict=True)
        ]
        return Section(
            "Calibration",
            text=f"How many are {self.labels[1]} among those with a margin in a range. Probabilities of the model "
            "follow the fitted curve.",
            header=("margin", f"share of {self.labels[1]}", "95 % interval"),
            rows=rows,
            plot=draw(paint, "margin", f"share of {self.labels[1]}", legend=""),
        )

    def _thresholds(self) -> Section:
        cells = self.cells
        step = max(1, len(cells.edges) // _SHOWN)
        own, chosen = self._at, cells.place(self.decision.threshold) if self.decision.chosen else 0
        named = {own: " (its own)", chosen: " (chosen)"}
        rows = [
            (f"{cells.edges[at - 1]:.4g}{named.get(at, '')}", *_at(cells, at))
            for at in sorted({*range(1, len(cells.edges) + 1, step), own, chosen} - {0})
        ]
        header = ("threshold", "error", "true positives", "false positives", "precision", "called positive")
        return Section(
            "ROC curve, and every threshold",
            text="Of the negatives, how many are called positive, and of the positives, how many are, at every "
            f"threshold. The diagonal is a guess.{CHOSEN if self.decision.chosen else ''}",
            plot=self._roc(),
            header=header,
            rows=rows,
            folded=True,
        )


def known(figure: Estimate) -> bool:
    """Whether counts say anything of a share: its interval is not all of [0, 1]."""
    return figure.high - figure.low < 1


def in_words(figure: Estimate) -> str:
    """A share with its interval."""
    return str(figure) if known(figure) else "not known"


def _row(name: str, figure: Estimate) -> tuple[str, str, str]:
    value = f"{figure.value:.4f}" if known(figure) else "not known"
    return name, value, f"{figure.low:.4f} to {figure.high:.4f}"


def _at(cells: Cells, at: int) -> tuple[str, ...]:
    figures = (cells.error, cells.true_positives, cells.false_positives, cells.precision, cells.called)
    return tuple(in_words(figure(at)) for figure in figures)


def _group(cells: Cells, at: int) -> dict[str, Any]:
    found = {
        "units": cells.total,
        "error": cells.error(at),
        "base_rate": cells.base_rate,
        "called_positive": cells.called(at),
        "true_positives": cells.true_positives(at),
        "auc": cells.auc,
    }
    return {name: figure.to_json() for name, figure in found.items()}


def _group_row(cells: Cells, at: int) -> tuple[str, ...]:
    total = cells.total
    units = f"{total.value:,.0f} ± {total.high - total.value:,.0f}" if cells.std else f"{total.value:,.0f}"
    if not cells.seen:
        return units, *["too few"] * 5
    figures = (cells.error(at), cells.base_rate, cells.called(at), cells.true_positives(at), cells.auc)
    texts = (f"{one.value:.3f} ({one.low:.3f} to {one.high:.3f})" if known(one) else "not known" for one in figures)
    return units, *texts


def _middle(cells: Cells, first: int, last: int) -> float:
    """Where a range of bins is drawn: its middle; an outer one at its inner edge."""
    low = cells.edges[max(0, first - 1)]
    high = cells.edges[min(len(cells.edges), last) - 1]
    return float(low + high) / 2
