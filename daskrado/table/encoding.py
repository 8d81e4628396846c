"""From Arrow columns to encoded rows, as the Domain says: scale by public bounds, one-hot, constant feature.

Problems with the data are returned as values that name columns; they never hold a row's value.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from daskrado.table import inner_loops as loops
from daskrado.table.arrow_arrays import (
    as_text,
    as_texts,
    in_days,
    null_mask,
    places_or_none,
    plain,
    to_numpy,
    trimmed,
    value_set,
    words,
)
from daskrado.table.domain import BooleanColumn, CategoricalColumn, DateColumn, Domain, NumericColumn
from daskrado.table.encoded_table import EncodedTable, Labels
from daskrado.table.label import Scalar
from daskrado.table.label_sides import MISSING, OUTSIDE, label_classes, label_numbers, label_problem, label_sides
from daskrado.table.type_hints import is_number, is_text, kind_hint, values_hint
from daskrado.table.yaml_file import shown

_FEW_EDGES = 200  # up to so many, comparing with all of them is faster than a search


def type_problem(domain: Domain, name: str, kind: pa.DataType) -> str | None:
    """Why a column of this Arrow type does not fit the Domain; None if it does."""
    if pa.types.is_null(kind):
        return None  # an all-null file: the null policy decides
    if name == domain.id:
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        ok = pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)
        return None if ok else f"is {kind}, but a record id must be an integer or a string"
    if name == domain.label.column:
        return label_problem(domain.label, kind)
    column = domain.columns[name]
    if isinstance(column, DateColumn) or pa.types.is_temporal(kind):
        if not isinstance(column, DateColumn):
            return f"is {kind}, but the Domain says {column.kind}; say kind: date, with dates as bounds"
        ok = pa.types.is_date(kind) or pa.types.is_timestamp(kind)
        return None if ok else f"is {kind}, but the Domain says date{kind_hint(kind)}"
    if isinstance(column, NumericColumn):
        ok = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
        return None if ok else f"is {kind}, but the Domain says numeric{kind_hint(kind)}"
    if isinstance(column, BooleanColumn):
        return _boolean_problem(column, kind)
    if value_set(column.values, kind) is None:
        return f"is {kind}, but the Domain's values are {shown(column.values)}{values_hint(column.values, kind)}"
    return None


def _boolean_problem(column: BooleanColumn, kind: pa.DataType) -> str | None:
    if column.values is None:
        ok = pa.types.is_boolean(kind)
        hint = "; say what stands for false and true, as in values: [0, 1] or values: [N, Y]"
        hint = hint if is_text(kind) or is_number(kind) else kind_hint(kind)
        return None if ok else f"is {kind}, but the Domain says boolean{hint}"
    ok = value_set(column.values, kind) is not None
    said = f"is {kind}, but the Domain's values for false and true are {shown(column.values)}"
    return None if ok else said + values_hint(column.values, kind)


def may_be_null(domain: Domain, name: str) -> bool:
    """Whether the Domain allows a null in a column."""
    if name == domain.label.column:
        return domain.label.nulls != "error"
    return name in domain.columns and domain.columns[name].fill is not None


def needed_columns(domain: Domain, *, label: bool = True, ids: bool = False) -> list[str]:
    """The lake columns that encoding reads."""
    names = list(domain.columns)
    if label:
        names.append(domain.label.column)
    if ids and domain.id is not None:
        names.append(domain.id)
    return names


def encode_table(
    domain: Domain, table: pa.Table, *, label: bool = True, ids: bool = False, missing_labels: bool = False
) -> EncodedTable:
    """Prepare a table for cutting encoded blocks; collects every problem instead of stopping at the first.

    With ``missing_labels`` a null label is 0 and no problem.
    """
    out = EncodedTable(domain, table.num_rows)
    for name, column in domain.columns.items():
        data = _flat(table.column(name))
        nulls = out.nulls[name] = null_mask(data)
        if data.null_count and column.fill is None:
            out.fault(name, "null, and its null policy is error", nulls)
        if isinstance(column, NumericColumn):
            _numeric(out, name, column, data)
        elif isinstance(column, BooleanColumn):
            out.values[name] = np.where(_truths(out, name, column, data), np.int8(1), np.int8(-1))
        else:
            _categorical(out, name, column, data)
    if label:
        out.labels = _labels(out, _flat(table.column(domain.label.column)), missing_labels)
    if ids and domain.id is not None:
        out.ids = _ids(out, _flat(table.column(domain.id)))
    if out.labels is not None and out.unusable is not None:
        out.labels[out.unusable] = 0
    return out


def _flat(column: pa.ChunkedArray) -> pa.Array:
    column = plain(column)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _all_null(data: pa.Array) -> bool:
    return len(data) > 0 and data.null_count == len(data)


def _truths(out: EncodedTable, name: str, column: BooleanColumn, data: pa.Array) -> NDArray[np.bool_]:
    if column.values is not None:
        index = places_or_none(data, column.values)
        if index is None:
            out.mismatch(name, f"is {data.type}, but the Domain's values are {list(column.values)}")
            return np.zeros(out.length, dtype=bool)
        if (outside := (index < 0) & ~out.nulls[name]).any():
            out.fault(name, f"outside {list(column.values)}", outside)
        return np.where(out.nulls[name], bool(column.fill), index > 0)
    if data.null_count == 0:
        return to_numpy(data)
    truth = np.full(len(data), bool(column.fill))
    if not _all_null(data):
        truth[~null_mask(data)] = to_numpy(data.drop_null())
    return truth


def _numeric(out: EncodedTable, name: str, column: NumericColumn, data: pa.Array) -> None:
    if pa.types.is_decimal(data.type):
        data = data.cast(pa.float64())
    elif pa.types.is_temporal(data.type):
        data = in_days(data)
    if data.null_count:
        values = np.full(out.length, float(column.fill or 0.0))
        if not _all_null(data):
            values[~out.nulls[name]] = to_numpy(data.drop_null())
    else:
        values = to_numpy(data)
    # Always scaled as float64: a row must be encoded alike whatever its neighbours in the file look like.
    if values.dtype != np.float32 or column.bins is not None or column.transform != "none":
        values = values.astype(np.float64, copy=False)
    if column.bins is not None:
        out.values[name] = bin_codes(out.finite(name, values), column.bins)
    elif column.transform == "log1p":
        out.values[name] = np.log1p(np.maximum(out.finite(name, values), column.lower))
    else:
        out.values[name] = values


def bin_codes(values: NDArray[np.float64], edges: Sequence[float]) -> NDArray[np.int32]:
    """How many edges are at most each value: its bin."""
    loop = loops.compiled("bins") if len(edges) <= _FEW_EDGES else None
    if loop is None:
        return np.digitize(values, edges).astype(np.int32)
    loop(
        np.ascontiguousarray(values), np.array(edges, dtype=np.float64), out := np.zeros(len(values), dtype=np.int32)
    )
    return out


def _categorical(out: EncodedTable, name: str, column: CategoricalColumn, data: pa.Array) -> None:
    values = list(column.values)
    index = places_or_none(trimmed(data) if column.trim else data, values)
    if index is None:
        out.mismatch(name, f"is {data.type}, but the Domain's values are {values}")
        return
    nulls = out.nulls[name]
    if data.null_count and column.fill in values:
        index[nulls] = values.index(column.fill)
    unknown = index < 0
    if not column.other and (outside := unknown & ~nulls).any():
        out.fault(name, f"outside {values}, and the Domain declares no other", outside)
    index[unknown] = len(values) if column.other else 0  # 0 in a row that counts as nothing
    out.values[name] = index


def encode_groups(
    out: EncodedTable, data: pa.ChunkedArray, column: str, values: Sequence[Scalar], *, optional: bool = False
) -> None:
    """Fill ``out.groups`` with each row's place in ``values``; a row of no declared group has -1.

    That is a problem, unless it is a null and groups are ``optional``.
    """
    flat = _flat(data)
    index = places_or_none(flat, values)
    if index is None and optional:  # a pandas frame's column, which may hold anything
        index = places_or_none(as_texts(data).combine_chunks(), [as_text(value) for value in values])
    if index is None:
        out.mismatch(column, f"is {flat.type}, but the groups are {list(values)[:5]}")
        return
    outside = (index < 0) & ~null_mask(flat) if optional else index < 0
    if outside.any():
        out.fault(column, f"outside the {len(values)} declared groups", outside, whole_row=False)
    out.groups = index


def _labels(out: EncodedTable, data: pa.Array, missing: bool) -> Labels:
    label = out.domain.label
    if label.target == "number":
        return _label_numbers(out, data, missing)
    if label.target == "classes":
        return _label_classes(out, data, missing)
    if pa.types.is_boolean(data.type) and not data.null_count and isinstance(label.positive, bool):
        truth = to_numpy(data).view(np.int8)
        return 2 * truth - np.int8(1) if label.positive else np.int8(1) - 2 * truth
    found = label_sides(label, data)
    if found is None:
        out.mismatch(label.column, label_problem(label, data.type) or f"is {data.type}")
        return np.zeros(out.length, dtype=np.int8)
    if not missing and label.nulls == "drop" and (absent := found == MISSING).any():
        out.drop(absent)
    outside = found == OUTSIDE if missing or label.nulls == "drop" else abs(found) != 1
    if outside.any():
        out.fault(label.column, f"label outside {label.in_words}", outside)
    return np.where(abs(found) == 1, found, np.int8(0))


def _label_numbers(out: EncodedTable, data: pa.Array, missing: bool) -> Labels:
    label = out.domain.label
    if not pa.types.is_null(data.type) and (problem := label_problem(label, data.type)) is not None:
        out.mismatch(label.column, problem)
        return np.zeros(out.length, dtype=np.int16)
    found = label_numbers(label, data)
    absent = found == MISSING
    if not missing and absent.any():
        if label.nulls == "drop":
            out.drop(absent)
        else:
            out.fault(label.column, f"label outside {label.in_words}", absent)
    return found


def _label_classes(out: EncodedTable, data: pa.Array, missing: bool) -> Labels:
    label = out.domain.label
    found = label_classes(label, data)
    if found is None:
        out.mismatch(label.column, label_problem(label, data.type) or f"is {data.type}")
        return np.zeros(out.length, dtype=np.int8)
    nulls = null_mask(data)
    if not missing and label.nulls == "drop" and nulls.any():
        out.drop(nulls)
    outside = (found == MISSING) & ~nulls if missing or label.nulls == "drop" else found == MISSING
    if outside.any():
        out.fault(label.column, f"label outside {label.in_words}", outside)
    return found


def encode_classes(out: EncodedTable, data: pa.ChunkedArray, classes: Sequence[Scalar]) -> NDArray[np.int64]:
    """The place of each row's label in ``classes``, of two or more; -1 in a row that counts as nothing."""
    flat, name = _flat(data), out.domain.label.column
    index = places_or_none(flat, classes)
    if index is None:
        out.mismatch(name, f"is {flat.type}, but the classes are {list(classes)}")
        return np.full(out.length, -1, dtype=np.int64)
    if (index < 0).any():
        out.fault(name, f"label outside {list(classes)}", index < 0)
    return index.astype(np.int64)


def _ids(out: EncodedTable, data: pa.Array) -> NDArray[np.uint64] | NDArray[np.object_]:
    if data.null_count:
        nulls = null_mask(data)
        out.fault(str(out.domain.id), "record id is null", nulls)
        ids = np.zeros(out.length, dtype=np.uint64 if pa.types.is_integer(data.type) else object)
        if not nulls.all():
            ids[~nulls] = known_ids(data.drop_null())
        return ids
    return known_ids(data)


def known_ids(data: pa.Array) -> NDArray[np.uint64] | NDArray[np.object_]:
    """Record ids without nulls, as numbers or as texts."""
    if pa.types.is_integer(data.type):
        return to_numpy(data).astype(np.uint64)
    try:
        return to_numpy(data).astype(object)
    except (UnicodeDecodeError, pa.ArrowException):  # bytes that are no text name a record all the same
        return np.array(words(data), dtype=object)
