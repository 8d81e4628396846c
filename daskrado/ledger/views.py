"""What a ledger tells: balances, entries, marks, heads; nothing here changes anything."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

from daskrado.errors import LedgerError, UsageError
from daskrado.ledger import balances, chain, checked, known_files
from daskrado.ledger.blocks import BlockViews
from daskrado.ledger.chain import Head, Kind
from daskrado.ledger.entries import entries_from, whose
from daskrado.ledger.records import (
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
from daskrado.ledger.store import VERSION, Rows, Store
from daskrado.ledger.words import Price
from daskrado.privacy.accountant import Composition, Event, SeveralEvents, compose, event_to_json
from daskrado.privacy.events import each
from daskrado.privacy.filter import GaussianFilter
from daskrado.privacy.groups import ProtectedUnit, charged_as
from daskrado.privacy.relations import Relation

_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")


class LedgerViews(BlockViews):
    """The reading half of :class:`daskrado.ledger.ledger.Ledger`."""

    def __init__(self, store: Store, who: str) -> None:
        self.store = store
        self.who = who

    @property
    def path(self) -> Path:
        """The absolute path of the file; for a server, the local name beside which journals and engines are kept."""
        return self.store.path

    @property
    def address(self) -> str:
        """What people call the ledger: its path, or its server and database."""
        return self.store.address

    def balances(self, dataset: str) -> list[Balance]:
        """All limits of a data set, each with its rule and what is charged against it."""
        with self.store.reading() as rows:
            return [budget.balance for budget in balances.budgets_of(rows, dataset_name(dataset))]

    def balance(self, dataset: str, relation: Relation | str | ProtectedUnit) -> Balance | None:
        """The limit of the whole lake for one row, or for whom it is said, its rule and what is charged; or None."""
        wanted = balances.budget_name(dataset, whose(relation), "")
        found = (b for b in self.balances(dataset) if balances.budget_name(dataset, b.whose, b.block) == wanted)
        return next(found, None)

    def limit(self, dataset: str, relation: Relation | str | ProtectedUnit) -> Limit | None:
        """The limit in force, or None."""
        balance = self.balance(dataset, relation)
        return None if balance is None else balance.limit

    def has_limits(self, dataset: str) -> bool:
        """Whether ``dataset`` has a limit under any relation."""
        return bool(self.balances(dataset))

    def priced(self, dataset: str, debits: Sequence[Debit], *, charged: bool = False) -> list[Price]:
        """What debits take together from each budget that they touch; ``charged`` where they are in it already."""
        with self.store.reading() as rows:
            known = balances.budgets_of(rows, dataset_name(dataset))
        return balances.price_of(known, debits, charged=charged)

    def paid(self, grants: Sequence[Grant]) -> list[Price]:
        """What grants of one data set took together from each budget."""
        debits = [entry.debit for grant in grants if (entry := self.entry(grant.entry)) is not None]
        return self.priced(grants[0].dataset, debits, charged=True) if debits else []

    def draws(self, *entries: int) -> set[str]:
        """The names of the draws that were counted for entries."""
        with self.store.reading() as rows:
            return {name for entry in entries for name in drawn(rows, entry)}

    def owners(self, fingerprint: str | None, files: Mapping[str, str]) -> list[str]:
        """The data sets that a lake, or a file of it, was charged as; none if this ledger cannot know it again."""
        if fingerprint is None:
            return []
        with self.store.reading() as rows:
            whole = rows.execute(
                "SELECT dataset FROM lakes WHERE fingerprint = ?", (checked.keyed(rows, fingerprint),)
            )
            return list(dict.fromkeys([*(str(row["dataset"]) for row in whole), *known_files.owners(rows, files)]))

    def exposures(self, dataset: str, files: Mapping[str, str]) -> list[Marked]:
        """What became public of files before they were charged as this data set, and is not marked yet."""
        if not files:
            return []
        with self.store.reading() as rows:
            return known_files.exposures(rows, dataset_name(dataset), files)

    def marks(self, dataset: str | None = None) -> list[Marked]:
        """What became public, oldest first, of one data set or of all."""
        with self.store.reading() as rows:
            where, values = _of("dataset", None if dataset is None else dataset_name(dataset))
            found = list(chain.records(rows, f"r.kind = ? AND {where}", (str(Kind.MARK), *values)))
        return [Marked(r.dataset, Mark(r.facts["mark"]), r.at, r.run, r.who) for r in found]

    def entries(self, dataset: str | None = None) -> list[LedgerEntry]:
        """All debits, oldest first, of one data set or of all."""
        return self._entries(*_of("dataset", None if dataset is None else dataset_name(dataset)))

    def latest(self, dataset: str, number: int) -> list[LedgerEntry]:
        """The last debits of a data set, oldest first."""
        found = "SELECT entry FROM records WHERE dataset = ? AND kind = ? ORDER BY id DESC LIMIT ?"
        with self.store.reading() as rows:
            values = (dataset_name(dataset), str(Kind.DEBIT), number)
            last = [row["entry"] for row in rows.execute(found, values)]
        return self._entries(f"r.entry IN ({', '.join('?' * len(last))})", last) if last else []

    def relations(self, dataset: str) -> Counter[Relation]:
        """How many debits of a data set that are not void protect under each relation."""
        statement = "SELECT kind, name, count(*) AS number FROM records WHERE dataset = ? AND kind IN (?, ?) "
        values = (dataset_name(dataset), str(Kind.DEBIT), str(Kind.VOID))
        found: Counter[Relation] = Counter()
        with self.store.reading() as rows:
            for row in rows.execute(f"{statement} GROUP BY kind, name", values):
                found[Relation(row["name"])] += row["number"] if row["kind"] == Kind.DEBIT else -row["number"]
        return +found

    def history(self, dataset: str, number: int) -> list[tuple[LedgerEntry, Fraction | None]]:
        """The last debits of a data set, each with the largest share that it takes; None where it takes none."""
        latest = self.latest(dataset, number)
        blocks = {block for entry in latest for block in entry.blocks} if all(e.blocks for e in latest) else ()
        with self.store.reading() as rows:
            known = balances.budgets_of(rows, dataset_name(dataset), blocks)
        found: list[tuple[LedgerEntry, Fraction | None]] = []
        for entry in latest:
            prices = balances.price_of(known, [entry.debit], charged=True) if entry.state is not State.VOID else []
            found.append((entry, max((price.largest for price in prices), default=None)))
        return found

    def entries_of_run(self, run: str) -> dict[int, LedgerEntry]:
        """The debits of a run, by number."""
        return {entry.id: entry for entry in self._entries("r.run = ?", (run,))}

    def runs(self, beginning: str) -> list[str]:
        """The runs with entries whose names begin so, oldest first."""
        found = "SELECT run, min(id) AS first FROM records WHERE entry IS NOT NULL AND run >= ? AND run < ? "
        with self.store.reading() as rows:
            bounds = (beginning, f"{beginning}\U0010ffff")
            return [row["run"] for row in rows.execute(f"{found} GROUP BY run ORDER BY first", bounds)]

    def state(self, grant: Grant) -> State:
        """Where the entry of a grant stands."""
        with self.store.reading() as rows:
            return self._own(rows, grant).state

    def entry(self, number: int) -> LedgerEntry | None:
        """One debit, or None."""
        return next(iter(self._entries("r.entry = ?", (number,))), None)

    def _entries(self, where: str, values: Sequence[object]) -> list[LedgerEntry]:
        with self.store.reading() as rows:
            return entries_from(rows, chain.records(rows, f"{where} AND r.entry IS NOT NULL", values))

    def keyed(self, fingerprint: str | None) -> str | None:
        """A lake's fingerprint as entries of this ledger hold it."""
        if fingerprint is None:
            return None
        with self.store.reading() as rows:
            return checked.keyed(rows, fingerprint)

    def head(self) -> Head:
        """The end of the chain; whoever notes it can tell later whether the ledger still holds what it held."""
        with self.store.reading() as rows:
            return chain.head(rows)

    def check_head(self, known: Head) -> None:
        """Refuse a ledger that does not hold what it held when ``known`` was its head."""
        with self.store.reading() as rows:
            if not chain.holds(rows, known):
                raise LedgerError(
                    f"the ledger {self.address} has {chain.head(rows).record} records and is not the one that had "
                    f"{known.record} when this was noted: a copy was put back; restore the latest one"
                )

    def spent(self, dataset: str, relation: Relation | str | ProtectedUnit) -> Composition:
        """The least total of what is charged (for information), at the delta of the limit; 0 without a limit."""
        return self.after(dataset, relation)

    def after(self, dataset: str, relation: Relation | str | ProtectedUnit, *events: Event) -> Composition:
        """The least total once ``events`` are added, for information, at the delta of the limit.

        A charge under another relation counts as the group event that the limit counts.
        """
        limit, protected = self.limit(dataset, relation), whose(relation)
        with self.store.reading() as rows:
            debits = balances.charged_debits(rows, dataset_name(dataset))
        return compose([*events, *_counted(debits, protected)], limit.delta if limit else 0)

    def totals(self, dataset: str, limits: Iterable[Balance]) -> list[Composition]:
        """The least total of what is charged against each limit of a data set, as if it had been planned."""
        with self.store.reading() as rows:
            debits = balances.charged_debits(rows, dataset_name(dataset))
        composed = cache(compose)  # limits that count alike are added up once
        return [composed(_counted(debits, limit.whose), limit.limit.delta) for limit in limits]

    def remaining(self, dataset: str, relation: Relation | str) -> Remaining:
        """What one more event could use; zero when there is no limit."""
        balance = self.balance(dataset, relation)
        return Remaining(Fraction(0), Fraction(0)) if balance is None else left(balance)

    def summary(self) -> list[LedgerRow]:
        """One row for every limit, sorted, with the number of the data set's entries in each state."""
        with self.store.reading() as rows:
            names = [row["dataset"] for row in rows.execute("SELECT DISTINCT dataset FROM balances ORDER BY 1")]
            found = [(budget.balance, name) for name in names for budget in balances.budgets_of(rows, name)]
            counts = _counts(rows)
        return [LedgerRow(balance, counts[name]) for balance, name in found]

    def to_json(self) -> dict[str, Any]:
        """Limits, entries and marks as plain JSON values, numbers as exact text; no fingerprint."""
        with self.store.reading() as rows:
            limits = [
                {"id": r.id, "dataset": r.dataset, "who": r.who, "set_at": r.at, **_limit_json(r.facts)}
                for r in chain.records(rows, "r.kind = ?", (str(Kind.LIMIT),))
            ]
            entries = entries_from(rows, chain.records(rows, "r.entry IS NOT NULL"))
            head = chain.head(rows)
        return {
            "format": "daskrado-ledger",
            "version": VERSION,
            "head": str(head),
            "limits": limits,
            "entries": [_entry_json(entry) for entry in entries],
            "marks": [
                {"dataset": m.dataset, "mark": str(m.mark), "at": m.at, "run": m.run, "who": m.who}
                for m in self.marks()
            ],
        }

    def _own(self, rows: Rows, grant: Grant) -> LedgerEntry:
        """The entry that a grant is the receipt of; its draws are not counted here."""
        if grant.ledger != self.path:
            raise LedgerError(f"this grant belongs to the ledger {grant.ledger}, not to {self.address}")
        told = chain.records(rows, "r.entry = ? AND r.kind <> ?", (grant.entry, str(Kind.DRAW)))
        entry = next(iter(entries_from(rows, told)), None)
        if entry is None:
            raise LedgerError(f"the ledger {self.address} has no entry {grant.entry}")
        written = (entry.dataset, entry.relation, entry.event, entry.run)
        if written != (grant.dataset, grant.relation, grant.event, grant.run):
            raise LedgerError(f"this grant does not match entry {grant.entry} of the ledger {self.address}")
        return entry


def _counted(debits: Mapping[Debit, int], limit: ProtectedUnit) -> tuple[Event, ...]:
    """The events that a limit counts debits as, the number of each within it."""
    found: Counter[Event] = Counter()
    for debit, number in debits.items():
        if (event := charged_as(debit.event, debit.whose, limit)) is not None:
            found[event] += number
    return tuple(SeveralEvents((one, times * number) for one, times in each(e)) for e, number in found.items())


def drawn(rows: Rows, entry: int, name: str | None = None) -> dict[str, str]:
    """The counted draws of an entry, all or the one of that name, with the digests of those that have one."""
    where, values = _of("name", name)
    found = chain.records(rows, f"r.entry = ? AND r.kind = ? AND {where}", (entry, str(Kind.DRAW), *values))
    return {record.name: record.facts.get("digest", "") for record in found}


def _of(column: str, value: str | None) -> tuple[str, tuple[object, ...]]:
    return ("r.id > 0", ()) if value is None else (f"r.{column} = ?", (value,))


def _counts(rows: Rows) -> dict[str, dict[State, int]]:
    """How many entries of each data set are in each state."""
    found: dict[str, dict[str, int]] = {}
    for row in rows.execute("SELECT dataset, kind, count(*) AS number FROM records GROUP BY dataset, kind"):
        found.setdefault(row["dataset"], {})[row["kind"]] = row["number"]
    counts = {}
    for name, kinds in found.items():
        debits, spent, void, over = (kinds.get(k, 0) for k in (Kind.DEBIT, Kind.SPEND, Kind.VOID, Kind.PUBLISH))
        counts[name] = {
            State.RESERVED: debits - spent - void,
            State.SPENT: spent - over,
            State.PUBLISHED: over,
            State.VOID: void,
        }
    return counts


def left(balance: Balance) -> Remaining:
    """What one more event could use."""
    rule, total = balance.rule, balance.total
    if isinstance(rule, GaussianFilter):
        deltas = max(rule.own_deltas - total.delta, Fraction(0))
        return Remaining(Fraction(rule.largest_epsilon(total, 0)), deltas)
    left = Fraction(0) if total.epsilon is None else max(rule.epsilon - total.epsilon, Fraction(0))
    return Remaining(left, Fraction(0))


def _limit_json(facts: dict[str, Any]) -> dict[str, Any]:
    rule = facts["rule"]
    known = {"relation": facts["whose"]["relation"], "whose": facts["whose"], "block": facts["block"]}
    return {**known, "epsilon": rule["epsilon"], "delta": rule.get("delta", "0"), "rule": rule}


def _entry_json(entry: LedgerEntry) -> dict[str, Any]:
    fields = {name: getattr(entry, name) for name in entry.__slots__ if name != "fingerprint"}
    own = {"relation": str(entry.relation), "whose": entry.whose.to_json(), "state": str(entry.state)}
    return {**fields, **own, "blocks": list(entry.blocks), "event": event_to_json(entry.event)}


def dataset_name(name: str) -> str:
    """A name that a data set may have, or a UsageError."""
    if not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise UsageError(f"a data set name has 1 to 100 letters, digits, '.', '_' or '-', got {name!r}")
    return name
