"""Memory of workers as the lake grows: ``daskrado bench memory``."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from functools import partial
from typing import Any

from daskrado.cli.bench.collect import FILE_ROWS, RADOS, bench_lake, local_workers, timed, worker_peak_mb, write_files
from daskrado.errors import UsageError
from daskrado.lake.collect import collect
from daskrado.lake.scan import open_lake
from daskrado.statistics import HadamardRados
from daskrado.table.lattice import Lattice

SCALES = (1, 5, 20)
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
    peaks, seconds, sizes, files = {}, {}, {}, {}
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
                peaks[f"{scale}x"] = worker_peak_mb(client)
            seconds[f"{scale}x"] = round(took, 2)
            sizes[f"{scale}x"] = round(lake.size / 1e6, 1)
            files[f"{scale}x"] = len(lake.partitions)
    return {
        "rows": rows,
        "features": features,
        "workers": workers,
        "memory_limit": memory_limit,
        "distinct_files": distinct,
        "files": files,
        "lake_mb": sizes,
        "collect_seconds": seconds,
        "worker_peak_mb": peaks,
        "growth": round(peaks[f"{scales[-1]}x"] / peaks[f"{scales[0]}x"], 3),
    }
