"""One task for each of many things, on workers: named, watched, a few at a time, begun anew if they are lost."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from daskrado.lake.asking import persist, workers_of
from daskrado.lake.failures import RETRIES, gathered
from daskrado.lake.label import job_label
from daskrado.lake.watch import Watch
from daskrado.lake.worker_logs import keep_text_only

if TYPE_CHECKING:
    from distributed import Client

WINDOW = 16  # tasks under way for every thread: other jobs get their turn between them


def run_tasks(
    client: Client,
    step: str,
    task: Callable[..., Any],
    items: Sequence[tuple[Any, ...]],
    *,
    place: Callable[[int], str],
    report: Callable[[int, int], None] | None = None,
) -> list[Any]:
    """``task(*item)`` for every item, in the order of the items; ``place`` names an item in an error."""
    return persist(client, partial(_once, client, step, task, items, place, report))


def run_here(
    task: Callable[..., Any], items: Sequence[tuple[Any, ...]], report: Callable[[int, int], None] | None = None
) -> list[Any]:
    """The same in this process."""
    found = []
    for item in items:
        found.append(task(*item))
        if report is not None:
            report(len(found), len(items))
    return found


def _done(task: Callable[..., Any], *item: Any) -> Any:
    keep_text_only()
    return task(*item)


def _once(
    client: Client,
    step: str,
    task: Callable[..., Any],
    items: Sequence[tuple[Any, ...]],
    place: Callable[[int], str],
    report: Callable[[int, int], None] | None,
) -> list[Any]:
    import dask

    label = job_label()
    prefix = f"{label.task_name(step, secrets.token_hex(8))}-"
    window = WINDOW * max(1, sum(worker["threads"] for worker in workers_of(client).values()))
    found: dict[int, Any] = {}

    def one() -> None:
        future = watch.next()
        found[int(future.key.removeprefix(prefix))] = gathered(client, future)
        if report is not None:
            report(len(found), len(items))

    with (
        dask.annotate(**label.annotation()),
        Watch(client, prefix, lambda key: place(int(key.removeprefix(prefix)))) as watch,
    ):
        for number, item in enumerate(items):
            if watch.open >= window:
                one()
            watch.follow([client.submit(_done, task, *item, key=f"{prefix}{number}", retries=RETRIES, pure=False)])
        while watch.open:
            one()
    return [found[number] for number in range(len(items))]
