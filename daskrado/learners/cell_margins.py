"""How margins vary from category to category, as second moments tell it: what error bars need beside the noise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from daskrado.table.columns import booleans, indicators
from daskrado.table.domain import Domain

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class CellMargins:
    """Second moments with booleans as the category of their true rows, and the mean margins of categories.

    ``means`` of numbers is that of all rows. ``within`` is the variance of all margins, of which ``between`` says
    what each category explains. Weighted by the square of a number, margins have another mean and variance, by
    ``shift`` and ``widening``. ``back`` leads back to the features as they are.
    """

    second: Matrix
    back: Matrix
    flags: NDArray[np.bool_]
    average: float
    means: Vector
    within: float
    between: Vector
    shift: Vector
    widening: Vector

    @classmethod
    def of(cls, domain: Domain, second: Matrix, theta: Vector, rows: float, one: Vector) -> CellMargins:
        """For rows in the unit ball, weights times the norm bound, and what picks a 1 in a row."""
        bound, width = domain.norm_bound, domain.width
        turn = np.eye(width)
        for place in booleans(domain):
            turn[place] = (turn[place] + one) / 2
        back = np.asarray(np.linalg.inv(turn), dtype=np.float64)
        second, theta, one = turn @ second @ turn.T, back.T @ theta, back.T @ one
        told, diagonal = second @ theta, np.diag(second)
        flags = indicators(domain)
        flags[booleans(domain)] = True
        numbers = ~flags & (diagonal > 0) & (one == 0)
        flags &= diagonal > 0
        average = float((one @ told) / (one @ second @ one) / bound)
        means = np.full(width, average)
        means[flags] = told[flags] / diagonal[flags] / bound
        share = np.where(flags, np.clip(diagonal * bound**2 / rows, 0, 0.99), 0.0)
        between = share / (1 - share) * (means - average) ** 2
        within = max(0.0, float(theta @ told) / rows - average**2)
        # Of normal numbers x with mean a, margins weighted by x^2 have the mean shifted by 2 a Cov / E x^2.
        mean = second @ one * bound / rows
        square = np.where(numbers, diagonal / rows, 1.0)
        joint = np.where(numbers, told / rows - average * mean, 0.0)
        shift = 2 * mean * joint / square
        widening = np.maximum(0.0, 2 * joint**2 / square - shift**2)
        return cls(second, back, flags, average, means, within, between, shift, widening)

    def pairs(self) -> tuple[Matrix, Matrix]:
        """Mean and variance of the margins of rows that have two categories, or one of them on the diagonal."""
        mean = self.means[:, None] + self.means[None] - self.average
        left = self.within - self.between[:, None] - self.between[None]
        np.fill_diagonal(mean, self.means + self.shift)
        np.fill_diagonal(left, self.within - self.between + self.widening)
        return mean, np.maximum(left, 0.0)
