"""Private tuning by random stopping: a secret number of fits on most of the rows, and the one with the best score."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from daskrado.errors import UsageError
from daskrado.lake.collect import Share
from daskrado.learners.on_passes.iterative import Guarantee, IterativeLearner, Learned, Session
from daskrado.learners.on_passes.tuning import FromGrid
from daskrado.privacy.accountant import GaussianEvent, PureEvent, ZcdpEvent, gaussian_epsilon
from daskrado.privacy.curves import round_down
from daskrado.privacy.noise import discrete_gaussian, discrete_laplace, random_words
from daskrado.privacy.perturbation import PublicFacts
from daskrado.privacy.stopping import largest_pure, largest_rho, number_of_runs, which_runs
from daskrado.statistics.risk import Mistakes

PARTS = 5  # one of them scores, the others train
TRAINING, SCORING = Share(PARTS - 1, PARTS, rest=True), Share(PARTS - 1, PARTS)
SALT = 4  # words
TRIES = 3  # runs for each learner of the grid, in the mean: four in five searches try a given one


@dataclass(frozen=True)
class RandomStopping(FromGrid):
    """Learners of the grid, chosen at random, each on four fifths of the rows; the last fifth scores, with noise.

    ``runs`` is the mean number of fits, three for each learner unless it is given. How many there were, which ones
    and what they scored is secret: it shows in nothing that is published or counted in the ledger, but in how long
    the run takes. Rows are dealt out as for ``tuning``.

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
        """Fit and score a secret number of times, and keep the best: two draws, however many fits there are."""
        # No row is looked at for the first. It is drawn once for a grant, as noise is: a number of runs that somebody
        # may draw again until it pleases him has another law. The salt is for whoever knows a digest of all draws.
        salted = session.draw(
            lambda: None, lambda _: np.concatenate([random_words(SALT).view(np.int64), self._runs()])
        )
        alone = replace(session, progress=None, journal=None)
        rows = self.exact_rows(session.passes, TRAINING, self.part(facts)).rows
        # Of all fits the best alone is counted and kept. The others, and all of a search that is cut off, are
        # forgotten with this process: a resumed run makes as many fits anew, of the same learners.
        best = session.draw(lambda: self._best(alone, salted[SALT:], facts, rows), lambda found: found)
        (place,), *drawn = _unpacked(best)
        kept = iter(drawn)
        model = self._fit(replace(alone, journal=lambda *_: next(kept)), int(place), facts, rows)
        return model.chosen_as(self.grid[place].name, place_in_grid=int(place), grid=len(self.grid))

    def _runs(self) -> NDArray[np.int64]:
        return which_runs(len(self.grid), number_of_runs(self.mean))

    def _best(self, session: Session, which: NDArray[np.int64], facts: PublicFacts, rows: int) -> NDArray[np.uint8]:
        """The place in the grid of the best fit and all that it drew, of which its model is a function."""
        best: tuple[int, list[NDArray[Any]]] | None = None
        for place in map(int, which):
            drawn: list[NDArray[Any]] = [np.array([place])]
            model = self._fit(replace(session, journal=partial(_noted, drawn)), place, facts, rows)
            score = self._score(session, model, facts)
            if best is None or score < best[0]:  # of equal scores the first: runs are alike, so that is a fair lot
                best = score, drawn
        assert best is not None
        return _packed(best[1])

    def _fit(self, session: Session, place: int, facts: PublicFacts, rows: int) -> Learned:
        learner = self.grid[place]
        return learner.learn(replace(session, share=TRAINING), replace(self.own(learner, facts), rows=rows))

    def _score(self, session: Session, model: Learned, facts: PublicFacts) -> int:
        """The mistakes of a model on the rows that score, in whole ones, with the noise that one run may have."""
        mistakes = Mistakes.of(session.passes, model.weights[..., None])
        far = facts.rows_per_unit * mistakes.unit  # rounding down moves no count further than whole numbers do
        if facts.delta > 0:
            noise, loss = discrete_gaussian, math.sqrt(2 * largest_rho(facts.epsilon, facts.delta, self.mean))
        else:
            noise, loss = discrete_laplace, float(largest_pure(facts.epsilon, 0, self.mean))

        def counted() -> NDArray[np.int64]:
            whole: NDArray[np.int64] = np.floor(session.passes.sum(mistakes, share=SCORING).vector[:1]).astype(
                np.int64
            )
            return whole

        scale = math.nextafter(far / loss, math.inf)
        return int(session.draw(counted, lambda wrong: noise(wrong, scale))[0])


def _noted(
    drawn: list[NDArray[Any]], paid: bool, gather: Callable[[], Any], perturb: Callable[[Any], NDArray[Any]]
) -> NDArray[Any]:
    """Draw, and note what was drawn."""
    del paid
    drawn.append(perturb(gather()))
    return drawn[-1]


def _packed(arrays: list[NDArray[Any]]) -> NDArray[np.uint8]:
    file = io.BytesIO()
    np.savez(file, *arrays)
    return np.frombuffer(file.getvalue(), dtype=np.uint8)


def _unpacked(packed: NDArray[np.uint8]) -> list[NDArray[Any]]:
    with np.load(io.BytesIO(packed.tobytes())) as arrays:
        return [arrays[f"arr_{place}"] for place in range(len(arrays))]
