"""Private multiplicative weights: counting queries answered from a public histogram, mended where it is wrong."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NoReturn, cast

import numpy as np
from numpy.typing import NDArray

from daskrado.engines.sparse_vector import Count, Engine, SparseVector, largest_fraction, uncounted
from daskrado.errors import LedgerError, UsageError
from daskrado.ledger.endings import outdated
from daskrado.ledger.journal import Journal
from daskrado.ledger.lines import Closable
from daskrado.privacy.accountant import (
    Event,
    PureEvent,
    SeveralEvents,
    decimal_text,
    exact_delta,
    exact_epsilon,
    within,
)
from daskrado.privacy.noise import discrete_laplace, laplace_variance
from daskrado.privacy.relations import Relation
from daskrado.statistics.base import Statistic, Summary
from daskrado.statistics.counts import Histogram
from daskrado.statistics.universe import Universe

Cells = tuple[NDArray[np.intp], ...]

ANSWER_SHARE = Fraction(1, 4)  # of an update's epsilon, for its noisy answer; the rest finds it
COUNT_SHARE = Fraction(1, 50)  # of the whole epsilon, for the number of rows where it is secret
_ROWS = "answers@rows"  # the draw of the number of rows, as the ledger counts it
REPLAYS = 2  # passes over all answers so far after each update; post-processing


@dataclass(frozen=True)
class WeightsPlan:
    """What an engine may do and what it costs: all public.

    Each update costs one sparse-vector instance and one noisy count. ``queries`` is how many questions are expected;
    it sets the default threshold (in rows), not a limit.

    Sensitivity
        A counting query moves by at most ``rows_per_unit`` when one unit's rows are added, removed or replaced. The
        estimate that it is compared with is public. Where ``units`` are bounded by weights, a query is the weight of
        its rows, rounded down: a unit's weights in it are at least 0 and together at most k = ``rows_per_unit``, so
        the sum moves by at most k, and rounding down moves whole numbers by no more than that. The same holds for
        the weight of all rows, which stands for their number and is secret.

    Reference
        Hardt and Rothblum (2010), rebuilt from parts: the two-sided test is a sparse vector on |truth - estimate|,
        the answer of an update has fresh noise, and only updates count. Answers are replayed as in Hardt, Ligett
        and McSherry (2012).
    """

    universe: Universe
    relation: Relation
    epsilon: float
    delta: float
    updates: int = 30
    queries: int = 1000
    threshold: int | None = None
    rows_per_unit: int = 1
    units: bool = False

    def __post_init__(self) -> None:
        exact_epsilon(self.epsilon)
        exact_delta(self.delta, zero=True)
        for name, low, high in (("updates", 1, 10_000), ("queries", 1, 10**9), ("rows_per_unit", 1, 10_000)):
            if not low <= getattr(self, name) <= high:
                raise UsageError(f"{name} must be between {low} and {high:,}, got {getattr(self, name)!r}")
        if self.threshold is not None and self.threshold < 1:
            raise UsageError(f"threshold must be at least 1 row, got {self.threshold!r}")
        if Histogram(0, self.universe).sensitivity(self.relation).public:
            raise UsageError(f"under {self.relation} nothing in this universe is protected: add the label to it")

    @property
    def count_event(self) -> PureEvent | None:
        """The cost of the number of rows, where the relation keeps it secret; of what units count for, always."""
        public = self.relation.rows_public and not self.units
        return None if public else PureEvent(exact_epsilon(self.epsilon) * COUNT_SHARE)

    def calibrated(self) -> Calibration:
        """The largest epsilon for each update that the budget allows, by optimal composition."""
        target = exact_epsilon(self.epsilon)

        def fits(one: Fraction) -> bool:
            return within(self._events(one), target, self.delta)

        one = largest_fraction(fits, target)
        finder = SparseVector(one * (1 - ANSWER_SHARE), self.updates, self.rows_per_unit)
        scale = math.nextafter(float(self.rows_per_unit / (one * ANSWER_SHARE)), math.inf)
        # By default about a quarter of the updates may be false alarms over the expected questions.
        chance = min(0.25, self.updates / (4 * self.queries))
        threshold = self.threshold if self.threshold is not None else max(1, finder.least_margin(chance))
        return Calibration(self, finder, scale, threshold, tuple(self._events(one)))

    def _events(self, one: Fraction) -> list[Event]:
        count = [] if self.count_event is None else [self.count_event]
        finders: list[Event] = [PureEvent(one * (1 - ANSWER_SHARE))] * self.updates
        return [*count, *finders, *[PureEvent(one * ANSWER_SHARE)] * self.updates]


@dataclass(frozen=True)
class Calibration:
    """Noise and threshold of a plan."""

    plan: WeightsPlan
    finder: SparseVector
    answer_scale: float
    threshold: int
    events: tuple[Event, ...]

    @property
    def event(self) -> Event:
        """The whole engine as one event for the ledger."""
        return SeveralEvents.of(self.events)

    @property
    def answer_std(self) -> float:
        """Standard deviation of an update's answer, in rows."""
        return math.sqrt(laplace_variance(self.answer_scale))

    def accuracy(self, confidence: float = 0.95) -> int:
        """Rows by which no lazy answer is off, over the expected queries, with this confidence (the noise's tail)."""
        return self.threshold + self.finder.least_margin((1 - confidence) / self.plan.queries)


@dataclass(frozen=True)
class Answer:
    """A released count. ``lazy``: read from the public histogram; else measured with fresh noise."""

    count: float
    fraction: float
    lazy: bool


class PrivateQueries(Closable):
    """The interactive engine. It holds a private histogram; everything that it returns is released.

    A ``journal`` keeps updates, so that a restarted session goes on with the same public histogram and pays for
    nothing twice but the interrupted instance. ``count`` counts a draw in the ledger, by its name, once the journal
    has it on disk and before it is made; ``counted`` are those of before, all of which the journal must know.
    """

    def __init__(
        self,
        calibration: Calibration,
        summary: Summary,
        journal: Journal | None = None,
        facts: Mapping[str, Any] | None = None,
        count: Count = uncounted,
        counted: Collection[str] = (),
    ) -> None:
        plan = calibration.plan
        statistic = summary.statistic
        plain = statistic.plain if isinstance(statistic, Statistic) else statistic
        if not isinstance(plain, Histogram) or plain.universe != plan.universe:
            raise ValueError("the summary is not the histogram of the plan's universe")
        if isinstance(statistic, Histogram) == plan.units:
            raise ValueError("the summary counts rows and the plan units, or the other way round")
        self.calibration = calibration
        self._fine = cast(Statistic, statistic).blocks[0].fine  # counts are in steps of 2^-fine rows
        self._counts: NDArray[np.int64] | None = summary.vector.reshape(plan.universe.shape)
        settings = {
            "budget": [decimal_text(exact_epsilon(plan.epsilon)), plan.delta],
            "relation": str(plan.relation),
            "universe": [[axis.name, len(axis.values)] for axis in plan.universe.axes],
            **(facts or {}),
        }
        self._engine = Engine(calibration.finder, calibration.threshold, "above", journal, settings, count=count)
        self._count, self._counted = count, counted
        if missing := {*counted} - self._engine.known - ({_ROWS} if self._row_counts() else set()):
            self._engine.close()
            raise LedgerError(outdated("the engine's journal", missing, "start again with a new one"))
        self._weights: NDArray[np.float64] = np.full(plan.universe.shape, 1.0 / plan.universe.size)
        self._measured: list[tuple[Cells, int]] = []
        self.rows = self._release_row_count(self._whole(summary.vector) if plan.units else summary.rows)
        self.asked = len(self._engine.answered)
        for note in self._engine.notes:
            if "count" in note:
                self._learn(plan.universe.cells(note["where"]), int(note["count"]))

    def __repr__(self) -> str:
        return f"<PrivateQueries: {self.updates} of {self.calibration.plan.updates} updates, {self.asked} asked>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a query engine holds a private histogram and is never written or sent")

    def close(self) -> None:
        """Forget the private histogram and release the journal's file. What was released stays."""
        self._counts = None
        self._engine.close()

    @property
    def updates(self) -> int:
        """Updates made so far."""
        return len(self._measured)

    @property
    def halted(self) -> bool:
        """Whether the last update was used: then only :meth:`estimate` answers, from what is public."""
        return self._engine.halted

    @property
    def synthetic(self) -> NDArray[np.float64]:
        """The public histogram, in rows, shaped like the universe. Whatever is done with it is post-processing."""
        return self._weights * self.rows

    def estimate(self, where: Mapping[str, Any]) -> Answer:
        """The public histogram's answer; costs nothing."""
        return self._public(self.calibration.plan.universe.cells(where))

    def _public(self, cells: Cells) -> Answer:
        share = float(self._weights[cells].sum())
        return Answer(share * self.rows, share, lazy=True)

    def ask(self, where: Mapping[str, Any]) -> Answer:
        """Answer one counting query, which may depend on all earlier answers."""
        cells = self.calibration.plan.universe.cells(where)
        if self.halted:
            raise UsageError(
                f"the engine has halted after {self.calibration.plan.updates} updates; its public histogram still "
                "answers (estimate), and a new engine needs a new budget"
            )
        if self._counts is None:
            raise UsageError("this query engine was closed")
        public = self._public(cells)
        truth = self._whole(self._counts[cells])
        gap = np.array([abs(truth - round(public.count))], dtype=np.int64)
        self.asked += 1
        if not self._engine.ask(gap)[0]:
            return public
        drawn = discrete_laplace(np.array([truth], dtype=np.int64), self.calibration.answer_scale)
        noisy = int(np.clip(drawn[0], 0, self.rows))
        self._engine.note({"where": {key: _plain(value) for key, value in where.items()}, "count": noisy})
        self._learn(cells, noisy)
        return Answer(float(noisy), noisy / self.rows, lazy=False)

    def give(self, where: Mapping[str, Any]) -> Answer:
        """Ask, and keep the answer in the journal: a batch that is cut off has it in ``given``."""
        answer = self.ask(where)
        self._engine.note({"given": [answer.count, answer.fraction, answer.lazy]})
        return answer

    @property
    def given(self) -> list[Answer]:
        """The answers that :meth:`give` has given, also before a restart."""
        return [Answer(*note["given"]) for note in self._engine.notes if "given" in note]

    def _learn(self, cells: Cells, noisy: int) -> None:
        """Weights of the chosen cells times e^eta, then normalised, for the new answer and again for all answers.

        eta = logit(answer) - logit(estimate): the step after which the histogram gives the released answer, which
        loses the most relative entropy. All of it is post-processing of released values.
        """
        self._measured.append((cells, noisy))
        least = 0.5 / self.rows  # an answer of no rows, or of all, would set weights to zero for ever
        for chosen, count in [self._measured[-1], *self._measured * REPLAYS]:
            share = float(self._weights[chosen].sum())
            goal = min(max(count / self.rows, least), 1 - least)
            if not 0 < share < 1:
                continue
            self._weights[chosen] *= goal / share * ((1 - share) / (1 - goal))
            self._weights /= self._weights.sum()

    def _whole(self, counts: NDArray[np.int64]) -> int:
        """Rows in some cells, rounded down."""
        return int(counts.sum()) >> self._fine

    def _row_counts(self) -> list[int | None]:
        return [note["rows"] for note in self._engine.notes if "rows" in note]

    def _release_row_count(self, rows: int) -> int:
        """The public number of rows: as it is, or with noise where the relation keeps it secret (once: see notes)."""
        event = self.calibration.plan.count_event
        if event is None:
            return rows
        kept = self._row_counts()
        if kept and kept[-1] is not None:
            return int(kept[-1])
        if kept and _ROWS in self._counted:
            raise LedgerError(
                "journal: it was cut off between drawing the number of rows and keeping it; noise is never drawn "
                "twice for one grant, so the charge stays; start again with a new one"
            )
        self._engine.note({"rows": None})  # from here on it may have been drawn
        self._count(_ROWS)
        scale = math.nextafter(float(self.calibration.plan.rows_per_unit / event.epsilon), math.inf)
        noisy = max(1, int(discrete_laplace(np.array([rows], dtype=np.int64), scale)[0]))
        self._engine.note({"rows": noisy})
        return noisy


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, list | tuple | set | frozenset) else value
