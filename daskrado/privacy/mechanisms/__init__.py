"""Mechanisms of one-shot releases, each one class in one file, found by walking this package."""

from __future__ import annotations

from daskrado.errors import UsageError
from daskrado.privacy.events import Event
from daskrado.privacy.mechanisms.base import Mechanism, OneShot, Target
from daskrado.privacy.mechanisms.gaussian import DiscreteGaussian
from daskrado.privacy.mechanisms.l2_gamma import L2Gamma
from daskrado.privacy.mechanisms.laplace import DiscreteLaplace
from daskrado.registry import kinds

__all__ = [
    "DiscreteGaussian",
    "DiscreteLaplace",
    "L2Gamma",
    "Mechanism",
    "OneShot",
    "Target",
    "default_mechanism",
    "mechanism",
    "mechanism_kind",
]


def mechanism_kind(name: str) -> type[OneShot]:
    """The class of a mechanism by its name in a pipeline."""
    known = kinds(OneShot, "daskrado.privacy.mechanisms")
    if name not in known:
        raise UsageError(f"mechanism {name!r} is unknown; allowed: {', '.join(sorted(known))}")
    return known[name]


def default_mechanism(delta: float) -> str:
    """Gaussian noise where there is a delta, Laplace noise for a pure guarantee."""
    return DiscreteGaussian.name if delta > 0 else DiscreteLaplace.name


def mechanism(name: str, target: Target, epsilon: float, delta: float, granted: Event | None = None) -> OneShot:
    """A calibrated mechanism by its name in a pipeline, within an event that was ``granted`` before."""
    return mechanism_kind(name).for_budget(target, epsilon, delta, granted)
