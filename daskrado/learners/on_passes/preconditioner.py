"""In which metric weights follow gradients: curvature from noisy second moments, and what is expected of weights.

Neighbouring bins of a column learn from each other, unless one stands out; numbers go farther than indicators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from daskrado.learners.on_passes.schedule import Schedule
from daskrado.statistics.second_moments import SecondMoments, matrix
from daskrado.table.columns import places
from daskrado.table.domain import Domain, NumericColumn

Vector = NDArray[np.float64]
SHARE = 10
"""Bins that are a tenth of their column apart are correlated by 1/e.

Chosen on magic, covertype, diabetes130 and KDDCup99, where 5 is as good and 20 little worse
(pipelines/reproduce/gradient_rule.py --smooth).
"""
NEIGHBOUR_SHARE, OWN_SHARE, OWN_DEVIATIONS = 0.7, 0.01, 1.5
"""Of what is expected of a bin's weight, squared, neighbours share NEIGHBOUR_SHARE. Its own part is OWN_SHARE, and up
to 1 more as far as its summed gradients exceed OWN_DEVIATIONS of their noise.

Amounts heap at a few values, and such a bin is not like the ones beside it. Chosen on tables of bins and of heaps,
together (pipelines/reproduce/gradient_rule.py --heaps).
"""
FLOOR = 0.25
"""Precision that every feature has at least, in lengths of the noise on the moments: where these are too small by
chance, steps would be too long. A quarter is enough, for rows with small slopes have no curvature."""


class Preconditioner:
    """v -> (C + Q)^-1 v, C the largest curvature of the loss times the mean of x x', Q the precision of weights.

    Steps of descent by it are stable wherever C is no smaller than the Hessian, and as long in directions of little
    curvature as noise allows. C is made from released moments, with negative eigenvalues set to 0. Beyond
    MOST_FEATURES there are only squares: k times their diagonal is an upper bound if k features of a row are not 0,
    for (a_1 + ... + a_k)^2 <= k (a_1^2 + ... + a_k^2).
    """

    def __init__(self, domain: Domain, plan: Schedule, moments: Vector, *, neighbours: bool = True) -> None:
        self.bins = [where for where, binned in _numbers(domain) if binned and neighbours]
        self._plan = plan
        self._sizes, active = np.full(domain.width, plan.indicators), _active(domain)
        numbers = max(plan.indicators, plan.numbers * np.sqrt(active))
        for where, binned in _numbers(domain):
            self._sizes[where] = plan.indicators if binned else numbers
        if domain.kernel is not None:
            self._sizes[: domain.width - bool(domain.intercept)] = numbers
        if plan.pairs:
            values, basis = np.linalg.eigh(matrix(SecondMoments(domain.width), moments) / plan.rows)
            self._curvature = plan.curvature * (basis * np.maximum(values, 0.0)) @ basis.T
            wrong = np.sqrt(2 * domain.width) * plan.moments_noise / plan.rows  # the longest eigenvalue of the noise
        else:
            self._curvature = plan.curvature * np.maximum(active * moments / plan.rows, 0.0)
            wrong = active * plan.moments_noise / plan.rows
        self._floor = FLOOR * plan.curvature * wrong

    def standing_out(self, gathered: Vector, deviation: float) -> Vector:
        """How far each bin goes its own way: the part of its summed gradients that exceeds the noise; else 0."""
        found = np.zeros(len(gathered))
        for where in self.bins:
            size = np.maximum(np.abs(gathered[where]), 1e-300)
            found[where] = np.maximum(0.0, 1 - OWN_DEVIATIONS * deviation / size)
        return found

    def at(self, alone: Vector) -> Callable[[Vector], Vector]:
        """Where ``alone`` says how far each bin goes its own way."""
        diagonal = self._plan.drag / self._sizes
        blocks = [(where, self._bins_precision(where, alone[where])) for where in self.bins]
        least = np.maximum(0.0, self._floor - _with(diagonal, blocks))
        if self._plan.pairs:
            whole = self._curvature + np.diag(diagonal + least)
            for where, block in blocks:
                whole[where, where] += block - np.diag(diagonal[where])
            return _solver(whole)
        diagonal = diagonal + least + self._curvature
        inner = [(where, _solver(block + np.diag((least + self._curvature)[where]))) for where, block in blocks]

        def solve(vector: Vector) -> Vector:
            found = np.asarray(vector / diagonal)
            for where, one in inner:
                found[where] = one(vector[where])
            return found

        return solve

    def _bins_precision(self, where: slice, alone: Vector) -> Vector:
        size = where.stop - where.start
        apart = np.abs(np.subtract.outer(np.arange(size), np.arange(size)))
        expected = NEIGHBOUR_SHARE * np.exp(-SHARE * apart / size) + np.diag(OWN_SHARE + alone)
        return np.asarray(self._plan.drag / self._plan.indicators * np.linalg.inv(expected))


def _with(diagonal: Vector, blocks: list[tuple[slice, Vector]]) -> Vector:
    """The diagonal, with that of the blocks in their places."""
    found = diagonal.copy()
    for where, block in blocks:
        found[where] = np.diagonal(block)
    return found


def _solver(whole: Vector) -> Callable[[Vector], Vector]:
    from scipy.linalg import cho_factor, cho_solve

    factor = cho_factor(whole, lower=True)
    return lambda vector: np.asarray(cho_solve(factor, vector))


def _active(domain: Domain) -> int:
    """How many features of a row can be other than 0."""
    if domain.kernel is not None:
        return domain.width
    return bool(domain.intercept) + sum(1 + (column.fill is not None) for column in domain.columns.values())


def _numbers(domain: Domain) -> Iterator[tuple[slice, bool]]:
    """The places of each numeric column's features, and whether they are bins."""
    for column, where in places(domain):
        if isinstance(column, NumericColumn):
            yield where, column.bins is not None
