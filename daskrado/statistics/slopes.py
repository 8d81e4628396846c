"""The gradient of the empirical risk at public weights, summed exactly on the lattice for the noisy learner."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from daskrado.errors import UsageError
from daskrado.losses.elementary import exp_tables
from daskrado.losses.margin import Loss
from daskrado.privacy.relations import Relation, Sensitivity
from daskrado.statistics.base import Block, IntVector, Rows, Statistic
from daskrado.table import inner_loops as loops
from daskrado.table.label import Target
from daskrado.table.lattice import INT64_ROOM, MOST_ROWS, Lattice
from daskrado.table.products import dots, sums

SLOPE_BITS = 16  # of the grid of slopes, or fewer where sums need room for more rows
LEAST_SLOPE_BITS = 8
SECRET_ROW_BITS = 11  # of the grid of rows where their number is secret: it leaves products 11 bits more
FINER = 9
"""Slopes have so many bits more than is kept of their products with a row: where one class is rare, nearly all slopes
are below 2^-11, and truncated by themselves they would be 0."""
_MARGIN_BITS = 53


@dataclass(frozen=True, repr=False)
class SlopeSum(Statistic):
    """Sum over rows of q(slope(y u.x) y x), with x in the unit ball, u public and q truncation to a grid.

    Every number is exact: rows are integers of ``row_bits`` bits, ``weights`` are integers in steps of
    2^-``weight_bits`` so small in norm that margins are whole numbers below 2^53, and slopes are integers of
    ``slope_bits`` + FINER bits, whose products with a row lose the last FINER. So any partitioning and any order of
    summation give the same bits, and the sensitivity holds after rounding.

    Sensitivity
        With |slope| <= 1, slopes and products truncated toward zero, one row adds a vector of norm at most 1: 1 under
        add/remove, 2 when it is replaced or a feature of it is flipped. Flipping a label turns slope(z) y x into
        -slope(-z) y x, which moves the sum by |slope(z) + slope(-z)| <= 2, and by exactly a <= 1 at most for a loss
        with the odd coefficient a (f'(z) + f'(-z) = -a; the two point away from each other, and truncation only
        shortens them). L1 by Cauchy-Schwarz. A loss of residuals u.x - y takes q(slope(u.x - y) x) in its place, no
        longer than that.
    """

    loss: Loss
    weights: tuple[int, ...]
    weight_bits: int
    row_bits: int
    slope_bits: int = SLOPE_BITS

    name: ClassVar[str] = "slopes"
    compact: ClassVar[bool] = True

    @property
    def targets(self) -> tuple[Target, ...]:  # type: ignore[override]
        return (self.loss.target,)

    def __repr__(self) -> str:
        return f"<SlopeSum of {self.width} weights>"

    @classmethod
    def at(cls, weights: NDArray[np.float64], loss: Loss, lattice: Lattice, slope_bits: int = SLOPE_BITS) -> SlopeSum:
        """At public weights for unit rows, rounded to the finest grid on which margins are exact."""
        if loss.lipschitz is None:
            raise UsageError(f"loss {loss.name} has no bound on its slope, which the noisy gradient needs")
        length = float(np.linalg.norm(weights))
        bits = min(40, _MARGIN_BITS - 2 - lattice.bits - math.ceil(math.log2(length + 1.0)))
        whole = tuple(int(v) for v in np.rint(np.ldexp(weights, bits)))
        return cls(len(weights), loss, whole, bits, lattice.bits, slope_bits)

    @property
    def blocks(self) -> tuple[Block, ...]:
        """One block; an integer step is worth 2^-(row_bits + slope_bits)."""
        return (Block("gradient", (self.width,), weight=math.ldexp(1.0, -self.slope_bits)),)

    def partial(self, rows: Rows) -> IntVector:
        """Exact: each margin is a whole number below 2^53, and slopes are summed in int64."""
        assert self.loss.lipschitz is not None
        scores = dots(rows.features, np.array(self.weights, dtype=np.float64))
        unit = math.ldexp(1.0, -self.weight_bits - self.row_bits)
        grid = math.ldexp(1.0, self.slope_bits + FINER) / self.loss.lipschitz
        if self.loss.mixed is not None and (loop := loops.compiled("slope_steps")) is not None:
            steps = np.empty(len(scores), dtype=np.int64)
            loop(scores, np.ascontiguousarray(rows.y), unit, *self.loss.mixed, grid, *exp_tables(), steps)
            return sums(rows.features, steps, FINER)
        slopes = self.loss.slope(self.loss.arguments(scores * unit, rows.y))
        return sums(rows.features, np.trunc(slopes * grid).astype(np.int64) * self.loss.signs(rows.y), FINER)

    def sensitivity(self, relation: Relation) -> Sensitivity:
        """See the class."""
        far = 1.0 if relation is Relation.ADD_REMOVE else 2.0
        if relation is Relation.LABEL_FLIP and self.loss.odd is not None and self.loss.lipschitz is not None:
            far = min(far, abs(self.loss.odd) / self.loss.lipschitz)
        return Sensitivity(far * math.sqrt(self.width), far)

    def largest_per_row(self, lattice: Lattice) -> int:
        """One coordinate of one row times the largest slope."""
        return 1 << (lattice.bits + self.slope_bits)


def slope_bits_for(lattice: Lattice, *, rows_public: bool) -> int:
    """The grid of slopes: as fine as leaves sums of 2^40 rows room where the number of rows is secret.

    A sum of gradients then has a grid of 2^-22, or of 2^-(16 + bits) on a lattice of fewer than 6 bits: never coarser
    than 2^-20, for which the noise is calibrated.
    """
    if rows_public:
        return SLOPE_BITS
    found = min(SLOPE_BITS, (INT64_ROOM // MOST_ROWS).bit_length() - 1 - lattice.bits)
    if found < LEAST_SLOPE_BITS:
        raise UsageError(
            f"lattice_bits must be at most {lattice.bits + found - LEAST_SLOPE_BITS} for gradients under a relation "
            f"that keeps the number of rows secret, got {lattice.bits}"
        )
    return found
