"""An append-only file of what an interactive mechanism has paid and answered. It holds public facts only."""

from __future__ import annotations

import fcntl
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from daskrado.errors import LedgerError, UsageError

_SCHEMA = "daskrado.answers/1"


class Closable(ABC):
    """Something that is closed at the end of a ``with`` block."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Let go of what is held."""


class Journal(Closable):
    """Lines of JSON, each on disk before the step it announces or reports: facts, then opened instances and answers.

    ``open_instance`` is written before a threshold is drawn and ``answer`` before an answer is returned, so a crash
    can lose an answer that nobody saw but never a payment. A line that a crash cut short is dropped. Without a path
    nothing is kept. ``notes`` are public values that a caller wants back after a restart, in order.
    """

    def __init__(self, path: str | Path | None, facts: Mapping[str, Any]) -> None:
        self.opened = 0
        self.notes: list[Any] = []
        self._parts: list[NDArray[np.bool_]] = []
        self._path = None if path is None else Path(path)
        self._file = None if self._path is None else _locked(self._path)
        if self._file is not None:
            try:
                self._read(dict(facts))
            except BaseException:
                self.close()
                raise

    @property
    def answers(self) -> NDArray[np.bool_]:
        """All answers, in order."""
        self._parts = [np.concatenate([np.zeros(0, dtype=bool), *self._parts])]
        return self._parts[0].copy()

    def open_instance(self) -> None:
        """Pay for one more instance, before its threshold is drawn."""
        self._write({"open": self.opened + 1})
        self.opened += 1

    def answer(self, above: NDArray[np.bool_]) -> None:
        """Keep answers, before they are returned."""
        if len(above):
            self._write({"above": "".join("01"[int(a)] for a in above)})
            self._parts.append(np.array(above, dtype=bool))

    def note(self, value: Any) -> None:
        """Keep a public value."""
        self._write({"note": value})
        self.notes.append(value)

    def close(self) -> None:
        """Release the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
            self._path = self._path or Path()

    def _write(self, line: dict[str, Any]) -> None:
        if self._path is None:
            return
        if self._file is None:
            raise UsageError(f"{self._path}: this journal was closed")
        data = (json.dumps(line, allow_nan=False) + "\n").encode()
        if os.write(self._file, data) != len(data):
            raise LedgerError(f"{self._path}: could not be written whole; is the disk full?")
        os.fsync(self._file)

    def _read(self, facts: dict[str, Any]) -> None:
        assert self._file is not None
        with open(os.dup(self._file), "rb") as file:
            file.seek(0)
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            os.ftruncate(self._file, len(whole))
        lines = whole.splitlines()
        if not lines:
            self._write({"schema": _SCHEMA, "facts": facts})
            return
        try:
            first, *rest = (json.loads(line) for line in lines)
            if first["schema"] != _SCHEMA:
                raise ValueError
            known = first["facts"]
            for line in rest:
                self._take(line)
        except (ValueError, KeyError, TypeError):
            raise LedgerError(f"{self._path}: is not a journal of answers, or is damaged") from None
        if known != facts:
            different = sorted(k for k in {*known, *facts} if known.get(k) != facts.get(k))
            raise UsageError(
                f"{self._path}: this journal belongs to other settings ({', '.join(different)} differ); "
                "use a new file, and a new grant"
            )

    def _take(self, line: dict[str, Any]) -> None:
        match line:
            case {"open": number} if number == self.opened + 1:
                self.opened = number
            case {"above": str(flags)} if set(flags) <= {"0", "1"}:
                self._parts.append(np.array([flag == "1" for flag in flags], dtype=bool))
            case {"note": value}:
                self.notes.append(value)
            case _:
                raise ValueError


def read_facts(path: str | Path) -> dict[str, Any]:
    """The public settings at the head of a journal."""
    try:
        with open(path, encoding="utf-8") as file:
            first = json.loads(file.readline())
        if first["schema"] != _SCHEMA:
            raise ValueError
        return dict(first["facts"])
    except (ValueError, KeyError, TypeError):
        raise LedgerError(f"{path}: is not a journal of answers, or is damaged") from None


def _locked(path: Path) -> int:
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError as error:
        raise UsageError(f"{path}: cannot be opened ({error.strerror})") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise UsageError(f"{path}: another process is answering from this journal") from None
    if os.fstat(handle).st_size == 0:
        sync_folder(path.parent)  # a new file: what is paid for must not vanish with its name
    return handle


def sync_folder(folder: Path) -> None:
    """Put the names of a folder's files on disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
