"""Private tuning by random stopping: a secret number of fits on most of the rows, and the one with the best score."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from daskrado.errors import UsageError
from daskrado.lake.collect import Share
from daskrado.learners.on_passes.iterative import Guarantee, IterativeLearner, Learned, Session
from daskrado.learners.on_passes.tuning import FromGrid
from daskrado.privacy.accountant import GaussianEvent, PureEvent, ZcdpEvent, gaussian_epsilon
from daskrado.privacy.curves import round_down
from daskrado.privacy.noise import discrete_gaussian, discrete_laplace
from daskrado.privacy.perturbation import PublicFacts
from daskrado.privacy.stopping import largest_pure, largest_rho, number_of_runs, which_runs
from daskrado.statistics.risk import Mistakes

PARTS = 5  # one of them scores, the others train
TRIES = 3  # runs for each learner of the grid, in the mean: four in five searches try a given one


@dataclass(frozen=True)
class RandomStopping(FromGrid):
    """Learners of the grid, chosen at random, each on four fifths of the rows; the last fifth scores, with noise.

    ``runs`` is the mean number of fits, three for each learner unless it is given. How many there were, which ones
    and what they scored is secret: it shows in nothing that is published, but in how long the run takes. Rows are
    dealt out as for ``tuning``.

    Sensitivity
        A protected unit is in the rows of all fits or in those of all scores. A fit has the guarantee of its learner
        at the budget of one run. A score is a count of mistakes (of numbers: of how far they are off, in parts of the
        label's bounds) that a unit moves by no more than what it counts for, with noise of the same guarantee. So a
        run, whichever learner it takes, is what the dearer of the two is, and the best of a geometric number of them
        costs what :mod:`daskrado.privacy.stopping` says.

    Reference
        Papernot and Steinke (2022), theorem 2; Liu and Talwar (2019), theorem 3.2, where there is no delta.
    """

    runs: Annotated[int | None, Field(ge=1, le=1000)] = None

    name: ClassVar[str] = "random_stopping"
    seeded: ClassVar[bool] = True

    @property
    def mean(self) -> int:
        """The mean number of runs."""
        return TRIES * len(self.grid) if self.runs is None else self.runs

    def part(self, facts: PublicFacts) -> PublicFacts:
        """What a fit may know: its share of the rows."""
        return replace(facts, rows=max(1, facts.rows * (PARTS - 1) // PARTS))

    def own(self, learner: IterativeLearner, facts: PublicFacts) -> PublicFacts:
        """The budget of one run, by which a learner stays within what the whole may cost."""
        facts = self.part(facts)
        if facts.delta > 0:
            rho = largest_rho(facts.epsilon, facts.delta, self.mean)
            epsilon = gaussian_epsilon(math.sqrt(2 * rho) * (1 - 1e-9), facts.delta)
            gaussian = replace(facts, epsilon=float(epsilon))
            event = learner.guarantee(gaussian).event
            found = event.mu**2 / 2 if isinstance(event, GaussianEvent) and not event.delta else None
            found = event.rho if isinstance(event, ZcdpEvent) else found
            if found is not None and found <= rho:
                return gaussian
        most = largest_pure(facts.epsilon, facts.delta, self.mean)
        pure = replace(facts, epsilon=round_down(most), delta=0.0)
        unknown = f"random_stopping.grid: what the best of several runs of {learner.name} costs is unknown"
        try:
            event = learner.guarantee(pure).event
        except UsageError as error:
            raise UsageError(f"{unknown}; without a delta: {error}" if facts.delta else str(error)) from error
        if not (isinstance(event, PureEvent) and event.epsilon <= most):
            raise UsageError(unknown)
        return pure

    def guarantee(self, facts: PublicFacts) -> Guarantee:
        theorem = "Papernot and Steinke 2022, theorem 2" if facts.delta else "Liu and Talwar 2019, theorem 3.2"
        how = f"best of a geometric number of runs, {self.mean} in the mean ({theorem}); "
        return self.placed(facts, self.dearest(facts, how, facts.delta))

    def _rows(self, facts: PublicFacts) -> str:
        return f"about {self.part(facts).rows:,} rows, {self.mean} times in the mean, the rest to score"

    def learn(self, session: Session, facts: PublicFacts) -> Learned:
        """Fit and score a secret number of times, and keep the best."""
        # No row is looked at for that. It is drawn once for a grant, as noise is: a number of runs that somebody may
        # draw again until it pleases him has another law.
        which = session.draw(lambda: None, lambda _: which_runs(len(self.grid), number_of_runs(self.mean)))
        training, scoring = Share(PARTS - 1, PARTS, rest=True), Share(PARTS - 1, PARTS)
        best: tuple[int, int, Learned] | None = None
        for place in map(int, which):
            learner, own = self.grid[place], self.own(self.grid[place], facts)
            own = self.exact_rows(session.passes, training, own)
            model = learner.learn(replace(session, share=training, progress=None), own)
            score = self._score(session, scoring, model, facts)
            if best is None or score < best[0]:  # of equal scores the first: runs are alike, so that is a fair lot
                best = score, place, model
        assert best is not None
        return best[2].chosen_as(self.grid[best[1]].name, place_in_grid=best[1], grid=len(self.grid))

    def _score(self, session: Session, share: Share, model: Learned, facts: PublicFacts) -> int:
        """The mistakes of a model on the rows that score, in whole ones, with the noise that one run may have."""
        mistakes = Mistakes.of(session.passes, model.weights[..., None])
        far = facts.rows_per_unit * mistakes.unit  # rounding down moves no count further than whole numbers do
        if facts.delta > 0:
            noise, loss = discrete_gaussian, math.sqrt(2 * largest_rho(facts.epsilon, facts.delta, self.mean))
        else:
            noise, loss = discrete_laplace, float(largest_pure(facts.epsilon, 0, self.mean))

        def counted() -> NDArray[np.int64]:
            whole: NDArray[np.int64] = np.floor(session.passes.sum(mistakes, share=share).vector[:1]).astype(np.int64)
            return whole

        scale = math.nextafter(far / loss, math.inf)
        return int(session.draw(counted, lambda wrong: noise(wrong, scale))[0])
