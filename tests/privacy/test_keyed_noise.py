"""Noise from a key: the exact discrete Gaussian law, the same again for the key, nothing alike without it."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy.stats import chi2

from daskrado.errors import UsageError
from daskrado.privacy import keyed_noise
from daskrado.privacy.keyed_noise import Stream, keyed_gaussian

KEY = bytes(range(32))


def chance(found: np.ndarray, scale: float) -> float:
    """The p-value of the chi-square test against the law, over its values and one cell for both tails."""
    reach = max(2, math.ceil(3.2 * scale))
    grid = np.arange(-60 * reach, 60 * reach + 1)
    law = np.exp(-0.5 * (grid / scale) ** 2)
    law /= law.sum()
    inner = np.abs(grid) <= reach
    expected = np.append(law[inner], law[~inner].sum()) * len(found)
    seen = np.bincount(np.clip(np.abs(found), 0, reach + 1) * np.sign(found) + reach + 1, minlength=2 * reach + 3)
    seen = np.append(seen[1:-1], seen[0] + seen[-1])
    some = expected > 5
    seen, expected = np.append(seen[some], seen[~some].sum()), np.append(expected[some], expected[~some].sum() + 1e-9)
    return float(chi2.sf(((seen - expected) ** 2 / expected).sum(), len(seen) - 1))


@pytest.mark.parametrize("scale", [0.6, 1.0, 1.7, 5.5, 40.0])
def test_the_law_is_the_discrete_gaussian_and_no_other(scale: float) -> None:
    found = keyed_gaussian(KEY, "law", scale, 60_000)
    assert chance(found, scale) > 1e-6
    assert chance(found, scale * 2 / 3) < 1e-12
    assert chance(found, scale * 3 / 2) < 1e-12


@pytest.mark.parametrize("scale", [0.3, 1.0, 5.5, 1e9 + 0.3, 2.0**52])
def test_floats_decide_as_exact_arithmetic_does(scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every coin is compared with exp(-x) in exact arithmetic: not one draw is another."""
    fast = keyed_gaussian(KEY, "exact", scale, 300)
    monkeypatch.setattr(keyed_noise, "_SURE", 2.0)
    assert keyed_gaussian(KEY, "exact", scale, 300).tolist() == fast.tolist()


@pytest.mark.parametrize("x", [Fraction(0), Fraction(1), Fraction(1, 3), Fraction(10**30 + 1, 10**29), Fraction(700)])
@pytest.mark.parametrize("bits", [64, 256, 1024])
def test_bounds_on_the_exponential_hold_it(x: Fraction, bits: int) -> None:
    low, high = keyed_noise._exponential(x, bits)
    with mpmath.workdps(800):
        truth = mpmath.exp(-mpmath.mpf(x.numerator) / x.denominator)
        assert mpmath.mpf(low.numerator) / low.denominator < truth < mpmath.mpf(high.numerator) / high.denominator
    assert high - low < Fraction(1, 1 << bits)


def test_a_coin_that_words_leave_open_is_told_by_further_digits() -> None:
    """The first 64 digits are those of exp(-1); those that follow decide, whichever way they fall."""
    with mpmath.workdps(60):
        word = int(mpmath.floor(mpmath.exp(-1) * 2**64))
        rest = int(mpmath.floor((mpmath.exp(-1) * 2**64 - word) * 2**64))
    for seed in range(20):
        name = f"coin {seed}"
        following = int(Stream(KEY, name).words(1)[0])
        assert following != rest
        assert keyed_noise._is_below(word, Stream(KEY, name), Fraction(1)) is (following < rest)


def test_a_key_and_a_name_give_the_same_noise_again_and_others_none_of_it() -> None:
    one = keyed_gaussian(KEY, "night 1", 50.0, 20_000)
    assert keyed_gaussian(KEY, "night 1", 50.0, 20_000).tolist() == one.tolist()
    for other in (keyed_gaussian(KEY, "night 2", 50.0, 20_000), keyed_gaussian(KEY[::-1], "night 1", 50.0, 20_000)):
        assert abs(float(np.corrcoef(one, other)[0, 1])) < 6 / math.sqrt(20_000)
        assert abs(float(np.mean(one == other)) - 1 / (2 * math.sqrt(math.pi) * 50)) < 0.004
    assert "0" not in repr(Stream(KEY, "night 1"))


def test_a_short_key_and_a_scale_beyond_all_bounds_are_refused() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        keyed_gaussian(b"short", "x", 1.0, 1)
    with pytest.raises(UsageError, match="noise scale"):
        keyed_gaussian(KEY, "x", 2.0**53, 1)
