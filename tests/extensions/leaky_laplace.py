"""A mechanism of one's own, with an unusual event: Laplace noise that is off with probability delta."""

from __future__ import annotations

import secrets
from typing import ClassVar

from daskrado.privacy.accountant import ApproximateEvent, Event
from daskrado.privacy.mechanisms import OneShot, Target
from daskrado.privacy.noise import discrete_laplace, laplace_variance
from daskrado.statistics.base import IntVector

OFF = 1e-6


class LeakyLaplace(OneShot):
    """Discrete Laplace noise, but none at all with probability 1e-6: (epsilon, 1e-6), never pure.

    Sensitivity
        L1 of the normalised joint vector, from the statistic.
    """

    name: ClassVar[str] = "leaky_laplace"
    needs_delta: ClassVar[bool] = True
    theorem = "Laplace noise that fails with probability 1e-6"

    def __init__(self, target: Target, epsilon: float) -> None:
        self._event = ApproximateEvent(epsilon, OFF)
        super().__init__(target, target.sensitivity.l1 / epsilon)

    @classmethod
    def for_budget(cls, target: Target, epsilon: float, delta: float, granted: Event | None = None) -> OneShot:
        """Spends epsilon and 1e-6, whatever delta was asked for."""
        del delta, granted
        return cls(target, epsilon)

    @property
    def event(self) -> Event:
        """What it really costs."""
        return self._event

    def _noisy(self, values: IntVector, grid_scale: float) -> IntVector:
        return values if secrets.randbelow(10**6) == 0 else discrete_laplace(values, grid_scale)

    def _variance(self, grid_scale: float) -> float:
        return laplace_variance(grid_scale)
