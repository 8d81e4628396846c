"""Private tuning: one fit for each value of a grid, each on rows of its own, and a private choice among them."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, PlainSerializer

from daskrado.errors import UsageError
from daskrado.lake.collect import Passes, Share
from daskrado.lake.shards import KEPT_PLACE
from daskrado.lake.steps import begin_step
from daskrado.learners.on_passes.iterative import Guarantee, IterativeLearner, Learned, Session, noise_to_signal
from daskrado.learners.on_passes.placing import PlacingLearner
from daskrado.privacy.accountant import ApproximateEvent, Event, PureEvent
from daskrado.privacy.events import MAX_EPSILON
from daskrado.privacy.noise import exponential_choice
from daskrado.privacy.perturbation import PublicFacts
from daskrado.privacy.relations import Relation
from daskrado.registry import make, options
from daskrado.statistics.risk import Mistakes
from daskrado.table.label import Label


def _tunable(content: Any) -> IterativeLearner:
    found = make(IterativeLearner, ("daskrado.learners.on_passes",), content)
    if not found.tunable:
        raise ValueError(f"kind {found.name} cannot be in a grid")
    return found


if TYPE_CHECKING:
    Grid = tuple[IterativeLearner, ...]
else:
    Grid = tuple[Annotated[Any, BeforeValidator(_tunable), PlainSerializer(options)], ...]


@dataclass(frozen=True)
class FromGrid(IterativeLearner):
    """One of several learners."""

    grid: Grid

    def __post_init__(self) -> None:
        if len(self.grid) < 2:
            raise UsageError(f"tuning needs a grid of at least 2 learners, got {len(self.grid)}")

    def for_label(self, label: Label) -> IterativeLearner:
        """The same grid, with each learner as it is for such a label."""
        return replace(self, grid=tuple(learner.for_label(label) for learner in self.grid))

    def part(self, facts: PublicFacts) -> PublicFacts:
        """What each fit may know."""
        return facts

    def own(self, learner: IterativeLearner, facts: PublicFacts) -> PublicFacts:
        """What the fit of one learner may know, and cost."""
        del learner
        return self.part(facts)

    def settled(self, facts: PublicFacts) -> IterativeLearner:
        return replace(self, grid=tuple(learner.settled(self.own(learner, facts)) for learner in self.grid))

    def forecast(self, facts: PublicFacts) -> Iterator[tuple[str, str]]:
        yield "tunes", f"{len(self.grid)} learners on {self._rows(facts)}"
        for learner in self.grid:
            texts = (text for _, text in learner.forecast(self.own(learner, facts)))
            yield "candidate", f"{learner.name}: {'; '.join(texts)}"

    def excess(self, facts: PublicFacts) -> float:
        return min(learner.excess(self.own(learner, facts)) for learner in self.grid)

    def dearest(self, facts: PublicFacts, how: str, delta: float | None = None) -> Guarantee:
        """All of the budget, or without its delta where no learner has one."""
        found = [learner.guarantee(self.own(learner, facts)) for learner in self.grid]
        delta = max(one.delta for one in found) if delta is None else delta
        event: Event = ApproximateEvent(facts.epsilon, delta) if delta else PureEvent(facts.epsilon)
        assumptions = tuple(dict.fromkeys(text for one in found for text in one.assumptions))
        theorems = "; ".join(dict.fromkeys(one.theorem for one in found))
        return Guarantee(event, delta, self.name, how + theorems, assumptions)

    def placed(self, facts: PublicFacts, found: Guarantee) -> Guarantee:
        """The guarantee, and what it takes for granted where rows are dealt out by place."""
        if facts.rows_per_unit > 1 and not facts.by_unit:
            raise UsageError(
                f"{self.name} deals rows out one by one: a unit of {facts.rows_per_unit} rows would be in several "
                "parts; name its column (protect.unit: {column: ...}), or tune on public data"
            )
        if facts.relation is Relation.ADD_REMOVE or facts.by_unit:
            return found
        return replace(found, assumptions=(*found.assumptions, KEPT_PLACE))

    def exact_rows(self, passes: Passes, share: Share, own: PublicFacts) -> PublicFacts:
        """The share's exact number of rows, or what its units count for, where that is public; else an estimate."""
        if not own.relation.rows_public:
            return own
        counted = passes.sum(Mistakes.of(passes, np.zeros((*passes.domain.weights_shape, 0))), share=share)
        return replace(own, rows=max(1, int(counted.vector[-1])))

    @abstractmethod
    def _rows(self, facts: PublicFacts) -> str:
        """The rows that the learners are tried on, in words."""


@dataclass(frozen=True)
class Tuning(PlacingLearner, FromGrid):
    """The grid's learners, each with the whole budget on one of m + 1 parts; the last part chooses.

    Rows are dealt out by public random numbers, never by their content: keyed by the unit's id where units are
    bounded, else by record id under add/remove and by position otherwise. A lake whose folders are named after a
    column is refused where rows go by position. The choice is by the exponential mechanism on the number of mistakes,
    each row's counted as its weight. With ``centre`` plain numbers are placed first, once for all of the grid.

    Sensitivity
        One protected unit is in one part, with all its rows or with its only one, so the parts' guarantees hold
        together at the price of one (parallel composition). On the last part a row moves each count of mistakes by
        at most 1 (of a number, how far it is off by the width of its bounds), a bounded unit by at most what it
        counts for, and the choice costs epsilon. Published are the
        chosen model and its place in the grid, which follow from both; the other models and all counts are not.

    Reference
        Chaudhuri, Monteleoni and Sarwate (2011), algorithm 4; McSherry and Talwar (2007).
    """

    centre: bool = False

    name: ClassVar[str] = "tuning"
    seeded: ClassVar[bool] = True

    def part(self, facts: PublicFacts) -> PublicFacts:
        """What each of the m + 1 parts may know: its public share of the rows."""
        return replace(facts, rows=max(1, facts.rows // (len(self.grid) + 1)))

    def _guarantee(self, facts: PublicFacts) -> Guarantee:
        part = self.part(facts)
        if noise_to_signal(part) > 1:
            enough = math.ceil(noise_to_signal(replace(facts, rows=1)))  # rows, of which each part needs so many
            most = facts.rows // enough - 1
            raise UsageError(
                f"tuning.grid: {len(self.grid)} learners leave {part.rows:,} rows to each part, too few at epsilon "
                f"{facts.epsilon:g}; "
                + (f"at most {most} would do" if most > 1 else "the lake is too small to tune on")
            )
        how = "exponential mechanism over disjoint parts (Chaudhuri et al. 2011, algorithm 4); "
        return self.placed(facts, self.dearest(facts, how))

    def _forecast(self, facts: PublicFacts) -> Iterator[tuple[str, str]]:
        return FromGrid.forecast(self, facts)

    def _excess(self, facts: PublicFacts) -> float:
        return FromGrid.excess(self, facts)

    def _rows(self, facts: PublicFacts) -> str:
        return f"about {self.part(facts).rows:,} rows each, as many to choose"

    def _learn(self, session: Session, facts: PublicFacts) -> Learned:
        """Fit each, count mistakes on the last part, choose privately."""
        parts = len(self.grid) + 1
        models = []
        begin_step(session.progress, "candidate")
        for index, learner in enumerate(self.grid):
            share = Share(index, parts)
            own = self.exact_rows(session.passes, share, self.part(facts))
            models.append(learner.learn(replace(session, share=share, progress=None), own))
            if session.progress is not None:
                session.progress(index + 1, parts)
        mistakes = Mistakes.of(session.passes, np.stack([model.weights for model in models], axis=-1))
        far = float(facts.rows_per_unit * mistakes.unit)
        drawn = session.draw(
            lambda: session.passes.sum(mistakes, share=Share(parts - 1, parts)).vector[:-1].astype(np.float64),
            lambda wrong: np.array([exponential_choice(-wrong, facts.epsilon, far)]),
        )
        chosen = int(drawn[0])
        return models[chosen].chosen_as(self.grid[chosen].name, place_in_grid=chosen, grid=len(self.grid))


@dataclass(frozen=True)
class PublicTuning(FromGrid):
    """The learner of a grid that does best on public rows, then fitted on the private ones with the whole budget.

    Every learner is fitted with its noise on one half of the public rows and counted on the other half. Fewer rows
    get as many times more epsilon (at most the largest there is), so that the noise is to the gradient what it will
    be in the private fit. Public rows cost nothing, so the choice is a public fact.

    Sensitivity
        The choice does not depend on private rows; the one fit has its own guarantee.
    """

    public_lake: Any

    name: ClassVar[str] = "public_tuning"

    def guarantee(self, facts: PublicFacts) -> Guarantee:
        """Whichever is chosen has at most this."""
        return self.dearest(facts, "tuning on public data; ")

    def _rows(self, facts: PublicFacts) -> str:
        del facts
        return "public rows; the best has the whole private lake"

    def learn(self, session: Session, facts: PublicFacts) -> Learned:
        wrong = session.choose_in_public(lambda: self._all_mistakes(session.passes, facts)).tolist()
        chosen = int(np.argmin(wrong))
        learned = self.grid[chosen].learn(session, facts)
        return learned.chosen_as(self.grid[chosen].name, place_in_grid=chosen, public_mistakes=wrong)

    def _all_mistakes(self, passes: Passes, facts: PublicFacts) -> NDArray[np.int64]:
        with passes.over_another(self.public_lake) as public:
            return np.array([self._mistakes(learner, public, facts) for learner in self.grid])

    @staticmethod
    def _mistakes(learner: IterativeLearner, public: Passes, facts: PublicFacts) -> int:
        trial, rows = Session(public, lambda: None, Share(0, 2)), max(1, public.lake.rows // 2)
        epsilon = min(float(MAX_EPSILON), facts.epsilon * facts.rows / rows)
        weights = learner.learn(trial, replace(facts, rows=rows, epsilon=epsilon)).weights
        counted = public.sum(Mistakes.of(public, weights[..., None]), share=Share(1, 2))
        return int(counted.vector[0])
