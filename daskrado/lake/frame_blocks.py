"""Blocks of a frame: the values of one of its columns, as the names of folders would have them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from daskrado.errors import UsageError
from daskrado.lake.frame_columns import free_column, id_type, pandas_field, whole_numbers
from daskrado.table.arrow_arrays import as_table, as_texts, plain


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
    if table is None:
        held = free_column(frame[column])  # public: so fractions may be refused, and a gap among whole numbers not
        fractions = whole_numbers(held).null_count > held.null_count
        table = pa.table([held], schema=pa.schema([pandas_field(column, held, number=fractions)]))
    return {text for text in pc.unique(block_texts(table, column)).to_pylist() if text}


def in_blocks(table: pa.Table, column: str, values: Sequence[str]) -> pa.Table:
    """The rows of some blocks."""
    return table.filter(pc.is_in(block_texts(table, column), value_set=pa.array(values, pa.string())))


def name_problem(kind: pa.DataType) -> str | None:
    """Why the values of a column of this type cannot be names of blocks; None if they can."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    if text or pa.types.is_null(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return None
    return None if pa.types.is_date(kind) else f"is {kind}; it must hold texts, whole numbers, truths or dates"


def block_texts(table: pa.Table, name: str) -> pa.ChunkedArray:
    """A column's values as folders would be named: dates as 2026-11-17, truths as true and false."""
    if (problem := name_problem(id_type(table.schema.field(name)))) is not None:
        raise UsageError(f"blocks.column {name!r} {problem}")
    data = whole_numbers(plain(table.column(name)))
    if name_problem(data.type) is not None:  # in a pandas frame
        return as_texts(data)
    return (data.cast(pa.date32()) if pa.types.is_date(data.type) else data).cast(pa.string())
