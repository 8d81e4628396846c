"""The L2-gamma law: spherical noise whose density falls with the Euclidean norm, from the system's generator.

OpenDP has no such sampler. What is published goes through ``integer_l2_gamma``: uniform numbers of 128 bits,
arithmetic of 60 decimal digits, and the *noise* is rounded to integers before it is added to integers.

What the bits cost. A uniform number is the midpoint of one of 2^b cells of (0, 1), so none is below 2^-(b+1): a
vector is at most (b + 1) log 2 times dimension times scale long, and near its longest some integers are left out.
There are outputs, that rare, which only one of two neighbours can give. Counted exactly in one dimension, at up to
12 bits and a scale of s grid steps, that is a delta of at most 16 s 2^-b; in d dimensions 16 s d 2^-b is
extrapolated, not proved. At 53 bits, those of a double, it would be above 1 at the largest scale that can be drawn,
s d = 2^52; at 128 bits it is below 2^-72 at every scale.

``l2_gamma`` and ``normal_vector`` are for tilts that are never published themselves, in double precision.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, localcontext

import numpy as np
from numpy.typing import NDArray

from daskrado.errors import UsageError
from daskrado.privacy.noise import MAX_SCALE, MAX_VALUE

_HALF_STEP = 2.0**-54
_PRECISE = Context(prec=60, Emin=MIN_EMIN, Emax=MAX_EMAX)
_HALF_CELL = _PRECISE.divide(Decimal(1), Decimal(1 << 129))
DRAWN = (
    "delta 0 holds for the L2-gamma law itself: the sampler draws it from uniform numbers of 128 bits, which costs a "
    "delta below 2^-72 (counted in one dimension, extrapolated beyond)"
)


def l2_gamma(dimension: int, scale: float) -> NDArray[np.float64]:
    """One vector of density proportional to exp(-|b|_2 / scale) in ``dimension`` dimensions, in double precision.

    Its direction is uniform and its length has the Gamma(dimension, scale) law: the sum of that many exponentials.

    *Sensitivity*: if neighbours differ by at most s in L2 norm, densities differ by a factor of at most
    exp(s / scale), by the triangle inequality: pure epsilon = s / scale.

    *Reference*: Chaudhuri, Monteleoni and Sarwate (2011), equation 7.
    """
    if dimension < 1:
        raise UsageError(f"the dimension of noise must be at least 1, got {dimension}")
    if isinstance(scale, bool) or not 0 < scale < math.inf:
        raise UsageError(f"the noise scale must be above 0 and finite, got {scale!r}")
    from scipy.special import ndtri

    radius = -scale * math.fsum(np.log(_uniform(dimension)))
    direction = ndtri(_uniform(dimension))
    while not (length := float(np.linalg.norm(direction))) > 0:
        direction = ndtri(_uniform(dimension))
    return np.asarray(direction * (radius / length))


def normal_vector(dimension: int, sigma: float) -> NDArray[np.float64]:
    """Independent normal coordinates, for a tilt that is never published itself; idealised as ``l2_gamma`` is."""
    if dimension < 1 or not 0 < sigma < math.inf:
        raise UsageError(f"normal noise needs a dimension and a finite sigma above 0, got {dimension} and {sigma!r}")
    from scipy.special import ndtri

    return np.asarray(ndtri(_uniform(dimension)) * sigma)


def integer_l2_gamma(values: NDArray[np.int64], scale: float) -> NDArray[np.int64]:
    """Add one L2-gamma vector, rounded to integers, to an integer vector; ``scale`` counts grid steps.

    *Sensitivity*: P(rounded noise = k) is the integral of the density over the unit cube around k. Shifting k by an
    integer vector v changes the integrand by a factor of at most exp(|v|_2 / scale) everywhere, hence the integral
    too: rounding costs no privacy, and the sum is exact. What 128-bit uniforms cost is in the module's docstring.

    *Reference*: see :func:`l2_gamma`; Marsaglia and Bray (1964), the polar method, for its direction.
    """
    array = np.asarray(values)
    if array.dtype != np.int64:
        raise UsageError(f"noise is added to int64 grid values only, got {array.dtype}")
    _check_scale(array.size, scale)
    if array.size and max(int(array.max()), -int(array.min())) > MAX_VALUE:
        raise UsageError("a value is above 2^62 in size: noise could overflow int64; use a coarser grid")
    noise = np.array(_rounded_vector(array.size, scale), dtype=np.int64)
    return np.asarray(array + noise.reshape(array.shape))


def _rounded_vector(dimension: int, scale: float) -> list[int]:
    with localcontext(_PRECISE):
        radius = gamma_length(_uniforms(dimension), scale)
        direction = _normals(dimension)
        factor = radius / sum((part * part for part in direction), Decimal(0)).sqrt()
        return [int((part * factor).to_integral_value()) for part in direction]


def gamma_length(uniforms: Sequence[Decimal], scale: float) -> Decimal:
    """A length of the Gamma(dimension, scale) law from as many uniform numbers: the log of their product."""
    product = Decimal(1)
    for uniform in uniforms:
        product *= uniform
    return -Decimal(scale) * product.ln()


def _normals(count: int) -> list[Decimal]:
    """Independent normal numbers, up to a common factor. How many tries they take depends on no private number."""
    found: list[Decimal] = []
    while len(found) < count:
        missing = _uniforms((count - len(found)) // 2 * 2 + 2)
        for u, v in zip(missing[::2], missing[1::2], strict=True):
            x, y = 2 * u - 1, 2 * v - 1
            square = x * x + y * y
            if 0 < square < 1:
                stretch = (-square.ln() / square).sqrt()
                found += [x * stretch, y * stretch]
    return found[:count]


def _uniforms(count: int) -> list[Decimal]:
    """Uniform on the midpoints of 2^128 cells of (0, 1), from the operating system's generator."""
    material = os.urandom(16 * count)
    words = (int.from_bytes(material[at : at + 16], "little") for at in range(0, 16 * count, 16))
    return [(2 * word + 1) * _HALF_CELL for word in words]


def l2_gamma_variance(dimension: int, scale: float) -> float:
    """Variance of one coordinate: E|b|^2 / d = (d + 1) scale^2, for a scale that can be drawn."""
    _check_scale(dimension, scale)
    return (dimension + 1) * scale * scale


def _check_scale(dimension: int, scale: float) -> None:
    if not 0 < scale * dimension <= MAX_SCALE:
        raise UsageError(f"the noise scale must be above 0 and below 2^52 grid steps in all, got {scale!r}")


def _uniform(count: int) -> NDArray[np.float64]:
    """Uniform on the midpoints of 2^53 cells of (0, 1), from the operating system's generator."""
    words = np.frombuffer(os.urandom(8 * count), dtype=np.uint64) >> np.uint64(11)
    return words.astype(np.float64) * 2.0**-53 + _HALF_STEP


def coordinate_reach(dimension: int, level: float) -> float:
    """How far one coordinate of L2-gamma noise of scale 1 stays from 0 with chance ``level``.

    Its length is Gamma(d) and its direction uniform. Integrated over all but one coordinate, the density
    exp(-|b|) leaves |t|^(d/2) K_(d/2)(|t|), up to a factor: Laplace's in one dimension, nearly a normal one of
    variance d + 1 in many.

    *Reference*: Kotz, Kozubowski and Podgorski (2001), the symmetric variance-gamma law: |t|^(d/2) K_(d/2) is
    that of a normal number whose variance is 2 Gamma((d + 1) / 2).

    >>> round(coordinate_reach(1, 0.95), 4)  # Laplace: -log 0.05
    2.9957
    """
    from scipy.optimize import brentq
    from scipy.special import erf, gammaincinv

    places = (np.arange(20_000) + 0.5) / 20_000
    deviations = np.sqrt(2 * gammaincinv((dimension + 1) / 2, places))

    def short(far: float) -> float:
        return float(erf(far / (math.sqrt(2.0) * deviations)).mean()) - level

    return float(brentq(short, 1e-6, 60 * math.sqrt(dimension + 1), xtol=1e-9))
