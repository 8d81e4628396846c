"""The budget ledger: debited before data is read, survives crashes, never overspends, and shows what was changed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from daskrado.errors import BudgetError, LedgerError, UsageError
from daskrado.lake.block_facts import EACH, Reading
from daskrado.ledger import balances, chain, checked, known_files
from daskrado.ledger.balances import Budget
from daskrado.ledger.blocks import check_rows, close, known_elsewhere
from daskrado.ledger.chain import Kind
from daskrado.ledger.config import SERVERS, checked_name, this_user
from daskrado.ledger.entries import following_limits, whose
from daskrado.ledger.ledger_file import LedgerFile
from daskrado.ledger.postgres import Postgres
from daskrado.ledger.records import (
    TAKEN_AS_PUBLIC,
    Balance,
    Debit,
    Grant,
    LedgerEntry,
    LedgerRow,
    Limit,
    Mark,
    Marked,
    Remaining,
    State,
)
from daskrado.ledger.store import Rows, Store
from daskrado.ledger.version_1 import convert
from daskrado.ledger.views import LedgerViews, dataset_name, drawn
from daskrado.ledger.words import no_limit, refusal
from daskrado.privacy.accountant import Amount, Event
from daskrado.privacy.costs import cost_of
from daskrado.privacy.filter import Cost, filter_for
from daskrado.privacy.groups import ProtectedUnit, steps
from daskrado.privacy.relations import Relation

__all__ = [
    "EACH",
    "Balance",
    "Grant",
    "Ledger",
    "LedgerEntry",
    "LedgerRow",
    "Limit",
    "Mark",
    "Marked",
    "Remaining",
    "State",
]

_log = logging.getLogger(__name__)
_SETTLED = {State.SPENT: Kind.SPEND, State.VOID: Kind.VOID, State.PUBLISHED: Kind.PUBLISH}


class Ledger(LedgerViews):
    """A privacy budget that any number of processes share.

    Each method does one transaction on a connection of its own, so a ``Ledger`` may be forked, pickled or used from
    several threads. A debit is one transaction that excludes all others: nobody else can debit between its look at
    the balance and its commit. Everything that happens is one record of a chain (:mod:`daskrado.ledger.chain`).
    """

    @classmethod
    def open(cls, path: str | Path, *, timeout: float = 30.0, create: bool = True, who: str | None = None) -> Ledger:
        """Open the ledger at ``path``, a file or ``postgresql://...``; make it if it is missing, unless told not to.

        ``timeout`` is how many seconds an operation waits for another process. ``who`` is the name that stands in
        what is written, this user's unless it is given.
        """
        if not 0 <= timeout <= 86400:
            raise UsageError(f"the ledger timeout must be between 0 and 86400 seconds, got {timeout!r}")
        name = checked_name(who or this_user())
        store = store_of(path, timeout, partial(checked.begin, who=name), convert)
        store.prepare(create=create)
        checked.check(store)
        return cls(store, name)

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to close: no connection outlives an operation."""

    def __repr__(self) -> str:
        return f"Ledger({self.store.address!r})"

    # Limits

    def set_limit(
        self,
        dataset: str,
        relation: Relation | str | ProtectedUnit | None,
        epsilon: Amount,
        delta: Amount,
        *,
        block: str = "",
        follows: bool = False,
    ) -> Limit:
        """Set what ``dataset`` may spend under ``relation``, and with it the rule that refuses.

        With ``follows``, and without a relation (then for rows that are added or removed), also what follows from it
        under all other relations. Earlier limits stay on record; the latest for the same people or rows counts, and
        what was charged before counts against it. A limit for patients (a ``ProtectedUnit`` with a column)
        stands beside one for rows: every charge has to fit both, and charges for rows count as group events for
        patients. ``block`` is one block of the lake, or ``EACH`` for a budget of this size for each of them, also
        those to come.
        """
        check_rows(relation, block)
        name, rule = dataset_name(dataset), filter_for(epsilon, delta)
        if relation is None:
            relation, follows = Relation.ADD_REMOVE, True
        limits = following_limits(relation, rule) if follows else [(whose(relation), rule)]
        with self.store.transaction() as rows:
            balances.limited(rows, name, limits, who=self.who, block=block)
        return Limit(rule.epsilon, rule.delta)

    def set_first_limit(
        self,
        dataset: str,
        relation: Relation | str | ProtectedUnit,
        epsilon: Amount,
        delta: Amount,
        *,
        block: str = "",
    ) -> bool:
        """Set a limit under ``relation``, and what follows under all others, if ``dataset`` has none; whether it did.

        One transaction: a limit that the owner sets at the same moment is never replaced.
        """
        check_rows(relation, block)
        name, limits = dataset_name(dataset), following_limits(relation, filter_for(epsilon, delta))
        with self.store.transaction() as rows:
            if balances.budgets_of(rows, name):
                return False
            balances.limited(rows, name, limits, who=self.who, block=block)
        return True

    # Debits

    def reserve(
        self,
        dataset: str,
        relation: Relation | str | ProtectedUnit,
        event: Event,
        *,
        theorem: str,
        run: str,
        role: str = "",
        fingerprint: str | None = None,
        blocks: Sequence[str] = (),
        part: str = "",
        reading: Reading | None = None,
        delta: float | None = None,
    ) -> Grant:
        """Debit ``event`` before any row is read, or refuse with a BudgetError and debit nothing.

        The debit is charged from now on, whatever happens to this process, until ``void`` gives it back.
        ``fingerprint`` identifies the data: the same data under a second name would have a second budget, so
        that is refused. ``role`` is what the run needs it for: whoever resumes the run finds the debit by it.
        Each of the ``blocks`` that are read pays in full, in this one transaction, and is closed by it: ``reading``
        says what it holds, and what holds something else later is refused. ``delta`` is the one that was asked for: a
        refusal says which epsilon would fit at it. ``part`` names the units that are read.

        *Reference*: the rule of each limit, :mod:`daskrado.privacy.filter`, which is valid for whoever chooses the
        next event after seeing earlier answers.
        """
        name = dataset_name(dataset)
        debit = Debit(whose(relation), event, theorem, tuple(blocks), role, delta, part)
        cost_of(event)  # before the lock is taken: it may have to import and compute
        with self.store.transaction() as rows:
            charged = self._affordable(rows, name, debit)
            if fingerprint is not None:
                self._remember(rows, name, fingerprint)
            if reading is not None:
                known_files.remember(rows, name, reading.files, self.who, run)
                close(rows, name, reading, [budget for budget, _ in charged], self.who, run)
            entry, table = _next_entry(rows), None if reading is None else reading.table
            own = (self.who, name, run, entry, chain.began(rows, run=run) if run else None, table)
            record = balances.write_debit(rows, debit, fingerprint, charged, *own)
        _log.info(
            "entry %d of %s: reserved %s for %r under %s, run %s", entry, self.address, event, name, debit.whose, run
        )
        return Grant(entry, name, debit.whose.relation, event, self.path, run, str(record.head))

    def close_blocks(self, dataset: str, reading: Reading, run: str) -> None:
        """Close blocks that are read under an earlier debit; refuse one that changed since, or has another name."""
        name = dataset_name(dataset)
        with self.store.transaction() as rows:
            known_files.remember(rows, name, reading.files, self.who, run)
            close(rows, name, reading, balances.budgets_of(rows, name, [*reading.blocks]), self.who, run)

    def spend(self, grant: Grant) -> None:
        """Mark the reservation as spent, once and for ever: call it just before the noise is drawn."""
        with self.store.transaction() as rows:
            self._settle(rows, grant, State.SPENT, State.RESERVED)

    def void(self, grant: Grant) -> None:
        """Give a reservation back, when nothing that depends on the data was released. Spent stays spent."""
        with self.store.transaction() as rows:
            self._settle(rows, grant, State.VOID, State.RESERVED)

    def count_draw(self, grant: Grant, name: str, digest: str = "", *, place: str = "") -> None:
        """Count one draw of a grant, just before it is made; the first one spends the grant.

        A draw that was counted before is refused, whatever a journal says: it may have been made, and a second one
        under the same grant would not be paid for. So is a draw of a grant that was voided or published. A draw that
        is a function of a kept key may be repeated if its ``digest`` is the one that was counted. Of all draws whose
        names begin with ``place`` one is counted, whichever comes first.
        """
        with self.store.transaction() as rows:
            entry, counted = self._own(rows, grant), drawn(rows, grant.entry, name)
            if digest and counted.get(name) == digest:
                return
            if name in counted or (place and any(one.startswith(place) for one in drawn(rows, grant.entry))):
                raise LedgerError(
                    f"run {grant.run}: draw {place or name} of entry {grant.entry} of the ledger {self.address} was "
                    "made before; noise is never drawn twice for one grant, so the charge stays"
                )
            if entry.state is State.RESERVED:
                self._settle(rows, grant, State.SPENT, State.RESERVED)
            elif entry.state is not State.SPENT:
                raise LedgerError(
                    f"entry {grant.entry} of the ledger {self.path} is already {entry.state}: nothing is drawn for it"
                )
            self._append(rows, Kind.DRAW, grant, {"digest": digest} if digest else {}, name=name)

    def publish(self, grant: Grant, digest: str) -> None:
        """End a spent grant: what it paid for is published, with this digest, and nothing is drawn for it again.

        Publishing the same digest once more changes nothing: a run that was cut off after it says it again.
        """
        with self.store.transaction() as rows:
            entry = self._own(rows, grant)
            if (entry.state, entry.published) != (State.PUBLISHED, digest):
                self._settle(rows, grant, State.PUBLISHED, State.SPENT, digest=digest)

    # Marks

    def mark(self, dataset: str, mark: Mark, *, run: str = "") -> None:
        """Record that something exact of a data set became public, or was made without protection."""
        with self.store.transaction() as rows:
            chain.append(rows, Kind.MARK, {"mark": str(mark)}, who=self.who, dataset=dataset_name(dataset), run=run)

    def expose(self, files: Mapping[str, str], mark: Mark, *, run: str) -> None:
        """Record that files were read without protection: a data set that they are charged as later is marked."""
        if files:
            with self.store.transaction() as rows:
                known_files.expose(rows, files, mark, self.who, run)

    # Inside a transaction

    def _affordable(self, rows: Rows, name: str, debit: Debit) -> list[tuple[Budget, Cost]]:
        """The budgets that a debit counts against, each with its cost, if all of them have room for it."""
        known = balances.with_begun(balances.budgets_of(rows, name, debit.blocks), debit.blocks)
        charged = []
        for budget in known:
            try:
                cost = budget.cost(debit, alone=True)
                if cost is None:
                    continue
                fits = budget.fits(cost, debit.part)
            except UsageError as error:
                raise BudgetError(
                    f"the budget of data set {name!r} under {budget.balance.relation}: {error}; nothing was debited"
                ) from error
            if not fits:
                often = steps(debit.whose, budget.balance.whose) or 1
                raise BudgetError(
                    refusal(budget.balance, cost, often=often, several=len(known) > 1, delta=debit.delta)
                )
            charged.append((budget, cost))
        if unpaid := debit.unpaid(budget.balance for budget, _ in charged):
            raise BudgetError(f"{self.address}: {no_limit(name, debit.whose, unpaid)}")
        return charged

    def _settle(self, rows: Rows, grant: Grant, state: State, only: State, **facts: Any) -> None:
        entry = self._own(rows, grant)
        if entry.state is not only:
            raise self._over(grant, entry.state, f"become {state}")
        changed = self._freed(rows, grant) if state is State.VOID else []
        body = {**facts, "after": balances.after(changed)} if changed else facts
        name = str(grant.relation) if state is State.VOID else ""
        record = self._append(rows, _SETTLED[state], grant, body, name)
        balances.point(rows, changed, record)
        if state is State.SPENT:
            self._mark_once(rows, grant)
        _log.info("entry %d of %s is %s", grant.entry, self.address, state)

    def _mark_once(self, rows: Rows, grant: Grant) -> None:
        """Mark a data set with what a release takes as public, unless it is."""
        if public := TAKEN_AS_PUBLIC[grant.relation]:
            told = chain.records(rows, "r.dataset = ? AND r.kind = ?", (grant.dataset, str(Kind.MARK)))
            known = {record.facts["mark"] for record in told}
            for mark in public:
                if mark not in known:
                    own = (self.who, grant.dataset, grant.run)
                    chain.append(rows, Kind.MARK, {"mark": str(mark)}, *own, at=chain.began(rows, entry=grant.entry))

    def _freed(self, rows: Rows, grant: Grant) -> list[Budget]:
        (debit,) = chain.records(rows, "r.entry = ? AND r.kind = ?", (grant.entry, str(Kind.DEBIT)))
        return balances.without(rows, debit, balances.budgets_of(rows, grant.dataset, debit.facts["blocks"]))

    def _append(self, rows: Rows, kind: Kind, grant: Grant, body: dict[str, Any], name: str = "") -> chain.Record:
        own = grant.dataset, grant.run, grant.entry, name
        return chain.append(rows, kind, body, self.who, *own, at=chain.began(rows, entry=grant.entry))

    def _over(self, grant: Grant, state: State, wanted: str) -> LedgerError:
        return LedgerError(
            f"entry {grant.entry} of the ledger {self.address} is already {state}; only a reservation can {wanted}"
        )

    def _remember(self, rows: Rows, dataset: str, fingerprint: str) -> None:
        known_elsewhere(rows, dataset, checked.keyed(rows, fingerprint), "this data")


def store_of(
    path: str | Path, timeout: float, fill: Callable[[Rows], None], convert: Callable[[Rows], None]
) -> Store:
    """The store at an address; ``fill`` writes the first records of a new one."""
    if isinstance(path, str) and path.startswith(SERVERS):
        return Postgres(path, timeout, fill)
    if "://" in str(path):
        raise UsageError(f"a ledger is a file or postgresql://..., got {str(path).partition('://')[0]}://...")
    return LedgerFile(Path(path).absolute(), timeout, fill, convert)


def _next_entry(rows: Rows) -> int:
    (row,) = rows.execute("SELECT max(entry) AS last FROM records")
    return 1 + (row["last"] or 0)
