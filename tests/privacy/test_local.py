"""Local mechanisms: every report's odds by exact probabilities, laws by chi-square, estimators by enumeration."""

import itertools
import math

import mpmath
import numpy as np
import pytest
from scipy import stats

from daskrado.errors import UsageError
from daskrado.privacy import noise
from daskrado.privacy.accountant import PureEvent, ZcdpEvent, zcdp_epsilon
from daskrado.privacy.local import BinaryResponse, KaryResponse, UnaryEncoding
from daskrado.privacy.local_numbers import LocalNumber

N = 6000


def words(chance: float) -> mpmath.mpf:
    """The probability that is really drawn: whole words of 2^-64."""
    return mpmath.mpf(int(chance * 2.0**64)) / mpmath.mpf(2) ** 64


def odds_binary(m) -> mpmath.mpf:
    return words(m.keep) / (1 - words(m.keep))


def odds_kary(m) -> mpmath.mpf:
    return words(m.p) / ((1 - words(m.p)) / (m.categories - 1))


def odds_unary(m) -> mpmath.mpf:
    p, q = words(m.p), words(m.q)
    return max(p / q, (1 - q) / (1 - p)) * min(p / q, (1 - q) / (1 - p))


@pytest.mark.parametrize("epsilon", [1e-6, 0.1, math.log(11 / 9), 1.0, 5.0, 30.0, 50.0])
def test_no_report_has_odds_above_exp_epsilon_in_exact_arithmetic(epsilon):
    with mpmath.workdps(60):
        limit = mpmath.exp(mpmath.mpf(repr(epsilon)))
        found = [odds_binary(BinaryResponse.from_epsilon(epsilon))]
        for k in (2, 3, 50):
            found.append(odds_kary(KaryResponse(epsilon, k)))
            found += [odds_unary(UnaryEncoding(epsilon, k, form)) for form in ("symmetric", "optimised")]
        assert max(found) <= limit
        if 0.1 <= epsilon <= 5:
            assert min(found) > limit * (1 - mpmath.mpf("1e-9"))


@pytest.mark.parametrize("epsilon", [0.1, 0.25, 1, 3])
def test_a_response_costs_what_it_was_made_for(epsilon):
    assert BinaryResponse.from_epsilon(epsilon).event == PureEvent(epsilon)


def test_the_lecture_survey():
    """Truthful 55 % of the time: the estimate is the *fraction* 10 (X - 0.45), and epsilon is ln(11/9)."""
    survey = BinaryResponse(0.55)
    assert float(survey.event.epsilon) == pytest.approx(math.log(11 / 9), rel=1e-9)
    for yes in (0, 450, 500, 1000):
        found = survey.estimate(np.array([1000 - yes, yes]), 1000)
        assert found.values[1] == pytest.approx(10 * (yes / 1000 - 0.45), abs=1e-12)
        assert found.values.sum() == pytest.approx(1)


def reports_law(mechanism, value: int) -> dict:
    """P(report | value), from p and q alone."""
    k, p, q = mechanism.categories, mechanism.p, mechanism.q
    if isinstance(mechanism, UnaryEncoding):
        law = {}
        for bits in itertools.product((0, 1), repeat=k):
            chance = 1.0
            for category, bit in enumerate(bits):
                one = p if category == value else q
                chance *= one if bit else 1 - one
            law[bits] = chance
        return law
    return {code: p if code == value else q for code in range(k)}


MECHANISMS = [
    BinaryResponse(0.7),
    BinaryResponse.from_epsilon(0.5),
    KaryResponse(1.0, 4),
    UnaryEncoding(1.0, 3),
    UnaryEncoding(1.0, 3, "optimised"),
]


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=str)
def test_reports_follow_their_law_and_no_other(mechanism):
    for value in range(mechanism.categories):
        drawn = mechanism.randomise(np.full(N, value, dtype=np.int64))
        keys = [tuple(row) for row in drawn.tolist()] if drawn.ndim == 2 else drawn.tolist()
        law = reports_law(mechanism, value)
        assert sum(law.values()) == pytest.approx(1, abs=1e-12)
        seen = [keys.count(key) for key in law]
        assert stats.chisquare(seen, [N * c for c in law.values()], sum_check=False).pvalue > 1e-6
        other = reports_law(mechanism, (value + 1) % mechanism.categories)
        assert stats.chisquare(seen, [N * c for c in other.values()], sum_check=False).pvalue < 1e-9


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=str)
def test_estimates_are_unbiased_with_the_stated_variance_by_enumeration(mechanism):
    """Mean and variance of the estimate over all reports of five fixed rows."""
    rows = [0, 0, 1, 0, mechanism.categories - 1]
    truth = np.bincount(rows, minlength=mechanism.categories) / len(rows)
    laws = [reports_law(mechanism, value) for value in rows]
    # The reports are independent, so the first two moments of the counts follow from single rows.
    mean = np.zeros(mechanism.categories)
    second = np.zeros(mechanism.categories)
    for law in laws:
        hit = np.array(
            [
                sum(c for key, c in law.items() if (key[v] if isinstance(key, tuple) else key == v))
                for v in range(mechanism.categories)
            ]
        )
        mean += hit
        second += hit * (1 - hit)
    gap = mechanism.p - mechanism.q
    assert (mean / len(rows) - mechanism.q) / gap == pytest.approx(truth, abs=1e-12)
    at_truth = truth * mechanism.p * (1 - mechanism.p) + (1 - truth) * mechanism.q * (1 - mechanism.q)
    assert second / len(rows) ** 2 / gap**2 == pytest.approx(at_truth / (len(rows) * gap**2))
    # and the code states that variance where its estimate equals the truth
    scale = 10**6
    counts = np.rint(mean / len(rows) * scale).astype(np.int64)
    stated = mechanism.estimate(counts, scale)
    assert stated.values == pytest.approx(truth, abs=1e-4)
    assert stated.variance == pytest.approx(at_truth / (scale * gap**2), rel=1e-3)
    rate = counts / scale
    assert stated.population_variance == pytest.approx(rate * (1 - rate) / (scale * gap**2))


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.5])
def test_intervals_cover_exactly_by_summing_the_law(fraction):
    """Coverage of the 95 % interval over every count of 60 reports: for a sampled population and for fixed rows."""
    mechanism, n = BinaryResponse(0.75), 60
    rate = fraction * mechanism.p + (1 - fraction) * mechanism.q
    ones = round(fraction * n)
    fixed = np.convolve(
        stats.binom.pmf(range(ones + 1), ones, mechanism.p),
        stats.binom.pmf(range(n - ones + 1), n - ones, mechanism.q),
    )
    covered_population = covered_fixed = 0.0
    for yes in range(n + 1):
        found = mechanism.estimate(np.array([n - yes, yes]), n)
        if found.low[1] <= fraction <= found.high[1]:
            covered_population += stats.binom.pmf(yes, n, rate)
            covered_fixed += fixed[yes]
    assert 0.95 <= covered_population < 1
    assert covered_fixed >= 0.95


@pytest.mark.parametrize("delta", [0.0, 1e-5])
def test_numbers_are_unbiased_with_the_exact_noise_variance(delta):
    mechanism = LocalNumber(-2.0, 6.0, 1.0, delta, bits=10)
    values = np.array([-5.0, -2.0, 0.0, 6.0, 100.0] * 800)
    reports = mechanism.randomise(values)
    assert reports.dtype == np.int64
    found = mechanism.estimate(int(reports.sum()), len(reports))
    clipped = np.clip(values, -2, 6)
    error = mechanism.lower + mechanism.step * reports - clipped
    assert abs(error.mean()) < 5 * math.sqrt(mechanism.noise_variance / len(values)) + mechanism.step
    assert error.var() == pytest.approx(mechanism.noise_variance, rel=0.2)
    assert found.variance[0] == pytest.approx(mechanism.noise_variance / len(values))
    scale = 2**10 / 1.0
    if not delta:
        assert mechanism.noise_variance == pytest.approx(2 * (scale * mechanism.step) ** 2, rel=1e-5)
    else:
        assert isinstance(mechanism.event, ZcdpEvent)
        assert zcdp_epsilon(mechanism.event.rho, delta) <= 1.0


def test_the_interval_of_a_mean_covers_about_as_often_as_it_says():
    mechanism = LocalNumber(0.0, 1.0, 1.0, bits=8)
    hits = 0
    for _ in range(300):
        found = mechanism.estimate(int(mechanism.randomise(np.full(100, 0.25)).sum()), 100, 0.9)
        hits += bool(found.low[0] <= 0.25 <= found.high[0])
    assert stats.binomtest(hits, 300, 0.9).pvalue > 1e-5


def test_words_from_the_operating_system_are_uniform_and_exact():
    assert not noise.coins(np.zeros(1000, dtype=np.uint64)).any()
    drawn = noise.uniform_below(7, 14_000)
    assert stats.chisquare(np.bincount(drawn, minlength=7)).pvalue > 1e-6
    assert set(noise.uniform_below(1, 10)) == {0}
    share = noise.coins(np.full(20_000, 2**62, dtype=np.uint64)).mean()
    assert share == pytest.approx(0.25, abs=0.02)


@pytest.mark.parametrize("keep", [0.5, 1.0, 0.2, -1, 2, math.nan, True])
def test_a_probability_outside_a_half_and_one_is_refused(keep):
    with pytest.raises(UsageError, match="between 1/2 and 1"):
        BinaryResponse(keep)


def test_bad_input_is_refused():
    with pytest.raises(UsageError, match="epsilon"):
        KaryResponse(0, 3)
    with pytest.raises(UsageError, match="categories"):
        KaryResponse(1, 1)
    with pytest.raises(UsageError, match="categories"):
        UnaryEncoding(1, 20_000)
    with pytest.raises(UsageError, match="optimised"):
        UnaryEncoding(1, 3, "best")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"codes 0\.\.1"):
        BinaryResponse(0.7).randomise(np.array([0, 2]))
    with pytest.raises(UsageError, match="lower"):
        LocalNumber(1, 1, 1.0)
    with pytest.raises(UsageError, match="finite"):
        LocalNumber(0, 1, 1.0).randomise(np.array([math.nan]))
    with pytest.raises(UsageError, match="counts"):
        BinaryResponse(0.7).estimate(np.array([1, 3]), 2)
    with pytest.raises(UsageError, match="confidence"):
        BinaryResponse(0.7).estimate(np.array([1, 1]), 2, 1.0)
    with pytest.raises(UsageError, match="too small"):
        BinaryResponse.from_epsilon(1e-16)
