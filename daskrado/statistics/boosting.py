"""Sums that boosting on rows needs: column maxima, weighted edges, and the mistakes of many candidates.

Weighted edges and maxima are aggregates without noise, for baselines; mistake counts feed a private choice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from daskrado.errors import UsageError
from daskrado.privacy.relations import Relation, Sensitivity
from daskrado.statistics.base import Additive, Block, IntVector, Rows, Statistic
from daskrado.statistics.subsets import check_population, membership_matrix
from daskrado.table.lattice import Lattice

_CELLS = 1 << 21  # margins held at once

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class _Sampled(Additive):
    """Over a uniform sample of exactly ``sample`` rows, or over all rows. For baselines: it has no sensitivity."""

    sample: int | None = None

    needs_place: ClassVar[bool] = True

    def zero(self) -> Vector:
        """The identity of :meth:`merge`."""
        return np.zeros(self.size)

    def check_rows(self, rows: int) -> None:
        """A sample is a subset of the lake."""
        check_population(rows, "samples of rows")
        if self.sample is not None and not 1 <= self.sample <= rows:
            raise UsageError(f"sample must be between 1 and the lake's {rows} rows, got {self.sample}")

    def edges(self, rows: Rows) -> Vector:
        """Label times row, for the rows in the sample."""
        assert rows.place is not None
        edges = rows.x * rows.y[:, None]
        if self.sample is None:
            return edges
        taken: Vector = edges[membership_matrix(rows.place, np.array([self.sample]), len(edges)).ravel()]
        return taken


@dataclass(frozen=True)
class ColumnMaxima(_Sampled):
    """max_i |x_ik| of every feature k, in grid steps. ``merge`` is the maximum."""

    name: ClassVar[str] = "column_maxima"

    @property
    def size(self) -> int:
        """One entry per feature."""
        return self.width

    def partial(self, rows: Rows) -> Vector:
        """Largest size in each column."""
        return np.asarray(np.abs(self.edges(rows)).max(axis=0, initial=0.0))

    def merge(self, a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
        """The larger of each pair."""
        return np.asarray(np.maximum(a, b))


@dataclass(frozen=True)
class WeightedEdges(_Sampled):
    """The sum of w_i y_i x_i, then the sum of w_i, the mistakes of theta, and the number of rows.

    w_i = exp(-y_i theta.x_i - log_scale); ``log_scale`` keeps their mean near 1. ``theta`` is in grid steps.
    """

    theta: tuple[float, ...] = ()
    log_scale: float = 0.0

    name: ClassVar[str] = "weighted_edges"

    @property
    def size(self) -> int:
        """One entry per feature, and three."""
        return self.width + 3

    def partial(self, rows: Rows) -> Vector:
        """One block's sums; a margin of exactly 0 counts as half a mistake."""
        edges = self.edges(rows)
        margins = edges @ np.array(self.theta)
        weights = np.exp(-margins - self.log_scale)
        mistakes = float((margins < 0).sum()) + float((margins == 0).sum()) / 2
        return np.append(weights @ edges, [weights.sum(), mistakes, len(edges)])


@dataclass(frozen=True)
class MistakeCounts(Statistic):
    """How many rows each of ``candidates`` classifiers gets wrong; a margin of 0 counts as a positive prediction.

    A row without a usable label is nobody's mistake. ``thetas`` holds the candidates' float64 weights, in grid steps,
    row by row.

    Sensitivity
        One row changes every count by at most 1 under any relation: 1 in the largest entry, as the exponential
        mechanism needs it; T in L1 and sqrt(T) in L2.
    """

    thetas: bytes

    name: ClassVar[str] = "mistake_counts"

    @property
    def candidates(self) -> int:
        """Number of classifiers."""
        return len(self.thetas) // (8 * self.width)

    @property
    def blocks(self) -> tuple[Block, ...]:
        """One count per candidate."""
        return (Block("mistakes", (self.candidates,), power=0),)

    def partial(self, rows: Rows) -> IntVector:
        """Counts, block by block."""
        matrix = np.frombuffer(self.thetas).reshape(self.candidates, self.width).T
        rows = rows.where(rows.y != 0)
        positive = rows.y > 0
        total = np.zeros(self.candidates, dtype=np.int64)
        chunk = max(1, _CELLS // self.candidates)
        for start in range(0, len(rows.y), chunk):
            piece = slice(start, start + chunk)
            total += ((rows.x[piece] @ matrix >= 0) != positive[piece, None]).sum(axis=0)
        return total

    def sensitivity(self, relation: Relation) -> Sensitivity:
        """Every count moves by at most 1."""
        del relation
        return Sensitivity(float(self.candidates), math.sqrt(self.candidates))

    def largest_per_row(self, lattice: Lattice) -> int:
        """One mistake."""
        del lattice
        return 1
