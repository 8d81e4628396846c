"""Teachers as the lake grows: ``daskrado bench teachers``."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np

from daskrado.cli.bench.collect import FILE_ROWS, bench_lake, local_workers, timed, worker_peak_mb
from daskrado.errors import UsageError
from daskrado.lake.ensemble import train
from daskrado.lake.scan import open_lake
from daskrado.lake.shards import Sharding
from daskrado.lake.teachers import Course
from daskrado.learners.black_box import BlackBox
from daskrado.registry import make

QUERIES = 100


def teachers_figures(
    rows: int, features: int, teachers: int, *, learner: str = "moments", workers: int = 2
) -> dict[str, Any]:
    """Seconds to train and to vote, and the largest worker's memory, on a quarter of the rows and on all of them.

    Both have files of one size and as many teachers, dealt by position, on workers of their own; ``growth`` is the
    ratio of their memory.
    """
    if rows < 8 * teachers:
        raise UsageError(f"--rows {rows}: a quarter of them must give {teachers} teachers two rows each")
    trained, voted, peaks = {}, {}, {}
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
                peaks[name] = worker_peak_mb(client)
            trained[name], voted[name] = round(taught, 2), round(asked, 2)
    return {
        "rows": rows,
        "features": features,
        "teachers": teachers,
        "learner": learner,
        "workers": workers,
        "train_seconds": trained,
        "vote_seconds": voted,
        "queries": QUERIES,
        "worker_peak_mb": peaks,
        "growth": round(peaks["full"] / peaks["quarter"], 3),
    }
