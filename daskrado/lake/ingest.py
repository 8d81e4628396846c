"""Text tables become a Parquet lake: typed columns, files and row groups fit for workers, a manifest, all or nothing.

Two passes over the text: the first finds the narrowest type that holds every value of a column, the second writes.
A lake on this machine appears by one rename. An object store has no rename, so there a marker is put before the first
object and taken away after the last; a lake that still has its marker is refused by every reader here. Rows are
added to a lake by one change of its manifest.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import daskrado
from daskrado.errors import DataError, UsageError
from daskrado.lake.files import HIVE_NULL, first_line, shown
from daskrado.lake.growing import growing_lake
from daskrado.lake.ownership import LAKE_SCHEMA
from daskrado.lake.publish import LakeTarget, new_lake
from daskrado.lake.sniff import sniffed
from daskrado.lake.text_tables import TextFormat, read_text

_GROUP_BYTES = 32 << 20  # decoded; a worker holds a group and its encoded rows at once
_FILE_GROUPS = 8
_MAX_FOLDERS = 256

Progress = Callable[[int, int], None]

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
    append: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Write the rows of some text tables as one lake, or add them to one, and return its manifest.

    The manifest holds row counts, so it is as private as the lake it lies in.
    """
    form, layout = form or TextFormat(), layout or Layout()
    if not sources:
        raise UsageError("give at least one file to ingest")
    if append and overwrite:
        raise UsageError("--append adds to a lake and --overwrite replaces it; give one of them")
    form, read_as = sniffed(sources[0], form)
    _log.info("ingest: %s", read_as)
    report = _Report(progress, 2 * len(sources))
    if append:
        with growing_lake(out) as target:
            _add(sources, form, read_as, layout, target, report)
        return target.manifest
    schema = _types(sources, form, layout, report, {})
    _log.info("ingest: %d columns in %d files", len(schema), len(sources))
    with new_lake(out, overwrite=overwrite) as target:
        files = _write(sources, form, layout, schema, target, report)
        target.manifest = {
            "schema": LAKE_SCHEMA,
            "daskrado": daskrado.__version__,
            "lake": secrets.token_hex(16),
            "version": 1,
            "sources": [Path(shown(source)).name for source in sources],
            "read_as": read_as,
            "missing": list(form.missing),
            "columns": {column.name: str(column.type) for column in schema},
            "partitioned_by": layout.by,
            "rows": sum(file["rows"] for file in files),
            "files": files,
        }
    _log.info("ingest: %d Parquet files written", len(files))
    return target.manifest


def _add(
    sources: Sequence[str], form: TextFormat, read_as: str, layout: Layout, target: LakeTarget, report: _Report
) -> None:
    """Write rows beside those of a lake, under its types; its manifest then lists both, with columns that are new."""
    before = target.manifest
    by, version = before.get("partitioned_by"), int(before.get("version", 1)) + 1
    if layout.by not in (None, by):
        raise UsageError(f"--by {layout.by}: the lake is laid out {f'by {by}' if by else 'without folders'}")
    known = {name: pa.type_for_alias(kind) for name, kind in before["columns"].items()}
    schema = _types(sources, form, replace(layout, by=by), report, known)
    files = _write(sources, form, replace(layout, by=by), schema, target, report)
    _log.info("ingest: %d Parquet files added", len(files))
    target.manifest = {
        **before,
        "version": version,
        "read_as": read_as,
        "sources": [*before.get("sources", ()), *(Path(shown(source)).name for source in sources)],
        "columns": {**before["columns"], **{column.name: str(column.type) for column in schema}},
        "rows": before["rows"] + sum(file["rows"] for file in files),
        "files": [*before["files"], *({**file, "version": version} for file in files)],
    }


def _types(
    sources: Sequence[str], form: TextFormat, layout: Layout, report: _Report, known: Mapping[str, pa.DataType]
) -> pa.Schema:
    """The narrowest type of each column over all files: boolean, int64, double, date, moment, else text.

    A type that the lake has already is kept.
    """
    names: list[str] | None = None
    guesses: dict[str, _Guess] = {}
    for source in sources:
        for table in read_text(source, form):
            if names is None:
                names = table.column_names
                guesses = {name: _Guess() for name in names}
            elif table.column_names != names:
                raise DataError(f"{shown(source)}: has other columns than {shown(sources[0])}")
            for name, column in zip(names, table.columns, strict=True):
                if name not in known:
                    guesses[name].see(column)
                elif not pa.types.is_string(known[name]) and not _fits(column, known[name]):
                    raise DataError(
                        f"{shown(source)}: column {name!r} is {known[name]} in the lake and holds other values here; "
                        "mend the file, or ingest everything anew"
                    )
        report.next()
    if names is None:
        raise DataError(f"{shown(sources[0])}: has no rows")
    for option, wanted in (
        ("--text", layout.text),
        ("--drop", layout.drop),
        ("--by", (layout.by,) if layout.by else ()),
    ):
        for name in wanted:
            if name not in names:
                raise UsageError(f"{option} {name}: there is no such column; there are {', '.join(names[:30])}")
    found = {n: pa.string() if n in (*layout.text, layout.by) else guesses[n].kind for n in names} | {
        n: kind for n, kind in known.items() if n in names
    }
    return pa.schema([pa.field(n, kind) for n, kind in found.items() if n not in layout.drop])


class _Report:
    """Tells how many passes over sources are done."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self.progress, self.done, self.total = progress, 0, total

    def next(self) -> None:
        """One more is done."""
        self.done += 1
        if self.progress is not None:
            self.progress(self.done, self.total)


class _Guess:
    """Narrows one column's type as its text goes by."""

    def __init__(self) -> None:
        self.open = [pa.bool_(), pa.int64(), pa.float64(), pa.date32(), pa.timestamp("us")]
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
            raise DataError(f"{shown(source)}: column {column.name!r} changed while it was read") from None
    return pa.table(columns, schema=schema)


def _write(
    sources: Sequence[str],
    form: TextFormat,
    layout: Layout,
    schema: pa.Schema,
    target: LakeTarget,
    report: _Report,
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
                        shelves[where] = _Shelf(target, where, stored, group, file)
                    shelves[where].add(rows)
            report.next()
        for shelf in shelves.values():
            shelf.close()
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{target.folder}: cannot be written ({first_line(error)})") from error
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

    target: LakeTarget
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
        """Close the current file after a failure."""
        if self.writer is not None:
            with contextlib.suppress(Exception):
                self.writer.close()
            self.writer = None

    def _put(self, rows: pa.Table) -> None:
        if self.writer is None:
            folder, store = f"{self.target.folder}{self.where}", self.target.filesystem
            if self.where and not self.files:
                store.create_dir(folder, recursive=True)
            name = f"{self.target.prefix}{len(self.files):05d}.parquet"
            self.files.append({"path": f"{self.where}/{name}".lstrip("/"), "rows": 0})
            self.writer = pq.ParquetWriter(
                f"{folder}/{name}", self.schema, filesystem=store, compression="zstd", write_page_checksum=True
            )
        self.writer.write_table(rows, row_group_size=self.group_rows)
        self.files[-1]["rows"] += rows.num_rows
        if self.files[-1]["rows"] >= self.file_rows:
            self._finish()

    def _finish(self) -> None:
        if self.writer is not None:
            self.writer.close()
            self.writer = None
