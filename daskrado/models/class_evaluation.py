"""What a confusion matrix says about a model of several classes: error, recall and precision, with intervals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from daskrado.models.evaluation import Estimate, Floats, share


@dataclass(frozen=True)
class ClassCounts:
    """Counts of units by their own class (rows) and the predicted one, each with noise of deviation ``std``."""

    classes: tuple[str, ...]
    counts: Floats
    std: float

    def _share(self, part: Floats, rest: Floats) -> Estimate:
        noise = part.size * self.std**2, rest.size * self.std**2
        return share(float(part.sum()), float(rest.sum()), noise)

    @property
    def seen(self) -> bool:
        """Whether anybody stands out of the noise."""
        return float(self.counts.sum()) > 2 * self.std * len(self.classes)

    @property
    def error(self) -> Estimate:
        """The share of wrong predictions."""
        right = np.eye(len(self.classes), dtype=bool)
        return self._share(self.counts[~right], self.counts[right])

    @property
    def constant_error(self) -> Estimate:
        """The error of whoever always says the most frequent class."""
        most = int(self.counts.sum(axis=1).argmax())
        return self._share(np.delete(self.counts, most, axis=0), self.counts[most])

    def recall(self, k: int) -> Estimate:
        """Of a class, how many are predicted."""
        return self._share(self.counts[k, [k]], np.delete(self.counts[k], k))

    def precision(self, k: int) -> Estimate:
        """Of those that are predicted to be of a class, how many are."""
        return self._share(self.counts[[k], k], np.delete(self.counts[:, k], k))

    def frequency(self, k: int) -> Estimate:
        """The share of a class."""
        return self._share(self.counts[k], np.delete(self.counts, k, axis=0))

    def headline(self, label: str) -> dict[str, Estimate]:
        """The figures that are told first."""
        del label
        return {"error": self.error, "error of the constant guess": self.constant_error}

    def few(self) -> dict[str, Estimate]:
        """What is told of a group, or of another model."""
        return {"error": self.error}

    def tables(self) -> list[tuple[str, tuple[str, ...], list[tuple[str, ...]]]]:
        """By class, and the matrix itself: title, header, rows."""
        by_class = [
            (one, *(str(figure(k)) for figure in (self.frequency, self.recall, self.precision)))
            for k, one in enumerate(self.classes)
        ]
        matrix = [
            (one, *(f"{max(0.0, v):,.0f}" for v in row)) for one, row in zip(self.classes, self.counts, strict=True)
        ]
        return [
            ("By class", ("class", "share", "found (recall)", "right (precision)"), by_class),
            ("Confusion matrix, noise included", ("own class, then predicted:", *self.classes), matrix),
        ]

    def to_json(self) -> dict[str, Any]:
        """For a file: what was released, and figures by class."""
        figures = {"share": self.frequency, "recall": self.recall, "precision": self.precision}
        return {
            "classes": {
                one: {name: figure(k).to_json() for name, figure in figures.items()}
                for k, one in enumerate(self.classes)
            },
            "confusion": self.counts.tolist(),
            "noise_std": self.std,
        }
