"""Statistics that boosting on rows needs: column maxima, weighted edges, and the mistakes of many candidates.

Weighted edges and maxima are exact aggregates without noise, for baselines; mistake counts feed a private choice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from daskrado.errors import UsageError
from daskrado.lattice import Lattice
from daskrado.relations import Relation, Sensitivity
from daskrado.statistics.base import Block, IntVector, Rows, Statistic, integers
from daskrado.statistics.subsets import check_population, membership_matrix

WEIGHT_BITS = 16
_GROWTH_BITS = 4  # how far the mean weight may drift from 1 before the next round rescales it
_LARGEST_BITS = 30  # of one weight over the mean weight: no lake that passes the overflow guard reaches it
_CELLS = 1 << 21  # margins held at once


@dataclass(frozen=True)
class _Sampled(Statistic):
    """Rows of a uniform sample of ``sample`` rows, or all rows."""

    sample: int | None = None

    needs_place: ClassVar[bool] = True
    default_bits: ClassVar[int] = 16

    def _taken(self, rows: Rows) -> NDArray[np.bool_]:
        assert rows.place is not None
        if self.sample is None:
            return np.ones(len(rows.y), dtype=bool)
        return membership_matrix(rows.place, np.array([self.sample]), len(rows.y)).ravel()

    def check_rows(self, rows: int) -> None:
        """A sample is a subset of the lake."""
        check_population(rows, "samples of rows")
        if self.sample is not None and not 1 <= self.sample <= rows:
            raise UsageError(f"sample must be between 1 and the lake's {rows} rows, got {self.sample}")

    def sensitivity(self, relation: Relation) -> Sensitivity:
        """None: for baselines without noise."""
        self.unsupported(relation)


@dataclass(frozen=True)
class ColumnMaxima(_Sampled):
    """max_i |x_ik| of every feature k. ``merge`` is the maximum."""

    name: ClassVar[str] = "column_maxima"

    @property
    def blocks(self) -> tuple[Block, ...]:
        """One entry per feature."""
        return (Block("maxima", (self.width,)),)

    def partial(self, rows: Rows) -> IntVector:
        """Largest size in each column."""
        largest: NDArray[np.float64] = np.abs(rows.x[self._taken(rows)]).max(axis=0, initial=0.0)
        return integers(largest)

    def merge(self, a: IntVector, b: IntVector) -> IntVector:
        """The larger of each pair."""
        return np.maximum(a, b)

    def largest_per_row(self, lattice: Lattice) -> int:
        """A maximum cannot overflow."""
        del lattice
        return 0


@dataclass(frozen=True)
class WeightedEdges(_Sampled):
    """``edges`` = sum of w_i y_i x_i, ``weight`` = sum of w_i, ``mistakes`` of theta, ``count`` of rows.

    w_i = exp(-y_i theta.x_i - log_scale) in steps of 2**-16; ``log_scale`` keeps their mean near 1, which bounds the
    sums whatever one weight may be. ``theta`` is in grid steps.
    """

    theta: tuple[float, ...] = ()
    log_scale: float = 0.0

    name: ClassVar[str] = "weighted_edges"

    @property
    def blocks(self) -> tuple[Block, ...]:
        """Edges in grid steps, the others as counts."""
        counts = (Block(name, (), power=0) for name in ("weight", "mistakes", "count"))
        return (Block("edges", (self.width,)), *counts)

    def partial(self, rows: Rows) -> IntVector:
        """Integer products, so that no large weight can hide a small one."""
        taken = self._taken(rows)
        edges = (rows.x[taken] * rows.y[taken, None]).astype(np.int64)
        margins = edges @ np.array(self.theta)
        power = np.minimum(-margins - self.log_scale, _LARGEST_BITS * math.log(2))
        weights = np.rint(np.exp(power) * (1 << WEIGHT_BITS)).astype(np.int64)
        mistakes = int((margins < 0).sum() + ((margins == 0) & (rows.y[taken] < 0)).sum())
        return np.append(weights @ edges, [int(weights.sum()), mistakes, len(edges)]).astype(np.int64)

    def largest_per_row(self, lattice: Lattice) -> int:
        """On average over rows, not for each of them: weights have a mean near 1."""
        return 1 << (lattice.bits + WEIGHT_BITS + _GROWTH_BITS)


@dataclass(frozen=True)
class MistakeCounts(Statistic):
    """How many rows each of ``candidates`` classifiers gets wrong; a margin of 0 counts as a positive prediction.

    ``thetas`` holds the candidates' float64 weights, in grid steps, row by row.

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
