"""What a teachers job finds: private answers, and a student that learned from them. All of it is publishable."""

from __future__ import annotations

import hashlib
import json
import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from daskrado.bounds.teachers import Forecast
from daskrado.engines.answers import REFUSED
from daskrado.errors import DataError, UsageError
from daskrado.jobs.manifest import file_digest
from daskrado.jobs.report import Section, draw
from daskrado.learners.black_box import BlackBox, class_weights, linear_weights
from daskrado.models.linear import LinearModel
from daskrado.privacy.statement import PrivacyStatement
from daskrado.table.domain import Domain
from daskrado.table.label import Label, Scalar

PICKLE = "student.pickle"


@dataclass(frozen=True)
class Student:
    """A fitted estimator, and its LinearModel where it is one."""

    estimator: Any = field(repr=False)
    model: LinearModel | None = field(repr=False)
    classes: tuple[Scalar, ...]
    trained_on: int

    def predict(self, x: NDArray[np.float64]) -> NDArray[np.int64]:
        """Class indices of encoded rows."""
        return np.asarray(self.estimator.predict(x)).astype(np.int64)

    @property
    def file(self) -> str:
        """What it is published as."""
        return PICKLE if self.model is None else "model.json"

    def save(self, path: Path) -> None:
        """Write the estimator, where it is no LinearModel."""
        path.write_bytes(pickle.dumps(self.estimator))


def named_classes(label: Label, classes: tuple[Scalar, ...] | None) -> tuple[Scalar, ...] | None:
    """The classes that teachers tell apart: as the Domain names them, or as given; None for the label's two sides."""
    if label.classes is not None:
        if classes not in (None, label.classes):
            raise ValueError("classes are named in the domain's label: drop classes here")
        return label.classes
    pair = set(label.two_values("kind teachers"))
    if classes is not None and (len(set(classes)) < len(classes) or len(classes) < 2 or not pair <= set(classes)):
        raise ValueError("classes must be distinct label values and include the domain's two")
    return classes


def train_student(
    box: BlackBox,
    domain: Domain,
    classes: tuple[Scalar, ...],
    statement: PrivacyStatement,
    x: NDArray[np.float64],
    labels: NDArray[np.int64],
    refused: Literal["drop", "coin"],
) -> Student:
    """Learn from answered queries by any learner: post-processing, so the student can be published.

    A refused query is dropped, or labelled by a public coin as in the paper's analysis.

    Reference
        Bassily, Thakkar and Thakurta (2018), algorithm 3.
    """
    kept, y = labels >= 0, labels.copy()
    if refused == "coin":
        unsure = labels == REFUSED
        y[unsure] = np.random.Generator(np.random.Philox(key=[7, 0])).integers(len(classes), size=int(unsure.sum()))
        kept = kept | unsure
    if not kept.any():
        raise DataError("no query was answered: there is nothing for a student to learn")
    count = int(kept.sum())
    if len(np.unique(y[kept])) < 2:
        raise DataError(f"the {count} private answers show one class only: there is nothing for a student to learn")
    estimator = box.make(domain, 0)
    try:
        estimator.fit(x[kept], y[kept])
    except Exception as error:  # whatever a black box raises; queries and answers are public, and so is its text
        raise DataError(
            f"student.learner {box.title} fails on the {count} private answers ({type(error).__name__}: "
            f"{' '.join(str(error).split())}); they are kept: another student.learner learns from them at no cost"
        ) from error
    several = domain.label.classes is not None
    weights = class_weights(estimator, len(classes)) if several else linear_weights(estimator, len(classes))
    details = {"student_of": "private answers of teachers", "queries": count}
    model = None if weights is None else LinearModel(domain, weights, statement, box.title, details)
    return Student(estimator, model, classes, count)


def load_student(folder: str | Path) -> Any:
    """The estimator of a published folder, after its digest in manifest.json was checked.

    A pickle runs code when it is read: only read one from somebody you trust. Linear students are JSON instead.
    """
    path = Path(folder)
    try:
        wanted = file_digest(json.loads((path / "manifest.json").read_text(encoding="utf-8")), PICKLE)
        content = (path / PICKLE).read_bytes()
    except (OSError, ValueError, AttributeError) as error:
        raise UsageError(f"{path}: no published {PICKLE} with a manifest.json here") from error
    if wanted is None or hashlib.sha256(content).hexdigest() != wanted:
        raise UsageError(f"{path}/{PICKLE}: its content is not the one that manifest.json describes")
    return pickle.loads(content)


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
        scores = x @ self.student.model.weights.T
        scores = scores if scores.ndim == 1 else scores.max(axis=1)
        plot = self._margins(scores)
        told: list[tuple[str, ...]] = [
            (name, *(f"{np.quantile(scores[mine], part):.4g}" for part in (0.05, 0.5, 0.95)))
            for name, mine in self.shares().items()
            if mine.any()
        ]
        title, header = "Margins of the queries, through the private answers", ("answer", "5 %", "median", "95 %")
        return [answers, Section(title, text=text, plot=plot, header=header, rows=told)]

    def _margins(self, scores: NDArray[np.float64]) -> str:
        groups = {name: scores[mine] for name, mine in self.shares().items() if name != "not reached" and mine.any()}
        low, high = float(scores.min()), float(scores.max())
        edges = np.linspace(low, high if high > low else low + 1, 31)

        def paint(axes: Any) -> None:
            axes.hist(list(groups.values()), bins=edges.tolist(), stacked=True, label=list(groups))
            axes.axvline(0, color="#2d3748", linewidth=0.8)

        margin = "margin of the public query under the published student"
        return draw(paint, margin, "queries", legend="private answer")
