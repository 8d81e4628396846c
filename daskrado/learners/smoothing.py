"""How far features follow gradients that were released already: a public matrix, from the Domain.

Neighbouring bins of a column learn from each other, and numbers go farther than indicators.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solveh_banded

from daskrado.domain import Domain, NumericColumn

Vector = NDArray[np.float64]
SHARE = 10
"""Bins that are a tenth of their column apart are correlated by 1/e.

Chosen on magic, covertype, diabetes130 and KDDCup99, where 5 is as good and 20 little worse
(pipelines/reproduce/gradient_rule.py --smooth).
"""


def smoother(domain: Domain, *, neighbours: bool = True, growth: float = 1.0) -> Callable[[Vector], Vector]:
    """v -> S v, where S is exp(-SHARE |i - j| / m) between bins i and j of a column of m bins, else the identity.

    S has a diagonal of ones, and a row has one bin in each column: x.Sx = |x|^2, so rows of the unit ball are in the
    unit ball of S, too. Its inverse has three diagonals (an autoregression along the bins), which solves in linear
    time. Features of a kernel have no neighbours.

    Indicators (bins, categories, flags, the intercept) are divided by ``growth``: a number, which may vary by a small
    part of its public bounds only, needs a larger weight than they do, and a category that is never seen would
    gather noise all the way. Features of a kernel are numbers.
    """
    diagonal, beside, pace = np.ones(domain.width), np.zeros(domain.width), np.full(domain.width, 1 / growth)
    if domain.kernel is not None:
        pace[: domain.width - bool(domain.intercept)] = 1.0
    start = 0
    for name, column in domain.columns.items() if domain.kernel is None else ():
        size = len(column.feature_names(name))
        if isinstance(column, NumericColumn) and column.bins is None:
            pace[start : start + size] = 1.0
        elif isinstance(column, NumericColumn) and neighbours:
            near = math.exp(-SHARE / size)
            diagonal[start : start + size] = (1 + near**2) / (1 - near**2)
            diagonal[[start, start + size - 1]] = 1 / (1 - near**2)
            beside[start : start + size - 1] = -near / (1 - near**2)
        start += size + (column.fill is not None)
    if not beside.any():
        return lambda vector: pace * vector
    bands = np.stack([diagonal, beside])
    return lambda vector: pace * np.asarray(solveh_banded(bands, vector, lower=True))
