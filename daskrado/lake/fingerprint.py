"""A lake's fingerprint: facts that survive copying, renaming and re-partitioning, hashed.

It is computed from Parquet footers, so it costs no read: the total number of rows and, for every column, its nulls,
smallest and largest value. It lets the ledger notice one lake under two names. It is a fact about private rows and
is kept in the ledger only. A lake whose content was changed, even by a row, has another fingerprint: the ledger's
first line of defence is the name that the owner gives the data set.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


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
        if not statistics.has_min_max:
            return cls(nulls, known=nulls == rows)
        try:
            return cls(nulls, statistics.min, statistics.max)
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


def fingerprint(rows: int, files: Sequence[dict[str, ColumnFacts]]) -> str:
    """Hash of the row count and of every column's facts over all files."""
    total: dict[str, ColumnFacts] = {}
    for facts in files:
        for name, fact in facts.items():
            total[name] = total[name] + fact if name in total else fact
    lines = [str(rows)]
    for name in sorted(total):
        fact = total[name]
        extremes = f"{_text(fact.smallest)}..{_text(fact.largest)}" if fact.known else "unknown"
        lines.append(f"{name}\0{fact.nulls}\0{extremes}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _text(value: Any) -> str:
    try:
        return repr(float(value))  # 1, 1.0 and the folder name "1" are the same fact
    except (TypeError, ValueError, OverflowError):
        pass
    return value.hex() if isinstance(value, bytes) else str(value)
