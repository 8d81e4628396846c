"""Memory of workers as the lake grows: ``daskrado bench memory``."""

from __future__ import annotations

import shutil
import tempfile
import time
from typing import Any

from daskrado.cluster import ClusterConfig, connect
from daskrado.errors import UsageError
from daskrado.lake.collect import collect
from daskrado.lake.scan import open_lake
from daskrado.lattice import Lattice
from daskrado.runs.bench import FILE_ROWS, RADOS, bench_lake, peak_memory_mb
from daskrado.statistics import HadamardRados

SCALES = (1, 5, 20)


def memory_figures(
    rows: int, features: int, *, workers: int = 2, memory_limit: str = "600MB", scales: tuple[int, ...] = SCALES
) -> dict[str, Any]:
    """Peak resident memory of the largest worker for lakes of 1, 5 and 20 times ``rows``, each on workers of its own.

    The files of the larger lakes are further names (hard links) of those of the smallest: a worker reads and holds as
    much as if they were files of their own, and the disk does not fill up.
    """
    size, free = rows * features * 8, shutil.disk_usage(tempfile.gettempdir()).free
    if size * 1.2 > free:
        raise UsageError(f"--rows {rows}: the lake has {size >> 20} MB, the disk has room for {free >> 20} MB")
    peaks, seconds, sizes = {}, {}, {}
    for scale in scales:
        with bench_lake(rows, features, file_rows=min(FILE_ROWS, -(-rows // 2)), copies=scale) as (path, domain):
            lake = open_lake(path, domain)
            lattice, statistic = Lattice(domain.norm_bound), HadamardRados(domain.width, RADOS)
            local = ClusterConfig(kind="local", workers=workers, memory_limit=memory_limit)
            with connect(local) as client:
                assert client is not None
                start = time.perf_counter()
                collect(statistic, lake, domain, lattice, client=client)
                seconds[f"{scale}x"] = round(time.perf_counter() - start, 2)
                peaks[f"{scale}x"] = round(max(client.run(peak_memory_mb).values()), 1)
            sizes[f"{scale}x"] = round(lake.size / 1e6, 1)
    first, last = f"{scales[0]}x", f"{scales[-1]}x"
    return {
        "rows": rows,
        "features": features,
        "workers": workers,
        "memory_limit": memory_limit,
        "lake_mb": sizes,
        "collect_seconds": seconds,
        "worker_peak_mb": peaks,
        "growth": round(peaks[last] / peaks[first], 3),
    }
