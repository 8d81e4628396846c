"""Linear-odd losses: f(z) - f(-z) = -a z. Their risk needs the labels through the mean operator alone.

With a linear-odd loss the empirical risk is

    (1/m) sum f(y_i w.x_i)  =  (1/m) sum g(w.x_i)  -  (a/2) w.mu,   g(z) = (f(z) + f(-z)) / 2,  mu = mean of y_i x_i

(Patrini, Nielsen and Nock 2015, theorem 3). The even part g sees no label.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import BeforeValidator, PlainSerializer

from daskrado.errors import UsageError
from daskrado.losses.margin import PACKAGE, Loss, Margins
from daskrado.registry import kinds, make, one_of

_TOLERANCE = 1e-6


def _name_of(function: Any) -> str:
    """What a manifest says of a function."""
    return f"{function.__module__}.{getattr(function, '__qualname__', type(function).__name__)}"


NamedFunction = Annotated[Callable[[Margins], Margins], PlainSerializer(_name_of)]


@dataclass(frozen=True)
class Matsushita(Loss):
    """sqrt(1 + z^2) - z."""

    name: ClassVar[str] = "matsushita"
    odd: ClassVar[float | None] = 2.0
    lipschitz: ClassVar[float] = 2.0
    smoothness: ClassVar[float] = 1.0

    def value(self, z: Margins) -> Margins:
        """See the class; written so that large z does not cancel."""
        root = np.sqrt(1.0 + z * z)
        return np.where(z > 0, 1.0 / (root + np.abs(z)), root - z)

    def slope(self, z: Margins) -> Margins:
        return z / np.sqrt(1.0 + z * z) - 1.0

    def curvature(self, z: Margins) -> Margins:
        return (1.0 + z * z) ** -1.5


@dataclass(frozen=True)
class Unhinged(Loss):
    """-z, the linear loss: its even part is zero, so the regulariser alone bounds the weights.

    Reference: van Rooyen, Menon and Williamson (2015).
    """

    name: ClassVar[str] = "unhinged"
    odd: ClassVar[float | None] = 2.0
    lipschitz: ClassVar[float] = 1.0
    smoothness: ClassVar[float] = 0.0

    def value(self, z: Margins) -> Margins:
        return -z

    def slope(self, z: Margins) -> Margins:
        return np.full_like(z, -1.0)

    def curvature(self, z: Margins) -> Margins:
        return np.zeros_like(z)


@dataclass(frozen=True)
class AbsoluteOdd(Loss):
    """rho |z| - rho z + 1, with the corner at 0 rounded: |z| becomes sqrt(z^2 + rounding^2) - rounding.

    ``rounding`` 0 is the loss itself, which has no slope at 0; a learner rounds it and says so. The rounded loss is
    linear-odd too and lies below the sharp one by at most rho times the rounding.

    Reference: Patrini, Nielsen and Nock (2015), the example that is linear-odd but not proper.
    """

    rho: float = 1.0
    rounding: float = 0.0

    name: ClassVar[str] = "absolute"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.rho) and self.rho > 0):
            raise UsageError(f"loss absolute: rho must be above 0, got {self.rho!r}")
        if not (math.isfinite(self.rounding) and self.rounding >= 0):
            raise UsageError(f"loss absolute: rounding must be 0 or above, got {self.rounding!r}")

    @property
    def odd(self) -> float:  # type: ignore[override]
        """2 rho."""
        return 2.0 * self.rho

    @property
    def lipschitz(self) -> float:
        return 2.0 * self.rho

    @property
    def smoothness(self) -> float | None:
        return self.rho / self.rounding if self.rounding else None

    def value(self, z: Margins) -> Margins:
        return self.rho * (np.sqrt(z * z + self.rounding**2) - self.rounding - z) + 1.0

    def slope(self, z: Margins) -> Margins:
        """rho (z / sqrt(z^2 + rounding^2) - 1); at a sharp corner the middle of the two sides."""
        root = np.sqrt(z * z + self.rounding**2)
        return self.rho * (np.divide(z, root, out=np.zeros_like(z), where=root > 0) - 1.0)

    def curvature(self, z: Margins) -> Margins:
        if not self.rounding:
            return np.zeros_like(z)
        return self.rho * self.rounding**2 * (z * z + self.rounding**2) ** -1.5

    def rounded(self, rounding: float) -> AbsoluteOdd:
        """The same loss with its corner rounded."""
        return AbsoluteOdd(self.rho, rounding)


@dataclass(frozen=True)
class UserLoss(Loss):
    """A user's own margin function, measured to be linear-odd and convex; derivatives by central differences.

    ``function`` takes and returns a float64 array. Give ``derivative`` where it is known: the learner is then as
    exact as with a built-in loss.
    """

    function: NamedFunction
    derivative: NamedFunction | None = None
    coefficient: float = field(init=False)

    lipschitz: ClassVar[None] = None
    smoothness: ClassVar[None] = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "coefficient", linear_odd_coefficient(self.function))
        z = np.linspace(-20.0, 20.0, 401)
        even = (self.function(z) + self.function(-z)) / 2
        if (np.diff(even, 2) < -1e-9 * (1.0 + np.abs(even).max())).any():
            raise UsageError("the loss's even part is not convex: a learner could not tell a minimum from another")

    @property
    def name(self) -> str:  # type: ignore[override]
        """Not a name that a pipeline can write: the function exists in Python only."""
        return "user"

    @property
    def odd(self) -> float:  # type: ignore[override]
        """As measured."""
        return self.coefficient

    def value(self, z: Margins) -> Margins:
        return np.asarray(self.function(z), dtype=np.float64)

    def slope(self, z: Margins) -> Margins:
        if self.derivative is not None:
            return np.asarray(self.derivative(z), dtype=np.float64)
        h = 1e-5 * (1.0 + np.abs(z))
        return (self.value(z + h) - self.value(z - h)) / (2 * h)

    def curvature(self, z: Margins) -> Margins:
        h = 1e-4 * (1.0 + np.abs(z))
        if self.derivative is not None:
            return np.maximum((self.slope(z + h) - self.slope(z - h)) / (2 * h), 0.0)
        return np.maximum((self.value(z + h) - 2 * self.value(z) + self.value(z - h)) / (h * h), 0.0)


def linear_odd_coefficient(function: Callable[[Margins], Margins]) -> float:
    """The a with f(z) - f(-z) = -a z at margins from 1e-3 to 50, or a UsageError that says where it fails."""
    z = np.concatenate([np.geomspace(1e-3, 50.0, 200), np.linspace(0.05, 5.0, 100)])
    try:
        difference = np.asarray(function(z), dtype=np.float64) - np.asarray(function(-z), dtype=np.float64)
    except Exception as error:
        raise UsageError(f"the loss cannot be evaluated on an array: {type(error).__name__}: {error}") from error
    if difference.shape != z.shape or not np.isfinite(difference).all():
        raise UsageError("the loss must return one finite number for each margin between -50 and 50")
    a = -float(difference @ z) / float(z @ z)
    gap = np.abs(difference + a * z)
    worst = int(np.argmax(gap / (1.0 + np.abs(difference))))
    if gap[worst] > _TOLERANCE * (1.0 + abs(float(difference[worst]))):
        raise UsageError(
            f"the loss is not linear-odd: f(z) - f(-z) = {difference[worst]:.6g} at z = {z[worst]:.4g}, "
            f"where -a z would be {-a * z[worst]:.6g}; the mean operator is not enough for it"
        )
    if not a > 0:
        raise UsageError(f"the loss is linear-odd with a = {a:.6g}, but a loss that falls with the margin has a > 0")
    return a


def odd_loss_names() -> list[str]:
    """The names of all linear-odd losses."""
    return sorted(name for name, kind in kinds(Loss, PACKAGE).items() if kind.odd is not None)


def check_odd(content: Any) -> Any:
    """Refuse what is neither a linear-odd loss nor the name of one, with the reason; the default kind is logistic."""
    if isinstance(content, Mapping):
        content = {"kind": "logistic"} | {key: value for key, value in content.items() if value is not None}
    name = content["kind"] if isinstance(content, dict) else getattr(content, "name", content)
    odd = content.odd is not None if isinstance(content, Loss) else name in odd_loss_names()
    if isinstance(name, str) and not odd:
        raise ValueError(
            f"{name!r} is unknown or not linear-odd: f(z) - f(-z) must be a multiple of z (max(0, 1 - z) gives -2z "
            "up to 1 and -1 - z beyond), else labels do not act through the mean operator alone; "
            f"use one of {', '.join(odd_loss_names())}"
        )
    return content


OddLoss = Annotated[Loss, one_of(PACKAGE), BeforeValidator(check_odd)]


def make_odd_loss(content: Any) -> Loss:
    """A linear-odd loss from its name, or from its kind and options; any other is refused with the reason.

    >>> loss = make_odd_loss("square")  # (1 - z)^2, and (1 - z)^2 - (1 + z)^2 = -4 z
    >>> loss.odd
    4.0
    >>> loss.value(np.array([-1.0, 1.0, 3.0])).tolist()
    [4.0, 0.0, 4.0]
    """
    try:
        return make(Loss, (PACKAGE,), check_odd(content))
    except ValueError as error:
        raise UsageError(f"loss: {error}") from error


@dataclass(frozen=True)
class EvenPart:
    """g(z) = (f(z) + f(-z)) / 2 of a linear-odd loss: what a learner needs of the unlabelled rows.

    >>> EvenPart(make_odd_loss("square")).value(np.array([0.0, 2.0])).tolist()  # 1 + z^2
    [1.0, 5.0]
    """

    loss: Loss

    def __post_init__(self) -> None:
        make_odd_loss(self.loss)

    @property
    def coefficient(self) -> float:
        """a, with f(z) = g(z) - a z / 2."""
        assert self.loss.odd is not None
        return self.loss.odd

    def value(self, z: Margins) -> Margins:
        """g."""
        return (self.loss.value(z) + self.loss.value(-z)) / 2

    def slope(self, z: Margins) -> Margins:
        """g', an odd function."""
        return (self.loss.slope(z) - self.loss.slope(-z)) / 2

    def curvature(self, z: Margins) -> Margins:
        """g''."""
        return (self.loss.curvature(z) + self.loss.curvature(-z)) / 2
