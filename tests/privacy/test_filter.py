"""Filters: costs against exact curves, mu_L against fifty digits, and analysts who choose as they go."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import pytest

from daskrado.errors import UsageError
from daskrado.privacy.accountant import (
    ApproximateEvent,
    Event,
    GaussianEvent,
    PureEvent,
    SeveralEvents,
    ZcdpEvent,
    compose,
    event_from_json,
    event_to_json,
    gaussian_mu,
    group_event,
)
from daskrado.privacy.costs import MU2_STEP, Cost, cost_of, pure_epsilon, pure_mu, zcdp_mu
from daskrado.privacy.filter import Filter, GaussianFilter, PureSums, filter_for, filter_from_json, following

mpmath.mp.dps = 50
LIMITS = [(10, 1e-5), (1, 1e-6), (0.1, 1e-9), (1e-4, 1e-6), (1e-9, 1e-6), (50, 0.1), (1, 1e-40), (3, 1e-300)]


def phi(x: mpmath.mpf) -> mpmath.mpf:
    return mpmath.ncdf(x)


def exact_gaussian_delta(epsilon: mpmath.mpf, mu: mpmath.mpf) -> mpmath.mpf:
    """Balle and Wang (2018), in fifty digits."""
    with mpmath.workdps(400):  # the two terms cancel
        epsilon, mu = mpmath.mpf(epsilon), mpmath.mpf(mu)
        return phi(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * phi(-mu / 2 - epsilon / mu)


@pytest.mark.parametrize("epsilon", [1e-9, 1e-4, 0.1, 0.5, 0.999, 1, 1.001, 3, 10, 50])
def test_mu_of_a_pure_event_is_the_exact_one_rounded_up(epsilon: float) -> None:
    c = 1 / (1 + mpmath.exp(mpmath.mpf(epsilon)))
    exact = 2 * mpmath.findroot(lambda x: phi(-x) - c, pure_mu(epsilon) / 2)
    assert exact <= pure_mu(epsilon) <= exact * (1 + mpmath.mpf("2e-11"))
    assert epsilon * (1 - 1e-10) <= pure_epsilon(pure_mu(epsilon)) <= epsilon


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1, 3, 10])
def test_the_curve_of_a_pure_event_lies_above_its_gaussian_and_no_smaller_mu_will_do(epsilon: float) -> None:
    """Trade-off of randomised response: type II error max(1 - e^eps a, e^-eps (1 - a)) at type I error a."""
    mu = mpmath.mpf(pure_mu(epsilon))

    def gap(a: mpmath.mpf, mu: mpmath.mpf) -> mpmath.mpf:
        up = mpmath.exp(mpmath.mpf(epsilon))
        response = max(1 - up * a, (1 - a) / up, mpmath.mpf(0))
        return response - phi(-mpmath.sqrt(2) * mpmath.erfinv(2 * a - 1) - mu)

    points = [mpmath.mpf(k) / 400 for k in range(1, 400)]
    points += [mpmath.mpf(10) ** -k for k in range(3, 12)] + [1 - mpmath.mpf(10) ** -k for k in range(3, 12)]
    corner = 1 / (1 + mpmath.exp(mpmath.mpf(epsilon)))
    assert min(gap(a, mu) for a in [*points, corner]) >= 0
    assert gap(corner, mu * mpmath.mpf("0.9999")) < 0


def test_published_values_of_mu() -> None:
    found = {epsilon: round(pure_mu(epsilon), 4) for epsilon in (0.1, 0.5, 1, 3)}
    assert found == {0.1: 0.1253, 0.5: 0.6239, 1: 1.2320, 3: 3.3407}


@pytest.mark.slow
@pytest.mark.parametrize("rho", [1e-10, 1e-4, 0.0165, 0.1, 0.5])
def test_zcdp_is_dominated_by_its_gaussian_with_a_leak(rho: float) -> None:
    """The Renyi bound at the best order, in fifty digits, against the claimed pair of at most 1.5 sqrt(2 rho)."""
    mu, leak = mpmath.mpf(zcdp_mu(rho)), mpmath.mpf("1e-12")
    assert math.sqrt(2 * rho) <= mu <= 1.5 * math.sqrt(2 * rho)
    for part in range(0, 60):
        epsilon = mpmath.mpf(part) / 8 * mpmath.sqrt(2 * rho) + rho

        def log_delta(t: mpmath.mpf, epsilon: mpmath.mpf = epsilon) -> mpmath.mpf:
            a = 1 + mpmath.exp(t)
            return (a - 1) * (a * rho - epsilon) + a * mpmath.log(1 - 1 / a) - mpmath.log(a - 1)

        orders = [mpmath.mpf(k) / 20 - mpmath.log(mpmath.sqrt(2 * rho)) for k in range(-100, 100)]
        needed = min(mpmath.exp(min(log_delta(t) for t in orders)), mpmath.sqrt(mpmath.mpf(rho) / 2))
        assert needed <= leak + (1 - leak) * exact_gaussian_delta(epsilon, mu)


@pytest.mark.parametrize("exponent", range(-16, -1))
def test_small_zcdp_events_have_a_gaussian_too(exponent: int) -> None:
    for rho in (10.0**exponent, 3.7 * 10.0**exponent, 7.1 * 10.0**exponent):
        assert math.sqrt(2 * rho) <= zcdp_mu(rho) <= 1.5 * math.sqrt(2 * rho)


def test_a_zcdp_event_above_every_limit_is_refused() -> None:
    with pytest.raises(UsageError, match="rho 1250 is above"):
        cost_of(ZcdpEvent(1250))


def test_costs_round_up_and_add_up_exactly() -> None:
    one = cost_of(PureEvent(1e-9))
    assert one.mu2_steps * MU2_STEP == one.mu2 >= Fraction(pure_mu(1e-9)) ** 2
    assert cost_of(GaussianEvent(0.25)) == Cost(None, Fraction(1, 16), draws=1)
    assert cost_of(ApproximateEvent(1, 1e-6)) == Cost(None, cost_of(PureEvent(1)).mu2, Fraction(1, 10**6))
    many = sum([cost_of(PureEvent(0.1))] * 1000, Cost())
    assert many.mu2 == 1000 * cost_of(PureEvent(0.1)).mu2
    assert many.epsilon == 100


@pytest.mark.parametrize(("epsilon", "delta"), LIMITS)
def test_mu_of_a_limit_is_the_exact_solution_rounded_down(epsilon: float, delta: float) -> None:
    rule = filter_for(epsilon, delta)
    assert isinstance(rule, GaussianFilter)
    draws = rule.draws
    left = mpmath.mpf(str(epsilon)) - 2 * draws * mpmath.mpf("1e-6")
    level = mpmath.mpf(str(delta)) * mpmath.mpf("0.9") * (1 - draws * mpmath.mpf("1.1e-6"))
    assert exact_gaussian_delta(left, mpmath.mpf(float(rule.mu))) <= level
    loose = 1.001 if epsilon < 1e-8 else 1 + 1e-7  # doubles cancel there; never towards more privacy
    assert exact_gaussian_delta(left, mpmath.mpf(float(rule.mu) * loose)) > level
    assert filter_from_json(rule.to_json()) == rule


def test_the_published_example() -> None:
    rule = filter_for(10, 1e-5)
    run = rule.cost(GaussianEvent(gaussian_mu(1, 1e-6)))
    assert isinstance(rule, GaussianFilter)
    assert (math.floor(rule.mu * 10**4) / 10**4, rule.draws, rule.own_deltas) == (1.9922, 1000, Fraction(1, 10**6))
    assert rule.more_like(Cost(), run) == 70
    assert rule.more_like(run, run) == 69
    assert round(100 * float(rule.share(run)), 1) == 1.4


@pytest.mark.parametrize(("epsilon", "delta"), [(1, 1e-6), (10, 1e-5), (0.1, 1e-9), (0.5, 1e-3)])
@pytest.mark.parametrize("kind", ["gaussian", "pure", "approximate", "several"])
def test_a_limit_holds_one_release_of_its_own_size_and_nothing_beside_it(
    epsilon: float, delta: float, kind: str
) -> None:
    """By exact curves: the release alone is within the limit. So it may be the first, and must be the last."""
    rule = filter_for(epsilon, delta)
    mu = gaussian_mu(epsilon, delta)
    own: Event = {
        "gaussian": GaussianEvent(mu),
        "pure": PureEvent(epsilon),
        "approximate": ApproximateEvent(epsilon, delta),
        "several": SeveralEvents.of([GaussianEvent(mu / 2.01)] * 4),
    }[kind]
    if kind == "gaussian":
        assert exact_gaussian_delta(epsilon, mu) <= mpmath.mpf(str(delta))
        assert not rule.fits(Cost(), rule.cost(own))  # the rule keeps parts for other releases
    taken = rule.charge(own)
    assert rule.fits(Cost(), taken)
    one = rule.cost(PureEvent(1e-9))
    assert not rule.fits(one, taken) or taken == rule.cost(own)
    if taken != rule.cost(own):
        assert rule.share(taken) == 1
        assert set(rule.shares(taken).values()) == {1}
        for more in (one, Cost(None, Fraction(0), Fraction(1, 10**300))):
            assert not rule.fits(taken, more)


@pytest.mark.parametrize("epsilon", [0.1, 1, 10])
def test_a_release_beyond_a_limit_by_a_thousandth_does_not_fit(epsilon: float) -> None:
    rule = filter_for(epsilon, 1e-6)
    for event in (
        GaussianEvent(gaussian_mu(epsilon * 1.001, 1e-6)),
        PureEvent(epsilon * 1.001),
        ApproximateEvent(epsilon, 1.001e-6),
        ApproximateEvent(epsilon * 1.001, 1e-6),
    ):
        assert compose([event], 1e-6).epsilon > epsilon
        assert rule.charge(event) == rule.cost(event)
        assert not rule.fits(Cost(), rule.charge(event))


@pytest.mark.parametrize("steps", [2, 3])
@pytest.mark.parametrize(("epsilon", "delta"), [(1, 1e-6), (0.1, 1e-9), (5, 1e-5)])
def test_limits_that_follow_hold_one_release_too(epsilon: float, delta: float, steps: int) -> None:
    other = following(filter_for(epsilon, delta), steps)
    assert other is not None
    for event in (GaussianEvent(gaussian_mu(epsilon, delta)), PureEvent(epsilon)):
        assert other.fits(Cost(), other.charge(group_event(event, steps)))


def test_counters_refuse_one_by_one() -> None:
    rule = filter_for(10, 1e-5)
    assert isinstance(rule, GaussianFilter)
    full = [Cost(None, rule.mu**2), Cost(None, Fraction(0), rule.own_deltas), Cost(None, Fraction(0), draws=1000)]
    more = [Cost(None, MU2_STEP), Cost(None, Fraction(0), Fraction(1, 10**300)), Cost(None, Fraction(0), draws=1)]
    for i, total in enumerate(full):
        assert rule.fits(Cost(), total)
        assert [rule.fits(total, one) for one in more] == [i != j for j in range(3)]


def test_pure_sums_take_pure_events_only_and_add_fractions() -> None:
    rule = filter_for(1, 0)
    tenth = rule.cost(PureEvent(0.1))
    nine = sum([tenth] * 9, Cost())
    assert isinstance(rule, PureSums)
    assert rule.fits(nine, tenth)
    assert not rule.fits(nine + tenth, rule.cost(PureEvent(1e-9)))
    assert rule.more_like(nine, tenth) == 1
    assert rule.largest_epsilon(nine, 0) == 0.1
    assert rule.largest_epsilon(nine, 1e-6) == 0
    with pytest.raises(UsageError, match="the limit has delta 0, and a release with a delta above 0"):
        rule.cost(GaussianEvent(0.1))
    assert filter_from_json(rule.to_json()) == rule


@pytest.mark.parametrize("delta", [0, 1e-6, 1e-9])
@pytest.mark.parametrize("used", [0.0, 0.5, 0.97])
def test_the_largest_epsilon_fits_and_an_eighth_more_does_not(delta: float, used: float) -> None:
    rule = filter_for(10, 1e-5)
    assert isinstance(rule, GaussianFilter)
    total = Cost(None, Fraction(used) * rule.mu**2 // MU2_STEP * MU2_STEP)

    def cost(epsilon: float) -> Cost:
        return rule.cost(GaussianEvent(gaussian_mu(epsilon, delta)) if delta else PureEvent(epsilon))

    largest = rule.largest_epsilon(total, delta)
    assert rule.fits(total, cost(largest))
    assert not rule.fits(total, cost(largest * 1.12))  # two digits: 1.0 may stand for 1.09


def test_a_limit_too_small_for_gaussian_noise_says_so() -> None:
    rule = filter_for(1, 1e-40)
    assert rule.fits(Cost(), rule.cost(PureEvent(0.01)))
    with pytest.raises(UsageError, match="too small to count Gaussian noise"):
        rule.cost(GaussianEvent(0.1))


@pytest.mark.parametrize(
    "stored",
    [
        None,
        {},
        {"rule": "pure sums"},
        {"rule": "pure sums", "epsilon": "0"},
        {**filter_for(10, 1e-5).to_json(), "mu": "1.993"},  # more than the limit allows
        {**filter_for(10, 1e-5).to_json(), "draws": "100000"},
        {**filter_for(10, 1e-5).to_json(), "draws": "1/2"},
        {**filter_for(10, 1e-5).to_json(), "own_deltas": "1e-5"},
        {**filter_for(10, 1e-5).to_json(), "own_deltas": "9e-6"},
    ],
)
def test_a_stored_rule_that_does_not_keep_its_limit_is_refused(stored: object) -> None:
    with pytest.raises(UsageError):
        filter_from_json(stored)


@pytest.mark.parametrize("own", ["0", "1e-5", "2e-5"])
def test_the_part_for_deltas_lies_between_0_and_delta(own: str) -> None:
    with pytest.raises(UsageError, match="own_deltas must lie between"):
        filter_for(10, 1e-5, own)


def test_every_rule_is_an_immutable_value() -> None:
    for rule in (filter_for(1, 0), filter_for(1, 1e-6)):
        assert isinstance(rule, Filter)
        assert hash(rule) == hash(filter_from_json(rule.to_json()))


def test_several_events_cost_what_they_cost_one_by_one_and_survive_json() -> None:
    parts = [PureEvent(0.1)] * 3 + [
        ApproximateEvent(0.2, 1e-7),
        GaussianEvent(0.5),
        GaussianEvent(0.5),
        ZcdpEvent(0.01),
    ]
    together = SeveralEvents.of(parts)
    assert isinstance(together, SeveralEvents)
    assert cost_of(together) == sum(map(cost_of, parts), Cost())
    assert cost_of(together).draws == 2
    assert event_from_json(event_to_json(together)) == together
    assert compose([together], 1e-6).epsilon == pytest.approx(float(compose(parts, 1e-6).epsilon), rel=1e-9)
    assert SeveralEvents.of([PureEvent(1)]) == PureEvent(1)
    assert SeveralEvents.of([together, together]) == SeveralEvents.of([*parts, *parts])
    assert cost_of(group_event(together, 2)) == sum((cost_of(group_event(one, 2)) for one in parts), Cost())


@pytest.mark.parametrize(
    "stored",
    [
        {"kind": "several", "events": []},
        {"kind": "several", "events": [{"times": "0", "event": {"kind": "pure", "epsilon": "1"}}]},
        {"kind": "several", "events": [{"times": "1/2", "event": {"kind": "pure", "epsilon": "1"}}]},
        {"kind": "several", "events": [{"times": "1"}]},
        {"kind": "several", "events": [{"times": "2", "event": {"kind": "several", "events": []}}]},
        {"kind": "several", "events": [{"times": "1", "event": {"kind": "pure", "epsilon": "1"}}] * 2},
    ],
)
def test_several_events_that_are_none_are_refused(stored: object) -> None:
    with pytest.raises(UsageError):
        event_from_json(stored)
