"""Ctrl-C and SIGTERM as exceptions that nothing can swallow: one that is lost on its way out is sent again.

Python drops what is raised inside a destructor, turns what ``__set_name__`` raises into a RuntimeError, and libraries
in other languages turn it into errors of their own; whoever forgives those would go on with a command that was told
to end. The exception knows: it is destroyed before the command has ended.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from typing import Any

SEND_AGAIN = 0.05  # seconds: a destructor has ended by then


class Terminated(BaseException):
    """SIGTERM, as scancel, kubectl delete, timeout and a shutdown send it: it ends a run as Ctrl-C does."""

    number = signal.SIGTERM

    def __del__(self) -> None:
        _listening.swallowed(self.number)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C."""

    number = signal.SIGINT

    def __del__(self) -> None:
        _listening.swallowed(self.number)


class _Listening:
    """Which signal has ended this command, if one has."""

    def __init__(self) -> None:
        self.first: signal.Signals | None = None
        self.under_way = False  # raised, and on its way out: once is enough, what follows gives grants back
        self.over = True

    def begin(self) -> None:
        self.first, self.under_way, self.over = None, False, False
        signal.signal(signal.SIGTERM, self.hear)
        if callable(signal.getsignal(signal.SIGINT)):  # a shell's background job ignores it
            signal.signal(signal.SIGINT, self.hear)
        sys.unraisablehook = _unraisable

    def hear(self, number: int, frame: Any) -> None:
        del frame
        if self.over or self.under_way:
            return
        warnings.simplefilter("ignore")  # libraries warn of what could not be imported, and go on
        self.under_way, self.first = True, self.first or signal.Signals(number)
        raise Terminated if number == signal.SIGTERM else Interrupted

    def swallowed(self, number: signal.Signals) -> None:
        """Hear it again, a little later, unless the command has come to its end."""
        if not self.over and threading.main_thread().is_alive():
            again = threading.Timer(SEND_AGAIN, self._send, [number])
            again.daemon = True
            again.start()

    def _send(self, number: signal.Signals) -> None:
        self.under_way = False
        os.kill(os.getpid(), number)


def _unraisable(lost: Any) -> None:
    """What a destructor raised; a signal among it is sent again by itself."""
    if not issubclass(lost.exc_type, Terminated | Interrupted):
        sys.__unraisablehook__(lost)


_listening = _Listening()


def listen() -> None:
    """Let Ctrl-C and SIGTERM end the command from now on."""
    _listening.begin()


def heard() -> signal.Signals | None:
    """The signal that ended the command, if one did; from now on none is raised or sent again."""
    _listening.over = True
    return _listening.first
