"""What scikit-learn's ``X`` and ``y`` are here: a lake's address, a frame that holds the label, or two arrays.

A Domain says which columns count; nothing of it is read off private rows. Only where nobody is protected may a Domain
be made from the rows themselves, as every other scikit-learn estimator does.

numpy finds the type of a list in its values: one odd value would change, or refuse, all others. So cells of lists,
and of arrays of objects or texts, become objects of a frame, of which each is read by itself (``lake.frame_cells``).
"""

from __future__ import annotations

import contextlib
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from sklearn.utils.validation import column_or_1d

from daskrado.errors import UsageError
from daskrado.lake.frame_columns import found_array, texts
from daskrado.lake.frames import to_arrow
from daskrado.table.arrow_arrays import as_table, in_days, is_stream, plain, speaks_arrow, words
from daskrado.table.domain import Domain
from daskrado.table.encoding import needed_columns
from daskrado.table.type_hints import is_number, is_text
from daskrado.table.yaml_file import parse

_KEY = secrets.token_hex(8)  # of this process
_FOUND_IN_VALUES = "OUS"  # kinds of numpy's types: objects, texts, bytes
UNIT = "unit"  # the column that ``units=`` of fit becomes, where the estimator names none


def read_domain(domain: Any) -> Domain | None:
    """A Domain as it is, from its file, or from the same keys."""
    if domain is None or isinstance(domain, Domain):
        return domain
    return Domain.load(domain) if isinstance(domain, str | Path) else parse(Domain, domain, "domain")


def is_lake(rows: Any) -> bool:
    """Whether rows are given by an address, a list of addresses or a table's keys."""
    if isinstance(rows, str | Path | dict):
        return not hasattr(rows, "toarray")  # a sparse matrix of keys is a dict, too
    return isinstance(rows, list | tuple) and bool(rows) and all(isinstance(part, str | Path) for part in rows)


def is_frame(rows: Any) -> bool:
    """Whether rows come with names of columns: pandas, Polars, Arrow, DuckDB, Dask."""
    return isinstance(rows, pd.DataFrame) or speaks_arrow(rows) or hasattr(rows, "npartitions")


def cells(rows: Any) -> Any:
    """Rows of a list, or of an array of objects or texts, as a frame of objects; others as they are.

    A row that is not as long as most of them counts as nothing.
    """
    if isinstance(rows, list | tuple):
        lengths = [_length(row) for row in rows]
        usual = Counter(lengths).most_common(1)[0][0] if rows else None
        if usual is None:
            raise ValueError("Expected 2D array, got 1D array instead: reshape X, or give a frame.")
        nothing = [None] * usual
        lines = [list(row) if own == usual else nothing for row, own in zip(rows, lengths, strict=True)]
        return pd.DataFrame({at: pd.Series([line[at] for line in lines], dtype=object) for at in range(usual)})
    if isinstance(rows, np.ndarray) and rows.ndim == 2 and rows.dtype.kind in _FOUND_IN_VALUES:
        return pd.DataFrame(rows.astype(object), dtype=object)
    return as_table(rows) if is_stream(rows) else rows


def _length(row: Any) -> int | None:
    """How many cells a row of a list has; None if it is none."""
    try:
        return None if isinstance(row, str | bytes | Mapping | Set) else len(row)
    except TypeError:
        return None


def named(rows: Any, names: list[str]) -> Any:
    """Rows with names of columns: a frame as it is, an array in the order of the Domain's columns."""
    if is_frame(rows):
        return as_table(rows) if is_stream(rows) else rows
    if hasattr(rows, "toarray"):
        raise TypeError("Sparse data was passed, but dense data is required: X.toarray() makes it dense.")
    found = cells(rows)
    if (dimensions := np.ndim(found)) != 2:
        raise ValueError(f"Expected 2D array, got {dimensions}D array instead: reshape X, or give a frame.")
    return renamed(pd.DataFrame(found), names)


def renamed(rows: Any, names: list[str]) -> Any:
    """A frame whose columns have these names, in their order."""
    if hasattr(rows, "npartitions"):
        return rows.rename(columns=dict(zip(rows.columns, names, strict=True)))
    table = as_table(rows)
    width = len(rows.columns) if table is None else table.num_columns
    if width != len(names):
        raise ValueError(f"X has {width} features, but the domain has {len(names)}: {', '.join(names[:20])}")
    return rows.set_axis(names, axis=1) if table is None else table.rename_columns(names)


@contextlib.contextmanager
def without_rows() -> Iterator[None]:
    """What scikit-learn says of private rows, without those that it quotes below its first line."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise type(error)(str(error).partition("\n")[0]) from None


def with_column(rows: Any, name: str, values: Any, what: str, domain: Domain) -> Any:
    """A frame with one more column: the label, or the ids of units."""
    if hasattr(rows, "npartitions"):
        raise UsageError(f"a Dask frame holds its {what} as a column: give {name!r} in the frame, not beside it")
    column = _column(values)
    table = as_table(rows)
    have = rows.columns if table is None else table.column_names
    length = len(rows) if table is None else table.num_rows
    if name in have:
        raise UsageError(f"{what} is given twice: beside X, and as its column {name!r}")
    if len(column) != length:
        raise ValueError(f"X and {what} differ in length.")
    if table is not None:
        alone = to_arrow(column.to_frame(name), needed_columns(domain), domain)
        return table.append_column(alone.schema.field(name), alone.column(name))
    return rows.assign(**{name: column.set_axis(rows.index)})


def _column(values: Any) -> pd.Series:
    """One value for each row; a list of lists of one value is taken as scikit-learn takes a column."""
    if isinstance(values, list | tuple):
        own = (value[0] if isinstance(value, list | tuple) and len(value) == 1 else value for value in values)
        return pd.Series(list(own), dtype=object)
    if (exact := _exact(values)) is not None:
        return exact
    array = np.asarray(values)
    with without_rows():
        found = column_or_1d(array.astype(object) if array.dtype.kind in _FOUND_IN_VALUES else array, warn=True)
    return pd.Series(found, dtype=found.dtype)


def _exact(values: Any) -> pd.Series | None:
    """Texts, and whole numbers and truths beside a gap, of a column of pandas, Polars or Arrow; None for others.

    numpy makes floats of whole numbers beside a gap, so that large ids agree, and reads no bytes that are no text.
    """
    if isinstance(values, pd.DataFrame) and values.shape[1] == 1:
        values = values.iloc[:, 0]
    held = None
    if pd.api.types.is_extension_array_dtype(getattr(values, "dtype", None)):
        held = found_array(pd.Series(values))
    elif isinstance(values, pa.Array) or (hasattr(values, "__arrow_c_stream__") and speaks_arrow(values)):
        held = None if is_stream(values) else pa.chunked_array(values)
    if held is None:
        return None
    column = plain(held if isinstance(held, pa.ChunkedArray) else pa.chunked_array([held]))
    if pa.types.is_struct(column.type) and column.type.num_fields == 1:  # a frame of one column
        column = plain(pc.struct_field(column, [0]))
    if is_text(column.type):
        return pd.Series(words(column), dtype=object)
    gaps = column.null_count and (pa.types.is_integer(column.type) or pa.types.is_boolean(column.type))
    return pd.Series(pd.arrays.ArrowExtensionArray(column)) if gaps else None


def mark_of(rows: Any, domain: Domain) -> int:
    """By which this process knows rows in memory again, in any order, in whatever types their numbers are."""
    table = as_table(rows)
    known = {name: _known(rows[name] if table is None else table.column(name)) for name in needed_columns(domain)}
    hashes = pd.util.hash_pandas_object(pd.DataFrame(known), index=False, hash_key=_KEY)
    return int(hashes.to_numpy().sum()) ^ len(hashes)


def _known(column: Any) -> pd.Series:
    """Numbers, truths and days as floats, others as they read. It runs after the charge: no cell may stop it."""
    held = column if isinstance(column, pa.ChunkedArray) else found_array(column)
    held = plain(pa.chunked_array([held]) if isinstance(held, pa.Array) else held) if held is not None else None
    if held is not None and is_text(held.type):
        return pd.Series(words(held), dtype=object)
    if held is not None and (pa.types.is_date(held.type) or pa.types.is_timestamp(held.type)):
        held = in_days(held)
    if held is not None and (is_number(held.type) or pa.types.is_boolean(held.type)):
        return pd.Series(held.cast(pa.float64(), safe=False).to_numpy())
    return pd.Series(texts(column.to_pandas() if isinstance(column, pa.ChunkedArray) else column), dtype=object)


def bounds_of_rows(rows: NDArray[np.float64]) -> list[tuple[float, float]]:
    """Bounds read off the rows themselves: **only where nobody is protected**."""
    low, high = rows.min(axis=0), rows.max(axis=0)
    room = np.maximum(np.maximum(np.abs(low), np.abs(high)), 1.0) * 1e-6  # of columns with one value
    return list(zip(low - room, high + room, strict=True))


def domain_of_numbers(names: list[str], bounds: Any, label: Mapping[str, Any]) -> Domain:
    """A Domain of plain numbers between bounds: one pair for all columns, or one for each."""
    pairs = np.asarray(bounds, dtype=np.float64)
    if pairs.shape not in ((2,), (len(names), 2)):
        raise UsageError(f"bounds must be a pair (lower, upper), or one for each of the {len(names)} columns of X")
    columns = {
        name: {"kind": "numeric", "lower": float(low), "upper": float(high)}
        for name, (low, high) in zip(names, np.broadcast_to(pairs, (len(names), 2)), strict=True)
    }
    content = {
        "label": label,
        "columns": columns,
        "norm_bound": float(np.sqrt(len(names) + 1)),  # no row is clipped
    }
    return parse(Domain, content, "domain")
