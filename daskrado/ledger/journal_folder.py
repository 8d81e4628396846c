"""The folder of a journal: its lock, whose it is, and what is said of one that cannot be used."""

from __future__ import annotations

import os
from pathlib import Path

from daskrado.errors import LedgerError
from daskrado.lake.file_locks import lock
from daskrado.ledger.lines import SCHEMA

OLDER = "finish it with the version that began it, or move it away and start anew, at a new charge"
ENDINGS = (".part", ".drawing", ".npz", ".key", ".jsonl")


class InUseError(LedgerError):
    """Another process holds the journal's lock."""


def check_own(folder: Path) -> None:
    """Refuse a folder with files of others, or of an older version: a journal is removed with all that is in it."""
    names = sorted(path.name for path in folder.iterdir() if not path.name.startswith(".run.json."))
    foreign = [name for name in names if name not in ("lock", "run.json") and not name.endswith(ENDINGS)]
    if "lock" not in names:
        foreign = names
    if foreign:
        raise LedgerError(
            f"{folder}: holds {foreign[0]} and is not a journal that this version reads ({SCHEMA}); "
            f"if it is one of an older version, {OLDER}"
        )


def locked(folder: Path) -> int:
    """Take the lock, which dies with the process; refuse while another process has it."""
    try:
        handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        why = "it is gone" if isinstance(error, FileNotFoundError) else error.strerror
        raise LedgerError(f"{folder}: the run's journal cannot be read ({why})") from error
    try:
        lock(handle)
        mine = os.path.samestat(os.fstat(handle), os.stat(folder / "lock"))
    except OSError:
        mine = False
    if not mine:  # or the folder was removed or moved away, with the lock, at this moment
        os.close(handle)
        raise InUseError(f"run {folder.name} is still at work in another process; wait for it, or stop it")
    return handle


def no_room(folder: Path, error: OSError) -> LedgerError:
    """What to raise where a journal cannot be written before anything is debited."""
    return LedgerError(
        f"{folder.parent}: no room for the run's journal ({error.strerror or error}); nothing was debited"
    )
