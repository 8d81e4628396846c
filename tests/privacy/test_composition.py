"""Every composition theorem against the lecture's numbers, exact enumeration and dp-accounting."""

import itertools
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

from daskrado.errors import UsageError
from daskrado.privacy.accountant import compose, compose_all
from daskrado.privacy.composition import THEOREMS, Parts, group_event, optimal
from daskrado.privacy.events import ApproximateEvent, PureEvent, ZcdpEvent
from daskrado.privacy.total_loss import bounded_losses, optimal_epsilon, zcdp_curve


def table(events, delta) -> dict[str, float]:
    return {found.method: float(found.epsilon) for found in compose_all(events, delta)}


def test_the_lecture_example_a_hundred_tenths():
    found = table([PureEvent("0.1")] * 100, "1e-6")
    assert found["basic"] == 10
    assert found["advanced, loose drift"] == pytest.approx(7.26, abs=0.005)
    assert found["advanced"] == pytest.approx(6.31, abs=0.005)
    assert found["advanced, tanh drift"] == pytest.approx(5.76, abs=0.005)
    assert found["optimal"] == pytest.approx(4.77, abs=0.005)


def test_the_lecture_example_ten_tenths_where_the_plain_sum_wins():
    found = table([PureEvent("0.1")] * 10, "1e-6")
    assert found["advanced, loose drift"] == pytest.approx(1.86, abs=0.005)
    assert compose([PureEvent("0.1")] * 10, "1e-6").method == "basic"


def test_randomised_response_of_the_lecture():
    """Truthful with probability 0.55: epsilon = ln(11/9), where the hockey stick is 0; it is 0.01 a little below."""
    epsilon = math.log(11 / 9)
    assert 0.55 - math.exp(epsilon) * 0.45 == pytest.approx(0, abs=1e-15)
    parts = Parts.of([PureEvent(epsilon)])
    half = float(optimal(parts, Fraction(1, 100)).epsilon)
    assert 0.55 - math.exp(half) * 0.45 == pytest.approx(0.01, rel=1e-8)


def enumerated(parts, epsilon) -> mpmath.mpf:
    """The hockey stick of the product of leaky randomised responses, over all outcomes, in 40 digits."""
    with mpmath.workdps(40):
        total = mpmath.mpf(0)
        for outcome in itertools.product(*((0, 1, 2) if d else (1, 2) for _, d in parts)):
            p = q = mpmath.mpf(1)
            for (e, d), answer in zip(parts, outcome, strict=True):
                e, d = mpmath.mpf(Fraction(e).numerator) / Fraction(e).denominator, mpmath.mpf(str(d))
                truth = 1 / (1 + mpmath.exp(-e))
                p *= (d, (1 - d) * truth, (1 - d) * (1 - truth))[answer]
                q *= (0, (1 - d) * (1 - truth), (1 - d) * truth)[answer]
            total += max(p - mpmath.exp(epsilon) * q, 0)
        return total


@pytest.mark.parametrize(
    "parts",
    [
        [("1/10", 0)] * 8,
        [("1/10", 0), ("1/4", 0), ("7/10", 0), ("13/10", 0)],
        [("3/10", "1e-4")] * 2 + [("3/10", 0), ("1/2", 0), ("9/10", "1e-5")],
        [("1234567/10000000", 0), ("7654321/10000000", 0), ("1/3", 0)],
        [("2", "0.01"), ("1/2", "0.001"), ("1/2", "0.001")],
    ],
)
@pytest.mark.parametrize("fraction", [0.25, 0.5, 0.8])
def test_optimal_is_exact_for_unequal_events_with_deltas(parts, fraction):
    """At the delta of an epsilon by enumeration, the theorem returns that epsilon to nine digits, never below it."""
    epsilon = float(sum(Fraction(e) for e, _ in parts)) * fraction
    delta = float(enumerated(parts, epsilon))
    events = [ApproximateEvent(e, d) if d else PureEvent(e) for e, d in parts]
    found = float(optimal(Parts.of(events), Fraction(delta)).epsilon)
    assert epsilon * (1 - 1e-12) <= found <= epsilon * (1 + 1e-6)
    assert enumerated(parts, found) <= delta


@pytest.mark.slow
@pytest.mark.parametrize(("k", "e0"), [(1000, 0.1), (3000, 0.02), (70_000, 0.003)])
def test_optimal_of_many_equal_events_against_the_binomial_sum_in_high_precision(k, e0):
    found = float(optimal(Parts.of([PureEvent(e0)] * k), Fraction(1, 10**6)).epsilon)
    with mpmath.workdps(30):
        p = 1 / (1 + mpmath.exp(-mpmath.mpf(str(e0))))

        def delta(epsilon):
            middle = int(k * (1 - p))
            total = mpmath.mpf(0)
            term = mpmath.binomial(k, middle) * p ** (k - middle) * (1 - p) ** middle
            for lies in range(middle, max(-1, middle - 25 * int(math.sqrt(k))), -1):
                loss = (k - 2 * lies) * mpmath.mpf(str(e0))
                if loss > epsilon:
                    total += term * (1 - mpmath.exp(epsilon - loss))
                term *= lies * p / ((k - lies + 1) * (1 - p))
            return total

        assert delta(mpmath.mpf(found)) <= mpmath.mpf("1e-6")
        assert delta(mpmath.mpf(found) * (1 - mpmath.mpf("1e-7"))) > mpmath.mpf("1e-6")


@pytest.mark.slow
def test_a_grid_of_mixed_epsilons_agrees_with_dp_accounting():
    """Too many combinations to enumerate: rounded losses are never below, and close to, the library's."""
    groups = [(Fraction("0.1"), 40), (Fraction("0.037"), 60), (Fraction("0.25"), 30), (Fraction("0.0111"), 80)]
    ours = optimal_epsilon(bounded_losses(groups, 1e-6), 1e-6)
    total, cell = None, 1e-4
    for epsilon, times in groups:
        steps, e = round(epsilon / Fraction("1e-4")), float(epsilon)
        law = {steps: 1 / (1 + math.exp(-e)), -steps: 1 / (1 + math.exp(e))}
        one = PrivacyLossDistribution.create_from_rounded_probability(law, 0.0, cell).self_compose(times)
        total = one if total is None else total.compose(one)
    library = total.get_epsilon_for_delta(1e-6)
    assert library * (1 - 1e-6) <= ours <= library * (1 + 1e-3)
    events = [PureEvent(epsilon) for epsilon, times in groups for _ in range(times)]
    exact_grid = bounded_losses([(Fraction("0.1"), 40), (Fraction("0.25"), 30), (Fraction("0.05"), 80)], 1e-6)
    assert exact_grid.chances.sum() == pytest.approx(1, abs=1e-9)
    assert float(compose(events, 1e-6).epsilon) == pytest.approx(ours, rel=1e-12)


@pytest.mark.parametrize("count", [1, 3, 30, 300])
@pytest.mark.parametrize("delta", [1e-9, 1e-6, 1e-3])
def test_the_accountant_reports_the_smallest_and_names_it(count, delta):
    events = [PureEvent("0.2")] * count + [ApproximateEvent("0.1", "1e-12")] * 2
    reported, every = compose(events, delta), compose_all(events, delta)
    assert len(every) == len(THEOREMS)
    assert float(reported.epsilon) <= min(float(c.epsilon) for c in every) * 1.001
    assert reported.method in {c.method for c in every}


def test_the_curve_of_zcdp_bounds_the_gaussian_at_every_level_and_is_close():
    from scipy.special import log_ndtr

    for rho in (0.005, 0.1, 2.0):
        mu, levels = math.sqrt(2 * rho), np.linspace(-5, 5, 201)
        truth = np.exp(log_ndtr(mu / 2 - levels / mu)) - np.exp(levels + log_ndtr(-mu / 2 - levels / mu))
        bound = zcdp_curve(levels, rho)
        assert (bound >= truth - 1e-15).all()
        assert (np.diff(bound) <= 1e-12).all()
    inner = np.exp(log_ndtr(0.5 - 1.0)) - math.e * np.exp(log_ndtr(-0.5 - 1.0))
    assert zcdp_curve(np.array([1.0]), 0.5)[0] < 3 * inner


def test_a_person_with_several_rows():
    """Group privacy is tight for randomised response: three rows that agree have odds exp(3 epsilon)."""
    assert group_event(PureEvent("0.3"), 3) == PureEvent("0.9")
    assert group_event(ZcdpEvent(0.01), 4).rho == pytest.approx(0.16)
    grown = group_event(ApproximateEvent("0.5", "1e-6"), 3)
    assert grown.epsilon == Fraction("1.5")
    assert float(grown.delta) == pytest.approx(1e-6 * (1 + math.exp(0.5) + math.exp(1.0)), rel=1e-9)
    for size in (0, -1, 1.5, 10_001):
        with pytest.raises(UsageError, match="group"):
            group_event(PureEvent(1), size)


@pytest.mark.parametrize("epsilon0", [0.01, 1.0, 5.0, 12.0])
@pytest.mark.parametrize("rho", [1e-4, 0.02, 1.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-5])
def test_a_response_with_a_gaussian_is_never_charged_too_little(epsilon0, rho, delta):
    """The exact hockey stick of one randomised response with one Gaussian, at the epsilon that is reported."""
    with mpmath.workdps(40):
        epsilon = mpmath.mpf(float(compose([PureEvent(epsilon0), ZcdpEvent(rho)], delta).epsilon))
        mu, total = mpmath.sqrt(2 * mpmath.mpf(rho)), mpmath.mpf(0)
        for sign in (1, -1):
            chance = 1 / (1 + mpmath.exp(-sign * mpmath.mpf(epsilon0)))
            x = epsilon - sign * mpmath.mpf(epsilon0)
            total += chance * (mpmath.ncdf(mu / 2 - x / mu) - mpmath.exp(x) * mpmath.ncdf(-mu / 2 - x / mu))
        assert total <= delta
        plain = compose([ZcdpEvent(rho)], delta).epsilon + epsilon0
        assert float(epsilon) <= plain * (1 + 1e-9)
