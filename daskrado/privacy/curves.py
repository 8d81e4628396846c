"""Curves that convert one guarantee into another: zCDP and the Gaussian mechanism to (epsilon, delta), and back.

Every function rounds towards less privacy: an epsilon or a sigma up, a rho down.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

from daskrado.errors import UsageError
from daskrado.privacy.events import Amount, exact, exact_delta, exact_epsilon

_GOLDEN = (math.sqrt(5) - 1) / 2
_ROUND_UP = 1e-12  # relative; far above the error of the double arithmetic below


def zcdp_epsilon(rho: float, delta: float) -> float:
    """The epsilon such that rho-zCDP implies (epsilon, delta)-differential privacy.

    epsilon = min over a > 1 of  rho a + log(1 / (a delta)) / (a - 1) + log(1 - 1/a).

    Every order a gives a valid epsilon, so an inexact minimum is only a little too large.

    *Reference*: Canonne, Kamath and Steinke (2020), the optimal conversion; its bound on delta is convex in a,
    hence epsilon is unimodal in a and golden section finds the minimum.
    """
    if not (0 <= rho < math.inf and 0 < delta < 1):
        raise UsageError(f"zCDP needs a finite rho >= 0 and delta between 0 and 1, got rho={rho!r}, delta={delta!r}")
    if rho == 0:
        return 0.0
    log_delta = math.log(delta)

    def bound(t: float) -> float:  # t = log(a - 1)
        excess = math.exp(t)
        # log(1 - 1/a) = -log1p(1 / (a - 1)): the difference of two logarithms would cancel at large orders.
        terms = (rho * (1 + excess), (-log_delta - math.log1p(excess)) / excess, -math.log1p(1 / excess))
        return math.fsum(terms) + _ROUND_UP * math.fsum(map(abs, terms))

    # The optimum of the classical conversion, a - 1 = sqrt(log(1/delta) / rho), starts the bracket.
    centre = 0.5 * math.log(-log_delta / rho)
    return max(0.0, bound(_minimise(bound, min(centre - 5, -5.0), max(centre + 10, 10.0))))


def _minimise(function: Callable[[float], float], low: float, high: float) -> float:
    """The place of the minimum of a unimodal function on [low, high], by golden section."""
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    f_left, f_right = function(left), function(right)
    while high - low > 1e-9:
        if f_left <= f_right:
            high, right, f_right = right, left, f_left
            left = high - _GOLDEN * (high - low)
            f_left = function(left)
        else:
            low, left, f_left = left, right, f_right
            right = low + _GOLDEN * (high - low)
            f_right = function(right)
    return left if f_left <= f_right else right


def zcdp_rho(epsilon: Amount, delta: Amount) -> float:
    """The largest rho with ``zcdp_epsilon(rho, delta) <= epsilon``, rounded down."""
    target, level = exact(epsilon, "epsilon"), round_down(exact(delta, "delta"))
    if not (target > 0 and 0 < level < 1):
        raise UsageError(f"zCDP needs epsilon > 0 and delta between 0 and 1, got {epsilon!s} and {delta!s}")
    # Bun and Steinke's conversion rho + 2 sqrt(rho log(1/delta)) is never below the optimal one.
    log_term, goal = -math.log(level), round_down(target)
    low = (goal / (math.sqrt(log_term + goal) + math.sqrt(log_term))) ** 2 * (1 - 1e-9)
    high = 2 * low
    while zcdp_epsilon(high, level) <= target:
        low, high = high, 2 * high
    while high > low * (1 + 1e-15) and low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if zcdp_epsilon(middle, level) <= target else (low, middle)
    return low * (1 - 1e-13)  # the last bit of the golden section may differ at a neighbouring delta


def gaussian_delta(epsilon: float, mu: float) -> float:
    """The exact delta of the Gaussian mechanism at ``epsilon``, where mu = L2 sensitivity / sigma.

    delta = Phi(mu/2 - epsilon/mu) - exp(epsilon) Phi(-mu/2 - epsilon/mu), evaluated in log space.

    *Reference*: Balle and Wang (2018).
    """
    if not (0 <= epsilon < math.inf and 0 < mu < math.inf):
        raise UsageError(f"the Gaussian curve needs epsilon >= 0 and mu > 0, got {epsilon!r} and {mu!r}")
    from scipy.special import log_ndtr

    first = float(log_ndtr(mu / 2 - epsilon / mu))
    second = epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
    return 0.0 if second >= first else -math.exp(first) * math.expm1(second - first)


def gaussian_sigma(epsilon: Amount, delta: Amount) -> float:
    """The least sigma, for L2 sensitivity 1, with ``gaussian_delta(epsilon, 1 / sigma) <= delta``, rounded up.

    *Reference*: Balle and Wang (2018), the analytic calibration.
    """
    target, level = round_down(exact_epsilon(epsilon)), round_down(exact_delta(delta))
    low = high = 1.0
    while gaussian_delta(target, 1 / high) > level:
        high *= 2
    while gaussian_delta(target, 1 / low) <= level:
        low /= 2
    while low < (middle := (low + high) / 2) < high and high > low * (1 + 1e-14):
        low, high = (low, middle) if gaussian_delta(target, 1 / middle) <= level else (middle, high)
    return high * (1 + 1e-10)


def round_up(value: Fraction | float) -> float:
    """The next float above."""
    return math.nextafter(float(value), math.inf)


def round_down(value: Fraction | float) -> float:
    """The next float below."""
    return math.nextafter(float(value), -math.inf)
