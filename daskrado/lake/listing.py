"""The manifest of an ingested lake as its readers see it: the files that count, and the columns of the lake.

A file counts once the manifest lists it, so that an append is one change of one file: readers see the lake before it
or after it. What lies beside and is not listed is either left over from an append that was cut off, which its name
shows, or somebody else's, and then it is refused: no rows are left out in silence.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyarrow import fs as pafs

from daskrado.errors import DataError
from daskrado.lake.ownership import LAKE_SCHEMA, MANIFEST
from daskrado.lake.snapshots import TableColumn, TableVersion

BATCH = re.compile(r"part-[0-9a-f]{8}-\d{5,}\.parquet")  # a file that an append wrote


def listed_files(
    filesystem: pafs.FileSystem, folder: str, infos: Sequence[pafs.FileInfo], version: int | None, shown: str
) -> tuple[TableVersion, list[str]] | None:
    """The lake's version and the paths of its files; None for a folder without a manifest of ours."""
    if not any(info.path == f"{folder}/{MANIFEST}" for info in infos):
        return None
    content = read_manifest(filesystem, folder, shown)
    if content is None:
        return None
    newest = int(content.get("version", 1))
    chosen = newest if version is None else version
    if not int(content.get("compacted", 1)) <= chosen <= newest:
        oldest = content.get("compacted", 1)
        raise DataError(f"{shown}: has no version {chosen}; it has the versions {oldest} to {newest}")
    listed = {f"{folder}/{file['path']}": int(file.get("version", 1)) for file in content["files"]}
    there = {info.path for info in infos}
    lost = sorted(listed.keys() - there)
    if lost:
        raise DataError(f"{lost[0]}: is listed in {MANIFEST} and is gone; restore it")
    replaced = {f"{folder}/{path}" for path in content.get("replaced", ())}  # by a compaction that was cut off
    strange = [path for path in sorted(there - listed.keys() - replaced) if _counts(path[len(folder) + 1 :])]
    if strange:
        raise DataError(
            f"{strange[0]}: is not listed in {MANIFEST}, so its rows would be left out; add rows with "
            f"daskrado ingest --append, or remove {MANIFEST} to read every file"
        )
    by = content.get("partitioned_by")
    columns = tuple(
        TableColumn(name, pa.type_for_alias(kind), name) for name, kind in content["columns"].items() if name != by
    )
    identity = str(content.get("lake", ""))  # lakes of an older version have none
    paths = [path for path, added in sorted(listed.items()) if added <= chosen]
    return TableVersion("folder", chosen, identity, columns), paths


def _counts(relative: str) -> bool:
    """Whether an unlisted file would be taken for rows, and no append of ours left it."""
    name = relative.rpartition("/")[2]
    hidden = any(part.startswith((".", "_")) and "=" not in part for part in relative.split("/"))
    return not hidden and name.lower().endswith((".parquet", ".pq", ".parq")) and not BATCH.fullmatch(name)


def read_manifest(filesystem: pafs.FileSystem, folder: str, shown: str) -> dict[str, Any] | None:
    """The manifest of an ingested lake; None where it is another program's."""
    damaged = DataError(f"{shown}: {MANIFEST} is damaged; restore it, or remove it to read every file")
    try:
        with filesystem.open_input_stream(f"{folder}/{MANIFEST}") as stream:
            content = json.loads(stream.read())
    except ValueError:
        raise damaged from None
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{shown}: {MANIFEST} cannot be read ({str(error).splitlines()[0]})") from error
    if not isinstance(content, dict) or not str(content.get("schema", "")).startswith("daskrado.lake/"):
        return None
    if content["schema"] != LAKE_SCHEMA:
        raise DataError(f"{shown}: {MANIFEST} is {content['schema']}; this version reads {LAKE_SCHEMA}")
    try:
        if not all(isinstance(file["path"], str) and int(file["rows"]) >= 0 for file in content["files"]):
            raise damaged
        for kind in content["columns"].values():
            pa.type_for_alias(kind)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise damaged from None
    return content
