"""The accountant: the least epsilon that any known theorem gives for several events, and what is still affordable.

Events live in ``events``, conversions in ``curves``, the theorems in ``composition``; import them from here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction

from daskrado.errors import UsageError
from daskrado.privacy.composition import (
    THEOREMS,
    Composition,
    Parts,
    advanced,
    advanced_tanh,
    basic,
    concentrated,
    group_event,
    optimal,
)
from daskrado.privacy.curves import (
    MAX_ROUNDING_GAP,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
    gaussian_sigma,
    rounding_gap,
    zcdp_epsilon,
    zcdp_rho,
)
from daskrado.privacy.events import (
    MAX_DELTA,
    MAX_EPSILON,
    MIN_DELTA,
    Amount,
    ApproximateEvent,
    Event,
    GaussianEvent,
    PureEvent,
    SeveralEvents,
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
    "MAX_ROUNDING_GAP",
    "Amount",
    "ApproximateEvent",
    "Composition",
    "Event",
    "GaussianEvent",
    "PureEvent",
    "SeveralEvents",
    "ZcdpEvent",
    "affordable",
    "compose",
    "compose_all",
    "decimal_text",
    "event_from_json",
    "event_to_json",
    "exact",
    "exact_delta",
    "exact_epsilon",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_mu",
    "gaussian_sigma",
    "group_event",
    "largest_pure",
    "rounding_gap",
    "zcdp_epsilon",
    "zcdp_rho",
]

_WORTH = 1.001  # a plain sum is kept, as an exact fraction, unless another theorem saves 0.1 %


def compose(events: Iterable[Event], delta: Amount) -> Composition:
    """The smallest epsilon that any of the theorems in ``composition`` gives for all events together at ``delta``.

    A plain sum is reported where nothing saves more than 0.1 %, because it is an exact fraction. The answers may be
    adaptive; the *parameters* of an event must not be chosen from earlier private answers, which only the plain sum
    of epsilons and zCDP would cover. At delta = 0 only the plain sum of pure events is valid.

    >>> hundred = [PureEvent(0.1)] * 100
    >>> compose(hundred, 0).epsilon
    Fraction(10, 1)
    >>> total = compose(hundred, 1e-6)
    >>> total.method, round(total.epsilon, 2)
    ('optimal', 4.77)
    """
    parts, level = Parts.of(events), _level(delta)
    plain = basic(parts, level)
    best = min(_candidates(parts, level), key=lambda candidate: candidate.epsilon)
    return best if best.epsilon * _WORTH < plain.epsilon else plain


def compose_all(events: Iterable[Event], delta: Amount) -> list[Composition]:
    """What each theorem gives, infinite where it does not apply; the accountant reports the smallest."""
    parts, level = Parts.of(events), _level(delta)
    return [theorem(parts, level) for theorem in THEOREMS]


def affordable(events: Iterable[Event], epsilon: Amount, delta: Amount) -> bool:
    """Whether a theorem bounds all events by ``epsilon`` at ``delta``; costly ones only run when cheap ones fail."""
    target = exact(epsilon, "epsilon")
    return any(candidate.epsilon <= target for candidate in _candidates(Parts.of(events), _level(delta)))


def within(events: Sequence[Event], epsilon: Amount, delta: Amount) -> bool:
    """Whether :func:`compose`, which is what a statement says, stays within ``epsilon``.

    Stricter than :func:`affordable`: where nothing saves 0.1 %, the plain sum is reported and must fit by itself.
    """
    return affordable(events, epsilon, delta) and compose(events, delta).epsilon <= exact(epsilon, "epsilon")


def largest_pure(events: Iterable[Event], epsilon: Amount, delta: Amount) -> Fraction:
    """A lower bound, tight to 1 %, on the epsilon of one more pure event that is still affordable, or 0."""
    known, target, level = list(events), exact(epsilon, "epsilon"), _level(delta)

    def fits(extra: Fraction) -> bool:
        return affordable([*known, PureEvent(extra)], target, level)

    parts = Parts.of(known)
    plain = basic(parts, level).epsilon
    low = Fraction(0)
    if plain < target:
        left = target - Fraction(plain)
        low = left if isinstance(plain, Fraction) else _floor(left)
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


def _candidates(parts: Parts, delta: Fraction) -> Iterator[Composition]:
    """Valid guarantees, cheapest to compute first; the last is never above the ones before it for bounded events."""
    yield basic(parts, delta)
    if delta == 0 or not parts.bounded:
        return
    yield concentrated(parts, delta)
    yield advanced(parts, delta)
    yield advanced_tanh(parts, delta)
    yield optimal(parts, delta)


def _level(delta: Amount) -> Fraction:
    level = exact(delta, "delta")
    if not (level == 0 or MIN_DELTA <= level < 1):
        raise UsageError(f"delta must be 0, or at least 1e-300 and below 1, got {delta!s}")
    return level


def _floor(value: Fraction) -> Fraction:
    """Six significant decimal digits, rounded down, so that the number printed is one that fits."""
    if value <= 0:
        return Fraction(0)
    unit = Fraction(10) ** (math.floor(math.log10(value)) - 5)
    return math.floor(value / unit) * unit
