"""Exact tails of the discrete noises that decide whether a vote is released, and thresholds found from them."""

from __future__ import annotations

import math
from collections.abc import Callable


def laplace_above(scale: float, threshold: int) -> float:
    """P(X > w) for discrete Laplace X and an integer w: q^(w+1) / (1 + q), q = exp(-1 / scale), where w >= 0."""
    if threshold < 0:
        return 1 - laplace_above(scale, -threshold - 1)
    return math.exp(-(threshold + 1) / scale) / (1 + math.exp(-1 / scale))


def gaussian_above(scale: float, threshold: int) -> float:
    """P(X > w) for discrete Gaussian X and an integer w, exactly or nearly so.

    Summed where the scale is small; above 5 the Poisson summation formula puts the mass function within
    2 exp(-2 pi^2 scale^2) of the normal density, and the midpoint rule puts the sum within 0.011 / scale^2 of
    the normal tail at w + 1/2: good to plan with, and nothing private rests on it.
    """
    if threshold < 0:
        return 1 - gaussian_above(scale, -threshold - 1)
    if scale < 5:
        weights = [math.exp(-0.5 * (k / scale) ** 2) for k in range(200)]
        total = 2 * math.fsum(weights[1:]) + weights[0]
        return math.fsum(weights[threshold + 1 :]) / total
    return 0.5 * math.erfc((threshold + 0.5) / (scale * math.sqrt(2)))


def least(enough: Callable[[int], bool], most: int = 1 << 50) -> int | None:
    """The least integer in 0..most for which ``enough`` holds, where it holds from some integer on; None if never."""
    high = 1
    while not enough(high):
        if high >= most:
            return None
        high = min(2 * high, most)
    low = -1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
