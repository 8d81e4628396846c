"""One Parquet file: what its footer says, and the partitions of it that tasks read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyarrow import fs as pafs

from daskrado.errors import DataError
from daskrado.lake.files import LakeFile, first_line
from daskrado.lake.fingerprint import ColumnFacts
from daskrado.lake.folder_values import Reader, as_text
from daskrado.lake.snapshots import TableVersion
from daskrado.table.arrow_arrays import without_views
from daskrado.table.domain import Domain
from daskrado.table.encoding import may_be_null, type_problem
from daskrado.table.nearest import did_you_mean

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
    group_rows: tuple[int, ...] = ()  # of each row group, without deleted ones

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
                    table = without_views(file.read_row_group(group, columns=stored, use_threads=False))
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
        sizes = [tuple(self.group_rows[group] for group in batch) for batch in batches]
        return [
            make(name=self.file.name, row_groups=tuple(batch), rows=sum(each), group_rows=each)
            for batch, each in zip(batches, sizes, strict=True)
            if batch
        ]


def footer_problems(footer: Footer, domain: Domain, columns: Sequence[str], *, strict: bool) -> list[str]:
    """Everything that a footer alone shows to be wrong; if ``strict``, also nulls that the Domain does not allow."""
    found = []
    for name in columns:
        where = f"{footer.file.path}: column {name!r}"
        if name not in footer.schema.names:
            names = footer.schema.names
            found.append(f"{where} is missing (the file has {', '.join(names[:20])}){did_you_mean(name, names)}")
            continue
        if (problem := type_problem(domain, name, footer.schema.field(name).type)) is not None:
            found.append(f"{where} {problem}")
            continue
        nulls = footer.facts[name].nulls if name in footer.facts else None
        if strict and nulls and not may_be_null(domain, name):
            found.append(f"{where} holds nulls, and its null policy is error: say nulls: {{fill: VALUE}}")
    return found


def read_footer(readers: Mapping[str, Reader], file: LakeFile) -> Footer:
    """The footer of a file; ``readers`` read its folders' names as values."""
    try:
        with file.filesystem.open_input_file(file.path) as source:
            parquet = pq.ParquetFile(source)
            schema = parquet.schema_arrow
            metadata = parquet.metadata
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{file.path}: is not a readable Parquet file ({first_line(error)}); daskrado ingest makes a lake of CSV "
            "and ARFF files"
        ) from error
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
