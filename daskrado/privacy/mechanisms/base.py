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
from daskrado.privacy.accountant import Event
from daskrado.privacy.noise import (
    check_scale,
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


class OneShot(Mechanism):
    """A mechanism that a pipeline can name; one that lies in this package is found without being listed."""

    needs_delta: ClassVar[bool] = False  # whether it has no guarantee at delta 0
    assumptions: ClassVar[tuple[str, ...]] = ()  # what its statement must say beside the theorem

    @classmethod
    @abstractmethod
    def for_budget(cls, target: Target, epsilon: float, delta: float, granted: Event | None = None) -> OneShot:
        """Calibrated for a budget, within an event that was ``granted`` before if there is one."""
