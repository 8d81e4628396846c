"""How margins vary from category to category, as second moments tell it: what error bars need beside the noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from daskrado.losses.margin import Loss
from daskrado.table.columns import booleans, indicators
from daskrado.table.domain import Domain

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
_NODES = 16  # of the quadrature over margins


@dataclass(frozen=True)
class CellMargins:
    """Second moments with booleans as the category of their true rows, and the mean margins of categories.

    ``means`` of numbers is that of all rows. ``within`` is the variance of all margins, of which ``between`` says what
    each category explains. ``back`` leads back to the features as they are.
    """

    second: Matrix
    back: Matrix
    flags: NDArray[np.bool_]
    average: float
    means: Vector
    within: float
    between: Vector

    @classmethod
    def of(cls, domain: Domain, second: Matrix, theta: Vector, rows: float, one: Vector) -> CellMargins:
        """For rows in the unit ball, weights times the norm bound, and what picks a 1 in a row."""
        bound, width = domain.norm_bound, domain.width
        turn = np.eye(width)
        for place in booleans(domain):
            turn[place] = (turn[place] + one) / 2
        back = np.linalg.inv(turn)
        second, theta, one = turn @ second @ turn.T, back.T @ theta, back.T @ one
        told, diagonal = second @ theta, np.diag(second)
        flags = indicators(domain)
        flags[booleans(domain)] = True
        flags &= diagonal > 0
        average = float((one @ told) / (one @ second @ one) / bound)
        means = np.full(width, average)
        means[flags] = told[flags] / diagonal[flags] / bound
        share = np.where(flags, np.clip(diagonal * bound**2 / rows, 0, 0.99), 0.0)
        between = share / (1 - share) * (means - average) ** 2
        within = max(0.0, float(theta @ told) / rows - average**2)
        return cls(second, back, flags, average, means, within, between)

    def pairs(self) -> tuple[Matrix, Matrix]:
        """Mean and variance of the margins of rows that have two categories, or one of them on the diagonal."""
        mean = self.means[:, None] + self.means[None] - self.average
        left = self.within - self.between[:, None] - self.between[None]
        np.fill_diagonal(mean, self.means)
        np.fill_diagonal(left, self.within - self.between)
        return mean, np.maximum(left, 0.0)

    def weighted(self, function: Callable[[Matrix], Matrix]) -> Matrix:
        """The sum of function(margin) x x', margins of each pair of categories taken as normal."""
        mean, variance = self.pairs()
        nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)
        deviation, total = np.sqrt(variance), np.zeros_like(mean)
        for node, weight in zip(nodes, weights / weights.sum(), strict=True):
            total += weight * function(mean + node * deviation)
        return np.asarray(self.back @ (self.second * total) @ self.back.T)


def curvature_of(loss: Loss) -> Callable[[Matrix], Matrix]:
    """The expected curvature at a margin, for labels that the loss itself takes for likely there."""

    def function(margin: Matrix) -> Matrix:
        yes = likely(loss, margin)
        return np.asarray(yes * loss.curvature(margin) + (1 - yes) * loss.curvature(-margin))

    return function


def slope_of(loss: Loss) -> Callable[[Matrix], Matrix]:
    """The expected square of the slope at a margin."""

    def function(margin: Matrix) -> Matrix:
        yes = likely(loss, margin)
        return np.asarray(yes * loss.slope(margin) ** 2 + (1 - yes) * loss.slope(-margin) ** 2)

    return function


def likely(loss: Loss, margin: Matrix) -> Matrix:
    """The chance of a positive label at which this margin is best: p slope(z) = (1 - p) slope(-z)."""
    here, there = loss.slope(margin), loss.slope(-margin)
    return np.asarray(np.where(here + there == 0, 0.5, there / np.minimum(here + there, -1e-300)))
