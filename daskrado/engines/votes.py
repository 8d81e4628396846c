"""The engine that answers queries from teachers' votes: one for a data set, on disk, debited once.

Its journal holds public facts only: which queries were asked (as digests) and what was answered. A query that was
answered is never answered anew; one that a crash swallowed stays paid for.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskrado.engines.answers import REFUSED, Answering
from daskrado.engines.succession import engine_path, make_way, queries_asked, state_path, swallowed
from daskrado.errors import DataError, LedgerError, UsageError
from daskrado.ledger.answer_journal import Journal
from daskrado.ledger.ledger import Grant, Ledger, State
from daskrado.privacy.accountant import Event, PureEvent
from daskrado.privacy.noise import discrete_laplace
from daskrado.privacy.relations import Relation
from daskrado.statistics.votes import Votes

UNANSWERED = -2  # the engine stopped before it came to this query
BATCH = 1024  # queries between two writes of the journal
NEXT_ENGINE = "open the next engine (answers.engine)"


@dataclass(frozen=True)
class Owner:
    """On whose budget an engine runs.

    ``drawing`` is entered around a draw that nothing could repeat if it were lost, so that a run can remember it.
    """

    ledger: Ledger
    dataset: str
    relation: Relation
    theorem: str
    fingerprint: str
    run: str
    drawing: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext

    def reserve(self, event: Event) -> Grant:
        """Debit the ledger."""
        return self.ledger.reserve(
            self.dataset, self.relation, event, theorem=self.theorem, run=self.run, fingerprint=self.fingerprint
        )


class VoteEngine:
    """Adaptive queries, each answered once; stops after the last query or refusal it was granted."""

    def __init__(self, owner: Owner, journal: Journal, path: Path, event: Event) -> None:
        self.path = path
        self._owner = owner
        self._journal = journal
        self._asked = queries_asked(journal.notes)
        self._answers: dict[str, int] = {}
        for note in journal.notes:
            self._answers |= note.get("answers", {})
        self._answering: Answering | None = None
        self._new: list[Grant] = []
        self._grant = self._granted("answers", event)

    def __repr__(self) -> str:
        return f"<VoteEngine: {self._asked} queries asked>"

    @property
    def ledger(self) -> Ledger:
        """Where it is paid for."""
        return self._owner.ledger

    @property
    def run(self) -> str:
        """The run that opened or resumed it."""
        return self._owner.run

    @property
    def grant(self) -> Grant:
        """What pays for the answers."""
        return self._grant

    @property
    def state_path(self) -> Path:
        """Where a mechanism may keep public state of its own."""
        return state_path(self.path)

    def use(self, answering: Answering) -> None:
        """Answer by this mechanism, which must cost what was reserved."""
        if answering.event != self._grant.event:
            raise ValueError("the grant was reserved for another event than this mechanism's")
        there = self.state_path.exists() and self.state_path.stat().st_size > 0
        self._answering = answering
        if answering.instances is not None and self._asked:
            paid = max(note.get("used", 0) for note in self._journal.notes)
            if not there or answering.used < paid:
                raise LedgerError(
                    f"{self.state_path}: is gone or older than the engine, whose thresholds it counts; "
                    f"restore it, or {NEXT_ENGINE}"
                )
        if not any("terms" in note for note in self._journal.notes):
            terms = {"queries": answering.terms.queries, "instances": answering.instances}
            self._journal.note({"terms": terms})
        self._finish(self.left)

    @property
    def answering(self) -> Answering:
        """The mechanism in use."""
        assert self._answering is not None
        return self._answering

    @property
    def left(self) -> int:
        """How many new queries it still takes."""
        return 0 if self.answering.halted else self.answering.terms.queries - self._asked

    @property
    def left_afterwards(self) -> int:
        """How many the next session will take: the open threshold of a sparse vector is lost with this one."""
        if self.refusals_left == 0:
            return 0
        return self.answering.terms.queries - self._asked

    @property
    def refusals_left(self) -> int | None:
        """How many thresholds later sessions may draw; None where the mechanism has none."""
        instances = self.answering.instances
        return None if instances is None else max(0, instances - self.answering.used)

    @property
    def counts(self) -> dict[str, int]:
        """Public counts over its whole life."""
        given = list(self._answers.values())
        answered = sum(label >= 0 for label in given)
        return {"asked": self._asked, "answered": answered, "refused": given.count(REFUSED)}

    def known(self, digests: Sequence[str]) -> bool:
        """Whether all of these have their answer already, so that no teacher is needed."""
        return all(digest in self._answers for digest in digests)

    def ask(self, digests: Sequence[str], vote: Callable[[NDArray[np.int64]], Votes]) -> NDArray[np.int64]:
        """A class index, REFUSED or UNANSWERED for each query.

        ``vote`` gives the votes on the queries at some positions; it is called for new queries only. A query asked
        before gets its old answer back, at no cost.
        """
        places = self._new_queries(digests)
        names = list(places)
        for start in range(0, len(names), BATCH):
            if not self.answering.halted:
                self._answer(names[start : start + BATCH], places, vote, len(names) - start)
        if names and self.left == 0:
            # Written down too, so that the same file of queries always gets the same answers.
            self._keep({name: UNANSWERED for name in names if name not in self._answers}, 0)
            self._finish(0)
        return np.array([self._answers.get(digest, UNANSWERED) for digest in digests], dtype=np.int64)

    def check(self, digests: Sequence[str]) -> None:
        """Refuse more new queries than are left, before anything is trained for them."""
        if self._answering is not None:
            self._new_queries(digests)

    def _new_queries(self, digests: Sequence[str]) -> dict[str, int]:
        """The first place of each query that has no answer yet."""
        places: dict[str, int] = {}
        for at, digest in enumerate(digests):
            if digest not in self._answers:
                places.setdefault(digest, at)
        if places and len(places) > self.left:
            if lost := swallowed(self._journal.notes):
                raise LedgerError(
                    f"the engine of {self._owner.dataset!r} was cut off between spending on {lost} queries and "
                    f"keeping their answers: noise is never drawn twice, so they stay paid for, and {self.left} new "
                    f"queries are left for {len(places)}; {NEXT_ENGINE} for the rest"
                )
            why = ""
            if self.answering.halted:
                why = f": its {self.answering.instances} thresholds are used up (each session and refusal costs one)"
            raise UsageError(
                f"{len(places)} new queries, but the engine of {self._owner.dataset!r} has {self.left} left of "
                f"{self.answering.terms.queries}{why}; ask fewer, or open the next engine (answers.engine) with more"
            )
        return places

    def _answer(
        self, batch: list[str], places: dict[str, int], vote: Callable[[NDArray[np.int64]], Votes], wanted: int
    ) -> None:
        """Answer a batch, the first of ``wanted`` queries.

        The order is: votes, spend, ``asked``, draw, keep. Nothing is drawn before it is spent and counted; what ends
        before ``asked`` has drawn nothing and costs no query; what ends after it leaves the batch paid for.
        """
        votes = vote(np.array([places[name] for name in batch], dtype=np.int64))
        self._spend(self._grant)
        with self._owner.drawing() if self._last_chance(len(batch), wanted) else contextlib.nullcontext():
            self._journal.note({"asked": len(batch), **self._used()})
            self._asked += len(batch)
            labels = self.answering.release(votes.counts)
            self._keep({name: int(label) for name, label in zip(batch, labels, strict=False)}, len(batch))

    def _last_chance(self, batch: int, wanted: int) -> bool:
        """Whether the engine could not answer the wanted queries any more if this batch were lost."""
        later = self.answering.terms.queries - self._asked - batch
        thresholds = self.refusals_left
        return later < wanted or (thresholds is not None and thresholds <= 1)

    def _keep(self, given: dict[str, int], done: int) -> None:
        self._journal.note({"answers": given, "done": done, **self._used()})
        self._answers |= given

    def _used(self) -> dict[str, int]:
        return {} if self.answering.instances is None else {"used": self.answering.used}

    def _finish(self, left: int) -> None:
        if left == 0 and not any("finished" in note for note in self._journal.notes):
            self._journal.note({"finished": True})

    def close(self) -> None:
        """Let go of the mechanism; note whether a later session could still ask."""
        if self._answering is not None:
            with contextlib.suppress(OSError, LedgerError):  # the next one to open it notes it, too
                self._finish(self.left_afterwards)
            self._answering.close()

    @property
    def released_error(self) -> float | None:
        """The teachers' error, if it was released before."""
        return next((float(note["error_rate"]) for note in self._journal.notes if "error_rate" in note), None)

    def error_rate(self, measure: Callable[[], int], unit: int, teachers: int, changed: int, epsilon: float) -> float:
        """The teachers' mean error, released once with discrete Laplace noise and kept.

        ``measure`` gives the sum over teachers of an error rate in [0, 1], in whole ``unit``s.

        Sensitivity
            A record trains one teacher and examines one: two rates move by at most 1 each, for each of the
            ``changed`` teachers that a protected unit reaches.

        Reference
            Bassily, Thakkar and Thakurta (2018), remark 1.
        """
        if self.released_error is not None:
            return self.released_error
        event = PureEvent(epsilon)
        grant = self._granted("error_rate", event, renew=True)
        total = measure()
        self._spend(grant)
        scale = float(2 * changed * unit / Fraction(event.epsilon)) * (1 + 1e-12)
        noisy = int(discrete_laplace(np.array([total], dtype=np.int64), scale)[0])
        rate = min(1.0, max(0.0, noisy / (unit * teachers)))
        self._journal.note({"error_rate": rate})
        return rate

    def reserve_error_rate(self, epsilon: float) -> None:
        """Debit the ledger for ``error_rate`` before anything is read."""
        if self.released_error is None:
            self._granted("error_rate", PureEvent(epsilon), renew=True)

    def void(self) -> bool:
        """Give back what this process reserved, if nothing was drawn; says whether nothing is left of the engine."""
        if any("asked" in note or "error_rate" in note for note in self._journal.notes):
            return False
        for grant in self._new:
            with contextlib.suppress(LedgerError):  # spent, or out of reach: it stays charged
                self._owner.ledger.void(grant)
        try:
            states = {entry.id: entry.state for entry in self._owner.ledger.entries(self._owner.dataset)}
        except LedgerError:  # busy or out of reach: the grant may be charged, so the engine stays
            return False
        mine = [note["grants"][1] for note in self._journal.notes if "grants" in note]
        return all(states.get(entry) is State.VOID for entry in mine)

    def _granted(self, role: str, event: Event, *, renew: bool = False) -> Grant:
        """The engine's grant for a role: the one in its journal, checked against the ledger, or a new one."""
        entries = {entry.id: entry for entry in self._owner.ledger.entries(self._owner.dataset)}
        for note in reversed(self._journal.notes):
            if note.get("grants", [None])[0] != role:
                continue
            _, number, run = note["grants"]
            entry = entries.get(number)
            if entry is None or (entry.run, entry.event) != (run, event):
                raise LedgerError(
                    f"the engine {self.path} was paid for by entry {number} of a ledger that is not the present "
                    f"{self._owner.ledger.path}; restore that one"
                )
            if entry.state is State.VOID or (renew and entry.state is State.SPENT):
                break  # given back, or spent on a draw that a crash swallowed
            if entry.fingerprint not in (None, self._owner.fingerprint):
                raise DataError(
                    f"the lake of data set {self._owner.dataset!r} is not the one whose engine was paid for by entry "
                    f"{number} of {self._owner.ledger.path}; restore that lake, or {NEXT_ENGINE}"
                )
            return Grant(entry.id, entry.dataset, entry.relation, entry.event, self._owner.ledger.path, entry.run)
        grant = self._owner.reserve(event)
        self._new.append(grant)
        self._journal.note({"grants": [role, grant.entry, grant.run]})
        return grant

    def _spend(self, grant: Grant) -> None:
        for entry in self._owner.ledger.entries(self._owner.dataset):
            if entry.id == grant.entry and entry.state is State.SPENT:
                return
        self._owner.ledger.spend(grant)


@contextlib.contextmanager
def open_engine(owner: Owner, facts: Mapping[str, Any], event: Event) -> Iterator[VoteEngine]:
    """The engine of a data set, new or resumed.

    ``facts`` are its public settings: an engine with others on the same data set, relation and ledger is refused
    while the first can still answer. A new engine debits the ledger by ``event`` before anything is read; if it
    fails before the first noise is drawn, the grant is given back.
    """
    path = engine_path(owner.ledger.path, owner.dataset, owner.relation)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    plain = json.loads(json.dumps(dict(facts)))
    make_way(path, owner.ledger.entries(owner.dataset), owner.fingerprint, plain)
    journal = Journal(path, plain)
    engine: VoteEngine | None = None
    gone = False
    try:
        engine = VoteEngine(owner, journal, path, event)
        yield engine
    except BaseException:
        gone = engine.void() if engine is not None else not journal.notes
        raise
    finally:
        if engine is not None:
            engine.close()
        if gone:
            path.unlink(missing_ok=True)
            state_path(path).unlink(missing_ok=True)
        journal.close()
