"""Local workers come up without the script that asked for them, which therefore needs no ``__main__`` guard.

Python's multiprocessing runs the caller's script anew in every process that it spawns, for functions that the script
defines. Dask sends those by value, so that workers need nothing of it, and a script without a guard would start
workers in its workers.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from typing import Any

from distributed import Nanny


class ScriptlessNanny(Nanny):  # type: ignore[misc]
    """Starts its worker, also after a death, without the caller's script."""

    async def instantiate(self) -> Any:
        """Start the worker."""
        with _script.left_out():
            return await super().instantiate()


class _Script:
    """The main module of this process, which may be left out by several nannies at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._starting = 0
        self._spec: Any = None

    @contextlib.contextmanager
    def left_out(self) -> Iterator[None]:
        """Processes spawned in here take the script for a package's ``__main__``, which is never run anew."""
        main = sys.modules["__main__"]
        with self._lock:
            if self._starting == 0:
                self._spec, main.__spec__ = main.__spec__, ModuleSpec("__main__", None)
            self._starting += 1
        try:
            yield
        finally:
            with self._lock:
                self._starting -= 1
                if self._starting == 0:
                    main.__spec__ = self._spec


_script = _Script()
