"""What the ledger knows a lake by, and what it knows a closed block by.

A lake is known by facts that do not come from its rows: the identity that a table was made with, or the names and
times of its files. Whoever makes up rows, the right number of them or the right extremes, therefore learns nothing
from being refused or not. It lets the ledger notice one lake under two names; the first line of defence is the name
that the owner gives the data set. Frames have no identity, and are known by that name alone.

Each file is known by itself, too, by name, time and place on the disk: a part of a lake, or a lake and one file more,
is no other data. Sizes and contents are not compared: whoever names and dates a guess like a private file, and is
refused, has learned nothing of its rows. The price is that a copy with a new time, or a file that gets another time
*and* another place, is not known again; ``daskrado lake check`` names equal bytes, to the owner alone.

A closed block of plain files is known in the same way. That of a table, whose files may be compacted, is known by the
table's identity and by what its files say of its rows: their number and, for every column, its nulls, smallest and
largest value. The identity of a table is random and published as a digest only, so nobody can make up a table that
would be compared. All of it is kept in the ledger only, under a key.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import numbers
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pyarrow import fs as pafs

if TYPE_CHECKING:
    from daskrado.lake.files import LakeFile

_LONG = 64  # some writers cut extremes here, others at 4,096, others not at all


@dataclass(frozen=True)
class ColumnFacts:
    """Nulls and extremes of one column; None where the writer stored no statistics."""

    nulls: int | None
    smallest: Any = None
    largest: Any = None
    known: bool = True

    @classmethod
    def constant(cls, value: str | None, rows: int) -> ColumnFacts:
        """A hive column: one value for all rows of the file."""
        return cls(rows if value is None else 0, value, value)

    @classmethod
    def from_statistics(cls, statistics: Any, rows: int) -> ColumnFacts:
        """From a Parquet column chunk's statistics, which may be absent."""
        if statistics is None:
            return cls(None, known=False)
        nulls = statistics.null_count if statistics.has_null_count else None
        if not statistics.has_min_max:  # numbers: all of them may be NaN
            return cls(nulls, known=nulls == rows or statistics.physical_type in ("FLOAT", "DOUBLE"))
        try:
            return cls(nulls, _usable(statistics.min), _usable(statistics.max))
        except (OverflowError, ValueError, NotImplementedError):  # a date beyond Python's calendar, an odd type
            return cls(nulls, known=False)

    def __add__(self, other: ColumnFacts) -> ColumnFacts:
        nulls = None if self.nulls is None or other.nulls is None else self.nulls + other.nulls
        try:
            smallest = _pick(min, self.smallest, other.smallest)
            largest = _pick(max, self.largest, other.largest)
        except TypeError:  # two files store the column in types that do not compare
            return ColumnFacts(nulls, known=False)
        return ColumnFacts(nulls, smallest, largest, self.known and other.known)


def _pick(choose: Any, a: Any, b: Any) -> Any:
    return b if a is None else a if b is None else choose(a, b)


def _usable(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value


def identity(files: Sequence[LakeFile]) -> str:
    """What a lake is known by: the same after a move or a copy that keeps times, and for a table while it grows."""
    table = _table(files)
    return _hashed([table_mark(table)] if table else sorted(map(_place, files)))


def _table(files: Sequence[LakeFile]) -> str:
    """The table's own identity, which is random; empty for plain files, and for lakes of an older version."""
    return files[0].table.identity if files[0].table is not None else ""


def _place(file: LakeFile) -> str:
    """A file's name and time; its whole address where the time is only known in seconds, as archives have it."""
    exact = file.modified % 10**9 != 0
    return f"{file.path.rpartition('/')[2] if exact else file.path}\0{file.modified}\0{file.hive}"


def file_marks(files: Iterable[LakeFile]) -> dict[str, str]:
    """By what each file is known again, under any address and in any choice of files; and its path.

    Its name and time, or its whole address where the time is known in thousandths of a second or worse; on a local
    disk also its inode and time, which links and new names keep, and its inode at its place, which a new time keeps.
    A table is known by its identity as well. An inode alone says nothing: a new file may get that of a removed one.
    """
    found = {}
    for file in files:
        exact, when = file.modified % 10**6 != 0, file.modified
        found[f"{file.path.rpartition('/')[2] if exact else file.path}\0{when}"] = file.path
        if isinstance(file.filesystem, pafs.LocalFileSystem):
            with contextlib.suppress(OSError):  # it vanished since: reading it will say so
                status = os.stat(file.path)
                found[f"{'' if exact else status.st_dev} {status.st_ino}\0{when}"] = file.path
                found[f"{os.path.realpath(file.path)} is {status.st_ino}"] = file.path
        if file.table is not None and file.table.identity:
            found[table_mark(file.table.identity)] = file.path
    return found


def table_mark(identity: str) -> str:
    """By what a table is known, whichever of its files are read."""
    return f"table {identity}"


def block_fingerprint(files: Sequence[LakeFile], rows: int, facts: Sequence[dict[str, ColumnFacts]]) -> str:
    """What a block is known by: its files or, in a table that may be compacted, table, row count and column facts."""
    if not _table(files):
        return identity(files)
    total: dict[str, ColumnFacts] = {}
    for own in facts:
        for name, fact in own.items():
            total[name] = total[name] + fact if name in total else fact
    told = [f"{name}\0{_told(fact)}" for name, fact in sorted(total.items())]
    return _hashed([identity(files), str(rows), *told])


def _told(fact: ColumnFacts) -> str:
    """Nulls and extremes; not those of long texts, which writers cut or drop, each at its own length."""
    nulls = 0 if _is_number(fact.smallest) else fact.nulls
    plain = fact.known and fact.smallest is not None and not _is_long(fact.smallest) and not _is_long(fact.largest)
    return f"{nulls}\0{_text(fact.smallest)}..{_text(fact.largest)}" if plain else ""


def _hashed(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Number) and not isinstance(value, bool)


def _is_long(value: Any) -> bool:
    return isinstance(value, str | bytes) and len(value) >= _LONG


def _text(value: Any) -> str:
    try:
        return repr(float(value) + 0.0)  # 1, 1.0 and the text "1" are the same fact; so are 0.0 and -0.0
    except (TypeError, ValueError, OverflowError):
        pass
    if isinstance(value, datetime) and value.tzinfo is not None:
        return str(value.astimezone(UTC))
    return value.hex() if isinstance(value, bytes) else str(value)
