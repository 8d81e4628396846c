"""An attacker's best odds: against likelihood-ratio tests of real mechanisms, every outcome enumerated."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.special import ndtr, ndtri
from scipy.stats import binom

from daskrado.privacy.accountant import ApproximateEvent, Event, GaussianEvent, PureEvent, SeveralEvents, ZcdpEvent
from daskrado.privacy.tradeoff import best_guess, best_power

ALARMS = np.array([0.0, 1e-4, 0.01, 0.05, 0.2, 0.5, 0.9, 1.0])


def best_test(without: np.ndarray, present: np.ndarray) -> tuple[np.ndarray, float]:
    """The power of the best randomised test (Neyman and Pearson) at ALARMS, and how often it is right at best."""
    order = np.argsort(-np.log(np.maximum(present, 1e-300)) + np.log(np.maximum(without, 1e-300)))
    false = np.concatenate([[0], np.cumsum(without[order])])
    right = np.concatenate([[0], np.cumsum(present[order])])
    return np.interp(ALARMS, false, right), float((1 + (right - false).max()) / 2)


def coins(epsilon: float, times: int) -> tuple[np.ndarray, np.ndarray]:
    """Randomised response, several times: the number of true answers says all."""
    honest = math.exp(epsilon) / (1 + math.exp(epsilon))
    count = np.arange(times + 1)
    return binom.pmf(count, times, 1 - honest), binom.pmf(count, times, honest)


def normal(scale: float, step: int) -> tuple[np.ndarray, np.ndarray]:
    """Discrete Gaussian noise on an integer, and on one that lies ``step`` farther."""
    at = np.arange(-12 * int(scale), 12 * int(scale) + 1)
    one = np.exp(-(at**2) / (2 * scale**2))
    return one / one.sum(), np.exp(-((at - step) ** 2) / (2 * scale**2)) / one.sum()


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_one_pure_event_is_met_by_randomised_response(epsilon: float) -> None:
    power, guess = best_test(*coins(epsilon, 1))
    assert best_power([PureEvent(epsilon)], ALARMS) == pytest.approx(power, abs=1e-12)
    assert best_guess([PureEvent(epsilon)]) == pytest.approx(guess, abs=1e-12)


@pytest.mark.parametrize(("scale", "step"), [(1000.0, 250), (1000.0, 1000), (800.0, 2400)])
def test_a_gaussian_event_is_met_by_discrete_noise(scale: float, step: int) -> None:
    """Never below the best test of the very noise, and at most 1e-4 above."""
    power, guess = best_test(*normal(scale, step))
    event = [GaussianEvent(step / scale)]
    assert (best_power(event, ALARMS) >= power - 1e-9).all()
    assert best_power(event, ALARMS) == pytest.approx(power, abs=1e-4)
    assert 0 <= best_guess(event) - guess < 1e-4


@pytest.mark.parametrize(("epsilon", "times"), [(0.1, 40), (0.5, 10)])
def test_several_events_are_never_said_to_tell_less_than_they_do(epsilon: float, times: int) -> None:
    power, guess = best_test(*coins(epsilon, times))
    together = [SeveralEvents([(PureEvent(str(epsilon)), times)])]
    assert (best_power(together, ALARMS) >= power - 1e-9).all()
    assert best_power(together, ALARMS) == pytest.approx(power, abs=0.03)
    assert guess <= best_guess(together) <= guess + 0.02
    assert best_guess(together) < best_guess([PureEvent(epsilon * times)])  # better than adding epsilons up


@pytest.mark.parametrize(
    "events",
    [
        [ZcdpEvent(0.02)],
        [PureEvent(1), GaussianEvent(0.5)],
        [ApproximateEvent(1, Fraction(1, 1000))],
        [GaussianEvent(3), GaussianEvent(4)],
    ],
)
def test_a_bound_is_a_concave_curve_above_tossing_coins(events: list[Event]) -> None:
    alarms = np.linspace(0, 1, 201)
    power = best_power(events, alarms)
    assert (power >= alarms - 1e-12).all()
    assert (power <= 1).all()
    assert (np.diff(power) >= -1e-12).all()
    assert (np.diff(power, 2) <= 1e-9).all()
    assert best_guess(events) >= float((1 + power - alarms).max() / 2) - 1e-9


def test_a_mixture_with_a_rare_disaster_is_within_its_delta() -> None:
    """The mechanism that tells all with chance delta, and else answers by randomised response."""
    delta = 0.01
    without, present = coins(1.0, 1)
    power, _ = best_test(np.append((1 - delta) * without, [delta, 0]), np.append((1 - delta) * present, [0, delta]))
    assert (best_power([ApproximateEvent(1, Fraction(1, 100))], ALARMS) >= power - 1e-12).all()


def test_zcdp_is_above_the_gaussian_that_has_it() -> None:
    exact = ndtr(ndtri(ALARMS[1:-1]) + 0.2)
    assert (best_power([ZcdpEvent(0.02)], ALARMS[1:-1]) >= exact - 1e-12).all()
