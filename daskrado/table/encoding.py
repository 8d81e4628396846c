"""From Arrow columns to encoded rows, as the Domain says: scale by public bounds, one-hot, constant feature.

Problems with the data are returned as values that name columns; they never hold a row's value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from daskrado.table import inner_loops as loops
from daskrado.table.arrow_arrays import plain, to_numpy, value_set, with_minus_one
from daskrado.table.domain import BooleanColumn, CategoricalColumn, Domain, NumericColumn, Scalar
from daskrado.table.fourier_features import fourier_features
from daskrado.table.lattice import Lattice, clip_rows, just_inside


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """Why a table cannot be used: which column, and what is wrong.

    Never a value from a row, and never how many rows: a refused run costs nothing, so a count in its message would be
    a free query.
    """

    column: str
    what: str

    def __str__(self) -> str:
        return f"column {self.column!r}: {self.what}"


def places(data: pa.Array | pa.ChunkedArray, values: pa.Array) -> Any:
    """Each item's place in ``values``, null for none. For Arrow -0.0 is another number than 0.0; not here."""
    if pa.types.is_float16(data.type):  # Arrow cannot look these up
        data, values = data.cast(pa.float32()), values.cast(pa.float32())
    if pa.types.is_floating(data.type):
        data, values = (pc.add(numbers, pa.scalar(0.0, data.type)) for numbers in (data, values))
    return pc.index_in(data, value_set=values)


def type_problem(domain: Domain, name: str, kind: pa.DataType) -> str | None:
    """Why a column of this Arrow type does not fit the Domain; None if it does."""
    if pa.types.is_null(kind):
        return None  # an all-null file: the null policy decides
    if name == domain.id:
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        ok = pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)
        return None if ok else f"is {kind}, but a record id must be an integer or a string"
    if name == domain.label.column:
        values = [domain.label.positive, domain.label.negative]
        return (
            None if value_set(values, kind) is not None else f"is {kind}, but the Domain's label values are {values}"
        )
    column = domain.columns[name]
    if isinstance(column, NumericColumn):
        ok = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
        return None if ok else f"is {kind}, but the Domain says numeric"
    if isinstance(column, BooleanColumn):
        return None if pa.types.is_boolean(kind) else f"is {kind}, but the Domain says boolean"
    if value_set(column.values, kind) is None:
        return f"is {kind}, but the Domain's values are {list(column.values)}"
    return None


@dataclass(slots=True)
class EncodedTable:
    """One table's columns as plain arrays, from which blocks of encoded rows are cut."""

    domain: Domain
    length: int
    labels: NDArray[np.int8] | None = None
    ids: NDArray[np.uint64] | NDArray[np.object_] | None = None
    groups: NDArray[np.int32] | None = None
    problems: list[Problem] = field(default_factory=list)
    _values: dict[str, NDArray[np.float64] | NDArray[np.int32]] = field(default_factory=dict)
    _nulls: dict[str, NDArray[np.bool_]] = field(default_factory=dict)
    _sources: loops.Sources | None = None

    def block(self, start: int, stop: int, out: NDArray[np.float64]) -> NDArray[np.float64]:
        """Encode rows start..stop into the first rows of ``out`` (column-major), before clipping.

        NaN and infinity are found here, while the column is at hand: see ``problems`` afterwards.
        """
        rows = out[: stop - start]
        if self.domain.kernel is not None:
            plain = np.empty((stop - start, len(self.domain.column_features)), order="F")
            self._columns(start, stop, plain)
            fourier_features(self.domain.kernel, plain, rows)
            at = self.domain.kernel.features
        else:
            at = self._columns(start, stop, rows)
        if self.domain.intercept:
            rows[:, at] = self.domain.intercept
        return rows

    def on_grid(self, start: int, stop: int, out: NDArray[np.float64], lattice: Lattice) -> NDArray[np.float64]:
        """The same rows clipped and truncated onto the grid."""
        steps = math.ldexp(1.0, lattice.bits)
        if self._at_once(start, stop, out, lattice.norm_bound, steps, whole=True):
            return out[: stop - start]
        return lattice.quantise(self.block(start, stop, out))

    def clipped(self, start: int, stop: int, out: NDArray[np.float64], norm_bound: float) -> NDArray[np.float64]:
        """The same rows clipped, off the grid."""
        if self._at_once(start, stop, out, norm_bound, norm_bound, whole=False):
            return out[: stop - start]
        return clip_rows(self.block(start, stop, out), norm_bound)

    def _at_once(
        self, start: int, stop: int, out: NDArray[np.float64], norm_bound: float, steps: float, *, whole: bool
    ) -> bool:
        """Encode and clip in one trip through memory; False where loops are not compiled, or a row is unusable."""
        encode = loops.encoder()
        if encode is None or self.domain.kernel is not None:
            return False
        if not (0 <= start <= stop <= self.length and stop - start <= len(out)):
            return False
        if out.shape[1] != self.domain.width or out.dtype != np.float64 or not out.T.flags.carray:
            return False
        self._sources = self._sources or self._as_sources()
        inward = just_inside(self.domain.width)
        return encode(*self._sources.arrays, start, stop - start, norm_bound, inward, steps, whole, out.T)

    def _as_sources(self) -> loops.Sources:
        sources = loops.Sources(self.length)
        for name, column in self.domain.columns.items():
            values = self._values[name]
            if isinstance(column, NumericColumn) and column.bins is None:
                sources.scaled(values, *scaling(column))
            elif isinstance(column, BooleanColumn):
                sources.scaled(values)
            else:
                sources.one_hot(values, len(column.feature_names(name)))
            if column.fill is not None:
                sources.flag(self._nulls[name])
        if self.domain.intercept:
            sources.constant(self.domain.intercept)
        return sources

    def _columns(self, start: int, stop: int, rows: NDArray[np.float64]) -> int:
        """Encode the columns themselves; returns how many features they fill."""
        at = 0
        for name, column in self.domain.columns.items():
            piece = self._values[name][start:stop]
            if isinstance(column, NumericColumn) and column.bins is None:
                scale_column(*scaling(column), piece, rows[:, at])
                _check_finite(self, name, piece)
                at += 1
            elif isinstance(column, BooleanColumn):
                rows[:, at] = piece
                at += 1
            else:
                width = len(column.feature_names(name))
                rows[:, at : at + width] = 0.0
                rows[np.arange(len(rows)), at + piece.astype(np.intp)] = 1.0
                at += width
            if column.fill is not None:
                rows[:, at] = self._nulls[name][start:stop]
                at += 1
        return at


def scaling(column: NumericColumn) -> tuple[float, float]:
    """Factor and offset that map [lower, upper], transformed if the column says so, onto [-1, 1]."""
    lower, upper = column.lower, column.upper
    if column.transform == "log1p":
        lower, upper = float(np.log1p(lower)), float(np.log1p(upper))
    return 2.0 / (upper - lower), (upper + lower) / (upper - lower)


def scale_column(factor: float, offset: float, values: NDArray[Any], out: NDArray[np.float64]) -> None:
    """``values * factor - offset``; what lies beyond the bounds is clipped to [-1, 1]."""
    with np.errstate(over="ignore"):  # beyond the bounds anyway
        np.multiply(values, factor, out=out)
    if offset:
        out -= offset
    np.clip(out, -1.0, 1.0, out=out)


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

    With ``missing_labels`` a null label becomes 0; else it is a problem.
    """
    out = EncodedTable(domain, table.num_rows)
    for name, column in domain.columns.items():
        data = _flat(table.column(name))
        if column.fill is not None:
            out._nulls[name] = _null_mask(data)
        elif data.null_count:
            out.problems.append(Problem(name, "null, and its null policy is error"))
            continue
        if isinstance(column, NumericColumn):
            _numeric(out, name, column, data)
        elif isinstance(column, BooleanColumn):
            out._values[name] = np.where(_truths(column, data), 1.0, -1.0)
        else:
            _categorical(out, name, column, data)
    if label:
        out.labels = _labels(out, _flat(table.column(domain.label.column)), missing_labels)
    if ids and domain.id is not None:
        out.ids = _ids(out, _flat(table.column(domain.id)))
    if out.problems:  # no block will be cut: tell the rest, too
        for name, values in out._values.items():
            if isinstance(domain.columns[name], NumericColumn) and values.dtype == np.float64:
                _check_finite(out, name, values)
    return out


def _flat(column: pa.ChunkedArray) -> pa.Array:
    column = plain(column)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _null_mask(data: pa.Array) -> NDArray[np.bool_]:
    if data.null_count == 0:
        return np.zeros(len(data), dtype=bool)
    return to_numpy(data.is_null())


def _all_null(data: pa.Array) -> bool:
    return len(data) > 0 and data.null_count == len(data)


def _truths(column: BooleanColumn, data: pa.Array) -> NDArray[np.bool_]:
    if data.null_count == 0:
        return to_numpy(data)
    truth = np.full(len(data), bool(column.fill))
    if not _all_null(data):
        truth[~_null_mask(data)] = to_numpy(data.drop_null())
    return truth


def _numeric(out: EncodedTable, name: str, column: NumericColumn, data: pa.Array) -> None:
    if pa.types.is_decimal(data.type):
        data = data.cast(pa.float64())
    if data.null_count:
        nulls = out._nulls[name]
        values = np.full(out.length, float(column.fill or 0.0))
        if not _all_null(data):
            values[~nulls] = to_numpy(data.drop_null())
    else:
        values = to_numpy(data)
    # Always float64: a row must be encoded alike whatever its neighbours in the file look like.
    values = values.astype(np.float64, copy=False)
    if column.bins is not None:
        _check_finite(out, name, values)
        out._values[name] = np.digitize(values, column.bins).astype(np.int32)
    elif column.transform == "log1p":
        _check_finite(out, name, values)
        out._values[name] = np.log1p(np.maximum(values, column.lower))
    else:
        out._values[name] = values


def _check_finite(out: EncodedTable, name: str, values: NDArray[Any]) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        fine = np.isfinite(np.dot(values, values))  # no copy; squares may overflow, so look again
    if not fine and not np.isfinite(values).all():
        problem = Problem(name, "NaN or infinite")
        if problem not in out.problems:
            out.problems.append(problem)


def _categorical(out: EncodedTable, name: str, column: CategoricalColumn, data: pa.Array) -> None:
    values = list(column.values)
    if _all_null(data):
        index = np.full(out.length, -1, dtype=np.int32)
    else:
        wanted = value_set(values, data.type)
        if wanted is None:
            out.problems.append(Problem(name, f"is {data.type}, but the Domain's values are {values}"))
            return
        found = places(data, wanted)
        index = to_numpy(with_minus_one(found)).astype(np.int32)
    if data.null_count:
        index[out._nulls[name]] = values.index(column.fill) if column.fill in values else -1
    unknown = index < 0
    if not column.other and unknown.any():
        out.problems.append(Problem(name, f"outside {values}, and the Domain declares no other"))
        return
    index[unknown] = len(values)
    out._values[name] = index


def encode_groups(
    out: EncodedTable, data: pa.ChunkedArray, column: str, values: Sequence[Scalar], *, optional: bool = False
) -> None:
    """Fill ``out.groups`` with each row's place in ``values``; a row of no declared group is a problem.

    A null is no group, -1, if ``optional``.
    """
    flat = _flat(data)
    wanted = value_set(values, flat.type)
    if wanted is None:
        out.problems.append(Problem(column, f"is {flat.type}, but the groups are {list(values)[:5]}"))
        return
    index = places(flat, wanted)
    if optional:
        index = pc.if_else(flat.is_null(), pa.scalar(-1, index.type), index)
    if index.null_count:
        out.problems.append(Problem(column, f"outside the {len(values)} declared groups"))
        return
    out.groups = to_numpy(index).astype(np.int32)


def _labels(out: EncodedTable, data: pa.Array, missing: bool) -> NDArray[np.int8]:
    label = out.domain.label
    if missing and (nulls := _null_mask(data)).any():
        labels = np.zeros(out.length, dtype=np.int8)
        if not nulls.all():
            known = _labels(out, data.drop_null(), False)
            if len(known):
                labels[~nulls] = known
        return labels
    pair = [label.positive, label.negative]
    wanted = value_set(pair, data.type)
    if wanted is None:
        out.problems.append(Problem(label.column, f"is {data.type}, but the Domain's label values are {pair}"))
        return np.zeros(0, dtype=np.int8)
    if pa.types.is_boolean(data.type) and not data.null_count:
        return np.where(to_numpy(data) == label.positive, np.int8(1), np.int8(-1))
    index = places(data, wanted)
    if index.null_count:
        out.problems.append(Problem(label.column, f"label outside {pair}"))
        return np.zeros(0, dtype=np.int8)
    return np.int8(1) - np.int8(2) * to_numpy(index).astype(np.int8)


def _ids(out: EncodedTable, data: pa.Array) -> NDArray[np.uint64] | NDArray[np.object_]:
    if data.null_count:
        out.problems.append(Problem(str(out.domain.id), "record id is null"))
        return np.zeros(0, dtype=np.uint64)
    values = to_numpy(data)
    return values.astype(np.uint64) if np.issubdtype(values.dtype, np.integer) else values.astype(object)
