"""What a run remembers beside its ledger: a crash after the debit costs neither a second debit nor the answer.

The order is: journal, reserve, read, spend, draw, keep, publish, forget.

- Killed before *spend*: the entry is reserved and nothing was drawn. A resumed run reads again and spends that grant.
- Killed after *keep*: the noisy release is on disk. A resumed run publishes exactly that; it draws nothing.
- Killed in between: noise may have been drawn, and is lost. The grant stays spent and is never drawn for again.

*Spend* is one transaction of the ledger that only one process can win, so that two resumed runs cannot both draw.
Nothing private is written here: the pipeline is public, and so is a release.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from daskrado.domain import parse
from daskrado.errors import LedgerError, UsageError
from daskrado.learners.iterative import Learned
from daskrado.models import write_text
from daskrado.privacy.ledger import Grant, Ledger, LedgerEntry, State
from daskrado.release import Release
from daskrado.runs.pipeline import Pipeline
from daskrado.runs.plan import Plan

SCHEMA = "daskrado.journal/1"


class Journal:
    """The memory of one run; the process that holds it holds a lock that dies with the process."""

    def __init__(self, path: Path, content: dict[str, Any], lock: int) -> None:
        self.path = path
        self._content = content
        self._lock = lock

    @property
    def run(self) -> str:
        """The run's identifier."""
        return self.path.stem

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline as it was when the run began."""
        return parse(Pipeline, self._content["pipeline"], str(self.path))

    @property
    def overwrite(self) -> bool:
        """Whether the run may replace its output folder."""
        return bool(self._content["overwrite"])

    def keep(self, released: Release | Learned, rows: int | None) -> None:
        """Write a release to disk, whole or not at all; its room was set aside before anything was debited."""
        if isinstance(released, Learned):
            public = json.dumps({"details": released.details, "noise_std": released.noise_std})
            arrays = {"value_weights": released.weights, "value_public": np.array(public)}
        else:
            arrays = {f"value_{name}": value for name, value in released.values.items()}
        part = self.path.with_suffix(".part")
        with open(part, "r+b") as file:
            np.savez(file, rows=np.int64(-1 if rows is None else rows), **arrays)  # type: ignore[arg-type]
            file.truncate()
            file.flush()
            os.fsync(file.fileno())
        part.rename(self.path.with_suffix(".npz"))
        _sync_folder(self.path.parent)

    def kept(self, plan: Plan) -> tuple[Release | Learned, int | None] | None:
        """The release that the run had drawn, with the row count where that is public; None if there is none."""
        path = self.path.with_suffix(".npz")
        if not path.exists():
            return None
        with np.load(path, allow_pickle=False) as stored:
            rows = int(stored["rows"])
            values = {name.removeprefix("value_"): stored[name] for name in stored.files if name != "rows"}
        if plan.statistic is None or plan.mechanism is None:
            public = json.loads(str(values["public"]))
            return Learned(values["weights"], public["details"], public["noise_std"]), None if rows < 0 else rows
        released = Release(plan.statistic, plan.lattice, values, plan.mechanism.noise_std(), plan.statement)
        return released, None if rows < 0 else rows

    def forget(self) -> None:
        """The run is published, or never got its grant: nothing is left to finish."""
        for suffix in (".part", ".npz", ".json"):
            self.path.with_suffix(suffix).unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of the lock."""
        os.close(self._lock)


@contextmanager
def new_journal(ledger: Ledger, run: str, plan: Plan, *, overwrite: bool) -> Iterator[Journal | None]:
    """Begin a journal before the debit. None for a lake in memory: a dead process takes it along."""
    pipeline = plan.pipeline
    lake = _absolute(pipeline.lake)
    if lake is None:
        yield None
        return
    folder = _folder(ledger)
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{run}.json"
    dumped = pipeline.model_dump(mode="json", exclude={"lake"})
    content = {
        "schema": SCHEMA,
        "overwrite": overwrite,
        "pipeline": {**dumped, "lake": lake, "output": os.path.abspath(pipeline.output)},
    }
    try:
        with open(path.with_suffix(".part"), "wb") as file:
            os.posix_fallocate(file.fileno(), 0, 16 * plan.size + (1 << 16))
        write_text(path, json.dumps(content))
    except OSError as error:
        path.with_suffix(".part").unlink(missing_ok=True)
        raise LedgerError(
            f"{folder}: no room for the run's journal ({error.strerror}); nothing was debited"
        ) from error
    with _held(Journal(path, content, _locked(path)), ledger) as journal:
        yield journal


@contextmanager
def _held(journal: Journal, ledger: Ledger) -> Iterator[Journal]:
    """Let go of the journal at the end; after a failure that left no charge, nothing needs to be remembered."""
    try:
        yield journal
    except BaseException:
        with suppress(LedgerError):  # a ledger out of reach: the run may be charged, so remember it
            if not any(entry.run == journal.run and entry.state is not State.VOID for entry in ledger.entries()):
                journal.forget()
        raise
    finally:
        journal.close()


@dataclass(frozen=True)
class Unfinished:
    """A run that had its grant: what is left of it."""

    journal: Journal
    entry: LedgerEntry

    def grant(self, ledger: Ledger) -> Grant:
        """The receipt of the debit that was made then."""
        entry = self.entry
        return Grant(entry.id, entry.dataset, entry.relation, entry.event, ledger.path, entry.run)


@contextmanager
def unfinished_run(ledger: Ledger, run: str) -> Iterator[Unfinished]:
    """Take up a run by its identifier or the beginning of it; refuse what cannot or need not be finished."""
    path = _find(ledger, run)
    content = _read(path)
    with _held(Journal(path, content, _locked(path)), ledger) as journal:
        yield Unfinished(journal, _entry(ledger, journal.run, path))


def unfinished(ledger: Ledger) -> list[tuple[str, str]]:
    """Runs that left a journal, each with what can be done about it."""
    found = []
    states = {entry.run: entry.state for entry in ledger.entries()}
    for path in sorted(_folder(ledger).glob("*.json")):
        state = states.get(path.stem)
        if state is State.RESERVED or (state is State.SPENT and path.with_suffix(".npz").exists()):
            found.append((path.stem, "at work, or to be finished with: daskrado run --resume " + path.stem[:12]))
        elif state is State.SPENT:
            found.append((path.stem, "spent; its release was lost before it could be kept"))
    return found


def _entry(ledger: Ledger, run: str, path: Path) -> LedgerEntry:
    entry = next((entry for entry in ledger.entries() if entry.run == run), None)
    if entry is None or entry.state is State.VOID:
        what = "never got a grant" if entry is None else "gave its grant back"
        raise UsageError(f"run {run} {what}: there is nothing to resume; run its pipeline again")
    if entry.state is State.SPENT and not path.with_suffix(".npz").exists():
        raise LedgerError(
            f"run {run} was cut off between spending its grant and keeping its release: noise is never drawn twice "
            "for one grant, so the charge stays; run the pipeline again for a new one"
        )
    return entry


def _find(ledger: Ledger, run: str) -> Path:
    names = [path.stem for path in _folder(ledger).glob("*.json")]
    found = [name for name in names if run and name.startswith(run)]
    if len(found) == 1:
        return _folder(ledger) / f"{found[0]}.json"
    if found:
        raise UsageError(f"--resume {run}: {len(found)} unfinished runs begin like this; give more of the identifier")
    if any(entry.run == run for entry in ledger.entries()):
        raise UsageError(f"--resume {run}: this run has nothing left to finish in {ledger.path}")
    known = f"unfinished here: {', '.join(sorted(names)[:5])}" if names else "no run is unfinished here"
    raise UsageError(f"--resume {run}: no such run in {ledger.path} ({known})")


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LedgerError(f"{path}: the run's journal cannot be read ({error})") from error
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise LedgerError(f"{path}: is not a journal that this version reads ({SCHEMA})")
    return content


def _locked(path: Path) -> int:
    handle = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise LedgerError(f"run {path.stem} is still at work in another process; wait for it, or stop it") from None
    return handle


def _absolute(lake: Any) -> Any:
    """The lake's address as any working folder would read it; None for a lake in memory."""
    if isinstance(lake, list | tuple):
        parts = [_absolute(part) for part in lake]
        return None if any(part is None for part in parts) else parts
    if not isinstance(lake, str | os.PathLike):
        return None
    address = os.fspath(lake)
    return address if "://" in address else os.path.abspath(address)


def _folder(ledger: Ledger) -> Path:
    return ledger.path.with_name(ledger.path.name + ".runs")


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
