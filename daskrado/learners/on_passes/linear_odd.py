"""Learning from a mean operator: the label-free part of the risk over partitions, plus a linear part.

F(w) = (1/m) sum g(w.x_i) - (a/2) w.mu + strength |w|^2, rows as shares of the norm bound, g the even part of a
linear-odd loss. Labels enter through mu alone, so whatever released mu privately makes the model private.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from daskrado.errors import UsageError
from daskrado.lake.collect import Passes, Progress
from daskrado.losses.linear_odd import AbsoluteOdd, EvenPart
from daskrado.losses.margin import Loss
from daskrado.statistics.base import Groups
from daskrado.statistics.even_risk import EvenRisk

Vector = NDArray[np.float64]
ROUNDINGS = (1.0, 0.1, 0.01, 1e-3)


@dataclass(frozen=True)
class Even:
    """The even risk at some weights: its value, slope and curvature, and the weights themselves."""

    weights: Vector
    value: float
    slope: Vector
    curvature: NDArray[np.float64]


class Features(Protocol):
    """Unlabelled rows, wherever they are."""

    def even(self, loss: Loss, weights: Vector) -> Even:
        """The even risk at (or within rounding of) these weights."""


@dataclass(frozen=True)
class LakeFeatures:
    """The rows of a lake: every call is one pass of exact sums over its partitions."""

    passes: Passes
    groups: Groups | None = None
    progress: Progress | None = None

    def even(self, loss: Loss, weights: Vector) -> Even:
        """One pass."""
        bits = self.passes.lattice.bits
        statistic = EvenRisk(self.passes.domain.width, loss, tuple(weights.tolist()), bits, self.groups)
        summary = self.passes.sum(statistic, progress=self.progress)
        return Even(statistic.grid_weights, *statistic.read(summary.vector))


@dataclass(frozen=True)
class ArrayFeatures:
    """Rows in memory, already as shares of the norm bound."""

    rows: NDArray[np.float64]

    def even(self, loss: Loss, weights: Vector) -> Even:
        """Plain float sums."""
        part, z = EvenPart(loss), self.rows @ weights
        slope = self.rows.T @ part.slope(z) / len(z)
        curvature = (self.rows * part.curvature(z)[:, None]).T @ self.rows / len(z)
        return Even(weights, float(part.value(z).mean()), slope, curvature)


@dataclass(frozen=True)
class Fit:
    """Weights for rows as shares of the norm bound, and how the minimum was certified.

    ``response`` says how far each weight moves, as a standard deviation, if each coordinate of the mean operator has
    noise of deviation 1: the rows of (a/2) H^-1, H the curvature of F at the weights.
    """

    weights: Vector
    passes: int
    gradient_norm: float
    objective: float
    response: Vector


def fit_mean(
    features: Features,
    loss: Loss,
    mean: Vector,
    strength: float,
    *,
    tolerance: float = 1e-7,
    passes: int = 200,
    start: Vector | None = None,
) -> Fit:
    """Minimise F by damped Newton steps until its gradient is below ``tolerance`` (or rounding stops it).

    Post-processing of the mean operator: nothing here needs an exact minimum for privacy. ``strength`` must be above
    0: a noisy linear part can outgrow the even part, and F would have no minimum.

    Reference
        Patrini, Nielsen and Nock (2015), algorithm 1.
    """
    check_regularisation(strength)
    if not np.isfinite(mean).all():
        raise UsageError("the mean operator must be finite")
    if loss.name == "unhinged":  # the even part is zero: a minimum in closed form
        weights = EvenPart(loss).coefficient * mean / (4 * strength)
        response = np.full(len(mean), EvenPart(loss).coefficient / (4 * strength))
        return Fit(weights, 0, 0.0, float(-strength * weights @ weights), response)
    weights = np.zeros(len(mean)) if start is None else start
    if not isinstance(loss, AbsoluteOdd) or loss.rounding:
        return _newton(features, loss, mean, strength, weights, tolerance, passes)
    used = 0
    for rounding in ROUNDINGS:
        fit = _newton(features, loss.rounded(rounding), mean, strength, weights, tolerance, passes)
        weights, used = fit.weights, used + fit.passes
    return replace(fit, passes=used)


def check_regularisation(strength: float) -> None:
    """Refuse a regulariser without strength, saying why it is needed."""
    if not (math.isfinite(strength) and strength > 0):
        raise UsageError(
            f"regularisation must be above 0, got {strength!r}: with a noisy mean operator the objective is "
            "unbounded below without it"
        )


def _newton(
    features: Features, loss: Loss, mean: Vector, strength: float, start: Vector, tolerance: float, passes: int
) -> Fit:
    half = EvenPart(loss).coefficient / 2

    def look(weights: Vector) -> tuple[Even, float, Vector]:
        even = features.even(loss, weights)
        w = even.weights
        value = even.value - half * float(w @ mean) + strength * float(w @ w)
        return even, value, even.slope - half * mean + 2 * strength * w

    even, value, gradient = look(start)
    used, share = 1, 1.0
    size = float(np.linalg.norm(gradient))
    while size > tolerance and used < passes and share > 2.0**-20:
        hessian = even.curvature + 2 * strength * np.eye(len(mean))
        step = -np.linalg.solve(hessian, gradient)
        drop = float(gradient @ step)
        tried, tried_value, tried_gradient = look(even.weights + share * step)
        used += 1
        tried_size = float(np.linalg.norm(tried_gradient))
        # Near the minimum the value no longer shows progress: there a smaller gradient is accepted instead.
        if tried_value <= value + 1e-4 * share * drop or tried_size < 0.9 * size:
            even, value, gradient, size = tried, tried_value, tried_gradient, tried_size
            share = min(1.0, 4 * share)
        else:
            share /= 4
    moved = half * np.linalg.inv(even.curvature + 2 * strength * np.eye(len(mean)))
    return Fit(even.weights, used, size, value, np.linalg.norm(moved, axis=1))
