"""The budget ledger: an SQLite file that is debited before data is read, survives crashes and never overspends."""

from __future__ import annotations

import json
import logging
import re
import sqlite3
from collections.abc import Sequence
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any

from daskrado.errors import BudgetError, DaskradoError, LedgerError, UsageError
from daskrado.ledger import ledger_file
from daskrado.ledger.records import Grant, LedgerEntry, LedgerRow, Limit, Remaining, State
from daskrado.privacy.accountant import (
    Amount,
    ApproximateEvent,
    Composition,
    Event,
    affordable,
    compose,
    decimal_text,
    event_from_json,
    event_to_json,
    exact_delta,
    exact_epsilon,
    largest_pure,
)
from daskrado.privacy.events import asked_epsilon
from daskrado.privacy.relations import Relation

__all__ = ["Grant", "Ledger", "LedgerEntry", "LedgerRow", "Limit", "Remaining", "State"]

_log = logging.getLogger(__name__)
_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")


class Ledger:
    """A privacy budget on disk, shared by any number of processes on one machine.

    Each method opens the file, does one transaction and closes it, so a ``Ledger`` may be forked, pickled or used
    from several threads. A debit is one ``BEGIN IMMEDIATE`` transaction: nobody else can debit between its
    look at the balance and its commit. Keep the file on a local disk; network file systems break SQLite's locks.

    Relations never mix: each pair (data set, relation) has a limit and a balance of its own.
    """

    def __init__(self, path: Path, timeout: float) -> None:
        self._path = path
        self._timeout = timeout

    @classmethod
    def open(cls, path: str | Path, *, timeout: float = 30.0, create: bool = True) -> Ledger:
        """Open the ledger at ``path``; make it if it is missing and ``create`` is true.

        ``timeout`` is how many seconds an operation waits for another process.
        """
        if not 0 <= timeout <= 86400:
            raise UsageError(f"the ledger timeout must be between 0 and 86400 seconds, got {timeout!r}")
        file = Path(path).absolute()
        ledger_file.prepare(file, timeout, create=create)
        return cls(file, timeout)

    @property
    def path(self) -> Path:
        """The absolute path of the file."""
        return self._path

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to close: no connection outlives an operation."""

    def __repr__(self) -> str:
        return f"Ledger({str(self._path)!r})"

    def set_limit(self, dataset: str, relation: Relation | str, epsilon: Amount, delta: Amount) -> Limit:
        """Set what ``dataset`` may spend under ``relation``. Earlier limits stay on record; the latest counts."""
        name, kind = _dataset(dataset), _relation(relation)
        limit = Limit(asked_epsilon(epsilon), exact_delta(delta, zero=True))
        values = (name, kind, decimal_text(limit.epsilon), decimal_text(limit.delta), _now())
        with ledger_file.transaction(self._path, self._timeout) as connection:
            connection.execute(
                "INSERT INTO limits (dataset, relation, epsilon, delta, set_at) VALUES (?, ?, ?, ?, ?)", values
            )
        return limit

    def set_first_limit(
        self, dataset: str, relations: Sequence[Relation | str], epsilon: Amount, delta: Amount
    ) -> bool:
        """Set the same limit under ``relations`` if ``dataset`` has none under any relation; whether it did.

        One transaction: a limit that the owner sets at the same moment is never replaced.
        """
        name, kinds = _dataset(dataset), [_relation(relation) for relation in relations]
        limit = Limit(asked_epsilon(epsilon), exact_delta(delta, zero=True))
        with ledger_file.transaction(self._path, self._timeout) as connection:
            if connection.execute("SELECT 1 FROM limits WHERE dataset = ?", (name,)).fetchone() is not None:
                return False
            connection.executemany(
                "INSERT INTO limits (dataset, relation, epsilon, delta, set_at) VALUES (?, ?, ?, ?, ?)",
                [(name, kind, decimal_text(limit.epsilon), decimal_text(limit.delta), _now()) for kind in kinds],
            )
        return True

    def limit(self, dataset: str, relation: Relation | str) -> Limit | None:
        """The limit in force, or None."""
        with ledger_file.reading(self._path, self._timeout) as connection:
            return self._limit(connection, _dataset(dataset), _relation(relation))

    def has_limits(self, dataset: str) -> bool:
        """Whether ``dataset`` has a limit under any relation."""
        with ledger_file.reading(self._path, self._timeout) as connection:
            row = connection.execute("SELECT 1 FROM limits WHERE dataset = ?", (_dataset(dataset),)).fetchone()
        return row is not None

    def reserve(
        self,
        dataset: str,
        relation: Relation | str,
        event: Event,
        *,
        theorem: str,
        run: str,
        fingerprint: str | None = None,
    ) -> Grant:
        """Debit ``event`` before any row is read, or refuse with a BudgetError and debit nothing.

        The debit is charged from now on, whatever happens to this process, until ``void`` gives it back.
        ``fingerprint`` identifies the data: the same data under a second name would have a second budget, so
        that is refused.

        *Reference*: every method that ``accountant.compose`` knows; the events of one (data set, relation) pair
        compose, those of different relations protect different things and are never added.
        """
        name, kind = _dataset(dataset), _relation(relation)
        try:
            entry = self._debit(name, kind, event, theorem, run, fingerprint)
        except _Unaffordable as refused:
            # Worded here, after the lock is gone: the balance may take a while to compute.
            raise BudgetError(_refusal(name, kind, event, refused.limit, refused.charged)) from None
        _log.info("entry %d of %s: reserved %s for %r under %s, run %s", entry, self._path, event, name, kind, run)
        return Grant(entry, name, kind, event, self._path, run)

    def spend(self, grant: Grant) -> None:
        """Mark the reservation as spent, once and for ever: call it just before the noise is drawn."""
        self._settle(grant, State.SPENT)

    def void(self, grant: Grant) -> None:
        """Give a reservation back, when nothing that depends on the data was released. Spent stays spent."""
        self._settle(grant, State.VOID)

    def entries(self, dataset: str | None = None) -> list[LedgerEntry]:
        """All lines, oldest first, of one data set or of all."""
        name = None if dataset is None else _dataset(dataset)
        with ledger_file.reading(self._path, self._timeout) as connection:
            rows = connection.execute(
                "SELECT * FROM entries WHERE ? IS NULL OR dataset = ? ORDER BY id", (name, name)
            ).fetchall()
        return [self._entry(row) for row in rows]

    def spent(self, dataset: str, relation: Relation | str) -> Composition:
        """What is charged so far (reserved and spent), at the delta of the limit; 0 when there is no limit."""
        with ledger_file.reading(self._path, self._timeout) as connection:
            limit = self._limit(connection, _dataset(dataset), _relation(relation))
            charged = self._charged(connection, dataset, _relation(relation))
        return compose(charged, limit.delta if limit else 0)

    def after(self, dataset: str, relation: Relation | str, *events: Event) -> Composition:
        """What would be charged once ``events`` are added, at the delta of the limit."""
        with ledger_file.reading(self._path, self._timeout) as connection:
            limit = self._limit(connection, _dataset(dataset), _relation(relation))
            charged = self._charged(connection, dataset, _relation(relation))
        return compose([*charged, *events], limit.delta if limit else 0)

    def remaining(self, dataset: str, relation: Relation | str) -> Remaining:
        """What one more event could use; zero when there is no limit."""
        with ledger_file.reading(self._path, self._timeout) as connection:
            limit = self._limit(connection, _dataset(dataset), _relation(relation))
            charged = self._charged(connection, dataset, _relation(relation))
        return _left(limit, charged) if limit else Remaining(Fraction(0), Fraction(0))

    def summary(self) -> list[LedgerRow]:
        """One row for every (data set, relation) that has a limit, sorted."""
        found = []
        with ledger_file.reading(self._path, self._timeout) as connection:
            pairs = connection.execute("SELECT DISTINCT dataset, relation FROM limits ORDER BY 1, 2").fetchall()
            for name, text in pairs:
                kind = self._known(_relation, text)
                limit = self._limit(connection, name, kind)
                assert limit is not None
                states = connection.execute(
                    "SELECT state, count(*) FROM entries WHERE dataset = ? AND relation = ? GROUP BY state",
                    (name, kind),
                )
                counts = dict.fromkeys(State, 0) | {State(state): number for state, number in states}
                found.append((name, kind, limit, self._charged(connection, name, kind), counts))
        return [
            LedgerRow(name, kind, limit, compose(charged, limit.delta), _left(limit, charged), counts)
            for name, kind, limit, charged, counts in found
        ]

    def to_json(self) -> dict[str, Any]:
        """Everything in the ledger as plain JSON values, numbers as exact text."""
        with ledger_file.reading(self._path, self._timeout) as connection:
            tables: dict[str, Any] = {
                table: [dict(row) for row in connection.execute(f"SELECT * FROM {table} ORDER BY id")]
                for table in ("limits", "fingerprints", "entries")
            }
        for row in tables["entries"]:
            row["event"] = event_to_json(self._known(_event, row["event"]))
        return {"format": "daskrado-ledger", "version": ledger_file.SCHEMA_VERSION, **tables}

    def _debit(self, name: str, kind: Relation, event: Event, theorem: str, run: str, fingerprint: str | None) -> int:
        with ledger_file.transaction(self._path, self._timeout) as connection:
            limit = self._limit(connection, name, kind)
            if limit is None:
                raise BudgetError(
                    f"data set {name!r} has no limit under {kind} in {self._path}; nothing was debited; "
                    f"set one with: daskrado ledger limit {name} --relation {kind} --epsilon E --delta D"
                )
            if fingerprint is not None:
                self._remember(connection, name, fingerprint)
            charged = self._charged(connection, name, kind)
            if not affordable([*charged, event], limit.epsilon, limit.delta):
                raise _Unaffordable(limit, charged)
            cursor = connection.execute(
                "INSERT INTO entries (dataset, relation, event, theorem, run, fingerprint, state, reserved_at)"
                " VALUES (?, ?, ?, ?, ?, ?, 'reserved', ?)",
                (name, kind, json.dumps(event_to_json(event)), theorem, run, fingerprint, _now()),
            )
            entry = cursor.lastrowid
        assert entry is not None
        return entry

    def _settle(self, grant: Grant, state: State) -> None:
        if grant.ledger != self._path:
            raise LedgerError(f"this grant belongs to the ledger {grant.ledger}, not to {self._path}")
        with ledger_file.transaction(self._path, self._timeout) as connection:
            row = connection.execute("SELECT * FROM entries WHERE id = ?", (grant.entry,)).fetchone()
            if row is None:
                raise LedgerError(f"the ledger {self._path} has no entry {grant.entry}")
            entry = self._entry(row)
            written = (entry.dataset, entry.relation, entry.event, entry.run)
            if written != (grant.dataset, grant.relation, grant.event, grant.run):
                raise LedgerError(f"this grant does not match entry {grant.entry} of the ledger {self._path}")
            if entry.state is not State.RESERVED:
                raise LedgerError(
                    f"entry {grant.entry} of the ledger {self._path} is already {entry.state}; "
                    f"only a reservation can become {state}"
                )
            connection.execute(
                "UPDATE entries SET state = ?, settled_at = ? WHERE id = ?", (state, _now(), grant.entry)
            )
        _log.info("entry %d of %s is %s", grant.entry, self._path, state)

    def _limit(self, connection: sqlite3.Connection, dataset: str, relation: Relation) -> Limit | None:
        row = connection.execute(
            "SELECT epsilon, delta FROM limits WHERE dataset = ? AND relation = ? ORDER BY id DESC LIMIT 1",
            (dataset, relation),
        ).fetchone()
        if row is None:
            return None
        return Limit(self._known(exact_epsilon, row["epsilon"]), self._known(_budget_delta, row["delta"]))

    def _charged(self, connection: sqlite3.Connection, dataset: str, relation: Relation) -> list[Event]:
        rows = connection.execute(
            "SELECT event FROM entries WHERE dataset = ? AND relation = ? AND state <> 'void' ORDER BY id",
            (dataset, relation),
        )
        return [self._known(_event, row["event"]) for row in rows]

    def _remember(self, connection: sqlite3.Connection, dataset: str, fingerprint: str) -> None:
        row = connection.execute("SELECT dataset FROM fingerprints WHERE fingerprint = ?", (fingerprint,)).fetchone()
        if row is None:
            connection.execute(
                "INSERT INTO fingerprints (fingerprint, dataset, seen_at) VALUES (?, ?, ?)",
                (fingerprint, dataset, _now()),
            )
        elif row["dataset"] != dataset:
            raise BudgetError(
                f"this data is already in the ledger {self._path} as {row['dataset']!r}; a second name, {dataset!r}, "
                f"would give it a second budget; nothing was debited; use the name {row['dataset']!r}"
            )

    def _entry(self, row: sqlite3.Row) -> LedgerEntry:
        fields = {**dict(row), "event": self._known(_event, row["event"])}
        return LedgerEntry(
            **fields | {"relation": self._known(_relation, row["relation"]), "state": State(row["state"])}
        )

    def _known(self, read: Any, text: str) -> Any:
        """Read stored text; what this version cannot read is a damaged ledger, never a free release."""
        try:
            return read(text)
        except (DaskradoError, ValueError) as error:
            raise LedgerError(f"the ledger {self._path} holds something unreadable: {error}") from error


class _Unaffordable(Exception):
    def __init__(self, limit: Limit, charged: list[Event]) -> None:
        self.limit, self.charged = limit, charged


def _refusal(dataset: str, relation: Relation, event: Event, limit: Limit, charged: list[Event]) -> str:
    spent, left = compose(charged, limit.delta), _left(limit, charged)
    return (
        f"the budget of data set {dataset!r} under {relation} does not cover this: requested {event}; "
        f"limit {limit}; already charged epsilon {_short(spent.epsilon)} ({spent.method}); "
        f"left for one pure event: epsilon {_short(left.epsilon)}, delta left {_short(left.delta)}; "
        "nothing was debited"
    )


def _left(limit: Limit, charged: list[Event]) -> Remaining:
    deltas = sum((event.delta for event in charged if isinstance(event, ApproximateEvent)), Fraction(0))
    return Remaining(largest_pure(charged, limit.epsilon, limit.delta), max(limit.delta - deltas, Fraction(0)))


def _dataset(name: str) -> str:
    if not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise UsageError(f"a data set name has 1 to 100 letters, digits, '.', '_' or '-', got {name!r}")
    return name


def _relation(value: Relation | str) -> Relation:
    try:
        return Relation(value)
    except ValueError:
        raise UsageError(f"unknown relation {value!r}; known: {', '.join(Relation)}") from None


def _event(text: str) -> Event:
    return event_from_json(json.loads(text))


def _budget_delta(text: str) -> Fraction:
    return exact_delta(text, zero=True)


def _short(value: Fraction | float) -> str:
    return f"{float(value):.6g}"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
