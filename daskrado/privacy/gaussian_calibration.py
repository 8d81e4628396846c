"""How much Gaussian noise a budget asks for, on integers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from daskrado.privacy.accountant import MAX_ROUNDING_GAP, Event, GaussianEvent, ZcdpEvent, gaussian_mu, zcdp_rho

FINE = (
    "Gaussian mechanism (Balle and Wang 2018; Dong, Roth and Su 2022) with discrete noise on a fine grid, "
    "within 1e-6 of rounded normal noise"
)
_COARSE = "discrete Gaussian mechanism, optimal zCDP conversion (Canonne, Kamath and Steinke 2020)"


class Calibration(NamedTuple):
    """What the noise costs, mu = L2 sensitivity / scale over all draws together, and the theorem."""

    event: Event
    mu: float
    theorem: str


def calibrate(epsilon: float, delta: float, gap: Callable[[float], float]) -> Calibration:
    """The least discrete Gaussian noise for (epsilon, delta).

    ``gap`` tells, for a mu, the sum of :func:`daskrado.privacy.curves.rounding_gap` over all draws. Where it is small
    the noise counts as normal, which is rounded: 5 to 10 % less than zCDP asks for, and zCDP is what is left on a
    coarse grid.

    *Reference*: Balle and Wang (2018), the curve; Dong, Roth and Su (2022), composition; Canonne, Kamath and Steinke
    (2020), zCDP of discrete noise.
    """
    mu, rho = gaussian_mu(epsilon, delta), zcdp_rho(epsilon, delta)
    if mu**2 > 2 * rho and gap(mu) <= MAX_ROUNDING_GAP:
        return Calibration(GaussianEvent(mu), mu, FINE)
    return Calibration(ZcdpEvent(rho), math.sqrt(2 * rho), _COARSE)
