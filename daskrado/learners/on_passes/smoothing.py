"""How far features follow gradients that were released already: a public matrix, from the Domain.

Neighbouring bins of a column learn from each other, unless one stands out; numbers go farther than indicators.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from daskrado.table.columns import places as column_places
from daskrado.table.domain import Domain, NumericColumn

Vector = NDArray[np.float64]
SHARE = 10
"""Bins that are a tenth of their column apart are correlated by 1/e.

Chosen on magic, covertype, diabetes130 and KDDCup99, where 5 is as good and 20 little worse
(pipelines/reproduce/gradient_rule.py --smooth).
"""
NEIGHBOUR_SHARE = 0.5
OWN_DEVIATIONS = 1.5
"""Bins follow half of what their neighbours share, and by themselves what exceeds OWN_DEVIATIONS of the noise.

Amounts heap at a few values, and such a bin is not like the ones beside it. Chosen on tables of bins and of heaps,
together (pipelines/reproduce/gradient_rule.py --heaps).
"""


def follower(domain: Domain, *, neighbours: bool = True, growth: float = 1.0) -> Callable[[Vector, float], Vector]:
    """(sum of noisy gradients v, deviation s of its noise) -> where weights go: S v, and bins that stand out farther.

    Those are moved by sign(v) (|v| - OWN_DEVIATIONS s)_+ as well, which is near nothing where there is only noise.
    """
    smooth = smoother(domain, neighbours=neighbours, growth=growth)
    bins = np.zeros(domain.width, dtype=bool)
    for places, binned in _numbers(domain):
        bins[places] = binned and neighbours

    def follow(vector: Vector, deviation: float) -> Vector:
        beyond = np.maximum(np.abs(vector) - OWN_DEVIATIONS * deviation, 0)
        return np.asarray(smooth(vector) + np.where(bins, np.copysign(beyond, vector), 0))

    return follow


def smoother(domain: Domain, *, neighbours: bool = True, growth: float = 1.0) -> Callable[[Vector], Vector]:
    """v -> S v; S is NEIGHBOUR_SHARE exp(-SHARE |i - j| / m) between bins i, j of a column of m, else the identity.

    A row has one bin in each column: x.Sx <= |x|^2, so rows of the unit ball are in the unit ball of S, too. Its
    inverse has three diagonals (an autoregression along the bins), which solves in linear time. Features of a kernel
    have no neighbours.

    Indicators (bins, categories, flags, the intercept) are divided by ``growth``: a number, which may vary by a small
    part of its public bounds only, needs a larger weight than they do, and a category that is never seen would
    gather noise all the way. Features of a kernel are numbers.
    """
    diagonal, adjacent, pace = np.ones(domain.width), np.zeros(domain.width), np.full(domain.width, 1 / growth)
    if domain.kernel is not None:
        pace[: domain.width - bool(domain.intercept)] = 1.0
    for places, binned in _numbers(domain):
        if not binned:
            pace[places] = 1.0
        elif neighbours:
            first, last = places.start, places.stop - 1
            near = math.exp(-SHARE / (places.stop - first))
            diagonal[places] = (1 + near**2) / (1 - near**2)
            diagonal[[first, last]] = 1 / (1 - near**2)
            adjacent[first:last] = -near / (1 - near**2)
            pace[places] *= NEIGHBOUR_SHARE
    if not adjacent.any():
        return lambda vector: pace * vector
    from scipy.linalg import solveh_banded

    bands = np.stack([diagonal, adjacent])
    return lambda vector: pace * np.asarray(solveh_banded(bands, vector, lower=True))


def _numbers(domain: Domain) -> Iterator[tuple[slice, bool]]:
    """The places of each numeric column's features, and whether they are bins."""
    for column, where in column_places(domain):
        if isinstance(column, NumericColumn):
            yield where, column.bins is not None
