"""The learner to take, from public facts: rows, features, budget and relation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from daskrado.errors import UsageError
from daskrado.learners.on_passes.erm import ObjectivePerturbation, OutputPerturbation
from daskrado.learners.on_passes.gradient import PrivateGradient
from daskrado.learners.on_passes.iterative import Guarantee, IterativeLearner, Learned, Session, worthwhile_guarantee
from daskrado.learners.on_passes.one_vs_rest import OneVersusRest
from daskrado.learners.on_passes.softmax import SoftmaxGradient
from daskrado.losses.margin import Huber
from daskrado.losses.residual import ResidualHuber
from daskrado.privacy.perturbation import PublicFacts
from daskrado.table.label import Label


@dataclass(frozen=True)
class Auto(IterativeLearner):
    """The noisy gradient where it can be drawn, else the candidate with the least forecast excess risk.

    Where there is a delta the gradient had the least error of the three, or as little, on every table and budget that
    was measured (pipelines/reproduce/centring.py --learners), while the forecasts, which are bounds, cross at large
    budgets. For labels that are numbers the forecast decides. It reads no row, so the choice costs nothing.
    """

    number: bool = False  # the label is one; no file says so, the Domain does
    classes: int = 0  # how many there are, where they are several

    name: ClassVar[str] = "auto"
    centres: ClassVar[bool] = True
    hidden: ClassVar[frozenset[str]] = frozenset({"number", "classes"})

    def for_label(self, label: Label) -> IterativeLearner:
        return Auto(label.target == "number", len(label.classes or ()))

    def _candidates(self, facts: PublicFacts) -> list[IterativeLearner]:
        if self.classes:
            each = (ObjectivePerturbation(), OutputPerturbation())  # by the logistic loss, which gives probabilities
            found: list[IterativeLearner] = [OneVersusRest(one, self.classes) for one in each]
            return [SoftmaxGradient(classes=self.classes), *found] if facts.delta > 0 else found
        loss = ResidualHuber() if self.number else Huber(0.5)
        found = [ObjectivePerturbation(loss), OutputPerturbation(loss)]
        if facts.delta > 0:
            found.insert(0, PrivateGradient(ResidualHuber() if self.number else None, centre=not self.number))
        return found

    def ranked(self, facts: PublicFacts) -> list[tuple[float, IterativeLearner]]:
        """Candidates by forecast, best first; those that refuse these facts are left out, unless all do."""
        able: list[tuple[float, IterativeLearner]] = []
        refusals: list[UsageError] = []
        for one in self._candidates(facts):
            try:
                worthwhile_guarantee(one, facts)
                able.append((one.excess(facts), one))
            except UsageError as error:
                refusals.append(error)
        if not able:
            raise refusals[0]
        return sorted(able, key=lambda pair: (self.number or not self._measured(pair[1]), pair[0]))

    @staticmethod
    def _measured(learner: IterativeLearner) -> bool:
        return isinstance(learner, PrivateGradient)

    def chosen(self, facts: PublicFacts) -> IterativeLearner:
        """The best of them."""
        return self.ranked(facts)[0][1]

    def settled(self, facts: PublicFacts) -> IterativeLearner:
        return self.chosen(facts).settled(facts)

    def guarantee(self, facts: PublicFacts) -> Guarantee:
        return self.chosen(facts).guarantee(facts)

    def forecast(self, facts: PublicFacts) -> Iterator[tuple[str, str]]:
        ranked = self.ranked(facts)
        rest = ", ".join(f"{one.name} {value:.2g}" for value, one in ranked[1:])
        why = "it has the least forecast excess loss"
        if not self.number and self._measured(ranked[0][1]):
            why = "it was the best wherever measured; forecast excess loss"
        against = f"against {rest}" if rest else "the others cannot be drawn"
        yield (
            "chooses",
            (
                f"{ranked[0][1].name}: for {facts.rows:,} rows, {facts.width} features, epsilon {facts.epsilon:g} "
                f"under {facts.relation} {why}, {ranked[0][0]:.2g} ({against})"
            ),
        )
        yield from ranked[0][1].forecast(facts)

    def excess(self, facts: PublicFacts) -> float:
        return self.ranked(facts)[0][0]

    def learn(self, session: Session, facts: PublicFacts) -> Learned:
        learner = self.chosen(facts)
        return learner.learn(session, facts).chosen_as(learner.name)
