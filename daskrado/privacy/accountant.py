"""What several privacy events cost together, and the curves that convert one guarantee into another.

Every function rounds towards less privacy: an epsilon or a sigma up, a rho down.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from daskrado.errors import UsageError
from daskrado.privacy.events import (
    MAX_DELTA,
    MAX_EPSILON,
    Amount,
    ApproximateEvent,
    Event,
    PureEvent,
    ZcdpEvent,
    decimal_text,
    event_from_json,
    event_to_json,
    exact,
    exact_delta,
    exact_epsilon,
)

__all__ = [
    "MAX_DELTA",
    "MAX_EPSILON",
    "Amount",
    "ApproximateEvent",
    "Composition",
    "Event",
    "PureEvent",
    "ZcdpEvent",
    "affordable",
    "compose",
    "decimal_text",
    "event_from_json",
    "event_to_json",
    "exact",
    "exact_delta",
    "exact_epsilon",
    "gaussian_delta",
    "gaussian_sigma",
    "largest_pure",
    "zcdp_epsilon",
    "zcdp_rho",
]

_GOLDEN = (math.sqrt(5) - 1) / 2
_ROUND_UP = 1e-12  # relative; far above the error of the double arithmetic below
_PLD_CELLS = 2**16
_PLD_MIN_DELTA = 1e-9  # below it the rounding of the Fourier transform is no longer negligible
_PLD_FFT_ERROR = 1e-12
_PLD_MARGIN = 1.001  # also keeps short sums at their exact rational value


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
    target, level = exact(epsilon, "epsilon"), _down(exact(delta, "delta"))
    if not (target > 0 and 0 < level < 1):
        raise UsageError(f"zCDP needs epsilon > 0 and delta between 0 and 1, got {epsilon!s} and {delta!s}")
    # Bun and Steinke's conversion rho + 2 sqrt(rho log(1/delta)) is never below the optimal one.
    log_term, goal = -math.log(level), _down(target)
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
    target, level = _down(exact_epsilon(epsilon)), _down(exact_delta(delta))
    low = high = 1.0
    while gaussian_delta(target, 1 / high) > level:
        high *= 2
    while gaussian_delta(target, 1 / low) <= level:
        low /= 2
    while low < (middle := (low + high) / 2) < high and high > low * (1 + 1e-14):
        low, high = (low, middle) if gaussian_delta(target, 1 / middle) <= level else (middle, high)
    return high * (1 + 1e-10)


@dataclass(frozen=True, slots=True)
class Composition:
    """A guarantee (epsilon, delta) for several events together, and the method that proves it.

    ``epsilon`` is an exact fraction for basic composition, a float rounded up otherwise, and infinite when the
    events have no finite epsilon at this delta.
    """

    epsilon: Fraction | float
    delta: Fraction
    method: str


def compose(events: Iterable[Event], delta: Amount) -> Composition:
    """The smallest epsilon that any of the known theorems gives for all events together at ``delta``.

    * basic: the epsilons and the deltas add up, in exact rationals; the rhos add up and are converted at the
      delta that is left;
    * all in zCDP: an epsilon counts as rho = epsilon^2 / 2, its delta adds up;
    * privacy loss distribution: an (epsilon, delta) event is dominated by randomised response, whose loss is
      +-epsilon (infinite with probability delta); the losses are convolved, which is optimal for known
      parameters. Epsilons are rounded up to a common grid, so the result is never too small; the rhos are
      converted with a part of the delta.

    The answers may be adaptive; the *parameters* of an event must not be chosen from earlier private answers,
    which the last method's theorem does not cover. At delta = 0 only basic composition of pure events is valid.

    *Reference*: Dwork and Lei (2009), basic; Bun and Steinke (2016), zCDP and its approximate form; Kairouz, Oh
    and Viswanath (2015), optimal composition; Koskela, Jälkö and Honkela (2020), numerical loss distributions;
    Vadhan and Zhang (2023), interleaving the two groups.
    """
    level = _level(delta)
    return min(_candidates(_Parts.of(events), level), key=lambda candidate: candidate.epsilon)


def affordable(events: Iterable[Event], epsilon: Amount, delta: Amount) -> bool:
    """Whether ``compose(events, delta).epsilon <= epsilon``; costly methods only run when cheap ones fail."""
    target = exact(epsilon, "epsilon")
    return any(candidate.epsilon <= target for candidate in _candidates(_Parts.of(events), _level(delta)))


def largest_pure(events: Iterable[Event], epsilon: Amount, delta: Amount) -> Fraction:
    """A lower bound, tight to 1 %, on the epsilon of one more pure event that is still affordable, or 0."""
    known, target, level = list(events), exact(epsilon, "epsilon"), _level(delta)

    def fits(extra: Fraction) -> bool:
        return affordable([*known, PureEvent(extra)], target, level)

    parts = _Parts.of(known)
    basic = _basic(parts, level).epsilon
    low = Fraction(0)
    if basic < target:
        left = target - Fraction(basic)
        low = left if isinstance(basic, Fraction) else _floor(left)
    if level == 0 or parts.delta >= level:
        return low
    high = target
    if fits(high):
        return high
    while high - low > max(low, target / 1000) / 100:
        middle = _floor((low + high) / 2)
        if not low < middle < high:
            break
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


@dataclass(frozen=True, slots=True)
class _Parts:
    """The events sorted for accounting: bounded losses with their multiplicity, and the sum of the rhos."""

    bounded: Counter[tuple[Fraction, Fraction]]
    rho: float

    @classmethod
    def of(cls, events: Iterable[Event]) -> _Parts:
        bounded: Counter[tuple[Fraction, Fraction]] = Counter()
        rhos = []
        for event in events:
            match event:
                case PureEvent():
                    bounded[event.epsilon, Fraction(0)] += 1
                case ApproximateEvent():
                    bounded[event.epsilon, event.delta] += 1
                case ZcdpEvent():
                    rhos.append(event.rho)
        return cls(bounded, math.fsum(rhos))

    @property
    def epsilon(self) -> Fraction:
        return sum((epsilon * times for (epsilon, _), times in self.bounded.items()), Fraction(0))

    @property
    def delta(self) -> Fraction:
        return sum((delta * times for (_, delta), times in self.bounded.items()), Fraction(0))


def _candidates(parts: _Parts, delta: Fraction) -> Iterator[Composition]:
    """Every valid guarantee, cheapest to compute first."""
    yield _basic(parts, delta)
    left = delta - parts.delta
    if left <= 0 or not parts.bounded:
        return
    squares = sum((epsilon**2 / 2 * times for (epsilon, _), times in parts.bounded.items()), Fraction(0))
    yield Composition(zcdp_epsilon(_up(squares + Fraction(parts.rho)), _down(left)), delta, "zCDP")
    if delta >= _PLD_MIN_DELTA:
        yield _loss_distribution(parts, delta)


def _basic(parts: _Parts, delta: Fraction) -> Composition:
    left = delta - parts.delta
    if left < 0 or (parts.rho > 0 and left == 0):
        return Composition(math.inf, delta, "none: the deltas of the events leave nothing")
    if parts.rho == 0:
        return Composition(parts.epsilon, delta, "basic")
    concentrated = zcdp_epsilon(parts.rho, _down(left))
    if not parts.bounded:
        return Composition(concentrated, delta, "zCDP")
    return Composition(_up(parts.epsilon + Fraction(concentrated)), delta, "basic + zCDP")


def _loss_distribution(parts: _Parts, delta: Fraction) -> Composition:
    """Convolve the dominating losses through dp-accounting; split delta with the zCDP part."""
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    epsilons = {epsilon for epsilon, _ in parts.bounded}
    numerators = (epsilon.numerator * _common(epsilons) // epsilon.denominator for epsilon in epsilons)
    cell = max(Fraction(math.gcd(*numerators), _common(epsilons)), parts.epsilon / _PLD_CELLS)
    width = _up(cell)
    total: Any = None
    for (epsilon, mass), times in parts.bounded.items():
        steps = math.ceil(epsilon / cell)
        rounded, finite = steps * width, 1 - float(mass)
        # Explicit indices: from_privacy_parameters would divide in floats and may land one cell too high.
        losses = {steps: finite / (1 + math.exp(-rounded)), -steps: finite / (1 + math.exp(rounded))}
        one = PrivacyLossDistribution.create_from_rounded_probability(losses, float(mass), width)
        many = one.self_compose(times)
        total = many if total is None else total.compose(many)

    def bounded(share: float) -> float:
        return _PLD_MARGIN * float(total.get_epsilon_for_delta(max(share - _PLD_FFT_ERROR, 0.0)))

    level = _down(delta)
    if parts.rho == 0:
        return Composition(bounded(level), delta, "privacy loss distribution")
    shares = (0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99)
    best = min(bounded(level * share) + zcdp_epsilon(parts.rho, level * (1 - share)) for share in shares)
    return Composition(_up(Fraction(best) if best < math.inf else best), delta, "privacy loss distribution + zCDP")


def _common(fractions: Iterable[Fraction]) -> int:
    return math.lcm(*(fraction.denominator for fraction in fractions))


def _level(delta: Amount) -> Fraction:
    level = exact(delta, "delta")
    if not 0 <= level < 1:
        raise UsageError(f"delta must be at least 0 and below 1, got {delta!s}")
    return level


def _up(value: Fraction | float) -> float:
    return math.nextafter(float(value), math.inf)


def _down(value: Fraction) -> float:
    return math.nextafter(float(value), -math.inf)


def _floor(value: Fraction) -> Fraction:
    """Six significant decimal digits, rounded down, so that the number printed is one that fits."""
    if value <= 0:
        return Fraction(0)
    unit = Fraction(10) ** (math.floor(math.log10(value)) - 5)
    return math.floor(value / unit) * unit
