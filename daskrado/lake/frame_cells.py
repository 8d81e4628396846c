"""Cells of a pandas column of objects, each read by itself as the Domain declares its column.

Objects may be anything. Whether a column of them is taken, and what becomes of a cell, depends on the Domain and on
that cell alone: one that is of another type is a null in its own row, and moves no other.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from daskrado.lake.frame_columns import gaps
from daskrado.table.arrow_arrays import as_text
from daskrado.table.domain import BooleanColumn, DateColumn, Domain

_EXACT = 2**53  # below it, every whole number is a float
_NUMBERS = (bool, np.bool_, int, float, np.number, Decimal)
Cell = Callable[[Any], Any]


def declared_cells(domain: Domain, name: str, column: Any) -> pa.Array:
    """A column of objects as an array of the type that the Domain gives it."""
    read, kind = _reader(domain, name)
    return pa.array([None if gap else read(cell) for cell, gap in zip(column, gaps(column), strict=True)], kind)


def _reader(domain: Domain, name: str) -> tuple[Cell, pa.DataType]:
    """What reads a cell of a column, and the type of what it gives."""
    if name == domain.id:
        return as_text, pa.large_string()
    spec = domain.columns.get(name)
    if isinstance(spec, DateColumn):
        return _moment, pa.timestamp("us")
    values = domain.label.values if spec is None else getattr(spec, "values", None) or ()
    truths = isinstance(spec, BooleanColumn) and not values
    if truths or any(isinstance(value, bool) for value in values):
        return _truth, pa.bool_()
    if any(isinstance(value, str) for value in values):
        return as_text, pa.large_string()
    if any(isinstance(value, int) and abs(value) >= _EXACT for value in values):
        return _whole, pa.int64()
    return _number, pa.float64()


def _truth(cell: Any) -> bool | None:
    if isinstance(cell, str):  # as Python writes them: what makes texts of objects does it to all cells
        return cell == "True" if cell in ("True", "False") else None
    return bool(cell) if isinstance(cell, bool | np.bool_) else None


def _number(cell: Any) -> float | None:
    """A number, or a text that writes one; complex numbers by their real part if they have no other."""
    if isinstance(cell, complex) and cell.imag == 0:
        cell = cell.real
    if not isinstance(cell, (*_NUMBERS, str)) or isinstance(cell, np.complexfloating):
        return None
    try:
        number = float(cell)
    except (ValueError, OverflowError):
        return None
    return None if math.isnan(number) else number


def _whole(cell: Any) -> int | None:
    """A whole number of 64 bits, or a text that writes one."""
    try:
        exact = Decimal(cell) if isinstance(cell, str) else cell
        if not isinstance(exact, _NUMBERS) or not -(2**63) <= exact < 2**63:  # before int: 1e999999999 has no end
            return None
        return int(exact) if int(exact) == exact else None
    except (ValueError, TypeError, ArithmeticError):
        return None


def _moment(cell: Any) -> datetime.datetime | None:
    """A date at its beginning, a moment in UTC, or the text of one; what Python's calendar does not have is none."""
    try:
        if isinstance(cell, str):
            cell = datetime.datetime.fromisoformat(cell)
        if isinstance(cell, np.datetime64):
            cell = cell.astype("datetime64[us]").item()
        if hasattr(cell, "to_pydatetime"):
            cell = cell.to_pydatetime(warn=False)
        if isinstance(cell, datetime.datetime):
            return cell if cell.tzinfo is None else cell.astimezone(datetime.UTC).replace(tzinfo=None)
        return datetime.datetime.combine(cell, datetime.time()) if isinstance(cell, datetime.date) else None
    except (ValueError, OverflowError):
        return None
