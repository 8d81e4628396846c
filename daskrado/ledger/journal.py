"""What a run, an engine or a site of a study remembers: a crash after a debit costs no second debit and no answer.

A journal is one folder with one lock. Its ``run.json`` holds public facts: what job it is, which ledger entries are
its grants. Each draw of noise has a file whose ending tells how far it came: ``.part`` is room set aside,
``.drawing`` may have been drawn, ``.npz`` is kept. A ``.key`` is a secret, a ``.jsonl`` holds append-only lines.
:class:`daskrado.ledger.account.Account` puts draws in order.

Most of what is kept here is public: pipelines, releases and answers. A key for noise on rows, the tilt of an
objective and a site's share of noise are secret; the folder is its owner's alone (0700) and is wiped when the run is
published.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shlex
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskrado.errors import LedgerError, UsageError
from daskrado.lake.durable import sync_folder
from daskrado.ledger.chain import Head
from daskrado.ledger.config import default_ledger
from daskrado.ledger.journal_folder import ENDINGS, OLDER, check_own, locked, no_room
from daskrado.ledger.ledger import Grant, Ledger, LedgerEntry, State
from daskrado.ledger.lines import SCHEMA, Closable, Lines
from daskrado.table.yaml_file import write_text

LOST = "spent; its release was lost before it could be kept"
Arrays = dict[str, NDArray[Any]]


class Journal(Closable):
    """The memory of one run, engine or study; the process that holds it holds a lock that dies with the process."""

    def __init__(self, folder: Path, content: dict[str, Any], lock: int | None) -> None:
        self.folder = folder
        self.content = content
        self._lock = lock
        self._lines: list[Lines] = []

    @classmethod
    def create(cls, folder: Path, content: Mapping[str, Any]) -> Journal:
        """Begin a journal, before anything is debited."""
        try:
            folder.parent.mkdir(mode=0o700, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)  # a crash at this moment leaves it empty
            check_own(folder)
        except OSError as error:
            raise no_room(folder, error) from error
        lock = locked(folder)  # refused while another process has it
        if (folder / "run.json").exists():
            os.close(lock)
            raise LedgerError(f"run {folder.name} was begun by another process at this moment; try again")
        try:
            journal = cls(folder, {"schema": SCHEMA, "grants": {}, **content}, lock)
            journal._remove_draws()  # of a journal whose removal was cut off
            journal._write()
            sync_folder(folder.parent)
            for waste in folder.parent.glob(".*.done"):  # of processes that were killed as they removed theirs
                shutil.rmtree(waste, ignore_errors=True)
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)
            raise no_room(folder, error) from error
        except BaseException:
            os.close(lock)
            raise
        return journal

    @classmethod
    def take(cls, folder: Path) -> Journal:
        """Open the journal of a run that was cut off, of an engine or of a study."""
        lock = locked(folder)
        try:
            return cls(folder, _read(folder), lock)
        except BaseException:
            os.close(lock)
            raise

    @classmethod
    def open(cls, folder: Path, content: Mapping[str, Any]) -> Journal:
        """Open the journal of an engine or a study, or begin it with this content."""
        if folder.is_file():
            raise LedgerError(
                f"{folder}: is a file of an older version, and journals are folders ({SCHEMA}): {OLDER}"
            )
        return cls.take(folder) if (folder / "run.json").exists() else cls.create(folder, content)

    def __repr__(self) -> str:
        kept = len([*self.folder.glob("*.npz")])
        return f"<Journal {self.folder.name}: {kept} draws kept>"

    @property
    def run(self) -> str:
        """The run as the ledger knows it: the folder's name, unless a study gave it one of its own."""
        return str(self.content.get("run", self.folder.name))

    @property
    def finish(self) -> str:
        """The command that finishes the run."""
        ledger = self.content.get("ledger", str(self.folder.parent.with_suffix("")))
        where = "" if ledger == str(default_ledger()) else f" --ledger {shlex.quote(ledger)}"
        return str(self.content.get("finish", f"daskrado run --resume {self.folder.name[:12]}{where}"))

    @property
    def grants(self) -> dict[str, int]:
        """Ledger entries by role."""
        return {role: entry for role, (entry, _) in self.paid.items()}

    @property
    def paid(self) -> dict[str, tuple[int, str]]:
        """Ledger entries by role, each with the run that it was reserved for."""
        return {role: (entry, run) for role, (entry, run) in self.content["grants"].items()}

    def granted(self, role: str, grant: Grant) -> None:
        """Remember a ledger entry and the run that it was reserved for."""
        if self.content["grants"].get(role) != [grant.entry, grant.run]:
            self.content["grants"][role] = [grant.entry, grant.run]
            self.content["head"] = grant.head or self.content.get("head", "")
            self._save()

    def check_ledger(self, ledger: Ledger) -> None:
        """Refuse a ledger that a copy was put back of since this journal got its last grant."""
        try:
            if self.content.get("head"):
                ledger.check_head(Head.read(self.content["head"]))
        except LedgerError:
            self.close()
            raise

    def remember(self, **facts: Any) -> None:
        """Remember public facts, such as the number of rows."""
        self.content |= facts
        self._save()

    def set_aside(self, name: str, size: int) -> None:
        """Set room on the disk aside for a draw, so that what is paid for can be kept."""
        path = self._path(name, "part")
        if size and not any(self._path(name, ending).exists() for ending in ("part", "drawing", "npz")):
            try:
                with open(path, "wb") as file:
                    os.posix_fallocate(file.fileno(), 0, size + (1 << 14))
            except OSError as error:
                raise no_room(self.folder, error) from error

    def begin(self, name: str) -> None:
        """Mark a draw on disk before noise is drawn: from here on it may have happened."""
        self._check_held()
        part, drawing = self._path(name, "part"), self._path(name, "drawing")
        if part.exists():
            part.rename(drawing)
        else:
            drawing.touch(mode=0o600)
        sync_folder(self.folder)

    def begun(self, name: str) -> bool:
        """Whether the draw may have happened and was not kept."""
        return self._path(name, "drawing").exists()

    def unmark(self, name: str) -> None:
        """Remove the mark of a draw that an engine keeps by itself."""
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
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
                return {key: stored[key] for key in stored.files}
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise LedgerError(
                f"{path}: what was drawn and kept cannot be read; restore it, the charge stays"
            ) from error

    def has_kept(self, role: str | None = None) -> bool:
        """Whether any draw, or any of a role, is kept; an engine keeps answers of its own."""
        kept = [path.stem.partition("#")[0] for path in self.folder.glob("*.npz")]
        return role in kept if role is not None else bool(kept or [*self.folder.glob("*.jsonl")])

    def secret(self, name: str) -> bytes:
        """Thirty-two secret bytes, on disk before they are used: drawn once, the same after a crash."""
        path = self._path(name, "key")
        if not path.exists():
            self._check_held()
            write_text(path, secrets.token_hex(32))
            path.chmod(0o600)
            sync_folder(self.folder)
        return bytes.fromhex(path.read_text(encoding="ascii"))

    def lines(self, name: str, settings: Mapping[str, Any]) -> Lines:
        """An append-only file of public lines, new or as it was left, with the settings that it began with."""
        self._check_held()
        opened = Lines(self._path(name, "jsonl"), settings)
        self._lines.append(opened)
        return opened

    def has_lines(self, name: str) -> bool:
        """Whether an append-only file was begun."""
        path = self._path(name, "jsonl")
        return path.exists() and path.stat().st_size > 0

    def place(self, name: str) -> Path:
        """Where a file of this name lies."""
        return self.folder / name

    def lost(self, ledger: Ledger) -> set[str]:
        """Draws of the run that the ledger counted and that are not kept here.

        They were cut off in the middle, or this journal is an older copy. Draws with an ``@`` in their names are kept
        by an engine; of these only one that was marked here as the engine's last is lost with the run.
        """
        counted = ledger.draws(*{*self.grants.values(), *ledger.entries_of_run(self.run)})
        kept = {path.stem for ending in ("npz", "key") for path in self.folder.glob(f"*.{ending}")}
        return {name for name in counted if (self.begun(name) if "@" in name else name not in kept)}

    def forget(self) -> None:
        """Wipe and remove the journal: the run is published, or never got its grant."""
        self.remove_kept_folder()
        self._wipe()
        waste = self.folder.with_name(f".{self.folder.name}.done")
        with contextlib.suppress(OSError):
            self.folder.rename(waste)  # from here on nobody resumes it
        shutil.rmtree(waste, ignore_errors=True)

    def remove_kept_folder(self) -> None:
        """Remove what was drawn and kept on the output's disk."""
        folder = self.content.get("kept_folder")
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def move(self, folder: Path) -> None:
        """Move the journal to another name; it stays locked."""
        self.folder.rename(folder)
        self.folder = folder
        sync_folder(folder.parent)

    def close(self) -> None:
        """Release the lock."""
        for opened in self._lines:
            opened.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _wipe(self) -> None:
        """Overwrite what is secret."""
        for path in [path for ending in ("npz", "drawing", "key") for path in self.folder.glob(f"*.{ending}")]:
            with path.open("r+b") as file:  # what a disk makes of it is the disk's affair
                file.write(bytes(path.stat().st_size))

    def _remove_draws(self) -> None:
        self._wipe()
        for path in [path for ending in ENDINGS for path in self.folder.glob(f"*{ending}")]:
            path.unlink()

    def _check_held(self) -> None:
        """Refuse to write without the lock: another process may have it by now."""
        if self._lock is None:
            raise UsageError(f"{self.folder}: this journal was closed")

    def _path(self, name: str, ending: str) -> Path:
        return self.folder / f"{name}.{ending}"

    def _save(self) -> None:
        try:
            self._write()
        except OSError as error:
            raise LedgerError(f"{self.folder}: cannot be written ({error.strerror or error})") from error

    def _write(self) -> None:
        self._check_held()
        write_text(self.folder / "run.json", json.dumps(self.content))
        sync_folder(self.folder)


def lines_of(journal: Journal | None, name: str, settings: Mapping[str, Any]) -> Lines:
    """An append-only file of a journal; in memory where there is no journal."""
    return Lines(None, settings) if journal is None else journal.lines(name, settings)


def journal_folder(ledger: Ledger) -> Path:
    """Where the journals of a ledger's runs are."""
    return ledger.path.with_name(ledger.path.name + ".runs")


def entries_of(ledger: Ledger, run: str) -> dict[int, LedgerEntry]:
    """The ledger's lines for a run."""
    return ledger.entries_of_run(run)


def find_journal(ledger: Ledger, run: str) -> Path:
    """The journal of a run by its identifier or the beginning of it."""
    names = _names(ledger)
    found = [name for name in names if run and name.startswith(run)]
    if len(found) == 1:
        return journal_folder(ledger) / found[0]
    if found:
        raise UsageError(f"--resume {run}: {len(found)} unfinished runs begin like this; give more of the identifier")
    if entries_of(ledger, run):
        raise UsageError(f"--resume {run}: this run has nothing left to finish in {ledger.address}")
    known = f"unfinished here: {', '.join(sorted(names)[:5])}" if names else "no run is unfinished here"
    raise UsageError(f"--resume {run}: no such run in {ledger.address} ({known})")


def unfinished(ledger: Ledger) -> list[tuple[str, str]]:
    """Runs that left a journal, each with what can be done about it."""
    found = []
    for name in sorted(_names(ledger)):
        try:
            journal = Journal(journal_folder(ledger) / name, _read(journal_folder(ledger) / name), None)
        except LedgerError as error:
            found.append((name, str(error)))
            continue
        entries = entries_of(ledger, journal.run)
        if not any(entry.state is not State.VOID for entry in entries.values()):
            continue
        lost = journal.lost(ledger)
        found.append((journal.run, LOST if lost else f"at work, or to be finished with: {journal.finish}"))
    return found


def journals(ledger: Ledger) -> Iterator[tuple[str, dict[str, Any]]]:
    """Runs that left a journal that can be read, each with what it remembers."""
    for name in sorted(_names(ledger)):
        with contextlib.suppress(LedgerError):
            content = _read(journal_folder(ledger) / name)
            yield str(content.get("run", name)), content


def _names(ledger: Ledger) -> list[str]:
    return [path.parent.name for path in journal_folder(ledger).glob("[!.]*/run.json")]


def _read(folder: Path) -> dict[str, Any]:
    path = folder / "run.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LedgerError(f"{path}: the run's journal cannot be read ({error})") from error
    if (
        not isinstance(content, dict)
        or content.get("schema") != SCHEMA
        or not isinstance(content.get("grants"), dict)
    ):
        raise LedgerError(f"{path}: is not a journal that this version reads ({SCHEMA}): {OLDER}")
    return content
