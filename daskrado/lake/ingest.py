"""Text tables become a Parquet lake: typed columns, files and row groups fit for workers, a manifest, all or nothing.

Two passes over the text: the first finds the narrowest type that holds every value of a column, the second writes.
A lake on this machine appears by one rename. An object store has no rename, so there a marker is put before the first
object and taken away after the last; a lake that still has its marker is refused by every reader here.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs as pafs

import daskrado
from daskrado.errors import DataError, UsageError
from daskrado.lake.files import HIVE_NULL, INCOMPLETE, first_line, remote
from daskrado.lake.publish import new_folder
from daskrado.lake.text_tables import TextFormat, read_text

MANIFEST = "_manifest.json"
SCHEMA = "daskrado.lake/1"
_GROUP_BYTES = 32 << 20  # decoded; a worker holds a group and its encoded rows at once
_FILE_GROUPS = 8
_MAX_FOLDERS = 256

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Layout:
    """How rows are laid out; row counts left open are chosen so that a group has about 32 MB in memory."""

    by: str | None = None
    group_rows: int | None = None
    file_rows: int | None = None
    text: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, value in (("--group-rows", self.group_rows), ("--file-rows", self.file_rows)):
            if value is not None and value < 1:
                raise UsageError(f"{name} must be at least 1, got {value}")

    def sizes(self, schema: pa.Schema) -> tuple[int, int]:
        """Rows in a group and in a file."""
        width = sum(24 if pa.types.is_string(column.type) else 8 for column in schema)
        group = self.group_rows or max(1024, min(1 << 17, _GROUP_BYTES // max(width, 1)))
        return group, max(group, self.file_rows or _FILE_GROUPS * group)


def ingest(
    sources: Sequence[str],
    out: str,
    *,
    form: TextFormat | None = None,
    layout: Layout | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Write the rows of some text tables as one lake and return its manifest.

    The manifest holds row counts, so it is as private as the lake it lies in.
    """
    form, layout = form or TextFormat(), layout or Layout()
    if not sources:
        raise UsageError("give at least one file to ingest")
    schema = _types(sources, form, layout)
    _log.info("ingest: %d columns in %d files", len(schema), len(sources))
    with _target(out, overwrite=overwrite) as (filesystem, folder):
        files = _write(sources, form, layout, schema, filesystem, folder)
        manifest = {
            "schema": SCHEMA,
            "daskrado": daskrado.__version__,
            "sources": [Path(source).name for source in sources],
            "missing": list(form.missing),
            "columns": {column.name: str(column.type) for column in schema},
            "partitioned_by": layout.by,
            "rows": sum(file["rows"] for file in files),
            "files": files,
        }
        with filesystem.open_output_stream(f"{folder}/{MANIFEST}") as stream:
            stream.write((json.dumps(manifest, indent=2) + "\n").encode())
    _log.info("ingest: %d Parquet files written", len(files))
    return manifest


def _types(sources: Sequence[str], form: TextFormat, layout: Layout) -> pa.Schema:
    """The narrowest type of each column over all files: boolean, int64, double, else text."""
    names: list[str] | None = None
    guesses: dict[str, _Guess] = {}
    for source in sources:
        for table in read_text(source, form):
            if names is None:
                names = table.column_names
                guesses = {name: _Guess() for name in names}
            elif table.column_names != names:
                raise DataError(f"{source}: has other columns than {sources[0]}")
            for name, column in zip(names, table.columns, strict=True):
                guesses[name].see(column)
    if names is None:
        raise DataError(f"{sources[0]}: has no rows")
    for option, wanted in (
        ("--text", layout.text),
        ("--drop", layout.drop),
        ("--by", (layout.by,) if layout.by else ()),
    ):
        for name in wanted:
            if name not in names:
                raise UsageError(f"{option} {name}: there is no such column; there are {', '.join(names[:30])}")
    found = {n: pa.string() if n in (*layout.text, layout.by) else guesses[n].kind for n in names}
    return pa.schema([pa.field(n, kind) for n, kind in found.items() if n not in layout.drop])


class _Guess:
    """Narrows one column's type as its text goes by."""

    def __init__(self) -> None:
        self.open = [pa.bool_(), pa.int64(), pa.float64()]
        self.seen = False

    @property
    def kind(self) -> pa.DataType:
        return self.open[0] if self.open and self.seen else pa.string()

    def see(self, column: pa.ChunkedArray) -> None:
        if not self.open or column.null_count == len(column):
            return
        self.seen = True
        self.open = [kind for kind in self.open if _fits(column, kind)]


def _fits(column: pa.ChunkedArray, kind: pa.DataType) -> bool:
    if pa.types.is_boolean(kind):
        return bool(
            pc.all(pc.is_in(pc.utf8_lower(column.drop_null()), value_set=pa.array(["true", "false"]))).as_py()
        )
    if pc.any(pc.match_substring_regex(column, r"^[-+]?0[0-9]")).as_py():
        return False  # 007 is a code, not a number
    try:
        column.cast(kind)
    except pa.ArrowInvalid:
        return False
    return True


def _typed(table: pa.Table, schema: pa.Schema, source: str) -> pa.Table:
    columns = []
    for column in schema:
        try:
            columns.append(table.column(column.name).cast(column.type))
        except (pa.ArrowInvalid, KeyError):
            raise DataError(f"{source}: column {column.name!r} changed while it was read") from None
    return pa.table(columns, schema=schema)


def _write(
    sources: Sequence[str],
    form: TextFormat,
    layout: Layout,
    schema: pa.Schema,
    filesystem: pafs.FileSystem,
    folder: str,
) -> list[dict[str, Any]]:
    group, file = layout.sizes(schema)
    stored = schema if layout.by is None else schema.remove(schema.get_field_index(layout.by))
    shelves: dict[str, _Shelf] = {}
    try:
        for source in sources:
            for text in read_text(source, form):
                for where, rows in _split(_typed(text, schema, source), layout.by):
                    if where not in shelves:
                        if len(shelves) == _MAX_FOLDERS:
                            raise UsageError(f"--by {layout.by}: has more than {_MAX_FOLDERS} values")
                        shelves[where] = _Shelf(filesystem, f"{folder}{where}", where, stored, group, file)
                    shelves[where].add(rows)
        for shelf in shelves.values():
            shelf.close()
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{folder}: cannot be written ({first_line(error)})") from error
    finally:
        for shelf in shelves.values():
            shelf.drop()
    return [file for where in sorted(shelves) for file in shelves[where].files]


def _split(table: pa.Table, by: str | None) -> Iterator[tuple[str, pa.Table]]:
    if by is None:
        yield "", table
        return
    for value in sorted(pc.unique(table[by]).to_pylist(), key=lambda v: (v is None, v)):
        mask = pc.is_null(table[by]) if value is None else pc.equal(table[by], value)
        name = HIVE_NULL if value is None else quote(value, safe="")
        yield f"/{by}={name}", table.filter(mask).drop_columns([by])


@dataclass
class _Shelf:
    """The files of one folder, written one after another, a row group at a time."""

    filesystem: pafs.FileSystem
    folder: str
    where: str
    schema: pa.Schema
    group_rows: int
    file_rows: int
    files: list[dict[str, Any]] = field(default_factory=list)
    held: list[pa.Table] = field(default_factory=list)
    writer: pq.ParquetWriter | None = None

    def add(self, table: pa.Table) -> None:
        """Take rows; whole groups are written at once."""
        self.held.append(table)
        while sum(part.num_rows for part in self.held) >= self.group_rows:
            rows = pa.concat_tables(self.held)
            self._put(rows.slice(0, self.group_rows))
            self.held = [rows.slice(self.group_rows)]

    def close(self) -> None:
        """Write what is left and finish the last file."""
        rest = pa.concat_tables(self.held) if self.held else self.schema.empty_table()
        if rest.num_rows:
            self._put(rest)
        self.held = []
        self._finish()

    def drop(self) -> None:
        """After a failure: let go of the file at hand."""
        if self.writer is not None:
            with contextlib.suppress(Exception):
                self.writer.close()
            self.writer = None

    def _put(self, rows: pa.Table) -> None:
        if self.writer is None:
            if self.where and not self.files:
                self.filesystem.create_dir(self.folder, recursive=True)
            name = f"part-{len(self.files):05d}.parquet"
            self.files.append({"path": f"{self.where.lstrip('/')}/{name}".lstrip("/"), "rows": 0})
            where = f"{self.folder}/{name}"
            self.writer = pq.ParquetWriter(
                where, self.schema, filesystem=self.filesystem, compression="zstd", write_page_checksum=True
            )
        self.writer.write_table(rows, row_group_size=self.group_rows)
        self.files[-1]["rows"] += rows.num_rows
        if self.files[-1]["rows"] >= self.file_rows:
            self._finish()

    def _finish(self) -> None:
        if self.writer is not None:
            self.writer.close()
            self.writer = None


@contextlib.contextmanager
def _target(out: str, *, overwrite: bool) -> Iterator[tuple[pafs.FileSystem, str]]:
    """A folder to write in, which becomes a lake only when the block ends well."""
    if "://" not in out:
        with new_folder(out, overwrite=overwrite) as folder:
            yield pafs.LocalFileSystem(), str(folder)
        return
    filesystem, path = remote(out)
    path = path.rstrip("/")
    try:
        _claim(filesystem, path, out, overwrite=overwrite)
        yield filesystem, path
        filesystem.delete_file(f"{path}/{INCOMPLETE}")
    except (OSError, pa.ArrowException) as error:
        _clear(filesystem, path)
        raise DataError(f"{out}: cannot be written ({first_line(error)})") from error
    except DataError:
        _clear(filesystem, path)
        raise


def _claim(filesystem: pafs.FileSystem, path: str, out: str, *, overwrite: bool) -> None:
    there = filesystem.get_file_info(pafs.FileSelector(path, recursive=True, allow_not_found=True))
    if there and not overwrite:
        raise UsageError(f"{out}: exists; choose another or pass --overwrite")
    with filesystem.open_output_stream(f"{path}/{INCOMPLETE}") as stream:
        stream.write(b"this lake is being written, or its writer was cut off\n")
    for info in there:
        if info.type == pafs.FileType.File and not info.path.endswith(f"/{INCOMPLETE}"):
            filesystem.delete_file(info.path)


def _clear(filesystem: pafs.FileSystem, path: str) -> None:
    """Remove what was written, the marker last; what cannot be reached keeps its marker, and is refused."""
    with contextlib.suppress(OSError, pa.ArrowException):
        infos = filesystem.get_file_info(pafs.FileSelector(path, recursive=True, allow_not_found=True))
        for info in sorted(infos, key=lambda info: info.path.endswith(f"/{INCOMPLETE}")):
            if info.type == pafs.FileType.File:
                filesystem.delete_file(info.path)
