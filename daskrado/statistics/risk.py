"""The empirical risk at given weights, with its gradient and Hessian: float sums for the solver at the driver.

They are never released: what is published is a noisy minimiser, whose proof is about the minimiser.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from daskrado.losses.margin import Loss
from daskrado.statistics.base import Additive, Rows, Summary

_CACHE_ROWS = 4096  # margins, slopes and products of so many rows stay in the processor's cache


@dataclass(frozen=True, eq=False, repr=False)
class RiskSum(Additive):
    """Sum over rows of loss(y w.x), of slope(y w.x) y x and, if ``second``, of curvature(y w.x) x x'.

    ``every`` takes only one row in so many of each block, by position. Float64, merged in a fixed tree:
    the same lake and partitions give the same bits on any cluster.
    """

    loss: Loss
    weights: NDArray[np.float64]
    second: bool = True
    every: int = 1

    name: ClassVar[str] = "risk"
    on_grid: ClassVar[bool] = False
    secret: ClassVar[bool] = True

    def __repr__(self) -> str:
        return f"<RiskSum at {self.width} private weights>"

    @property
    def size(self) -> int:
        """Rows, positive labels, value, gradient, Hessian."""
        return 3 + self.width + (self.width**2 if self.second else 0)

    def zero(self) -> NDArray[np.float64]:
        """The identity of merge."""
        return np.zeros(self.size)

    def partial(self, rows: Rows) -> NDArray[np.float64]:
        """The sums of one block of rows."""
        if self.every > 1:
            rows = Rows(np.asfortranarray(rows.x[:: self.every]), rows.y[:: self.every])
        value, gradient = 0.0, np.zeros(self.width)
        hessian = np.zeros((self.width, self.width)) if self.second else np.zeros((0, 0))
        for start in range(0, len(rows.y), _CACHE_ROWS):
            x, y = rows.x[start : start + _CACHE_ROWS], rows.y[start : start + _CACHE_ROWS].astype(np.float64)
            values, slopes, curvatures = self.loss.derivatives(y * (x @ self.weights))
            value += float(values.sum())
            gradient += (slopes * y) @ x
            if self.second:
                bent = np.flatnonzero(curvatures)
                if 2 * len(bent) < len(y):  # a hinge is straight for most rows, once it is learned
                    x, curvatures = x[bent], curvatures[bent]
                scaled = x * np.sqrt(curvatures)[:, None]
                hessian += scaled.T @ scaled
        counts = [float(len(rows.y)), float((rows.y > 0).sum()), value]
        return np.concatenate([counts, gradient, hessian.ravel()])


@dataclass(frozen=True)
class Risk:
    """A RiskSum taken apart: private, for the driver's eyes."""

    rows: int
    positives: int
    value: float
    gradient: NDArray[np.float64]
    hessian: NDArray[np.float64] | None

    def __repr__(self) -> str:
        return "<Risk: private>"

    @classmethod
    def of(cls, summary: Summary) -> Risk:
        """From the summary of a RiskSum."""
        vector, width = summary.vector, summary.statistic.width
        hessian = vector[3 + width :].reshape(width, width) if len(vector) > 3 + width else None
        return cls(int(vector[0]), int(vector[1]), float(vector[2]), vector[3 : 3 + width], hessian)


@dataclass(frozen=True, eq=False, repr=False)
class Mistakes(Additive):
    """For each column of ``models``, the number of rows that it labels wrongly; a margin of 0 counts as positive.

    A row without a usable label is nobody's mistake.

    Sensitivity
        One row moves each count by at most 1.
    """

    models: NDArray[np.float64]

    name: ClassVar[str] = "mistakes"
    on_grid: ClassVar[bool] = False
    secret: ClassVar[bool] = True

    def __repr__(self) -> str:
        return f"<Mistakes of {self.models.shape[1]} models>"

    @property
    def size(self) -> int:
        """One count for each model, then the number of rows."""
        return int(self.models.shape[1]) + 1

    def zero(self) -> NDArray[np.int64]:
        """The identity of merge."""
        return np.zeros(self.size, dtype=np.int64)

    def partial(self, rows: Rows) -> NDArray[Any]:
        """Wrong labels of one block."""
        known = rows.where(rows.y != 0)
        wrong = ((known.x @ self.models >= 0) != (known.y > 0)[:, None]).sum(axis=0)
        return np.append(wrong, len(rows.y)).astype(np.int64)
