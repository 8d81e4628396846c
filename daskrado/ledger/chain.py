"""The ledger's records: one append-only chain, in which every record carries a digest of all that came before it.

The digest of a record is SHA-256 over the digest before it and the record's own columns. A changed, missing, added or
reordered record therefore breaks the chain at that place, and the digest of the last record, the *head*, stands for
the whole history: whoever noted a head can tell whether a ledger still holds what it held then.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from operator import itemgetter
from typing import Any

from daskrado.errors import LedgerError
from daskrado.ledger.store import Rows

BEGINNING = "0" * 64  # what the first record follows
COLUMNS = ("id", "kind", "at", "who", "dataset", "run", "entry", "name", "body")
_SELECT = f"SELECT {', '.join(f'r.{column}' for column in COLUMNS)}, r.digest, b.digest AS before"
_CHAIN = " FROM records r LEFT JOIN records b ON b.id = r.id - 1"
_LAKES = f", l.fingerprint, l.salt{_CHAIN} LEFT JOIN lakes l ON l.record = r.id"


class Kind(StrEnum):
    """What a record says."""

    LEDGER = "ledger"  # the first one: version and identity
    LIMIT = "limit"
    DEBIT = "debit"
    SPEND = "spend"
    VOID = "void"
    DRAW = "draw"
    PUBLISH = "publish"
    MARK = "mark"
    CLOSE = "close"  # a block that no row may be added to
    FILES = "files"  # files that a data set was charged for, and had not before
    MOVED = "moved"  # the last one of a ledger that was copied elsewhere
    ARRIVED = "arrived"  # the first one after that, in the new place


_own_columns = itemgetter(*COLUMNS)


@dataclass(frozen=True, slots=True)
class Head:
    """A place in the chain: the number of a record, and the digest of it and of everything before it."""

    record: int
    digest: str

    def __str__(self) -> str:
        return f"{self.record}:{self.digest}"

    @classmethod
    def read(cls, text: str) -> Head:
        """The head that ``str`` wrote."""
        record, _, digest = text.partition(":")
        if not (record.isdigit() and len(digest) == len(BEGINNING)):
            raise LedgerError(f"{text!r} is not the head of a ledger: it is written NUMBER:DIGEST")
        return cls(int(record), digest)


@dataclass(frozen=True, slots=True)
class Record:
    """One line of the chain. ``entry`` numbers debits; ``body`` is canonical JSON.

    ``name`` is that of a draw or of a closed block, or the relation of a debit and of its void.

    ``fingerprint`` is no part of it: the body of a debit, or of a closed block, holds a salted digest of it, which
    tells nobody anything.
    """

    id: int
    kind: Kind
    at: str
    who: str
    dataset: str
    run: str
    entry: int | None
    name: str
    body: str
    digest: str
    fingerprint: str | None = None

    @property
    def facts(self) -> Any:
        """The body, read; nobody changes it."""
        return _read(self.body)

    @property
    def head(self) -> Head:
        """This place in the chain."""
        return Head(self.id, self.digest)


@lru_cache(maxsize=1)
def _read(body: str) -> Any:
    return json.loads(body)


def canonical(value: Any) -> str:
    """JSON in one spelling only, so that equal values have equal digests."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest_of(before: str, *columns: Any) -> str:
    """The digest of a record that follows another one."""
    return hashlib.sha256(json.dumps([before, *columns]).encode()).hexdigest()


def now() -> str:
    """The time of a record, for people; the order of records is that of their numbers, whatever a clock does.

    Whole minutes, and all records of a run have the time of its first debit: how long a run takes depends on rows.
    """
    return datetime.now(UTC).isoformat(timespec="minutes")


def began(rows: Rows, **which: object) -> str | None:
    """The time of the first debit of a ``run``, or of the debit of an ``entry``; None before it."""
    ((column, value),) = which.items()
    (found,) = rows.execute(
        f"SELECT min(at) AS at FROM records WHERE {column} = ? AND kind = ?", (value, str(Kind.DEBIT))
    )
    return None if found["at"] is None else str(found["at"])


def head(rows: Rows) -> Head:
    """The end of the chain."""
    for row in rows.execute("SELECT id, digest FROM records ORDER BY id DESC LIMIT 1"):
        return Head(row["id"], row["digest"])
    return Head(0, BEGINNING)


def append(
    rows: Rows,
    kind: Kind,
    body: Mapping[str, Any],
    who: str,
    dataset: str = "",
    run: str = "",
    entry: int | None = None,
    name: str = "",
    at: str | None = None,
) -> Record:
    """Add one record, inside a write transaction."""
    last = head(rows)
    moved = rows.execute("SELECT 1 FROM records WHERE id = ? AND kind = ?", (last.record, str(Kind.MOVED)))
    if kind is not Kind.ARRIVED and list(moved):
        raise LedgerError(f"the ledger {rows.address} was moved to another place and is closed; use that one")
    own = (at or now(), who, dataset, run, entry, str(name), canonical(body))
    columns = (last.record + 1, str(kind), *own)
    digest = digest_of(last.digest, *columns)
    insert(rows, (*columns, digest))
    return Record(last.record + 1, kind, *own, digest)


def insert(rows: Rows, columns: tuple[Any, ...]) -> None:
    """Write a record as it is, with its digest."""
    rows.execute(f"INSERT INTO records ({', '.join(COLUMNS)}, digest) VALUES ({', '.join('?' * 10)})", columns)


def records(rows: Rows, where: str = "r.id > 0", values: Iterable[object] = ()) -> Iterator[Record]:
    """Records in their order, each checked against the digest before it."""
    for row in rows.execute(f"{_SELECT}{_LAKES} WHERE {where} ORDER BY r.id", tuple(values)):
        columns, fingerprint = _checked(rows, row), row["fingerprint"]
        sealed = f'"seal":{json.dumps(seal(fingerprint, row["salt"]))}'  # as canonical JSON has it
        if columns[1] in (Kind.DEBIT, Kind.CLOSE) and sealed not in columns[-1]:
            raise broken(rows, columns[0])
        yield _record(rows, columns, row["digest"], fingerprint)


def debits(rows: Rows, dataset: str) -> Iterator[tuple[int, int, str]]:
    """Number, entry and body of each debit of a data set, checked likewise: all of a long history, in no order."""
    for row in rows.execute(f"{_SELECT}{_CHAIN} WHERE r.dataset = ? AND r.kind = ?", (dataset, str(Kind.DEBIT))):
        number, *_, entry, _, body = _checked(rows, row)
        yield number, entry, body


def _checked(rows: Rows, row: Mapping[str, Any]) -> tuple[Any, ...]:
    columns: tuple[Any, ...] = _own_columns(row)
    if row["digest"] != digest_of(row["before"] if columns[0] > 1 else BEGINNING, *columns):
        raise broken(rows, columns[0])
    return columns


def _record(rows: Rows, columns: tuple[Any, ...], digest: str, fingerprint: str | None) -> Record:
    number, kind, *own = columns
    try:
        return Record(number, Kind(kind), *own, digest, fingerprint)  # type: ignore[call-arg]
    except ValueError:
        raise LedgerError(
            f"the ledger {rows.address} holds a record of an unknown kind, {kind!r}: a newer daskrado wrote it"
        ) from None


def seal(fingerprint: str | None, salt: str | None) -> str | None:
    """What a debit's record says of its lake's fingerprint: enough to notice a change, nothing to guess from."""
    return None if fingerprint is None else hashlib.sha256(f"{salt}:{fingerprint}".encode()).hexdigest()


def broken(rows: Rows, record: int) -> LedgerError:
    """What to raise where the chain does not hold."""
    return LedgerError(
        f"the ledger {rows.address} is damaged: record {record} does not follow from the one before it; "
        "restore it from a copy"
    )


def follow(rows: Rows, known: Head) -> Head:
    """Check the chain after a place that is known to hold, up to its end; the end."""
    before = known.digest
    number = known.record
    for row in rows.execute(f"SELECT {', '.join(COLUMNS)}, digest FROM records WHERE id > ? ORDER BY id", (number,)):
        number += 1
        columns = _own_columns(row)
        digest = digest_of(before, *columns)
        if columns[0] != number or digest != row["digest"]:
            raise broken(rows, number)
        before = digest
    return Head(number, before)


def holds(rows: Rows, known: Head) -> bool:
    """Whether the chain still goes through a place that was noted before."""
    if known.record == 0:
        return known.digest == BEGINNING
    found = [row["digest"] for row in rows.execute("SELECT digest FROM records WHERE id = ?", (known.record,))]
    return found == [known.digest]
