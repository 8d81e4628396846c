"""Locks of files that die with their process, so that a crash never leaves one behind."""

from __future__ import annotations

import errno
import tempfile
from pathlib import Path
from typing import Any

from daskrado.errors import UsageError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]
_system: Any = fcntl


def lock(handle: int, *, wait: bool = False) -> None:
    """Lock an open file for this process alone; a BlockingIOError where another has it and this one does not wait."""
    if _system is None:
        raise UsageError(
            "this system has no file locks that die with their process, as Linux and macOS have: runs are "
            "not supported on it; on Windows use its Subsystem for Linux"
        )
    _system.flock(handle, _system.LOCK_EX | (0 if wait else _system.LOCK_NB))


def has_locks(folder: Path) -> bool:
    """Whether the file system of a folder knows locks; where nothing can be tried, it is taken to."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            _system.lockf(file, _system.LOCK_EX | _system.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.ENOLCK, errno.ENOTSUP)
    return True
