"""A client for the duration of a job, on whatever the configuration says."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daskrado.cluster.config import ClusterConfig, cluster_config
from daskrado.cluster.given import active_client, borrowed
from daskrado.cluster.jobs import entered, same_version
from daskrado.errors import ClusterError, UsageError
from daskrado.lake.asking import workers_of
from daskrado.lake.watch import offered

if TYPE_CHECKING:
    from distributed import Client

IN_PROCESS_BYTES = 64 << 20  # a lake below this is read faster here than a cluster starts
_log = logging.getLogger(__name__)


@contextlib.contextmanager
def connect(where: Any, lake_bytes: int = 0) -> Iterator[Client | None]:
    """A Dask client for the duration of a job, or None for "in this process".

    ``where`` is a ClusterConfig, or what makes one: a file, an address, a Dask client, a cluster object. Where
    nothing is said, the client that is active in this process or task does the work, as Dask's own libraries have it;
    without one, this process for small lakes and local workers for large ones.
    """
    config = cluster_config(cluster=where)
    kind, given = config.kind, config.given
    if kind == "auto" and config.workers is None:
        given = active_client()
    if kind == "auto" and given is None:
        kind = "in_process" if lake_bytes < IN_PROCESS_BYTES and config.workers is None else "local"
    if kind == "in_process":
        if config.performance_report is not None:
            raise UsageError(
                "a performance report is about workers, and this job runs in this process: give --workers"
            )
        _log.info("working in this process")
        yield None
        return
    import dask

    config.check_files()
    limits = {
        "daskrado.task-timeout": config.task_timeout,
        "daskrado.no-workers-timeout": config.no_workers_timeout,
        "daskrado.resources": config.resources,
    }
    wishes = {"priority": config.priority, "resources": config.resources}
    with (
        dask.config.set(limits),
        _client(config, kind, given) as client,
        _performance_report(client, config.performance_report),
        dask.annotate(**{name: wish for name, wish in wishes.items() if wish}),
        entered(client),
    ):
        if config.resources:
            _wait_for_resources(client, config)
        if kind != "local":
            same_version(client)
        _log.info("working on %d workers of the scheduler %s", len(workers_of(client)), client.scheduler.address)
        yield client


def _client(config: ClusterConfig, kind: str, given: Any) -> contextlib.AbstractContextManager[Client]:
    if given is not None:
        return borrowed(given, config)
    from daskrado.cluster.reached import scheduler_at
    from daskrado.cluster.started import local_workers, slurm_workers

    return {"local": local_workers, "slurm": slurm_workers, "scheduler": scheduler_at}[kind](config)


def _wait_for_resources(client: Client, config: ClusterConfig) -> None:
    """Wait for a worker that offers what the job's tasks need; Dask would wait for ever."""
    end = time.monotonic() + config.no_workers_timeout
    while not workers_of(client):
        if time.monotonic() > end:
            wants = offered(config.resources)
            raise ClusterError(f"no worker offers {wants} within {config.no_workers_timeout:g} s (resources)")
        time.sleep(0.1)


@contextlib.contextmanager
def _performance_report(client: Client, path: str | None) -> Iterator[None]:
    """Dask's own page about tasks, transfers and workers. Tasks are named by files; none carries a value of a row."""
    if path is None:
        yield
        return
    try:
        import bokeh  # noqa: F401
    except ImportError:
        raise UsageError("a performance report needs bokeh: pip install 'daskrado[cluster]'") from None
    from distributed import performance_report

    if not Path(path).absolute().parent.is_dir():
        raise UsageError(f"--performance-report {path}: its folder does not exist")
    with client.as_current(), performance_report(filename=path):
        yield
    _log.info("performance report in %s", path)
