"""Discrete noise against its exact law, and against laws that are nearly right."""

import math
import subprocess
import sys
from collections import Counter
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy import stats

from daskrado.errors import UsageError
from daskrado.privacy import noise

pytestmark = pytest.mark.real_noise
DRAWS = 32_000
ACCEPT, REJECT = 1e-11, 1e-14  # a right law fails once in 10^11 runs; a wrong one must fail beyond doubt


def laplace_cdf(k: int, scale: float) -> float:
    """P(X <= k) of the two-sided geometric law, summed as geometric series."""
    q = mpmath.exp(-1 / mpmath.mpf(scale))
    return float(q ** (-k) / (1 + q)) if k < 0 else float(1 - q ** (k + 1) / (1 + q))


def gaussian_cdf(k: int, scale: float) -> float:
    """P(X <= k) proportional to exp(-j^2 / 2 scale^2): summed where short, its normal limit where long."""
    if scale > 1000:
        return float(stats.norm.cdf((k + 0.5) / scale))
    reach = int(40 * scale) + 5
    weights = {j: mpmath.exp(-(mpmath.mpf(j) ** 2) / (2 * mpmath.mpf(scale) ** 2)) for j in range(-reach, reach + 1)}
    return float(sum(w for j, w in weights.items() if j <= k) / sum(weights.values()))


def p_value(sample: np.ndarray, cdf, scale: float) -> float:
    """Chi-square over at most 25 cells cut at quantiles of the *sample's own grid*, merged to expect >= 40."""
    step = max(1, round(scale / 4))
    edges = [step * j for j in range(-12, 13)]
    bounds = [0.0, *(cdf(e, scale) for e in edges), 1.0]
    expected = np.diff(bounds) * len(sample)
    observed = np.bincount(np.searchsorted(edges, sample), minlength=len(edges) + 1).astype(float)
    cells_e, cells_o, e_sum, o_sum = [], [], 0.0, 0.0
    for e, o in zip(expected, observed, strict=True):
        e_sum, o_sum = e_sum + e, o_sum + o
        if e_sum >= 40:
            cells_e.append(e_sum)
            cells_o.append(o_sum)
            e_sum = o_sum = 0.0
    cells_e[-1] += e_sum
    cells_o[-1] += o_sum
    assert len(cells_e) >= 3
    return float(stats.chisquare(cells_o, cells_e, sum_check=False).pvalue)


@pytest.mark.slow
@pytest.mark.parametrize("scale", [0.6, 1 / math.log(2), 3.0, 2.0**20, 3e12])
@pytest.mark.parametrize(
    ("draw", "cdf"), [(noise.discrete_laplace, laplace_cdf), (noise.discrete_gaussian, gaussian_cdf)]
)
def test_law_has_the_right_scale_and_no_other(draw, cdf, scale):
    centre = np.int64(7)
    sample = draw(np.full(DRAWS, centre, dtype=np.int64), scale) - centre
    assert p_value(sample, cdf, scale) > ACCEPT
    assert p_value(sample, cdf, scale * 2 / 3) < REJECT
    assert p_value(sample, cdf, scale * 3 / 2) < REJECT


@pytest.mark.slow
def test_the_two_laws_are_told_apart():
    sample = noise.discrete_laplace(np.zeros(DRAWS, dtype=np.int64), 10.0)
    assert p_value(sample, gaussian_cdf, 10.0 * math.sqrt(2)) < REJECT


def rational_laplace(q: Fraction, centre: int, support: range) -> list[Fraction]:
    return [(1 - q) / (1 + q) * q ** abs(k - centre) for k in support]


def test_laplace_hockey_stick_is_zero_for_every_neighbour_in_rational_arithmetic():
    """q = 1/2, i.e. scale 1/log 2: exp(epsilon) = 2^sensitivity exactly, over all values and neighbours."""
    q, sensitivity = Fraction(1, 2), 3
    support = range(-80, 81)
    bound = q**-sensitivity
    worst = Fraction(0)
    for value in range(-4, 5):
        for other in range(value - sensitivity, value + sensitivity + 1):
            p, p_other = rational_laplace(q, value, support), rational_laplace(q, other, support)
            assert sum(max(a - bound * b, Fraction(0)) for a, b in zip(p, p_other, strict=True)) == 0
            worst = max(worst, *(a / b for a, b in zip(p, p_other, strict=True)))
    assert worst == bound  # the declared epsilon is attained, so it cannot be lowered


def test_standard_deviation_for_scale_would_break_the_guarantee():
    """Laplace noise of *standard deviation* s / epsilon has scale s / (epsilon sqrt 2): it costs sqrt 2 epsilon."""
    epsilon, sensitivity = 1.0, 1
    q = math.exp(-1 / (sensitivity / (epsilon * math.sqrt(2))))
    assert q**-sensitivity > math.exp(epsilon) * 1.4


@pytest.mark.parametrize(("scale", "sensitivity"), [(0.9, 1.0), (4.2, 1.0), (30.0, 7.5), (2.0**20, 2.0**18)])
def test_gaussian_rho_is_what_opendp_certifies(scale, sensitivity):
    domains, measurements, _, metrics = noise._opendp()
    integers = domains.vector_domain(domains.atom_domain(T="i64"))
    certified = measurements.make_gaussian(integers, metrics.l2_distance(T=float), scale=scale).map(sensitivity)
    ours = sensitivity**2 / (2 * scale**2)
    assert certified == pytest.approx(ours, rel=1e-12)


@pytest.mark.parametrize(("scale", "sensitivity"), [(0.9, 1), (30.0, 7), (2.0**20, 2**18)])
def test_laplace_epsilon_is_what_opendp_certifies(scale, sensitivity):
    domains, measurements, _, metrics = noise._opendp()
    integers = domains.vector_domain(domains.atom_domain(T="i64"))
    certified = measurements.make_laplace(integers, metrics.l1_distance(T="i64"), scale=scale).map(sensitivity)
    assert certified == pytest.approx(sensitivity / scale, rel=1e-12)


@pytest.mark.parametrize("shape", [(0,), (1,), (5,), (3, 4), (2, 3, 2)])
@pytest.mark.parametrize("draw", [noise.discrete_laplace, noise.discrete_gaussian])
def test_shape_and_type_are_kept_and_the_input_is_not_changed(draw, shape):
    values = np.arange(math.prod(shape), dtype=np.int64).reshape(shape)
    before = values.copy()
    noisy = draw(values, 1e6)
    assert noisy.dtype == np.int64
    assert noisy.shape == shape
    assert np.array_equal(values, before)


@pytest.mark.parametrize("draw", [noise.discrete_laplace, noise.discrete_gaussian])
def test_noise_is_added_in_place_order(draw):
    values = np.arange(-50, 50, dtype=np.int64).reshape(10, 10) * 10**9
    assert np.array_equal(np.rint(draw(values, 1.0) / 1e9).astype(np.int64) * 10**9, values)


@pytest.mark.parametrize("draw", [noise.discrete_laplace, noise.discrete_gaussian])
def test_draws_are_independent_across_calls_and_coordinates(draw):
    first, second = (draw(np.zeros(1000, dtype=np.int64), noise.MAX_SCALE) for _ in range(2))
    assert len({*first.tolist(), *second.tolist()}) == 2000  # two of them alike: 2 * 10^6 / 2^54 at the most
    x, y = np.sign(first[:-1]).astype(float), np.sign(first[1:]).astype(float)
    assert abs(np.sum(x * y)) < 7 * math.sqrt(len(x))  # signs of neighbours: a fair walk; once in 10^11 runs


def test_a_forked_process_draws_other_noise():
    script = """
import os, numpy as np
from daskrado.privacy.noise import discrete_laplace
zeros = np.zeros(4, dtype=np.int64)
discrete_laplace(zeros, 2.0**50)             # the generator is warm before the fork
for child in range(3):
    if os.fork() == 0:
        print(*discrete_laplace(zeros, 2.0**50).tolist(), flush=True)
        os._exit(0)
    os.wait()
print(*discrete_laplace(zeros, 2.0**50).tolist(), flush=True)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=600)
    lines = done.stdout.split()
    assert len(lines) == 16
    assert len(set(lines)) == 16


@pytest.mark.parametrize("scale", [0, 0.0, -1.0, math.nan, math.inf, -math.inf, 2.0**53, True])
@pytest.mark.parametrize("draw", [noise.discrete_laplace, noise.discrete_gaussian])
def test_bad_scales_are_refused(draw, scale):
    with pytest.raises(UsageError, match="scale"):
        draw(np.zeros(2, dtype=np.int64), scale)


@pytest.mark.parametrize(
    "values", [np.zeros(2), np.zeros(2, np.float32), np.zeros(2, np.int32), np.zeros(2, np.uint64), np.array([True])]
)
@pytest.mark.parametrize("draw", [noise.discrete_laplace, noise.discrete_gaussian])
def test_only_int64_reaches_a_sampler(draw, values):
    with pytest.raises(UsageError, match="int64"):
        draw(values, 1.0)


@pytest.mark.parametrize("value", [2**62 + 1, -(2**62) - 1, 2**63 - 1, -(2**63)])
@pytest.mark.parametrize("draw", [noise.discrete_laplace, noise.discrete_gaussian])
def test_values_that_could_overflow_are_refused(draw, value):
    with pytest.raises(UsageError, match="overflow"):
        draw(np.array([0, value], dtype=np.int64), 1.0)


@pytest.mark.parametrize("draw", [noise.discrete_laplace, noise.discrete_gaussian])
def test_the_largest_allowed_value_and_scale_do_not_saturate(draw):
    noisy = draw(np.array([2**62, -(2**62)] * 50, dtype=np.int64), noise.MAX_SCALE)
    assert np.abs(noisy).max() < 2**63 - 1
    assert np.array_equal(np.sign(noisy), np.sign([2**62, -(2**62)] * 50))


@pytest.mark.parametrize("scale", [0.01, 0.3, 1.0, 5.0, 1e3, 1e9])
def test_laplace_variance_is_exact(scale):
    with mpmath.workdps(60):
        q = mpmath.exp(-1 / mpmath.mpf(scale))
        expected = float(2 * q / (1 - q) ** 2)
    assert noise.laplace_variance(scale) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("scale", [0.1, 0.3, 1.0, 2.5, 4.99, 5.01, 30.0])
def test_gaussian_variance_is_exact(scale):
    with mpmath.workdps(60):
        weights = {k: mpmath.exp(-(mpmath.mpf(k) ** 2) / (2 * mpmath.mpf(scale) ** 2)) for k in range(-2000, 2001)}
        expected = float(sum(k * k * w for k, w in weights.items()) / sum(weights.values()))
    assert noise.gaussian_variance(scale) == pytest.approx(expected, rel=1e-12)
    assert noise.gaussian_variance(scale) <= scale**2 * (1 + 1e-15)


@pytest.mark.parametrize("function", [noise.laplace_variance, noise.gaussian_variance])
def test_variance_refuses_bad_scales(function):
    for scale in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(UsageError):
            function(scale)


def choice_probabilities(scores: list[float], epsilon: float, sensitivity: float) -> np.ndarray:
    weights = [mpmath.exp(mpmath.mpf(epsilon) * s / (2 * sensitivity)) for s in scores]
    return np.array([float(w / sum(weights)) for w in weights])


@pytest.mark.slow
def test_exponential_choice_has_the_exact_probabilities_and_no_others():
    scores, epsilon, sensitivity = [0.0, 3.0, -2.0, 5.0], 1.2, 2.0
    draws = Counter(noise.exponential_choice(np.array(scores), epsilon, sensitivity) for _ in range(14_000))
    observed = np.array([draws[i] for i in range(4)], dtype=float)

    def p(factor: float) -> float:
        expected = choice_probabilities(scores, epsilon * factor, sensitivity) * 14_000
        return float(stats.chisquare(observed, expected, sum_check=False).pvalue)

    assert p(1.0) > ACCEPT
    assert p(2 / 3) < REJECT
    assert p(3 / 2) < REJECT


def test_exponential_probabilities_of_all_neighbours_stay_within_epsilon():
    """All score vectors on {0,1,2}^3 and all neighbours that move each score by at most 1."""
    grid = [(a, b, c) for a in range(3) for b in range(3) for c in range(3)]
    for first in grid:
        for second in grid:
            if max(abs(x - y) for x, y in zip(first, second, strict=True)) <= 1:
                ratio = choice_probabilities(list(first), 0.7, 1.0) / choice_probabilities(list(second), 0.7, 1.0)
                assert ratio.max() <= math.exp(0.7) * (1 + 1e-12)


def test_exponential_choice_survives_extreme_scores():
    assert noise.exponential_choice(np.array([-1e300, 0.0, -1e300]), 1.0, 1.0) == 1
    assert noise.exponential_choice(np.array([5.0]), 1.0, 1.0) == 0


@pytest.mark.parametrize(
    ("scores", "epsilon", "sensitivity"),
    [
        (np.array([]), 1.0, 1.0),
        (np.array([1, 2]), 1.0, 1.0),
        (np.zeros((2, 2)), 1.0, 1.0),
        (np.array([0.0, math.nan]), 1.0, 1.0),
        (np.array([0.0, math.inf]), 1.0, 1.0),
        (np.array([0.0, 1.0]), 0.0, 1.0),
        (np.array([0.0, 1.0]), -1.0, 1.0),
        (np.array([0.0, 1.0]), math.nan, 1.0),
        (np.array([0.0, 1.0]), 1.0, 0.0),
        (np.array([0.0, 1.0]), 1.0, math.inf),
        (np.array([0.0, 1.0]), 1e-320, 1e300),
    ],
)
def test_exponential_choice_refuses_bad_input(scores, epsilon, sensitivity):
    with pytest.raises(UsageError):
        noise.exponential_choice(scores, epsilon, sensitivity)
