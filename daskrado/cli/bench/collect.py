"""The measurements behind ``daskrado bench``: ratios within one run, on a lake and workers made for the purpose."""

from __future__ import annotations

import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from daskrado.cluster import ClusterConfig, connect
from daskrado.lake.collect import CHUNK_ROWS, collect
from daskrado.lake.scan import Lake, open_lake
from daskrado.lake.seeds import position_seeds
from daskrado.statistics import HadamardRados, Rows, UniformRados
from daskrado.table.compact_encoding import CompactTable
from daskrado.table.domain import Domain
from daskrado.table.encoding import encode_table, needed_columns
from daskrado.table.inner_loops import compile_loops
from daskrado.table.lattice import Lattice
from daskrado.table.yaml_file import parse

T = TypeVar("T")
RADOS = 1024
REPEATS = 7
FILE_ROWS = 250_000


@contextmanager
def bench_lake(rows: int, features: int, *, file_rows: int = FILE_ROWS) -> Iterator[tuple[Path, Domain]]:
    """A temporary lake of float columns and a boolean label, from a public seed; see :func:`write_files`."""
    content = {
        "label": {"column": "y", "positive": True, "negative": False},
        "norm_bound": 1.0,
        "intercept": 0,
        "columns": {name: {"kind": "numeric", "lower": -4, "upper": 4} for name in _names(features)},
    }
    with tempfile.TemporaryDirectory(prefix="daskrado-bench-") as folder:
        write_files(Path(folder), rows, features, file_rows)
        yield Path(folder), parse(Domain, content, "bench")


@contextmanager
def local_workers(count: int, memory_limit: str = "2GiB") -> Iterator[Any]:
    """A client of so many worker processes."""
    with connect(ClusterConfig(kind="local", workers=count, memory_limit=memory_limit)) as client:
        assert client is not None
        yield client


def worker_peak_mb(client: Any) -> float:
    """The memory of the largest worker so far."""
    return float(round(max(client.run(peak_memory_mb).values()), 1))


def write_files(folder: Path, rows: int, features: int, file_rows: int = FILE_ROWS, series: int = 0) -> None:
    """Files of normal draws; each ``series`` has a public seed of its own, so that no two files are alike."""
    files = max(2, -(-rows // file_rows))
    for number, size in enumerate(np.diff(np.linspace(0, rows, files + 1).astype(int))):
        draw = np.random.Generator(np.random.Philox(key=[11 + series, number]))
        x = draw.normal(size=(features, size))
        columns: dict[str, Any] = dict(zip(_names(features), x, strict=True))
        columns["y"] = x.sum(axis=0) + draw.normal(size=size) > 0
        pq.write_table(pa.table(columns), folder / f"part-{series:04d}-{number:05d}.parquet")


def _names(features: int) -> list[str]:
    return [f"x{i:03d}" for i in range(features)]


def collect_figures(rows: int, features: int) -> dict[str, Any]:
    """Collect against a bare scan on the same two workers, against one worker, and against dense rados.

    What a bare scan gains from the second worker is told beside what collect gains: both read memory that the
    processor's cores share. Lakes in other forms are measured in this process, see ``lake_forms``.
    """
    from daskrado.cli.bench.lake_forms import form_figures

    with bench_lake(rows, features) as (path, domain):
        lake = open_lake(path, domain)
        lattice, statistic = Lattice(domain.norm_bound), HadamardRados(domain.width, RADOS)
        with local_workers(2) as two, local_workers(1) as one:
            jobs: list[Callable[[], Any]] = [partial(_scan, client, lake, domain) for client in (two, one)]
            jobs += [partial(collect, statistic, lake, domain, lattice, client=client) for client in (two, one)]
            scan_two, scan_one, collect_two, collect_one = zip(*seconds_in_turns(*jobs), strict=True)
            peak = worker_peak_mb(two)
        scan_seconds, collect_seconds = statistics.median(scan_two), statistics.median(collect_two)
        return {
            "rows": rows,
            "features": features,
            "rados": RADOS,
            "scan_seconds": round(scan_seconds, 4),
            "collect_seconds": round(collect_seconds, 4),
            "ratio_to_scan": round(collect_seconds / scan_seconds, 3),
            "dense_ratio": round(_dense_ratio(lake, domain, lattice), 1),
            "speedup_two_workers": _gain(collect_one, collect_two),
            "scan_speedup_two_workers": _gain(scan_one, scan_two),
            "worker_peak_mb": peak,
            "forms": form_figures(path, domain, statistic),
        }


def median_seconds(work: Callable[[], Any]) -> float:
    """Median wall seconds after one call to warm up."""
    return statistics.median(seconds for (seconds,) in seconds_in_turns(work))


def seconds_in_turns(*jobs: Callable[[], Any]) -> list[list[float]]:
    """Wall seconds of some jobs run in turns, round by round, so that all see the same state of the machine."""
    for job in jobs:
        job()
    return [[timed(job)[0] for job in jobs] for _ in range(REPEATS)]


def _gain(one: Sequence[float], other: Sequence[float]) -> float:
    """The ratio of two jobs in a round, and its median over rounds: what slows a round down slows both."""
    return round(statistics.median(a / b for a, b in zip(one, other, strict=True)), 3)


def timed(work: Callable[[], T]) -> tuple[float, T]:
    """Wall seconds, and what came of them."""
    start = time.perf_counter()
    found = work()
    return time.perf_counter() - start, found


def wall_and_cpu(work: Callable[[], Any]) -> tuple[float, float]:
    """Wall seconds and CPU seconds of this process; other people's work changes the latter little."""
    start = time.process_time()
    seconds, _ = timed(work)
    return seconds, time.process_time() - start


def _scan(client: Any, lake: Lake, domain: Domain) -> int:
    """A bare Arrow read of the same columns by the same workers."""
    futures = client.map(_scan_task, lake.partitions, columns=needed_columns(domain), pure=False)
    return int(sum(client.gather(futures)))


def _scan_task(partition: Any, columns: list[str]) -> int:
    return sum(table.num_rows for _, table in partition.tables(columns))


def peak_memory_mb() -> float:
    """Largest resident size of this process so far, in MB.

    Since this program began, where the kernel tells: getrusage counts what the parent had at the fork, too.
    """
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _dense_ratio(lake: Lake, domain: Domain, lattice: Lattice) -> float:
    """CPU seconds of dense i.i.d. rados over Hadamard rados, on the same rows on the lattice."""
    _, table = next(lake.partitions[0].tables(needed_columns(domain)))
    encoded = encode_table(domain, table)
    assert encoded.labels is not None
    size = min(encoded.length, 4 * CHUNK_ROWS)
    compile_loops()
    seeds = position_seeds(bytes(32), "bench", 0, size)
    rows = Rows(CompactTable(encoded).block(0, size, lattice), encoded.labels[:size], seeds)
    starts = range(0, size, CHUNK_ROWS)
    compact = [rows.take(slice(start, start + CHUNK_ROWS)) for start in starts]
    dense = [rows.dense(start, start + CHUNK_ROWS) for start in starts]
    uniform, hadamard = UniformRados(domain.width, RADOS), HadamardRados(domain.width, RADOS)
    return cpu_seconds(uniform.partial, dense, 1) / cpu_seconds(hadamard.partial, compact, 10)


def cpu_seconds(partial_sum: Callable[[Rows], Any], blocks: Sequence[Rows], repeats: int) -> float:
    """CPU seconds of one pass over some blocks of rows; the median of ``repeats``, the first block once before."""
    partial_sum(blocks[0])
    found = []
    for _ in range(repeats):
        start = time.process_time()
        for block in blocks:
            partial_sum(block)
        found.append(time.process_time() - start)
    return statistics.median(found)
