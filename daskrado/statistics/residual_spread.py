"""How far predictions of a number are off, in two sums: what error bars of a descent on Huber's loss need."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from daskrado.losses.residual import ResidualHuber
from daskrado.privacy.relations import Relation, Sensitivity
from daskrado.statistics.base import Block, IntVector, Rows, Statistic
from daskrado.statistics.slopes import SlopeSum
from daskrado.table.label import Target
from daskrado.table.lattice import Lattice
from daskrado.table.products import dots

FINE = 16  # bits of a row: its squared residual is truncated to so many, and noise is drawn on that grid


@dataclass(frozen=True, repr=False)
class ResidualSpread(Statistic):
    """``spread``: the sum of (r / h)^2 over rows with |r| <= h, and the number of rows beyond; r = u.x - y, u public.

    Whether a row is within h, and its truncated square, depend on that row alone and are the same on every processor.

    Sensitivity
        A row adds a number from 0 to 1 to one of the two sums: 1 under add/remove; replaced, or with a feature
        flipped, at most sqrt(2), from one sum to the other, and 2 in L1. A changed label is no flip: not offered.

    >>> at = ResidualSpread.at(np.array([1.0]), 0.5, Lattice(1.0, 4))
    >>> rows = Rows(np.array([[4.0], [16.0]]), np.array([1, -1], dtype=np.int16))  # 0.25 and 1, labels nearly 0
    >>> (at.partial(rows) / 2**FINE).round(2).tolist()
    [0.25, 1.0]
    """

    slopes: SlopeSum

    name: ClassVar[str] = "residual_spread"
    compact: ClassVar[bool] = True
    targets: ClassVar[tuple[Target, ...]] = ("number",)
    hidden: ClassVar[frozenset[str]] = frozenset({"width", "slopes"})

    def __repr__(self) -> str:
        return f"<ResidualSpread of {self.width} weights>"

    @classmethod
    def at(cls, weights: NDArray[np.float64], h: float, lattice: Lattice) -> ResidualSpread:
        """At public weights for unit rows, on the grid on which gradients there are exact."""
        return cls(len(weights), SlopeSum.at(weights, ResidualHuber(h), lattice))

    @property
    def blocks(self) -> tuple[Block, ...]:
        """Squares within, rows beyond."""
        return (Block("spread", (2,), power=0, fine=FINE),)

    def partial(self, rows: Rows) -> IntVector:
        """Truncated squares and counts, in steps of 2^-FINE; a row without a label is in neither."""
        rows, slopes = rows.where(rows.y != 0), self.slopes
        scores = dots(rows.features, np.array(slopes.weights, dtype=np.float64))
        unit = math.ldexp(1.0, -slopes.weight_bits - slopes.row_bits)
        residuals = slopes.loss.arguments(scores * unit, rows.y)
        within = np.abs(residuals) <= slopes.loss.h  # type: ignore[attr-defined]
        squares = np.trunc(np.square(slopes.loss.slope(residuals[within])) * math.ldexp(1.0, FINE))
        return np.array([squares.sum(), np.count_nonzero(~within) << FINE], dtype=np.int64)

    def sensitivity(self, relation: Relation) -> Sensitivity:
        """See the class."""
        if relation is Relation.LABEL_FLIP:
            self.unsupported(relation)
        return Sensitivity(1.0, 1.0) if relation is Relation.ADD_REMOVE else Sensitivity(2.0, math.sqrt(2.0))

    def largest_per_row(self, lattice: Lattice) -> int:
        """A row beyond."""
        del lattice
        return 1 << FINE
