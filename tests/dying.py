"""Programs that are killed at each moment of what they do to the disk: a real SIGKILL, between two system calls."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator

CALLS = ("mkdir", "rename", "replace", "fsync", "unlink", "rmdir", "pwrite", "ftruncate")

# Each call of these functions has a moment before it and one after it; the process dies at moment N after arm().
_CODE = """
import os, signal, fcntl
from daskrado.lake import publish as _publish
_left = None
def arm():
    global _left
    _left = {at}
def moment():
    global _left
    if _left is not None:
        _left -= 1
        if _left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
def stepped(real):
    def call(*a, **k):
        moment(); found = real(*a, **k); moment(); return found
    return call
for _name in {calls}:
    setattr(os, _name, stepped(getattr(os, _name)))
fcntl.flock = stepped(fcntl.flock)
_publish.exchange = stepped(_publish.exchange) if {exchanges} else lambda *_: False
"""


def kill_points(forge: Callable[[str], int], code: str, *, exchanges: bool = True, most: int = 600) -> Iterator[int]:
    """Run a program again and again, killed at each moment after it calls ``arm()``, until it ends unharmed.

    ``exchanges``: whether the platform can exchange two folders in one step.
    """
    for at in range(most):
        ended = forge(_CODE.format(at=at, calls=CALLS, exchanges=exchanges) + code)
        if ended == 0:
            return
        assert ended == -signal.SIGKILL, ended
        yield at
    raise AssertionError("the program never ends")
