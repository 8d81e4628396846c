"""Many Dask workers in one process, for measuring a scheduler and a driver without many machines."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

ROWS = 16  # of a simulated partition: enough to run the real code on
# Each worker looks after its process, here a hundred after the same one: too seldom to be measured.
_SELDOM: dict[str, Any] = {
    "distributed.admin.system-monitor.interval": "1 hour",
    "distributed.admin.tick.interval": "10 s",
    "distributed.worker.memory.monitor-interval": "1 hour",
    "distributed.worker.profile.enabled": False,
}
_PIPES: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}


@dataclass(frozen=True)
class SleepingPartition:
    """A partition whose reading takes as long as a real one's, and no processor."""

    name: str
    seconds: float
    rows: int = ROWS

    @property
    def identity(self) -> str:
        """Its name."""
        return self.name

    def tables(self, columns: Sequence[str]) -> Iterator[tuple[int, pa.Table]]:
        """Sleep, then give a few rows."""
        time.sleep(self.seconds)
        values = np.linspace(-1, 1, self.rows)
        yield 0, pa.table({name: values > 0 if name == "y" else values for name in columns})


@contextlib.contextmanager
def simulated_cluster(workers: int) -> Iterator[tuple[str, int, int]]:
    """The address of a scheduler in a process of its own, with so many workers in another, and their two ids."""
    start = [sys.executable, "-m", "daskrado.cluster.simulated"]
    with subprocess.Popen([*start, "scheduler"], **_PIPES) as scheduler:
        assert scheduler.stdout is not None
        address = scheduler.stdout.readline().strip()
        with subprocess.Popen([*start, address, str(workers)], **_PIPES) as crowd:
            assert crowd.stdout is not None
            crowd.stdout.readline()
            try:
                yield address, scheduler.pid, crowd.pid
            finally:
                crowd.kill()
                scheduler.kill()


async def _scheduler() -> None:
    from distributed import Scheduler

    async with Scheduler(host="127.0.0.1", port=0, dashboard=False) as scheduler:
        print(scheduler.address, flush=True)
        await scheduler.finished()


async def _workers(address: str, count: int) -> None:
    import dask
    from distributed import Worker

    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(dask.config.set(_SELDOM))
        for number in range(count):
            options: dict[str, Any] = {"nthreads": 1, "memory_limit": "16GB", "name": number, "dashboard": False}
            await stack.enter_async_context(Worker(address, **options))
        print("ready", flush=True)
        await asyncio.Event().wait()


def _main(words: list[str]) -> None:
    import logging

    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    asyncio.run(_scheduler() if words == ["scheduler"] else _workers(words[0], int(words[1])))


def scheduler_bytes(dask_scheduler: Any) -> int:
    """Bytes that went in and out of a scheduler by its open connections, as the kernel counts them."""
    import socket
    import struct

    total = 0
    for comm in list(dask_scheduler._comms):
        with contextlib.suppress(AttributeError, OSError):
            told = comm.stream.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
            acked, received = struct.unpack_from("QQ", told, 120)
            total += acked + received
    return total


def task_seconds(dask_scheduler: Any) -> float:
    """Seconds that workers have spent inside tasks so far, as they report them."""
    return float(sum(prefix.all_durations["compute"] for prefix in dask_scheduler.task_prefixes.values()))


def processor_seconds(process: int) -> float:
    """User and system time of a process."""
    import psutil

    times = psutil.Process(process).cpu_times()
    return float(times.user + times.system)


def resident_mb() -> float:
    """Memory of this process now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


if __name__ == "__main__":
    _main(sys.argv[1:])
