"""Learners that place plain numbers on a share of epsilon, and spend the rest as if the Domain had been so."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

from daskrado.learners.on_passes.centring import Centring, as_details, centred, in_words
from daskrado.learners.on_passes.iterative import Guarantee, IterativeLearner, Learned, Session, noise_to_signal
from daskrado.privacy.accountant import ApproximateEvent, PureEvent
from daskrado.privacy.perturbation import PublicFacts
from daskrado.table.label import Label


class PlacingLearner(IterativeLearner):
    """A learner with the option ``centre``, whose own work is in methods with an underscore.

    A given ``regularisation`` is for weights on the Domain's own scale: then nothing is placed. Neither is it for
    labels that are numbers, as for the gradient, nor where the rest of epsilon would be too little.

    Sensitivity
        Counts cost a share of epsilon (:meth:`Centring.purely`). What follows reads rows under a Domain that is
        public by then and costs the rest of epsilon, with its own delta, for any such Domain: together epsilon and
        that delta, by basic composition.

    Reference
        Dwork, McSherry, Nissim and Smith (2006); Dwork, Rothblum and Vadhan (2010), adaptive composition.
    """

    centres: ClassVar[bool] = True

    centre: bool

    def for_label(self, label: Label) -> IterativeLearner:
        found = super().for_label(label)
        return replace(found, centre=False) if label.target == "number" else found  # type: ignore[type-var]

    def places(self, facts: PublicFacts) -> Centring | None:
        """What finding the places of numbers costs, or None where they stay as they are."""
        if not self.centre or not facts.numbers or getattr(self, "regularisation", None) is not None:
            return None
        plan = Centring.purely(facts)
        return None if plan is None or noise_to_signal(self.part(_less(facts, plan))) > 1 else plan

    def left(self, facts: PublicFacts) -> PublicFacts:
        """What the learner itself knows: numbers are placed, and that was paid for."""
        return replace(_less(facts, self.places(facts)), numbers=0)

    def part(self, facts: PublicFacts) -> PublicFacts:
        """What a single fit may know."""
        return facts

    def guarantee(self, facts: PublicFacts) -> Guarantee:
        found = self._guarantee(self.left(facts))
        event = ApproximateEvent(facts.epsilon, found.delta) if found.delta else PureEvent(facts.epsilon)
        return replace(found, event=event)

    def forecast(self, facts: PublicFacts) -> Iterator[tuple[str, str]]:
        if self.centre and facts.numbers:
            yield "numbers", in_words(facts, self.places(facts))
        yield from self._forecast(self.left(facts))

    def excess(self, facts: PublicFacts) -> float:
        return self._excess(self.left(facts))

    def learn(self, session: Session, facts: PublicFacts) -> Learned:
        plan, left = self.places(facts), self.left(facts)
        if plan is None:
            return self._learn(session, left)
        session, known = centred(session, facts, plan)
        found = self._learn(session, replace(left, norm_bound=known.norm_bound))
        return replace(found, details=found.details | as_details(facts, plan), domain=session.passes.domain)

    @abstractmethod
    def _guarantee(self, facts: PublicFacts) -> Guarantee:
        """As ``guarantee``, where numbers stay as they are."""

    @abstractmethod
    def _forecast(self, facts: PublicFacts) -> Iterator[tuple[str, str]]:
        """As ``forecast``."""

    @abstractmethod
    def _excess(self, facts: PublicFacts) -> float:
        """As ``excess``."""

    @abstractmethod
    def _learn(self, session: Session, facts: PublicFacts) -> Learned:
        """As ``learn``."""


def _less(facts: PublicFacts, plan: Centring | None) -> PublicFacts:
    return facts if plan is None else replace(facts, epsilon=facts.epsilon * (1 - plan.share))
