"""Run the same work with compiled loops and with their NumPy forms."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TypeVar

from daskrado.table import inner_loops as loops

T = TypeVar("T")


@contextlib.contextmanager
def compiled_loops(on: bool) -> Iterator[None]:
    """Loops compiled, whatever the size of the lake, or not at all."""
    kept = dict(loops._known)
    loops._known.clear()
    if on:
        loops.compile_loops()
    try:
        yield
    finally:
        loops._known.clear()
        loops._known.update(kept)


def both(work: Callable[[], T]) -> tuple[T, T]:
    """What some work gives with compiled loops, and without them."""
    with compiled_loops(True):
        fast = work()
    with compiled_loops(False):
        return fast, work()
