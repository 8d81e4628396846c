"""What must outlive a power cut: files and names synced to disk, and two folders exchanged in one step."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
_CANNOT = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP)  # an old kernel, or a file system that does not exchange


def sync_folder(folder: Path) -> None:
    """Put the names of a folder's files on disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_tree(folder: Path) -> None:
    """Put everything below a folder on disk: the files first, then the names that lead to them."""
    for where, _, names in os.walk(folder, topdown=False):
        for name in (*names, "."):
            sync_folder(Path(where, name))


def exchange(one: Path, other: Path) -> bool:
    """Exchange two folders in one step, so that both names are always there; False where the platform cannot."""
    call = _renameat2()
    if call is None:
        return False
    number = call(os.fsencode(one), os.fsencode(other))
    if number in _CANNOT:
        return False
    if number:
        raise OSError(number, os.strerror(number), str(other))
    return True


@cache
def _renameat2() -> Callable[[bytes, bytes], int] | None:
    """Linux's call as a function that returns the error's number; None where the C library has none."""
    import ctypes  # only what is overwritten needs it

    try:
        function = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return None
    function.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]

    def call(one: bytes, other: bytes) -> int:
        failed = function(_AT_FDCWD, one, _AT_FDCWD, other, _RENAME_EXCHANGE)
        return ctypes.get_errno() if failed else 0

    return call
