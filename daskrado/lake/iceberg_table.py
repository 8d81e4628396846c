"""Iceberg tables: their metadata says which files and deletes make a snapshot, and which field a column is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs as pafs

from daskrado.errors import DataError, UsageError
from daskrado.lake.snapshots import TableColumn, TableFile, TableVersion, library

_NUMBER = re.compile(r"v?(\d+)(-[^/]*)?\.metadata\.json(\.gz)?$")


def iceberg_files(
    address: str, metadata: Sequence[str] | None, snapshot: int | None, shown: str
) -> tuple[TableVersion, list[TableFile]]:
    """The files of an Iceberg table at a snapshot, or at its newest.

    ``address`` is CATALOG.TABLE, read through the catalog of that name in the library's own configuration, or a
    ``metadata.json``; for a table's folder ``metadata`` lists its metadata files, of which the newest counts.
    """
    library("iceberg", "pyiceberg", shown)
    from pyiceberg.exceptions import (
        NoSuchNamespaceError,
        NoSuchTableError,
        NotInstalledError,
        ValidationError,
    )

    try:
        table = _from_catalog(address) if metadata is None else _from_metadata(newest(metadata, shown))
        chosen = table.current_snapshot() if snapshot is None else table.snapshot_by_id(snapshot)
        if chosen is None and snapshot is not None:
            known = ", ".join(str(s.snapshot_id) for s in table.snapshots()[-3:])
            raise DataError(
                f"{shown}: the Iceberg table has no snapshot {snapshot}; its newest are {known or 'none'}"
            )
        scan = table.scan(snapshot_id=None if chosen is None else chosen.snapshot_id)
        tasks = [] if chosen is None else list(scan.plan_files())
        identity, number = str(table.metadata.table_uuid), 0 if chosen is None else int(chosen.snapshot_id)
        columns = tuple(_columns(scan.projection()))
        files = [_file(table, task, shown) for task in sorted(tasks, key=lambda task: str(task.file.file_path))]
    except NotInstalledError as error:
        raise UsageError(f"{shown}: {_line(error)}") from error
    except (NoSuchTableError, NoSuchNamespaceError, ValidationError, ValueError, KeyError, OSError) as error:
        raise DataError(f"{shown}: the Iceberg table cannot be read ({_line(error)})") from error
    return TableVersion("iceberg", number, identity, columns), files


def newest(metadata: Sequence[str], shown: str) -> str:
    """The metadata file with the largest number; two with one number are told apart by a catalog only."""
    numbered = {path: int(found[1]) for path in metadata if (found := _NUMBER.search(path.rpartition("/")[2]))}
    if not numbered:
        raise DataError(f"{shown}: the Iceberg table has no numbered metadata; name it as CATALOG.TABLE")
    last = [path for path, number in numbered.items() if number == max(numbered.values())]
    if len(last) > 1:
        raise DataError(
            f"{shown}: the Iceberg table has {len(last)} metadata files with number {numbered[last[0]]}; "
            "only its catalog knows which counts: name it as CATALOG.TABLE"
        )
    return last[0]


def _from_catalog(address: str) -> Any:
    from pyiceberg.catalog import load_catalog

    catalog, _, table = address.partition(".")
    if not table:
        raise UsageError(f"lake.iceberg: must be CATALOG.TABLE or the table's folder, got {address!r}")
    return load_catalog(catalog).load_table(table)


def _from_metadata(path: str) -> Any:
    from pyiceberg.table import StaticTable

    return StaticTable.from_metadata(path)


def _columns(schema: Any) -> list[TableColumn]:
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    types = schema_to_pyarrow(schema, include_field_ids=False)
    return [TableColumn(f.name, types.field(f.name).type, f.name, f.field_id) for f in schema.fields]


def _parts(table: Any, file: Any) -> tuple[tuple[str, str | None], ...]:
    """A file's values of the partitions that it was written under: of a column, or of its days, months and the like.

    A partition is called as its column is called now, or, where it is made of one (``visited_day``), by its own name.
    """
    schema, found = table.schema(), []
    for place, part in enumerate(table.specs()[file.spec_id].fields):
        name = schema.find_column_name(part.source_id)
        value = None if name is None else file.partition[place]
        text = None if value is None else part.transform.to_human_string(schema.find_type(part.source_id), value)
        found.append((name if name and str(part.transform) == "identity" else part.name, text))
    return tuple(found)


def _file(table: Any, task: Any, shown: str) -> TableFile:
    from pyiceberg.manifest import DataFileContent, FileFormat

    if task.file.file_format != FileFormat.PARQUET:
        raise DataError(f"{shown}: {task.file.file_path} is {task.file.file_format.value}; only Parquet is read")
    for delete in task.delete_files:
        if delete.content != DataFileContent.POSITION_DELETES or delete.file_format != FileFormat.PARQUET:
            raise DataError(
                f"{shown}: the snapshot has equality deletes or deletion vectors, which are not read here; "
                "rewrite its data files, then name the new snapshot"
            )
    deleted = [_positions(delete.file_path, task.file.file_path) for delete in task.delete_files]
    gone = np.unique(np.concatenate(deleted)) if deleted else None
    return TableFile(task.file.file_path, (), gone, _parts(table, task.file))


def _positions(delete_file: str, data_file: str) -> Any:
    filesystem, path = pafs.FileSystem.from_uri(delete_file) if "://" in delete_file else (None, delete_file)
    table = pq.read_table(path, filesystem=filesystem, columns=["file_path", "pos"])
    mine = pa.compute.equal(table["file_path"], data_file)
    return table.filter(mine)["pos"].to_numpy()


def _line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return text[0] if text else type(error).__name__
