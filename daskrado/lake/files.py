"""Which files make a lake: folders, globs, hive trees, lists, and any address that pyarrow or fsspec reads."""

from __future__ import annotations

import contextlib
import fnmatch
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import fs as pafs

from daskrado.errors import DataError, UsageError
from daskrado.lake.listing import listed_files, read_manifest
from daskrado.lake.ownership import MANIFEST
from daskrado.lake.snapshots import (
    FORMS,
    LOGS,
    MARKS,
    UNREAD,
    TableFile,
    TableVersion,
    ends,
    gone,
    part_of,
    table_address,
    table_in,
)
from daskrado.table.nearest import did_you_mean

HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
INCOMPLETE = "_incomplete"  # lies in a lake that is being written where folders cannot be renamed


@dataclass(frozen=True)
class LakeFile:
    """One file of a lake, before its footer is read."""

    name: str
    path: str
    filesystem: pafs.FileSystem
    size: int
    modified: int
    hive: tuple[tuple[str, str | None], ...]
    table: TableVersion | None = None  # of which it is a file
    deleted: NDArray[np.int64] | None = None  # positions of rows that the table has deleted
    parts: tuple[tuple[str, str | None], ...] = ()  # values that the table is partitioned by and the rows hold too


def find_files(source: Any) -> list[LakeFile]:
    """The Parquet files of an address or a list of addresses, in name order. Hidden and ``_`` files are skipped.

    Folders such as ``site=north`` are columns if they lie below the address: below a folder, below the part of a glob
    before its first mark (``lake/site=*/*.parquet``, not ``lake/site=north/*.parquet``), or below what all items of a
    list have in common. What lies above says where a copy is kept, and nothing of its rows.

    A Delta or Iceberg table, named by its keys or by its folder, is the files of one version of it; a part of its
    folder is refused, since it holds files of other versions too.
    """
    if isinstance(source, Mapping):
        return _table_files(*table_address(source))
    if isinstance(source, list | tuple):
        if not source:
            raise UsageError("the list of lake files is empty")
        found = [_find(item) for item in source]
        if any(file.table is not None for _, files in found for file in files):
            raise UsageError("a list of lake files holds a Delta or Iceberg table; name one table, alone")
        base = _common([base for base, _ in found])
        files = [
            replace(file, name=file.path, hive=hive_values(os.path.relpath(file.path, base)))
            for _, files in found
            for file in files
        ]
        return _distinct(files)
    return _distinct(_find(source)[1])


def _find(source: Any) -> tuple[str, list[LakeFile]]:
    """The folder that an address is about, and its files."""
    if not isinstance(source, str | os.PathLike):  # its type only: it may hold rows
        raise UsageError(f"a lake's address must be text, got {type(source).__name__}")
    address = os.fspath(source)
    filesystem, path, info = _reached(address)
    if info.type == pafs.FileType.NotFound and any(mark in path for mark in "*?["):
        base, infos = _glob(filesystem, path)
        for folder in {base, *(os.path.dirname(info.path) for info in infos)}:
            _check_outside(filesystem, folder, address)
        infos = _listed(filesystem, infos, address)
    elif info.type == pafs.FileType.NotFound:
        folder = os.path.dirname(path) or "."
        beside = os.listdir(folder) if "://" not in address and os.path.isdir(folder) else []
        raise DataError(f"{shown(address)}: no such file or directory{did_you_mean(os.path.basename(path), beside)}")
    elif info.type == pafs.FileType.File:
        base, infos = os.path.dirname(path), [info]
        _check_outside(filesystem, base, address)
    else:
        base, everything = path, _everything(filesystem, path)
        infos = _files(everything)
        if (table := table_in(path, ends(everything))) is not None:
            form, folder = table
            if folder != path or form in UNREAD:
                raise part_of(form, folder, shown(address))
            return base, _table_files(form, address, None)
        _check_outside(filesystem, path, address)
        if any(i.base_name == INCOMPLETE for i in infos):
            raise DataError(f"{shown(address)}: is being written, or its writer was cut off (it holds {INCOMPLETE})")
        if listed_files(filesystem, path, infos, None, shown(address)) is not None:
            return base, _table_files("folder", address, None)
        infos = [i for i in infos if _is_data(filesystem, os.path.relpath(i.path, path), i)]
    for i in infos:
        if i.type != pafs.FileType.File:
            raise DataError(f"{i.path}: is not a file")
    if not infos:
        raise DataError(
            f"{shown(address)}: no Parquet file found; daskrado ingest makes a lake of CSV and ARFF files"
        )
    files = [
        LakeFile(name, i.path, filesystem, i.size, i.mtime_ns or 0, hive_values(name))
        for name, i in sorted((os.path.relpath(i.path, base), i) for i in infos)
    ]
    return base, files


def _reached(address: str) -> tuple[pafs.FileSystem, str, pafs.FileInfo]:
    """The filesystem of an address, the path on it, and what is there."""
    if "\0" in address:
        raise UsageError(f"a lake's address must not hold a zero byte, got {address!r}")
    if "://" in address:
        filesystem, path = remote(address)
    else:
        filesystem, path = pafs.LocalFileSystem(), str(Path(address).expanduser().absolute())
    try:
        return filesystem, path, filesystem.get_file_info(path)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{shown(address)}: cannot be reached ({first_line(error)})") from error


def _table_files(form: str, address: str, version: int | None) -> list[LakeFile]:
    """The files of one version of a table, each with what the table says of it."""
    found, files = {"delta": _delta, "iceberg": _iceberg, "folder": _folder}[form](address, version)
    if not files:
        raise DataError(f"{shown(address)}: {FORMS[form]} {found.version} of the table has zero rows")
    places = [_place(address, file.path) for file in files]
    filesystem = places[0][0]
    infos = filesystem.get_file_info([path for _, path in places])
    lost = next((info.path for info in infos if info.type != pafs.FileType.File), None)
    if lost is not None:
        raise gone(shown(address), form, found.version, lost)
    base = _reached(address)[1] if form == "folder" else _common([os.path.dirname(info.path) for info in infos])
    return [
        LakeFile(
            os.path.relpath(i.path, base),
            i.path,
            filesystem,
            i.size,
            i.mtime_ns or 0,
            f.values,
            found,
            f.deleted,
            f.parts,
        )
        for i, f in zip(infos, files, strict=True)
    ]


def _delta(address: str, version: int | None) -> tuple[TableVersion, list[TableFile]]:
    from daskrado.lake.delta_table import delta_files

    _, path, info = _reached(address)
    if info.type != pafs.FileType.Directory:
        raise DataError(f"{shown(address)}: no such Delta table")
    return delta_files(address, path, version, shown(address))


def _folder(address: str, version: int | None) -> tuple[TableVersion, list[TableFile]]:
    filesystem, path, info = _reached(address)
    if info.type != pafs.FileType.Directory:
        raise DataError(f"{shown(address)}: no such folder")
    found = listed_files(filesystem, path, _below(filesystem, path), version, shown(address))
    if found is None:
        raise DataError(f"{shown(address)}: has no {MANIFEST} of an ingested lake, so it has no versions")
    return found[0], [TableFile(name, hive_values(os.path.relpath(name, path))) for name in found[1]]


def _iceberg(address: str, snapshot: int | None) -> tuple[TableVersion, list[TableFile]]:
    from daskrado.lake.iceberg_table import iceberg_files

    if "/" not in address and not os.path.exists(address):
        return iceberg_files(address, None, snapshot, address)
    filesystem, path, info = _reached(address)
    if info.type == pafs.FileType.Directory:
        listed = filesystem.get_file_info(pafs.FileSelector(f"{path}/metadata", allow_not_found=True))
        metadata = [i.path for i in listed if i.path.endswith(".metadata.json")]
    else:
        metadata = [path]
    if info.type == pafs.FileType.NotFound:
        raise DataError(f"{shown(address)}: no such Iceberg table")
    if not metadata:
        raise DataError(
            f"{shown(address)}: no metadata.json of an Iceberg table in its folder metadata, so nothing says which "
            "files count; restore it, or remove that folder if these are plain files"
        )
    scheme = f"{address.partition('://')[0]}://" if "://" in address else ""
    return iceberg_files(address, [f"{scheme}{name}" for name in metadata], snapshot, shown(address))


def _place(address: str, path: str) -> tuple[pafs.FileSystem, str]:
    """Where a table's file lies: on the filesystem of the table's own address, unless it names another."""
    if "://" in path and not (path.startswith("file://") and "://" not in address):
        return remote(path)
    local = path.removeprefix("file://")
    return (remote(address)[0] if "://" in address else pafs.LocalFileSystem()), local


def _check_outside(filesystem: pafs.FileSystem, folder: str, address: str) -> None:
    """Refuse a part of a table's folder, by whatever link: among its files are those of other versions."""
    if isinstance(filesystem, pafs.LocalFileSystem):
        folder = os.path.realpath(folder)
    while folder not in ("", "/", "."):
        marks = filesystem.get_file_info([f"{folder}/{name}" for name in MARKS])
        for mark in (mark for mark in marks if mark.type != pafs.FileType.NotFound):
            listed = _files([mark]) or filesystem.get_file_info(pafs.FileSelector(mark.path, allow_not_found=True))
            paths = [i.path for i in listed] or [f"{mark.path}/"] * (mark.base_name in LOGS)
            if (table := table_in(folder, paths)) is not None:
                raise part_of(*table, shown(address))
        folder = os.path.dirname(folder)


def _listed(filesystem: pafs.FileSystem, infos: list[pafs.FileInfo], address: str) -> list[pafs.FileInfo]:
    """The files of a glob that count: in the folder of an ingested lake those that its manifest lists."""
    kept, lakes = [], dict[str, set[str] | None]()
    for info in infos:
        folder, listed = os.path.dirname(info.path), None
        while listed is None and folder not in ("", "/", "."):
            if folder not in lakes:
                lakes[folder] = _listing(filesystem, folder, address)
            listed, folder = lakes[folder], os.path.dirname(folder)
        if listed is None or info.path in listed:
            kept.append(info)
    return kept


def _listing(filesystem: pafs.FileSystem, folder: str, address: str) -> set[str] | None:
    if filesystem.get_file_info(f"{folder}/{MANIFEST}").type != pafs.FileType.File:
        return None
    found = listed_files(filesystem, folder, _below(filesystem, folder), None, shown(address))
    return None if found is None else set(found[1])


def enclosing_lakes(files: Sequence[LakeFile]) -> dict[str, str]:
    """The ingested lakes that files lie in, by their identity, each with one of its files, in this version or not."""
    found, seen = dict[str, str](), set[str]()
    for file in files:
        local = isinstance(file.filesystem, pafs.LocalFileSystem)
        folder = os.path.dirname(os.path.realpath(file.path) if local else file.path)
        while folder not in ("", "/", ".") and folder not in seen:
            seen.add(folder)
            if file.filesystem.get_file_info(f"{folder}/{MANIFEST}").type == pafs.FileType.File:
                content = read_manifest(file.filesystem, folder, shown(folder))
                if content is not None and content.get("lake"):
                    found[str(content["lake"])] = file.path
            folder = os.path.dirname(folder)
    return found


def _common(folders: list[str]) -> str:
    try:
        return os.path.commonpath(folders)
    except ValueError:  # addresses on several filesystems
        return os.sep


def _distinct(files: list[LakeFile]) -> list[LakeFile]:
    """Refuse a file that is reached twice, by any link or another spelling: its rows would count twice."""
    seen: dict[Any, str] = {}
    for file in files:
        key: Any = file.path
        if isinstance(file.filesystem, pafs.LocalFileSystem):
            with contextlib.suppress(OSError):  # it vanished since: reading it will say so
                status = os.stat(file.path)
                key = (status.st_dev, status.st_ino)
        if key in seen:
            raise UsageError(f"the lake reaches one file twice: as {seen[key]} and as {file.path}")
        seen[key] = file.path
    return files


def _below(filesystem: pafs.FileSystem, folder: str) -> list[pafs.FileInfo]:
    return _files(_everything(filesystem, folder))


def _files(infos: list[pafs.FileInfo]) -> list[pafs.FileInfo]:
    return [info for info in infos if info.type != pafs.FileType.Directory]


def _everything(filesystem: pafs.FileSystem, folder: str) -> list[pafs.FileInfo]:
    if isinstance(filesystem, pafs.LocalFileSystem):
        _check_links(folder)
    return list(filesystem.get_file_info(pafs.FileSelector(folder, recursive=True, allow_not_found=True)))


def _check_links(folder: str) -> None:
    """Refuse a link that leads nowhere: pyarrow passes over it, and rows would be left out in silence."""
    for where, _, names in os.walk(folder):
        for path in (os.path.join(where, name) for name in names if not name.startswith((".", "_"))):
            if not os.path.exists(path):
                raise DataError(f"{path}: is a link to what is not there")


def _glob(filesystem: pafs.FileSystem, pattern: str) -> tuple[str, list[pafs.FileInfo]]:
    parts = pattern.split("/")
    fixed = next(i for i, part in enumerate(parts) if any(mark in part for mark in "*?["))
    base = "/".join(parts[:fixed]) or "/"
    return base, [
        info
        for info in _below(filesystem, base)
        if _matches(info.path.split("/"), parts) and not _is_hidden(os.path.relpath(info.path, base))
    ]


def _matches(path: list[str], pattern: list[str]) -> bool:
    """Shell matching part by part; ``**`` stands for any number of folders."""
    if not pattern:
        return not path
    if pattern[0] == "**":
        return any(_matches(path[i:], pattern[1:]) for i in range(len(path) + 1))
    return bool(path) and fnmatch.fnmatchcase(path[0], pattern[0]) and _matches(path[1:], pattern[1:])


def _is_data(filesystem: pafs.FileSystem, relative: str, info: pafs.FileInfo) -> bool:
    """Parquet by name. Other files of a folder are left alone, except where rows would be left out in silence."""
    if _is_hidden(relative):
        return False
    if relative.lower().endswith((".parquet", ".pq", ".parq")):
        return True
    if info.type == pafs.FileType.File and "." not in info.base_name and info.size and _is_parquet(filesystem, info):
        raise DataError(f"{info.path}: is Parquet, but its name does not end in .parquet; rename or remove it")
    return False


def _is_parquet(filesystem: pafs.FileSystem, info: pafs.FileInfo) -> bool:
    try:
        with filesystem.open_input_file(info.path) as file:
            return bool(file.read(4) == b"PAR1")
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{info.path}: cannot be read ({first_line(error)})") from error


def _is_hidden(relative: str) -> bool:
    return any(part.startswith((".", "_")) and "=" not in part for part in relative.split("/"))


def hive_values(relative: str) -> tuple[tuple[str, str | None], ...]:
    """The columns that the names of a path's folders hold, each with its value."""
    pairs = [part.split("=", 1) for part in relative.split("/")[:-1] if "=" in part]
    return tuple((key, None if value == HIVE_NULL else unquote(value)) for key, value in pairs)


def remote(address: str) -> tuple[pafs.FileSystem, str]:
    """The filesystem of an address such as ``s3://bucket/path``, by pyarrow or else by fsspec, and the path on it."""
    if urlsplit(address).scheme == "file" and not urlsplit(address).netloc:
        path = unquote(address.partition("://")[2])  # whole: ? and # are marks and names here, not options
        if not path:
            raise UsageError(f"{address}: names no folder; write file:///folder")
        return pafs.LocalFileSystem(), path
    try:
        return pafs.FileSystem.from_uri(address)  # type: ignore[no-any-return]
    except (pa.ArrowException, ValueError, OSError):
        pass
    import fsspec

    try:
        filesystem, path = fsspec.core.url_to_fs(address)
    except (ImportError, ValueError) as error:
        raise UsageError(f"{shown(address)}: no filesystem for this address ({first_line(error)})") from error
    return pafs.PyFileSystem(pafs.FSSpecHandler(filesystem)), path


def shown(address: str) -> str:
    """An address as it may be printed: without keys, passwords and options."""
    if "://" not in address:
        return address
    parts = urlsplit(address)
    if parts.scheme == "file" and not parts.netloc:
        return address
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def first_line(error: BaseException) -> str:
    """The first line of an error's text, for a message of one line."""
    text = str(error).strip().splitlines()
    return text[0] if text else type(error).__name__
