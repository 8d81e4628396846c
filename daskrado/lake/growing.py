"""Adding rows to an ingested lake, and making few large files of its many small ones.

New files lie beside the old ones and do not count until the manifest lists them; the manifest changes at once, by a
rename here and by one put on an object store. So whoever reads sees the lake before or after, and a writer that dies
leaves files that nobody reads, which the next writer removes. Two writers at once exclude each other.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock, Timeout
from pyarrow import fs as pafs

from daskrado.errors import DataError, UsageError
from daskrado.lake.files import INCOMPLETE, first_line, remote, shown
from daskrado.lake.listing import BATCH, read_manifest
from daskrado.lake.ownership import MANIFEST
from daskrado.lake.publish import LakeTarget
from daskrado.table.yaml_file import write_text

_APPENDING = "_appending-"  # begins the name of a writer's mark on an object store
_SMALL_ROWS = 1 << 17  # a file with fewer rows is small
_FILE_ROWS = 1 << 20


@contextlib.contextmanager
def growing_lake(out: str) -> Iterator[LakeTarget]:
    """A lake to add files to: its ``manifest`` as it is. What the block leaves there counts, if it ends well."""
    local = "://" not in out
    filesystem, folder = (pafs.LocalFileSystem(), str(Path(out).absolute())) if local else remote(out)
    folder = folder.rstrip("/")
    try:
        there = _files(filesystem, folder)
        if any(path == f"{folder}/{INCOMPLETE}" for path in there):
            raise UsageError(f"{shown(out)}: is being written, or its writer was cut off (it holds {INCOMPLETE})")
        none = UsageError(
            f"{shown(out)}: is no lake that daskrado ingest wrote (it has no {MANIFEST}); make one without --append"
        )
        if f"{folder}/{MANIFEST}" not in there:  # before the lock, which would make the folder
            raise none
        with _alone(filesystem, folder, shown(out), local=local):
            before = read_manifest(filesystem, folder, shown(out))
            if before is None:
                raise none
            _remove_unlisted(filesystem, folder, before)
            target = LakeTarget(filesystem, folder, f"part-{secrets.token_hex(4)}-", before)
            try:
                yield target
                _commit(target, local=local)
            except BaseException:
                with contextlib.suppress(OSError, pa.ArrowException):
                    _remove_unlisted(filesystem, folder, before)
                raise
            _remove_unlisted(filesystem, folder, target.manifest)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{shown(out)}: cannot be written ({first_line(error)})") from error


def _commit(target: LakeTarget, *, local: bool) -> None:
    """Let the new files count, all at once."""
    if local:
        write_text(Path(target.folder, MANIFEST), json.dumps(target.manifest, indent=2) + "\n")
    else:
        target.write_manifest()


@contextlib.contextmanager
def _alone(filesystem: pafs.FileSystem, folder: str, name: str, *, local: bool) -> Iterator[None]:
    """Exclude other writers. On an object store two that begin at the same moment both step back."""
    busy = f"{name}: another process is adding to this lake"
    if local:
        try:
            with FileLock(f"{folder}/.{MANIFEST}.lock", timeout=0):
                yield
        except Timeout:
            raise UsageError(f"{busy}; wait for it") from None
        return
    mark = f"{folder}/{_APPENDING}{secrets.token_hex(8)}"
    with filesystem.open_output_stream(mark) as stream:
        stream.write(b"a writer is adding to this lake, or was cut off\n")
    try:
        marks = [path for path in _files(filesystem, folder) if path.startswith(f"{folder}/{_APPENDING}")]
        if marks != [mark]:
            other = next(path for path in marks if path != mark).rpartition("/")[2]
            raise UsageError(f"{busy}, or was cut off; wait for it, or remove {other}")
        yield
    finally:
        filesystem.delete_file(mark)


def _remove_unlisted(filesystem: pafs.FileSystem, folder: str, manifest: dict[str, Any]) -> None:
    """Remove what an append that was cut off left behind, and files that a compaction replaced."""
    listed = {f"{folder}/{file['path']}" for file in manifest["files"]}
    replaced = {f"{folder}/{path}" for path in manifest.get("replaced", ())}
    for path in _files(filesystem, folder):
        if path not in listed and (path in replaced or BATCH.fullmatch(path.rpartition("/")[2])):
            filesystem.delete_file(path)


def _files(filesystem: pafs.FileSystem, folder: str) -> list[str]:
    selector = pafs.FileSelector(folder, recursive=True, allow_not_found=True)
    return [info.path for info in filesystem.get_file_info(selector) if info.type == pafs.FileType.File]


def compact_lake(out: str) -> tuple[int, int]:
    """Rewrite small files of each folder as few large ones; returns the numbers of files before and after.

    Rows, their order and so every sum and the fingerprint stay; versions before this one can no longer be named.
    """
    with growing_lake(out) as target:
        before = target.manifest["files"]
        folders: dict[str, list[dict[str, Any]]] = {}
        for file in before:
            folders.setdefault(file["path"].rpartition("/")[0], []).append(file)
        small = {where: files for where, files in folders.items() if _is_worth_it(files)}
        written = [file for where, files in sorted(small.items()) for file in _rewritten(target, where, files)]
        kept = [file for where, files in folders.items() if where not in small for file in files]
        if not written:
            return len(before), len(before)
        version = int(target.manifest.get("version", 1)) + 1
        files = sorted([*kept, *({**file, "version": version} for file in written)], key=lambda file: file["path"])
        replaced = sorted(file["path"] for files in small.values() for file in files)
        target.manifest |= {"version": version, "compacted": version, "files": files, "replaced": replaced}
    return len(before), len(files)


def _is_worth_it(files: list[dict[str, Any]]) -> bool:
    return len([file for file in files if file["rows"] < _SMALL_ROWS]) > 1


def _rewritten(target: LakeTarget, where: str, files: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The rows of a folder's files, in their order, in files of about a million rows."""
    places = [f"{target.folder}/{file['path']}" for file in files]
    schemas = [pq.read_schema(place, filesystem=target.filesystem).remove_metadata() for place in places]
    schema = pa.unify_schemas(schemas)
    number, held, path, writer = 0, 0, "", None
    for place in places:
        with target.filesystem.open_input_file(place) as source:
            parquet = pq.ParquetFile(source, page_checksum_verification=True)
            for group in range(parquet.num_row_groups):
                table = parquet.read_row_group(group)
                if writer is None:
                    path = "/".join(filter(None, [where, f"{target.prefix}{number:05d}.parquet"]))
                    writer = pq.ParquetWriter(
                        f"{target.folder}/{path}",
                        schema,
                        filesystem=target.filesystem,
                        compression="zstd",
                        write_page_checksum=True,
                    )
                writer.write_table(_as(table, schema))
                held += table.num_rows
                if held >= _FILE_ROWS:
                    writer.close()
                    yield {"path": path, "rows": held}
                    number, held, writer = number + 1, 0, None
    if writer is not None:
        writer.close()
        yield {"path": path, "rows": held}


def _as(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """A table with all columns of a schema; those that it lacks are null."""
    columns = [
        table.column(field.name) if field.name in table.column_names else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)
