"""Exact tails of the discrete noises that decide whether a vote is released, and thresholds found from them."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


def laplace_above(scale: float, threshold: Integers | int) -> NDArray[np.float64]:
    """P(X > w) for discrete Laplace X and integers w: q^(w+1) / (1 + q), q = exp(-1 / scale), where w >= 0."""
    w = np.asarray(threshold, dtype=np.float64)
    rate = 1.0 / scale
    upper = np.exp(-(np.maximum(w, 0) + 1) * rate) / (1 + math.exp(-rate))
    lower = 1 - np.exp(np.minimum(w, 0) * rate) / (1 + math.exp(-rate))  # P(X > w) = 1 - P(X >= -w), w < 0
    return np.where(w >= 0, upper, lower)


def difference_above(one: float, two: float, threshold: Integers | int) -> NDArray[np.float64]:
    """P(X - Y > w) for independent discrete Laplace X and Y of different scales, and integers w.

    With p, r = exp(-1 / scale), partial fractions of the generating function give
    P(X - Y = k) = C (p / (1 - p^2) p^|k| - r / (1 - r^2) r^|k|),  C = (1-p)^2 (1-r)^2 / ((p - r) (1 - p r)).
    """
    large, small = max(one, two), min(one, two)
    if not large > small * (1 + 1e-6):
        raise ValueError("the closed form needs two different scales")
    p, r = 1 / large, 1 / small  # rates
    gap_p, gap_r = -math.expm1(-p), -math.expm1(-r)
    difference = math.exp(-r) * math.expm1(r - p)
    front = gap_p**2 * gap_r**2 / (difference * -math.expm1(-p - r))

    def beyond(w: NDArray[np.float64]) -> NDArray[np.float64]:  # sum over k > w of the mass, w >= 0
        def part(rate: float, gap: float) -> NDArray[np.float64]:
            square = -math.expm1(-2 * rate)
            return np.asarray(np.exp(-rate * (w + 2)) / (square * gap))

        return front * (part(p, gap_p) - part(r, gap_r))

    w = np.asarray(threshold, dtype=np.float64)
    return np.where(w >= 0, beyond(np.maximum(w, 0)), 1 - beyond(np.maximum(-w - 1, 0)))


def least_threshold(tail: Callable[[int], float], level: float) -> int:
    """The least integer w >= 0 with tail(w) <= level, for a tail that falls."""
    high = 1
    while tail(high) > level:
        high *= 2
    low = -1  # tail(low) counts as too large
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if tail(middle) <= level else (middle, high)
    return high


def least_for(chance: Callable[[Integers], NDArray[np.float64]], wanted: float, most: int) -> int | None:
    """The least integer in 0..most where a rising ``chance`` reaches ``wanted``; None if it never does."""
    if float(chance(np.array([most]))[0]) < wanted:
        return None
    low, high = -1, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if float(chance(np.array([middle]))[0]) >= wanted else (middle, high)
    return high
