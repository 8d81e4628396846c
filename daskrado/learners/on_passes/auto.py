"""The learner to take, from public facts: rows, features, budget and relation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from daskrado.errors import UsageError
from daskrado.learners.on_passes.erm import ObjectivePerturbation, OutputPerturbation
from daskrado.learners.on_passes.gradient import PrivateGradient
from daskrado.learners.on_passes.iterative import Guarantee, IterativeLearner, Learned, Session, worthwhile_guarantee
from daskrado.learners.on_passes.one_vs_rest import OneVersusRest
from daskrado.learners.on_passes.outlook import Outlook
from daskrado.learners.on_passes.schedule import CORNER
from daskrado.learners.on_passes.softmax import SoftmaxGradient
from daskrado.losses.margin import Huber, HuberLogistic, Logistic, Loss
from daskrado.losses.residual import ResidualHuber
from daskrado.models.link import MOST_HUBER
from daskrado.privacy.perturbation import PublicFacts
from daskrado.table.label import Label

Aim = Literal["error", "auc", "logloss", "cost"]


@dataclass(frozen=True)
class Auto(IterativeLearner):
    """The noisy gradient where it can be drawn, else the candidate with the least forecast excess risk.

    Where there is a delta the gradient had the least error of the three, or as little, on every table and budget that
    was measured (pipelines/reproduce/centring.py --learners), while the forecasts, which are bounds, cross at large
    budgets. For labels that are numbers the forecast decides. It reads no row, so the choice costs nothing.

    ``aim`` is what the model is for. Margins of Huber's loss are no log-odds, so where probabilities are wanted, and
    where a threshold follows from them, at least half of the loss is the logistic one, at any noise: all of it was
    worse in log-loss at much noise (pipelines/reproduce/goals.py).
    """

    number: bool = False  # the label is one; no file says so, the Domain does
    classes: int = 0  # how many there are, where they are several
    aim: Aim = "error"  # the job's goal

    name: ClassVar[str] = "auto"
    centres: ClassVar[bool] = True
    hidden: ClassVar[frozenset[str]] = frozenset({"number", "classes", "aim"})

    def for_label(self, label: Label) -> IterativeLearner:
        return replace(self, number=label.target == "number", classes=len(label.classes or ()))

    def _losses(self, facts: PublicFacts) -> tuple[Loss | None, Loss]:
        """Of the gradient, None for its own rule, and of those that minimise."""
        if self.number:
            return ResidualHuber(), ResidualHuber()
        if self.aim in ("error", "auc") or not facts.delta > 0:
            return None, Huber(0.5) if self.aim in ("error", "auc") else Logistic()
        rule = PrivateGradient().schedule(facts).loss
        assert isinstance(rule, HuberLogistic)
        return HuberLogistic(min(MOST_HUBER, rule.share), CORNER), Logistic()

    def _candidates(self, facts: PublicFacts) -> list[IterativeLearner]:
        if self.classes:
            each = (ObjectivePerturbation(), OutputPerturbation())  # by the logistic loss, which gives probabilities
            found: list[IterativeLearner] = [OneVersusRest(one, self.classes) for one in each]
            return [SoftmaxGradient(classes=self.classes), *found] if facts.delta > 0 else found
        (descended, loss), centre = self._losses(facts), not self.number
        found = [ObjectivePerturbation(loss, centre=centre), OutputPerturbation(loss, centre=centre)]
        if facts.delta > 0:
            found.insert(0, PrivateGradient(descended, centre=centre))
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
        told = "" if self.aim in ("error", "auc") else " with a loss whose margins are log-odds"
        yield (
            "chooses",
            (
                f"{ranked[0][1].name}{told}: for {facts.rows:,} rows, {facts.width} features, epsilon "
                f"{facts.epsilon:g} under {facts.relation} {why}, {ranked[0][0]:.2g} ({against})"
            ),
        )
        yield from ranked[0][1].forecast(facts)

    def excess(self, facts: PublicFacts) -> float:
        return self.ranked(facts)[0][0]

    def outlook(self, facts: PublicFacts) -> Outlook | None:
        return self.chosen(facts).outlook(facts)

    def learn(self, session: Session, facts: PublicFacts) -> Learned:
        learner = self.chosen(facts)
        return learner.learn(session, facts).chosen_as(learner.name)
