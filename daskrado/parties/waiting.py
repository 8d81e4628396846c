"""Waiting for files of other parties: look, sleep a little longer each time, look again."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from daskrado.errors import DataError

T = TypeVar("T")
FIRST, GROWTH, LONGEST = 0.01, 1.5, 15.0  # seconds between two looks, and how they grow


def awaited(look: Callable[[], T | None], what: Callable[[], str], timeout: float | None) -> T:
    """What ``look`` finds, once it is there; a DataError that says ``what`` is missing after ``timeout`` seconds."""
    pause, last = FIRST, None if timeout is None else time.monotonic() + timeout
    while (found := look()) is None:
        left = LONGEST if last is None else last - time.monotonic()
        if left <= 0:
            raise DataError(f"{what()}; {timeout:g} s are over: the same command goes on from here")
        time.sleep(min(pause, left))
        pause = min(GROWTH * pause, LONGEST)
    return found
