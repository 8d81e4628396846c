"""Composition and conversion against exact enumeration, published figures and dp-accounting."""

import itertools
import json
import math
import subprocess
import sys
from decimal import Decimal
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daskrado.errors import UsageError
from daskrado.privacy.accountant import (
    ApproximateEvent,
    PureEvent,
    ZcdpEvent,
    affordable,
    compose,
    decimal_text,
    event_from_json,
    event_to_json,
    gaussian_delta,
    gaussian_sigma,
    largest_pure,
    zcdp_epsilon,
    zcdp_rho,
)

epsilons = st.fractions(Fraction(1, 1000), Fraction(3), max_denominator=1000)
deltas = st.sampled_from([1e-3, 1e-5, 1e-6, 1e-8])
rhos = st.floats(1e-6, 10.0)


# Events


@pytest.mark.parametrize(
    "value", [0.1, "0.1", " 0.1 ", "1/10", "1e-1", Decimal("0.1"), Fraction(1, 10), np.float64(0.1)]
)
def test_an_amount_is_its_decimal_text(value):
    assert PureEvent(value).epsilon == Fraction(1, 10)
    assert PureEvent(value) == PureEvent("0.1")
    assert hash(PureEvent(value)) == hash(PureEvent("0.1"))


@pytest.mark.parametrize(
    "value", [0, 0.0, -0.1, math.nan, math.inf, "nan", "inf", "abc", "", "1/0", 50.1, 51, None, True, [1]]
)
def test_bad_epsilon_is_refused_with_the_value_and_what_is_allowed(value):
    with pytest.raises(UsageError) as caught:
        PureEvent(value)
    assert "epsilon" in str(caught.value)
    assert str(value) in str(caught.value)
    with pytest.raises(UsageError):
        ApproximateEvent(value, 1e-6)


@pytest.mark.parametrize("value", [0, -1e-9, 0.11, 1, math.nan, math.inf, "x"])
def test_bad_delta_is_refused(value):
    with pytest.raises(UsageError, match="delta"):
        ApproximateEvent(1, value)


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, "x", "1e400", "1e-400", 1251])
def test_bad_rho_is_refused(value):
    with pytest.raises(UsageError, match="rho"):
        ZcdpEvent(value)


def test_the_cap_itself_is_allowed():
    assert PureEvent(50).epsilon == 50
    assert ApproximateEvent(1, "0.1").delta == Fraction(1, 10)


def test_events_are_frozen():
    with pytest.raises(AttributeError):
        PureEvent(1).epsilon = Fraction(2)  # type: ignore[misc]


@pytest.mark.slow
@given(
    st.one_of(
        st.builds(PureEvent, epsilons),
        st.builds(ApproximateEvent, epsilons, st.fractions(Fraction(1, 10**9), Fraction(1, 10))),
        st.builds(ZcdpEvent, rhos),
    )
)
def test_json_round_trip_is_exact(event):
    assert event_from_json(json.loads(json.dumps(event_to_json(event)))) == event


@given(st.fractions())
def test_decimal_text_round_trip_is_exact(value):
    assert Fraction(decimal_text(value)) == value


def test_decimal_text_is_readable():
    assert decimal_text(Fraction(1, 10)) == "0.1"
    assert decimal_text(Fraction(3)) == "3"
    assert decimal_text(Fraction(1, 3)) == "1/3"


def test_an_unknown_kind_is_named():
    with pytest.raises(UsageError, match=r"'os\.system'.*pure, approximate, zcdp"):
        event_from_json({"kind": "os.system", "epsilon": "1"})


@pytest.mark.parametrize(
    "value",
    [
        None,
        "pure",
        [],
        {},
        {"kind": "pure"},
        {"kind": "pure", "epsilon": "1", "delta": "0"},
        {"kind": "zcdp", "rho": "-1"},
        {"kind": ["pure"], "epsilon": "1"},
    ],
)
def test_malformed_events_are_refused(value):
    with pytest.raises(UsageError):
        event_from_json(value)


# zCDP


def conversion(rho: float, delta: float, order: mpmath.mpf) -> mpmath.mpf:
    """Canonne, Kamath and Steinke: delta = exp((a-1)(a rho - eps)) / (a-1) * (1 - 1/a)^a, solved for eps."""
    a = order
    return a * rho + (mpmath.log((1 - 1 / a) ** a / (a - 1)) - mpmath.log(delta)) / (a - 1)


@pytest.mark.parametrize("delta", [1e-12, 1e-6, 1e-2])
@pytest.mark.parametrize("rho", [1e-10, 1e-4, 0.02, 0.5, 10.0, 500.0])
def test_zcdp_epsilon_is_the_minimum_over_all_orders(rho, delta):
    with mpmath.workdps(40):
        brute = min(float(conversion(rho, delta, 1 + mpmath.mpf(10) ** mpmath.mpf(t / 50))) for t in range(-250, 600))
    ours = zcdp_epsilon(rho, delta)
    assert ours <= max(brute, 0) * (1 + 1e-11) + 1e-300
    assert ours >= max(brute, 0) * (1 - 2e-3)


@pytest.mark.parametrize(("rho", "delta"), [(0.001, 1e-6), (0.05, 1e-5), (0.5, 1e-6), (3.0, 1e-9)])
def test_zcdp_epsilon_agrees_with_dp_accounting(rho, delta):
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    orders = 1 + np.exp(np.linspace(math.log(0.01), math.log(5000), 4000))
    accountant = RdpAccountant(orders.tolist())
    accountant.compose(dp_accounting.ZCDpEvent(rho))
    theirs = accountant.get_epsilon(delta)
    assert zcdp_epsilon(rho, delta) == pytest.approx(theirs, rel=1e-4)
    assert zcdp_epsilon(rho, delta) <= theirs * (1 + 1e-9)


@given(rhos, deltas)
def test_zcdp_epsilon_covers_the_gaussian_mechanism(rho, delta):
    """Gaussian noise with mu = sqrt(2 rho) is rho-zCDP, so its exact delta is at most the promised one."""
    assert gaussian_delta(zcdp_epsilon(rho, delta), math.sqrt(2 * rho)) <= delta


@pytest.mark.parametrize("scale", [0.8, 2.0, 6.0])
def test_zcdp_epsilon_covers_the_discrete_gaussian(scale):
    """The exact hockey-stick divergence of the discrete pmf, every shift up to the sensitivity."""
    delta, sensitivity = 1e-5, 2
    epsilon = zcdp_epsilon(sensitivity**2 / (2 * scale**2), delta)
    with mpmath.workdps(40):
        reach = range(-int(15 * scale) - 20, int(15 * scale) + 21)
        weight = {k: mpmath.exp(-(mpmath.mpf(k) ** 2) / (2 * mpmath.mpf(scale) ** 2)) for k in reach}
        total = sum(weight.values())
        for shift in range(1, sensitivity + 1):
            gaps = (weight[k] - mpmath.exp(epsilon) * weight.get(k - shift, 0) for k in reach if k - shift in weight)
            assert sum(max(gap, 0) for gap in gaps) / total <= delta


@given(st.floats(1e-3, 20), deltas)
@settings(max_examples=40)
def test_zcdp_rho_never_exceeds_the_target_and_is_tight(epsilon, delta):
    rho = zcdp_rho(epsilon, delta)
    assert zcdp_epsilon(rho, delta) <= epsilon
    assert zcdp_epsilon(rho * (1 + 1e-9), delta) > epsilon


def test_zcdp_rho_ends_however_small_epsilon_is():
    assert zcdp_rho(1e-100, 1e-6) > 0
    with pytest.raises(UsageError, match="epsilon 1e-300 is too small"):
        zcdp_rho(1e-300, 1e-6)


@given(rhos, rhos, deltas)
def test_zcdp_epsilon_is_monotone(first, second, delta):
    low, high = sorted((first, second))
    assert zcdp_epsilon(low, delta) <= zcdp_epsilon(high, delta) * (1 + 1e-11)
    assert zcdp_epsilon(high, delta) <= zcdp_epsilon(high, delta / 2) * (1 + 1e-11)


@pytest.mark.parametrize(
    ("rho", "delta"), [(-1, 1e-6), (math.nan, 1e-6), (math.inf, 1e-6), (1, 0), (1, 1), (1, math.nan)]
)
def test_zcdp_epsilon_refuses_nonsense(rho, delta):
    with pytest.raises(UsageError):
        zcdp_epsilon(rho, delta)


# The Gaussian curve


@pytest.mark.parametrize(("epsilon", "sigma"), [(0.1, 36.30), (0.5, 8.058), (1, 4.2247), (3, 1.544)])
def test_gaussian_sigma_has_the_known_values(epsilon, sigma):
    """Figures to four digits, computed independently for the privacy brief at delta = 1e-6."""
    assert gaussian_sigma(epsilon, 1e-6) == pytest.approx(sigma, rel=2e-4)


@pytest.mark.parametrize("mu", [1e-3, 0.05, 0.3, 1.0, 5.0, 30.0])
@pytest.mark.parametrize("epsilon", [0.0, 1e-3, 0.5, 3.0, 20.0])
def test_gaussian_delta_agrees_with_sixty_digits(epsilon, mu):
    with mpmath.workdps(60):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        cdf = lambda x: mpmath.erfc(-x / mpmath.sqrt(2)) / 2  # noqa: E731
        expected = cdf(m / 2 - e / m) - mpmath.exp(e) * cdf(-m / 2 - e / m)
    if expected < 1e-300:
        assert gaussian_delta(epsilon, mu) < 1e-290
    else:
        assert gaussian_delta(epsilon, mu) == pytest.approx(float(expected), rel=1e-8)


@given(st.floats(0.01, 20), deltas)
@settings(max_examples=50)
def test_gaussian_sigma_is_enough_and_tight(epsilon, delta):
    sigma = gaussian_sigma(epsilon, delta)
    assert gaussian_delta(epsilon, 1 / sigma) <= delta
    assert gaussian_delta(epsilon, 1 / (sigma * 0.9999)) > delta


def test_the_classical_calibration_is_a_quarter_too_large_at_one_and_fails_at_twenty():
    classical = lambda epsilon: math.sqrt(2 * math.log(1.25e6)) / epsilon  # noqa: E731
    assert classical(1) / gaussian_sigma(1, 1e-6) == pytest.approx(1.25, abs=0.01)
    assert gaussian_delta(20, 1 / classical(20)) / 1e-6 == pytest.approx(161, abs=1)


def test_zcdp_costs_seven_percent_of_sigma():
    ratio = 1 / math.sqrt(2 * zcdp_rho(1, 1e-6)) / gaussian_sigma(1, 1e-6)
    assert ratio == pytest.approx(1.07, abs=0.005)


# Composition


def kov_delta(k: int, epsilon0: float, epsilon: float) -> float:
    """Kairouz, Oh and Viswanath's optimal composition of k pure events, their closed formula."""
    e0, e = mpmath.mpf(epsilon0), mpmath.mpf(epsilon)
    terms = (mpmath.binomial(k, j) * max(mpmath.exp((k - j) * e0) - mpmath.exp(e + j * e0), 0) for j in range(k + 1))
    return float(sum(terms) / (1 + mpmath.exp(e0)) ** k)


def enumerated_delta(parts: list[tuple[float, float]], epsilon: float) -> float:
    """The hockey stick of the product of randomised responses, by walking all outcomes.

    A part (e, d) answers 'leak' with probability d, else tells the truth with odds e^e.
    """
    total = mpmath.mpf(0)
    for outcome in itertools.product(*((0, 1, 2) if d else (1, 2) for _, d in parts)):
        p = q = mpmath.mpf(1)
        for (e, d), answer in zip(parts, outcome, strict=True):
            truth = 1 / (1 + mpmath.exp(-mpmath.mpf(e)))
            p *= (d, (1 - d) * truth, (1 - d) * (1 - truth))[answer]
            q *= (0, (1 - d) * (1 - truth), (1 - d) * truth)[answer]
        total += max(p - mpmath.exp(epsilon) * q, 0)
    return float(total)


@pytest.mark.parametrize("k", [1, 2, 5, 8])
@pytest.mark.parametrize("fraction", [0.3, 0.6, 0.9])
def test_the_closed_formula_equals_enumeration(k, fraction):
    assert enumerated_delta([(0.4, 0.0)] * k, 0.4 * k * fraction) == pytest.approx(
        kov_delta(k, 0.4, 0.4 * k * fraction), rel=1e-12
    )


@pytest.mark.parametrize("k", [2, 3, 5, 8])
@pytest.mark.parametrize("epsilon0", ["0.05", "0.4", "1.5"])
@pytest.mark.parametrize("fraction", [0.3, 0.6, 0.9])
def test_compose_is_optimal_for_equal_pure_events(k, epsilon0, fraction):
    epsilon = float(epsilon0) * k * fraction
    delta = kov_delta(k, float(epsilon0), epsilon)
    found = float(compose([PureEvent(epsilon0)] * k, delta).epsilon)
    assert epsilon * (1 - 1e-9) <= found <= epsilon * 1.0011


@pytest.mark.parametrize(
    "parts",
    [
        [(0.1, 0.0), (0.25, 0.0), (0.7, 0.0), (1.3, 0.0)],
        [(0.3, 1e-4), (0.3, 1e-4), (0.3, 0.0), (0.5, 0.0), (0.9, 1e-5)],
        [(0.1234567, 0.0), (0.7654321, 0.0), (1 / 3, 0.0)],  # no useful common grid
    ],
)
@pytest.mark.parametrize("fraction", [0.5, 0.8])
def test_compose_of_unequal_events_against_enumeration(parts, fraction):
    epsilon = sum(e for e, _ in parts) * fraction
    delta = enumerated_delta(parts, epsilon)
    events = [ApproximateEvent(e, d) if d else PureEvent(e) for e, d in parts]
    found = float(compose(events, delta).epsilon)
    assert epsilon * (1 - 1e-9) <= found <= epsilon * 1.003


def test_published_figures_for_a_hundred_tenths():
    """k = 100, epsilon 0.1, delta 1e-6: optimal 4.77; the lecture's bound 7.26 and Dwork-Rothblum-Vadhan's 6.31."""
    result = compose([PureEvent("0.1")] * 100, "1e-6")
    assert float(result.epsilon) == pytest.approx(4.77, abs=0.005)
    assert result.method == "optimal"


@pytest.mark.parametrize("delta", [0, "1e-6", 1e-9])
def test_ten_tenths_are_exactly_one(delta):
    result = compose([PureEvent(0.1)] * 10, delta)
    assert result.epsilon == 1
    assert isinstance(result.epsilon, Fraction)
    assert result.method == "basic"
    assert affordable([PureEvent(0.1)] * 10, 1, delta)
    assert not affordable([PureEvent(0.1)] * 11, 1, delta)


def test_nothing_costs_nothing():
    for delta in (0, 1e-6):
        assert compose([], delta).epsilon == 0


def test_rhos_add_up():
    assert compose([ZcdpEvent(0.01)] * 7, 1e-6).epsilon == pytest.approx(zcdp_epsilon(0.07, 1e-6), rel=1e-9)
    assert compose([ZcdpEvent(0.01)], 1e-6).method == "zCDP"


def test_many_small_pure_events_are_cheaper_together_with_zcdp():
    """100 x 0.01 pure is at most rho = 0.005; adding rho = 0.02 cannot cost more than rho = 0.025."""
    result = compose([PureEvent("0.01")] * 100 + [ZcdpEvent(0.02)], 1e-6)
    assert result.epsilon <= zcdp_epsilon(0.025, 1e-6) * (1 + 1e-9)
    assert result.epsilon >= zcdp_epsilon(0.02, 1e-6)


def test_mixed_composition_covers_a_gaussian_with_randomised_responses():
    """The exact loss of Gaussian x 3 randomised responses, by integrating over the eight outcomes."""
    rho, epsilon0, delta = 0.05, 0.4, 1e-4
    epsilon = float(compose([ZcdpEvent(rho)] + [PureEvent("0.4")] * 3, delta).epsilon)
    truth = 1 / (1 + math.exp(-epsilon0))
    exact = 0.0
    for j in range(4):  # j lies among three answers
        p = math.comb(3, j) * truth ** (3 - j) * (1 - truth) ** j
        shifted = epsilon - (3 - 2 * j) * epsilon0
        mu = math.sqrt(2 * rho)
        phi = lambda x: 0.5 * math.erfc(-x / math.sqrt(2))  # noqa: E731
        exact += p * (phi(mu / 2 - shifted / mu) - math.exp(shifted) * phi(-mu / 2 - shifted / mu))
    assert 0 < exact <= delta


@pytest.mark.slow
def test_mixed_composition_lies_between_the_true_gaussian_and_a_split_of_delta():
    """Below: the exact Gaussian with 40 responses. Above: epsilon_KOV(t delta) + epsilon_zCDP((1 - t) delta)."""
    k, epsilon0, rho, delta = 40, 0.5, 0.02, 1e-3
    mu, truth = math.sqrt(2 * rho), 1 / (1 + math.exp(-epsilon0))

    def phi(x: float) -> float:
        return 0.5 * math.erfc(-x / math.sqrt(2))

    def gaussian_with_responses(epsilon: float) -> float:
        total = 0.0
        for lies in range(k + 1):
            x = epsilon - (k - 2 * lies) * epsilon0
            chance = math.comb(k, lies) * truth ** (k - lies) * (1 - truth) ** lies
            total += chance * (phi(mu / 2 - x / mu) - math.exp(x) * phi(-mu / 2 - x / mu))
        return total

    def least(curve, level: float) -> float:
        low, high = 0.0, k * epsilon0 + 5
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if curve(middle) > level else (low, middle)
        return high

    split = min(
        least(lambda e: kov_delta(k, epsilon0, e), t * delta / 50) + zcdp_epsilon(rho, (1 - t / 50) * delta)
        for t in range(1, 50, 8)
    )
    result = compose([ZcdpEvent(rho)] + [PureEvent("0.5")] * k, delta)
    assert result.method == "optimal + zCDP"
    assert least(gaussian_with_responses, delta) <= result.epsilon <= split


def test_at_delta_zero_only_pure_events_have_a_finite_epsilon():
    assert compose([PureEvent(1), PureEvent(2)], 0).epsilon == 3
    assert compose([PureEvent(1), ZcdpEvent(0.1)], 0).epsilon == math.inf
    assert compose([ApproximateEvent(1, 1e-9)], 0).epsilon == math.inf


def test_deltas_that_add_up_beyond_the_allowance_are_infinite():
    events = [ApproximateEvent("0.1", "1e-7")] * 10
    assert compose(events, "1e-6").epsilon == 1  # exactly used up
    assert compose([*events, ApproximateEvent("0.1", "1e-9")], "1e-6").epsilon == math.inf
    assert compose([ApproximateEvent(1, "1e-6"), ZcdpEvent(1e-9)], "1e-6").epsilon == math.inf


@pytest.mark.parametrize("delta", [-1e-9, 1, 2, math.nan, "x"])
def test_compose_refuses_bad_deltas(delta):
    with pytest.raises(UsageError, match="delta"):
        compose([PureEvent(1)], delta)


events_strategy = st.lists(
    st.one_of(
        st.builds(PureEvent, epsilons),
        st.builds(ApproximateEvent, epsilons, st.sampled_from(["1e-9", "1e-10"])),
        st.builds(ZcdpEvent, st.floats(1e-5, 0.5)),
    ),
    max_size=8,
)


@pytest.mark.slow
@given(events_strategy, epsilons, deltas)
@settings(max_examples=60, deadline=None)
def test_one_more_event_never_lowers_the_cost(events, extra, delta):
    before, after = compose(events, delta).epsilon, compose([*events, PureEvent(extra)], delta).epsilon
    assert after >= float(before) * (1 - 1e-3)  # the common grid may change by its own width


@pytest.mark.slow
@given(events_strategy, deltas, st.randoms())
@settings(max_examples=40, deadline=None)
def test_the_order_of_events_does_not_matter_and_basic_is_never_beaten_upwards(events, delta, random):
    shuffled = list(events)
    random.shuffle(shuffled)
    result = compose(events, delta)
    assert float(result.epsilon) == pytest.approx(float(compose(shuffled, delta).epsilon), rel=1e-9)
    if all(isinstance(event, PureEvent) for event in events):
        assert result.epsilon <= sum((event.epsilon for event in events), Fraction(0))


@pytest.mark.slow
@given(events_strategy, st.sampled_from([0, 1e-6, 1e-4]), st.sampled_from([1, 3, 10]))
@settings(max_examples=30, deadline=None)
def test_what_is_left_fits(events, delta, limit):
    left = largest_pure(events, limit, delta)
    assert 0 <= left <= limit
    if left:
        assert affordable([*events, PureEvent(left)], limit, delta)
    elif affordable(events, limit, delta):
        assert not affordable([*events, PureEvent(Fraction(limit, 50))], limit, delta)


def test_what_is_left_is_exact_for_plain_sums():
    assert largest_pure([PureEvent(0.1)] * 7, 1, 0) == Fraction(3, 10)
    assert largest_pure([], 1, 0) == 1
    assert largest_pure([PureEvent(1)], 1, 0) == 0


def test_the_accountant_and_the_ledger_load_no_heavy_library():
    script = (
        "import sys, daskrado.ledger.ledger as l, daskrado.privacy.accountant\n"
        "print([m for m in ('numpy', 'scipy', 'opendp', 'dp_accounting', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=600)
    assert done.stdout.strip() == "[]"
