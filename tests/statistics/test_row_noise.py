"""Noise drawn row by row: its exact law, that it follows the row and not the block, and what it does to rados."""

from __future__ import annotations

import itertools
import math
from decimal import Decimal, getcontext
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from daskrado.errors import UsageError
from daskrado.statistics import FixedSupportRados, HadamardRados, NoisyEdgeRados, RandomisedRados, Rows, UniformRados
from daskrado.statistics.base import Place
from daskrado.statistics.row_noise import (
    MOST_SCALE,
    TABLE_ERROR,
    TAIL,
    _thresholds,
    flip_threshold,
    flips,
    gaussian_noise,
    row_words,
)

KEY = bytes(range(32))


@pytest.mark.parametrize("scale", [0.6, 3.7, 411.0])
def test_the_table_is_the_discrete_gaussian_within_its_declared_error(scale: float) -> None:
    """Masses from the 63-bit thresholds against exp(-k^2 / 2 s^2) in fifty digits."""
    getcontext().prec = 50
    exact = Decimal(scale)
    reach = math.ceil((TAIL + 3) * scale)
    raw = [(-(Decimal(k) ** 2) / (2 * exact * exact)).exp() for k in range(reach + 1)]
    total = raw[0] + 2 * sum(raw[1:])
    cuts = [0, *(int(t) for t in _thresholds(scale)), 1 << 63]
    sizes = [Fraction(b - a, 1 << 63) for a, b in itertools.pairwise(cuts)]
    assert sum(sizes) == 1
    distance = Decimal(0)
    for k in range(reach + 1):
        own = sizes[k] if k < len(sizes) else Fraction(0)
        wanted = raw[k] / total * (1 if k == 0 else 2)
        distance += abs(Decimal(own.numerator) / Decimal(own.denominator) - wanted)
    assert distance / 2 < Decimal(TABLE_ERROR)


def test_samples_have_the_scale_and_not_two_thirds_or_three_halves_of_it() -> None:
    scale, draws = 20.0, 40_000
    noise = gaussian_noise(Place(KEY, 0, draws), draws, 1, scale).ravel()
    statistic = float((noise**2).sum()) / scale**2
    low, high = stats.chi2(draws).ppf([1e-6, 1 - 1e-6])
    assert low < statistic < high
    for wrong in (2 / 3, 3 / 2):
        assert not low < statistic / wrong**2 < high
    assert abs(noise.mean()) < 6 * scale / math.sqrt(draws)


def test_words_belong_to_the_row_whatever_block_it_comes_in() -> None:
    whole = row_words(Place(KEY, 0, 5000), 5000, 3, "x")
    for start, stop in ((0, 1), (700, 1300), (1023, 1025), (2048, 4999)):
        assert np.array_equal(row_words(Place(KEY, start, 5000), stop - start, 3, "x"), whole[start:stop])
    assert not np.array_equal(row_words(Place(KEY, 0, 5000), 5000, 3, "y"), whole)
    assert not np.array_equal(row_words(Place(KEY[::-1], 0, 5000), 5000, 3, "x"), whole)


@pytest.mark.parametrize("epsilon", [1e-9, 0.1, 1.0, 3.0, 20.0])
def test_randomised_response_is_pure_epsilon_in_exact_arithmetic(epsilon: float) -> None:
    getcontext().prec = 60
    flip = flip_threshold(epsilon)
    assert 0 < flip <= 1 << 63
    odds = Decimal((1 << 64) - flip) / Decimal(flip)
    assert odds <= Decimal(epsilon).exp()
    assert odds >= Decimal(epsilon).exp() * (1 - Decimal(2) ** -30)  # and wastes nothing


def test_flips_happen_as_often_as_they_should() -> None:
    rows, epsilon = 60_000, 1.0
    seen = int(flips(Place(KEY, 0, rows), rows, 1, epsilon).sum())
    p = 1 / (1 + math.exp(epsilon))
    assert stats.binomtest(seen, rows, p).pvalue > 1e-6
    for wrong in (2 / 3 * p, 3 / 2 * p):
        assert stats.binomtest(seen, rows, wrong).pvalue < 1e-6


def test_an_edge_has_one_noise_whatever_number_of_rados_it_is_in() -> None:
    """Two rados of all rows are equal: fresh noise in each would average away."""
    draw = np.random.default_rng(0)
    rows = Rows(draw.integers(-9, 9, (500, 2)).astype(float), np.ones(500, dtype=np.int8), place=Place(KEY, 0, 500))
    noisy = NoisyEdgeRados(2, FixedSupportRados(2, 3, 500), 40.0).partial(rows).reshape(3, 2)
    assert (noisy == noisy[0]).all()
    plain = rows.x.sum(axis=0)
    spread = 40.0 * math.sqrt(500)
    assert (np.abs(noisy[0] - plain) < 6 * spread).all()
    assert (noisy[0] != plain).any()


def test_debiased_answers_are_right_on_average() -> None:
    rows, epsilon = 20_000, 0.7
    x = np.ones((rows, 1), order="F")
    seeds = np.random.default_rng(1).integers(0, 2**64, rows, dtype=np.uint64)
    statistic = RandomisedRados(1, UniformRados(1, 64), (0,), epsilon)
    rados = statistic.partial(Rows(x, np.ones(rows, dtype=np.int8), seeds, place=Place(KEY, 0, rows)))
    answers = 1 - 2 * flips(Place(KEY, 0, rows), rows, 1, epsilon).astype(float)
    assert rados.mean() / statistic.shrinkage == pytest.approx(answers.sum() / 2 / statistic.shrinkage, rel=0.02)
    assert answers.mean() / statistic.shrinkage == pytest.approx(1.0, abs=6 / math.sqrt(rows) / statistic.shrinkage)


def test_scales_beyond_the_table_are_refused() -> None:
    with pytest.raises(UsageError, match="at most 32768 grid steps"):
        gaussian_noise(Place(KEY, 0, 5), 5, 1, MOST_SCALE * 1.01)


def test_the_base_of_noisy_rados_never_sees_a_label() -> None:
    """Hadamard rados of noisy edges are a function of the edges alone: flipping x and y together changes nothing."""
    draw = np.random.default_rng(2)
    x = np.asfortranarray(draw.integers(-50, 50, (300, 3)).astype(float))
    seeds = draw.integers(0, 2**64, 300, dtype=np.uint64)
    place = Place(KEY, 0, 300)

    class Seen(HadamardRados):
        def partial(self, rows: Rows) -> np.ndarray:
            assert (rows.y == 1).all()
            return super().partial(rows)

    y = draw.choice(np.array([-1, 1], dtype=np.int8), 300)
    noisy = NoisyEdgeRados(3, Seen(3, 16), 5.0).partial(Rows(x, y, seeds, place=place)).reshape(3, 16)
    edges = x * y[:, None] + y[:, None] * gaussian_noise(place, 300, 3, 5.0)
    plain = HadamardRados(3, 16).partial(Rows(np.asfortranarray(edges), np.ones(300, dtype=np.int8), seeds))
    assert np.array_equal(noisy, plain.reshape(3, 16))
