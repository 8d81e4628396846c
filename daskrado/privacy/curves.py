"""Curves that convert one guarantee into another: zCDP and the Gaussian mechanism to (epsilon, delta), and back.

Every function rounds towards less privacy: an epsilon or a sigma up, a rho down.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from fractions import Fraction

from daskrado.errors import UsageError
from daskrado.privacy.events import MAX_EPSILON, Amount, exact, exact_delta, exact_epsilon

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
    if low < sys.float_info.min:
        raise UsageError(f"epsilon {epsilon!s} is too small: its rho leaves floating point")
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

    >>> round(gaussian_sigma(1, 1e-6), 4)
    4.2247
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


MAX_ROUNDING_GAP = 1e-6
"""The largest :func:`rounding_gap` of a :class:`~daskrado.privacy.events.GaussianEvent`."""
_LOST = 1e-62  # chance that noise is where the gap does not hold; a hundred kinds of draws lose 1e-60
_LEAST_DELTA = 1e-30
LEAST_MU = 1e-3  # far below it the curve cancels in double arithmetic


def rounding_gap(draws: int, scale: float) -> float:
    """g such that discrete Gaussian draws of a scale have exp(-g) to exp(g) times the chance of rounded ones.

    Rounded means round(Z), Z normal with the same scale: integers plus round(Z) are the Gaussian mechanism, rounded
    afterwards, so whatever holds for that mechanism holds for them. Let s be the scale. The chance of an integer k is
    exp(-k^2 / 2s^2) / N for discrete noise, where by Poisson's summation N is s sqrt(2 pi) up to a part of
    3 exp(-2 pi^2 s^2). For rounded noise it is exp(-k^2 / 2s^2) / (s sqrt(2 pi)) times the mean over u in [-1/2, 1/2]
    of cosh(k u / s^2) exp(-u^2 / 2s^2). That mean is at least exp(-1 / 24s^2), by Jensen's inequality, and at most
    sinh(a/2) / (a/2) <= exp(a^2 / 24) with a = k / s^2. But for a chance of 1e-62 every |k| is below
    s sqrt(2 ln(2 draws / 1e-62)), by the tail 2 exp(-k^2 / 2s^2): the discrete noise has it, and from s = 100 on the
    rounded one, for there 2 P(Z > k - 1/2) is less. Likelihoods of adaptive draws multiply, so gaps add up.

    *Reference*: Canonne, Kamath and Steinke (2020), the discrete Gaussian and its tail.
    """
    if draws < 1 or not scale >= 100:  # 3 exp(-2 pi^2 10^4) is far below rounding
        return math.inf
    return draws / (24 * scale**2) * 2 * math.log(2 * draws / _LOST) * (1 + 1e-9)


def gaussian_slack(delta: float, events: int) -> tuple[float, float]:
    """The delta that is left to Gaussian mechanisms where noise is only close to theirs, and what epsilon grows by.

    If noise is within exp(+-g) of a mechanism with (e, d), but for a chance t on each side, it has epsilon e + 2 g
    and delta exp(g) d + t (1 + exp(g + e)). No delta is left where double arithmetic does not reach.
    """
    gap = events * MAX_ROUNDING_GAP
    # t (1 + exp(g + e)) <= events 1e-60 exp(51) <= events 1e-7 delta, for e <= 50
    return (delta * (1 - gap - events * 1e-7) if delta >= _LEAST_DELTA else 0.0), 2 * gap


def gaussian_epsilon(mu: float, delta: float, events: int = 1) -> float:
    """The epsilon of Gaussian events that compose to ``mu``, the root of the sum of their squares.

    Infinite where it is above 50 or where double arithmetic does not reach.

    *Reference*: Dong, Roth and Su (2022), adaptive composition; Balle and Wang (2018), the curve.
    """
    level, more = gaussian_slack(delta, events)
    if level <= 0:
        return math.inf
    mu, high = max(mu, LEAST_MU), 1.0
    while gaussian_delta(high, mu) > level:
        high *= 2
        if high > 2 * MAX_EPSILON:
            return math.inf
    low = 0.0
    while low < (middle := (low + high) / 2) < high and high - low > 1e-13 * high:
        low, high = (low, middle) if gaussian_delta(middle, mu) <= level else (middle, high)
    found = high * (1 + 1e-10) + more
    return found if found <= MAX_EPSILON else math.inf


def gaussian_mu(epsilon: Amount, delta: Amount) -> float:
    """The largest mu of one event with ``gaussian_epsilon(mu, delta) <= epsilon``, rounded down, or 0."""
    target, level = round_down(exact_epsilon(epsilon)), round_down(exact_delta(delta))
    if level < _LEAST_DELTA or target <= 4 * MAX_ROUNDING_GAP:
        return 0.0
    below, left = (target - 2 * MAX_ROUNDING_GAP) * (1 - 1e-10), level * (1 - MAX_ROUNDING_GAP - 1e-7)
    low, high = LEAST_MU, 1.0
    while gaussian_delta(below, high) <= left:
        low, high = high, 2 * high
    while low < (middle := (low + high) / 2) < high and high > low * (1 + 1e-15):
        low, high = (middle, high) if gaussian_delta(below, middle) <= left else (low, middle)
    # Ten digits: composing it rounds up again, and another machine's last bit of the curve changes nothing.
    power = math.floor(math.log10(low)) - 9
    mu = float(f"{math.floor(low * (1 - 1e-11) / 10.0**power)}e{power}")
    return mu if gaussian_epsilon(mu, level) <= target else 0.0


def round_up(value: Fraction | float) -> float:
    """The next float above."""
    return math.nextafter(float(value), math.inf)


def round_down(value: Fraction | float) -> float:
    """The next float below."""
    return math.nextafter(float(value), -math.inf)
