"""The discrete Gaussian's sampler decides as exact arithmetic would, to the last bit of a word and beyond it."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import mpmath
import numpy as np
import pytest

from daskrado.privacy import gaussian_sampler, noise
from daskrado.privacy.gaussian_sampler import _kept, _some, _zeros

SCALES = [0.05, 0.3, 1.0, 1.7, 3.0, 1e3 + 0.1, 2.0**20, 2.0**52 - 1, 2.0**52]


def proposals(scale: float) -> list[tuple[int, int]]:
    """Blocks and numbers over all that can be kept with a probability above 2^-64."""
    t = int(np.ceil(scale))
    return [(k, k * t + j) for k in range(10) for j in sorted({0, 1 % t, t // 3, t // 2, t - 1})]


def chance(k: int, y: int, scale: float) -> mpmath.mpf:
    """p of the module's text, to sixty digits."""
    return mpmath.mpf(2) ** (k - 1) * mpmath.exp((1 - (mpmath.mpf(y) / mpmath.mpf(scale)) ** 2) / 2)


@pytest.fixture(autouse=True)
def digits() -> Iterator[None]:
    with mpmath.workdps(60):
        yield


@pytest.mark.parametrize("scale", SCALES)
def test_a_proposal_is_kept_exactly_where_a_uniform_number_is_below_its_chance(scale, monkeypatch):
    """Words at the chance, and beside it; the one that agrees with it in 64 bits is told by the bits that follow."""
    for k, y in proposals(scale):
        p = chance(k, y, scale)
        assert 0 < p <= 1
        if p == 1:
            assert _kept(np.array([2**64 - 1], dtype=np.uint64), np.array([k]), np.array([y]), scale).all()
            continue
        at = int(mpmath.floor(p * 2**64))
        for after, same in ((b"\x00", True), (b"\xff", False)):
            monkeypatch.setattr(noise, "os", SimpleNamespace(urandom=lambda count, after=after: after * count))
            for word in (at - 2**30, at - 1, at, at + 1, at + 2**30):
                if 0 <= word < 2**64 and (word or at):  # a chance of 2^-1000 would take as many zeros
                    kept = _kept(np.array([word], dtype=np.uint64), np.array([k]), np.array([y]), scale)
                    assert kept[0] == (word < at or (word == at and same)), (k, y, word - at)


@pytest.mark.parametrize("scale", [0.3, 1.0, 1.7, 3.0, 40.5])
def test_what_is_proposed_and_kept_has_the_law(scale):
    """Block, place and chance multiply to exp(-y^2 / 2 scale^2), with one constant, for each y once."""
    t = int(np.ceil(scale))
    found = {
        k * t + j: mpmath.mpf(2) ** -(k + 1) / t * chance(k, k * t + j, scale) for k in range(12) for j in range(t)
    }
    assert sorted(found) == list(range(12 * t))
    constant = found[0]
    for y, mass in found.items():
        assert abs(mass / constant / mpmath.exp(-(mpmath.mpf(y) ** 2) / (2 * mpmath.mpf(scale) ** 2)) - 1) < 1e-50


def test_blocks_are_the_zeros_that_end_a_word(monkeypatch):
    words = np.array([1, 2, 3, 8, 2**62, 5 << 20], dtype=np.uint64)
    assert _zeros(words).tolist() == [0, 1, 0, 3, 62, 20]
    more = iter([0, 4])  # sixty-three zeros, again as many, then two
    monkeypatch.setattr(gaussian_sampler, "random_words", lambda count: np.full(count, next(more), dtype=np.uint64))
    assert _zeros(np.array([0], dtype=np.uint64)).tolist() == [63 + 63 + 2]


def test_zero_is_drawn_with_one_sign_only(monkeypatch):
    """A proposal of block 0, place 0, that is kept whatever its sign: zero stands once among the draws."""
    answers = iter([np.array([1, 1 | 1 << 63], dtype=np.uint64), np.zeros(2, dtype=np.uint64)])
    monkeypatch.setattr(gaussian_sampler, "random_words", lambda count: next(answers)[:count])
    assert _some(2, 0.5).tolist() == [0]


@pytest.mark.real_noise
def test_every_draw_of_the_doubles_is_that_of_exact_arithmetic(monkeypatch):
    """The same words with no room for doubles, so that exact arithmetic tells everything."""
    generator = np.random.Generator(np.random.Philox(key=[3, 1]))
    count, scale = 2_000, 12.75
    words = generator.integers(0, 2**64, count, dtype=np.uint64)
    k = generator.integers(0, 4, count)
    y = k * 13 + generator.integers(0, 13, count)
    usual = _kept(words, k, y, scale)
    monkeypatch.setattr(gaussian_sampler, "_ROOM", 2.0**70)
    assert np.array_equal(_kept(words, k, y, scale), usual)
    assert 0 < usual.sum() < count
