"""Silence while a black box sees rows: what it prints would tell about them."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import Any, TextIO


class Silence:
    """Sends what this process prints to nowhere while any of its threads is inside.

    Both the streams of Python and the file descriptors beneath them, for libraries that print by themselves. What
    another thread prints meanwhile is lost with it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._streams: tuple[Any, Any] = (None, None)
        self._saved: dict[int, int] = {}
        self._nowhere: TextIO | None = None

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                try:
                    self._begin()
                except BaseException:
                    self._end()
                    raise
            self._inside += 1

    def __exit__(self, *details: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._end()

    def _begin(self) -> None:
        self._streams = (sys.stdout, sys.stderr)
        self._flush()
        self._nowhere = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - closed in _end
        for number in (1, 2):
            with contextlib.suppress(OSError):  # closed by whoever started us
                self._saved[number] = os.dup(number)
                os.dup2(self._nowhere.fileno(), number)
        sys.stdout = sys.stderr = self._nowhere

    def _end(self) -> None:
        self._flush()  # what somebody wrote to the old streams goes nowhere, too
        for number, saved in self._saved.items():
            os.dup2(saved, number)
            os.close(saved)
        self._saved = {}
        sys.stdout, sys.stderr = self._streams
        if self._nowhere is not None:
            self._nowhere.close()
            self._nowhere = None

    def _flush(self) -> None:
        for stream in self._streams:
            with contextlib.suppress(Exception):
                stream.flush()


SILENCE = Silence()
