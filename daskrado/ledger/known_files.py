"""The files that data sets were charged for: each belongs to the data set that it was first charged as.

A file is known by marks (:func:`daskrado.lake.fingerprint.file_marks`), of which eight bytes each are kept, under the
ledger's secret. Those that a data set brings for the first time are one note beside the chain, and one record of it
has a digest of that note, so that a note that is lost or changed shows. Notes are never exported.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping

from daskrado.errors import BudgetError
from daskrado.ledger import chain, checked
from daskrado.ledger.chain import Kind
from daskrado.ledger.store import Rows

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
        note = base64.b64encode(b"".join(sorted(fresh))).decode()
        record = chain.append(rows, Kind.FILES, {"seal": _seal(note)}, who, dataset, run)
        rows.execute("INSERT INTO notes (name, value) VALUES (?, ?)", (_place(record.id), note))


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
        note = checked.note(rows, _place(record.id))
        if note is None or _seal(note) != record.facts["seal"]:
            raise chain.broken(rows, record.id)
        kept = base64.b64decode(note)
        found.update(kept[at : at + _BYTES] for at in range(0, len(kept), _BYTES))
    return found


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
