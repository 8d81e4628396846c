"""Values that are folders' names: text, read as what the Domain says of their column."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any

import pyarrow as pa

from daskrado.table.domain import BooleanColumn, DateColumn, Domain, NumericColumn
from daskrado.table.label import Label, Scalar

Reader = Callable[[str | None], tuple[pa.DataType, Any]]  # a KeyError or a ValueError for what cannot be meant

_TRUTH = {"true": True, "false": False, "1": True, "0": False}


def folder_readers(domain: Domain, columns: Sequence[str], *, strict: bool) -> dict[str, Reader]:
    """How to read the columns that are needed, if they are folders; all others are text.

    What cannot be meant is null, or an error if ``strict``.
    """
    readers: dict[str, Reader] = {domain.label.column: _label_reader(domain.label)}
    for name, column in domain.columns.items():
        if isinstance(column, DateColumn):
            readers[name] = _moment
        elif isinstance(column, NumericColumn):
            readers[name] = _number
        elif isinstance(column, BooleanColumn):
            readers[name] = _truth if column.values is None else partial(_chosen, column.values, False)
        else:
            readers[name] = partial(_chosen, column.values, column.other)
    wanted = {name: reader for name, reader in readers.items() if name in columns}
    return wanted if strict else {name: partial(_or_null, reader) for name, reader in wanted.items()}


def _label_reader(label: Label) -> Reader:
    return (
        _number
        if label.threshold is not None or label.bounds is not None
        else partial(_chosen, label.values, label.rest != 0)
    )


def _or_null(read: Reader, text: str | None) -> tuple[pa.DataType, Any]:
    """A folder's rows hold that value, so what cannot be meant is a matter of rows: they count as nothing."""
    try:
        return read(text)
    except (KeyError, ValueError):
        return read(None)


def as_text(text: str | None) -> tuple[pa.DataType, Any]:
    """A folder's name as it is."""
    return pa.string(), text


def _number(text: str | None) -> tuple[pa.DataType, Any]:
    value = None if text is None else float(text)
    if value is not None and not math.isfinite(value):
        raise ValueError
    return pa.float64(), value


def _moment(text: str | None) -> tuple[pa.DataType, Any]:
    return pa.timestamp("us"), None if text is None else datetime.fromisoformat(text)


def _truth(text: str | None) -> tuple[pa.DataType, Any]:
    return pa.bool_(), None if text is None else _TRUTH[text.lower()]


def _chosen(values: Sequence[Scalar], other: bool, text: str | None) -> tuple[pa.DataType, Any]:
    """One of the declared values, in their type; where there is ``other``, also what is none of them."""
    read = as_text if isinstance(values[0], str) else _truth if isinstance(values[0], bool) else _whole_or_not
    kind, value = read(text)
    if value is not None and value not in values and not other:
        raise ValueError
    return kind, value


def _whole_or_not(text: str | None) -> tuple[pa.DataType, Any]:
    """A number as a category: whole if it can be, and NaN, which no Domain declares, for what is no number."""
    for kind, read in ((pa.int64(), int), (pa.float64(), float)):
        try:
            value = None if text is None else read(text)
        except ValueError:
            continue
        if not isinstance(value, int) or abs(value) < 2**63:
            return kind, value
    return pa.float64(), math.nan
