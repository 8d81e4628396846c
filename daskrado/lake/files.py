"""Which files make a lake: folders, globs, hive trees, lists, and any address that pyarrow or fsspec reads."""

from __future__ import annotations

import fnmatch
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyarrow import fs as pafs

from daskrado.errors import DataError, UsageError

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


def find_files(source: Any) -> list[LakeFile]:
    """The Parquet files of an address or a list of addresses, in name order. Hidden and ``_`` files are skipped."""
    if isinstance(source, list | tuple):
        if not source:
            raise UsageError("the list of lake files is empty")
        found = [f for item in source for f in find_files(item)]
        return _distinct([replace(f, name=f.path, hive=_hive(f.path)) for f in found])
    if not isinstance(source, str | os.PathLike) or "\0" in os.fspath(source):
        raise UsageError(f"a lake's address must be text, got {source!r}")
    address = os.fspath(source)
    if "://" in address:
        filesystem, path = remote(address)
    else:
        filesystem, path = pafs.LocalFileSystem(), str(Path(address).absolute())
    try:
        info = filesystem.get_file_info(path)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{shown(address)}: cannot be reached ({first_line(error)})") from error
    if info.type == pafs.FileType.NotFound and any(mark in path for mark in "*?["):
        files = _glob(filesystem, path)
    else:
        if info.type == pafs.FileType.NotFound:
            raise DataError(f"{shown(address)}: no such file or directory")
        if info.type == pafs.FileType.File:
            files = [(Path(path).name, info)]
        else:
            found_infos = filesystem.get_file_info(pafs.FileSelector(path, recursive=True))
            if any(i.base_name == INCOMPLETE for i in found_infos):
                raise DataError(
                    f"{shown(address)}: is being written, or its writer was cut off (it holds {INCOMPLETE})"
                )
            files = [
                (os.path.relpath(i.path, path), i)
                for i in found_infos
                if i.type == pafs.FileType.File and _is_data(os.path.relpath(i.path, path))
            ]
    if not files:
        raise DataError(f"{shown(address)}: no Parquet file found")
    files.sort(key=lambda pair: pair[0])
    return _distinct(
        [LakeFile(name, info.path, filesystem, info.size, info.mtime_ns or 0, _hive(name)) for name, info in files]
    )


def _distinct(files: list[LakeFile]) -> list[LakeFile]:
    """Refuse a file that is reached twice, by a link or another spelling: its rows would count twice."""
    seen: dict[Any, str] = {}
    for file in files:
        local = isinstance(file.filesystem, pafs.LocalFileSystem)
        real = os.path.realpath(file.path) if local else file.path
        if real in seen:
            raise UsageError(f"the lake reaches the file {real} twice: as {seen[real]} and as {file.path}")
        seen[real] = file.path
    return files


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
    return tuple((key, None if value == HIVE_NULL else unquote(value)) for key, value in pairs)


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
        raise UsageError(f"{shown(address)}: no filesystem for this address ({first_line(error)})") from error
    return pafs.PyFileSystem(pafs.FSSpecHandler(filesystem)), path


def shown(address: str) -> str:
    """An address as it may be printed: without keys, passwords and options."""
    if "://" not in address:
        return address
    parts = urlsplit(address)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def first_line(error: BaseException) -> str:
    """The first line of an error's text, for a message of one line."""
    text = str(error).strip().splitlines()
    return text[0] if text else type(error).__name__
