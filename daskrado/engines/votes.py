"""The engine that answers queries from teachers' votes: one for a data set, on disk, debited once.

Its journal holds public facts only: which queries were asked (as digests) and what was answered. A query that was
answered is never answered anew; one that a crash swallowed stays paid for.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskrado.engines.answers import REFUSED, Answering
from daskrado.engines.succession import (
    ANSWERS,
    batch_name,
    engine_folder,
    move_exhausted,
    queries_asked,
    swallowed,
    unknown_draws,
)
from daskrado.errors import DataError, LedgerError, UsageError
from daskrado.ledger.account import Account
from daskrado.ledger.endings import outdated
from daskrado.ledger.journal import Journal
from daskrado.ledger.ledger import Grant, State
from daskrado.privacy.accountant import Event, PureEvent
from daskrado.privacy.groups import ProtectedUnit
from daskrado.privacy.noise import discrete_laplace
from daskrado.privacy.relations import Relation
from daskrado.statistics.votes import Votes

UNANSWERED = -2  # the engine stopped before it came to this query
BATCH = 1024  # queries between two lines of the journal
ERROR_RATE = "error_rate"  # the role of the charge for it, and its place in the journal
NEXT_ENGINE = "open the next engine (answers.engine)"


@dataclass(frozen=True)
class EngineFacts:
    """Public facts of an engine: whose budget it uses, by which theorem, for which lake, with which settings."""

    dataset: str
    relation: Relation
    theorem: str
    fingerprint: str | None
    settings: Mapping[str, Any]
    whose: ProtectedUnit | None = None  # None: one row


class VoteEngine:
    """Adaptive queries, each answered once; stops after the last query or refusal it was granted."""

    def __init__(self, account: Account, journal: Journal, facts: EngineFacts, event: Event) -> None:
        self.account = account
        self.journal = journal
        self._facts = facts
        self._lines = journal.lines(ANSWERS, {})
        self._notes: list[dict[str, Any]] = self._lines.entries
        if not all(isinstance(note, dict) for note in self._notes):
            raise self._lines.damaged()
        self._asked = queries_asked(self._notes)
        self._answers: dict[str, int] = {}
        for note in self._notes:
            self._answers |= note.get("answers", {})
        self._answering: Answering | None = None
        if missing := unknown_draws(journal, account.ledger):  # before anything more is debited
            raise LedgerError(outdated(f"the engine {journal.folder}", missing, NEXT_ENGINE))
        self.grant = self._granted(ANSWERS, event)  # what pays for the answers

    def __repr__(self) -> str:
        return f"<VoteEngine: {self._asked} queries asked>"

    def use(self, answering: Answering) -> None:
        """Answer by this mechanism, which must cost what was reserved."""
        if answering.event != self.grant.event:
            raise ValueError("the grant was reserved for another event than this mechanism's")
        self._answering = answering
        answering.count = partial(self.account.count, self.grant)
        if not any("terms" in note for note in self._notes):
            terms = {"queries": answering.terms.queries, "instances": answering.instances}
            self._lines.append({"terms": terms})
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
        return 0 if self.refusals_left == 0 else self.answering.terms.queries - self._asked

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
            if lost := swallowed(self._notes):
                raise LedgerError(
                    f"the engine of {self._facts.dataset!r} was cut off between spending on {lost} queries and "
                    f"keeping their answers: noise is never drawn twice, so they stay paid for, and {self.left} new "
                    f"queries are left for {len(places)}; {NEXT_ENGINE} for the rest"
                )
            why = ""
            if self.answering.halted:
                why = f": its {self.answering.instances} thresholds are used up (each session and refusal costs one)"
            raise UsageError(
                f"{len(places)} new queries, but the engine of {self._facts.dataset!r} has {self.left} left of "
                f"{self.answering.terms.queries}{why}; ask fewer, or open the next engine (answers.engine) with more"
            )
        return places

    def _answer(
        self, batch: list[str], places: dict[str, int], vote: Callable[[NDArray[np.int64]], Votes], wanted: int
    ) -> None:
        """Answer a batch, the first of ``wanted`` queries.

        The order is: votes, ``asked``, count, draw, keep. Nothing is drawn before it is written here and counted in
        the ledger, so that a journal never knows less than the ledger, unless it is an older copy. What ends before
        ``asked`` costs no query; what ends after it leaves the batch paid for.
        """
        votes = vote(np.array([places[name] for name in batch], dtype=np.int64))
        draw = batch_name(self._asked)
        with self.account.marked(draw) if self._last_chance(len(batch), wanted) else contextlib.nullcontext():
            self._ask(len(batch))
            try:
                self.account.count(self.grant, draw)
            except LedgerError:  # busy, or out of reach: nothing is drawn
                self._ask(-len(batch))
                raise
            labels = self.answering.release(votes.counts)
            self._keep({name: int(label) for name, label in zip(batch, labels, strict=False)}, len(batch))

    def _ask(self, queries: int) -> None:
        """Note queries that are paid for from here on; a negative number takes back what was not counted."""
        self._lines.append({"asked": queries, **self._used()})
        self._asked += queries

    def _last_chance(self, batch: int, wanted: int) -> bool:
        """Whether the engine could not answer the wanted queries any more if this batch were lost."""
        later = self.answering.terms.queries - self._asked - batch
        thresholds = self.refusals_left
        return later < wanted or (thresholds is not None and thresholds <= 1)

    def _keep(self, given: dict[str, int], done: int) -> None:
        self._lines.append({"answers": given, "done": done, **self._used()})
        self._answers |= given

    def _used(self) -> dict[str, int]:
        return {} if self.answering.instances is None else {"used": self.answering.used}

    def _finish(self, left: int) -> None:
        """Note, here and in the ledger, that no query will be answered any more."""
        if left == 0 and not any("finished" in note for note in self._notes):
            self._lines.append({"finished": True})
        if left == 0 and self._answers:
            given = json.dumps(self._answers, sort_keys=True).encode()
            self.account.end(self.grant, f"answers sha256 {hashlib.sha256(given).hexdigest()}")

    def close(self) -> None:
        """Close the mechanism; note whether a later session could still ask."""
        if self._answering is not None:
            with contextlib.suppress(OSError, LedgerError):  # the next one to open it notes it, too
                self._finish(self.left_afterwards)
            self._answering.close()

    @property
    def released_error(self) -> float | None:
        """The teachers' error, if it was released before."""
        return next((float(note[ERROR_RATE]) for note in self._notes if ERROR_RATE in note), None)

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
        grant = self._granted(ERROR_RATE, event, renew=True)
        total = measure()
        self.account.count(grant, f"{ERROR_RATE}@1")
        scale = float(2 * changed * unit / Fraction(event.epsilon)) * (1 + 1e-12)
        noisy = int(discrete_laplace(np.array([total], dtype=np.int64), scale)[0])
        rate = min(1.0, max(0.0, noisy / (unit * teachers)))
        self._lines.append({ERROR_RATE: rate})
        self.account.end(grant, f"{ERROR_RATE} {rate!r}")
        return rate

    def reserve_error_rate(self, epsilon: float) -> Grant:
        """Debit the ledger for ``error_rate`` before anything is read; later, the grant that paid for it."""
        return self._granted(ERROR_RATE, PureEvent(epsilon), renew=self.released_error is None)

    def _granted(self, role: str, event: Event, *, renew: bool = False) -> Grant:
        """The engine's grant for a role: the one in its journal, checked against the ledger, or a new one.

        ``renew``: a grant that was spent on a draw that a crash swallowed is followed by a new one.
        """
        grant = self._earlier(role, event, renew)
        if grant is None:
            grant = self.account.reserve(
                role,
                self._facts.dataset,
                self._facts.whose or self._facts.relation,
                event,
                theorem=self._facts.theorem,
                fingerprint=self._facts.fingerprint,
                unspent=True,
            )
            self.journal.granted(role, grant)
        return self.account.outlives(grant)

    def _earlier(self, role: str, event: Event, renew: bool) -> Grant | None:
        if role not in self.journal.paid:
            return None
        number, run = self.journal.paid[role]
        entry, ledger = self.account.entry(number), self.account.ledger.address
        if entry is None or (entry.run, entry.event) != (run, event):
            raise LedgerError(
                f"the engine {self.journal.folder} was paid for by entry {number} of a ledger that is not the "
                f"present {ledger}; restore that one"
            )
        if entry.state is State.VOID or (renew and entry.state.used):
            return None
        if entry.fingerprint not in (None, self.account.ledger.keyed(self._facts.fingerprint)):
            raise DataError(
                f"the lake of data set {self._facts.dataset!r} is not the one whose engine was paid for by entry "
                f"{number} of {ledger}; restore that lake, or {NEXT_ENGINE}"
            )
        return self.account.outlives(self.account.adopt(role, entry))


@contextlib.contextmanager
def open_engine(account: Account, facts: EngineFacts, event: Event) -> Iterator[VoteEngine]:
    """The engine of a data set, new or resumed.

    An engine with other settings on the same data set, relation and ledger is refused while the first can still
    answer. A new engine debits the ledger by ``event`` before anything is read; if it fails before the first noise is
    drawn, the grant is voided.
    """
    folder = engine_folder(account.ledger.path, facts.dataset, facts.relation)
    settings = json.loads(json.dumps(dict(facts.settings)))
    move_exhausted(folder, account.ledger, facts.fingerprint, settings)
    with account.engine_journal(folder, {"settings": settings}) as journal:
        engine = VoteEngine(account, journal, facts, event)
        try:
            yield engine
        finally:
            engine.close()
