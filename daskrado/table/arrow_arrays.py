"""Between Arrow and numpy, without pandas.

Arrow's own conversions (``pa.array``, ``pa.scalar``, ``to_numpy``) import pandas where it is installed. That takes
longer than planning or fitting a small lake, so common types go by their buffers and only the others by these.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, time, timedelta
from typing import Any
from weakref import WeakSet

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from daskrado.errors import UsageError
from daskrado.table.label import Scalar
from daskrado.table.type_hints import is_text

_READ: WeakSet[Any] = WeakSet()  # streams that were read
_DAY = {"s": 86_400.0, "ms": 86_400e3, "us": 86_400e6, "ns": 86_400e9}


def speaks_arrow(source: Any) -> bool:
    """Whether a frame speaks Arrow's C stream (Polars, DuckDB, Arrow's own) or is an Arrow dataset.

    pandas is none of them here: a NaN means "missing" there and nowhere else.
    """
    library = type(source).__module__.partition(".")[0]
    return library != "pandas" and (
        hasattr(source, "__arrow_c_stream__") or (library == "pyarrow" and hasattr(source, "to_table"))
    )


def is_stream(source: Any) -> bool:
    """Whether a frame is a stream of batches, which can be read once only."""
    return speaks_arrow(source) and type(source).__name__.endswith(("Reader", "Stream"))


def as_table(source: Any) -> pa.Table | None:
    """A frame that speaks Arrow as an Arrow table; None for others. A stream that was read here before is refused."""
    if isinstance(source, pa.Table) or not speaks_arrow(source):
        return source if isinstance(source, pa.Table) else None
    if is_stream(source):
        if source in _READ:  # it would have no rows, without a word
            raise UsageError(
                "a stream of Arrow batches can be read once, and this one was read before; give a table: read_all()"
            )
        _READ.add(source)
    return pa.table(source) if hasattr(source, "__arrow_c_stream__") else source.to_table()


def plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column without dictionaries and views of text: Arrow compares and looks up plain values only."""
    if pa.types.is_dictionary(column.type):
        parts = [pa.DictionaryArray.from_arrays(part.indices, _text(part.dictionary)) for part in column.chunks]
        kind = column.type.value_type
        column = pa.chunked_array(
            [part.dictionary_decode() for part in parts], pa.string() if pa.types.is_string_view(kind) else kind
        )
    return _text(column)


def without_views(table: pa.Table) -> pa.Table:
    """A table whose texts and bytes are plain: Arrow picks rows of no views."""
    for place, field in enumerate(table.schema):
        text, binary = pa.types.is_string_view(field.type), pa.types.is_binary_view(field.type)
        if text or binary:
            kind = pa.string() if text else pa.binary()
            table = table.set_column(place, field.with_type(kind), table.column(place).cast(kind))
    return table


def _text(data: Any) -> Any:
    return data.cast(pa.string()) if pa.types.is_string_view(data.type) else data


def as_text(value: Any) -> str:
    """A value as it reads: truths and days as folders are named, 7.0 as 7, nothing but Unicode."""
    if isinstance(value, bool | np.bool_):
        return str(value).lower()
    try:
        if isinstance(value, datetime) and value == datetime.combine(value.date(), time(), value.tzinfo):
            return value.date().isoformat()
        value = value.total_seconds() if isinstance(value, timedelta) else value
        whole = isinstance(value, float) and value.is_integer()
        return str(int(value) if whole else value).encode("utf-8", "replace").decode()
    except Exception:  # a number of thousands of digits, an object without words, the year 20000: no cell stops a run
        return ""


def as_texts(data: pa.ChunkedArray) -> pa.ChunkedArray:
    """The values of a column of any type as they read, each different one read once."""
    coded = data.combine_chunks().dictionary_encode()
    known = coded.dictionary
    texts = words(known) if is_text(known.type) else [None if v is None else as_text(v) for v in known.to_pylist()]
    return pa.chunked_array([pa.array(texts, pa.string()).take(coded.indices)])


def words(data: pa.Array | pa.ChunkedArray) -> list[str | None]:
    """Texts as Python has them; bytes that are no text are written out, as in \\xff: no cell stops a run."""
    known = data.cast(pa.large_binary()).to_pylist()
    return [None if cell is None else cell.decode(errors="backslashreplace") for cell in known]


def in_days(data: pa.Array) -> pa.Array:
    """Dates and moments as days since 1970."""
    if pa.types.is_date32(data.type):
        return data.cast(pa.int32()).cast(pa.float64())
    # By whole numbers of the column's own unit: no value, however far or fine, is refused or cut.
    unit = "ms" if pa.types.is_date64(data.type) else data.type.unit
    return pc.divide(data.cast(pa.int64()).cast(pa.float64(), safe=False), _DAY[unit])


def to_numpy(data: pa.Array) -> NDArray[Any]:
    """A column as a numpy array that must not be written to; nulls are NaN or None."""
    if data.null_count == 0 and pa.types.is_boolean(data.type):
        return np.from_dlpack(data.cast(pa.uint8())).view(np.bool_)
    if data.null_count == 0 and (pa.types.is_integer(data.type) or pa.types.is_floating(data.type)):
        return np.asarray(np.from_dlpack(data))
    return np.asarray(data.to_numpy(zero_copy_only=False))


def with_minus_one(index: pa.Array) -> pa.Array:
    """Places of 32 bits, -1 for null."""
    return pc.fill_null(index, _of(pa.int32(), 1, np.array([-1], dtype=np.int32))[0])


def null_mask(data: pa.Array) -> NDArray[np.bool_]:
    """Which items are null."""
    if data.null_count == 0:
        return np.zeros(len(data), dtype=bool)
    return to_numpy(data.is_null())


def trimmed(data: pa.Array) -> pa.Array:
    """Texts without blanks (space, tab, line end) around them, byte by byte: what is no text is no error."""
    text = pa.types.is_string(data.type) or pa.types.is_large_string(data.type)
    return pc.ascii_trim_whitespace(data) if text else data


def places(data: pa.Array | pa.ChunkedArray, values: pa.Array) -> Any:
    """Each item's place in ``values``, null for none. For Arrow -0.0 is another number than 0.0; not here."""
    if pa.types.is_float16(data.type):  # Arrow cannot look these up
        data, values = data.cast(pa.float32()), values.cast(pa.float32())
    if pa.types.is_floating(data.type):
        data, values = (pc.add(numbers, pa.scalar(0.0, data.type)) for numbers in (data, values))
    return pc.index_in(data, value_set=values)


def places_or_none(data: pa.Array, values: Sequence[Scalar]) -> NDArray[np.int32] | None:
    """Each item's place in ``values``, -1 for none; None where the column's type cannot hold them."""
    if pa.types.is_null(data.type):
        return np.full(len(data), -1, dtype=np.int32)
    wanted = value_set(values, data.type)
    if wanted is None:
        return None
    return np.array(to_numpy(with_minus_one(places(data, wanted))), dtype=np.int32)


def value_set(values: Iterable[Scalar], kind: pa.DataType) -> pa.Array | None:
    """Declared values as an Arrow array of a column's type, or None where they cannot be of that type."""
    target = kind.value_type if pa.types.is_dictionary(kind) else kind
    items = list(values)
    text = any(isinstance(v, str) for v in items)
    if text != (pa.types.is_string(target) or pa.types.is_large_string(target) or pa.types.is_string_view(target)):
        return None
    if any(isinstance(v, bool) for v in items) != pa.types.is_boolean(target):
        return None
    try:
        return _array(items, target)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return None


def _array(items: Sequence[Any], target: pa.DataType) -> pa.Array:
    """What ``pa.array`` gives."""
    kinds = set(map(type, items))
    if kinds == {str}:
        texts = [item.encode() for item in items]
        ends = np.cumsum([0, *map(len, texts)]).astype(np.int32)
        return _of(pa.string(), len(items), ends, b"".join(texts)).cast(target)
    if kinds == {bool}:
        return _of(pa.bool_(), len(items), np.packbits(items, bitorder="little"))
    if kinds == {int} and pa.types.is_integer(target) and all(-(2**63) <= item < 2**63 for item in items):
        return _of(pa.int64(), len(items), np.array(items, dtype=np.int64)).cast(target)
    return pa.array(items, type=target)


def _of(kind: pa.DataType, length: int, *buffers: Any) -> pa.Array:
    """An array without nulls from its plain buffers."""
    return pa.Array.from_buffers(kind, length, [None, *map(pa.py_buffer, buffers)])
