"""A journal's append-only files: JSON lines, each on disk before the step it announces or the answer it reports."""

from __future__ import annotations

import contextlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from daskrado.errors import LedgerError, UsageError
from daskrado.lake.durable import sync_folder

SCHEMA = "daskrado.journal/6"  # counts up when public rules change: draws under two schedules cost more than either


class Closable(ABC):
    """Something that is closed at the end of a ``with`` block."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Release what is held."""


class Lines(Closable):
    """One file of public facts. The first line holds the settings; a later opening must have the same.

    ``append`` returns once the line is on disk, so a crash can lose an answer that nobody saw, but never a payment.
    A line that a crash cut short is dropped. Without a path nothing is kept. The journal's lock guards the file.
    """

    def __init__(self, path: Path | None, settings: Mapping[str, Any]) -> None:
        self.path = path
        self.entries: list[Any] = []
        self._file = None if path is None else _opened(path)
        try:
            self._read(json.loads(json.dumps(dict(settings))))
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"<Lines {self.path}: {len(self.entries)}>"

    def append(self, entry: Any) -> None:
        """Put one line on disk."""
        self._write(entry)
        self.entries.append(entry)

    def damaged(self) -> LedgerError:
        """What to raise where a line makes no sense."""
        return LedgerError(f"{self.path}: is not a file of a journal ({SCHEMA}), or is damaged; restore it")

    def close(self) -> None:
        """Release the file; nothing is appended any more."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _write(self, entry: Any) -> None:
        if self.path is None:
            return
        if self._file is None:
            raise UsageError(f"{self.path}: this journal was closed")
        data = (json.dumps(entry, allow_nan=False) + "\n").encode()
        before = os.fstat(self._file).st_size
        try:
            whole = os.write(self._file, data) == len(data)
            os.fsync(self._file)
        except OSError as error:
            raise self._not_written(before, error.strerror or str(error)) from error
        if not whole:
            raise self._not_written(before, "is the disk full?")

    def _not_written(self, before: int, why: str) -> LedgerError:
        """Remove a line that is not whole: the next one must not be joined to it."""
        assert self._file is not None
        with contextlib.suppress(OSError):
            os.ftruncate(self._file, before)
        if os.fstat(self._file).st_size != before:
            self.close()
        return LedgerError(f"{self.path}: could not be written whole ({why})")

    def _read(self, settings: dict[str, Any]) -> None:
        if self._file is None:
            return
        lines = self._whole_lines(self._file)
        if not lines:
            self._write({"schema": SCHEMA, "settings": settings})
            return
        try:
            first, *self.entries = (json.loads(line) for line in lines)
            schema, known = first["schema"], dict(first["settings"])
        except (ValueError, KeyError, TypeError):
            raise self.damaged() from None
        if schema != SCHEMA:
            raise self.damaged()
        if known != settings:
            differing = ", ".join(different(known, settings))
            raise UsageError(
                f"{self.path}: this journal belongs to other settings ({differing} differ); use a new journal, and a "
                "new grant"
            )

    @staticmethod
    def _whole_lines(handle: int) -> list[bytes]:
        """All lines but the last, if a crash cut it short; that one is removed."""
        with open(os.dup(handle), "rb") as file:
            file.seek(0)
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            os.ftruncate(handle, len(whole))
        return whole.splitlines()


def different(known: Mapping[str, Any], settings: Mapping[str, Any]) -> list[str]:
    """The keys in which two settings differ."""
    return sorted(key for key in {*known, *settings} if known.get(key) != settings.get(key))


def _opened(path: Path) -> int:
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError as error:
        raise UsageError(f"{path}: cannot be opened ({error.strerror})") from error
    if os.fstat(handle).st_size == 0:
        sync_folder(path.parent)  # a new file: what is paid for must not vanish with its name
    return handle
