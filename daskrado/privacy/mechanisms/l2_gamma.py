"""Spherical noise."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from daskrado.errors import UsageError
from daskrado.privacy.accountant import Event, PureEvent
from daskrado.privacy.gamma import DRAWN, integer_l2_gamma, l2_gamma_variance
from daskrado.privacy.mechanisms.base import OneShot, Target

if TYPE_CHECKING:
    from daskrado.statistics.base import Block, IntVector


class L2Gamma(OneShot):
    """Spherical noise of density exp(-|b|_2 epsilon / l2), rounded to the grid: pure epsilon from the L2 sensitivity.

    In d dimensions its length is about d l2 / epsilon, where Laplace noise for the same row has about
    sqrt(2d) l1 / epsilon: the better of the two as soon as l1 is above sqrt(d/2) l2.

    Sensitivity
        L2 of the normalised joint vector, from the statistic, which must have one noisy block.

    Reference
        Chaudhuri, Monteleoni and Sarwate (2011), equation 7; rounding as in ``gamma.integer_l2_gamma``.
    """

    name: ClassVar[str] = "l2_gamma"
    assumptions: ClassVar[tuple[str, ...]] = (DRAWN,)
    theorem = "L2-gamma mechanism (Chaudhuri, Monteleoni and Sarwate 2011), noise rounded to integers"

    def __init__(self, target: Target, epsilon: float) -> None:
        self._event = PureEvent(epsilon)
        noisy = [block for block in target.statistic.blocks if block.name not in target.sensitivity.public]
        if len(noisy) != 1:
            raise UsageError(f"l2_gamma noise fits one block, but {target.statistic.name} has {len(noisy)}")
        self._dimension = noisy[0].size
        super().__init__(target, target.sensitivity.l2 / float(self._event.epsilon))

    @classmethod
    def for_budget(cls, target: Target, epsilon: float, delta: float, granted: Event | None = None) -> OneShot:
        """Spends epsilon and no delta."""
        del delta, granted
        return cls(target, epsilon)

    @property
    def event(self) -> Event:
        """Pure epsilon."""
        return self._event

    def _reach(self, block: Block) -> float:
        return self.grid_scale(block) * block.size

    def _noisy(self, values: IntVector, grid_scale: float) -> IntVector:
        return integer_l2_gamma(values, grid_scale)

    def _variance(self, grid_scale: float) -> float:
        return l2_gamma_variance(self._dimension, grid_scale)
