"""Learners that read the lake several times inside one grant: they take (passes, grant) and return weights."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

from numpy.typing import NDArray
from pydantic import AfterValidator

from daskrado.errors import UsageError
from daskrado.lake.collect import Passes, Share
from daskrado.learners.base import Learned as Learned
from daskrado.learners.base import Learner
from daskrado.learners.on_passes.outlook import Outlook
from daskrado.losses.margin import PACKAGE, Loss
from daskrado.losses.residual import ResidualHuber
from daskrado.privacy.accountant import Event, gaussian_sigma
from daskrado.privacy.perturbation import PublicFacts
from daskrado.privacy.relations import Relation
from daskrado.registry import one_of
from daskrado.statistics.second_moments import SecondMoments
from daskrado.statistics.slopes import SECRET_ROW_BITS
from daskrado.table.columns import plain_numbers
from daskrado.table.domain import Domain
from daskrado.table.label import TARGETS, Label

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
class Session:
    """The lake and the grant. ``spend`` marks the grant for good; :meth:`draw` calls it, once, before the first draw.

    ``journal`` keeps each draw, in order: a run that was cut off goes on after the last one that it kept. ``part`` is
    this party's part of the noise, as a factor of its scale: 1 / sqrt(n) where n sites add a share each.
    """

    passes: Passes
    spend: Callable[[], None]
    share: Share | None = None
    progress: Progress | None = None
    watch: Watch | None = None
    journal: Draws | None = None
    part: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "spend", cache(self.spend))  # once, though a failed call may be repeated

    def draw(self, gather: Callable[[], T], perturb: Callable[[T], Vector]) -> Vector:
        """Read with ``gather``, spend, then draw noise with ``perturb``; or what was drawn here and kept."""

        def paid(private: T) -> Vector:
            self.spend()
            return perturb(private)

        return paid(gather()) if self.journal is None else self.journal(True, gather, paid)

    def choose_in_public(self, choose: Callable[[], Vector]) -> Vector:
        """A choice by public randomness, which costs nothing but must be the same in a resumed run."""
        return choose() if self.journal is None else self.journal(False, choose, lambda chosen: chosen)


class IterativeLearner(Learner):
    """A learner that collects more than once.

    ``seeded``: it deals rows out by their seeds. ``private``: it draws noise. ``tunable``: a grid may hold it.
    ``centres``: its model may scale plain numbers anew; not one in a grid, for what is compared there has one scale.
    ``default_bits``: of the grid on which it sees rows; ``secret_bits``: where their number is secret.
    """

    seeded: ClassVar[bool] = False
    private: ClassVar[bool] = True
    tunable: ClassVar[bool] = False
    centres: ClassVar[bool] = False
    default_bits: ClassVar[int] = SecondMoments.default_bits
    secret_bits: ClassVar[int] = SECRET_ROW_BITS

    def settled(self, facts: PublicFacts) -> IterativeLearner:
        """The same learner with all choices made that change what it costs, as for these facts."""
        del facts
        return self

    def for_label(self, label: Label) -> IterativeLearner:
        """The learner as it is for such a label; refuses one that it cannot learn."""
        if label.target != "sides":
            raise UsageError(f"learner {self.name} needs a label of two sides; else take moments or gradient")
        return self

    def numbers(self, domain: Domain) -> int:
        """How many plain numbers of a Domain it may scale anew: a shift needs an intercept to be made up for."""
        return len(plain_numbers(domain)) if self.centres and domain.intercept else 0

    @abstractmethod
    def guarantee(self, facts: PublicFacts) -> Guarantee:
        """What it costs: refuses what cannot be done, from public facts only."""

    @abstractmethod
    def forecast(self, facts: PublicFacts) -> Iterator[tuple[str, str]]:
        """Lines for a plan: what it will do and how much noise that means."""

    @abstractmethod
    def excess(self, facts: PublicFacts) -> float:
        """A public forecast of the excess risk that privacy costs, in units of the loss."""

    def outlook(self, facts: PublicFacts) -> Outlook | None:
        """A calibrated forecast of what noise costs in error and AUC, where there is one."""
        del facts
        return None

    @abstractmethod
    def learn(self, session: Session, facts: PublicFacts) -> Learned:
        """Read, spend, draw, learn."""


def _in_range(ridge: float | None) -> float | None:
    """Beyond this range noise and weights leave double precision; what is not above 0 a private learner refuses."""
    if ridge is not None and ridge > 0 and not 1e-30 <= ridge <= 1e30:
        raise ValueError(f"must be between 1e-30 and 1e30, got {ridge!r}")
    return ridge


InRange = AfterValidator(_in_range)  # of a regularisation
TrainingLoss = Annotated[Loss, one_of(PACKAGE)]


class LossLearner(IterativeLearner):
    """A learner with the option ``loss``: a name, or a name and options; ``h`` beside it is the older spelling."""

    @classmethod
    def current_spelling(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """``loss: huber, h: 0.5`` is ``loss: {kind: huber, h: 0.5}``."""
        found = super().current_spelling(options)
        if isinstance(loss := found.get("loss", cls.loss_name), str) and "h" in found:
            h = found.pop("h")
            found |= {} if h is None else {"loss": {"kind": loss, "h": h}}
        return found

    def for_label(self, label: Label) -> IterativeLearner:
        """With a loss for such a label: of a number the default is one of residuals; of classes each alone."""
        target = label.target
        own = {one.name: one for one in fields(self)}["loss"].default  # type: ignore[arg-type]
        loss: Loss | None = vars(self)["loss"]
        if target == "number" and loss == own:
            return replace(self, loss=self.number_loss)  # type: ignore[type-var]
        if loss is not None and (loss.target == "number") != (target == "number"):
            fitting = "residual_huber" if target == "number" else "logistic or huber"
            raise UsageError(f"loss {loss.name} is not meant for a label that is {TARGETS[target]}: take {fitting}")
        return self.of_classes(label) if target == "classes" else self

    def of_classes(self, label: Label) -> IterativeLearner:
        """The same for several classes: each against the rest."""
        from daskrado.learners.on_passes.one_vs_rest import OneVersusRest

        assert label.classes is not None
        return OneVersusRest(self, len(label.classes))

    loss_name: ClassVar[str] = "logistic"  # of the default loss
    number_loss: ClassVar[Loss] = ResidualHuber()


def noise_to_signal(facts: PublicFacts, *, gaussian: bool = False) -> float:
    """|noise| of one full-budget release of the mean gradient, over the largest norm a mean gradient can have.

    Of L2-gamma noise, or of Gaussian noise where there is a delta and it is less; with ``gaussian`` of that alone.
    """
    far = (1.0 if facts.relation is Relation.ADD_REMOVE else 2.0) * facts.rows_per_unit
    spread = facts.width / facts.epsilon
    if facts.delta > 0:
        normal = gaussian_sigma(facts.epsilon, facts.delta) * math.sqrt(facts.width)
        spread = normal if gaussian else min(spread, normal)
    return far * spread / facts.rows


def worthwhile_guarantee(learner: IterativeLearner, facts: PublicFacts) -> Guarantee:
    """The learner's guarantee; one that leaves the delta alone must be worthwhile without it."""
    found = learner.guarantee(facts)
    if found.delta == 0:
        check_worthwhile(replace(facts, delta=0.0))
    return found


def check_worthwhile(facts: PublicFacts, what: str = "the lake", *, gaussian: bool = False) -> None:
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
