"""Counts of values that nobody knew beforehand: noise on each that occurs, and which of them may be told.

Which values occur is itself private. A value that one unit alone holds is told with a chance that is paid for as
delta; whatever two units hold is a count with Gaussian noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from daskrado.errors import UsageError
from daskrado.privacy.curves import MAX_ROUNDING_GAP, rounding_gap
from daskrado.privacy.events import GaussianEvent
from daskrado.privacy.noise import check_scale, discrete_gaussian
from daskrado.privacy.relations import Relation

FINE = 16  # bits: counts are shifted, so that noise is drawn on a fine grid
THEOREM = (
    "Gaussian mechanism with discrete noise on a fine grid, on the values that occur; told are those whose noisy "
    "count passes a threshold (Korolova, Kenthapadi, Mishra and Ntoulas 2009; Wilson et al. 2020)"
)


@dataclass(frozen=True)
class UnknownValues:
    """Noisy counts of the values of some columns, of which those above a threshold are told.

    One unit has at most ``bound`` rows; a row has one value in each of ``columns``. Nothing tells how many values
    were not told, and nothing may depend on their order.

    Sensitivity
        In each column a unit moves counts by at most ``bound`` in all: bound sqrt(columns) in L2 where it is added or
        removed, bound sqrt(2 columns) where it is replaced.
        Of the values that one lake alone holds, all rows are the unit's: at most ``bound`` values a column, with
        counts of at most ``bound``. One such value passes the threshold bound + sigma Phi^-1(1 - p) + one step with
        a chance of at most p, as P(X >= m) <= P(sigma Z >= m - 1) for discrete Gaussian X; so with
        p = delta / (columns bound) any of them is told with a chance of at most delta. Where none is, both lakes give
        a function of Gaussian counts of the values that they share. That is the event (mu, delta), for added and for
        replaced units alike.

    Reference
        Korolova, Kenthapadi, Mishra and Ntoulas (2009); Wilson et al. (2020); Canonne, Kamath and Steinke (2020), the
        tail of discrete Gaussian noise.
    """

    columns: int
    bound: int
    relation: Relation
    mu: float
    delta: float

    def __post_init__(self) -> None:
        if self.relation not in (Relation.ADD_REMOVE, Relation.REPLACE_ONE):
            raise UsageError(f"unknown values are protected under add_remove or replace_one, not {self.relation}")
        check_scale(self.scale)
        # Counts of values that neighbours share and that do not move have the same law: no gap.
        if not rounding_gap(2 * self.columns * self.bound, self.scale) <= MAX_ROUNDING_GAP:
            raise UsageError(f"noise of mu {self.mu:g} on counts of values is too coarse to count as normal")

    @property
    def std(self) -> float:
        """Of the noise on a count, in rows."""
        moved = self.columns * (1 if self.relation is Relation.ADD_REMOVE else 2)
        return self.bound * math.sqrt(moved) / self.mu * (1 + 2.0**-40)

    @property
    def scale(self) -> float:
        """The same in steps of the grid."""
        return math.ldexp(self.std, FINE)

    @property
    def threshold(self) -> int:
        """In steps of the grid: told is a noisy count above it."""
        from scipy.special import ndtri_exp

        chance = math.log(self.delta) - math.log(self.columns * self.bound)
        far = -float(ndtri_exp(chance)) * (1 + 1e-12)
        return (self.bound << FINE) + math.ceil(self.scale * far) + 1

    @property
    def event(self) -> GaussianEvent:
        """What one use costs."""
        return GaussianEvent(self.mu, self.delta)

    def above_threshold(self, counts: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Noisy counts in rows, and which of them may be told: the others must be forgotten at once."""
        noisy = discrete_gaussian(counts << FINE, self.scale)
        return np.ldexp(noisy.astype(np.float64), -FINE), noisy > self.threshold
