"""How residuals spread where a descent on a number ended: one more small release, for error bars."""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from daskrado.learners.on_passes.iterative import Session
from daskrado.privacy.noise import discrete_gaussian
from daskrado.statistics.base import Summary
from daskrado.statistics.residual_spread import FINE, ResidualSpread

SHARE = 0.005  # of mu^2: 59 rows of noise at epsilon 1, delta 1e-6, and a quarter of a percent more on gradients
STEP = math.ldexp(1.0, -FINE)


class Spread(NamedTuple):
    """Sums over rows: of squared slopes of Huber's loss, and of rows beyond its corner."""

    squares: float
    beyond: float


def noise_of(mu: float, reach: float) -> float:
    """On each of the two sums, in rows; ``reach`` is how far one unit moves them."""
    return reach / (mu * math.sqrt(SHARE))


def released(session: Session, statistic: ResidualSpread, noise: float) -> Spread:
    """The two sums with their noise.

    *Sensitivity*: that of ``ResidualSpread``, at weights that are public by then.
    """

    def perturb(summary: Summary) -> NDArray[np.int64]:
        return discrete_gaussian(summary.vector, noise / STEP)

    within, beyond = session.draw(partial(session.passes.sum, statistic, share=session.share), perturb) * STEP
    return Spread(max(0.0, float(within)) + max(0.0, float(beyond)), max(0.0, float(beyond)))
