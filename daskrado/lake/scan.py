"""Finding a lake's Parquet files, reading every footer, and refusing early what cannot be used."""

from __future__ import annotations

import fnmatch
import hashlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs as pafs

from daskrado.domain import Domain
from daskrado.encoding import needed_columns, type_problem
from daskrado.errors import DataError, UsageError
from daskrado.lake.fingerprint import ColumnFacts, fingerprint

_SPLIT_BYTES = 256 << 20  # a file larger than this is read by several tasks
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"


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
    hive: tuple[tuple[str, str | None], ...] = ()

    @property
    def identity(self) -> str:
        """Changes whenever the file is overwritten, so no stale result can be taken for it."""
        text = f"{self.path}\0{self.size}\0{self.modified}\0{self.row_groups}"
        return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()

    def tables(self, columns: Sequence[str]) -> Iterator[tuple[int, pa.Table]]:
        """Yield (row group, table) with the wanted columns; a file changed since the scan is a DataError."""
        info = self.filesystem.get_file_info(self.path)
        if (info.size, info.mtime_ns or 0) != (self.size, self.modified):
            raise DataError(f"{self.path}: changed or vanished while the run was reading the lake")
        hive = dict(self.hive)
        stored = [name for name in columns if name not in hive]
        try:
            with self.filesystem.open_input_file(self.path) as source:
                file = pq.ParquetFile(source, pre_buffer=False)
                for group in self.row_groups:
                    table = file.read_row_group(group, columns=stored, use_threads=False)
                    for name in columns:
                        if name in hive:
                            table = table.append_column(
                                name, pa.repeat(pa.scalar(hive[name], pa.string()), len(table))
                            )
                    yield group, table
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{self.path}: cannot be read as Parquet ({_first_line(error)})") from error


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

    def __repr__(self) -> str:
        return f"<Lake of {len(self.partitions)} partitions>"


def open_lake(
    source: Any, domain: Domain, *, label: bool = True, ids: bool = False, columns: Sequence[str] | None = None
) -> Lake:
    """Scan a lake and check every footer against the Domain, for the ``columns`` given or those that it names.

    ``source`` is a directory, a glob, a hive-partitioned tree, a list of files, any address that pyarrow or fsspec
    understands, a pandas DataFrame or a Dask DataFrame. Raises a DataError that names the file and the column for
    anything that can be seen without reading rows.
    """
    if not isinstance(source, str | os.PathLike | list | tuple):
        from daskrado.lake.frames import open_frame

        return open_frame(source, domain, label=label, ids=ids)
    files = find_files(source)
    columns = needed_columns(domain, label=label, ids=ids) if columns is None else columns
    with ThreadPoolExecutor(8) as pool:
        footers = list(pool.map(_read_footer, files))
    problems = [problem for footer in footers for problem in footer_problems(footer, domain, columns)]
    if problems:
        more = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
        raise DataError("; ".join(problems[:3]) + more)
    rows = sum(footer.rows for footer in footers)
    if rows == 0:
        raise DataError(f"{_describe(source)}: the lake has zero rows")
    return Lake(
        partitions=tuple(part for footer in footers for part in footer.partitions()),
        rows=rows,
        size=sum(footer.file.size for footer in footers),
        fingerprint=fingerprint(rows, [footer.facts for footer in footers]),
        schema=footers[0].schema,
    )


def draft_schema(source: Any) -> pa.Schema:
    """The columns of a lake from its first footer, hive columns included: no row is read."""
    files = find_files(source)
    return _read_footer(files[0]).schema


@dataclass(frozen=True)
class LakeFile:
    """One file of a lake, before its footer is read."""

    name: str
    path: str
    filesystem: pafs.FileSystem
    size: int
    modified: int
    hive: tuple[tuple[str, str | None], ...]


@dataclass(frozen=True)
class Footer:
    """What a file's footer says."""

    file: LakeFile
    schema: pa.Schema
    group_rows: tuple[int, ...]
    group_bytes: tuple[int, ...]
    facts: dict[str, ColumnFacts]

    @property
    def rows(self) -> int:
        """Rows in the file."""
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
            hive=self.file.hive,
        )
        return [
            make(name=self.file.name, row_groups=tuple(batch), rows=sum(self.group_rows[g] for g in batch))
            for batch in batches
            if batch
        ]


def footer_problems(footer: Footer, domain: Domain, columns: Sequence[str]) -> list[str]:
    """Everything that a footer alone shows to be wrong."""
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
        if nulls and not may_be_null:
            found.append(f"{where} holds {nulls} nulls, and its null policy is error")
    return found


def find_files(source: Any) -> list[LakeFile]:
    """The Parquet files of an address or a list of addresses, in name order. Hidden and ``_`` files are skipped."""
    if isinstance(source, list | tuple):
        if not source:
            raise UsageError("the list of lake files is empty")
        found = [replace(file, name=file.path) for item in source for file in find_files(item)]
        names = [file.path for file in found]
        if len(set(names)) < len(names):
            raise UsageError(f"the lake lists {next(n for n in names if names.count(n) > 1)} twice")
        return found
    address = os.fspath(source)
    if "://" in address:
        filesystem, path = remote(address)
    else:
        filesystem, path = pafs.LocalFileSystem(), str(Path(address).absolute())
    if any(mark in path for mark in "*?["):
        files = _glob(filesystem, path)
    else:
        try:
            info = filesystem.get_file_info(path)
        except OSError as error:
            raise DataError(f"{address}: cannot be reached ({_first_line(error)})") from error
        if info.type == pafs.FileType.NotFound:
            raise DataError(f"{address}: no such file or directory")
        if info.type == pafs.FileType.File:
            files = [(Path(path).name, info)]
        else:
            found_infos = filesystem.get_file_info(pafs.FileSelector(path, recursive=True))
            files = [
                (os.path.relpath(i.path, path), i)
                for i in found_infos
                if i.type == pafs.FileType.File and _is_data(os.path.relpath(i.path, path))
            ]
    if not files:
        raise DataError(f"{address}: no Parquet file found")
    files.sort(key=lambda pair: pair[0])
    return [LakeFile(name, info.path, filesystem, info.size, info.mtime_ns or 0, _hive(name)) for name, info in files]


def _glob(filesystem: pafs.FileSystem, pattern: str) -> list[tuple[str, pafs.FileInfo]]:
    parts = pattern.split("/")
    fixed = next(i for i, part in enumerate(parts) if any(mark in part for mark in "*?["))
    base = "/".join(parts[:fixed]) or "/"
    selector = pafs.FileSelector(base, recursive=True, allow_not_found=True)
    return [
        (os.path.relpath(info.path, base), info)
        for info in filesystem.get_file_info(selector)
        if info.type == pafs.FileType.File
        and _matches(info.path.split("/"), parts)
        and not _is_hidden(os.path.relpath(info.path, base))
    ]


def _matches(path: list[str], pattern: list[str]) -> bool:
    """Shell matching part by part; ``**`` stands for any number of folders."""
    if not pattern:
        return not path
    if pattern[0] == "**":
        return any(_matches(path[i:], pattern[1:]) for i in range(len(path) + 1))
    return bool(path) and fnmatch.fnmatchcase(path[0], pattern[0]) and _matches(path[1:], pattern[1:])


def _is_data(relative: str) -> bool:
    return not _is_hidden(relative) and relative.endswith((".parquet", ".pq", ".parq"))


def _is_hidden(relative: str) -> bool:
    return any(part.startswith((".", "_")) and "=" not in part for part in relative.split("/"))


def _hive(relative: str) -> tuple[tuple[str, str | None], ...]:
    pairs = [part.split("=", 1) for part in relative.split("/")[:-1] if "=" in part]
    return tuple((key, None if value == _HIVE_NULL else unquote(value)) for key, value in pairs)


def remote(address: str) -> tuple[pafs.FileSystem, str]:
    """The filesystem of an address such as ``s3://bucket/path``, by pyarrow or else by fsspec, and the path on it."""
    try:
        return pafs.FileSystem.from_uri(address)  # type: ignore[no-any-return]
    except (pa.ArrowException, ValueError, OSError):
        pass
    import fsspec

    try:
        filesystem, path = fsspec.core.url_to_fs(address)
    except (ImportError, ValueError) as error:
        raise UsageError(f"{address}: no filesystem for this address ({_first_line(error)})") from error
    return pafs.PyFileSystem(pafs.FSSpecHandler(filesystem)), path


def _read_footer(file: LakeFile) -> Footer:
    try:
        with file.filesystem.open_input_file(file.path) as source:
            parquet = pq.ParquetFile(source)
            schema = parquet.schema_arrow
            metadata = parquet.metadata
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{file.path}: is not a readable Parquet file ({_first_line(error)})") from error
    facts = _column_facts(metadata)
    for name, value in file.hive:
        if name in schema.names:
            raise DataError(f"{file.path}: column {name!r} is both in the file and in its folder's name")
        schema = schema.append(pa.field(name, pa.string()))
        facts[name] = ColumnFacts.constant(value, metadata.num_rows)
    groups = [metadata.row_group(g) for g in range(metadata.num_row_groups)]
    return Footer(
        file=file,
        schema=schema.remove_metadata(),
        group_rows=tuple(group.num_rows for group in groups),
        group_bytes=tuple(group.total_byte_size for group in groups),
        facts=facts,
    )


def _column_facts(metadata: pq.FileMetaData) -> dict[str, ColumnFacts]:
    facts: dict[str, ColumnFacts] = {}
    for g in range(metadata.num_row_groups):
        group = metadata.row_group(g)
        if group.num_rows == 0:
            continue
        for c in range(group.num_columns):
            chunk = group.column(c)
            fact = ColumnFacts.from_statistics(chunk.statistics, group.num_rows)
            facts[chunk.path_in_schema] = (
                facts[chunk.path_in_schema] + fact if chunk.path_in_schema in facts else fact
            )
    return facts


def _first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return text[0] if text else type(error).__name__


def _describe(source: Any) -> str:
    return f"{len(source)} files" if isinstance(source, list | tuple) else os.fspath(source)
