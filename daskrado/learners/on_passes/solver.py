"""Regularised empirical risk minimisation over a lake, to a certified gradient norm.

Newton up to a few hundred features (gradient and Hessian are one pass), L-BFGS beyond, and Newton again where that
does not get there and a Hessian has room. Where the proof of a private learner rests on the certificate, the solver
goes on until it has one, whatever the rows are: at last by Nesterov's steps, which are slow and sure.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from daskrado.lake.collect import Passes, Share
from daskrado.losses.margin import Loss
from daskrado.statistics.risk import SLOPE_BITS, Risk, RiskSum

if TYPE_CHECKING:
    from daskrado.lake.collect import Progress

NEWTON_WIDTH = 400
HESSIAN_WIDTH = 1000  # a Hessian of so many features has 8 MB, and a small worker merges eight
MAX_PASSES = 200
MOST_ROWS = 16  # times the public number of rows that stands for a secret one
_MEMORY = 20  # pairs that L-BFGS remembers
_ARMIJO = 1e-4
_THIN = 16  # one row in so many for a first guess

Vector = NDArray[np.float64]
Watch = Callable[[int, float], None]


@dataclass(frozen=True)
class Objective:
    """J(w) = (1/n) sum loss(y w.x) + (ridge/2) |w|^2 + linear . w, with n = ``rows``.

    ``rows`` is the lake's number of rows where that is public, else a public number in its place.
    """

    loss: Loss
    ridge: float
    rows: int
    linear: Vector | None = None

    def __repr__(self) -> str:
        return f"<Objective: {self.loss.name}, ridge {self.ridge:g}>"


@dataclass(frozen=True)
class Solution:
    """Where the solver stopped. ``gradient`` bounds |grad J| there, rounding errors included. All private."""

    weights: Vector
    value: float
    gradient: float
    certified: bool
    passes: int
    positives: int
    rows: int

    def __repr__(self) -> str:
        return "<Solution: private>"


@dataclass(frozen=True)
class _Point:
    """The objective at one place."""

    weights: Vector
    value: float
    gradient: Vector
    hessian: Vector | None
    risk: Risk

    def __repr__(self) -> str:
        return "<point: private>"


Look = Callable[[Vector], _Point]


def minimise(
    objective: Objective,
    passes: Passes,
    tolerance: float,
    *,
    share: Share | None = None,
    max_passes: int = MAX_PASSES,
    certify: bool = False,
    progress: Progress | None = None,
    watch: Watch | None = None,
) -> Solution:
    """The minimiser, up to |grad J| <= tolerance, from w = 0, or from the minimiser of a sixteenth of many rows.

    J is convex, so along a search direction its slope only rises: a step that ends before the slope turns positive,
    or that lowers J enough, is safe. ``watch`` sees the number of passes and the gradient norm.

    With ``certify`` it does not stop at ``max_passes``, but where the certificate holds: the ridge must be positive
    and the tolerance at least :func:`certifiable`.
    """
    begin, width = passes.done, passes.domain.width

    def looker(newton: bool, every: int = 1, goal: Objective = objective) -> Look:
        def look(weights: Vector) -> _Point:
            risk = RiskSum(width, goal.loss, weights, passes.lattice, passes.lake.rows, newton, every)
            point = _point(goal, weights, Risk.of(passes.sum(risk, share=share, progress=progress)))
            if watch is not None:
                watch(passes.done - begin, float(np.linalg.norm(point.gradient)))
            return point

        return look

    thin, first = passes.lake.rows // _THIN, None
    newton = width <= NEWTON_WIDTH
    if newton and thin >= 40 * width:
        # A third of the distance at which a sixteenth of the rows cannot tell its minimiser from that of all.
        near = passes.lattice.norm_bound * (objective.loss.lipschitz or 1.0) / (3 * math.sqrt(thin))
        fewer = replace(objective, rows=max(1, objective.rows // _THIN))
        first = _minimise(fewer, passes, looker(True, _THIN, fewer), near, None, 8, begin, newton=True).weights
    left = max_passes - (passes.done - begin)
    found = _minimise(objective, passes, looker(newton), tolerance, first, left, begin, newton=newton)
    if not found.certified and not newton and width <= HESSIAN_WIDTH:
        start = found.weights
        found = _minimise(objective, passes, looker(True), tolerance, start, max_passes, begin, newton=True)
    if certify and not found.certified:
        found = _descend(objective, passes, looker(False), tolerance, found.weights, begin)
    return found


def certifiable(objective: Objective, norm_bound: float, width: int, tilt: float = 0.0) -> float:
    """A tolerance that rounding never keeps the solver from, whatever the rows: four times the error there may be.

    J(w) <= J(0) at the minimiser, so ridge/2 |w|^2 - tilt |w| is at most the loss at 0 there. The number of rows may
    be up to MOST_ROWS times the public one.
    """
    loss, ridge = objective.loss, objective.ridge
    at_zero = MOST_ROWS * float(loss.value(np.zeros(1))[0])
    length = (tilt + math.sqrt(tilt * tilt + 2 * ridge * at_zero)) / ridge
    worst = rounding(replace(objective, linear=np.array([tilt])), MOST_ROWS * objective.rows, norm_bound, width)
    return 4 * worst(np.array([length]))


def _minimise(
    objective: Objective,
    passes: Passes,
    look: Look,
    tolerance: float,
    first: Vector | None,
    most: int,
    begin: int,
    *,
    newton: bool,
) -> Solution:
    width, limit = passes.domain.width, passes.done + most
    here = look(np.zeros(width) if first is None else first)
    slack = rounding(objective, here.risk.rows, passes.lattice.norm_bound, width)
    curve = _Curvature(width)
    step, damping = 1.0, 0.0 if first is not None else _first_damping(objective, passes.lattice.norm_bound)
    while _norm(here) + slack(here.weights) > tolerance and passes.done < limit:
        direction = _newton(here, damping) if newton else curve.direction(here.gradient)
        slope = float(direction @ here.gradient)
        if not slope < 0:
            break  # rounding rules the direction: no further progress is possible
        low, high, step, tried = 0.0, math.inf, 1.0, passes.done
        while passes.done < limit:
            there = look(here.weights + step * direction)
            end = float(direction @ there.gradient)
            lower = there.value <= here.value + _ARMIJO * step * slope + 1e-13 * abs(here.value)
            if end > 0 and not (lower and end <= 0.9 * -slope):
                high = step
            elif not newton and end < 0.9 * slope and high == math.inf:
                low = step
            else:
                break
            # The slope rises from ``slope`` to ``end``: a secant step finds its zero, kept off the ends.
            guess = step * slope / (slope - end) if end > slope else 4.0 * step
            step = min(max(guess, low + 0.1 * (min(high, 8 * step) - low)), low + 0.9 * (min(high, 8 * step) - low))
        curve.learn(there.weights - here.weights, there.gradient - here.gradient)
        damping = 0.0 if damping < objective.ridge else damping * (0.1 if passes.done == tried + 1 else 1.0)
        stuck = _norm(there) >= _norm(here) and _norm(here) < 4 * slack(here.weights)
        here = there
        if stuck:
            break
    return _solution(here, slack, tolerance, passes.done - begin)


def _descend(
    objective: Objective, passes: Passes, look: Look, tolerance: float, first: Vector, begin: int
) -> Solution:
    """Nesterov's method for a strongly convex J, until the gradient is small: it always becomes so.

    After t passes the distance from the minimum has fallen by (1 - sqrt(ridge / M))^t, M a bound on all curvature.

    *Reference*: Nesterov (2004), constant step scheme.
    """
    here = look(first)
    slack = rounding(objective, here.risk.rows, passes.lattice.norm_bound, passes.domain.width)
    assert objective.loss.smoothness is not None
    steepest = objective.loss.smoothness * passes.lattice.norm_bound**2
    largest = max(1, here.risk.rows) / objective.rows * steepest + objective.ridge
    root = math.sqrt(objective.ridge / largest)
    before = first
    while _norm(here) + slack(here.weights) > tolerance:
        now = here.weights - here.gradient / largest
        here, before = look(now + (1 - root) / (1 + root) * (now - before)), now
    return _solution(here, slack, tolerance, passes.done - begin)


def _solution(here: _Point, slack: Callable[[Vector], float], tolerance: float, passes: int) -> Solution:
    bound = _norm(here) + slack(here.weights)
    certified = bound <= tolerance
    return Solution(here.weights, here.value, bound, certified, passes, here.risk.positives, here.risk.rows)


def rounding(objective: Objective, rows: int, norm_bound: float, width: int) -> Callable[[Vector], float]:
    """A bound on the error of a computed |grad J|, as a function of the weights.

    With e = 2^-53: a margin is wrong by at most (d + 3) e |w| R, which moves a slope by ``smoothness`` times that;
    a slope is computed to 8 e of the largest L and truncated to 2^-48 of a power of two that is at most 2 L; sums
    are exact. Each row is at most R long. Counted twice over for safety. Rows beyond MOST_ROWS times the public
    number are not counted: where that is so far from the truth, the certificate has rounding errors.
    """
    unit = 2.0**-52
    loss = objective.loss
    rows = min(rows, MOST_ROWS * objective.rows)
    share = rows / objective.rows
    terms = 4 * 2.0**-SLOPE_BITS + 16 * unit

    def bound(weights: Vector) -> float:
        length = float(np.linalg.norm(weights)) * norm_bound
        steepest = loss.lipschitz if loss.lipschitz is not None else (loss.smoothness or 0.0) * (1.0 + length)
        margin = (loss.smoothness or 0.0) * (width + 3) * unit * length
        linear = 0.0 if objective.linear is None else float(np.linalg.norm(objective.linear))
        own = (objective.ridge * float(np.linalg.norm(weights)) + linear) * 4 * unit
        return share * norm_bound * (terms * steepest + margin) + own

    return bound


def _point(objective: Objective, weights: Vector, risk: Risk) -> _Point:
    value = risk.value / objective.rows + 0.5 * objective.ridge * float(weights @ weights)
    gradient = risk.gradient / objective.rows + objective.ridge * weights
    if objective.linear is not None:
        value += float(objective.linear @ weights)
        gradient = gradient + objective.linear
    hessian = None
    if risk.hessian is not None:
        hessian = risk.hessian / objective.rows
        hessian[np.diag_indices_from(hessian)] += objective.ridge
    return _Point(weights, value, gradient, hessian, risk)


def _norm(point: _Point) -> float:
    return float(np.linalg.norm(point.gradient))


def _first_damping(objective: Objective, norm_bound: float) -> float:
    """A hinge is straight at w = 0, where a bare Newton step would leave for |grad J| / ridge."""
    if float(objective.loss.curvature(np.zeros(1))[0]) > 0 or objective.loss.smoothness is None:
        return 0.0
    return 0.02 * objective.loss.smoothness * norm_bound**2


def _newton(point: _Point, damping: float) -> Vector:
    assert point.hessian is not None
    from scipy.linalg import LinAlgError, cho_factor, cho_solve

    matrix = point.hessian + damping * np.eye(len(point.gradient)) if damping else point.hessian
    try:
        return np.asarray(-cho_solve(cho_factor(matrix), point.gradient))
    except LinAlgError:  # no ridge, and directions in which the loss is flat
        return np.asarray(-np.linalg.lstsq(matrix, point.gradient, rcond=1e-12)[0])


class _Curvature:
    """L-BFGS: the inverse Hessian from the last steps."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.pairs: deque[tuple[Vector, Vector]] = deque(maxlen=_MEMORY)

    def learn(self, step: Vector, change: Vector) -> None:
        """Remember a step and how it changed the gradient; only pairs of positive curvature."""
        if float(step @ change) > 1e-16 * float(np.linalg.norm(step) * np.linalg.norm(change)):
            self.pairs.append((step, change))

    def direction(self, gradient: Vector) -> Vector:
        """Minus the inverse Hessian times the gradient, by the two-loop recursion."""
        q = gradient.copy()
        kept: list[float] = []
        for step, change in reversed(self.pairs):
            kept.append(float(step @ q) / float(step @ change))
            q -= kept[-1] * change
        if self.pairs:
            step, change = self.pairs[-1]
            q *= float(step @ change) / float(change @ change)
        for (step, change), alpha in zip(self.pairs, reversed(kept), strict=True):
            q += (alpha - float(change @ q) / float(step @ change)) * step
        return -q
