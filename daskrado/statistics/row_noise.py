"""Noise for every row, drawn by the task that reads it: a pure function of a secret key and the row's place.

A retried task repeats the same noise, so a doubled task cannot average it away. The key comes from the operating
system, is used for one release and is never written. Bits come from SHAKE-256 under that key.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from daskrado.errors import UsageError
from daskrado.statistics.base import Place

GROUP = 1 << 10  # rows that share one run of the generator
TAIL = 12.0  # the table ends this many scales from 0, where less than 1e-30 of the mass is left
MOST_SCALE = 2.0**15  # of the table, in grid steps
TABLE_ERROR = 2.0**-43
"""Total variation between one draw and the discrete Gaussian law, rounded up: an exponential is off by at most 73
ulps (2**-46 relative), and at most 12 * 2**15 thresholds by 2**-64 each (2**-45); their sums are exact integers."""

Words = NDArray[np.uint64]


def row_words(place: Place, rows: int, width: int, name: str) -> Words:
    """``width`` random 64-bit words for each of ``rows`` rows from ``place`` on, whatever block they come in."""
    out = np.empty((rows, width), dtype=np.uint64)
    for group in range(place.first // GROUP, -(-(place.first + rows) // GROUP)):
        material = hashlib.shake_256(place.key + f"\0{name}\0{group}".encode()).digest(GROUP * width * 8)
        words = np.frombuffer(material, dtype="<u8").reshape(GROUP, width)
        start, stop = max(group * GROUP, place.first), min((group + 1) * GROUP, place.first + rows)
        out[start - place.first : stop - place.first] = words[start - group * GROUP : stop - group * GROUP]
    return out


def gaussian_noise(place: Place, rows: int, width: int, scale: float) -> NDArray[np.float64]:
    """Discrete Gaussian whole numbers of ``scale`` for each row and feature, by inversion of a table.

    P(k) is proportional to exp(-k^2 / (2 scale^2)) for |k| <= 12 scale, within TABLE_ERROR in total variation.

    *Reference*: Canonne, Kamath and Steinke (2020) for what this noise gives.
    """
    words = row_words(place, rows, width, "gaussian")
    # The top bit is the sign, the other 63 choose the size: both tails use thresholds near 0, where they are exact.
    size = np.searchsorted(_thresholds(scale), words & np.uint64((1 << 63) - 1), side="right").astype(np.float64)
    return np.where(words >> np.uint64(63), -size, size)


@lru_cache(maxsize=4)
def _thresholds(scale: float) -> Words:
    """Cumulative masses of |k|, as 63-bit integers. A zero has half its mass under each sign."""
    if not 0 < scale <= MOST_SCALE:
        raise UsageError(f"row noise needs a scale above 0 and at most {MOST_SCALE:g} grid steps, got {scale:g}")
    sizes = np.arange(math.ceil(TAIL * scale) + 1)
    masses = [int(math.ldexp(mass, 160)) for mass in np.exp(-0.5 * (sizes / scale) ** 2).tolist()]
    masses[0] //= 2
    tails = list(itertools.accumulate(reversed(masses)))[::-1]  # tails[s] is the mass of sizes s and above
    return np.array([(1 << 63) - ((tail << 63) // tails[0]) for tail in tails[1:]], dtype=np.uint64)


def flips(place: Place, rows: int, width: int, epsilon: float) -> NDArray[np.bool_]:
    """Randomised response: each entry says "flip" with probability 1 / (1 + exp(epsilon)), rounded up to 2**-64.

    *Sensitivity*: the answer's odds change by a factor of at most exp(epsilon) when the truth changes: pure epsilon.

    *Reference*: Warner (1965).
    """
    threshold = flip_threshold(epsilon)
    return row_words(place, rows, width, "flip") < np.uint64(threshold)


def flip_threshold(epsilon: float) -> int:
    """The number of 64-bit words that flip: at least 2**64 / (1 + exp(epsilon)), never above half."""
    if not 0 < epsilon < math.inf:
        raise UsageError(f"randomised response needs an epsilon above 0, got {epsilon}")
    return min(math.ceil(math.ldexp(1.0 / (1.0 + math.exp(epsilon)), 64) * (1 + 2.0**-50)) + 1, 1 << 63)
