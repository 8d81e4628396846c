"""What one event takes from a budget that is kept by a filter: exact numbers that add up."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING

from daskrado.errors import UsageError
from daskrado.privacy.curves import zcdp_epsilon
from daskrado.privacy.events import (
    MAX_EPSILON,
    ApproximateEvent,
    Event,
    GaussianEvent,
    PureEvent,
    SeveralEvents,
    ZcdpEvent,
)
from daskrado.privacy.total_loss import zcdp_curve

if TYPE_CHECKING:
    from daskrado.privacy.total_loss import Floats

MU2_STEP = Fraction(1, 10**18)
"""Squares of mu are rounded up to whole steps, so that sums of them, also a database's, are exact."""
ZCDP_LEAK = Fraction(1, 10**12)
"""The delta that an event pays whose zCDP alone is known; the rest of it is Gaussian."""
_GRID = 4001  # points at which two curves are compared
_UP = 1 + 1e-11  # relative; far above the error of the double arithmetic below


@dataclass(frozen=True, slots=True)
class Cost:
    """What an event takes, or several together.

    ``epsilon`` is its pure one (None where it has none), ``mu2`` and ``delta`` those of the pair "the lake is told
    with chance delta, else N(0, 1) against N(mu, 1)" that dominates it, ``draws`` counts events with discrete
    Gaussian noise.

    >>> Cost() + Cost(Fraction(1), Fraction(2)) + Cost(None, Fraction(3), Fraction(1, 10), 1)
    Cost(epsilon=None, mu2=Fraction(5, 1), delta=Fraction(1, 10), draws=1)
    """

    epsilon: Fraction | None = Fraction(0)
    mu2: Fraction = Fraction(0)
    delta: Fraction = Fraction(0)
    draws: int = 0

    def __add__(self, other: Cost) -> Cost:
        both = None if self.epsilon is None or other.epsilon is None else self.epsilon + other.epsilon
        return Cost(both, self.mu2 + other.mu2, self.delta + other.delta, self.draws + other.draws)

    def __sub__(self, other: Cost) -> Cost:
        left = None if self.epsilon is None or other.epsilon is None else self.epsilon - other.epsilon
        return Cost(left, self.mu2 - other.mu2, self.delta - other.delta, self.draws - other.draws)

    def times(self, number: int) -> Cost:
        """The cost of so many."""
        epsilon = None if self.epsilon is None else number * self.epsilon
        return Cost(epsilon, number * self.mu2, number * self.delta, number * self.draws)

    @property
    def mu2_steps(self) -> int:
        """``mu2`` as a whole number of steps of 1e-18."""
        steps = self.mu2 / MU2_STEP
        assert steps.denominator == 1
        return int(steps)


@lru_cache(maxsize=4096)
def cost_of(event: Event) -> Cost:
    """The cost of an event, every number rounded towards less privacy.

    - epsilon: mu(epsilon) = -2 Phi^-1(1 / (1 + e^epsilon)). Randomised response dominates every pure event; its
      trade-off curve consists of two chords, from (0, 1) and (1, 0) to (c, c), c = 1 / (1 + e^epsilon). That of
      N(0, 1) against N(mu, 1) is convex and passes through the same three points, so it lies below.
    - (epsilon, delta): the same, but for a leak of chance delta (Kairouz, Oh and Viswanath 2015).
    - Gaussian: mu itself and its leak, if it has one, and one draw, as discrete noise is only close to normal
      (``curves.rounding_gap``).
    - zCDP: :func:`zcdp_mu` and the delta 1e-12.
    - several: the sum; the filter's proof takes them one by one.
    """
    match event:
        case SeveralEvents():
            return sum((cost_of(part).times(times) for part, times in event.parts), Cost())
        case PureEvent():
            return Cost(event.epsilon, _squared(pure_mu(float(event.epsilon))))
        case ApproximateEvent():
            return Cost(None, _squared(pure_mu(float(event.epsilon))), event.delta)
        case GaussianEvent():
            return Cost(None, _squared(event.mu), event.delta, draws=1)
        case ZcdpEvent():
            return Cost(None, _squared(zcdp_mu(event.rho)), ZCDP_LEAK)
        case _:
            raise UsageError(f"{type(event).__name__} is no privacy event that can be charged")


def _squared(mu: float) -> Fraction:
    return math.ceil(Fraction(mu) ** 2 / MU2_STEP) * MU2_STEP


def pure_mu(epsilon: float) -> float:
    """-2 Phi^-1(1 / (1 + e^epsilon)), rounded up: the least mu whose Gaussian curve lies below pure epsilon's.

    >>> [round(pure_mu(epsilon), 4) for epsilon in (0.1, 0.5, 1, 3)]
    [0.1253, 0.6239, 1.232, 3.3407]
    """
    from scipy.special import erfinv, ndtri_exp

    if epsilon < 1:  # 1/2 - c = tanh(epsilon / 2) / 2: no difference of two numbers that are nearly equal
        return float(2 * math.sqrt(2) * erfinv(math.tanh(epsilon / 2))) * _UP
    return float(-2 * ndtri_exp(-epsilon - math.log1p(math.exp(-epsilon)))) * _UP


def pure_epsilon(mu: float) -> float:
    """The epsilon with ``pure_mu(epsilon) <= mu``, rounded down: log(Phi(mu/2) / Phi(-mu/2))."""
    from scipy.special import log_ndtr

    if mu < 1:  # the logarithm is 2 artanh(2 Phi(mu/2) - 1)
        return 2 * math.atanh(math.erf(mu / math.sqrt(8))) / _UP**2
    return float(log_ndtr(mu / 2) - log_ndtr(-mu / 2)) / _UP**2


@lru_cache(maxsize=1024)
def zcdp_mu(rho: float) -> float:
    """A mu with D(eps) <= d0 + (1 - d0) delta_G(eps; mu) for all eps >= 0: D is the profile of rho-zCDP, d0 the leak.

    D is ``total_loss.zcdp_curve`` and, by Pinsker's inequality, at most sqrt(rho / 2).

    Proof
        D and delta_G fall with eps. On [e_k, e_(k+1)] it is therefore enough that D(e_k) is at most the right side at
        e_(k+1); beyond the last point D is below the leak. D bounds both directions, so the pair dominates.

    Reference
        Bun and Steinke (2016); Canonne, Kamath and Steinke (2020), the conversion.
    """
    import numpy as np

    leak, wide = float(ZCDP_LEAK), math.sqrt(2 * rho)
    last = zcdp_epsilon(rho, leak) * (1 + 1e-3)

    def profile(epsilons: Floats) -> Floats:
        return np.minimum(zcdp_curve(epsilons, rho), math.sqrt(rho / 2) * _UP)

    while profile(np.array([last]))[0] > leak:  # the conversion is rough where rho is tiny
        last *= 1.25
    grid = np.linspace(0, last, _GRID)
    needed = profile(grid)
    asked, at = (needed[:-1] * _UP - leak) / (1 - leak), grid[1:]
    low, high = wide, 1.25 * wide
    while not (asked <= _delta_below(at, high)).all():
        low, high = high, 1.25 * high
        if high > MAX_EPSILON:
            raise UsageError(f"rho {rho:g} is above what any limit allows")
    while high > low * (1 + 1e-4):
        middle = (low + high) / 2
        low, high = (low, middle) if (asked <= _delta_below(at, middle)).all() else (middle, high)
    return high


def _delta_below(epsilons: Floats, mu: float) -> Floats:
    """Lower bounds on the Gaussian curve that count in the error of double arithmetic, 1e-14 of each logarithm."""
    import numpy as np
    from scipy.special import log_ndtr

    first, second = log_ndtr(mu / 2 - epsilons / mu), epsilons + log_ndtr(-mu / 2 - epsilons / mu)
    error = 1e-14 * (np.abs(first) + np.abs(second) + epsilons)
    found: Floats = -np.exp(first - error) * np.expm1(np.minimum(second - first + 2 * error, 0.0))
    return found
