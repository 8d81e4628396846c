"""What to do where a column's type is not what the Domain says: the way out that an error names."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from daskrado.table.label import Scalar


def is_text(kind: pa.DataType) -> bool:
    """Whether a column holds text, perhaps as a dictionary."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def is_number(kind: pa.DataType) -> bool:
    """Whether a column holds numbers, perhaps as a dictionary."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def kind_hint(kind: pa.DataType) -> str:
    """Which kind of column such a type can be, or how to read it in another way."""
    if is_text(kind):
        return (
            "; say kind: categorical with its values, or, where it holds numbers, dates or truths as text, ingest "
            "the source again with --missing for each mark that is none"
        )
    if is_number(kind):
        return "; say kind: numeric with lower and upper (0 and 1 for a truth), or categorical with values: [0, 1]"
    if pa.types.is_boolean(kind):
        return "; say kind: boolean"
    if pa.types.is_temporal(kind):
        return "; say kind: date, with dates as bounds"
    return "; leave it out, or convert it before"


def values_hint(values: Sequence[Scalar], kind: pa.DataType) -> str:
    """How to write values that such a column can hold."""
    if is_text(kind) and any(isinstance(value, bool) for value in values):
        return "; YAML reads yes, no, on, off, true and false as truths: quote them"
    if is_text(kind):
        return "; quote them, as text"
    if is_number(kind) and any(isinstance(value, bool | str) for value in values):
        return "; write numbers, without quotes"
    if pa.types.is_boolean(kind):
        return "; write true and false, without quotes"
    return kind_hint(kind)
