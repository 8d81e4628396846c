"""Delta tables: their log says which files, partition values and deletion vectors make a version."""

from __future__ import annotations

from types import ModuleType
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import numpy as np
import pyarrow as pa

from daskrado.errors import DataError
from daskrado.lake.snapshots import TableColumn, TableFile, TableVersion, library

_PHYSICAL = b"delta.columnMapping.physicalName"
_OPTIONS = {"endpoint_override": "AWS_ENDPOINT_URL", "region": "AWS_REGION"}


def delta_files(address: str, root: str, version: int | None, shown: str) -> tuple[TableVersion, list[TableFile]]:
    """The files of a Delta table at a version, or at its newest."""
    deltalake = library("delta", "deltalake", shown)
    try:
        table = deltalake.DeltaTable(*_place(address), version=version, storage_options=_options(address))
        actions = pa.table(table.get_add_actions(flatten=True))
        schema = pa.schema(table.schema().to_arrow())
        deleted = _deleted(table)
        identity, number = str(table.metadata().id), int(table.version())
        partitioned = list(table.metadata().partition_columns)
    except (deltalake.exceptions.DeltaError, OSError, ValueError) as error:
        why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if version is not None and (newest := _newest(deltalake, address)) is not None and newest < version:
            raise DataError(f"{shown}: the Delta table has no version {version}; its newest is {newest}") from error
        at = "" if version is None else f" at version {version}"
        raise DataError(f"{shown}: the Delta table{at} cannot be read ({why})") from error
    columns = tuple(_column(field) for field in schema if field.name not in partitioned)
    rows = actions.to_pylist()
    files = [_file(root, row, partitioned, deleted) for row in sorted(rows, key=lambda row: str(row["path"]))]
    if sum(file.deleted is not None for file in files) != len(deleted):
        raise DataError(f"{shown}: the Delta table has deletion vectors of files that it does not list; rewrite it")
    return TableVersion("delta", number, identity, columns), files


def _newest(deltalake: ModuleType, address: str) -> int | None:
    """The newest version of a table; None where it cannot be read either."""
    try:
        return int(deltalake.DeltaTable(*_place(address), storage_options=_options(address)).version())
    except (deltalake.exceptions.DeltaError, OSError, ValueError):
        return None


def _column(field: pa.Field) -> TableColumn:
    stored = (field.metadata or {}).get(_PHYSICAL)
    return TableColumn(field.name, field.type, field.name if stored is None else stored.decode())


def _file(root: str, row: dict[str, Any], partitioned: list[str], deleted: dict[str, Any]) -> TableFile:
    path = unquote(row["path"])
    whole = path if "://" in path or path.startswith("/") else f"{root}/{path}"
    values = tuple((name, _text(row.get(f"partition.{name}"))) for name in partitioned)
    found = [positions for name, positions in deleted.items() if unquote(name).endswith(f"/{path.lstrip('/')}")]
    return TableFile(whole, values, found[0] if found else None)


def _text(value: Any) -> str | None:
    return None if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _deleted(table: Any) -> dict[str, Any]:
    """Positions of deleted rows, by the file's address."""
    if "deletionVectors" not in (table.protocol().reader_features or ()):
        return {}
    vectors = pa.table(table.deletion_vectors())
    return {
        str(name): np.flatnonzero(~np.asarray(mask, dtype=bool))
        for name, mask in zip(vectors["filepath"].to_pylist(), vectors["selection_vector"].to_pylist(), strict=True)
    }


def _place(address: str) -> tuple[str]:
    return (address.partition("?")[0],) if "://" in address else (address,)


def _options(address: str) -> dict[str, str] | None:
    """The options of an object store as the library of Delta calls them."""
    if "://" not in address:
        return None
    given = {key: values[0] for key, values in parse_qs(urlsplit(address).query).items()}
    options = {_OPTIONS[key]: value for key, value in given.items() if key in _OPTIONS}
    if "AWS_ENDPOINT_URL" in options and "://" not in options["AWS_ENDPOINT_URL"]:
        options["AWS_ENDPOINT_URL"] = f"{given.get('scheme', 'https')}://{options['AWS_ENDPOINT_URL']}"
    return {**options, "AWS_ALLOW_HTTP": "true"} if given.get("scheme") == "http" else options
