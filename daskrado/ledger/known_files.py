"""The files that data sets were charged for: each belongs to the data set that it was first charged as.

Files that were read without protection are known too, whatever they were called then: the data set that they are
charged as later is marked with what became public of them.

A file is known by marks (:func:`daskrado.lake.fingerprint.file_marks`), of which eight bytes each are kept, under the
ledger's secret. Those that a data set brings for the first time are one note beside the chain, and one record of it
has a digest of that note, so that a note that is lost or changed shows. Notes are never exported.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping, Set

from daskrado.errors import BudgetError
from daskrado.ledger import chain, checked
from daskrado.ledger.chain import Kind, Record
from daskrado.ledger.records import Mark, Marked
from daskrado.ledger.store import Rows

_NOBODY = ""  # the data set of files that were read without protection
_BYTES = 8  # of a mark: ten data sets of 100,000 files meet by chance once in some 10^7 ledgers


def remember(rows: Rows, dataset: str, marks: Mapping[str, str], who: str, run: str) -> None:
    """Note which files a data set has, inside the transaction of a debit; refuse one that is another data set's."""
    hidden = _hidden(rows, marks)
    fresh = set(hidden)
    for name, own in _met(rows, hidden):
        if name != dataset:
            path = min(hidden[mark] for mark in own)
            raise BudgetError(
                f"{path} is already in the ledger {rows.address} as a file of {name!r}; a second name, {dataset!r}, "
                f"would give its rows a second budget; nothing was debited; use the name {name!r}"
            )
        fresh -= own
    if fresh:
        _note(rows, fresh, {}, who, dataset, run)
    for one in _exposures(rows, dataset, hidden):
        chain.append(rows, Kind.MARK, {"mark": str(one.mark)}, one.who, dataset, one.run, at=one.at)


def expose(rows: Rows, marks: Mapping[str, str], mark: Mark, who: str, run: str) -> None:
    """Note which files were read without protection, those of which that was not known yet."""
    fresh = set(_hidden(rows, marks))
    for record in _exposed(rows):
        if record.facts["mark"] == mark:
            fresh -= _kept(rows, record)
    if fresh:
        _note(rows, fresh, {"mark": str(mark)}, who, _NOBODY, run)


def exposures(rows: Rows, dataset: str, marks: Mapping[str, str]) -> list[Marked]:
    """What became public of these files under another name, or none, and is no mark of the data set yet."""
    return _exposures(rows, dataset, _hidden(rows, marks))


def _exposures(rows: Rows, dataset: str, hidden: Mapping[bytes, str]) -> list[Marked]:
    told = chain.records(rows, "r.dataset = ? AND r.kind = ?", (dataset, str(Kind.MARK)))
    known = {(record.facts["mark"], record.run) for record in told}
    return [
        Marked(dataset, Mark(record.facts["mark"]), record.at, record.run, record.who)
        for record in _exposed(rows)
        if (record.facts["mark"], record.run) not in known and hidden.keys() & _kept(rows, record)
    ]


def owners(rows: Rows, marks: Mapping[str, str]) -> Iterator[str]:
    """The data sets that one of these files was charged as."""
    return (name for name, _ in _met(rows, _hidden(rows, marks)))


def _met(rows: Rows, hidden: Mapping[bytes, str]) -> Iterator[tuple[str, set[bytes]]]:
    """The data sets that files were charged as, each with the marks of those files."""
    for name in _datasets(rows) if hidden else ():
        if own := hidden.keys() & _known(rows, name):
            yield name, own


def _hidden(rows: Rows, marks: Mapping[str, str]) -> dict[bytes, str]:
    key = checked.secret_of(rows)
    return {
        hashlib.blake2b(mark.encode("utf-8", "surrogateescape"), digest_size=_BYTES, key=key).digest(): path
        for mark, path in marks.items()
    }


def _known(rows: Rows, dataset: str) -> set[bytes]:
    """All marks of a data set."""
    found = set[bytes]()
    for record in chain.records(rows, "r.dataset = ? AND r.kind = ?", (dataset, str(Kind.FILES))):
        found |= _kept(rows, record)
    return found


def _exposed(rows: Rows) -> Iterator[Record]:
    return chain.records(rows, "r.dataset = ? AND r.kind = ?", (_NOBODY, str(Kind.FILES)))


def _note(rows: Rows, marks: Set[bytes], facts: Mapping[str, str], who: str, dataset: str, run: str) -> None:
    note = base64.b64encode(b"".join(sorted(marks))).decode()
    record = chain.append(rows, Kind.FILES, {**facts, "seal": _seal(note)}, who, dataset, run)
    rows.execute("INSERT INTO notes (name, value) VALUES (?, ?)", (_place(record.id), note))


def _kept(rows: Rows, record: Record) -> set[bytes]:
    """The marks that a record has the digest of."""
    note = checked.note(rows, _place(record.id))
    if note is None or _seal(note) != record.facts["seal"]:
        raise chain.broken(rows, record.id)
    kept = base64.b64decode(note)
    return {kept[at : at + _BYTES] for at in range(0, len(kept), _BYTES)}


def _datasets(rows: Rows) -> Iterator[str]:
    """Every data set with a record, by one step in the index for each."""
    name = ""
    while True:
        (row,) = rows.execute("SELECT MIN(dataset) AS next FROM records WHERE dataset > ?", (name,))
        if row["next"] is None:
            return
        name = str(row["next"])
        yield name


def _place(record: int) -> str:
    return f"files {record}"


def _seal(note: str) -> str:
    return hashlib.sha256(note.encode()).hexdigest()
