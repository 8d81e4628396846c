"""Values that a Domain declares, as Arrow arrays of a column's type."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from daskrado.table.domain import Scalar


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
    """What ``pa.array`` gives. That imports pandas, for which a plan would wait longer than for all else."""
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
