"""Discrete Gaussian noise."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from daskrado.errors import UsageError
from daskrado.privacy.accountant import MAX_ROUNDING_GAP, Event, GaussianEvent, rounding_gap
from daskrado.privacy.gaussian_calibration import FINE, calibrate
from daskrado.privacy.mechanisms.base import Mechanism, OneShot, Target
from daskrado.privacy.noise import discrete_gaussian, gaussian_variance

if TYPE_CHECKING:
    from daskrado.statistics.base import IntVector


class DiscreteGaussian(OneShot):
    """Discrete Gaussian noise with sigma = l2 / mu, mu the largest that (epsilon, delta) allows.

    Where the grids of all blocks are so fine that the noise cannot be told from a rounded normal one
    (:func:`daskrado.privacy.curves.rounding_gap`), mu is that of the Gaussian mechanism. Else, as where a count of
    rows has noise, it is sqrt(2 rho) by the optimal conversion of zCDP: 5 to 10 % more noise at usual budgets.

    ``granted`` is an event that was reserved for a larger sensitivity: the noise then stays within it. If the rows
    turn out so short that the grid is coarse for them, it is a little more than they need.

    Sensitivity
        L2 of the normalised joint vector, from the statistic. Independent noise of scales sigma_k on integer
        coordinates that move by D_k has mu^2 = sum D_k^2 / sigma_k^2, so blocks may have their own grids.

    Reference
        Canonne, Kamath and Steinke (2020), "The discrete Gaussian for differential privacy"; Balle and Wang (2018);
        Dong, Roth and Su (2022).
    """

    name: ClassVar[str] = "gaussian"
    needs_delta: ClassVar[bool] = True

    def __init__(self, target: Target, epsilon: float, delta: float, granted: Event | None = None) -> None:
        if not delta > 0:
            raise UsageError(f"gaussian noise needs delta above 0, got {delta}; use laplace for a pure guarantee")
        noisy = [block for block in target.statistic.blocks if block.name not in target.sensitivity.public]
        grids = [(block.size, block.normalised_step(target.lattice)) for block in noisy]
        l2 = target.sensitivity.l2

        def gap(scale: float) -> float:
            return math.fsum(rounding_gap(size, scale / step) for size, step in grids)

        least = 0.0
        if isinstance(granted, GaussianEvent):
            fine = max(step for _, step in grids) * 1e6
            least = (
                fine * math.sqrt(gap(fine) / MAX_ROUNDING_GAP) * (1 + 1e-9)
            )  # a gap falls with the square of its scale
        self._event, mu, self.theorem = calibrate(epsilon, delta, lambda mu: gap(max(l2 / mu, least)))
        if granted is not None and granted != self._event:
            raise ValueError(f"{granted} is not what epsilon {epsilon:g} and delta {delta:g} buy")
        super().__init__(target, max(l2 / mu, least))

    @classmethod
    def of_mu(cls, target: Target, mu: float) -> DiscreteGaussian:
        """Noise for a given mu, as one of several releases that share a budget; refused on a coarse grid."""
        made = cls.__new__(cls)
        made._event, made.theorem = GaussianEvent(mu), FINE
        Mechanism.__init__(made, target, target.sensitivity.l2 / mu)
        gap = sum(rounding_gap(block.size, made.grid_scale(block)) for block in target.statistic.blocks)
        if not gap <= MAX_ROUNDING_GAP:
            raise UsageError(f"noise of mu {mu:g} on {target.statistic.name} is too coarse to count as normal")
        return made

    @classmethod
    def for_budget(cls, target: Target, epsilon: float, delta: float, granted: Event | None = None) -> OneShot:
        """Spends epsilon and delta together."""
        return cls(target, epsilon, delta, granted)

    @property
    def event(self) -> Event:
        """Gaussian, or zCDP on a coarse grid."""
        return self._event

    def _noisy(self, values: IntVector, grid_scale: float) -> IntVector:
        return discrete_gaussian(values, grid_scale)

    def _variance(self, grid_scale: float) -> float:
        return gaussian_variance(grid_scale)
