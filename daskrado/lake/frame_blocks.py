"""Blocks of a frame: the values of one of its columns, as the names of folders would have them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from daskrado.errors import UsageError
from daskrado.table.arrow_arrays import as_table, plain


def values_of(frame: Any, column: str) -> set[str]:
    """The blocks that a frame has; a null and an empty text are in none."""
    if column not in _names(frame):
        raise UsageError(
            f"blocks.column {column!r}: the frame has no such column; it has {', '.join(_names(frame)[:20])}"
        )
    if hasattr(frame, "to_delayed"):
        import dask

        parts = dask.compute(*[dask.delayed(_values)(part, column) for part in frame[[column]].to_delayed()])
        return set().union(*parts)
    return _values(frame, column)


def _names(frame: Any) -> list[str]:
    table = as_table(frame)
    return list(map(str, frame.columns if table is None else table.column_names))


def _values(frame: Any, column: str) -> set[str]:
    table = as_table(frame)
    held = pa.chunked_array([pa.Array.from_pandas(frame[column])]) if table is None else table.column(column)
    return {text for text in pc.unique(_texts(held, column)).to_pylist() if text}


def in_blocks(table: pa.Table, column: str, values: Sequence[str]) -> pa.Table:
    """The rows of some blocks."""
    return table.filter(pc.is_in(_texts(table.column(column), column), value_set=pa.array(values, pa.string())))


def _texts(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """A column's values as folders would be named: dates as 2026-11-17, truths as true and false."""
    data = plain(column)
    kind = data.type
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_null(kind)
    if not (text or pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_date(kind)):
        raise UsageError(
            f"blocks.column {name!r} is {kind} in the frame; a block is a text, a whole number, a truth or a date"
        )
    return (data.cast(pa.date32()) if pa.types.is_date(kind) else data).cast(pa.string())
