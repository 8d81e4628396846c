"""Losses of a residual z = w.x - y, for labels that are numbers between -1 and 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from daskrado.errors import UsageError
from daskrado.losses.margin import Loss, Margins
from daskrado.table.label import Target
from daskrado.table.label_sides import LABEL_BITS


@dataclass(frozen=True)
class ResidualLoss(Loss):
    """A loss of how far a prediction is off."""

    target: ClassVar[Target] = "number"
    far: ClassVar[float] = 1.0

    def arguments(self, scores: Margins, y: NDArray[Any]) -> Margins:
        return np.asarray(scores - np.ldexp(y.astype(np.float64), -LABEL_BITS))

    def signs(self, y: NDArray[Any]) -> NDArray[np.int64]:
        return np.ones(len(y), dtype=np.int64)


@dataclass(frozen=True)
class ResidualSquare(ResidualLoss):
    """z^2: smooth with constant 2, but its slope has no bound."""

    name: ClassVar[str] = "residual_square"
    lipschitz: ClassVar[None] = None
    smoothness: ClassVar[float] = 2.0

    def value(self, z: Margins) -> Margins:
        return z * z

    def slope(self, z: Margins) -> Margins:
        return 2.0 * z

    def curvature(self, z: Margins) -> Margins:
        return np.full_like(z, 2.0)


@dataclass(frozen=True)
class ResidualHuber(ResidualLoss):
    """z^2 / (2h) for |z| <= h, else |z| - h/2: slope in [-1, 1], curvature at most 1/h.

    Reference: Huber (1964). ``h`` is in parts of half the label's bounds.
    """

    h: float = 0.25

    name: ClassVar[str] = "residual_huber"
    lipschitz: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        if not 1e-6 <= self.h <= 1e6:
            raise UsageError(f"loss {self.name}: h must be between 1e-6 and 1e6, got {self.h!r}")

    @property
    def smoothness(self) -> float:
        return 1.0 / self.h

    def value(self, z: Margins) -> Margins:
        near = np.minimum(np.abs(z), self.h)
        return np.asarray(near * near / (2.0 * self.h) + (np.abs(z) - near))

    def slope(self, z: Margins) -> Margins:
        return np.asarray(np.clip(z / self.h, -1.0, 1.0))

    def curvature(self, z: Margins) -> Margins:
        return np.where(np.abs(z) <= self.h, 1.0 / self.h, 0.0)
