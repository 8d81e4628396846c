"""Ctrl-C and SIGTERM wait for the end of a draw: between counting and keeping they would lose what is paid for."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def deferred_signals() -> Iterator[None]:
    """The first signal is heard when the block ends, a second one at once; only where this thread hears signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard: list[int] = []
    before: dict[int, Any] = {}

    def restore() -> None:
        while before:
            number, handler = before.popitem()
            signal.signal(number, handler)

    def defer(number: int, frame: Any) -> None:
        del frame
        heard.append(number)
        if len(heard) > 1:
            restore()
            signal.raise_signal(heard.pop())

    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            handler = signal.getsignal(number)
            if callable(handler):  # else the process ignores it, ends by it, or leaves it to code that is not Python
                before[number] = handler
                signal.signal(number, defer)
        yield
    finally:
        restore()
        if heard:
            signal.raise_signal(heard[0])
