"""Noise and private choice: the only module that touches OpenDP, which is imported when first needed.

All randomness comes from OpenDP's cryptographic generator or the operating system's; nothing here can be seeded.
Noise is drawn for integers only, exactly, so no floating-point rounding of a sum or of a sample can reveal anything.
Gaussian noise has a sampler of its own (``gaussian_sampler``), since moments of a few hundred features are tens of
thousands of draws and OpenDP's takes 10 microseconds for each.
"""

from __future__ import annotations

import math
import os
from functools import cache, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskrado.errors import UsageError

MAX_VALUE = 2**62
MAX_SCALE = 2.0**52


def discrete_laplace(values: NDArray[np.int64], scale: float) -> NDArray[np.int64]:
    """Add independent discrete Laplace (two-sided geometric) noise to every integer.

    P(noise = k) = (1 - q) / (1 + q) * q^|k|,  q = exp(-1 / scale),  k any integer.

    *Sensitivity*: if neighbours differ by at most s in L1 norm, counted in grid steps, the probabilities of any
    output differ by a factor of at most q^-s = exp(s / scale): pure epsilon = s / scale. ``scale`` is the scale,
    not the standard deviation.

    Values above 2^62 and scales above 2^52 are refused: then P(a sum leaves int64) < exp(-1000). OpenDP would
    saturate there, which is post-processing and costs accuracy, not privacy.

    *Reference*: Ghosh, Roughgarden and Sundararajan (2009); exact sampling, Canonne, Kamath and Steinke (2020).
    """
    return _add(_laplace, values, scale)


def discrete_gaussian(values: NDArray[np.int64], scale: float) -> NDArray[np.int64]:
    """Add independent discrete Gaussian noise to every integer.

    P(noise = k) = exp(-k^2 / (2 scale^2)) / sum over all integers j of exp(-j^2 / (2 scale^2)).

    *Sensitivity*: if neighbours differ by at most s in L2 norm, counted in grid steps, the whole vector is
    rho-zCDP with rho = s^2 / (2 scale^2). The analytic Gaussian curve is not exactly valid for a discrete vector; by
    how little it fails at large scales, :func:`daskrado.privacy.curves.rounding_gap` tells.

    Values above 2^62 and scales above 2^52 are refused, as in ``discrete_laplace``.

    *Reference*: Canonne, Kamath and Steinke (2020).
    """
    return _add(_gaussian, values, scale)


def exponential_choice(scores: NDArray[np.float64], epsilon: float, sensitivity: float) -> int:
    """The exponential mechanism: an index i with P(i) proportional to exp(epsilon score_i / (2 sensitivity)).

    Drawn as the maximum of score + Gumbel noise of scale 2 sensitivity / epsilon, rounded up. OpenDP compares
    the noisy scores exactly (it refines the Gumbel draws until they are ordered), so no score ever has its
    probability rounded to zero. It is ideal as far as the scores are: a caller who computes them in floats must
    bound their sensitivity *after* rounding; counts are exact.

    *Sensitivity*: if every score moves by at most ``sensitivity`` between neighbours, the numerator and the
    normaliser each change by a factor of at most exp(epsilon / 2): pure ``epsilon``.

    *Reference*: McSherry and Talwar (2007).
    """
    array = np.asarray(scores)
    if array.dtype != np.float64 or array.ndim != 1 or array.size == 0:
        raise UsageError(f"scores must be a non-empty float64 vector, got {array.dtype} of shape {array.shape}")
    if not np.isfinite(array).all():
        raise UsageError("scores must be finite")
    for name, number in (("epsilon", epsilon), ("sensitivity", sensitivity)):
        if not 0 < number < math.inf:
            raise UsageError(f"{name} must be above 0 and finite, got {number!r}")
    scale = math.nextafter(2 * sensitivity / epsilon, math.inf)
    if not 0 < scale < math.inf:
        raise UsageError(f"2 * sensitivity / epsilon must be a finite number above 0, got {scale!r}")
    return int(_chooser(scale)(array.tolist()))


def coins(chances: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Independent coins: coin i is true with probability exactly chances[i] / 2^64, from the operating system."""
    array = np.asarray(chances)
    if array.dtype != np.uint64:
        raise UsageError(f"the chances of coins are uint64 out of 2^64, got {array.dtype}")
    return (random_words(array.size).reshape(array.shape) < array).astype(np.bool_)


def uniform_below(limit: int, count: int) -> NDArray[np.int64]:
    """Independent uniform integers in 0..limit-1, exactly (words that would favour some values are drawn again)."""
    if not 1 <= limit <= 2**62:
        raise UsageError(f"the limit of uniform integers lies between 1 and 2^62, got {limit!r}")
    fair = 2**64 - 2**64 % limit
    words = random_words(count)
    while fair < 2**64 and (unfair := np.flatnonzero(words >= np.uint64(fair))).size:
        words[unfair] = random_words(unfair.size)
    return (words % np.uint64(limit)).astype(np.int64)


def random_words(count: int) -> NDArray[np.uint64]:
    """Independent uniform words of 64 bits from the operating system."""
    return np.frombuffer(os.urandom(8 * count), dtype=np.uint64).copy()


def laplace_variance(scale: float) -> float:
    """The exact variance 2 q / (1 - q)^2 of the discrete Laplace noise, q = exp(-1 / scale).

    Written as 1 / (2 sinh^2(1 / (2 scale))), which has no cancellation at large scales.
    """
    check_scale(scale)
    half = 0.5 / scale
    return 0.0 if half > 350 else 0.5 / math.sinh(half) ** 2


def gaussian_variance(scale: float) -> float:
    """The variance of the discrete Gaussian noise, to double precision; never above scale^2.

    Summed directly below scale 5; above it the Poisson summation formula puts the difference from scale^2 below
    exp(-2 pi^2 scale^2) in relative size, which no double can show.

    *Reference*: Canonne, Kamath and Steinke (2020).
    """
    check_scale(scale)
    if scale >= 5:
        return scale * scale
    weights = [(k * k, math.exp(-0.5 * (k / scale) ** 2)) for k in range(1, 200)]
    return 2 * math.fsum(k2 * w for k2, w in weights) / (1 + 2 * math.fsum(w for _, w in weights))


def _add(mechanism: Any, values: NDArray[np.int64], scale: float) -> NDArray[np.int64]:
    array = np.asarray(values)
    if array.dtype != np.int64:
        raise UsageError(f"noise is added to int64 grid values only, got {array.dtype}")
    check_scale(scale)
    # Both ends are compared as Python integers: abs(-2^63) overflows in int64.
    if array.size and max(int(array.max()), -int(array.min())) > MAX_VALUE:
        raise UsageError("a value is above 2^62 in size: noise could overflow int64; use a coarser grid")
    noisy = mechanism(float(scale))(array.ravel())
    return np.array(noisy, dtype=np.int64).reshape(array.shape)


def check_scale(scale: float) -> None:
    """Refuse a scale in grid steps that no sampler here can draw."""
    if isinstance(scale, bool) or not 0 < scale <= MAX_SCALE:
        raise UsageError(f"the noise scale must be above 0 and at most 2^52 grid steps, got {scale!r}")


def get_ready() -> None:
    """Load the samplers, ahead of a draw: a crash between spending and drawing loses the charge, so that is short."""
    _opendp()
    _gaussian(1.0)


@cache
def _opendp() -> tuple[Any, Any, Any, Any]:
    # The parts, not opendp.prelude, whose extras take seconds to import.
    from opendp import domains, measurements, measures, metrics
    from opendp.mod import enable_features

    enable_features("contrib")
    return domains, measurements, measures, metrics


@lru_cache(maxsize=64)  # making one takes longer than a small draw; a draw leaves no state in it
def _laplace(scale: float) -> Any:
    domains, measurements, _, metrics = _opendp()
    integers = domains.vector_domain(domains.atom_domain(T="i64"))
    made = measurements.make_laplace(integers, metrics.l1_distance(T="i64"), scale=scale)
    return lambda values: made(values.tolist())


def _gaussian(scale: float) -> Any:
    from daskrado.privacy.gaussian_sampler import draw

    return lambda values: values + draw(len(values), scale)


def _chooser(scale: float) -> Any:
    domains, measurements, measures, metrics = _opendp()
    scores = domains.vector_domain(domains.atom_domain(T=float, nan=False))
    # Under the zCDP measure OpenDP draws Gumbel noise (the exponential mechanism); under the pure one it draws
    # exponential noise (permute-and-flip), whose probabilities are others.
    return measurements.make_noisy_max(
        scores, metrics.linf_distance(T=float), measures.zero_concentrated_divergence(), scale=scale
    )
