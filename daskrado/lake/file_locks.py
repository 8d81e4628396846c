"""Locks of files that die with their process, so that a crash never leaves one behind."""

from __future__ import annotations

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
