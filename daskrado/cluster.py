"""Where tasks run: in this process, on a LocalCluster, or on a scheduler that is already there."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from daskrado.domain import Frozen, parse, read_yaml
from daskrado.errors import ClusterError, UsageError

if TYPE_CHECKING:
    from distributed import Client

IN_PROCESS_BYTES = 64 << 20  # a lake below this is read faster here than a cluster starts


class ClusterConfig(Frozen):
    """How to reach workers. ``auto``: this process for small lakes, local workers for large ones."""

    kind: Literal["auto", "in_process", "local", "scheduler"] = "auto"
    workers: int | None = Field(default=None, ge=1, le=1024)
    threads: int = Field(default=1, ge=1, le=64)
    memory_limit: str = "2GiB"
    address: str | None = None
    scheduler_file: str | None = None
    connect_timeout: float = Field(default=20.0, gt=0, le=3600)
    no_workers_timeout: float = Field(default=60.0, gt=0, le=86400)
    tls_ca_file: str | None = None
    tls_client_cert: str | None = None
    tls_client_key: str | None = None


def cluster_config(workers: int | None = None, cluster: str | None = None) -> ClusterConfig:
    """From the command line: ``--workers N``, or ``--cluster`` with a YAML file or a scheduler's address."""
    if workers is not None and cluster is not None:
        raise UsageError("give --workers or --cluster, not both")
    if cluster is not None:
        if "://" in cluster:
            return ClusterConfig(kind="scheduler", address=cluster)
        return parse(ClusterConfig, read_yaml(cluster), cluster)
    if workers is not None:
        if workers < 0:
            raise UsageError(f"--workers must be 0 (in this process) or more, got {workers}")
        return ClusterConfig(kind="local", workers=workers) if workers else ClusterConfig(kind="in_process")
    return ClusterConfig()


@contextlib.contextmanager
def connect(config: ClusterConfig, lake_bytes: int = 0) -> Iterator[Client | None]:
    """A Dask client for the duration of a job, or None for "in this process"."""
    kind = config.kind
    if kind == "auto":
        kind = "in_process" if lake_bytes < IN_PROCESS_BYTES and config.workers is None else "local"
    if kind == "in_process":
        yield None
    elif kind == "local":
        with _local(config) as client:
            yield client
    else:
        with _remote(config) as client:
            yield client


@contextlib.contextmanager
def _local(config: ClusterConfig) -> Iterator[Client]:
    import dask
    from distributed import Client, LocalCluster

    settings = {
        # Dask makes glibc give memory back after every array: tasks would spend most of their time on page faults.
        "distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_": 256 << 20,
        "distributed.nanny.pre-spawn-environ.MALLOC_MMAP_THRESHOLD_": 32 << 20,
        "distributed.scheduler.no-workers-timeout": config.no_workers_timeout,
        "distributed.logging": {"distributed": "critical"},
    }
    with dask.config.set(settings):
        for name in ("distributed.nanny", "distributed.scheduler", "distributed.worker", "distributed.core"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        cluster = LocalCluster(
            n_workers=config.workers or os.cpu_count() or 1,
            threads_per_worker=config.threads,
            memory_limit=config.memory_limit,
            dashboard_address=":0",
            scheduler_kwargs={"dashboard": False},  # no page that shows tasks
            processes=True,
            silence_logs=logging.CRITICAL,
        )
        try:
            client = Client(cluster)
            try:
                yield client
            finally:
                client.close()
        finally:
            cluster.close()


@contextlib.contextmanager
def _remote(config: ClusterConfig) -> Iterator[Client]:
    from distributed import Client, Security

    if (config.address is None) == (config.scheduler_file is None):
        raise UsageError("a cluster of kind scheduler needs either address or scheduler_file")
    security = None
    if config.tls_ca_file is not None:
        security = Security(
            tls_ca_file=config.tls_ca_file,
            tls_client_cert=config.tls_client_cert,
            tls_client_key=config.tls_client_key,
            require_encryption=True,
        )
    where = config.address or config.scheduler_file
    if config.scheduler_file is not None and not Path(config.scheduler_file).exists():
        raise ClusterError(f"scheduler file {config.scheduler_file}: no such file")
    try:
        client = Client(
            config.address,
            scheduler_file=config.scheduler_file,
            security=security,
            timeout=config.connect_timeout,
            set_as_default=False,
        )
    except (OSError, TimeoutError) as error:
        raise ClusterError(f"scheduler {where}: not reachable within {config.connect_timeout:g} s") from error
    except ValueError as error:
        raise UsageError(f"scheduler {where}: {error}") from error
    try:
        client.wait_for_workers(1, timeout=config.no_workers_timeout)
        yield client
    except TimeoutError as error:
        raise ClusterError(f"scheduler {where}: no worker joined within {config.no_workers_timeout:g} s") from error
    finally:
        client.close()
