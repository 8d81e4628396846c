"""A client for the duration of a job, on whatever the configuration says."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daskrado.cluster.config import ClusterConfig
from daskrado.errors import ClusterError, UsageError

if TYPE_CHECKING:
    from distributed import Client

IN_PROCESS_BYTES = 64 << 20  # a lake below this is read faster here than a cluster starts

_CHATTY = tuple(
    f"distributed.{part}"
    for part in ("nanny", "scheduler", "worker", "core", "comm", "comm.tcp", "client", "batched")
)
_log = logging.getLogger(__name__)


@contextlib.contextmanager
def connect(config: ClusterConfig, lake_bytes: int = 0) -> Iterator[Client | None]:
    """A Dask client for the duration of a job, or None for "in this process"."""
    kind = config.kind
    if kind == "auto":
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
    start = {"local": _local, "slurm": _slurm, "scheduler": _remote}[kind]
    limits = {
        "daskrado.task-timeout": config.task_timeout,
        "daskrado.no-workers-timeout": config.no_workers_timeout,
    }
    with (
        dask.config.set(limits),
        start(config) as client,
        _performance_report(client, config.performance_report),
    ):
        workers = len(client.scheduler_info(n_workers=-1)["workers"])
        _log.info("working on %d workers of the scheduler %s", workers, client.scheduler.address)
        yield client


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


@contextlib.contextmanager
def _local(config: ClusterConfig) -> Iterator[Client]:
    import dask
    from distributed import LocalCluster

    from daskrado.cluster.nanny import ScriptlessNanny

    # Dask looks, so long after a worker's death, whether it is back, and else gives its nanny up for good. A worker
    # that came back and died again within that look is given up though its nanny is at work: so it never looks.
    patient = {"distributed.deploy.lost-worker-timeout": "10000 days"}
    with _settings(config), dask.config.set(patient), contextlib.ExitStack() as stack:
        with _deaf_to_ctrl_c():
            cluster = LocalCluster(
                n_workers=config.workers or os.cpu_count() or 1,
                threads_per_worker=config.threads,
                memory_limit=config.memory_limit,
                dashboard_address="127.0.0.1:0",
                scheduler_kwargs={"dashboard": False},  # no page that shows tasks
                worker_class=ScriptlessNanny,
                security=_security(config) or (config.require_encryption or None),  # True: made on the spot
                silence_logs=logging.CRITICAL,
            )
            client = stack.enter_context(_client_of(cluster))
        yield client


@contextlib.contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """Threads and processes that start in here, and those that they start, never see Ctrl-C: a terminal sends it to
    all processes at once, and this one alone answers it, by ending the others. Here it waits until the block ends.
    """
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # started later, it would lift the block in the thread that starts workers
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _slurm(config: ClusterConfig) -> Iterator[Client]:
    try:
        from dask_jobqueue import SLURMCluster
    except ImportError:
        raise UsageError("kind slurm needs dask-jobqueue: pip install 'daskrado[cluster]'") from None
    if config.require_encryption and not config.encrypted:
        raise UsageError("require_encryption with slurm needs tls_ca_file, tls_client_cert and tls_client_key")
    if shutil.which("sbatch") is None:
        raise ClusterError("SLURM: there is no sbatch on the PATH; run this on a login node of the cluster")
    job, jobs = config.slurm, config.workers or 1
    with _settings(config):
        try:
            cluster = SLURMCluster(
                queue=job.queue,
                account=job.account,
                cores=job.cores,
                processes=job.processes,
                memory=job.memory,
                walltime=job.walltime,
                interface=job.interface,
                python=job.python,
                job_extra_directives=list(job.directives),
                log_directory=job.log_directory,
                local_directory=job.local_directory,
                security=_security(config),
                protocol="tls://" if config.encrypted else "tcp://",
                scheduler_options={"dashboard": False},
            )
        except (ValueError, RuntimeError) as error:
            raise ClusterError(f"SLURM: the scheduler could not be started ({error})") from error
        with _client_of(cluster) as client:
            cluster.scale(jobs=jobs)
            _log.info("asked SLURM for %d jobs", jobs)
            _wait(client, config, f"SLURM queue {job.queue or '(default)'}")
            yield client


@contextlib.contextmanager
def _client_of(cluster: Any) -> Iterator[Client]:
    from distributed import Client

    try:
        client = Client(cluster, set_as_default=False)
        try:
            yield client
        finally:
            client.close()
    finally:
        with contextlib.suppress(AssertionError):  # distributed joins a worker that it was just starting again
            cluster.close()


@contextlib.contextmanager
def _settings(config: ClusterConfig) -> Iterator[None]:
    """Dask's settings for a scheduler that lives in this process."""
    import dask

    settings = {
        # Dask makes glibc give memory back after every array: tasks would spend most of their time on page faults.
        "distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_": 256 << 20,
        "distributed.nanny.pre-spawn-environ.MALLOC_MMAP_THRESHOLD_": 32 << 20,
        # So does Arrow's allocator after 10 ms: between two tasks or passes it may keep what the next one needs.
        "distributed.nanny.pre-spawn-environ.MIMALLOC_PURGE_DELAY": 60_000,
        # Every event loop wakes up so often to see whether it is late: at 20 ms, a tenth of a core for nothing.
        "distributed.admin.tick.interval": "500ms",
        # Looks a hundred times a second at what a task does; only a performance report shows it.
        "distributed.worker.profile.enabled": config.performance_report is not None,
        # Un-noised sums and rows stay in memory: nothing is spilled to a disk.
        "distributed.worker.memory.target": False,
        "distributed.worker.memory.spill": False,
        # With nothing to spill, a paused worker would wait for ever for memory that it keeps for the next task.
        "distributed.worker.memory.pause": False,
        "distributed.scheduler.no-workers-timeout": config.no_workers_timeout,
        "distributed.scheduler.worker-ttl": config.worker_ttl,
        # Whoever talks to a worker that was killed finds out within this time, not within 30 s.
        "distributed.comm.timeouts.connect": "10s",
        "distributed.logging": {"distributed": "critical"},
    }
    with dask.config.set(settings), _quiet():
        yield


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence tracebacks of the libraries; ClusterError reports lost workers."""
    loggers = [logging.getLogger(name) for name in ("distributed", "tornado", "asyncio", *_CHATTY)]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _security(config: ClusterConfig) -> Any:
    if not config.encrypted:
        return None
    from distributed import Security

    nodes = {
        f"tls_{role}_{part}": getattr(config, f"tls_client_{part}")
        for role in ("client", "scheduler", "worker")
        for part in ("cert", "key")
    }
    return Security(tls_ca_file=config.tls_ca_file, require_encryption=True, **nodes)


@contextlib.contextmanager
def _remote(config: ClusterConfig) -> Iterator[Client]:
    from distributed import Client
    from distributed.utils import LoopRunner

    if (config.address is None) == (config.scheduler_file is None):
        raise UsageError("a cluster of kind scheduler needs either address or scheduler_file")
    where = config.address or config.scheduler_file
    address = config.address or _address_in(str(config.scheduler_file))
    _check_address(address, f"scheduler {where}")
    secure = address.startswith("tls://")
    if (config.require_encryption or config.encrypted) and not secure:
        raise UsageError(f"scheduler {where}: {address} is not encrypted, and encryption is required (tls://)")
    if secure and not config.encrypted:
        raise UsageError(
            f"scheduler {where}: {address} wants a certificate: "
            "give tls_ca_file, tls_client_cert and tls_client_key in a cluster file"
        )
    security = _security(config)
    try:
        # A connection first: a client that fails in its making would be collected with a traceback, after 40 s.
        LoopRunner(asynchronous=False).run_sync(_greet, address, security, config.connect_timeout)
        client = Client(address, security=security, timeout=config.connect_timeout, set_as_default=False)
    except (OSError, TimeoutError) as error:
        refused = " or the certificate was refused" if secure else ""
        raise ClusterError(
            f"scheduler {where}: not reachable within {config.connect_timeout:g} s{refused}"
        ) from error
    except Exception as error:
        raise ClusterError(f"scheduler {where}: what answers there is no Dask scheduler") from error
    try:
        _wait(client, config, f"scheduler {where}")
        yield client
    finally:
        client.close()


def _check_address(address: str, where: str) -> None:
    from distributed.comm import get_address_host_port

    try:
        host, port = get_address_host_port(address, strict=True)
    except ValueError:
        host, port = "", 0
    if not host or not 1 <= port <= 65535:
        raise UsageError(f"{where}: the address of a scheduler is tcp://HOST:PORT or tls://HOST:PORT, got {address}")


async def _greet(address: str, security: Any, timeout: float) -> None:
    """Connect as Dask does and hang up."""
    import asyncio

    from distributed import Security
    from distributed.comm import connect as call

    arguments = (security or Security()).get_connection_args("client")
    async with asyncio.timeout(timeout):  # somebody may pick up and say nothing
        (await call(address, timeout=timeout, **arguments)).abort()


def _wait(client: Client, config: ClusterConfig, where: str) -> None:
    try:
        client.wait_for_workers(1, timeout=config.no_workers_timeout)
    except TimeoutError as error:
        raise ClusterError(f"{where}: no worker joined within {config.no_workers_timeout:g} s") from error


def _address_in(scheduler_file: str) -> str:
    if not Path(scheduler_file).exists():
        raise ClusterError(f"scheduler file {scheduler_file}: no such file")
    try:
        return str(json.loads(Path(scheduler_file).read_text(encoding="utf-8"))["address"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ClusterError(f"scheduler file {scheduler_file}: holds no address of a scheduler") from error
