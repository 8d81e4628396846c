"""Two jobs on one scheduler, and one job on a hundred workers: what sharing and size cost."""

from __future__ import annotations

import math
import os
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np

from daskrado.cli.bench.collect import bench_lake, local_workers, seconds_in_turns
from daskrado.cluster import connect
from daskrado.cluster.simulated import (
    ROWS,
    SleepingPartition,
    processor_seconds,
    resident_mb,
    scheduler_bytes,
    simulated_cluster,
    task_seconds,
)
from daskrado.lake import dealing
from daskrado.lake.collect import FAN_IN, collect, open_passes
from daskrado.lake.scan import Lake, open_lake
from daskrado.losses.margin import Logistic
from daskrado.statistics import HadamardRados, MeanOperator
from daskrado.statistics.slopes import SlopeSum
from daskrado.table.domain import Domain
from daskrado.table.lattice import Lattice
from daskrado.table.yaml_file import parse

FEATURES = 28


def jobs_figures(rows: int, passes: int) -> dict[str, float | int]:
    """An iterative job and one of rados, one after the other and at once, each with a client of its own."""
    with bench_lake(rows, FEATURES) as (path, domain), local_workers(2) as client:
        lake, address = open_lake(path, domain), client.scheduler.address
        jobs = [partial(_descend, address, lake, domain, passes), partial(_rados, address, lake, domain, passes // 8)]
        ends: list[list[float]] = []

        def at_once() -> None:
            ends.append(_side_by_side(jobs))

        turns = seconds_in_turns(lambda: [job() for job in jobs], at_once)
        one, both = (statistics.median(seconds) for seconds in zip(*turns, strict=True))
        return {
            "rows": rows,
            "passes": passes,
            "one_after_the_other_seconds": round(one, 3),
            "at_once_seconds": round(both, 3),
            "ratio": round(both / one, 3),
            "first_to_end_seconds": round(statistics.median(min(pair) for pair in ends), 3),
        }


def _side_by_side(jobs: Sequence[Callable[[], Any]]) -> list[float]:
    """The seconds after which each of some jobs has ended."""
    start, ends = time.perf_counter(), [0.0] * len(jobs)

    def one(number: int) -> None:
        jobs[number]()
        ends[number] = time.perf_counter() - start

    threads = [threading.Thread(target=one, args=[number]) for number in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ends


def _descend(address: str, lake: Lake, domain: Domain, passes: int) -> None:
    lattice = Lattice(domain.norm_bound)
    statistic = SlopeSum.at(np.zeros(domain.width), Logistic(), lattice)
    with connect(address) as client, open_passes(lake, domain, lattice, client=client) as session:
        for _ in range(passes):
            session.sum(statistic)


def _rados(address: str, lake: Lake, domain: Domain, repeats: int) -> None:
    with connect(address) as client:
        for _ in range(max(1, repeats)):
            collect(HadamardRados(domain.width, 1024), lake, domain, Lattice(domain.norm_bound), client=client)


def scale_figures(workers: int, partitions: int, seconds: float, passes: int) -> dict[str, Any]:
    """The real collect and the real passes of a gradient over simulated workers whose tasks sleep."""
    content = {
        "label": {"column": "y", "positive": True, "negative": False},
        "norm_bound": 1.0,
        "columns": {f"x{i:03d}": {"kind": "numeric", "lower": -4, "upper": 4} for i in range(FEATURES)},
    }
    domain = parse(Domain, content, "bench")
    lattice = Lattice(domain.norm_bound)
    with (
        patch.object(dealing, "TASK_BYTES", 0),  # a partition a task, as if each were large
        simulated_cluster(workers) as (address, scheduler, crowd),
        connect(address) as client,
    ):
        assert client is not None
        sums = partial(_growth, client, domain, lattice)
        sums(_lake(workers, 0.0))  # workers import what they need
        tenth = sums(_lake(max(1, partitions // 10), 0.0))
        lake = _lake(partitions, seconds)
        processes = {"scheduler": scheduler, "driver": os.getpid(), "all_workers": crowd}
        before = {name: processor_seconds(process) for name, process in processes.items()}
        started, sent = time.perf_counter(), _bytes(client)
        busy: float = client.run_on_scheduler(task_seconds)
        whole = sums(lake)
        took = time.perf_counter() - started
        cpu = {name: processor_seconds(process) - before[name] for name, process in processes.items()}
        busy, sent = client.run_on_scheduler(task_seconds) - busy, _bytes(client) - sent
        ideal, tasks = partitions * seconds / workers, _tasks(partitions)
        descent = _passes(client, _lake(workers, 0.0), domain, lattice, passes)
        levels = _levels(client, _lake(max(64, partitions // 10), 0.0), domain, lattice)
    return {
        "workers": workers,
        "partitions": partitions,
        "seconds_a_task": seconds,
        "collect_seconds": round(took, 2),
        "work_seconds_a_worker": round(ideal, 2),
        "task_seconds_a_worker": round(busy / workers, 2),
        "overhead": round(took / ideal - 1, 4) if ideal else None,
        "overhead_beside_tasks": round(took * workers / busy - 1, 4),
        **{f"{name}_cpu_ms_a_task": round(1000 * spent / tasks, 3) for name, spent in cpu.items()},
        "scheduler_bytes_a_task": round(sent / tasks),
        "driver_growth_mb": {"a tenth": round(tenth, 1), "all": round(whole, 1)},
        "pass_over_kept_rows_ms": round(1000 * descent, 1),
        "merge_ms_by_level": levels,
    }


def _growth(client: Any, domain: Domain, lattice: Lattice, lake: Lake) -> float:
    """Megabytes by which the driver grows at most while it sums a lake whose list of files it has."""
    most = before = resident_mb()

    def look(done: int, total: int) -> None:
        nonlocal most
        del done, total
        most = max(most, resident_mb())

    collect(MeanOperator(domain.width), lake, domain, lattice, client=client, progress=look)
    return most - before


def _tasks(partitions: int) -> int:
    """Tasks of one reduction: the partitions, and every whole group of the levels above them."""
    total, level = partitions, -(-partitions // FAN_IN)
    while level:
        total, level = total + level, level // FAN_IN
    return total


def _lake(partitions: int, seconds: float) -> Lake:
    """Tasks of so many seconds in the mean, from 3/4 to 5/4 of it: alike, they would all end in the same moment."""
    golden = (math.sqrt(5) - 1) / 2
    lengths = [seconds * (0.75 + 0.5 * (i * golden % 1)) for i in range(partitions)]
    parts = tuple(SleepingPartition(f"part-{i:05d}", length) for i, length in enumerate(lengths))
    return Lake(parts, ROWS * partitions, 0, "bench", None)


def _bytes(client: Any) -> int:
    found: int = client.run_on_scheduler(scheduler_bytes)
    return found


def _passes(client: Any, lake: Lake, domain: Domain, lattice: Lattice, passes: int) -> float:
    """Median seconds of a pass over rows that the workers keep."""
    statistic = SlopeSum.at(np.zeros(domain.width), Logistic(), lattice)
    spent = []
    with open_passes(lake, domain, lattice, client=client) as session:
        session.sum(statistic)  # reads and keeps
        for _ in range(passes):
            start = time.perf_counter()
            session.sum(statistic)
            spent.append(time.perf_counter() - start)
    return statistics.median(spent)


def _levels(client: Any, lake: Lake, domain: Domain, lattice: Lattice) -> dict[str, float]:
    """Median milliseconds of a merge on a worker, with fetching what it merges, for each level of the tree."""
    client.get_task_stream(count=1)  # from here on the scheduler writes down when tasks begin and end
    start = time.time()
    collect(MeanOperator(domain.width), lake, domain, lattice, client=client)
    spent: dict[str, list[float]] = defaultdict(list)
    for task in client.get_task_stream(start=start):
        if task["key"].startswith("daskrado-merge-"):
            whole = max(s["stop"] for s in task["startstops"]) - min(s["start"] for s in task["startstops"])
            spent[task["key"].rsplit("-", 2)[1]].append(1000 * whole)
    return {level: round(statistics.median(found), 3) for level, found in sorted(spent.items())}
