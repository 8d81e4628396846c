"""Discrete Gaussian noise from a secret key: whoever has the key draws the same noise again, nobody else any of it.

Words come from AES-256 in counter mode, keyed by HKDF-SHA256 of the key and a name: as good as the operating system's
generator against whoever cannot break AES. The law is exact: a coin of chance exp(-x) compares as many random bits
with exp(-x) as it takes to tell. Floating point decides where it is certain, exact arithmetic where it is not, so the
noise of a key is the same on every machine.

Reference
    Canonne, Kamath and Steinke (2020), "The discrete Gaussian for differential privacy", algorithms 2 and 3.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable
from fractions import Fraction
from functools import partial

import numpy as np
from numpy.typing import NDArray

from daskrado.privacy.noise import check_scale

_SURE = 2.0**-40  # floats err by less than 2^-48 here; nearer to a chance than this, exact arithmetic decides
Words = NDArray[np.uint64]


class Stream:
    """Random words of a key and a name; any other name gives words that tell nothing about these."""

    def __init__(self, key: bytes, name: str) -> None:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        if len(key) != 32:
            raise ValueError("a key of noise has 32 bytes")
        self._key, self._name = key, name
        material = HKDF(SHA256(), 48, salt=None, info=b"daskrado noise 1\0" + name.encode()).derive(key)
        self._cipher = Cipher(algorithms.AES256(material[:32]), modes.CTR(material[32:])).encryptor()
        self._coins = 0

    def __repr__(self) -> str:
        return "<Stream>"

    def words(self, count: int) -> Words:
        """The next words."""
        return np.frombuffer(self._cipher.update(bytes(8 * count)), dtype="<u8").astype(np.uint64)

    def coins(self, x: NDArray[np.float64], exactly: Callable[[int], Fraction]) -> NDArray[np.bool_]:
        """Coins that are true with chance exp(-x); ``exactly(i)`` is the x of coin i, of which its float is near."""
        words, chance = self.words(len(x)), np.exp(-x)
        drawn = words * 2.0**-64
        found = drawn < chance
        for i in np.flatnonzero(np.abs(drawn - chance) <= _SURE).tolist():
            more = Stream(self._key, f"{self._name}\0{self._coins + i}")
            found[i] = _is_below(int(words[i]), more, exactly(i))
        self._coins += len(x)
        return np.asarray(found)


def keyed_gaussian(key: bytes, name: str, scale: float, count: int) -> NDArray[np.int64]:
    """``count`` independent discrete Gaussian draws: P(k) is proportional to exp(-k^2 / (2 scale^2)).

    A draw of the discrete Laplace law of scale t = floor(scale) + 1 is taken with chance
    exp(-(|y| - scale^2 / t)^2 / (2 scale^2)), else made anew.
    """
    check_scale(scale)
    stream, t, square = Stream(key, name), int(scale) + 1, Fraction(scale) ** 2
    found, open_ = np.zeros(count, dtype=np.int64), np.arange(count)
    while len(open_):
        proposed, negative, usable = _laplace(stream, t, len(open_))
        x = np.asarray((proposed - scale * (scale / t)) ** 2 / (2 * scale * scale), dtype=np.float64)
        taken = stream.coins(x, partial(_cost, proposed, square, t)) & usable
        found[open_[taken]] = np.where(negative, -proposed, proposed)[taken]
        open_ = open_[~taken]
    return found


def _cost(proposed: NDArray[np.int64], square: Fraction, t: int, i: int) -> Fraction:
    return (int(proposed[i]) - square / t) ** 2 / (2 * square)


def _laplace(stream: Stream, t: int, count: int) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.bool_]]:
    """Sizes and signs of discrete Laplace draws of scale t, and which of them count.

    u is uniform below t and counts with chance exp(-u / t); v is geometric, P(v >= k) = exp(-k); the size is u + t v,
    and a negative zero does not count.
    """
    words = stream.words(count)
    fair = (1 << 64) - (1 << 64) % t
    usable = words < np.uint64(fair) if fair < 1 << 64 else np.ones(count, dtype=bool)
    u = (words % np.uint64(t)).astype(np.int64)
    usable &= stream.coins(u / t, lambda i: Fraction(int(u[i]), t))
    v = np.zeros(count, dtype=np.int64)
    going = np.arange(count)
    while len(going):
        going = going[stream.coins(np.ones(len(going)), lambda _: Fraction(1))]
        v[going] += 1
    size = u + t * v
    negative = (stream.words(count) & np.uint64(1)).astype(bool)
    return size, negative, usable & ~(negative & (size == 0))


def _is_below(word: int, more: Stream, x: Fraction) -> bool:
    """Whether the number whose first 64 binary digits are ``word``, and then those of ``more``, is below exp(-x)."""
    drawn, bits = word, 64
    while True:
        low, high = _exponential(x, bits)
        if Fraction(drawn + 1, 1 << bits) <= low:
            return True
        if Fraction(drawn, 1 << bits) >= high:
            return False
        drawn, bits = (drawn << 64) + int(more.words(1)[0]), bits + 64


def _exponential(x: Fraction, bits: int) -> tuple[Fraction, Fraction]:
    """Bounds on exp(-x), about 2^-bits of each other."""
    digits = bits // 3 + 20
    context = decimal.Context(prec=digits, Emin=decimal.MIN_EMIN, Emax=decimal.MAX_EMAX)
    near = context.divide(decimal.Decimal(-x.numerator), decimal.Decimal(x.denominator))
    value = Fraction(context.exp(near))
    # The quotient errs by a relative 10^(1-digits), its exponential by x times that, rounding by as much again.
    slack = value * (x + 1) * Fraction(2, 10 ** (digits - 2))
    return value - slack, value + slack
