"""The L2-gamma law: spherical noise whose density falls with the Euclidean norm, from the system's generator.

OpenDP has no such sampler. The draw is idealised in one respect only: it is computed in double precision from uniform
numbers of 53 bits. It never meets a private number in floating point: ``integer_l2_gamma`` rounds the *noise* to
integers before it is added to integers.

What that costs, exactly. A uniform number is the midpoint of one of 2^53 cells of (0, 1), so none is below 2^-54: an
exponential is at most 54 log 2 = 37.43, and a vector at most 37.43 times dimension times scale long. The stated law
has no largest length; one of its exponentials is above that with probability at most dimension 2^-54. A uniform
number near 2^-j has its neighbours at a relative distance of 2^(j - 53), so that an exponential near j log 2 moves in
steps of 2^(j - 53): in one dimension, at a scale of s grid steps, grid points are left out among the lengths that are
exceeded with probability below s 2^-53. So there are outputs, that rare, which only one of two neighbours can give:
pure privacy (delta 0) is proved for the stated law, not for this arithmetic.
"""

from __future__ import annotations

import math
import os

import numpy as np
from numpy.typing import NDArray

from daskrado.errors import UsageError
from daskrado.privacy.noise import MAX_SCALE, MAX_VALUE

_HALF_STEP = 2.0**-54


def l2_gamma(dimension: int, scale: float) -> NDArray[np.float64]:
    """One vector of density proportional to exp(-|b|_2 / scale) in ``dimension`` dimensions.

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
    too: rounding costs no privacy, and the sum is exact.

    *Reference*: see :func:`l2_gamma`.
    """
    array = np.asarray(values)
    if array.dtype != np.int64:
        raise UsageError(f"noise is added to int64 grid values only, got {array.dtype}")
    _check_scale(array.size, scale)
    if array.size and max(int(array.max()), -int(array.min())) > MAX_VALUE:
        raise UsageError("a value is above 2^62 in size: noise could overflow int64; use a coarser grid")
    return np.asarray(array + np.rint(l2_gamma(array.size, scale)).astype(np.int64).reshape(array.shape))


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
