"""A lake's fingerprint: facts that survive copying, renaming and re-partitioning, hashed.

It is computed from Parquet footers, so it costs no read: the total number of rows and, for every column, its nulls,
smallest and largest value. It lets the ledger notice one lake under two names. It is a fact about private rows and
is kept in the ledger only. A lake whose content was changed, even by a row, has another fingerprint: the ledger's
first line of defence is the name that the owner gives the data set.

Writers, frames and folders tell some facts in their own ways, so these are left out: nulls of numbers (pandas and
some files have NaN instead), all but the name of columns that are empty or hold long texts (writers cut or drop their
extremes), and columns made of other columns.
"""

from __future__ import annotations

import hashlib
import math
import numbers
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

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


def fingerprint(rows: int, files: Sequence[dict[str, ColumnFacts]], folders: Iterable[str] = ()) -> str:
    """Hash of the row count and of every column's facts over all files; ``folders`` names the hive columns."""
    total: dict[str, ColumnFacts] = {}
    for facts in _as_values(files, folders):
        for name, fact in facts.items():
            total[name] = total[name] + fact if name in total else fact
    lines = [str(rows)]
    for name in sorted(total):
        fact = total[name]
        nulls = 0 if _is_number(fact.smallest) else fact.nulls
        short = (
            fact.known and fact.smallest is not None and not _is_long(fact.smallest) and not _is_long(fact.largest)
        )
        lines.append(f"{name}\0{nulls}\0{_text(fact.smallest)}..{_text(fact.largest)}" if short else name)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _as_values(files: Sequence[dict[str, ColumnFacts]], folders: Iterable[str]) -> list[dict[str, ColumnFacts]]:
    """Folders' names are text, in which "12" < "9": where all of a column's are numbers or truth, they are that."""
    found = [dict(facts) for facts in files]
    for name in folders:
        held = [facts for facts in found if name in facts]
        texts = [facts[name].smallest for facts in held]
        for read in (_truth, float):
            try:
                values = [None if text is None else read(text) for text in texts]
            except (KeyError, ValueError):
                continue
            for facts, value in zip(held, values, strict=True):
                facts[name] = replace(facts[name], smallest=_usable(value), largest=_usable(value))
            break
    return found


def _truth(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


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
