"""Error bars of a noisy descent: one Newton step from what it released anyway, whose error is known.

Gradients at points u are H (u - u*) + e near the best weights u*, with H the curvature summed over the rows and e the
noise. So their mean g at the mean point u gives u* = u - H^-1 (g - e), whatever schedule led there: u - H^-1 g misses
the best weights by H^-1 e, and these miss those of ever more rows by what sampling does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import ndtri

from daskrado.learners.cell_margins import CellMargins, Matrix, Vector
from daskrado.learners.on_passes.residuals import Spread
from daskrado.learners.on_passes.schedule import Schedule
from daskrado.learners.on_release.identified import Identified, Mask, against_means, may_hide, stands_out
from daskrado.learners.on_release.moment_errors import ABOUT, NoisyMoments, left_out, row_count, share_spread
from daskrado.losses.margin import Loss
from daskrado.models.error_bars import LEVEL, ErrorBars
from daskrado.privacy.perturbation import PublicFacts
from daskrado.statistics.second_moments import SecondMoments, matrix
from daskrado.table.columns import indicators, places
from daskrado.table.domain import CategoricalColumn, Domain, NumericColumn

KNOWN = 2.0  # times the size of the noise on S: from there on an eigenvalue counts, for S only scales a small step
_NODES = 16  # of the quadrature over margins


@dataclass(frozen=True)
class Trace:
    """What a descent released, for rows in the unit ball: the second moments S with the deviation of the noise on a
    square, 1 / sqrt(2) of it on a product; the mean point and the mean sum of gradients of its later steps, and the
    sum of all gradients, each with the deviation of the noise on a coordinate."""

    loss: Loss
    second: Matrix
    second_noise: float
    point: Vector
    gradient: Vector
    gradient_noise: float
    gathered: Vector
    gathered_noise: float
    clusters: int = 1
    pairs: bool = True  # False where only squares were released, which ``second`` is then
    residuals: Spread | None = None  # where the label is a number

    @classmethod
    def of(
        cls,
        plan: Schedule,
        facts: PublicFacts,
        moments: Vector,
        point: Vector,
        late: Vector,
        averaged: int,
        gathered: Vector,
    ) -> Trace:
        """From a schedule, what it released as moments, and mean gradients: ``late`` over ``averaged`` steps."""
        second = matrix(SecondMoments(facts.width), moments) if plan.pairs else moments
        return cls(
            plan.loss,
            second,
            plan.moments_noise,
            point,
            late * plan.rows,
            plan.noise / math.sqrt(averaged),
            gathered * plan.rows,
            plan.noise * math.sqrt(plan.count),
            facts.rows_per_unit if facts.by_unit else 1,
            plan.pairs,
        )

    @property
    def seen(self) -> Mask:
        """Which features stand out of the noise."""
        return stands_out(self.gathered, self.squares, self.gathered_noise, self.second_noise)

    @property
    def squares(self) -> Vector:
        """The diagonal of S."""
        return np.asarray(np.diag(self.second) if self.pairs else self.second)


OWN = 3.0


def published_weights(domain: Domain, trace: Trace, weights: Vector) -> Vector:
    """Weights with unseen categories at the mean of their column, one-hot columns against their mean."""
    return against_means(domain, trace.squares, kept_by(domain, trace), weights)


def kept_by(domain: Domain, trace: Trace) -> Mask:
    """Which features keep the weight that the descent found.

    Those that stand out; numbers, and bins, which are what their neighbours made them. In a column of which noise may
    hide more than HIDDEN of the rows in one category, gradients know more of a category than its square does, and
    declared ones stay. What is left for all other values, which as a rule no row has, stays only where its gradients
    are OWN deviations of noise long.
    """
    kept, squares = trace.seen, trace.squares
    for column, where in places(domain):
        hides = may_hide(float(squares[where].sum()), trace.second_noise)
        own = np.abs(trace.gathered[where]) > OWN * trace.gathered_noise
        declared = np.arange(column.size) < column.size - (isinstance(column, CategoricalColumn) and column.other)
        kept[where] |= isinstance(column, NumericColumn) | (hides & (declared | own))
    kept[domain.width - bool(domain.intercept) :] = True
    return kept


def descent_bars(domain: Domain, trace: Trace) -> ErrorBars:
    """Intervals for all weights whose features many rows have, or the reason why there are none.

    H and the spread J of gradients are sums over rows of curvature and squared slope times x x', from S and the
    margins of each pair of categories (``cell_margins``), or of a number from the spread of its residuals
    (``residuals``). The noise E on S enters only through the step d = H^-1 g:
    Cov(E d) = sigma^2 (|d|^2 I + d d') / 2.

    *Reference*: Ferrando, Wang and Sheldon (2022) for intervals from a release alone; White (1980), the sandwich.
    """
    none = replace(ErrorBars.none(domain.width, "no intervals: "), seen=kept_by(domain, trace))
    space = identified(domain, trace, trace.seen)
    if isinstance(space, str):
        return replace(none, about=none.about + space)
    basis, known = space.basis, space.seen
    rows = row_count(domain, trace.second, space)
    curvature, spread = _curvature_and_spread(domain, trace, rows, space)
    inner = basis.T @ curvature @ basis
    values, vectors = np.linalg.eigh(inner)
    if not values.min() > 0:
        return replace(none, about=f"{none.about}noise hides the curvature of the loss")
    inverse = basis @ ((vectors / values) @ vectors.T) @ basis.T
    step = inverse @ trace.gradient
    best = np.where(known, trace.point, 0.0) - step
    scale = float(np.trace(inner) / np.trace(basis.T @ trace.second @ basis))
    inside = trace.clusters * spread + step_noise(trace, scale, step)
    map_ = space.centre @ inverse
    variance = np.einsum("ij,ij->i", map_ @ inside, map_)
    variance = variance + trace.clusters * share_spread(domain, moments_of(trace), best, rows, space)
    reach = -float(ndtri((1 - LEVEL) / 2)) * np.sqrt(np.maximum(variance, 0.0))
    centre = space.centre @ best
    told = known & ~left_out(domain, trace.second, space)
    ends = [np.where(told, (centre + side * reach) / domain.norm_bound, math.nan) for side in (-1, 1)]
    about = ABOUT if trace.residuals is None else f"{ABOUT}; residuals are taken to be as large everywhere"
    return ErrorBars(ends[0], ends[1], none.seen, about)


def identified(domain: Domain, trace: Trace, seen: Mask) -> Identified | str:
    """What rows can tell apart of features that were ``seen`` and that many rows have, or why there is nothing."""
    if not trace.pairs:
        return "products of so many features were not released"
    squares, noise = trace.squares, KNOWN * trace.second_noise / math.sqrt(2)
    known = seen & ~(indicators(domain) & (squares < noise * math.sqrt(max(1, int(seen.sum())))))
    space = Identified.of(domain, squares, known)
    if not known.any() or not (space.one.any() or trace.residuals is not None):
        return "no feature stands far out of the noise"
    least = float(np.linalg.eigvalsh(space.basis.T @ trace.second @ space.basis).min())
    enough = noise * math.sqrt(space.basis.shape[1])
    if not least > max(enough, 1e-9 * float(squares.max())):
        return f"the released second moments have an eigenvalue of {least:.3g} where noise asks for {enough:.3g}"
    return space


def step_noise(trace: Trace, scale: float, step: Vector) -> Matrix:
    """The covariance of what noise adds to the mean gradient, and to a step by the curvature that S says."""
    one = np.eye(len(step))
    through = (scale * trace.second_noise) ** 2 / 2 * (float(step @ step) * one + np.outer(step, step))
    return np.asarray(trace.gradient_noise**2 * one + through)


def moments_of(trace: Trace) -> NoisyMoments:
    """What a descent says of the shares of categories."""
    return NoisyMoments(trace.gathered, trace.second, trace.gathered_noise, trace.second_noise, trace.clusters)


def _curvature_and_spread(domain: Domain, trace: Trace, rows: float, space: Identified) -> tuple[Matrix, Matrix]:
    """The sums over rows of curvature and of squared slope, each times x x'; of a number alike everywhere."""
    if trace.residuals is not None:
        within = min(1.0, max(0.05, 1 - trace.residuals.beyond / rows))
        square = min(1.0, trace.residuals.squares / rows)
        return within * trace.loss.curvature(np.zeros(1))[0] * trace.second, square * trace.second
    cells = CellMargins.of(domain, trace.second, trace.point, rows, space.one)
    return weighted(cells, curvature_of(trace.loss)), weighted(cells, slope_of(trace.loss))


def weighted(cells: CellMargins, function: Callable[[Matrix], Matrix]) -> Matrix:
    """The sum over rows of function(margin) x x', the margins of each pair of categories taken as normal."""
    mean, variance = cells.pairs()
    nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)
    deviation, total = np.sqrt(variance), np.zeros_like(mean)
    for node, weight in zip(nodes, weights / weights.sum(), strict=True):
        total += weight * function(mean + node * deviation)
    return np.asarray(cells.back @ (cells.second * total) @ cells.back.T)


def curvature_of(loss: Loss) -> Callable[[Matrix], Matrix]:
    """The expected curvature at a margin, for labels that the loss itself takes for likely there."""

    def function(margin: Matrix) -> Matrix:
        yes = likely(loss, margin)
        return np.asarray(yes * loss.curvature(margin) + (1 - yes) * loss.curvature(-margin))

    return function


def slope_of(loss: Loss) -> Callable[[Matrix], Matrix]:
    """The expected square of the slope at a margin."""

    def function(margin: Matrix) -> Matrix:
        yes = likely(loss, margin)
        return np.asarray(yes * loss.slope(margin) ** 2 + (1 - yes) * loss.slope(-margin) ** 2)

    return function


def likely(loss: Loss, margin: Matrix) -> Matrix:
    """The chance of a positive label at which this margin is best: p slope(z) = (1 - p) slope(-z)."""
    here, there = loss.slope(margin), loss.slope(-margin)
    return np.asarray(np.where(here + there == 0, 0.5, there / np.minimum(here + there, -1e-300)))
