"""Discrete Gaussian noise, many draws at a time: exact, from the operating system's generator.

A proposal is a block k >= 0 with probability 2^-(k+1), a place j in 0..t-1, t = ceil(scale), and a sign. It stands
for the number y = k t + j, and each y >= 0 has one such (k, j). It is kept with probability

    p = 2^(k-1) exp(1/2 - (y / scale)^2 / 2) <= 1,

for y / scale >= k and (k - 1) log 2 <= (k^2 - 1) / 2; so y is kept with probability exp(-y^2 / (2 scale^2)) times a
constant. Zero with a minus is dropped, as it would count twice. More than half of the proposals for wide noise stay.

No probability is rounded. A uniform real U is known by its first 64 bits; doubles, with room for all their errors,
tell whether U < p unless U and p agree in about 40 bits. Then p is computed to as many digits as it takes, and more
bits of U are drawn: the answer is that of exact arithmetic on an infinite U.

*Reference*: Karney (2016), "Sampling exactly from the normal distribution", whose algorithm D this follows with a
simpler first step; Canonne, Kamath and Steinke (2020), the law and why it protects.
"""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from daskrado.privacy.noise import random_words, uniform_below

Integers = NDArray[np.int64]
Words = NDArray[np.uint64]
_ROOM = 2.0**-40  # relative; doubles compute p to 2^-44 where it is above 2^-64
_FARTHEST = 1000  # blocks; one beyond is proposed with probability 2^-1000, and kept with less than exp(-499,000)


def draw(count: int, scale: float) -> Integers:
    """Independent draws."""
    kept = [np.empty(0, dtype=np.int64)]
    while (missing := count - sum(map(len, kept))) > 0:
        kept.append(_some(2 * missing + 16, scale)[:missing])
    return np.concatenate(kept)


def _some(proposals: int, scale: float) -> Integers:
    """What is kept of so many proposals."""
    words = random_words(proposals)
    minus = words >= np.uint64(2**63)
    k = _zeros(words & np.uint64(2**63 - 1))
    y = k * math.ceil(scale) + uniform_below(math.ceil(scale), proposals)
    kept = _kept(random_words(proposals), k, y, scale) & ~(minus & (y == 0))
    return np.asarray(np.where(minus, -y, y)[kept])


def _zeros(words: Words) -> Integers:
    """How many fair coins come up 0 before the first 1: the zeros at the end of 63 bits, and of more if need be."""
    last = words & (~words + np.uint64(1))  # a power of two, which a double holds exactly
    found = np.where(words == 0, 63, np.frexp(last.astype(np.float64))[1] - 1).astype(np.int64)
    if (empty := np.flatnonzero(words == 0)).size:
        found[empty] += _zeros(random_words(empty.size) & np.uint64(2**63 - 1))
    return np.minimum(found, _FARTHEST)


def _kept(words: Words, k: Integers, y: Integers, scale: float) -> NDArray[np.bool_]:
    """Whether the reals that begin with these words are below p."""
    p = np.ldexp(np.exp(0.5 - 0.5 * (y / scale) ** 2), (k - 1 + 64).astype(np.int32))
    first = words.astype(np.float64)
    kept = first < p * (1 - _ROOM) - 2
    for i in np.flatnonzero(~kept & (first <= p * (1 + _ROOM) + 2)):
        kept[i] = _below(int(words[i]), int(k[i]), int(y[i]), Fraction(scale))
    return kept


def _below(bits: int, k: int, y: int, scale: Fraction) -> bool:
    """The same, exactly. Where p is not 1 it is transcendental, so that enough bits always tell."""
    exponent = Fraction(1, 2) - (y / scale) ** 2 / 2
    if exponent == 0 and k == 1:
        return True
    size = 64
    while True:
        with localcontext(prec=size) as exact:  # decimal digits: far more than bits of U
            p = exact.exp(Decimal(exponent.numerator) / exponent.denominator) * 2 ** Decimal(k - 1 + size)
            error = p * Decimal(10) ** (10 - size)
            if bits + 1 <= p - error:
                return True
            if bits >= p + error:
                return False
        bits, size = bits << 64 | int(random_words(1)[0]), size + 64
