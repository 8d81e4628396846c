"""The distribution of a linear model's margins over a lake, as an exact histogram."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from daskrado.errors import UsageError
from daskrado.privacy.relations import Relation, Sensitivity
from daskrado.statistics.base import Block, IntVector, Rows, Statistic
from daskrado.table.lattice import Lattice
from daskrado.table.products import dots

_WEIGHT_BITS = 26  # with lattice bits <= 26 every partial sum of a margin is a whole number below 2^53
MAX_BINS = 10_000


@dataclass(frozen=True)
class MarginHistogram(Statistic):
    """``margins``: for each of K models, rows by normalised margin y f(x) in [-1, 1], in ``bins`` equal bins.

    f = sum of a_k h_k / sum of |a_k| is a vote of the features h_k = x_k / b_k, b_k the public bound of
    feature k. Models are whole numbers (see :func:`whole_votes`), so a margin is the same bits in any partitioning.
    Bin j holds margins in [-1 + 2j/bins, -1 + 2(j+1)/bins); the last one also holds 1.

    Sensitivity
        A row is in at most one bin of each histogram, in none without a usable label: (K, sqrt(K)) when added or
        removed, (2K, sqrt(2K)) when anything about it is replaced or flipped.

    Reference
        Schapire, Freund, Bartlett and Lee (1998), the margin distribution graph.
    """

    votes: tuple[tuple[int, ...], ...]
    bits: int
    bins: int = 200

    name: ClassVar[str] = "margin_histogram"
    compact: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 2 <= self.bins <= MAX_BINS or self.bins % 2:
            raise UsageError(f"a margin histogram has an even number of bins, 2 to {MAX_BINS:,}, got {self.bins}")
        if any(len(votes) != self.width for votes in self.votes) or not self.votes:
            raise UsageError(f"each model needs {self.width} votes")

    @property
    def blocks(self) -> tuple[Block, ...]:
        """One histogram for each model."""
        return (Block("margins", (len(self.votes), self.bins), power=0),)

    def partial(self, rows: Rows) -> IntVector:
        """Margins as exact whole numbers, then counts."""
        votes = np.array(self.votes, dtype=np.float64)
        rows = rows.where(rows.y != 0)
        # A margin is sum / whole; the left edges of bins 1..bins-1 in those whole units, rounded up.
        whole = 1 << (_WEIGHT_BITS + self.bits)
        edges = [-(-whole * (2 * j - self.bins) // self.bins) for j in range(1, self.bins)]
        out = np.empty((len(votes), self.bins), dtype=np.int64)
        for k in range(len(votes)):
            at = np.searchsorted(
                np.array(edges, dtype=np.float64), rows.y * dots(rows.features, votes[k]), side="right"
            )
            out[k] = np.bincount(at, minlength=self.bins)
        return out.ravel()

    def sensitivity(self, relation: Relation) -> Sensitivity:
        """See the class."""
        models = len(self.votes)
        if relation is Relation.ADD_REMOVE:
            return Sensitivity(float(models), math.sqrt(models))
        return Sensitivity(2.0 * models, math.sqrt(2.0 * models))

    def largest_per_row(self, lattice: Lattice) -> int:
        """One row counts once in each histogram."""
        if lattice.bits != self.bits:
            raise UsageError(f"margins were planned for {self.bits} lattice bits, not {lattice.bits}")
        return 1


def whole_votes(weights: NDArray[np.float64], bounds: Sequence[float], norm_bound: float) -> tuple[int, ...]:
    """A model's weights as whole numbers: theta_k norm_bound / sum_j |theta_j| b_j, in units of 2^-26.

    ``bounds`` are the b_k with |x_k| <= b_k after clipping. Truncation moves a margin by less than width 2^-26.
    """
    if len(bounds) != len(weights):
        raise UsageError(f"{len(bounds)} bounds for {len(weights)} weights")
    scaled = np.asarray(weights, dtype=np.float64) * norm_bound
    total = float(np.abs(np.asarray(weights) * np.asarray(bounds)).sum())
    if not math.isfinite(total):
        raise UsageError("weights must be finite")
    if total == 0:
        return (0,) * len(weights)
    return tuple(int(v) for v in np.trunc(scaled / total * 2.0**_WEIGHT_BITS))
