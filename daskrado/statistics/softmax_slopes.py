"""The gradient of the softmax loss at public weights, summed exactly on the lattice for the noisy learner."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from daskrado.losses.elementary import exp_minus
from daskrado.privacy.relations import Relation, Sensitivity
from daskrado.statistics.base import Block, IntVector, Rows, Statistic
from daskrado.statistics.slopes import SLOPE_BITS
from daskrado.table.label import Target
from daskrado.table.lattice import Lattice
from daskrado.table.products import dots, sums

_MARGIN_BITS = 53


@dataclass(frozen=True, repr=False)
class SoftmaxSlopes(Statistic):
    """Sum over rows of q(p - e_y) x', p the softmax of u_k.x over classes k, e_y the row's own class.

    Every number is exact, as in :class:`daskrado.statistics.slopes.SlopeSum`: margins are whole numbers below 2^53,
    and q truncates to a grid of ``slope_bits``.

    Sensitivity
        Truncated shares are whole steps whose sum is at most 2^slope_bits, so (p - e_y) has (1 - p_y)^2 and the
        squares of the others, at most 1 each: with |x| <= 1 a row adds at most sqrt(2), and 2 sqrt(2) when it is
        replaced or a feature of it is flipped. p - e_y is truncated and not p alone: e_y - q(p) could be longer.
        L1: |p - e_y|_1 <= 2 times |x|_1 <= sqrt(d). A changed label is no flip: not offered.
    """

    weights: tuple[tuple[int, ...], ...]
    weight_bits: int
    row_bits: int
    slope_bits: int = SLOPE_BITS

    name: ClassVar[str] = "softmax_slopes"
    targets: ClassVar[tuple[Target, ...]] = ("classes",)
    compact: ClassVar[bool] = True

    def __repr__(self) -> str:
        return f"<SoftmaxSlopes of {len(self.weights)} x {self.width} weights>"

    @classmethod
    def at(cls, weights: NDArray[np.float64], lattice: Lattice, slope_bits: int = SLOPE_BITS) -> SoftmaxSlopes:
        """At public weights for unit rows, rounded to the finest grid on which margins are exact."""
        length = float(np.linalg.norm(weights, axis=1).max(initial=0.0))
        bits = min(40, _MARGIN_BITS - 2 - lattice.bits - math.ceil(math.log2(length + 1.0)))
        whole = np.rint(np.ldexp(weights, bits)).astype(np.int64)
        rows = tuple(tuple(map(int, row)) for row in whole.tolist())
        return cls(weights.shape[1], rows, bits, lattice.bits, slope_bits)

    @property
    def blocks(self) -> tuple[Block, ...]:
        """One row for each class; an integer step is worth 2^-(row_bits + slope_bits)."""
        return (Block("gradient", (len(self.weights), self.width), weight=math.ldexp(1.0, -self.slope_bits)),)

    def partial(self, rows: Rows) -> IntVector:
        """Exact: shares are truncated, and what is truncated is summed in int64."""
        unit = math.ldexp(1.0, -self.weight_bits - self.row_bits)
        scores = [dots(rows.features, np.array(one, dtype=np.float64)) * unit for one in self.weights]
        top = np.max(scores, axis=0)
        powers = [exp_minus(top - one) for one in scores]
        total = np.zeros(len(rows.y))
        for one in powers:  # in the order of the classes, so that a row's shares depend on nothing else
            total += one
        found = []
        for k, one in enumerate(powers):
            slopes = one / total - (rows.y == k + 1)
            steps = np.trunc(slopes * math.ldexp(1.0, self.slope_bits)).astype(np.int64)
            found.append(sums(rows.features, steps))
        return np.concatenate(found)

    def sensitivity(self, relation: Relation) -> Sensitivity:
        """See the class."""
        if relation is Relation.LABEL_FLIP:
            self.unsupported(relation)
        times = 1.0 if relation is Relation.ADD_REMOVE else 2.0
        return Sensitivity(times * 2.0 * math.sqrt(self.width), times * math.sqrt(2.0))

    def largest_per_row(self, lattice: Lattice) -> int:
        """One coordinate of one row times the largest slope."""
        return 1 << (lattice.bits + self.slope_bits)
