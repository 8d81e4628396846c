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

    Files have the same size at every scale, so that only their number grows.
    """
    largest = max(scales) * rows * features * 8
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if largest * 1.2 > free:
        raise UsageError(
            f"--rows {rows}: the largest lake has {largest >> 20} MB, the disk has room for {free >> 20} MB"
        )
    peaks, seconds, sizes = {}, {}, {}
    for scale in scales:
        with bench_lake(scale * rows, features, file_rows=min(FILE_ROWS, -(-rows // 2))) as (path, domain):
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
