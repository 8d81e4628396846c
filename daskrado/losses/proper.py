"""Symmetric proper losses from a permissible generator: f(z) = a + phi*(-z) / b, phi* the convex conjugate.

A permissible generator phi is strictly convex and differentiable on [0, 1] and symmetric around 1/2. Symmetry gives
phi*(-z) = phi*(z) - z, so every such loss is linear-odd with coefficient 1/b (Nock and Nielsen 2009; Patrini, Nielsen
and Nock 2015). a and b scale it to pass through 1 at 0 and tend to 0: a = -phi(0)/b, b = phi(0) - phi(1/2).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import BeforeValidator, PlainSerializer

from daskrado.errors import UsageError
from daskrado.losses.margin import Loss, Margins

_STEPS = 80


@dataclass(frozen=True)
class Generator:
    """phi and its first two derivatives on the open interval (0, 1); phi must be finite at 0 and 1.

    ``everywhere`` says that they are meant on the whole line, not cut off at 0 and 1: the square loss is then itself
    everywhere, instead of going on straight beyond -1 and flat beyond 1.
    """

    name: str
    value: Callable[[Margins], Margins]
    slope: Callable[[Margins], Margins]
    curvature: Callable[[Margins], Margins]
    everywhere: bool = False

    def check(self) -> None:
        """Refuse a function that is not permissible, saying which property fails."""
        q = np.linspace(1e-6, 1 - 1e-6, 2001)
        value, slope, ends = self.value(q), self.slope(q), self.value(np.array([0.0, 1.0]))
        if not (np.isfinite(value).all() and np.isfinite(slope).all() and np.isfinite(ends).all()):
            raise UsageError(f"generator {self.name}: must be finite on [0, 1], with a finite slope inside")
        if np.abs(value - value[::-1]).max() > 1e-9 * (1 + np.abs(value).max()):
            raise UsageError(f"generator {self.name}: is not symmetric around 1/2")
        if not (np.diff(slope) > 0).all():
            raise UsageError(f"generator {self.name}: is not strictly convex")
        middle = slice(200, -200)
        numeric = np.gradient(value, q)
        if np.abs(numeric - slope)[middle].max() > 1e-4 * (1 + np.abs(slope[middle]).max()):
            raise UsageError(f"generator {self.name}: its slope is not the derivative of its value")


def _entropy(q: Margins) -> Margins:
    from scipy.special import xlogy

    return np.asarray(xlogy(q, q) + xlogy(1 - q, 1 - q), dtype=np.float64)


def _entropy_slope(q: Margins) -> Margins:
    return np.log(q) - np.log1p(-q)


LOGISTIC = Generator("logistic", _entropy, _entropy_slope, lambda q: 1 / (q * (1 - q)))
SQUARE = Generator(
    "square", lambda q: -q * (1 - q), lambda q: 2 * q - 1, lambda q: np.full_like(q, 2.0), everywhere=True
)
MATSUSHITA = Generator(
    "matsushita",
    lambda q: -np.sqrt(q * (1 - q)),
    lambda q: (2 * q - 1) / (2 * np.sqrt(q * (1 - q))),
    lambda q: 0.25 * (q * (1 - q)) ** -1.5,
)
GENERATORS = {generator.name: generator for generator in (LOGISTIC, SQUARE, MATSUSHITA)}


def _by_name(content: Any) -> Any:
    """The generator that a pipeline names."""
    if isinstance(content, str) and content not in GENERATORS:
        raise ValueError(f"{content!r} is unknown; allowed: {', '.join(GENERATORS)}")
    return GENERATORS[content] if isinstance(content, str) else content


NamedGenerator = Annotated[Generator, BeforeValidator(_by_name), PlainSerializer(lambda generator: generator.name)]


@dataclass(frozen=True)
class SymmetricProper(Loss):
    """The loss of a permissible generator.

    The conjugate phi*(u) = max over q of q u - phi(q) has its maximum where phi'(q) = u, found by bisection on [0, 1]
    to machine precision, and phi*' = q. Beyond the slopes of phi at 0 and 1 the maximum stays at that end.
    """

    generator: NamedGenerator

    name: ClassVar[str] = "proper"
    lipschitz: ClassVar[float | None] = None
    smoothness: ClassVar[float | None] = None

    def __post_init__(self) -> None:
        self.generator.check()

    @property
    def _scale(self) -> float:
        ends = self.generator.value(np.array([0.0, 0.5]))
        return float(ends[0] - ends[1])

    @property
    def odd(self) -> float:  # type: ignore[override]
        """1 / b."""
        return 1.0 / self._scale

    def value(self, z: Margins) -> Margins:
        """a + phi*(-z) / b, computed as (phi*(-z) + phi(0)) / b."""
        z = np.asarray(z, dtype=np.float64)
        q = self._probability(-z)
        start = float(self.generator.value(np.array([0.0]))[0])
        return np.asarray((-q * z - self.generator.value(q) + start) / self._scale)

    def slope(self, z: Margins) -> Margins:
        """-q(-z) / b."""
        return -self._probability(-np.asarray(z, dtype=np.float64)) / self._scale

    def curvature(self, z: Margins) -> Margins:
        """1 / (b phi''(q)) inside, 0 where the maximum is at an end."""
        q = self._probability(-np.asarray(z, dtype=np.float64))
        inside = ((q > 0) & (q < 1)) | self.generator.everywhere
        bend = self.generator.curvature(np.where(inside, q, 0.5))
        return np.where(inside, 1.0 / bend, 0.0) / self._scale

    def _probability(self, u: Margins) -> Margins:
        """The q in [0, 1] with phi'(q) = u: bisection on the side of the smaller tail, so that tails keep digits."""
        if self.generator.everywhere:
            return self._on_the_line(u)
        flip = u > 0
        target = -np.abs(u)
        # In the logarithm of q first, so that q near 0 has relative precision.
        exponent_low, exponent_high = np.full_like(target, -1074.0), np.full_like(target, -1.0)
        for _ in range(_STEPS):
            middle = (exponent_low + exponent_high) / 2
            with np.errstate(all="ignore"):
                above = self.generator.slope(np.exp2(middle)) > target
            exponent_high = np.where(above, middle, exponent_high)
            exponent_low = np.where(above, exponent_low, middle)
        q = np.exp2(exponent_high)
        q = np.where(exponent_high <= -1073.0, 0.0, np.minimum(q, 0.5))
        return np.where(flip, 1.0 - q, q)

    def _on_the_line(self, u: Margins) -> Margins:
        low, high = np.full_like(u, -(2.0**30)), np.full_like(u, 2.0**30)
        for _ in range(_STEPS + 10):
            middle = (low + high) / 2
            above = self.generator.slope(middle) > u
            high, low = np.where(above, middle, high), np.where(above, low, middle)
        return (low + high) / 2
