"""Versions of tables: which files a Delta or Iceberg table, or a lake that grows, is made of, and where columns lie.

A folder of such a table also holds files of versions that were replaced or deleted. Only the table's log says which
rows are meant, so its folder is never read as plain Parquet.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import fs as pafs

from daskrado.errors import DataError, UsageError
from daskrado.lake.block_facts import public_name

# Each form of table with the key that names a version of it; a folder is a lake that ``ingest`` wrote.
FORMS = {"delta": "version", "iceberg": "snapshot", "folder": "version"}
UNREAD = {"hudi": "a Hudi table", "stream": "the output of a Spark stream"}
LOGS = {"_delta_log": "delta", ".hoodie": "hudi", "_spark_metadata": "stream"}  # folders that say which files count
_HUDI_PART = ".hoodie_partition_metadata"  # a file in each partition of a Hudi table
MARKS = (*LOGS, "metadata", _HUDI_PART)
_ICEBERG = (".metadata.json", ".metadata.json.gz", ".avro", "version-hint.text")  # in the folder "metadata"


@dataclass(frozen=True)
class TableColumn:
    """A column of a table: its name now, its type, and by what a file's column is known to be it."""

    name: str
    type: pa.DataType
    stored: str  # its name in files
    field_id: int | None = None  # by which Iceberg finds it, under whatever name the file has


@dataclass(frozen=True)
class TableVersion:
    """One version of a table."""

    form: str
    version: int
    identity: str = field(repr=False)  # the table's own, the same at every version; "" where it has none
    columns: tuple[TableColumn, ...]

    @property
    def facts(self) -> dict[str, Any]:
        """What a manifest says of it."""
        return {"format": self.form, "version": self.version, "table": public_name(self.identity)}

    def places(self, schema: pa.Schema) -> dict[str, str | None]:
        """For each column of the table its name in a file with this schema; None where the file is older than it."""
        ids = {_field_id(field): field.name for field in schema}
        if set(ids) == {None}:  # a file from before the table, known by names
            return {column.name: column.stored if column.stored in schema.names else None for column in self.columns}
        return {
            column.name: ids.get(column.field_id) if column.field_id is not None else _same(column.stored, schema)
            for column in self.columns
        }


@dataclass(frozen=True)
class TableFile:
    """A file of a table: its path, the values that are kept in the log alone, its deleted rows by position.

    ``parts`` are the values of the table's partitions that the file's rows hold as well.
    """

    path: str
    values: tuple[tuple[str, str | None], ...] = ()
    deleted: NDArray[np.int64] | None = None
    parts: tuple[tuple[str, str | None], ...] = ()


def _field_id(field: pa.Field) -> int | None:
    found = (field.metadata or {}).get(b"PARQUET:field_id")
    return None if found is None else int(found)


def _same(name: str, schema: pa.Schema) -> str | None:
    return name if name in schema.names else None


def table_address(source: Mapping[str, Any]) -> tuple[str, str, int | None]:
    """The form, the address and the version that the keys of a table name."""
    forms = [form for form in FORMS if form in source]
    allowed = (
        "{delta: ADDRESS, version: NUMBER}, {iceberg: CATALOG.TABLE or ADDRESS, snapshot: NUMBER} or "
        "{folder: ADDRESS, version: NUMBER}"
    )
    if len(forms) != 1 or set(source) - {forms[0], FORMS[forms[0]]}:
        raise UsageError(f"lake: a table is {allowed}, got the keys {', '.join(map(str, source)) or 'of nothing'}")
    form = forms[0]
    address, version = source[form], source.get(FORMS[form])
    if not isinstance(address, str | os.PathLike) or not os.fspath(address):
        raise UsageError(f"lake.{form}: must be an address, got {type(address).__name__}")
    if version is not None and (isinstance(version, bool) or not isinstance(version, int) or version < 0):
        raise UsageError(f"lake.{FORMS[form]}: must be a whole number of 0 or more, got {version!r}")
    return form, os.fspath(address), version


def table_keys(form: str, address: str, version: int | None) -> dict[str, Any]:
    """The keys that name a table, at a version or at its newest."""
    return {form: address} | ({} if version is None else {FORMS[form]: version})


def ends(infos: Sequence[pafs.FileInfo]) -> Iterator[str]:
    """The paths of files, and of empty folders with a / at their end."""
    held = {os.path.dirname(info.path) for info in infos}
    for info in infos:
        if info.type != pafs.FileType.Directory:
            yield info.path
        elif info.path not in held:
            yield f"{info.path}/"


def table_in(folder: str, paths: Iterable[str]) -> tuple[str, str] | None:
    """The form and the folder of the table whose own files are among the paths below a folder, outermost first.

    A path that ends in / is an empty folder: a table that lost its log is no plain folder either.
    """
    parts = (f"{os.path.relpath(path, folder)}{'/' * path.endswith('/')}".split("/") for path in paths)
    found = [mark for mark in map(_mark, parts) if mark is not None]
    if not found:
        return None
    form, below = min(found, key=lambda mark: len(mark[1]))
    return form, "/".join([folder, *below])


def _mark(parts: Sequence[str]) -> tuple[str, list[str]] | None:
    for name, form in LOGS.items():
        if name in parts[:-1]:
            return form, [*parts[: parts.index(name)]]
    if parts[-1].startswith(_HUDI_PART):
        return "hudi", [*parts[:-1]]
    if len(parts) > 1 and parts[-2] == "metadata" and (not parts[-1] or parts[-1].endswith(_ICEBERG)):
        return "iceberg", [*parts[:-2]]
    return None


def part_of(form: str, folder: str, shown: str) -> UsageError:
    """What to raise where an address reads a part of a table, or a form that nothing here reads."""
    if form in UNREAD:
        return UsageError(f"{shown}: {folder} is {UNREAD[form]}, which is not read here; export it as Parquet")
    return UsageError(
        f"{shown}: reads a part of the {form.title()} table {folder}, with files of its other versions; "
        f"name the table: {{{form}: {folder}}}"
    )


def library(form: str, name: str, address: str) -> ModuleType:
    """The library that reads a form of table, an extra of this package."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != name.partition(".")[0]:
            raise
        raise UsageError(
            f"{address}: is {'an Iceberg' if form == 'iceberg' else 'a Delta'} table; to read it, install "
            f"daskrado[{form}]"
        ) from None


def gone(address: str, form: str, version: int, path: str) -> DataError:
    """What to raise where a version lists a file that is not there any more."""
    return DataError(
        f"{address}: {FORMS[form]} {version} needs {os.path.basename(path)}, which is gone (vacuumed or expired?); "
        f"choose a newer {FORMS[form]}"
    )
