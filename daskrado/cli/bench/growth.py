"""What becomes of workers as the lake grows: ``daskrado bench memory`` and ``daskrado bench teachers``."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from daskrado.cli.bench.collect import FILE_ROWS, RADOS, bench_lake, local_workers, timed, worker_peak_mb, write_files
from daskrado.errors import UsageError
from daskrado.lake.collect import collect
from daskrado.lake.ensemble import train
from daskrado.lake.scan import open_lake
from daskrado.lake.shards import Sharding
from daskrado.lake.teachers import Course
from daskrado.learners.black_box import BlackBox
from daskrado.registry import make
from daskrado.statistics import HadamardRados
from daskrado.table.lattice import Lattice

SCALES = (1, 5, 20)
QUERIES = 100
_SPARE = 1.1  # of the room that the numbers themselves need


def memory_figures(
    rows: int, features: int, *, workers: int = 2, memory_limit: str = "600MB", scales: tuple[int, ...] = SCALES
) -> dict[str, Any]:
    """Peak resident memory of the largest worker for lakes of 1, 5 and 20 times ``rows``, each on workers of its own.

    All files differ where the disk has room for that. Where it has not, the larger lakes are those of the smallest
    over and over, and ``distinct_files`` says so.
    """
    size, free = int(_SPARE * rows * features * 8), shutil.disk_usage(tempfile.gettempdir()).free
    if size > free:
        raise UsageError(f"--rows {rows}: the lake has {size >> 20} MB, the disk has room for {free >> 20} MB")
    distinct = size * max(scales) <= free
    file_rows = min(FILE_ROWS, -(-rows // 2))
    found = {}
    with bench_lake(rows, features, file_rows=file_rows) as (path, domain):
        made = 1
        for scale in scales:
            for series in range(made, scale if distinct else made):
                write_files(path, rows, features, file_rows, series)
            made = max(made, scale)
            lake = open_lake(path, domain)
            if not distinct:
                parts = lake.partitions * scale
                lake = replace(lake, partitions=parts, rows=lake.rows * scale, size=lake.size * scale)
            lattice, statistic = Lattice(domain.norm_bound), HadamardRados(domain.width, RADOS)
            with local_workers(workers, memory_limit) as client:
                took, _ = timed(partial(collect, statistic, lake, domain, lattice, client=client))
                found[f"{scale}x"] = {
                    "files": len(lake.partitions),
                    "lake_mb": round(lake.size / 1e6, 1),
                    "collect_seconds": round(took, 2),
                    "worker_peak_mb": worker_peak_mb(client),
                }
    given = {"rows": rows, "features": features, "workers": workers, "memory_limit": memory_limit}
    return {**given, "distinct_files": distinct, **_by_figure(found)}


def teachers_figures(
    rows: int, features: int, teachers: int, *, learner: str = "moments", workers: int = 2
) -> dict[str, Any]:
    """Seconds to train and to vote, and the largest worker's memory, on a quarter of the rows and on all of them.

    Both have files of one size and as many teachers, dealt by position, on workers of their own; ``growth`` is the
    ratio of their memory.
    """
    if rows < 8 * teachers:
        raise UsageError(f"--rows {rows}: a quarter of them must give {teachers} teachers two rows each")
    found = {}
    for name, size in (("quarter", rows // 4), ("full", rows)):
        with bench_lake(size, features, file_rows=min(FILE_ROWS, rows // 8)) as (path, domain):
            lake = open_lake(path, domain)
            factory = make(BlackBox, ("daskrado.learners",), learner)
            course = Course(domain, (False, True), Sharding(teachers, by_id=False), factory)
            queries = np.random.Generator(np.random.Philox(key=[17, 0])).uniform(-1, 1, (QUERIES, domain.width))
            with local_workers(workers) as client, ExitStack() as stack:
                taught, ensemble = timed(partial(stack.enter_context, train(course, lake, client=client)))
                asked, votes = timed(partial(ensemble.votes, queries))
                assert (votes.counts.sum(axis=1) == teachers).all()
                found[name] = {
                    "train_seconds": round(taught, 2),
                    "vote_seconds": round(asked, 2),
                    "worker_peak_mb": worker_peak_mb(client),
                }
    given = {"rows": rows, "features": features, "teachers": teachers, "learner": learner, "workers": workers}
    return {**given, "queries": QUERIES, **_by_figure(found)}


def _by_figure(found: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Each figure for every size of the lake, and how the memory of a worker grows from the first to the last."""
    sizes = [*found]
    figures: dict[str, Any] = {name: {size: found[size][name] for size in sizes} for name in found[sizes[0]]}
    peaks = figures["worker_peak_mb"]
    return {**figures, "growth": round(peaks[sizes[-1]] / peaks[sizes[0]], 3)}
