"""Frames as lakes: pandas, Polars, Arrow and DuckDB in memory, Dask wherever its partitions are."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from daskrado.errors import DataError, UsageError
from daskrado.lake.fingerprint import ColumnFacts, fingerprint
from daskrado.lake.scan import Lake
from daskrado.table.arrow_arrays import as_table, plain
from daskrado.table.domain import BooleanColumn, Domain
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


def open_frame(
    source: Any, domain: Domain, *, label: bool = True, ids: bool = False, strict: bool = False, empty: bool = False
) -> Lake:
    """Check a frame against the Domain and cut it into partitions; see ``scan.open_lake``."""
    import pandas as pd

    columns = needed_columns(domain, label=label, ids=ids)
    table, declared = as_table(source), None if strict else domain
    if table is not None or isinstance(source, pd.DataFrame):
        _check_columns(source.columns if table is None else pd.Index(table.column_names), columns)
        table = to_arrow(source, columns, declared) if table is None else table
        facts = [_facts(table)]
        slices = [table.slice(at, _SLICE_ROWS) for at in range(0, table.num_rows, _SLICE_ROWS)]
        parts = [FramePartition(f"slice {i}", part, part.num_rows, f"slice-{i}") for i, part in enumerate(slices)]
        size, schemas = table.nbytes, [table.schema]
    elif hasattr(source, "to_delayed") and hasattr(source, "npartitions"):
        import dask

        _check_columns(source.columns, columns)
        convert = dask.delayed(partial(to_arrow, need=columns, domain=declared))
        tables = [convert(part) for part in source.to_delayed()]
        described = dask.compute(*[dask.delayed(_describe)(table) for table in tables])
        facts = [d[1] for d in described]
        schemas = [d[2] for d in described]
        size = sum(d[3] for d in described)
        token = hashlib.blake2b(str(source.dask.keys()).encode(), digest_size=8).hexdigest()
        parts = [
            FramePartition(f"partition {i}", table, d[0], f"{token}-{i}")
            for i, (table, d) in enumerate(zip(tables, described, strict=True))
            if d[0]
        ]
    else:
        raise UsageError(
            "a lake is a path, a list of paths, a table of {delta: ...} or {iceberg: ...}, or a frame of pandas, "
            f"Polars, Arrow, DuckDB or Dask, not {type(source).__name__}"
        )
    rows = sum(part.rows for part in parts)
    if rows == 0 and not empty:
        raise DataError("the DataFrame has zero rows")
    for schema, fact in zip(schemas, facts, strict=True):
        for name in columns:
            if name not in schema.names:
                raise DataError(f"DataFrame: column {name!r} is missing in a partition (it is in the frame's meta)")
            if (problem := type_problem(domain, name, schema.field(name).type)) is not None:
                raise DataError(f"DataFrame: column {name!r} {problem}")
            if strict and fact[name].nulls and not may_be_null(domain, name):
                raise DataError(f"DataFrame: column {name!r} holds nulls, and its null policy is error")
    return Lake(tuple(parts), rows, size, fingerprint(rows, facts), schemas[0])


def to_arrow(frame: pd.DataFrame, need: Sequence[str], domain: Domain | None = None) -> pa.Table:
    """A pandas frame as an Arrow table; as everywhere in pandas, NaN stands for a missing value.

    A column that is not needed and has no one type is left out; a needed one is refused, or read as the ``domain``
    declares it: pandas finds types in values, and one odd value must not change, or refuse, all others. Arrow's own
    words are never passed on: they may quote a cell.
    """
    arrays = {}
    for name in map(str, frame.columns):
        column = frame[name] if name in frame.columns else None
        if domain is not None and column is not None and name == domain.id and column.dtype.kind == "f":
            column = _declared(domain, name, column)  # whole numbers, but for a null among them
        try:
            arrays[name] = pa.Array.from_pandas(column)
        except (pa.ArrowException, OverflowError, KeyError, TypeError):
            if name in need and domain is None:
                raise DataError(f"DataFrame: column {name!r} holds values of several types") from None
            if name in need and domain is not None:
                arrays[name] = pa.Array.from_pandas(_declared(domain, name, column))
    return pa.table(arrays)


def _declared(domain: Domain, name: str, column: Any) -> Any:
    """The values of a column of no one type that are of its declared one, the others as nulls; texts as they read."""
    import pandas as pd

    example: Any = (*domain.label.values, 0.0)[0]  # a number, where the label has a threshold
    if name in domain.columns:
        spec = domain.columns[name]
        values = getattr(spec, "values", None)  # of categories, and of truths that are written as something else
        example = values[0] if values else isinstance(spec, BooleanColumn) or 0.0
    if name == domain.id:
        numbers = pd.to_numeric(column, errors="coerce")
        whole = numbers.notna().sum() == column.notna().sum() and bool((numbers.dropna() % 1 == 0).all())
        return numbers.astype("Int64") if whole else column.map(str, na_action="ignore")
    if isinstance(example, str):
        return column.map(str, na_action="ignore")
    if isinstance(example, bool):
        return column.map(lambda value: value if isinstance(value, bool) else None).astype("boolean")
    return pd.to_numeric(column, errors="coerce")


def _check_columns(have: Any, need: Sequence[str]) -> None:
    if not have.is_unique:
        raise DataError(f"DataFrame: column {have[have.duplicated()][0]!r} is there twice")
    missing = [name for name in need if name not in have]
    if missing:
        raise DataError(f"DataFrame: column {missing[0]!r} is missing (it has {', '.join(map(str, have[:20]))})")


def _describe(table: pa.Table) -> tuple[int, dict[str, ColumnFacts], pa.Schema, int]:
    return table.num_rows, _facts(table), table.schema, table.nbytes


def _facts(table: pa.Table) -> dict[str, ColumnFacts]:
    """Facts of plain columns, as a file's footer would have them."""
    facts = {}
    for name in table.column_names:
        column = plain(table.column(name))
        if pa.types.is_nested(column.type):
            continue
        try:
            extremes = pc.min_max(column).as_py()
        except (pa.ArrowNotImplementedError, ValueError):  # an odd type, a date beyond Python's calendar
            facts[name] = ColumnFacts(column.null_count, known=column.null_count == len(column))
            continue
        facts[name] = ColumnFacts(column.null_count, extremes["min"], extremes["max"])
    return facts
