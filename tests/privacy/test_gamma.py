"""L2-gamma noise against its law, and against laws that are nearly right."""

import math
from collections import Counter
from decimal import Decimal

import numpy as np
import pytest
from scipy import integrate, stats

from daskrado.errors import UsageError
from daskrado.privacy.gamma import gamma_length, integer_l2_gamma, l2_gamma, l2_gamma_variance

ACCEPT, REJECT = 1e-6, 1e-9


@pytest.mark.parametrize(("dimension", "scale"), [(1, 0.5), (3, 2.0), (40, 1e6)])
def test_length_has_the_gamma_law_and_no_other(dimension, scale):
    lengths = np.array([np.linalg.norm(l2_gamma(dimension, scale)) for _ in range(4000)])
    law = stats.gamma(dimension, scale=scale)
    assert stats.kstest(lengths, law.cdf).pvalue > ACCEPT
    for wrong in (2 / 3, 3 / 2):
        assert stats.kstest(lengths, stats.gamma(dimension, scale=scale * wrong).cdf).pvalue < REJECT


def test_direction_is_uniform():
    draws = np.array([l2_gamma(3, 1.0) for _ in range(6000)])
    unit = draws / np.linalg.norm(draws, axis=1, keepdims=True)
    for axis in (*np.eye(3), np.ones(3) / math.sqrt(3)):  # Archimedes: one coordinate on the sphere is uniform
        assert stats.kstest(unit @ axis, stats.uniform(-1, 2).cdf).pvalue > ACCEPT


def test_variance_is_that_of_the_draws():
    draws = np.array([l2_gamma(5, 3.0) for _ in range(6000)])
    assert np.mean(draws**2) == pytest.approx(l2_gamma_variance(5, 3.0), rel=0.1)


@pytest.mark.parametrize("shift", [(1, 0), (1, 1), (3, -2)])
@pytest.mark.parametrize("cell", [(0, 0), (1, 0), (2, 3), (-4, 1)])
def test_rounded_law_never_breaks_its_epsilon(shift, cell):
    """The two-dimensional integer law by numerical integration over cells: the ratio stays within exp(|v|/scale)."""
    scale = 1.7

    def mass(k):
        total, _ = integrate.dblquad(
            lambda y, x: math.exp(-math.hypot(x, y) / scale), k[0] - 0.5, k[0] + 0.5, k[1] - 0.5, k[1] + 0.5
        )
        return total

    ratio = mass(cell) / mass((cell[0] - shift[0], cell[1] - shift[1]))
    bound = math.exp(math.hypot(*shift) / scale)
    assert 1 / bound * (1 - 1e-7) <= ratio <= bound * (1 + 1e-7)


def test_integers_in_integers_out():
    values = np.array([2**61, -(2**61), 0], dtype=np.int64)
    noisy = integer_l2_gamma(values, 8.0)
    assert noisy.dtype == np.int64
    assert np.abs(noisy - values).max() < 8 * 200  # P(radius above 200 scales) < 1e-80
    with pytest.raises(UsageError, match="int64"):
        integer_l2_gamma(np.zeros(2), 1.0)
    with pytest.raises(UsageError, match="scale"):
        integer_l2_gamma(values, 0.0)
    with pytest.raises(UsageError, match="2\\^62"):
        integer_l2_gamma(np.array([2**62 + 1], dtype=np.int64), 1.0)
    with pytest.raises(UsageError, match="dimension"):
        l2_gamma(0, 1.0)


def test_two_draws_differ():
    assert not np.array_equal(l2_gamma(4, 1.0), l2_gamma(4, 1.0))


def test_the_longest_vector_is_where_the_docstring_puts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The generator's smallest words give the largest length: 54 log 2 for each dimension, in scales."""
    from daskrado.privacy import gamma

    monkeypatch.setattr(gamma.os, "urandom", bytes)
    for dimension in (1, 7):
        length = float(np.linalg.norm(l2_gamma(dimension, 3.0)))
        assert length == pytest.approx(54 * np.log(2) * dimension * 3.0, rel=1e-12)
        assert length < 37.5 * dimension * 3.0


@pytest.mark.parametrize("scale", [0.0, -1.0, 2.0**51, np.inf, np.nan])
def test_a_scale_that_cannot_be_drawn_has_no_variance(scale: float) -> None:
    with pytest.raises(UsageError, match="noise scale"):
        l2_gamma_variance(5, scale)


def delta_of(bits: int, scale: float) -> float:
    """The least delta of integer noise in one dimension at epsilon 1 / scale, counting all uniforms of a few bits."""
    mass: Counter[int] = Counter()
    for word in range(2**bits):
        length = round(gamma_length([Decimal(2 * word + 1) / 2 ** (bits + 1)], scale))
        for sign in (-1, 1):
            mass[sign * length] += 1
    odds = math.exp(1 / scale)
    return sum(max(0.0, count - odds * mass[k - 1]) for k, count in mass.items()) / 2 ** (bits + 1)


@pytest.mark.parametrize("scale", [0.7, 3.0, 11.0])
def test_a_uniform_of_b_bits_costs_at_most_16_scales_in_2_to_the_b(scale: float) -> None:
    """The bound from which 128 bits follow; and 53 bits would not do for the largest scale, 2^52 grid steps."""
    costs = [delta_of(bits, scale) for bits in (8, 10, 12)]
    for bits, cost in zip((8, 10, 12), costs, strict=True):
        assert 2.0**-bits / 2 <= cost <= 16 * scale * 2.0**-bits
    assert costs[0] > 2 * costs[2]  # it falls with the number of cells
    assert 16 * 2.0**52 * 2.0**-128 == 2.0**-72
    assert 16 * 2.0**52 * 2.0**-53 > 1


def test_published_noise_is_drawn_from_128_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Far out in the tail, where a double has few neighbours, two uniforms that differ in their last bit differ."""
    from daskrado.privacy import gamma

    low, high = ((Decimal(2 * word + 1) / 2**129) for word in (2**40, 2**40 + 1))
    apart = float(gamma_length([low], 2.0**50) - gamma_length([high], 2.0**50))
    assert apart == pytest.approx(2.0**50 * 2.0**-40, rel=1e-6)
    asked = []
    real = gamma.os.urandom
    monkeypatch.setattr(gamma.os, "urandom", lambda count: asked.append(count) or real(count))
    integer_l2_gamma(np.zeros(3, dtype=np.int64), 5.0)
    assert asked[0] == 3 * 16


@pytest.mark.parametrize("dimension", [1, 2, 5])
def test_rounded_vectors_have_the_law_of_unrounded_ones(dimension: int) -> None:
    scale = 1000.0
    draws = np.array([integer_l2_gamma(np.zeros(dimension, dtype=np.int64), scale) for _ in range(3000)])
    lengths = np.linalg.norm(draws, axis=1)
    assert stats.kstest(lengths, stats.gamma(dimension, scale=scale).cdf).pvalue > ACCEPT
    for wrong in (2 / 3, 3 / 2):
        assert stats.kstest(lengths, stats.gamma(dimension, scale=scale * wrong).cdf).pvalue < REJECT
    signs = (draws > 0).mean(axis=0)
    assert np.abs(signs - 0.5).max() < 0.06  # six deviations
