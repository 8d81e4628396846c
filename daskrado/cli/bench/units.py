"""What a guarantee for people costs: ``daskrado bench units``, one bounded pass against the plain pass."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from daskrado.cli.bench.collect import FILE_ROWS, bench_lake, local_workers, worker_peak_mb
from daskrado.lake.collect import collect
from daskrado.lake.scan import Lake, open_lake
from daskrado.lake.units import units_of
from daskrado.privacy.protect import Protect
from daskrado.statistics import Moments
from daskrado.table.domain import Domain
from daskrado.table.lattice import Lattice

ROUNDS = 3
_COLUMN = "patient"
_KEY = bytes(range(32))
PROTECT = Protect.model_validate({"relation": "add_remove", "unit": {"column": _COLUMN, "name": "one patient"}})


def units_figures(
    rows: int, features: int, people: int, *, workers: int = 2, memory_limit: str = "600MB"
) -> dict[str, Any]:
    """Moments of rows and of people, on lakes whose files each hold their own people, and on mixed ones.

    ``ratio`` is CPU seconds of the bounded pass, its counting included, over those of the plain pass, of this process
    and all workers together; ``seconds_ratio`` the same of wall seconds. Both are medians over rounds of one after
    the other. Memory is that of the largest worker and of this process, above what it had before.
    """
    found: dict[str, Any] = {"rows": rows, "features": features, "people": people, "workers": workers}
    found["memory_limit"] = memory_limit
    with bench_lake(rows, features, file_rows=FILE_ROWS) as (path, domain):
        for form in ("clustered", "shuffled"):
            with tempfile.TemporaryDirectory(prefix="daskrado-bench-") as folder:
                _owned(path, Path(folder), rows, people, mixed=form == "shuffled")
                found[form] = _form_figures(open_lake(folder, domain), domain, workers, memory_limit)
    return found


def _owned(source: Path, target: Path, rows: int, people: int, *, mixed: bool) -> None:
    """The same files with a column of who owns each row: people in their order, or drawn for each row anew."""
    draw, first = np.random.default_rng(7), 0
    for path in sorted(source.glob("*.parquet")):
        table = pq.read_table(path)
        ordered = np.maximum(np.arange(first, first + table.num_rows) * people, first * people + rows - 1) // rows
        ids = draw.integers(0, people, table.num_rows) if mixed else ordered  # nobody in two files
        first += table.num_rows
        pq.write_table(table.append_column(_COLUMN, pa.array(ids)), target / path.name)


def _form_figures(lake: Lake, domain: Domain, workers: int, memory_limit: str) -> dict[str, Any]:
    lattice, statistic = Lattice(domain.norm_bound, 11), Moments(domain.width)
    with local_workers(workers, memory_limit) as client:

        def plain() -> Any:
            return collect(statistic, lake, domain, lattice, client=client, secret_rows=True)

        def bounded() -> Any:
            units = units_of(lake, PROTECT, _KEY, None, client=client)
            return collect(statistic, lake, domain, lattice, client=client, secret_rows=True, units=units)

        costs = [(_cost(client, plain), _cost(client, bounded)) for _ in range(ROUNDS + 1)][1:]  # one to warm up
        peak = worker_peak_mb(client)
    wall, cpu = (statistics.median(two[at] / one[at] for one, two in costs) for at in (0, 1))
    return {
        "counted_by": "tasks" if lake.spans(_COLUMN) is not None else "shuffle",
        "plain_cpu_seconds": round(statistics.median(one[1] for one, _ in costs), 3),
        "bounded_cpu_seconds": round(statistics.median(two[1] for _, two in costs), 3),
        "ratio": round(cpu, 3),
        "seconds_ratio": round(wall, 3),
        "worker_peak_mb": peak,
    }


def _cost(client: Any, work: Callable[[], Any]) -> tuple[float, float]:
    """Wall seconds, and CPU seconds of this process and of all workers."""
    start, used = time.perf_counter(), _cpu(client)
    work()
    return time.perf_counter() - start, _cpu(client) - used


def _cpu(client: Any) -> float:
    return time.process_time() + float(sum(client.run(time.process_time).values()))
