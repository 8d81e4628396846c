"""The student: any learner on public queries and private answers. Post-processing, so it can be published."""

from __future__ import annotations

import hashlib
import json
import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from daskrado.engines.answers import REFUSED
from daskrado.errors import DataError, UsageError
from daskrado.jobs.manifest import file_digest
from daskrado.learners.black_box import BlackBox, linear_weights
from daskrado.models.linear import LinearModel
from daskrado.privacy.statement import PrivacyStatement
from daskrado.table.domain import Domain, Scalar

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


def train_student(
    box: BlackBox,
    domain: Domain,
    classes: tuple[Scalar, ...],
    statement: PrivacyStatement,
    x: NDArray[np.float64],
    labels: NDArray[np.int64],
    refused: Literal["drop", "coin"],
) -> Student:
    """Learn from answered queries. A refused one is dropped, or labelled by a public coin as in the paper's analysis.

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
    weights = linear_weights(estimator, len(classes))
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
