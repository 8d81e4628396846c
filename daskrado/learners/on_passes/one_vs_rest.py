"""Several classes by learners of two sides: each class against all others, one release after another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from pydantic import BeforeValidator, PlainSerializer

from daskrado.errors import UsageError
from daskrado.lake.steps import begin_step
from daskrado.learners.base import alike
from daskrado.learners.on_passes.erm import FINE_BITS, Erm, ObjectivePerturbation, OutputPerturbation
from daskrado.learners.on_passes.iterative import Guarantee, IterativeLearner, Learned, Session, worthwhile_guarantee
from daskrado.models.error_bars import ErrorBars, why_none
from daskrado.privacy.accountant import SeveralEvents
from daskrado.privacy.events import each, exact
from daskrado.privacy.perturbation import PublicFacts
from daskrado.privacy.protect import down
from daskrado.registry import make, options
from daskrado.table.label import Label

_ABLE = (OutputPerturbation, ObjectivePerturbation, Erm)


def _able(content: Any) -> IterativeLearner:
    found = make(IterativeLearner, ("daskrado.learners.on_passes",), content)
    if not isinstance(found, _ABLE):
        names = ", ".join(one.name for one in _ABLE)
        raise ValueError(f"one_vs_rest takes {names}, got {found.name}; gradient has all classes in every step")
    return found


if TYPE_CHECKING:
    Each = IterativeLearner
else:
    Each = Annotated[Any, BeforeValidator(_able), PlainSerializer(options)]


@dataclass(frozen=True)
class OneVersusRest(IterativeLearner):
    """Weights of each class by a ``learner`` of two sides: rows of the class are positive, all others negative.

    The largest margin is the label. A learner that asks for two sides becomes this where the Domain names classes.

    Sensitivity
        Each of K fits is a release of its own on the same rows, so that K events compose; each has 1 / K of epsilon
        and of delta, rounded down. That one protected unit changes several of the K labels is nothing new: a fit's
        guarantee holds for whatever it changes in its own two-sided rows.

    Reference
        Rifkin and Klautau (2004), one-vs-all; Dwork et al. (2006), basic composition.
    """

    learner: Each
    classes: int = 3  # no file says so: the Domain does

    name: ClassVar[str] = "one_vs_rest"
    hidden: ClassVar[frozenset[str]] = frozenset({"classes"})
    tunable: ClassVar[bool] = True
    default_bits: ClassVar[int] = FINE_BITS
    secret_bits: ClassVar[int] = FINE_BITS

    @property
    def private(self) -> bool:  # type: ignore[override]
        return self.learner.private

    def for_label(self, label: Label) -> IterativeLearner:
        if label.classes is None:
            raise UsageError("learner one_vs_rest is for several classes: for this label take its learner itself")
        self.learner.for_label(label)  # refuses a loss that is not meant for sides
        return replace(self, classes=len(label.classes))

    def part(self, facts: PublicFacts) -> PublicFacts:
        """What the fit of one class may know: its share of the budget. Numbers stay: all classes have one scale."""
        epsilon, delta = (down(exact(whole) / self.classes) for whole in (facts.epsilon, facts.delta))
        return replace(facts, epsilon=epsilon, delta=delta, numbers=0)

    def settled(self, facts: PublicFacts) -> IterativeLearner:
        return replace(self, learner=self.learner.settled(self.part(facts)))

    def guarantee(self, facts: PublicFacts) -> Guarantee:
        """As many events as classes."""
        part = self.part(facts)
        try:
            found = worthwhile_guarantee(self.learner, part)
        except UsageError as error:
            if not self.private:
                raise
            raise UsageError(f"each of {self.classes} classes has its share of epsilon, and {error}") from error
        theorem = f"{self.classes} releases on the same rows, one for each class, compose; each: {found.theorem}"
        return Guarantee(
            SeveralEvents([(event, times * self.classes) for event, times in each(found.event)]),
            float(exact(found.delta) * self.classes),
            f"{found.mechanism}, one class against the rest",
            theorem,
            found.assumptions,
        )

    def forecast(self, facts: PublicFacts) -> Iterator[tuple[str, str]]:
        part = self.part(facts)
        share = f", each with epsilon {part.epsilon:.3g}" + (f", delta {part.delta:.3g}" if part.delta else "")
        yield "classes", f"{self.classes}, one against the rest{share if self.private else ''}"
        yield from self.learner.forecast(part)

    def excess(self, facts: PublicFacts) -> float:
        return self.learner.excess(self.part(facts))

    def learn(self, session: Session, facts: PublicFacts) -> Learned:
        """One fit for each class, in the order of the Domain."""
        part, found = self.part(facts), []
        begin_step(session.progress, "class")
        for number in range(1, self.classes + 1):
            own = replace(session, passes=session.passes.against(number), progress=None)
            found.append(self.learner.learn(own, part))
            if session.progress is not None:
                session.progress(number, self.classes)
        bars = [one.bars or ErrorBars.none(facts.width, why_none(self.learner.name)) for one in found]
        weights = np.array([one.weights for one in found])
        details = {"each_class_by": self.learner.name} | alike([one.details for one in found])
        return Learned(weights, details, found[0].noise_std, ErrorBars.joined(bars))
