"""Looks after running tasks: what is stuck is tried anew, and what cannot go on ends in one line."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Self

from daskrado.errors import ClusterError, DaskradoError
from daskrado.lake.asking import Interrupted, ask, patience, wanted_resources
from daskrado.lake.failures import failure, give_up

if TYPE_CHECKING:
    from distributed import Client

TASK_TIMEOUT = 1800.0  # seconds; one task reads one file, a quarter of a gigabyte of it, or some small ones
TRIES = 2
STILL = 30.0  # seconds in which nothing runs and nothing changes on a scheduler though tasks are left
LOOKS = 5.0  # seconds between two looks, at most
_log = logging.getLogger(__name__)


class Watch:
    """Waits for tasks, and sees what Dask's own waiting does not.

    A task that runs for longer than ``daskrado.task-timeout`` (on a file system that does not answer, say): its
    worker is restarted, and after ``TRIES`` tries the job ends. No worker that takes tasks, since all are gone or
    paused, or no answer from the scheduler, for ``no_workers_timeout``: the job ends. Tasks left and nothing that
    runs for ``STILL`` seconds: :class:`Interrupted`, and the work is tried again. No limit looks at rows.
    """

    def __init__(
        self, client: Client, prefix: str, place: Callable[[str], str], tries: Counter[str] | None = None
    ) -> None:
        import dask

        self._client = client
        self._prefix = prefix
        self._place = place
        self._limit = float(dask.config.get("daskrado.task-timeout", TASK_TIMEOUT))
        self._patience = patience()
        self._wants = wanted_resources()
        self._tries = Counter() if tries is None else tries  # by place: work that is begun anew goes on counting
        self._events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._followed: dict[Any, Any] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="daskrado-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *details: object) -> None:
        self._ended.set()
        if kind is not None:
            give_up(self._client, list(self._followed.values()))

    def follow(self, futures: Iterable[Any]) -> None:
        """Wait for these, too. Whatever ends the block early cancels them."""
        for future in futures:
            self._followed[future.key] = future
            future.add_done_callback(self._events.put)

    @property
    def open(self) -> int:
        """How many of the followed tasks have not ended."""
        return len(self._followed)

    def next(self) -> Any:
        """The next task that ends well; whatever ends otherwise raises."""
        event = self._events.get()
        if isinstance(event, DaskradoError):
            raise event
        if event.status != "finished":
            raise failure(event)
        return self._followed.pop(event.key)

    def _run(self) -> None:
        pause = min(LOOKS, self._limit / 4, self._patience / 4)
        look = _looker(self._client.id, self._prefix, self._limit, self._wants)
        waiting, still, counted = time.monotonic(), time.monotonic(), -1
        while not self._ended.wait(pause):
            try:
                seen = ask(self._client, self._client.run_on_scheduler, look, seconds=self._patience)
            except Interrupted:
                return  # whoever awaits answers learns by the futures that the scheduler was lost
            except ClusterError as error:
                self._events.put(error)
                return
            now = time.monotonic()
            if seen["running"]:
                waiting = now
            if seen["busy"] or not seen["left"] or seen["changes"] != counted:
                still, counted = now, seen["changes"]
            problem = self._stuck(seen["stuck"])
            if problem is None and now - waiting > self._patience:
                problem = _no_worker(seen, self._patience, self._wants)
            if problem is None and seen["running"] and now - still > STILL:
                problem = Interrupted()
            if problem is not None:
                self._events.put(problem)
                return

    def _stuck(self, keys: list[str]) -> ClusterError | None:
        """Count the tries at tasks that took too long; why the job ends, if it does."""
        for key in keys:
            self._tries[self._place(key)] += 1
            _log.info("a task on %s ran for more than %g s: its worker is restarted", self._place(key), self._limit)
            if self._tries[self._place(key)] >= TRIES:
                return ClusterError(
                    f"{self._place(key)}: reading it took more than {self._limit:g} s on {TRIES} workers, one "
                    "after another; look at its disk, or raise task_timeout in the cluster file"
                )
        return None


def _no_worker(seen: dict[str, Any], seconds: float, wants: dict[str, float]) -> ClusterError:
    paused = seen["workers"]
    if wants:
        return ClusterError(f"no worker that offers {offered(wants)} took tasks for {seconds:g} s (resources)")
    if paused:
        return ClusterError(
            f"all {paused} worker(s) were paused for {seconds:g} s because their memory is full: see who uses it "
            "with daskrado cluster status, or give them more (memory_limit)"
        )
    return ClusterError(f"there was no worker for {seconds:g} s (no_workers_timeout in the cluster file)")


def offered(wants: dict[str, float]) -> str:
    """Resources as they are typed: ``GPU=1``."""
    return ",".join(f"{name}={amount:g}" for name, amount in wants.items())


def _looker(client: str, prefix: str, limit: float, wants: dict[str, float]) -> Any:
    # Inside another function, so that it travels by value: a scheduler need not have this package.
    async def look(dask_scheduler: Any) -> dict[str, Any]:
        found = {
            worker.address: [str(task.key) for task, seconds in worker.executing.items() if seconds > limit]
            for worker in dask_scheduler.workers.values()
        }
        found = {address: [k for k in keys if k.startswith(prefix)] for address, keys in found.items()}
        hung = [address for address, keys in found.items() if keys]
        if hung:
            await dask_scheduler.restart_workers(
                hung, wait_for_workers=False, on_error="return", stimulus_id="daskrado-task-timeout"
            )
        mine = dask_scheduler.clients.get(client)
        return {
            "workers": len(dask_scheduler.workers),
            "running": sum(
                all(worker.resources.get(name, 0) >= amount for name, amount in wants.items())
                for worker in dask_scheduler.running
            ),
            "busy": any(worker.executing for worker in dask_scheduler.workers.values()),
            "left": mine is not None and any(task.state not in ("memory", "erred") for task in mine.wants_what),
            "changes": dask_scheduler.transition_counter,
            "stuck": [key for address in hung for key in found[address]],
        }

    return look
