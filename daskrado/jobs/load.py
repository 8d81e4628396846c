"""From a file, a mapping or an object to a job: the ``kind`` key says which class reads the rest."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar, overload

from daskrado.errors import UsageError
from daskrado.jobs.base import Address, Job
from daskrado.registry import kinds, loaded
from daskrado.table.yaml_file import parse, read_yaml, shown

JobT = TypeVar("JobT", bound=Job)
PACKAGE = "daskrado.jobs"
DEFAULT_KIND = "learn"


def job_class(kind: str) -> type[Job]:
    """The class of a kind. Its own file is imported first: a job needs no other kind's modules."""
    with suppress(ModuleNotFoundError):
        import_module(f"{PACKAGE}.{kind.partition(' ')[0]}")
    found = loaded(Job)
    return found[kind] if kind in found else kinds(Job, PACKAGE)[kind]


def load_job(source: Job | Mapping[str, Any] | str | Path, changes: Mapping[str, Any] | None = None) -> Job:
    """A validated job from a pipeline file, from its keys, or as it is.

    Paths in a file are relative to that file. ``changes`` are keys that replace the file's, dotted where nested.
    """
    if isinstance(source, Job):
        return source
    where = str(source) if isinstance(source, str | Path) else "pipeline"
    content = read_yaml(source) if isinstance(source, str | Path) else source
    if not isinstance(content, Mapping):
        raise UsageError(f"{where}: must be a mapping of keys, got {type(content).__name__}")
    content = _changed(dict(content), changes or {})
    kind = content.pop("kind", DEFAULT_KIND)
    try:
        chosen = job_class(kind) if isinstance(kind, str) and " " not in kind else None
    except KeyError:
        chosen = None
    if chosen is None:
        allowed = sorted(name for name in kinds(Job, PACKAGE) if " " not in name)
        raise UsageError(f"{where}: kind {shown(kind)} is unknown; allowed: {', '.join(allowed)}")
    notes: list[str] = []
    if isinstance(source, str | Path):
        for address in (
            ("lake",),
            ("lake", "delta"),
            ("lake", "iceberg"),
            ("domain",),
            *chosen.common_addresses,
            *chosen.addresses,
        ):
            _resolve(content, address, Path(source).parent, notes)
    job = parse(chosen, content, where)
    job._notes = tuple(notes)
    return job


@overload
def load_kind(kind: type[JobT], source: Job | Mapping[str, Any] | str | Path) -> JobT: ...
@overload
def load_kind(kind: str, source: Job | Mapping[str, Any] | str | Path) -> Job: ...
def load_kind(kind: type[Job] | str, source: Job | Mapping[str, Any] | str | Path) -> Job:
    """A validated job of one kind, a class or a name; where its keys name no kind, it is this one."""
    wanted = job_class(kind) if isinstance(kind, str) else kind
    job = load_job({"kind": wanted.name, **source} if isinstance(source, Mapping) else source)
    if not isinstance(job, wanted):
        where = source if isinstance(source, str | Path) else "pipeline"
        raise UsageError(f"{where}: kind must be {wanted.name} here, got {job.name}")
    return job


def _changed(content: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The content with dotted keys set; what lies beside them stays."""
    for dotted, value in changes.items():
        *path, last = dotted.split(".")
        holder = content
        for key in path:
            inner = holder.get(key)
            holder[key] = dict(inner) if isinstance(inner, Mapping) else {}
            holder = holder[key]
        holder[last] = value
    return content


def _resolve(content: dict[str, Any], address: Address, folder: Path, notes: list[str]) -> None:
    """Read a key's paths relative to the pipeline's folder."""
    holder: Any = content
    for key in address[:-1]:
        if not isinstance(holder, dict) or not isinstance(holder.get(key), dict):
            return
        holder[key] = dict(holder[key])
        holder = holder[key]
    value = holder.get(address[-1]) if isinstance(holder, dict) else None
    if address == ("lake", "iceberg") and "/" not in str(value):
        return  # CATALOG.TABLE
    if isinstance(value, str) and address == ("ledger", "path"):
        holder[address[-1]] = _ledger_beside(value, folder)
    elif isinstance(value, str):
        holder[address[-1]] = _beside(value, folder, notes)
    elif isinstance(value, list) and all(isinstance(part, str) for part in value):
        holder[address[-1]] = [_beside(part, folder, notes) for part in value]


def _beside(path: str, folder: Path, notes: list[str]) -> str:
    """A path as the pipeline's folder reads it; one that is found from the working folder only is still read."""
    if "://" in path or os.path.isabs(path) or not path:
        return path
    near = os.path.normpath(folder / path)
    if not _exists(near) and _exists(path):
        notes.append(f"{path} was found from the working folder; paths in a pipeline are relative to its own file")
        return path
    return near


def _ledger_beside(path: str, folder: Path) -> str:
    """A ledger's path as the pipeline's folder reads it. One that is elsewhere is refused: a second ledger would be
    a second budget."""
    near = _beside(path, folder, [])
    if near == path and not os.path.isabs(path) and "://" not in path and os.path.normpath(folder / path) != path:
        raise UsageError(
            f"ledger.path {path} is in the working folder and not beside the pipeline: paths in a pipeline are "
            "relative to its own file; write the ledger's path so, or pass --ledger"
        )
    return near


def _exists(path: str) -> bool:
    """Whether a path, or the folder before its first glob mark, is there."""
    parts = Path(path).parts
    glob = next((i for i, part in enumerate(parts) if any(mark in part for mark in "*?[")), len(parts))
    return os.path.exists(path) or (glob < len(parts) and os.path.isdir(os.path.join("", *parts[:glob]) or "."))
