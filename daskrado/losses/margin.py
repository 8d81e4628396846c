"""Margin losses: value, slope and curvature at z = y (w . x), with constants that a contract test verifies.

A loss is one dataclass in this package, whose fields are the options that a pipeline writes. A private learner takes
its sensitivity from ``lipschitz`` and ``smoothness``; a loss without one of them is refused there, not patched.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from daskrado.errors import UsageError
from daskrado.losses.elementary import exp_minus, log_one_plus
from daskrado.table.label import Target

PACKAGE = "daskrado.losses"
Margins = NDArray[np.float64]


@dataclass(frozen=True)
class Loss(ABC):
    """A convex, differentiable loss of the margin.

    ``lipschitz`` = sup |slope| and ``smoothness`` = sup |slope(a) - slope(b)| / |a - b|, or None where there is none.
    ``odd`` is the coefficient a of a loss with f(z) - f(-z) = -a z, for which the mean operator holds all that the
    labels say; None where the loss has no such factorisation.
    """

    name: ClassVar[str]
    odd: ClassVar[float | None] = None
    target: ClassVar[Target] = "sides"
    far: ClassVar[float] = 0.0  # how far an argument may be beyond the score

    def arguments(self, scores: Margins, y: NDArray[Any]) -> Margins:
        """What the loss is taken of, from scores w.x and labels."""
        return np.asarray(y * scores)

    def signs(self, y: NDArray[Any]) -> NDArray[np.int64]:
        """What a row's slope is multiplied with in the gradient."""
        return y.astype(np.int64)

    @property
    @abstractmethod
    def lipschitz(self) -> float | None:
        """Largest size of the slope."""

    @property
    @abstractmethod
    def smoothness(self) -> float | None:
        """Largest curvature."""

    @abstractmethod
    def value(self, z: Margins) -> Margins:
        """The loss itself."""

    @abstractmethod
    def slope(self, z: Margins) -> Margins:
        """First derivative in z."""

    @abstractmethod
    def curvature(self, z: Margins) -> Margins:
        """Second derivative in z; at a kink of the slope, one of its two sides."""

    @property
    def mixed(self) -> tuple[float, float] | None:
        """Share and corner of the :class:`HuberLogistic` loss that this one is: that one has a compiled loop."""
        return None

    def derivatives(self, z: Margins) -> tuple[Margins, Margins, Margins]:
        """Value, slope and curvature together, where that is cheaper than one after another."""
        return self.value(z), self.slope(z), self.curvature(z)


@dataclass(frozen=True)
class Logistic(Loss):
    """log(1 + exp(-z)); slope in [-1, 0), curvature at most 1/4. By public tables: the same bits everywhere."""

    name: ClassVar[str] = "logistic"
    odd: ClassVar[float | None] = 1.0
    lipschitz: ClassVar[float] = 1.0
    smoothness: ClassVar[float] = 0.25
    mixed: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def value(self, z: Margins) -> Margins:
        return log_one_plus(exp_minus(np.abs(z))) - np.minimum(z, 0.0)

    def slope(self, z: Margins) -> Margins:
        """-1 / (1 + exp(z))."""
        small = exp_minus(np.abs(z))
        return np.where(z > 0, -small, -1.0) / (1.0 + small)

    def curvature(self, z: Margins) -> Margins:
        """p (1 - p), p = 1 / (1 + exp(-z))."""
        small = exp_minus(np.abs(z))
        return np.asarray(small / ((1.0 + small) * (1.0 + small)))

    def derivatives(self, z: Margins) -> tuple[Margins, Margins, Margins]:
        """All from one exponential."""
        small = exp_minus(np.abs(z))
        whole = 1.0 + small
        value = log_one_plus(small) - np.minimum(z, 0.0)
        return value, np.where(z > 0, -small, -1.0) / whole, small / (whole * whole)


@dataclass(frozen=True)
class Square(Loss):
    """(1 - z)^2: smooth with constant 2, but its slope has no bound."""

    name: ClassVar[str] = "square"
    odd: ClassVar[float | None] = 4.0
    lipschitz: ClassVar[None] = None
    smoothness: ClassVar[float] = 2.0

    def value(self, z: Margins) -> Margins:
        return (1.0 - z) ** 2

    def slope(self, z: Margins) -> Margins:
        return 2.0 * (z - 1.0)

    def curvature(self, z: Margins) -> Margins:
        return np.full_like(z, 2.0)


@dataclass(frozen=True)
class _Hinged(Loss):
    """A hinge max(0, 1 - z) whose corner is rounded between 1 - h and 1 + h."""

    h: float = 0.5

    lipschitz: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        # Below that the curvature, about 1 / h, ends in sums and determinants that leave double precision.
        if not 1e-6 <= self.h <= 1e6:
            raise UsageError(f"loss {self.name}: h must be between 1e-6 and 1e6, got {self.h!r}")

    def _corner(self, z: Margins) -> Margins:
        """(1 - z) / h, held in [-1, 1]: beyond it the loss is straight."""
        return np.clip((1.0 - z) / self.h, -1.0, 1.0)

    def _beyond(self, z: Margins) -> Margins:
        """How far 1 - z lies above h: there the loss is 1 - z itself."""
        return np.maximum(1.0 - z - self.h, 0.0)


@dataclass(frozen=True)
class Huber(_Hinged):
    """The Huber SVM: (1 + h - z)^2 / (4h) for |1 - z| <= h, else the hinge.

    Its curvature constant is 1/(2h); the value 1/4 of Chaudhuri et al. (2011, corollary 6.2) is wrong for h < 2.
    """

    name: ClassVar[str] = "huber"

    @property
    def smoothness(self) -> float:
        return 0.5 / self.h

    @property
    def mixed(self) -> tuple[float, float]:
        return 1.0, self.h

    def value(self, z: Margins) -> Margins:
        return self.h * (1.0 + self._corner(z)) ** 2 / 4.0 + self._beyond(z)

    def slope(self, z: Margins) -> Margins:
        """-(1 + u) / 2 with u = (1 - z)/h in [-1, 1]."""
        return -(1.0 + self._corner(z)) / 2.0

    def curvature(self, z: Margins) -> Margins:
        return np.where(np.abs(1.0 - z) <= self.h, 0.5 / self.h, 0.0)


@dataclass(frozen=True)
class SmoothHinge(_Hinged):
    """A twice differentiable hinge: h (-u^4 + 6 u^2 + 8 u + 3) / 16 for u = (1 - z)/h in [-1, 1], else the hinge.

    Reference: Chaudhuri, Monteleoni and Sarwate (2011), the loss l_s; its curvature constant is 3/(4h).
    """

    name: ClassVar[str] = "smooth_hinge"

    @property
    def smoothness(self) -> float:
        return 0.75 / self.h

    def value(self, z: Margins) -> Margins:
        u = self._corner(z)
        return self.h * (3.0 + u * (8.0 + u * (6.0 - u * u))) / 16.0 + self._beyond(z)

    def slope(self, z: Margins) -> Margins:
        """-(2 + 3u - u^3) / 4."""
        u = self._corner(z)
        return -(2.0 + u * (3.0 - u * u)) / 4.0

    def curvature(self, z: Margins) -> Margins:
        u = self._corner(z)
        return 0.75 / self.h * (1.0 - u * u)


@dataclass(frozen=True)
class HuberLogistic(Loss):
    """share Huber(h) + (1 - share) logistic: long gradients where noise is much, probabilities where it is not."""

    share: float = 0.5
    h: float = 1.0

    name: ClassVar[str] = "huber_logistic"
    lipschitz: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise UsageError(f"loss {self.name}: share must be between 0 and 1, got {self.share!r}")
        Huber(self.h)  # has the bounds of h

    @property
    def smoothness(self) -> float:
        """At the margin of the corner nearest to 0, or at 0 itself: the logistic curvature falls from there."""
        nearest = Logistic().curvature(np.array([max(0.0, 1.0 - self.h)]))[0]
        both = self.share * Huber(self.h).smoothness + (1 - self.share) * float(nearest)
        return max(both, (1 - self.share) * Logistic.smoothness)

    @property
    def mixed(self) -> tuple[float, float]:
        return self.share, self.h

    def value(self, z: Margins) -> Margins:
        return self.share * Huber(self.h).value(z) + (1 - self.share) * Logistic().value(z)

    def slope(self, z: Margins) -> Margins:
        return self.share * Huber(self.h).slope(z) + (1 - self.share) * Logistic().slope(z)

    def curvature(self, z: Margins) -> Margins:
        return self.share * Huber(self.h).curvature(z) + (1 - self.share) * Logistic().curvature(z)
