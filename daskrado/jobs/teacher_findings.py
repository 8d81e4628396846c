"""What a teachers job finds: private answers and the student, all of it publishable."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from daskrado.bounds.teachers import Forecast
from daskrado.engines.answers import REFUSED
from daskrado.jobs.report import Section, draw
from daskrado.jobs.student import Student

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class TeachersFindings:
    """Private answers to public queries, the student that learned from them, and what the engine did.

    ``labels`` are class indices, REFUSED or UNANSWERED; ``answers`` is the table that is published.
    """

    teachers: int
    student: Student
    labels: NDArray[np.int64] = field(repr=False)
    answers: pa.Table = field(repr=False)
    counts: dict[str, int]
    forecast: Forecast
    error_rate: float | None
    refusals: int | None  # at which the engine stops

    def shares(self) -> dict[str, NDArray[np.bool_]]:
        """Which queries got which answer."""
        found = {str(c): self.labels == at for at, c in enumerate(self.student.classes)}
        return {**found, "refused": self.labels == REFUSED, "not reached": self.labels < REFUSED}

    def save_answers(self, path: Path) -> None:
        """Write the answers as Parquet."""
        pq.write_table(self.answers, path, compression="zstd", write_page_checksum=True)

    def sections(self, x: NDArray[np.float64]) -> list[Section]:
        """Private answers, and margins of the encoded queries as the published student sees them; never a vote."""
        total = max(1, len(self.labels))
        counts = {name: int(mine.sum()) for name, mine in self.shares().items()}
        rows = [(name, f"{count:,}", f"{count / total:.1%}") for name, count in counts.items()]
        answers = Section("Private answers to public queries", header=("answer", "queries", "share"), rows=rows)
        text = (
            f"Votes are never published. A query gets most teachers' answer with probability 0.99 where they differ "
            f"by {self.forecast.margin:,} votes of {self.teachers:,}."
        )
        if self.student.model is None:
            return [answers, Section("Margins", text=text)]
        plot = self._margins(x @ self.student.model.weights)
        return [answers, Section("Margins of the queries, through the private answers", text=text, plot=plot)]

    def _margins(self, scores: NDArray[np.float64]) -> str:
        groups = {name: scores[mine] for name, mine in self.shares().items() if name != "not reached" and mine.any()}
        low, high = float(scores.min()), float(scores.max())
        edges = np.linspace(low, high if high > low else low + 1, 31)

        def paint(axes: Axes) -> None:
            axes.hist(list(groups.values()), bins=edges.tolist(), stacked=True, label=list(groups))
            axes.axvline(0, color="#2d3748", linewidth=0.8)

        margin = "margin of the public query under the published student"
        return draw(paint, margin, "queries", legend="private answer")
