"""What the noise on a mean operator can do to the risk and to the weights, with every constant written out."""

from __future__ import annotations

import math
from dataclasses import dataclass

from daskrado.errors import UsageError


def noise_length(kind: str, dimension: int, scale: float, failure: float, std: float | None = None) -> float:
    """A length that the noise vector exceeds with probability at most ``failure``.

    * laplace, ``scale`` per coordinate: scale sqrt(d) log(d / failure). Patrini, Nielsen and Nock (2015, theorem 10)
      leave the sqrt(d) out: a long vector need not have a long coordinate.
    * l2_gamma: the exact quantile of the Gamma(d, scale) law of its length.
    * gaussian: scale times the quantile of the chi law with d degrees of freedom.
    * any other law, whose coordinates have the standard deviation ``std``: std sqrt(d / failure), by Chebyshev.
    """
    if not 0 < failure < 1:
        raise UsageError(f"failure must be between 0 and 1, got {failure!r}")
    if scale == 0:
        return 0.0
    if kind == "laplace":
        return scale * math.sqrt(dimension) * math.log(dimension / failure)
    from scipy.special import gammainccinv  # the quantile itself: scipy.stats takes most of a second to import

    if kind == "l2_gamma":
        return scale * float(gammainccinv(dimension, failure))
    if kind == "gaussian":
        return scale * math.sqrt(2 * float(gammainccinv(dimension / 2, failure)))
    if std is not None:
        return std * math.sqrt(dimension / failure)
    raise UsageError(f"noise {kind!r} is unknown; allowed: laplace, l2_gamma, gaussian")


@dataclass(frozen=True)
class LabelNoiseBounds:
    """Theorem 10 (corrected) and theorem 6 (with its constant) of Patrini, Nielsen and Nock (2015)."""

    failure: float
    length: float
    risk_gap: float
    weight_gap: float


def label_noise_bounds(
    kind: str,
    dimension: int,
    scale: float,
    *,
    coefficient: float,
    norm: float,
    strength: float,
    std: float | None = None,
    failure: float = 0.05,
) -> LabelNoiseBounds:
    """With probability at least 1 - failure over the noise b on the mean operator (rows as shares of the norm bound):

    * for the weights w learned, |risk with mu - risk with noisy mu| = (a/2) |w.b| <= (a/2) |w| |b|;
    * |w - w*| <= a |b| / (4 strength), for the regulariser strength |w|^2 and w* learned without noise.

    The second follows from strong convexity: F has modulus 2 strength, and the two objectives differ by the linear
    function (a/2) w.b, so the minima differ by at most (a/2)|b| / (2 strength).
    """
    length = noise_length(kind, dimension, scale, failure, std)
    return LabelNoiseBounds(failure, length, coefficient / 2 * norm * length, coefficient * length / (4 * strength))
