"""Mechanisms: calibrated once from a statistic's derived sensitivity, used once, on integers.

No caller types a sensitivity: it follows from the statistic, the relation and the rows per protected unit.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from daskrado.errors import UsageError
from daskrado.privacy.accountant import GAP, Event, GaussianEvent, PureEvent, rounding_gap
from daskrado.privacy.gamma import integer_l2_gamma, l2_gamma_variance
from daskrado.privacy.gaussian_calibration import calibrate
from daskrado.privacy.noise import (
    check_scale,
    discrete_gaussian,
    discrete_laplace,
    gaussian_variance,
    laplace_variance,
)
from daskrado.privacy.relations import Relation, Sensitivity

if TYPE_CHECKING:
    from daskrado.statistics.base import Block, IntVector, Statistic
    from daskrado.table.lattice import Lattice

_NOTHING = 1e-18  # far below one grid step of any block: a sensitivity that is 0, or was 0 before it was rounded up


@dataclass(frozen=True)
class Target:
    """What is to be protected: a statistic on a lattice, under a relation, for a unit of some rows."""

    statistic: Statistic
    lattice: Lattice
    relation: Relation
    rows_per_unit: int = 1

    @property
    def sensitivity(self) -> Sensitivity:
        """Of the normalised joint vector, for one protected unit."""
        return self.statistic.sensitivity(self.relation).times(self.rows_per_unit)


class Mechanism(ABC):
    """Adds noise to every block that is not public, exactly once. One whose noise cannot be drawn is never made."""

    name: ClassVar[str]
    theorem: str

    def __init__(self, target: Target, scale: float) -> None:
        self.target = target
        self.scale = scale * (1 + 2.0**-40)  # of the noise on the normalised joint vector; rounding never lowers it
        self._used = False
        self._check_scales()

    def _check_scales(self) -> None:
        """Refuse now, before anything is reserved or spent, what could not be drawn then."""
        found, statistic = self.target.sensitivity, self.target.statistic
        if not min(found.l1, found.l2) > _NOTHING:
            raise UsageError(
                f"{statistic.name} has sensitivity 0 under {self.target.relation}: what is protected does not reach "
                "it (are all features 0?), so that there is nothing to learn and nothing to spend a budget on"
            )
        for block in statistic.blocks:
            if block.name not in found.public:
                try:
                    check_scale(self._reach(block))
                except UsageError as error:
                    raise UsageError(
                        f"{statistic.name}, block {block.name}: {error}; raise epsilon, or lower lattice_bits"
                    ) from error

    def _reach(self, block: Block) -> float:
        """The size in grid steps that the sampler of a block bounds."""
        return self.grid_scale(block)

    @property
    @abstractmethod
    def event(self) -> Event:
        """What one use costs."""

    @abstractmethod
    def _noisy(self, values: IntVector, grid_scale: float) -> IntVector:
        """Values plus noise of a scale in grid steps."""

    @abstractmethod
    def _variance(self, grid_scale: float) -> float:
        """Variance of that noise."""

    def grid_scale(self, block: Block) -> float:
        """Noise scale of a block in its integer steps."""
        return self.scale / block.normalised_step(self.target.lattice)

    def noise_std(self) -> dict[str, float]:
        """Standard deviation of the noise on each block's entries, in the units of the features; 0 if public."""
        std = {}
        for block in self.target.statistic.blocks:
            public = block.name in self.target.sensitivity.public
            variance = 0.0 if public else self._variance(self.grid_scale(block))
            std[block.name] = math.sqrt(variance) * block.step(self.target.lattice)
        return std

    def perturb(self, vector: IntVector) -> IntVector:
        """The noisy vector. A second call is refused: one calibration, one draw."""
        if self._used:
            raise RuntimeError(f"this {self.name} mechanism was used already; noise is drawn once per grant")
        self._used = True
        parts = []
        at = 0
        for block in self.target.statistic.blocks:
            piece = vector[at : at + block.size]
            at += block.size
            public = block.name in self.target.sensitivity.public
            parts.append(piece if public else self._noisy(piece, self.grid_scale(block)))
        return np.concatenate(parts)


class DiscreteLaplace(Mechanism):
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

    @property
    def event(self) -> Event:
        """Pure epsilon."""
        return self._event

    def _noisy(self, values: IntVector, grid_scale: float) -> IntVector:
        return discrete_laplace(values, grid_scale)

    def _variance(self, grid_scale: float) -> float:
        return laplace_variance(grid_scale)


class DiscreteGaussian(Mechanism):
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
            least = fine * math.sqrt(gap(fine) / GAP) * (1 + 1e-9)  # a gap falls with the square of its scale
        self._event, mu, self.theorem = calibrate(epsilon, delta, lambda mu: gap(max(l2 / mu, least)))
        if granted is not None and granted != self._event:
            raise ValueError(f"{granted} is not what epsilon {epsilon:g} and delta {delta:g} buy")
        super().__init__(target, max(l2 / mu, least))

    @property
    def event(self) -> Event:
        """Gaussian, or zCDP on a coarse grid."""
        return self._event

    def _noisy(self, values: IntVector, grid_scale: float) -> IntVector:
        return discrete_gaussian(values, grid_scale)

    def _variance(self, grid_scale: float) -> float:
        return gaussian_variance(grid_scale)


class L2Gamma(Mechanism):
    """Spherical noise of density exp(-|b|_2 epsilon / l2), rounded to the grid: pure epsilon from the L2 sensitivity.

    In d dimensions its length is about d l2 / epsilon, where Laplace noise for the same row has about
    sqrt(2d) l1 / epsilon: the better of the two as soon as l1 is above sqrt(d/2) l2.

    Sensitivity
        L2 of the normalised joint vector, from the statistic, which must have one noisy block.

    Reference
        Chaudhuri, Monteleoni and Sarwate (2011), equation 7; rounding as in ``gamma.integer_l2_gamma``.
    """

    name: ClassVar[str] = "l2_gamma"
    theorem = "L2-gamma mechanism (Chaudhuri, Monteleoni and Sarwate 2011), noise rounded to integers"

    def __init__(self, target: Target, epsilon: float) -> None:
        self._event = PureEvent(epsilon)
        noisy = [block for block in target.statistic.blocks if block.name not in target.sensitivity.public]
        if len(noisy) != 1:
            raise UsageError(f"l2_gamma noise fits one block, but {target.statistic.name} has {len(noisy)}")
        self._dimension = noisy[0].size
        super().__init__(target, target.sensitivity.l2 / float(self._event.epsilon))

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


def mechanism(name: str, target: Target, epsilon: float, delta: float, granted: Event | None = None) -> Mechanism:
    """A calibrated mechanism by its name in a pipeline, within an event that was ``granted`` before."""
    if name == "laplace":
        return DiscreteLaplace(target, epsilon)
    if name == "gaussian":
        return DiscreteGaussian(target, epsilon, delta, granted)
    if name == "l2_gamma":
        return L2Gamma(target, epsilon)
    raise UsageError(f"mechanism {name!r} is unknown; allowed: laplace, gaussian, l2_gamma")
