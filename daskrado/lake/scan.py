"""Finding a lake's Parquet files, reading every footer, and refusing early what cannot be used."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyarrow import fs as pafs

from daskrado.errors import DataError, UsageError
from daskrado.lake.files import LakeFile, find_files, first_line
from daskrado.lake.fingerprint import ColumnFacts, fingerprint
from daskrado.lake.folder_values import Reader, as_text, folder_readers
from daskrado.lake.snapshots import TableVersion, table_address
from daskrado.table.domain import Domain
from daskrado.table.encoding import needed_columns, type_problem

_ADDRESSES = (str, os.PathLike, list, tuple, Mapping)
_SPLIT_BYTES = 256 << 20  # a file larger than this is read by several tasks
_LOCAL_BUFFER = 256 << 10  # a column is decoded as it is read, piece by piece; from far away it is fetched whole


@dataclass(frozen=True)
class ParquetPartition:
    """Some row groups of one file: what one task reads."""

    name: str
    path: str
    filesystem: pafs.FileSystem
    row_groups: tuple[int, ...]
    rows: int
    size: int
    modified: int
    hive: tuple[tuple[str, Any], ...] = ()
    hive_types: dict[str, pa.DataType] = field(default_factory=dict, hash=False)
    places: tuple[tuple[str, str | None], ...] | None = None  # a table's columns by their names in the file
    absent: dict[str, pa.DataType] = field(default_factory=dict, hash=False)  # of the table and not of the file
    deleted: tuple[tuple[int, bytes], ...] = ()  # by row group, packed bits: 1 for a row that the table deleted

    @property
    def identity(self) -> str:
        """Changes whenever the file is overwritten, so no stale result can be taken for it."""
        return hashlib.blake2b(f"{self.path}\0{self.version}".encode(), digest_size=12).hexdigest()

    @property
    def version(self) -> str:
        """The same, wherever the lake's own folder is."""
        text = f"{self.name}\0{self.size}\0{self.modified}\0{self.row_groups}"
        return f"{text}\0{self.places}\0{self.deleted}" if self.places is not None else text

    def tables(self, columns: Sequence[str]) -> Iterator[tuple[int, pa.Table]]:
        """Yield (row group, table) with the wanted columns; a file changed since the scan is a DataError."""
        self._check_unchanged()
        hive, names = dict(self.hive), dict(self.places or ())
        wanted = [name for name in columns if name not in hive and name not in self.absent]
        stored, deleted = [names.get(name) or name for name in wanted], dict(self.deleted)
        try:
            with self.filesystem.open_input_file(self.path) as source:
                file = pq.ParquetFile(
                    source,
                    pre_buffer=False,
                    buffer_size=_LOCAL_BUFFER if isinstance(self.filesystem, pafs.LocalFileSystem) else 0,
                    page_checksum_verification=True,
                )
                for group in self.row_groups:
                    table = file.read_row_group(group, columns=stored, use_threads=False)
                    if self.places is not None:
                        table = self._as_the_table_has_it(table, wanted, stored, deleted.get(group))
                    for name, value in self.hive:
                        if name in columns:
                            scalar = pa.scalar(value, self.hive_types[name])
                            table = table.append_column(name, pa.repeat(scalar, table.num_rows))
                    for name in [name for name in columns if name in self.absent]:
                        table = table.append_column(name, pa.nulls(table.num_rows, self.absent[name]))
                    yield group, table
                    del table  # before the next one is read
        except (pa.ArrowException, OSError) as error:
            self._check_unchanged()
            raise DataError(f"{self.path}: cannot be read as Parquet ({first_line(error)})") from error
        self._check_unchanged()  # what was overwritten while it was read may be half old, half new

    @staticmethod
    def _as_the_table_has_it(
        table: pa.Table, wanted: list[str], stored: list[str], deleted: bytes | None
    ) -> pa.Table:
        """A row group under the names of the table's columns, without the rows that the table deleted."""
        rows = table.num_rows
        table = table.select(stored).rename_columns(wanted)
        if deleted is None:
            return table
        kept = ~np.unpackbits(np.frombuffer(deleted, dtype=np.uint8), count=rows).astype(bool)
        return table.filter(pa.array(kept))

    def _check_unchanged(self) -> None:
        try:
            info = self.filesystem.get_file_info(self.path)
        except OSError as error:
            raise DataError(f"{self.path}: cannot be reached ({first_line(error)})") from error
        if (info.size, info.mtime_ns or 0) != (self.size, self.modified):
            raise DataError(f"{self.path}: changed or vanished while the run was reading the lake")


@dataclass(frozen=True)
class Lake:
    """A scanned lake: its partitions, its row count, and a fingerprint of its content.

    ``fingerprint`` and ``rows`` are facts about private rows: for the ledger and the overflow guard, not for print.
    """

    partitions: tuple[Any, ...]
    rows: int
    size: int
    fingerprint: str
    schema: pa.Schema
    table: TableVersion | None = None  # where the lake is one version of a table

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
) -> Lake:
    """Scan a lake and check every footer against the Domain, for the ``columns`` given or those that it names.

    ``source`` is a directory, a glob, a hive-partitioned tree, a list of files, any address that pyarrow or fsspec
    understands, a Delta or Iceberg table, or a frame of pandas, Polars, Arrow, DuckDB or Dask. Raises a DataError
    that names the file and the column for a schema that does not fit. What footers and folders say of *values* is
    refused only if ``strict``, which is for runs that protect nobody: else it would be an answer about rows that
    nobody paid for.
    """
    if not isinstance(source, _ADDRESSES):
        from daskrado.lake.frames import open_frame

        return open_frame(source, domain, label=label, ids=ids, strict=strict)
    files = find_files(source)
    columns = needed_columns(domain, label=label, ids=ids) if columns is None else columns
    with ThreadPoolExecutor(8) as pool:
        footers = list(pool.map(partial(_read_footer, folder_readers(domain, columns, strict=strict)), files))
    problems = [problem for footer in footers for problem in footer_problems(footer, domain, columns, strict=strict)]
    if problems:
        more = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
        raise DataError("; ".join(problems[:3]) + more)
    rows = sum(footer.rows for footer in footers)
    if rows == 0:
        raise DataError(f"{_describe(source)}: the lake has zero rows")
    _check_copies(footers)
    return Lake(
        partitions=tuple(part for footer in footers for part in footer.partitions()),
        rows=rows,
        size=sum(footer.file.size for footer in footers),
        fingerprint=fingerprint(rows, [f.facts for f in footers], {name for f in footers for name, _ in f.file.hive}),
        schema=footers[0].schema,
        table=files[0].table,
    )


def _check_copies(footers: Sequence[Footer]) -> None:
    """Refuse two files with the same bytes: their rows would count twice. Only those with one footer are read."""
    alike: dict[Any, list[LakeFile]] = {}
    for footer in footers:
        table = footer.file.table
        if footer.rows and (table is None or table.form == "folder"):  # another table's log says which files count
            place = (footer.file.size, footer.group_rows, footer.group_bytes, footer.hive, str(footer.facts))
            alike.setdefault(place, []).append(footer.file)
    for files in alike.values():
        seen: dict[bytes, str] = {}
        for file in files if len(files) > 1 else ():
            first = seen.setdefault(_content_digest(file), file.path)
            if first != file.path:
                raise DataError(f"{file.path}: has the same bytes as {first}; its rows would count twice: remove one")


def _content_digest(file: LakeFile) -> bytes:
    digest = hashlib.blake2b()
    try:
        with file.filesystem.open_input_stream(file.path) as stream:
            while part := stream.read(1 << 22):
                digest.update(part)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{file.path}: cannot be read ({first_line(error)})") from error
    return digest.digest()


def open_files(source: Any, columns: Sequence[str]) -> list[ParquetPartition]:
    """The partitions of Parquet files that need no Domain, each of which must have the columns."""
    footers = [_read_footer({}, file) for file in find_files(source)]
    for footer in footers:
        for name in columns:
            if name not in footer.schema.names:
                raise DataError(f"{footer.file.path}: column {name!r} is missing")
    return [part for footer in footers for part in footer.partitions()]


def require_columns(source: Any, columns: Sequence[str]) -> None:
    """Refuse a lake in which some file lacks one of these columns."""
    if not isinstance(source, _ADDRESSES):
        return  # a frame has the same columns everywhere
    for file in find_files(source) if columns else ():
        schema = _read_footer({}, file).schema
        for name in columns:
            if name not in schema.names:
                raise UsageError(f"{file.path}: there is no column {name!r} to keep")


def draft_schema(source: Any) -> pa.Schema:
    """The columns of a lake from its first footer, hive columns included: no row is read."""
    files = find_files(source)
    return _read_footer({}, files[0]).schema


@dataclass(frozen=True)
class Footer:
    """What a file's footer says."""

    file: LakeFile
    schema: pa.Schema
    group_rows: tuple[int, ...]
    group_bytes: tuple[int, ...]
    facts: dict[str, ColumnFacts]
    hive: tuple[tuple[str, Any], ...] = ()
    places: tuple[tuple[str, str | None], ...] | None = None
    deleted: tuple[tuple[int, bytes], ...] = ()

    @property
    def rows(self) -> int:
        """Rows in the file, without deleted ones."""
        return sum(self.group_rows)

    def partitions(self) -> list[ParquetPartition]:
        """One task for the file, or several for a large one; empty row groups are left out."""
        batches: list[list[int]] = [[]]
        held = 0
        for group, count in enumerate(self.group_rows):
            if count == 0:
                continue
            if held and held + self.group_bytes[group] > _SPLIT_BYTES:
                batches.append([])
                held = 0
            batches[-1].append(group)
            held += self.group_bytes[group]
        make = partial(
            ParquetPartition,
            path=self.file.path,
            filesystem=self.file.filesystem,
            size=self.file.size,
            modified=self.file.modified,
            hive=self.hive,
            hive_types={name: self.schema.field(name).type for name, _ in self.hive},
            places=self.places,
            absent={name: self.schema.field(name).type for name, stored in self.places or () if stored is None},
            deleted=self.deleted,
        )
        return [
            make(name=self.file.name, row_groups=tuple(batch), rows=sum(self.group_rows[g] for g in batch))
            for batch in batches
            if batch
        ]


def footer_problems(footer: Footer, domain: Domain, columns: Sequence[str], *, strict: bool) -> list[str]:
    """Everything that a footer alone shows to be wrong; if ``strict``, also nulls that the Domain does not allow."""
    found = []
    for name in columns:
        where = f"{footer.file.path}: column {name!r}"
        if name not in footer.schema.names:
            found.append(f"{where} is missing (the file has {', '.join(footer.schema.names[:20])})")
            continue
        if (problem := type_problem(domain, name, footer.schema.field(name).type)) is not None:
            found.append(f"{where} {problem}")
            continue
        may_be_null = name in domain.columns and domain.columns[name].fill is not None
        nulls = footer.facts[name].nulls if name in footer.facts else None
        if strict and nulls and not may_be_null:
            found.append(f"{where} holds nulls, and its null policy is error")
    return found


def _read_footer(readers: Mapping[str, Reader], file: LakeFile) -> Footer:
    try:
        with file.filesystem.open_input_file(file.path) as source:
            parquet = pq.ParquetFile(source)
            schema = parquet.schema_arrow
            metadata = parquet.metadata
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{file.path}: is not a readable Parquet file ({first_line(error)})") from error
    repeated = [name for name in schema.names if schema.names.count(name) > 1]
    if repeated:
        raise DataError(f"{file.path}: column {repeated[0]!r} is there twice")
    facts = _column_facts(metadata, set(schema.names))
    groups = [metadata.row_group(g) for g in range(metadata.num_row_groups)]
    rows, deleted = _kept_rows([group.num_rows for group in groups], file.deleted)
    places = None
    if file.table is not None:
        places = file.table.places(schema)
        schema, facts = _of_table(file.table, places, schema, facts, metadata.num_rows)
    hive = []
    for name, value in file.hive:
        if name in schema.names:
            raise DataError(f"{file.path}: column {name!r} is both in the file and in its folder's name")
        try:
            kind, meant = readers.get(name, as_text)(value)
        except (KeyError, ValueError):
            raise DataError(f"{file.path}: the folder {name}={value} is no value that the Domain allows") from None
        schema = schema.append(pa.field(name, kind))
        hive.append((name, meant))
        if metadata.num_rows:
            facts[name] = ColumnFacts.constant(value, metadata.num_rows)
    return Footer(
        file=file,
        schema=schema.remove_metadata(),
        group_rows=rows,
        group_bytes=tuple(group.total_byte_size for group in groups),
        facts=facts,
        hive=tuple(hive),
        places=None if places is None else tuple(places.items()),
        deleted=deleted,
    )


def _kept_rows(
    group_rows: list[int], deleted: NDArray[np.int64] | None
) -> tuple[tuple[int, ...], tuple[tuple[int, bytes], ...]]:
    """Rows of each group that the table has not deleted, and which are deleted, as packed bits."""
    if deleted is None or len(deleted) == 0:
        return tuple(group_rows), ()
    mask = np.zeros(sum(group_rows), dtype=bool)
    mask[deleted] = True
    parts = np.split(mask, np.cumsum(group_rows)[:-1])
    packed = tuple((g, np.packbits(part).tobytes()) for g, part in enumerate(parts) if part.any())
    return tuple(int((~part).sum()) for part in parts), packed


def _of_table(
    table: TableVersion,
    places: Mapping[str, str | None],
    schema: pa.Schema,
    facts: Mapping[str, ColumnFacts],
    rows: int,
) -> tuple[pa.Schema, dict[str, ColumnFacts]]:
    """A file's schema and facts under the names of the table's columns; one that it lacks is all null."""
    fields, found = [], {}
    for column in table.columns:
        stored = places[column.name]
        fields.append(pa.field(column.name, column.type if stored is None else schema.field(stored).type))
        if stored is None:
            found[column.name] = ColumnFacts(rows)
        elif stored in facts:
            found[column.name] = facts[stored]
    return pa.schema(fields), found


def _column_facts(metadata: pq.FileMetaData, names: set[str]) -> dict[str, ColumnFacts]:
    """Facts of plain columns; those inside structs and lists have paths that are no column's name."""
    facts: dict[str, ColumnFacts] = {}
    for g in range(metadata.num_row_groups):
        group = metadata.row_group(g)
        if group.num_rows == 0:
            continue
        for c in range(group.num_columns):
            chunk = group.column(c)
            name = chunk.path_in_schema
            if name not in names:
                continue
            fact = ColumnFacts.from_statistics(chunk.statistics, group.num_rows)
            facts[name] = facts[name] + fact if name in facts else fact
    return facts


def _describe(source: Any) -> str:
    if isinstance(source, Mapping):
        return table_address(source)[1]
    return f"{len(source)} files" if isinstance(source, list | tuple) else os.fspath(source)
