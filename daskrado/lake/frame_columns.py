"""Columns of a pandas frame that may name people, days, hold-outs or groups: by the Domain alone, never by a value.

pandas finds the type of a column in its values: one null makes floats of whole numbers, one odd value makes objects
of anything. A refusal by the type that was found would tell of one row. So a column that the Domain declares to hold
numbers names nobody, and any other is accepted: of floats those that are whole are ids, and the others count as
nothing; whatever is neither number nor text is known by its text. Types of files, and of Polars, Arrow and DuckDB, do
not depend on values: those are refused by their schema.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from daskrado.table.arrow_arrays import as_text

_FOUND = b"daskrado: found in values"


def found_array(column: Any) -> pa.Array | None:
    """A pandas column as Arrow takes it, or None where its values have no one type."""
    try:
        return pa.Array.from_pandas(column)
    except (pa.ArrowException, ArithmeticError, KeyError, TypeError, ValueError):
        return None


def gaps(column: Any) -> NDArray[np.bool_]:
    """Where a pandas column holds nothing, as pandas says; a NaN that signals is one more."""
    import pandas as pd

    try:
        return np.asarray(column.isna())
    except ArithmeticError:  # pandas compares a decimal with itself
        return np.array([cell.is_nan() if isinstance(cell, Decimal) else pd.isna(cell) is True for cell in column])


def free_column(column: Any) -> pa.Array:
    """A pandas column that the Domain does not declare; objects, and what has no one type, as their texts."""
    found = found_array(column)
    if found is not None and (column.dtype != object or pa.types.is_string(found.type)):
        return found
    return pa.array(texts(column), pa.string())


def texts(column: Any) -> list[str | None]:
    """The values of a pandas column as they read."""
    return [None if gap else as_text(cell) for cell, gap in zip(column, gaps(column), strict=True)]


def pandas_field(name: str, array: pa.Array, *, number: bool = False) -> pa.Field:
    """The schema's entry for a column of a pandas frame; ``number`` where the Domain declares one, which is no id."""
    return pa.field(name, array.type, metadata={_FOUND: b"a number" if number else b"anything"})


def may_hold_anything(field: pa.Field) -> bool:
    """Whether values gave a column its type, so that it must refuse nothing."""
    return bool((field.metadata or {}).get(_FOUND) == b"anything")


def id_type(field: pa.Field) -> pa.DataType:
    """The type that a column has where it names something; found by no value, if pandas gave it one by values."""
    kinds = {b"a number": pa.float64(), b"anything": pa.string()}
    return kinds.get((field.metadata or {}).get(_FOUND, b""), field.type)


def whole_numbers(column: Any) -> Any:
    """Floats as whole numbers, null where they are none; other columns as they are."""
    if not pa.types.is_floating(column.type):
        return column
    data = column.cast(pa.float64())
    whole = pc.and_(pc.equal(pc.floor(data), data), pc.less(pc.abs(data), 2.0**63))
    return pc.if_else(whole, data, pa.scalar(None, pa.float64())).cast(pa.int64(), safe=False)
