"""Error bars of least squares from released moments: the noise as it was drawn, and the sampling of rows.

Post-processing of a release. Moments M = sum of y x and S = sum of x x' are released as M + e and S + E, for rows x
of the unit ball and labels y of +-1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import ndtri

from daskrado.learners.cell_margins import CellMargins
from daskrado.learners.on_release.identified import Identified, Mask, Matrix, Vector, stands_out
from daskrado.models.error_bars import LEVEL, ErrorBars
from daskrado.table.columns import booleans, indicators, one_hot
from daskrado.table.domain import Domain

ENOUGH = 5.0  # times the size of the noise, sigma sqrt(d): from there on an eigenvalue counts as known
LEFT_OUT = 0.05  # of the rows: a column of which more are in no known category has no intervals
_INSIDE = 0.98  # a mean label is kept off +-1, where nothing is left to vary
ABOUT = (
    "95 % intervals for the weights that ever more rows of the same kind would give: they count the noise and the "
    "chance of which rows there are, taken as independent; one-hot columns stand against their own weighted mean"
)


@dataclass(frozen=True)
class NoisyMoments:
    """Released moments of rows in the unit ball, with the deviation of the noise on an entry of each.

    ``clusters``: rows of one unit may be alike, and together they count as at most so many. ``label`` is the sum of
    squared labels where they are numbers; labels of +-1 have the number of rows. Of several classes each has a column
    of ``mean``, and is an ``indicator``, 0 or 1, by itself.
    """

    mean: Vector
    second: Matrix
    mean_noise: float
    second_noise: float
    clusters: int = 1
    label: float | None = None
    indicator: bool = False

    def of_class(self, number: int) -> NoisyMoments:
        """Those of one of several classes, by its place."""
        return replace(self, mean=self.mean[:, number], indicator=True)

    def residual_square(self, domain: Domain, theta: Vector, space: Identified) -> float:
        """The mean square of what ``theta`` leaves of the labels."""
        rows = row_count(domain, self.second, space)
        total = rows if self.label is None else self.label
        if self.indicator and space.one.any():  # an indicator's square is itself, and its sum the rows of its class
            total = float(np.clip(domain.norm_bound * space.one @ self.mean, 0.0, rows))
        return max(0.0, total - 2 * float(theta @ self.mean) + float(theta @ self.second @ theta)) / rows

    @property
    def seen(self) -> Mask:
        """Which features stand out of the noise; of several classes, for any of them."""
        means, squares = np.atleast_2d(self.mean.T), np.diag(self.second)
        found = [stands_out(one, squares, self.mean_noise, self.second_noise) for one in means]
        return np.asarray(np.any(found, axis=0))


def enough(noise: float, width: int) -> float:
    """The least eigenvalue that counts as known: a rule of thumb."""
    return ENOUGH * noise * math.sqrt(width)


def error_bars(domain: Domain, moments: NoisyMoments, found: Identified) -> ErrorBars:
    """Intervals for all weights whose features many rows have, or the reason why there are none.

    With b = S^-1 M on what is identified, b - beta = S^-1 (u + e - E beta) to first order, where u = sum of x times
    residual. The triangle's noise is shared: Cov(E b) = sigma^2 (|b|^2 I + b b' - diag(b_i^2)). The law holds where
    no eigenvalue of the released S is small against E: rare categories are set aside first, and where the least
    eigenvalue of the rest is still below ENOUGH sigma sqrt(d) there are no intervals, nor for a column of which more
    than LEFT_OUT of the rows are set aside. The variance of u is
    :func:`residual_spread` or the homoscedastic one, whichever is larger for a weight; of numbers the latter, for
    moments do not say where residuals are larger. One of several classes is a label of its own, 0 or 1: its M has the
    noise of an entry, and S is the one that all classes share.

    *Reference*: Ferrando, Wang and Sheldon (2022) for intervals from a release alone; White (1980), the sandwich.
    """
    diagonal, seen = np.diag(moments.second), found.seen
    rare = indicators(domain) & (diagonal < enough(moments.second_noise, found.basis.shape[1]))
    known = seen & ~rare
    if not known.any():
        return replace(
            ErrorBars.none(domain.width, "no intervals: no feature stands far out of the noise"), seen=seen
        )
    space = Identified.of(domain, diagonal, known)
    basis = space.basis
    values, vectors = np.linalg.eigh(basis.T @ moments.second @ basis)
    least = max(enough(moments.second_noise, len(values)), 1e-9 * float(values.max(initial=0.0)))
    if not float(values.min(initial=math.inf)) > least:
        why = f"the released second moments have an eigenvalue of {values.min():.3g} where noise asks for {least:.3g}"
        return replace(ErrorBars.none(domain.width, f"no intervals: {why}"), seen=seen)
    inverse = basis @ ((vectors / values) @ vectors.T) @ basis.T
    theta = inverse @ moments.mean
    shared = float(theta @ theta) * np.eye(domain.width) + np.outer(theta, theta) - np.diag(theta**2)
    noise = moments.mean_noise**2 * np.eye(domain.width) + moments.second_noise**2 * shared
    rows = row_count(domain, moments.second, space)
    even = moments.residual_square(domain, theta, space) * moments.second
    map_ = space.centre @ inverse
    spread = _diagonal(map_, even)
    if moments.label is None:
        # of an indicator t, 2 t - 1 is a label of +-1, whose residuals are twice as large
        both = 2 * theta - domain.norm_bound * space.one if moments.indicator else theta
        sides = residual_spread(domain, moments.second, both, rows, space) / (4 if moments.indicator else 1)
        spread = np.maximum(spread, _diagonal(map_, sides))
    spread += share_spread(domain, moments, theta, rows, space)
    deviation = np.sqrt(np.maximum(0.0, moments.clusters * spread + _diagonal(map_, noise)))
    centre, reach = space.centre @ theta, -float(ndtri((1 - LEVEL) / 2)) * deviation
    told = known & ~left_out(domain, moments.second, space)
    ends = [np.where(told, (centre + side * reach) / domain.norm_bound, math.nan) for side in (-1, 1)]
    about = ABOUT if moments.label is None else f"{ABOUT}; residuals are taken to be as large everywhere"
    return ErrorBars(ends[0], ends[1], seen, about)


def left_out(domain: Domain, second: Matrix, space: Identified) -> Mask:
    """The features of columns that many rows have without any seen category: nothing stands for their mean there."""
    found, rows = np.zeros(domain.width, dtype=bool), float(space.one @ second @ space.one)
    for where in one_hot(domain):
        found[where] = float(np.diag(second)[where][space.seen[where]].sum()) < (1 - LEFT_OUT) * rows
    return found


def row_count(domain: Domain, second: Matrix, space: Identified) -> float:
    """The number of rows, from their second moments: a row that was clipped has length 1, in others a 1 is a 1."""
    groups = [float(np.diag(second)[where].sum()) for where in one_hot(domain)]
    ones = [
        *groups,
        *(float(second[place, place]) for place in booleans(domain)),
        float(space.one @ second @ space.one),
    ]
    return max(float(np.trace(second)), domain.norm_bound**2 * max(ones), 1.0)


def residual_spread(domain: Domain, second: Matrix, theta: Vector, rows: float, space: Identified) -> Matrix:
    """The sum of (squared residual) x x', from moments alone: labels of +-1 vary least where they are nearly sure.

    Rows of two categories j and k have the mean label tanh(a_j + a_k - a), where the tanh of a_j, a_k and a are the
    mean labels of each and of all rows, known from M; a residual's square is then 1 - m^2 + v (1 - 2 g), with v the
    variance of margins that j and k leave, and g = (1 - m_jk^2) / (1 - m^2), as labels follow margins less where they
    are nearly sure. A boolean counts as the category of its true rows; numbers as the average row.
    """
    if not space.one.any():
        return np.zeros_like(second)
    cells = CellMargins.of(domain, second, theta, rows, space.one)
    means = np.clip(cells.means, -_INSIDE, _INSIDE)
    average = min(_INSIDE, max(-_INSIDE, cells.average))
    lift = np.arctanh(means) - math.atanh(average)
    both = np.tanh(lift[:, None] + lift[None] + math.atanh(average))
    np.fill_diagonal(both, means)
    slope = (1 - both**2) / (1 - average**2)
    square = np.clip(1 - both**2 + cells.pairs()[1] * (1 - 2 * slope), 0.02, 1.5)
    return np.asarray(cells.back @ (cells.second * square) @ cells.back.T)


def share_spread(domain: Domain, moments: NoisyMoments, theta: Vector, rows: float, space: Identified) -> Vector:
    """What the chance of how many rows have each category adds: the mean of a column, taken off its weights, varies.

    Of shares p: the sum of p (theta - mean)^2 / rows, and sigma^2 times that of (theta - mean)^2 / (sum of S)^2.
    """
    found, moved = np.zeros(domain.width), 0.0
    for where in one_hot(domain):
        seen, square = space.seen[where], np.maximum(np.diag(moments.second)[where], 0)
        if not seen.any() or space.one[where].any():  # the column that stands for the constant keeps its mean
            continue
        total = float(square[seen].sum())
        apart = np.where(seen, theta[where] - square[seen] @ theta[where][seen] / total, 0.0) ** 2
        own = float(square @ apart) / total / rows + moments.second_noise**2 * float(apart.sum()) / total**2
        found[where] += np.where(seen, own, 0.0)
        moved += own
    return np.asarray(found + space.one**2 * moved)


def _diagonal(map_: Matrix, inner: Matrix) -> Vector:
    return np.asarray(np.einsum("ij,ij->i", map_ @ inner, map_))
