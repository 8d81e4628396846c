"""A long-lived Dask scheduler and workers, as processes of their own that several jobs share."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from distributed import Client

PRIVATE = ("RowStore", "WorkerStore", "Secret", "Sheaf", "Partial", "Rows", "LabelledRows", "Trained")
NO_SPILLING = {f"DASK_DISTRIBUTED__WORKER__MEMORY__{word}": "False" for word in ("TARGET", "SPILL")}


class SharedCluster:
    """One scheduler, any number of workers. Every wait is for an event and has a limit far above what it takes."""

    def __init__(self, **environ: str) -> None:
        self.environ = {**os.environ, **environ}
        self._processes: list[subprocess.Popen[str]] = []
        where = ("--host", "127.0.0.1", "--port", "0", "--no-dashboard")
        self.scheduler, self.address = self._start("scheduler", *where, ready="Scheduler at:")

    def worker(self, *more: str, memory: str = "1GB", ready: bool = True) -> subprocess.Popen[str]:
        """Start a worker; wait until it is registered."""
        where = (self.address, "--nthreads", "1", "--no-dashboard", "--no-nanny", "--memory-limit", memory)
        return self._start("worker", *where, *more, ready="Registered to:" if ready else "Start worker")[0]

    def _start(self, *words: str, ready: str) -> tuple[subprocess.Popen[str], str]:
        command = [sys.executable, "-m", "dask", *words]
        process = subprocess.Popen(
            command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=self.environ
        )
        self._processes.append(process)
        assert process.stderr is not None
        line = next((line for line in process.stderr if ready in line), None)
        assert line is not None, f"dask {words} ended before it was ready"
        # Read on: a log that nobody reads fills its pipe, and then the process waits for ever.
        threading.Thread(target=process.stderr.read, daemon=True).start()
        return process, line.split()[-1]

    def client(self) -> Client:
        """A client to look at the cluster with; it is nobody's default."""
        return Client(self.address, set_as_default=False)

    def close(self) -> None:
        """End all processes."""
        for process in reversed(self._processes):
            process.kill()
            process.communicate()


def until(what: Callable[[], Any], seconds: float, message: str) -> Any:
    """The first true answer; a failure with the last one after so many seconds."""
    end = time.monotonic() + seconds
    while True:
        answer = what()
        if answer:
            return answer
        assert time.monotonic() < end, message
        time.sleep(0.05)


def wait_until_clean(client: Client, seconds: float = 600) -> None:
    """Nothing of any job is left; it takes a fraction of a second, unless the machine is very busy."""
    end = time.monotonic() + seconds
    while found := left_behind(client):
        assert time.monotonic() < end, found
        time.sleep(0.05)


def left_behind(client: Client) -> list[str]:
    """What daskrado's jobs have on the scheduler or on a worker: tasks, data, plugins, promises, objects, files."""
    on_workers = client.run(_worker_look(), PRIVATE)
    on_scheduler = client.run_on_scheduler(_scheduler_look())
    return [*on_scheduler, *(f"{worker}: {found}" for worker, many in on_workers.items() for found in many)]


# Functions inside functions travel by value: the cluster's processes do not know this module.


def _worker_look() -> Any:
    def look(private: tuple[str, ...], dask_worker: Any) -> list[str]:
        import gc
        import os
        from pathlib import Path

        gc.collect()
        maps, own = Path("/proc/self/maps"), os.path.realpath(dask_worker.local_directory)
        ours = ("daskrado", "Secret")
        return [
            *(f"data {key}" for key in list(dask_worker.data) if any(word in str(key) for word in ours)),
            *(f"task {key}" for key in list(dask_worker.state.tasks) if any(word in str(key) for word in ours)),
            *(f"plugin {name}" for name in dask_worker.plugins if "daskrado" in name),
            *(f"file {path.name}" for path in Path(own).rglob("daskrado*")),
            *("scratch file" for line in maps.read_text().splitlines() if own in line),
            *(
                f"object {type(found).__name__}"
                for found in gc.get_objects()
                if type(found).__name__ in private and type(found).__module__.startswith("daskrado")
            ),
        ]

    return look


def _scheduler_look() -> Any:
    def look(dask_scheduler: Any) -> list[str]:
        register = dask_scheduler.extensions.get("daskrado", {})
        return [
            *(f"task {key}" for key in dask_scheduler.tasks if "daskrado" in str(key) or "Secret" in str(key)),
            *(
                f"promise to {client}"
                for client, entry in register.items()
                if client in dask_scheduler.clients and entry["promises"]
            ),
        ]

    return look
