"""One pass over lakes that are written in several ways: part of ``daskrado bench collect``.

In this process and by CPU seconds, which other people's work changes little.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from daskrado.lake.collect import collect
from daskrado.lake.scan import Lake, open_lake
from daskrado.statistics import Statistic
from daskrado.table.domain import Domain
from daskrado.table.encoding import needed_columns
from daskrado.table.lattice import Lattice

FORMS: dict[str, dict[str, Any]] = {
    "dictionary": {},  # as pyarrow writes them by default
    "plain": {"use_dictionary": False},
    "zstd": {"use_dictionary": False, "compression": "zstd"},
    "float32": {},
}
ROUNDS = 5


def form_figures(folder: Path, domain: Domain, statistic: Statistic) -> dict[str, dict[str, float]]:
    """For each form of the same rows: CPU seconds of collect for a million rows, and against a bare scan of the form.

    ``folder`` holds the lake's files; at most four of them, of a million rows at the bench's size, are written anew.
    """
    found = {}
    for name, options in FORMS.items():
        target = folder / f"as-{name}"
        target.mkdir()
        for path in sorted(folder.glob("*.parquet"))[:4]:
            table = pq.read_table(path)
            if name == "float32":
                narrow = [column.cast(pa.float32()) for column in table.columns[:-1]]
                table = pa.table([*narrow, table.columns[-1]], names=table.column_names)
            pq.write_table(table, target / path.name, **options)
        found[name] = _figures(open_lake(target, domain), domain, statistic)
    return found


def _figures(lake: Lake, domain: Domain, statistic: Statistic) -> dict[str, float]:
    jobs: list[Callable[[], Any]] = [
        partial(_scan, lake, domain),
        partial(collect, statistic, lake, domain, Lattice(domain.norm_bound)),
    ]
    for job in jobs:
        job()
    rounds = [[_cpu(job) for job in jobs] for _ in range(ROUNDS)]
    scan, ours = (statistics.median(each) for each in zip(*rounds, strict=True))
    ratio = statistics.median(b / a for a, b in rounds)
    return {
        "scan_cpu_per_million": round(1e6 * scan / lake.rows, 4),
        "collect_cpu_per_million": round(1e6 * ours / lake.rows, 4),
        "cpu_ratio_to_scan": round(ratio, 3),
    }


def _scan(lake: Lake, domain: Domain) -> int:
    """A bare Arrow read of the same columns."""
    columns = needed_columns(domain)
    return sum(table.num_rows for partition in lake.partitions for _, table in partition.tables(columns))


def _cpu(work: Callable[[], Any]) -> float:
    gc.collect()
    start = time.process_time()
    work()
    return time.process_time() - start
