"""What several commands share: the ledger that they mean, and the progress bar."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from daskrado.ledger.ledger import Ledger


def open_ledger(path: str | None, *, create: bool) -> Ledger:
    """The ledger that a command means: the one given, else this user's."""
    from daskrado.ledger.charging import own_ledger
    from daskrado.ledger.ledger import Ledger

    return own_ledger(create=create) if path is None else Ledger.open(path, create=create)


@contextlib.contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on stderr: quiet where stderr is not a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(what, total=None)

        def update(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        def stage(name: str) -> None:
            bar.update(task, description=f"{what}: {name}", completed=0, total=None)

        def note(passes: int, gradient: float) -> None:
            bar.update(task, description=f"{what}, pass {passes}, gradient {gradient:.1e}")

        update.stage = stage  # type: ignore[attr-defined]  # a run reports what it does now
        update.note = note  # type: ignore[attr-defined]  # a solver without privacy reports how far it is
        yield update
