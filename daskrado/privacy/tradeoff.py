"""What a guarantee means for one person: how well any attack can tell whether a change was made to the data.

An attack that raises a false alarm with chance a, on a lake without the person, raises a right one with chance at
most ``best_power(events, a)`` on the lake with it, whatever it knows and computes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from daskrado.privacy.accountant import MAX_ROUNDING_GAP, Event, GaussianEvent, compose
from daskrado.privacy.events import each, own_delta

_DELTAS = (0.0, *np.logspace(-12, -2, 15).tolist(), *np.linspace(0.02, 0.96, 48).tolist())


def best_power(events: Sequence[Event], false_alarms: ArrayLike) -> NDArray[np.float64]:
    """The chance of a right alarm that no attack on all events together exceeds, for chances of a false one.

    Gaussian events have the exact curve Phi(Phi^-1(a) + mu), mu the root of the sum of squares, with what discrete
    noise may differ by. For others every (epsilon, delta) that the accountant gives bounds it by e^epsilon a + delta
    and by 1 - e^-epsilon (1 - delta - a); the least of them is taken.

    *Reference*: Wasserman and Zhou (2010), the test; Kairouz, Oh and Viswanath (2015); Dong, Roth and Su (2022).

    >>> from daskrado.privacy.accountant import PureEvent
    >>> best_power([PureEvent(1)], [0.0, 0.1, 0.5]).round(4).tolist()
    [0.0, 0.2718, 0.8161]
    >>> best_power([GaussianEvent(0.6), GaussianEvent(0.8)], [0.05, 0.5]).round(4).tolist()
    [0.2595, 0.8413]
    """
    alarms = np.asarray(false_alarms, dtype=np.float64)
    if (mu := _gaussian(events)) is not None:
        from scipy.special import ndtr, ndtri

        gap = math.exp(_draws(events) * MAX_ROUNDING_GAP)
        return np.asarray(np.minimum(1.0, gap * ndtr(ndtri(np.minimum(1.0, gap * alarms)) + mu)))
    found = np.ones_like(alarms)
    for epsilon, delta in _curve(tuple(events)):
        found = np.minimum(found, math.exp(epsilon) * alarms + delta)
        found = np.minimum(found, 1 - math.exp(-epsilon) * (1 - delta - alarms))
    return np.clip(found, 0.0, 1.0)


def best_guess(events: Sequence[Event]) -> float:
    """How often the best attack is right where both answers are as likely: 1/2 for a coin, (1 + distance) / 2 here.

    >>> from daskrado.privacy.accountant import PureEvent
    >>> round(best_guess([PureEvent(1)]), 4), round(best_guess([GaussianEvent(1)]), 4)
    (0.7311, 0.6915)
    """
    if (mu := _gaussian(events)) is not None:
        from scipy.special import ndtr

        return min(1.0, math.exp(2 * _draws(events) * MAX_ROUNDING_GAP) * float(ndtr(mu / 2)))
    return min((math.exp(epsilon) + delta) / (math.exp(epsilon) + 1) for epsilon, delta in _curve(tuple(events)))


def _gaussian(events: Sequence[Event]) -> float | None:
    """The mu of events that are all Gaussian."""
    parts = [part for event in events for part in each(event)]
    if not all(isinstance(one, GaussianEvent) for one, _ in parts):
        return None
    return math.sqrt(math.fsum(times * one.mu**2 for one, times in parts if isinstance(one, GaussianEvent)))


def _draws(events: Sequence[Event]) -> int:
    return sum(times for event in events for _, times in each(event))


@cache
def _curve(events: tuple[Event, ...]) -> list[tuple[float, float]]:
    """Points (epsilon, delta) that hold for all events together; where no epsilon is finite there are none."""
    deltas = sorted({*_DELTAS, float(own_delta(events))})
    found = [(float(compose(events, delta).epsilon), delta) for delta in deltas if delta < 1]
    return [(epsilon, delta) for epsilon, delta in found if epsilon <= 700] or [(700.0, 1.0)]
