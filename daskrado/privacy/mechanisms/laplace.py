"""Discrete Laplace noise."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from daskrado.privacy.accountant import Event, PureEvent
from daskrado.privacy.mechanisms.base import OneShot, Target
from daskrado.privacy.noise import discrete_laplace, laplace_variance

if TYPE_CHECKING:
    from daskrado.statistics.base import IntVector


class DiscreteLaplace(OneShot):
    """Discrete Laplace noise of scale l1 / epsilon: pure epsilon.

    Sensitivity
        L1 of the normalised joint vector, from the statistic.

    Reference
        Ghosh, Roughgarden and Sundararajan (2009), "Universally utility-maximizing privacy mechanisms".
    """

    name: ClassVar[str] = "laplace"
    theorem = "discrete Laplace mechanism (Ghosh, Roughgarden and Sundararajan 2009)"

    def __init__(self, target: Target, epsilon: float) -> None:
        self._event = PureEvent(epsilon)
        super().__init__(target, target.sensitivity.l1 / float(self._event.epsilon))

    @classmethod
    def for_budget(cls, target: Target, epsilon: float, delta: float, granted: Event | None = None) -> OneShot:
        """Spends epsilon and no delta."""
        del delta, granted
        return cls(target, epsilon)

    @property
    def event(self) -> Event:
        """Pure epsilon."""
        return self._event

    def _noisy(self, values: IntVector, grid_scale: float) -> IntVector:
        return discrete_laplace(values, grid_scale)

    def _variance(self, grid_scale: float) -> float:
        return laplace_variance(grid_scale)
