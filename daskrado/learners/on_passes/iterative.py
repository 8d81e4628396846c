"""Learners that read the lake several times inside one grant: they take (passes, grant) and return weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from daskrado.errors import UsageError
from daskrado.lake.collect import Passes, Share
from daskrado.privacy.accountant import Event, gaussian_sigma
from daskrado.privacy.perturbation import Facts
from daskrado.privacy.relations import Relation

if TYPE_CHECKING:
    from daskrado.lake.collect import Progress

GOOD_NORM = 32.0
"""A public guess at |w| R of a good classifier: rows of a dozen active features, each worth a few units of margin.

It balances noise against regularisation in the public rules and forecasts; a wrong guess costs accuracy, not privacy.
Of the powers of 2 it was the best on magic, covertype, KDDCup99, diabetes130 and synthetic tables together
(pipelines/reproduce/gradient_rule.py).
"""

Watch = Callable[[int, float], None]
T = TypeVar("T")
Vector = NDArray[Any]
Draws = Callable[[bool, Callable[[], Any], Callable[[Any], Vector]], Vector]


@dataclass(frozen=True)
class Guarantee:
    """What a learner's release costs and which theorem says so."""

    event: Event
    delta: float
    mechanism: str
    theorem: str
    assumptions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Learned:
    """Published weights, public facts on how they came about, and the noise on them where it is additive."""

    weights: NDArray[np.float64]
    details: dict[str, Any]
    noise_std: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Session:
    """The lake and the grant. ``spend`` marks the grant for good; :meth:`draw` calls it, once, before the first draw.

    ``journal`` keeps each draw, in order: a run that was cut off goes on after the last one that it kept.
    """

    passes: Passes
    spend: Callable[[], None]
    share: Share | None = None
    progress: Progress | None = None
    watch: Watch | None = None
    journal: Draws | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "spend", _once(self.spend))

    def draw(self, gather: Callable[[], T], perturb: Callable[[T], Vector]) -> Vector:
        """Read with ``gather``, spend, then draw noise with ``perturb``; or what was drawn here and kept."""

        def paid(private: T) -> Vector:
            self.spend()
            return perturb(private)

        return paid(gather()) if self.journal is None else self.journal(True, gather, paid)

    def settle(self, choose: Callable[[], Vector]) -> Vector:
        """A choice by public randomness, which costs nothing but must be the same in a resumed run."""
        return choose() if self.journal is None else self.journal(False, choose, lambda chosen: chosen)


def _once(spend: Callable[[], None]) -> Callable[[], None]:
    done: list[bool] = []

    def first() -> None:
        if not done:
            spend()
            done.append(True)

    return first


class IterativeLearner(Protocol):
    """A learner that collects more than once."""

    name: ClassVar[str]
    seeded: ClassVar[bool]

    def guarantee(self, facts: Facts) -> Guarantee:
        """What it costs: refuses what cannot be done, from public facts only."""

    def forecast(self, facts: Facts) -> Iterator[tuple[str, str]]:
        """Lines for a plan: what it will do and how much noise that means."""

    def excess(self, facts: Facts) -> float:
        """A public forecast of the excess risk that privacy costs, in units of the loss."""

    def learn(self, session: Session, facts: Facts) -> Learned:
        """Read, spend, draw, learn."""


def noise_to_signal(facts: Facts, *, gaussian: bool = False) -> float:
    """|noise| of one full-budget release of the mean gradient, over the largest norm a mean gradient can have.

    Of L2-gamma noise, or of Gaussian noise where there is a delta and it is less; with ``gaussian`` of that alone.
    """
    far = (1.0 if facts.relation is Relation.ADD_REMOVE else 2.0) * facts.rows_per_unit
    spread = facts.width / facts.epsilon
    if facts.delta > 0:
        normal = gaussian_sigma(facts.epsilon, facts.delta) * math.sqrt(facts.width)
        spread = normal if gaussian else min(spread, normal)
    return far * spread / facts.rows


def worthwhile_guarantee(learner: IterativeLearner, facts: Facts) -> Guarantee:
    """The learner's guarantee; one that leaves the delta alone must be worthwhile without it."""
    found = learner.guarantee(facts)
    if found.delta == 0:
        check_worthwhile(replace(facts, delta=0.0))
    return found


def check_worthwhile(facts: Facts, what: str = "the lake", *, gaussian: bool = False) -> None:
    """Refuse a budget at which even one full-budget gradient would drown in its noise; a public rule."""
    ratio = noise_to_signal(facts, gaussian=gaussian)
    if ratio <= 1:
        return
    rows = math.ceil(facts.rows * ratio)
    epsilon = facts.epsilon
    while epsilon < 50 and noise_to_signal(replace(facts, epsilon=epsilon), gaussian=gaussian) > 1:
        epsilon *= 1.05
    instead = f"epsilon {_up(epsilon):g} or " if epsilon < 50 else ""
    raise UsageError(
        f"epsilon {facts.epsilon:g} is too small for {facts.rows:,} rows and {facts.width} features: the noise would "
        f"be {ratio:.1f} times the largest gradient of {what}; {instead}{rows:,} rows would do"
    )


def _up(value: float) -> float:
    """Two significant digits, rounded up."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return math.ceil(value / unit - 1e-9) * unit
