"""Text tables become a Parquet lake: typed columns, files and row groups fit for workers, a manifest, all or nothing.

Two passes over the text: the first finds the narrowest type that holds every value of a column, the second writes.
A lake on this machine appears by one rename. An object store has no rename, so there a marker is put before the first
object and taken away after the last; a lake that still has its marker is refused by every reader here. Rows are
added to a lake by one change of its manifest.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import daskrado
from daskrado.errors import DataError, UsageError
from daskrado.lake.files import HIVE_NULL, first_line, hive_values, shown
from daskrado.lake.growing import growing_lake
from daskrado.lake.narrow_types import Guess, fits
from daskrado.lake.ownership import LAKE_SCHEMA
from daskrado.lake.pieces import Piece, in_turn, pieces
from daskrado.lake.publish import LakeTarget, new_lake
from daskrado.lake.sniff import sniffed
from daskrado.lake.text_tables import TextFormat

if TYPE_CHECKING:
    from distributed import Client

_GROUP_BYTES = 32 << 20  # decoded; a worker holds a group and its encoded rows at once
_FILE_GROUPS = 8
_MAX_FOLDERS = 256

Progress = Callable[[int, int], None]
Closed = Callable[[str, str], Mapping[str, str]]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Layout:
    """How rows are laid out; row counts left open are chosen so that a group has about 32 MB in memory.

    ``record`` names a column of ids to add. They are random: an id says nothing of its row or of any other, so that
    what goes by it (hold-outs, samples) changes with one row only in that row.
    """

    by: str | None = None
    group_rows: int | None = None
    file_rows: int | None = None
    text: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    record: str | None = None

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
    closed: Closed | None = None,
    client: Client | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Write the rows of some text tables as one lake, or add them to one, and return its manifest.

    Workers of a ``client`` parse and write in parallel, large files in pieces; they must reach sources and lake. The
    manifest holds row counts, so it is as private as the lake it lies in. ``closed`` says, of a lake's identity and
    the column of its folders, which blocks a ledger has closed: an append to one of them is refused.
    """
    form, layout = form or TextFormat(), layout or Layout()
    if not sources:
        raise UsageError("give at least one file to ingest")
    if append and overwrite:
        raise UsageError("--append adds to a lake and --overwrite replaces it; give one of them")
    form, read_as = sniffed(sources[0], form, layout.text)
    _log.info("ingest: %s", read_as)
    work = _Work(form, layout, pieces(sources, form, client), client, progress)
    if append:
        with growing_lake(out) as target:
            _add(work, sources, read_as, target)
            if closed is not None:
                _check_open(target.manifest, closed)
        return target.manifest
    schema = work.types({})
    _log.info("ingest: %d columns in %d files", len(schema), len(sources))
    with new_lake(out, overwrite=overwrite) as target:
        files = work.write(schema, target)
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
            **({} if layout.record is None else {"id": layout.record}),
            "rows": sum(file["rows"] for file in files),
            "files": files,
        }
    _log.info("ingest: %d Parquet files written", len(files))
    return target.manifest


def _add(work: _Work, sources: Sequence[str], read_as: str, target: LakeTarget) -> None:
    """Write rows beside those of a lake, under its types; its manifest then lists both, with columns that are new."""
    before, layout = target.manifest, work.layout
    by, version = before.get("partitioned_by"), int(before.get("version", 1)) + 1
    if layout.by not in (None, by):
        raise UsageError(f"--by {layout.by}: the lake is laid out {f'by {by}' if by else 'without folders'}")
    if layout.record not in (None, before.get("id")):
        raise UsageError(f"--id {layout.record}: the rows of the lake have no such ids; ingest everything anew")
    work.layout = replace(layout, by=by, record=before.get("id"))
    schema = work.types({name: pa.type_for_alias(kind) for name, kind in before["columns"].items()})
    files = work.write(schema, target)
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


def _check_open(manifest: Mapping[str, Any], closed: Closed) -> None:
    """Refuse new rows for a block that a ledger has charged: what it can lose was fixed before its first release."""
    by = manifest.get("partitioned_by")
    known = closed(str(manifest.get("lake", "")), by) if by else {}
    new = [file["path"] for file in manifest["files"] if file.get("version") == manifest["version"]]
    late = [value for path in new for name, value in hive_values(path) if name == by and value in known]
    if late:
        raise UsageError(
            f"--append: block {by}={late[0]} is closed, since runs on data set {known[str(late[0])]!r} have read it; "
            f"nothing was added; give late rows a later value of {by!r}"
        )


@dataclass
class _Work:
    """Two passes over the pieces of some text tables, here or on workers."""

    form: TextFormat
    layout: Layout
    pieces: list[Piece]
    client: Client | None
    progress: Progress | None
    done: int = 0

    def _next(self) -> None:
        self.done += 1
        if self.progress is not None:
            self.progress(self.done, 2 * len(self.pieces))

    def types(self, known: Mapping[str, pa.DataType]) -> pa.Schema:
        """The narrowest type of each column over all files: boolean, int64, double, date, moment, else text.

        A type that the lake has already is kept.
        """
        names: list[str] | None = None
        guesses: dict[str, Guess] = {}
        seen = in_turn(self.client, partial(_guesses, self.form, known), self.pieces, self._next)
        for piece, found in zip(self.pieces, seen, strict=True):
            if found is None:
                continue
            if names is None:
                names, guesses = list(found), found
            elif list(found) != names:
                first = shown(self.pieces[0].source)
                raise DataError(f"{shown(piece.source)}: has other columns than {first}")
            else:
                guesses = {name: guesses[name].both(found[name]) for name in names}
        if names is None:
            raise DataError(f"{shown(self.pieces[0].source)}: has no rows")
        self._check_columns(names)
        text = (*self.layout.text, self.layout.by)
        kinds = {n: known.get(n) or (pa.string() if n in text else guesses[n].kind) for n in names}
        fields = [pa.field(n, kind) for n, kind in kinds.items() if n not in self.layout.drop]
        record = self.layout.record
        return pa.schema([*fields, *([] if record is None else [pa.field(record, pa.int64())])])

    def _check_columns(self, names: Sequence[str]) -> None:
        if self.layout.record in names:
            raise UsageError(f"--id {self.layout.record}: there is such a column already; give another name")
        by = (self.layout.by,) if self.layout.by else ()
        for option, wanted in (("--text", self.layout.text), ("--drop", self.layout.drop), ("--by", by)):
            for name in wanted:
                if name not in names:
                    raise UsageError(f"{option} {name}: there is no such column; there are {', '.join(names[:30])}")

    def write(self, schema: pa.Schema, target: LakeTarget) -> list[dict[str, Any]]:
        """Write all rows; returns the files, by folder and in the order of the rows."""
        if self.client is None:
            return _write(self.form, self.layout, schema, target, False, (0, self.pieces), self._next)
        task = partial(_write, self.form, self.layout, schema, target, True)
        batches = [(number, [piece]) for number, piece in enumerate(self.pieces)]
        found = in_turn(self.client, task, batches, self._next)
        return sorted(itertools.chain(*found), key=lambda file: str(file["path"]))


def _guesses(form: TextFormat, known: Mapping[str, pa.DataType], piece: Piece) -> dict[str, Guess] | None:
    """What a piece shows of each column's type; None if it has no rows."""
    guesses: dict[str, Guess] | None = None
    for table in piece.tables(form):
        if guesses is None:
            guesses = {name: Guess() for name in table.column_names}
        for name, column in zip(table.column_names, table.columns, strict=True):
            if name not in known:
                guesses[name].see(column)
            elif not pa.types.is_string(known[name]) and not fits(column, known[name]):
                raise DataError(
                    f"{shown(piece.source)}: column {name!r} is {known[name]} in the lake and holds other values "
                    "here; mend the file, or ingest everything anew"
                )
    return guesses


def _typed(table: pa.Table, schema: pa.Schema, source: str) -> pa.Table:
    columns = []
    for column in schema:
        try:
            columns.append(table.column(column.name).cast(column.type))
        except (pa.ArrowInvalid, KeyError):
            raise DataError(f"{shown(source)}: column {column.name!r} changed while it was read") from None
    return pa.table(columns, schema=schema)


def _write(
    form: TextFormat,
    layout: Layout,
    schema: pa.Schema,
    target: LakeTarget,
    several: bool,
    batch: tuple[int, Sequence[Piece]],
    tick: Callable[[], None] | None = None,
) -> list[dict[str, Any]]:
    """Write the rows of some pieces; where there are several batches, their numbers begin the names of files."""
    number, pieces = batch
    group, file = layout.sizes(schema)
    stored = schema if layout.by is None else schema.remove(schema.get_field_index(layout.by))
    names = f"{target.prefix}{number:05d}" if several else target.prefix
    shelves: dict[str, _Shelf] = {}
    try:
        for piece in pieces:
            for text in piece.tables(form):
                if layout.record is not None:
                    text = text.append_column(layout.record, _random_ids(text.num_rows))
                for where, rows in _split(_typed(text, schema, piece.source), layout.by):
                    if where not in shelves:
                        if len(shelves) == _MAX_FOLDERS:
                            raise UsageError(f"--by {layout.by}: has more than {_MAX_FOLDERS} values")
                        shelves[where] = _Shelf(target, names, where, stored, group, file)
                    shelves[where].add(rows)
            if tick is not None:
                tick()
        for shelf in shelves.values():
            shelf.close()
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{target.folder}: cannot be written ({first_line(error)})") from error
    finally:
        for shelf in shelves.values():
            shelf.drop()
    return [file for where in sorted(shelves) for file in shelves[where].files]


def _random_ids(count: int) -> pa.Array:
    """63 random bits each."""
    return pa.array(np.frombuffer(os.urandom(8 * count), dtype=np.uint64) >> np.uint64(1)).cast(pa.int64())


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
    names: str
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
            name = f"{self.names}{len(self.files):05d}.parquet"
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
