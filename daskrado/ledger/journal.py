"""What a run remembers beside its ledger: a crash after the debit costs neither a second debit nor the answer.

A run has one folder. Its ``run.json`` says what job it is and which ledger entries are its grants. Each draw of noise
has a file whose ending tells how far it came: ``.part`` is room set aside, ``.drawing`` may have been drawn, ``.npz``
is kept. :class:`daskrado.ledger.account.Account` puts them in order.

Most of what is kept here is public: pipelines and releases. A key for noise on rows, the tilt of an objective and a
site's share of noise are secret; the folder is its owner's alone (0700) and is wiped when the run is published.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskrado.errors import LedgerError, UsageError
from daskrado.ledger.answer_journal import sync_folder
from daskrado.ledger.config import default_ledger
from daskrado.ledger.ledger import Ledger, LedgerEntry, State
from daskrado.table.yaml_file import write_text

SCHEMA = "daskrado.journal/4"  # counts up when public rules change: draws under two schedules cost more than either
LOST = "spent; its release was lost before it could be kept"
Arrays = dict[str, NDArray[Any]]


class Journal:
    """The memory of one run; the process that holds it holds a lock that dies with the process."""

    def __init__(self, folder: Path, content: dict[str, Any], lock: int) -> None:
        self.folder = folder
        self.content = content
        self._lock = lock

    @classmethod
    def create(cls, ledger: Ledger, run: str, content: Mapping[str, Any]) -> Journal:
        """Begin a journal, before anything is debited."""
        folder = journal_folder(ledger) / run
        try:
            folder.parent.mkdir(mode=0o700, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)  # a crash at this moment leaves it empty
        except OSError as error:
            raise _no_room(folder, error) from error
        lock = _locked(folder)  # refused while another process has it
        if (folder / "run.json").exists():
            os.close(lock)
            raise LedgerError(f"run {run} was begun by another process at this moment; try again")
        try:
            journal = cls(folder, {"schema": SCHEMA, "grants": {}, **content}, lock)
            journal._write()
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)
            raise _no_room(folder, error) from error
        return journal

    @classmethod
    def take(cls, folder: Path) -> Journal:
        """Take up the journal of a run that was cut off."""
        lock = _locked(folder)
        try:
            return cls(folder, _read(folder), lock)
        except BaseException:
            os.close(lock)
            raise

    @property
    def run(self) -> str:
        """The run as the ledger knows it: the folder's name, unless a study gave it one of its own."""
        return str(self.content.get("run", self.folder.name))

    @property
    def finish(self) -> str:
        """The command that finishes the run."""
        ledger = self.folder.parent.with_suffix("")
        where = "" if ledger == default_ledger() else f" --ledger {shlex.quote(str(ledger))}"
        return str(self.content.get("finish", f"daskrado run --resume {self.folder.name[:12]}{where}"))

    @property
    def grants(self) -> dict[str, int]:
        """Ledger entries by role."""
        return dict(self.content["grants"])

    def granted(self, role: str, entry: int) -> None:
        """Remember a ledger entry."""
        self.content["grants"][role] = entry
        self._write()

    def remember(self, **facts: Any) -> None:
        """Remember public facts, such as the number of rows."""
        self.content |= facts
        self._write()

    def set_aside(self, name: str, size: int) -> None:
        """Room on the disk for a draw, so that what is paid for can be kept."""
        path = self._path(name, "part")
        if size and not any(self._path(name, ending).exists() for ending in ("part", "drawing", "npz")):
            try:
                with open(path, "wb") as file:
                    os.posix_fallocate(file.fileno(), 0, size + (1 << 14))
            except OSError as error:
                raise _no_room(self.folder, error) from error

    def begin(self, name: str) -> None:
        """On disk before noise is drawn: from here on the draw may have happened."""
        part, drawing = self._path(name, "part"), self._path(name, "drawing")
        if part.exists():
            part.rename(drawing)
        else:
            drawing.touch(mode=0o600)
        sync_folder(self.folder)

    def begun(self, name: str) -> bool:
        """Whether the draw may have happened and was not kept."""
        return self._path(name, "drawing").exists()

    def done(self, name: str) -> None:
        """The draw is kept by an engine of its own."""
        self._path(name, "drawing").unlink()
        sync_folder(self.folder)

    def keep(self, name: str, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Write what was drawn, whole or not at all."""
        drawing = self._path(name, "drawing")
        with open(drawing, "r+b") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
            file.truncate()
            file.flush()
            os.fsync(file.fileno())
        drawing.rename(self._path(name, "npz"))
        sync_folder(self.folder)

    def kept(self, name: str) -> Arrays | None:
        """What was drawn under this name, or None."""
        path = self._path(name, "npz")
        if not path.exists():
            return None
        with np.load(path, allow_pickle=False) as stored:
            return {key: stored[key] for key in stored.files}

    def has_kept(self, role: str | None = None) -> bool:
        """Whether any draw, or any of a role, is kept; an engine keeps answers of its own."""
        kept = [path.stem.partition("#")[0] for path in self.folder.glob("*.npz")]
        return role in kept if role is not None else bool(kept or [*self.folder.glob("*.jsonl")])

    def secret(self, name: str) -> bytes:
        """Thirty-two secret bytes, on disk before they are used: drawn once, the same after a crash."""
        path = self._path(name, "key")
        if not path.exists():
            write_text(path, secrets.token_hex(32))
            path.chmod(0o600)
            sync_folder(self.folder)
        return bytes.fromhex(path.read_text(encoding="ascii"))

    def place(self, name: str) -> Path:
        """A file that an engine keeps by itself."""
        return self.folder / name

    def lost(self, entries: Mapping[int, LedgerEntry]) -> bool:
        """Whether a grant was spent on a draw that was not kept."""
        spent = {r for r, entry in self.grants.items() if entry in entries and entries[entry].state is State.SPENT}
        return any(path.stem.partition("#")[0] in spent for path in self.folder.glob("*.drawing"))

    def forget(self) -> None:
        """The run is published, or never got its grant: nothing is left to finish."""
        self.forget_beside()
        for path in [*self.folder.glob("*.npz"), *self.folder.glob("*.key")]:
            with path.open("r+b") as file:  # what a disk makes of it is the disk's affair
                file.write(bytes(path.stat().st_size))
        shutil.rmtree(self.folder, ignore_errors=True)

    def forget_beside(self) -> None:
        """Remove what was drawn and kept on the output's disk."""
        beside = self.content.get("beside")
        if beside is not None:
            shutil.rmtree(beside, ignore_errors=True)

    def close(self) -> None:
        """Let go of the lock."""
        os.close(self._lock)

    def _path(self, name: str, ending: str) -> Path:
        return self.folder / f"{name}.{ending}"

    def _write(self) -> None:
        write_text(self.folder / "run.json", json.dumps(self.content))
        sync_folder(self.folder)


def journal_folder(ledger: Ledger) -> Path:
    """Where the journals of a ledger's runs are."""
    return ledger.path.with_name(ledger.path.name + ".runs")


def entries_of(ledger: Ledger, run: str) -> dict[int, LedgerEntry]:
    """The ledger's lines for a run."""
    return {entry.id: entry for entry in ledger.entries() if entry.run == run}


def find_journal(ledger: Ledger, run: str) -> Path:
    """The journal of a run by its identifier or the beginning of it."""
    names = _names(ledger)
    found = [name for name in names if run and name.startswith(run)]
    if len(found) == 1:
        return journal_folder(ledger) / found[0]
    if found:
        raise UsageError(f"--resume {run}: {len(found)} unfinished runs begin like this; give more of the identifier")
    if entries_of(ledger, run):
        raise UsageError(f"--resume {run}: this run has nothing left to finish in {ledger.path}")
    known = f"unfinished here: {', '.join(sorted(names)[:5])}" if names else "no run is unfinished here"
    raise UsageError(f"--resume {run}: no such run in {ledger.path} ({known})")


def unfinished(ledger: Ledger) -> list[tuple[str, str]]:
    """Runs that left a journal, each with what can be done about it."""
    found = []
    for name in sorted(_names(ledger)):
        try:
            journal = Journal(journal_folder(ledger) / name, _read(journal_folder(ledger) / name), -1)
        except LedgerError as error:
            found.append((name, str(error)))
            continue
        entries = entries_of(ledger, journal.run)
        if not any(entry.state is not State.VOID for entry in entries.values()):
            continue
        lost = journal.lost(entries)
        found.append((journal.run, LOST if lost else f"at work, or to be finished with: {journal.finish}"))
    return found


def _names(ledger: Ledger) -> list[str]:
    return [path.parent.name for path in journal_folder(ledger).glob("*/run.json")]


def _read(folder: Path) -> dict[str, Any]:
    path = folder / "run.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LedgerError(f"{path}: the run's journal cannot be read ({error})") from error
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise LedgerError(f"{path}: is not a journal that this version reads ({SCHEMA})")
    return content


def _locked(folder: Path) -> int:
    try:
        handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except FileNotFoundError as error:
        raise LedgerError(f"{folder}: the run's journal cannot be read (it is gone)") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise LedgerError(f"run {folder.name} is still at work in another process; wait for it, or stop it") from None
    return handle


def _no_room(folder: Path, error: OSError) -> LedgerError:
    return LedgerError(
        f"{folder.parent}: no room for the run's journal ({error.strerror or error}); nothing was debited"
    )
