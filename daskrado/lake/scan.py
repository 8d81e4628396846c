"""Finding a lake's Parquet files, reading every footer, and refusing early what cannot be used."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa

from daskrado.errors import DataError, UsageError
from daskrado.lake.block_facts import Reading
from daskrado.lake.blocks import PartOfLake, grouped
from daskrado.lake.files import enclosing_lakes, find_files
from daskrado.lake.fingerprint import ColumnFacts, block_fingerprint, file_marks, identity, table_mark
from daskrado.lake.folder_values import folder_readers
from daskrado.lake.parquet_files import Footer, ParquetPartition, footer_problems, read_footer
from daskrado.lake.snapshots import TableVersion, table_address
from daskrado.table.domain import Domain
from daskrado.table.encoding import needed_columns

_ADDRESSES = (str, os.PathLike, list, tuple, Mapping, PartOfLake)


@dataclass(frozen=True)
class Lake:
    """A scanned lake: its partitions, its row count, and what the ledger knows it by, which is no fact about rows.

    ``rows`` is a fact about private rows: for the overflow guard, not for print.
    """

    partitions: tuple[Any, ...]
    rows: int
    size: int
    fingerprint: str | None  # see daskrado.lake.fingerprint; frames have none
    schema: pa.Schema
    table: TableVersion | None = None  # where the lake is one version of a table
    schemas: tuple[tuple[str, pa.Schema], ...] = field(
        default=(), repr=False
    )  # the different ones, by a file of each
    facts: tuple[dict[str, ColumnFacts], ...] = field(default=(), repr=False)  # of partitions that are whole files
    reading: Reading = field(default_factory=Reading, repr=False)  # what a ledger notes of it

    def __repr__(self) -> str:
        return f"<Lake of {len(self.partitions)} partitions>"

    @property
    def digest(self) -> str:
        """Changes whenever a file is added, removed or overwritten."""
        parts = [getattr(part, "version", part.identity) for part in self.partitions]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    @property
    def folder_columns(self) -> list[str]:
        """The columns that the names of folders hold, not the files."""
        return sorted({name for part in self.partitions for name, _ in getattr(part, "hive", ())})

    def spans(self, column: str) -> dict[str, tuple[int, int] | None] | None:
        """For each partition the smallest and the largest whole number in a column, if no two share more than ends.

        They are what footers say. None where some may overlap; the only partition of a lake needs no span.
        """
        if len(self.partitions) == 1:
            return {self.partitions[0].identity: None}
        facts = [found[column] for found in self.facts if column in found]
        if len(facts) < len(self.partitions) or not all(fact.known and type(fact.smallest) is int for fact in facts):
            return None
        spans = [(fact.smallest, fact.largest) for fact in facts]
        if any(one[1] > other[0] for one, other in itertools.pairwise(sorted(spans))):
            return None
        found: dict[str, tuple[int, int] | None] = {
            part.identity: span for part, span in zip(self.partitions, spans, strict=True)
        }
        return found if len(found) == len(spans) else None

    @property
    def in_memory(self) -> bool:
        """Whether the rows are in this process already: then they stay here, and are never put into tasks."""
        return any(isinstance(getattr(part, "content", None), pa.Table) for part in self.partitions) or any(
            part.filesystem.type_name == "py::fsspec+memory"  # memory://, which no other process sees
            for part in self.partitions
            if isinstance(part, ParquetPartition)
        )


def open_lake(
    source: Any,
    domain: Domain,
    *,
    label: bool = True,
    ids: bool = False,
    columns: Sequence[str] | None = None,
    strict: bool = False,
    empty: bool = False,
) -> Lake:
    """Scan a lake and check every footer against the Domain, for the ``columns`` given or those that it names.

    ``source`` is a directory, a glob, a hive-partitioned tree, a list of files, any address that pyarrow or fsspec
    understands, a Delta or Iceberg table, or a frame of pandas, Polars, Arrow, DuckDB or Dask. Raises a DataError
    that names the file and the column for a schema that does not fit. What footers and folders say of *values* is
    refused only if ``strict``, which is for runs that protect nobody: else it would be an answer about rows that
    nobody paid for. ``empty`` takes a lake without rows, where their number is secret.
    """
    if not is_address(source.source if isinstance(source, PartOfLake) else source):
        from daskrado.lake.frames import open_frame

        return open_frame(source, domain, label=label, ids=ids, strict=strict, empty=empty)
    files = source.files() if isinstance(source, PartOfLake) else find_files(source)
    columns = needed_columns(domain, label=label, ids=ids) if columns is None else columns
    with ThreadPoolExecutor(8) as pool:
        footers = list(pool.map(partial(read_footer, folder_readers(domain, columns, strict=strict)), files))
    problems = [problem for footer in footers for problem in footer_problems(footer, domain, columns, strict=strict)]
    if problems:
        more = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
        raise DataError("; ".join(problems[:3]) + more)
    rows = sum(footer.rows for footer in footers)
    if rows == 0 and not empty:
        raise DataError(f"{_describe(source)}: the lake has zero rows")
    return Lake(
        partitions=tuple(part for footer in footers for part in footer.partitions()),
        rows=rows,
        size=sum(footer.file.size for footer in footers),
        fingerprint=identity(files),
        schema=footers[0].schema,
        table=files[0].table,
        schemas=tuple({footer.schema: (footer.file.path, footer.schema) for footer in footers}.values()),
        facts=tuple(f.facts for f in footers if len(f.partitions()) == 1),
        reading=_reading(source, footers),
    )


def _reading(source: Any, footers: Sequence[Footer]) -> Reading:
    """The version of a table, and a fingerprint of each block: of the columns that its own files have."""
    table = footers[0].file.table
    facts, files = None if table is None else table.facts, file_marks(footer.file for footer in footers)
    if not isinstance(source, PartOfLake):
        return Reading(facts, files=files)
    places = grouped([footer.file for footer in footers], source.column, source.values)
    blocks = {block: _block_fingerprint([footers[place] for place in own]) for block, own in places.items()}
    return Reading(facts, source.column, blocks, files)


def known_by(source: Any) -> tuple[str | None, dict[str, str]]:
    """The fingerprint of an address, and the marks of its files and of the ingested lakes that they lie in."""
    if not is_address(source):
        return None, {}
    files = find_files(source)
    within = {table_mark(table): path for table, path in enclosing_lakes(files).items()}
    return identity(files), file_marks(files) | within


def _block_fingerprint(footers: Sequence[Footer]) -> str:
    """It stays when the lake gets a column that these files lack, and when they are made into fewer."""
    absent = set.intersection(*({name for name, stored in f.places or () if stored is None} for f in footers))
    absent |= {name for f in footers for name, _ in f.file.hive}
    facts = [{name: fact for name, fact in f.facts.items() if name not in absent} for f in footers]
    return block_fingerprint([f.file for f in footers], sum(f.rows for f in footers), facts)


def is_address(source: Any) -> bool:
    """Whether a lake is given by where it lies, not as a frame."""
    return isinstance(source, _ADDRESSES)


def open_files(source: Any, columns: Sequence[str]) -> list[ParquetPartition]:
    """The partitions of Parquet files that need no Domain, each of which must have the columns."""
    footers = [read_footer({}, file) for file in find_files(source)]
    for footer in footers:
        for name in columns:
            if name not in footer.schema.names:
                raise DataError(f"{footer.file.path}: column {name!r} is missing")
    return [part for footer in footers for part in footer.partitions()]


def require_columns(source: Any, columns: Sequence[str]) -> None:
    """Refuse a lake in which some file lacks one of these columns."""
    if not is_address(source):
        return  # a frame has the same columns everywhere
    for file in find_files(source) if columns else ():
        schema = read_footer({}, file).schema
        for name in columns:
            if name not in schema.names:
                raise UsageError(f"{file.path}: there is no column {name!r} to keep")


def draft_schema(source: Any) -> pa.Schema:
    """The columns of a lake from its first footer, hive columns included: no row is read."""
    files = find_files(source)
    return read_footer({}, files[0]).schema


def _describe(source: Any) -> str:
    if isinstance(source, PartOfLake):
        return _describe(source.source)
    if isinstance(source, Mapping):
        return table_address(source)[1]
    return f"{len(source)} files" if isinstance(source, list | tuple) else os.fspath(source)
