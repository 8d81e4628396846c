"""A ledger moves to another place, with its whole chain: at no time can budget be spent in both.

The order is: copy, check the copy, close the old place, open the new one. A copy ends with the record that closes
the old place, so it is closed itself until *arrived* follows. Whatever fails before the old place is closed leaves
that as it was; cut off later, the same command goes on.
"""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

from daskrado.errors import LedgerError, UsageError
from daskrado.ledger import chain
from daskrado.ledger.chain import BEGINNING, Head, Kind, Record
from daskrado.ledger.config import SERVERS
from daskrado.ledger.journal import LOST, unfinished
from daskrado.ledger.ledger import Ledger, store_of
from daskrado.ledger.store import TABLES, Rows, Store

_SHOWN = 3  # unfinished runs that are named
_RESERVED = (
    "SELECT DISTINCT run FROM records r WHERE r.kind = ? AND NOT EXISTS "
    "(SELECT 1 FROM records s WHERE s.entry = r.entry AND s.kind IN (?, ?)) ORDER BY run"
)


def moved(source: Ledger, target: str | Path, *, leave: bool = False, timeout: float = 30.0) -> Ledger:
    """Move a ledger to a new file or database; the old one is closed, and engines go with it.

    Unfinished runs would be found at neither place: they are refused, or, with ``leave``, stay charged for good.
    """
    there = str(target) if str(target).startswith(SERVERS) else str(Path(target).absolute())
    with source.store.transaction() as rows:
        last = _closed(source, rows, there, leave)
        store = store_of(there, timeout, partial(_pour, rows), _refuse_version_1)
        store.prepare(create=True)
        arrived = _check_copy(store, last, source)
    if not arrived:
        with store.transaction() as rows:
            chain.append(rows, Kind.ARRIVED, {}, source.who)
    found = Ledger.open(there, timeout=timeout, create=False, who=source.who)
    _carry_engines(source.path, found.path)
    return found


def _closed(source: Ledger, rows: Rows, there: str, leave: bool) -> Record:
    """The record that closes the old place: written now, or by the process that was cut off."""
    place = {"digest": chain.digest_of(BEGINNING, there)}
    (end,) = chain.records(rows, "r.id = ?", (chain.head(rows).record,))
    if end.kind is Kind.MOVED:
        if end.facts != place:
            raise LedgerError(f"the ledger {source.address} was moved before, to another place than this one")
        return end
    if not leave:
        _check_finished(source, rows)
    # The time is that of the record before: a copy that was cut off ends with the same record, digest and all.
    return chain.append(rows, Kind.MOVED, place, source.who, at=end.at)


def _check_finished(source: Ledger, rows: Rows) -> None:
    finish = {run: what for run, what in unfinished(source) if what != LOST}
    values = [str(kind) for kind in (Kind.DEBIT, Kind.SPEND, Kind.VOID)]
    for row in rows.execute(_RESERVED, values):
        finish.setdefault(row["run"], "reserved, with no journal on this machine")
    if finish:
        named = "; ".join(f"run {run} is {what}" for run, what in [*finish.items()][:_SHOWN])
        more = f"; and {len(finish) - _SHOWN} more" if len(finish) > _SHOWN else ""
        raise UsageError(
            f"{source.address}: nothing was moved, runs are not finished, and nobody could resume them after it: "
            f"{named}{more}; finish them, or give --leave: then they stay charged for good"
        )


def _pour(source: Rows, target: Rows) -> None:
    for statement in TABLES:
        table = statement.split()[2]
        if not statement.startswith("CREATE TABLE"):
            continue
        for row in source.execute(f"SELECT * FROM {table}" + (" ORDER BY id" if table == "records" else "")):
            names = list(dict(row))
            marks = ", ".join("?" * len(names))
            target.execute(
                f"INSERT INTO {table} ({', '.join(names)}) VALUES ({marks})", [row[name] for name in names]
            )


def _check_copy(store: Store, last: Record, source: Ledger) -> bool:
    """Check every record of a copy; whether it is open already. Another ledger that lies there is refused."""
    with store.reading() as rows:
        end = chain.follow(rows, Head(0, BEGINNING))
        if chain.holds(rows, last.head):
            return end != last.head
        begun = any(record.kind is Kind.MOVED for record in chain.records(rows, "r.id = ?", (end.record,)))
    why = "the beginning of a copy that was cut off: remove it, and copy again" if begun else "a ledger of its own"
    raise UsageError(
        f"{store.address} holds {why}; a ledger is copied to a new place only; {source.address} stays as it is"
    )


def _carry_engines(old: Path, new: Path) -> None:
    """Engines have paid for answers that they still give: they lie beside the ledger that paid."""
    before, after = (path.with_name(f"{path.name}.engines") for path in (old, new))
    if before.exists() and not after.exists():
        shutil.move(before, after)


def _refuse_version_1(rows: Rows) -> None:
    raise LedgerError(f"the ledger {rows.address} has version 1: open it once before it is copied to")
