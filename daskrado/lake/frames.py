"""Frames as lakes: pandas, Polars, Arrow and DuckDB in memory, Dask wherever its partitions are."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from daskrado.errors import DataError, UsageError
from daskrado.lake.block_facts import Reading
from daskrado.lake.blocks import PartOfLake
from daskrado.lake.frame_blocks import in_blocks
from daskrado.lake.frame_cells import declared_cells
from daskrado.lake.frame_columns import found_array, free_column, pandas_field, whole_numbers
from daskrado.lake.scan import Lake
from daskrado.table.arrow_arrays import as_table, plain, without_views
from daskrado.table.domain import Domain, NumericColumn
from daskrado.table.encoding import may_be_null, needed_columns, type_problem

if TYPE_CHECKING:
    import pandas as pd
    from dask.delayed import Delayed

_SLICE_ROWS = 1 << 18


@dataclass(frozen=True)
class FramePartition:
    """A slice of a frame: ``content`` is an Arrow table, or a Dask partition that becomes one."""

    name: str
    content: pa.Table | Delayed = field(repr=False)
    rows: int
    identity: str

    def tables(self, columns: Sequence[str]) -> Any:
        """Yield the one table with the wanted columns."""
        if not isinstance(self.content, pa.Table):
            raise TypeError("a Dask partition is resolved by collect before it is read")
        yield 0, self.content.select(columns)


@dataclass(frozen=True)
class _Described:
    """What a footer would say of a table."""

    rows: int
    nulls: dict[str, int]
    schema: pa.Schema
    size: int


def open_frame(
    source: Any, domain: Domain, *, label: bool = True, ids: bool = False, strict: bool = False, empty: bool = False
) -> Lake:
    """Check a frame, or some blocks of one, against the Domain and cut it into partitions; see ``scan.open_lake``."""
    part = source if isinstance(source, PartOfLake) else None
    source = source if part is None else part.source
    columns = needed_columns(domain, label=label, ids=ids)
    parts, described = _cut(source, part, columns, None if strict else domain)
    rows = sum(part.rows for part in parts)
    if rows == 0 and not empty:
        raise DataError("the DataFrame has zero rows")
    for found in described:
        for name in columns:
            if name not in found.schema.names:
                raise DataError(f"DataFrame: column {name!r} is missing in a partition (it is in the frame's meta)")
            if (problem := type_problem(domain, name, found.schema.field(name).type)) is not None:
                raise DataError(f"DataFrame: column {name!r} {problem}")
            if strict and found.nulls[name] and not may_be_null(domain, name):
                raise DataError(f"DataFrame: column {name!r} holds nulls, and its null policy is error")
    size, schema = sum(found.size for found in described), described[0].schema
    reading = Reading() if part is None else Reading(column=part.column, blocks=dict.fromkeys(part.values))
    return Lake(tuple(parts), rows, size, None, schema, reading=reading)


def _cut(
    source: Any, part: PartOfLake | None, columns: Sequence[str], domain: Domain | None
) -> tuple[list[FramePartition], list[_Described]]:
    """The partitions of a frame, and what each table of it is like."""
    import pandas as pd

    table = as_table(source)
    if table is not None or isinstance(source, pd.DataFrame):
        _check_columns(source.columns if table is None else pd.Index(table.column_names), columns)
        table = _chosen(part, to_arrow(source, columns, domain) if table is None else without_views(table))
        slices = [table.slice(at, _SLICE_ROWS) for at in range(0, table.num_rows, _SLICE_ROWS)]
        own = [FramePartition(f"slice {i}", rows, rows.num_rows, f"slice-{i}") for i, rows in enumerate(slices)]
        return own, [_describe(table)]
    if not (hasattr(source, "to_delayed") and hasattr(source, "npartitions")):
        raise UsageError(
            "a lake is a path, a list of paths, a table of {delta: ...} or {iceberg: ...}, or a frame of pandas, "
            f"Polars, Arrow, DuckDB or Dask, not {type(source).__name__}"
        )
    import dask

    _check_columns(source.columns, columns)
    alone = None if part is None else PartOfLake(None, part.column, part.values)  # tasks need no whole frame
    convert = dask.delayed(partial(_converted, alone, columns, domain))
    tables = [convert(piece) for piece in source.to_delayed()]
    described = dask.compute(*[dask.delayed(_describe)(table) for table in tables])
    token = hashlib.blake2b(f"{source.dask.keys()}{alone}".encode(), digest_size=8).hexdigest()
    found = [
        FramePartition(f"partition {i}", table, known.rows, f"{token}-{i}")
        for i, (table, known) in enumerate(zip(tables, described, strict=True))
        if known.rows
    ]
    return found, list(described)


def _converted(part: PartOfLake | None, need: Sequence[str], domain: Domain | None, frame: pd.DataFrame) -> pa.Table:
    return _chosen(part, to_arrow(frame, need, domain))


def _chosen(part: PartOfLake | None, table: pa.Table) -> pa.Table:
    return table if part is None else in_blocks(table, part.column, part.values)


def to_arrow(frame: pd.DataFrame, need: Sequence[str], domain: Domain | None = None) -> pa.Table:
    """A pandas frame as an Arrow table; as everywhere in pandas, NaN stands for a missing value.

    pandas finds types in values, and one odd value must not change, or refuse, all others: a needed column of
    objects, and the label, is read cell by cell as the ``domain`` declares it; without one it is refused where they
    have no one type. Arrow's own words are never passed on: they may quote a cell.
    """
    declared = {} if domain is None else domain.columns
    need = need if domain is None else [*need, domain.label.column]
    arrays, fields = [], []
    for name in (name for name in map(str, frame.columns) if name in frame.columns):
        column = frame[name]
        arrays.append(_needed(domain, name, column) if name in need else free_column(column))
        fields.append(pandas_field(name, arrays[-1], number=isinstance(declared.get(name), NumericColumn)))
    return pa.table(arrays, schema=pa.schema(fields))


def _needed(domain: Domain | None, name: str, column: Any) -> pa.Array:
    """A column that is read: objects cell by cell, as declared; other dtypes as they are.

    So are texts where something else is declared: Dask makes texts of objects, all of them.
    """
    import pandas as pd

    if isinstance(column.dtype, pd.CategoricalDtype) and column.cat.categories.dtype == object:
        column = column.astype(object)
    found = None if domain is not None and column.dtype == object else found_array(column)
    if domain is not None and found is not None and isinstance(column.dtype, pd.StringDtype):
        found = found if type_problem(domain, name, found.type) is None else None
    if found is None and domain is None:
        raise DataError(f"DataFrame: column {name!r} holds values of several types")
    if domain is None or found is not None:
        return whole_numbers(found) if domain is not None and name == domain.id else found
    return declared_cells(domain, name, column)


def _check_columns(have: Any, need: Sequence[str]) -> None:
    if not have.is_unique:
        raise DataError(f"DataFrame: column {have[have.duplicated()][0]!r} is there twice")
    missing = [name for name in need if name not in have]
    if missing:
        raise DataError(f"DataFrame: column {missing[0]!r} is missing (it has {', '.join(map(str, have[:20]))})")


def _describe(table: pa.Table) -> _Described:
    nulls = {name: plain(table.column(name)).null_count for name in table.column_names}
    return _Described(table.num_rows, nulls, table.schema, table.nbytes)
