"""Whose an output folder is: each kind of output is known by a document or by columns, and by all of its names.

Whatever replaces a folder deletes it, so one file that its command does not write is enough to keep it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from daskrado.lake.snapshots import FORMS, table_address

MANIFEST = "_manifest.json"
LAKE_SCHEMA = "daskrado.lake/1"

Own = Callable[[Path], str | None]  # why a folder is not the command's own; None if it is

_PART = r"part-\d{5,}\.parquet"
_OF_A_RUN = re.compile(
    r"manifest\.json|report\.html|([\w.-]+\.)?model\.json|(answers|estimates|evaluation|found|margins|shares)\.json"
    r"|domain\.yaml"
    rf"|answers\.parquet|student\.pickle|[\w.-]+\.rados\.parquet|synthetic/({_PART})?|reports/({_PART}|_local\.json)?"
)
_REPORTS = re.compile(rf"{_PART}|_local\.json|_manifest\.json|_report\.html")


def by_a_run(folder: Path) -> str | None:
    """What jobs publish: a manifest or a model and what lies beside them, or a folder of reports of local privacy."""
    if (folder / "_local.json").is_file():
        return _unknown(folder, _REPORTS) or _without_document(folder, "_local.json")
    return _unknown(folder, _OF_A_RUN) or _without_document(folder, "manifest.json", "model.json")


def by_columns(first: tuple[str, ...], last: tuple[str, ...]) -> Own:
    """What commands that write nothing but Parquet write: flat parts that begin and end with these columns."""

    def own(folder: Path) -> str | None:
        unknown = _unknown(folder, re.compile(_PART))
        if unknown is not None:
            return unknown
        for path in sorted(folder.iterdir()):
            names = _columns(path)
            if names[: len(first)] != first or names[len(names) - len(last) :] != last:
                return f"{path.name} has other columns"
        return None

    return own


def by_ingestion(folder: Path) -> str | None:
    """An ingested lake: its manifest, and the files that are listed there."""
    content = _document(folder / MANIFEST)
    if content is None or content.get("schema") != LAKE_SCHEMA:
        return f"it has no {MANIFEST} of an ingested lake"
    try:
        listed = [str(file["path"]) for file in content["files"]]
    except (KeyError, TypeError):
        return f"{MANIFEST} lists no files"
    known = {MANIFEST, *listed, *(f"{path.rpartition('/')[0]}/" for path in listed)}
    return _unknown(folder, re.compile("|".join(map(re.escape, known))))


def _unknown(folder: Path, names: re.Pattern[str]) -> str | None:
    """The first entry that the command does not write; links and other odd things never are its own."""
    for path in _entries(folder):
        relative = path.relative_to(folder).as_posix()
        plain = not path.is_symlink() and (path.is_dir() or path.is_file())
        if not plain or not names.fullmatch(f"{relative}/" if path.is_dir() else relative):
            return f"it holds {relative}"
    return None


def _entries(folder: Path) -> Iterator[Path]:
    """Everything below a folder, one at a time: a home or a disk need not be read to its end to be refused."""
    for where, folders, files in os.walk(folder):
        folders.sort()
        yield from (Path(where, name) for name in sorted([*folders, *files]))


def _without_document(folder: Path, *names: str) -> str | None:
    for name in names:
        content = _document(folder / name)
        if content is not None and str(content.get("schema", "")).startswith("daskrado."):
            return None
    return f"it has no {' or '.join(names)} of daskrado's"


def _document(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def _columns(path: Path) -> tuple[str, ...]:
    try:
        return tuple(pq.read_schema(path).names)
    except (pa.ArrowException, OSError):
        return ()


def overlap(target: str | Path, sources: Iterable[Any]) -> str | None:
    """The first local source that the target is, holds, or lies inside of; what is read must outlive what is written.

    A glob stands for the folder before its first mark, but only if the target holds that: ``*.parquet`` reads nothing
    of the folders beside the files.
    """
    new = Path(os.path.realpath(target))
    for source in _flat(sources):
        address = source.removeprefix("file://")
        if "://" in address:
            continue
        parts = Path(address).absolute().parts
        glob = next((i for i, part in enumerate(parts) if any(mark in part for mark in "*?[")), None)
        if glob is not None and Path(address).exists():
            glob = None
        old = Path(os.path.realpath(Path(*parts[:glob])))
        if new == old or new in old.parents or (glob is None and old.is_dir() and old in new.parents):
            return source
    return None


def _flat(sources: Iterable[Any]) -> Iterator[str]:
    for source in sources:
        if isinstance(source, str | os.PathLike):
            yield os.fspath(source)
        elif isinstance(source, list | tuple):
            yield from _flat(source)
        elif isinstance(source, Mapping) and FORMS.keys() & source.keys():
            yield table_address(source)[1]
