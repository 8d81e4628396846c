"""Looks after running tasks: one that is stuck, on a worker that is otherwise alive, is tried anew."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from distributed import Client

TASK_TIMEOUT = 1800.0  # seconds; one task reads one file, a quarter of a gigabyte of it, or some small ones
TRIES = 2
_log = logging.getLogger(__name__)


class Watch:
    """Restarts workers on which a task has run for longer than ``daskrado.task-timeout`` says.

    A worker whose process hangs sends no heartbeats, and its scheduler gives it up. One whose task hangs (on a file
    system that does not answer, say) goes on sending them. The limit is a public setting and does not look at rows.
    After ``TRIES`` tries at one task the watch gives up: ``problem`` says why, and ``stop`` is called.
    """

    def __init__(self, client: Client, prefix: str, place: Callable[[str], str], stop: Callable[[], None]) -> None:
        import dask

        self.problem: str | None = None
        self._client = client
        self._prefix = prefix
        self._place = place
        self._stop = stop
        self._limit = float(dask.config.get("daskrado.task-timeout", TASK_TIMEOUT))
        self._tries: Counter[str] = Counter()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="daskrado-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._ended.set()

    def _run(self) -> None:
        look = _looker(self._prefix, self._limit)
        while not self._ended.wait(min(30.0, self._limit / 4)):
            try:
                stuck = self._client.run_on_scheduler(look)
            except Exception:  # whoever awaits answers reports a lost scheduler
                return
            for key in stuck:
                self._tries[key] += 1
                _log.info(
                    "a task on %s ran for more than %g s: its worker is restarted", self._place(key), self._limit
                )
            for key, tries in self._tries.items():
                if tries >= TRIES:
                    self.problem = (
                        f"{self._place(key)}: reading it took more than {self._limit:g} s on {tries} workers, one "
                        "after another; look at its disk, or raise task_timeout in the cluster file"
                    )
                    with contextlib.suppress(Exception):
                        self._stop()
                    return


def _looker(prefix: str, limit: float) -> Any:
    # Inside another function, so that it travels by value: a scheduler need not have this package.
    async def look(dask_scheduler: Any) -> list[str]:
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
        return [key for address in hung for key in found[address]]

    return look
