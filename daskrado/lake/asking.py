"""Questions to a scheduler that may be slow, frozen or gone: each has a time limit and one line for its failure."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from daskrado.errors import ClusterError

if TYPE_CHECKING:
    from distributed import Client

T = TypeVar("T")
LOST = "the scheduler was lost while it worked on the lake"
PATIENCE = 60.0  # seconds without an answer, or without a worker that takes tasks
WORKER_PATIENCE = 15.0
TRIES = 6


class Interrupted(ClusterError):
    """Tasks or data of this job were lost while the scheduler may live: the work is tried again under fresh names."""

    def __init__(self) -> None:
        super().__init__(LOST)


def patience() -> float:
    """Seconds that a job waits for the scheduler or for a worker: the cluster file's ``no_workers_timeout``."""
    import dask

    return float(dask.config.get("daskrado.no-workers-timeout", PATIENCE))


def ask(client: Client, method: Callable[..., Any], *given: Any, seconds: float | None = None, **options: Any) -> Any:
    """Call a method of the client, and give up after some seconds; Dask's own calls wait for ever."""
    from concurrent.futures import CancelledError

    limit = patience() if seconds is None else seconds

    async def call() -> Any:
        before = asyncio.all_tasks()
        try:
            return await method(*given, **options)  # in the client's event loop its methods are coroutines
        except BaseException:
            for task in asyncio.all_tasks() - before:  # that it leaves behind, as a connection to a lost worker
                task.add_done_callback(_heard)
            raise

    try:
        return client.sync(call, callback_timeout=limit)
    except TimeoutError as error:
        raise ClusterError(f"the scheduler did not answer for {limit:g} s") from error
    except (OSError, CancelledError) as error:  # Dask's CommClosedError is an OSError
        raise Interrupted from error
    except (AttributeError, RuntimeError) as error:
        if client.status in ("closed", "closing") or client.scheduler is None:  # its parts are gone
            raise Interrupted from error
        raise


def _heard(task: asyncio.Task[Any]) -> None:
    """Take note of how a task ended: else Python says on stderr that nobody did."""
    if not task.cancelled():
        task.exception()


def ask_workers(client: Client, method: Callable[..., Any], *given: Any, **options: Any) -> Any:
    """The same for what goes straight to workers: one that dies meanwhile keeps Dask waiting, others can do it."""
    try:
        return ask(client, method, *given, **options, seconds=WORKER_PATIENCE)
    except Interrupted:
        raise
    except ClusterError as error:
        raise Interrupted from error


def ask_each(client: Client, function: Callable[..., Any]) -> dict[str, Any]:
    """What each worker that takes tasks of this job answers: None for one that is silent, as a frozen one is."""
    limit = min(WORKER_PATIENCE, patience() / 2)
    addresses = list(workers_of(client))

    async def one(address: str) -> Any:
        call: Any = client.run(function, workers=[address], on_error="ignore")
        try:
            return (await asyncio.wait_for(call, limit)).get(address)
        except (TimeoutError, OSError):
            return None

    async def every() -> list[Any]:
        return await asyncio.gather(*(one(address) for address in addresses))

    return dict(zip(addresses, ask(client, every), strict=True))


def persist(client: Client, work: Callable[[], T], afresh: Callable[[], None] | None = None) -> T:
    """Work that is begun anew, after ``afresh()``, when tasks of it were lost and the scheduler is still there."""
    for _ in range(TRIES):
        try:
            return work()
        except Interrupted as error:
            lost = error
            if not _back(client):
                raise ClusterError(LOST) from error
            if afresh is not None:
                afresh()
    raise ClusterError(f"workers came and went so fast that the work was lost {TRIES} times") from lost


def _back(client: Client) -> bool:
    """Whether the client has its scheduler; Dask's client tries to reconnect for a while and then closes."""
    end = time.monotonic() + patience()
    while client.status == "connecting" and time.monotonic() < end:
        time.sleep(0.05)
    return bool(client.status == "running")


def wanted_resources() -> dict[str, float]:
    """What a worker must offer to take this job's tasks: the cluster file's ``resources``."""
    import dask

    return dict(dask.config.get("daskrado.resources", {}))


def workers_of(client: Client) -> dict[str, dict[str, int]]:
    """Threads and memory limit (0 for none) of each worker that takes tasks of this job."""
    wants = wanted_resources()

    def look(dask_scheduler: Any) -> dict[str, dict[str, int]]:
        return {
            worker.address: {"threads": worker.nthreads, "memory": worker.memory_limit or 0}
            for worker in dask_scheduler.running
            if all(worker.resources.get(name, 0) >= amount for name, amount in wants.items())
        }

    found: dict[str, dict[str, int]] = ask(client, client.run_on_scheduler, look)
    return dict(sorted(found.items()))
