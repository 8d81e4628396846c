"""From a file, a mapping, an object or a journal to a job: the ``kind`` key says which class reads the rest."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from daskrado.cluster import ClusterConfig
from daskrado.errors import UsageError
from daskrado.jobs.base import Address, Job, perform
from daskrado.jobs.outcome import Result
from daskrado.lake.collect import Progress
from daskrado.lake.publish import check_free
from daskrado.ledger.account import Account, digest_of
from daskrado.ledger.charging import opened_ledger
from daskrado.ledger.config import default_ledger
from daskrado.ledger.ledger import Ledger
from daskrado.ledger.opening import begun, resumed_account
from daskrado.registry import kinds, loaded
from daskrado.table.nearest import did_you_mean
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
        raise UsageError(
            f"{where}: is no pipeline, which is a mapping of keys; daskrado init LAKE --label COLUMN writes one"
        )
    if {"label", "columns"} <= content.keys() and "lake" not in content:
        raise UsageError(
            f"{where}: is a domain, not a pipeline; daskrado init writes a pipeline that names its domain"
        )
    content = _changed(dict(content), changes or {})
    kind = content.pop("kind", DEFAULT_KIND)
    if isinstance(kind, str) and kind == DEFAULT_KIND and "continual" in content:
        kind = "continual"
    try:
        chosen = job_class(kind) if isinstance(kind, str) and " " not in kind else None
    except KeyError:
        chosen = None
    if chosen is None:
        allowed = sorted(name for name in kinds(Job, PACKAGE) if " " not in name)
        near = did_you_mean(str(kind), allowed) if isinstance(kind, str) else ""
        raise UsageError(f"{where}: kind {shown(kind)} is unknown; allowed: {', '.join(allowed)}{near}")
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


def load_kind(wanted: type[JobT], source: Job | Mapping[str, Any] | str | Path) -> JobT:
    """A validated job of one kind; where its keys name no kind, it is this one."""
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
    path = os.path.expanduser(path)
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
    path = os.path.expanduser(path)
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


def resume(
    identifier: str,
    *,
    cluster: ClusterConfig | None = None,
    ledger_path: str | Path | None = None,
    progress: Progress | None = None,
) -> Result:
    """Finish a run, of any kind, that had its grant but published nothing: no second debit, no second draw of noise.

    A run that was cut off before its noise was drawn reads the lake again and spends the grant it had; one that was
    cut off later goes on from what it had drawn and kept. Returns what the run would have returned.
    """
    with (
        Ledger.open(ledger_path or default_ledger(), create=False) as ledger,
        resumed_account(ledger, identifier) as account,
    ):
        assert account.journal is not None
        content, where = account.journal.content, str(account.journal.folder)
        job = parse(job_class(content["kind"]), content["pipeline"], where).with_changes(cluster=cluster)
        _check_output(job.output, account, job.prefix)
        return perform(job, overwrite=account.overwrite, ledger=ledger.path, progress=progress, account=account)


def run_once(job: Job) -> Result:
    """Run a job, or finish its run that was cut off: however often it is begun, it is charged once and drawn once."""
    with opened_ledger(None, job.ledger) as ledger:
        run, where = begun(job, ledger), ledger.address
    return perform(job) if run is None else resume(run, cluster=job.cluster, ledger_path=where)


def _check_output(output: str, account: Account, prefix: str) -> None:
    """Refuse a folder that exists; where it is this very run's, only the journal was left over."""
    manifest = Path(output) / f"{prefix}manifest.json"
    if manifest.is_file():
        try:
            published = json.loads(manifest.read_text(encoding="utf-8")).get("run") == account.run
        except (OSError, ValueError, AttributeError):
            published = False
        if published:
            account.done(digest_of(manifest))
            raise UsageError(f"run {account.run} is published in {output}: there is nothing left to finish")
    try:
        check_free(output, overwrite=account.overwrite)
    except UsageError as error:
        raise UsageError(
            f"run {account.run} publishes in {output}, where something else is now: move that away, then resume"
        ) from error
