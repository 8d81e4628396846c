"""Workers that a job starts for itself: processes of this machine, or SLURM jobs."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from daskrado.cluster.config import ClusterConfig
from daskrado.cluster.reached import quiet, security_of, wait_for_workers
from daskrado.errors import ClusterError, UsageError

if TYPE_CHECKING:
    from distributed import Client

START_TRIES = 3
MACHINE_SHARE = 0.8  # of the memory that the machine has left, for all local workers together
_log = logging.getLogger(__name__)


@contextlib.contextmanager
def local_workers(config: ClusterConfig) -> Iterator[Client]:
    """Processes of this machine, which share out the memory that it has left."""
    import dask
    from distributed import LocalCluster

    from daskrado.cluster.nanny import ScriptlessNanny

    # Dask looks, so long after a worker's death, whether it is back, and else gives its nanny up for good. A worker
    # that came back and died again within that look is given up though its nanny is at work: so it never looks.
    patient = {"distributed.deploy.lost-worker-timeout": "10000 days"}
    with _settings(config), dask.config.set(patient), contextlib.ExitStack() as stack:
        number = config.workers or os.cpu_count() or 1
        with _deaf_to_signals():
            cluster = _started(
                LocalCluster,
                n_workers=number,
                threads_per_worker=config.threads,
                memory_limit=_memory_limit(number) if config.memory_limit == "auto" else config.memory_limit,
                dashboard_address="127.0.0.1:0",
                scheduler_kwargs={"dashboard": False},  # no page that shows tasks
                worker_class=ScriptlessNanny,
                security=security_of(config) or (config.require_encryption or None),  # True: made on the spot
                silence_logs=logging.CRITICAL,
            )
            client = stack.enter_context(_client_of(cluster))
        yield client


@contextlib.contextmanager
def _deaf_to_signals() -> Iterator[None]:
    """Threads and processes that start in here never see Ctrl-C or SIGTERM: a terminal, and `timeout`, send them to
    all processes at once, and this one alone answers, by ending the others. Here they wait until the block ends.
    """
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # started later, it would lift the block in the thread that starts workers
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _started(make: Callable[..., Any], **options: Any) -> Any:
    """A cluster of local workers. One of them may be killed while it starts: then all are started again."""
    for _ in range(START_TRIES):
        try:
            return make(**options)
        except Exception as error:
            failed = error
    raise ClusterError(f"local workers could not be started ({type(failed).__name__})") from failed


def _memory_limit(workers: int) -> int:
    """An equal share for each of what the machine, or this process's control group, has left."""
    import psutil
    from distributed.system import MEMORY_LIMIT

    return int(MACHINE_SHARE * min(MEMORY_LIMIT, psutil.virtual_memory().available) / workers)


@contextlib.contextmanager
def slurm_workers(config: ClusterConfig) -> Iterator[Client]:
    """SLURM jobs, by dask-jobqueue; the scheduler is in this process."""
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
                security=security_of(config),
                protocol="tls://" if config.encrypted else "tcp://",
                scheduler_options={"dashboard": False},
            )
        except (ValueError, RuntimeError) as error:
            raise ClusterError(f"SLURM: the scheduler could not be started ({error})") from error
        with _client_of(cluster) as client:
            cluster.scale(jobs=jobs)
            _log.info("asked SLURM for %d jobs", jobs)
            wait_for_workers(client, config, f"SLURM queue {job.queue or '(default)'}")
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
        # A shuffle holds no more than this of what is to be sent or written, whatever a worker has; Dask's is 1 GiB.
        "distributed.p2p.comm.buffer": "32 MiB",
        "distributed.p2p.storage.buffer": "32 MiB",
        "distributed.scheduler.no-workers-timeout": config.no_workers_timeout,
        "distributed.scheduler.worker-ttl": config.worker_ttl,
        # Whoever talks to a worker that was killed finds out within this time, not within 30 s.
        "distributed.comm.timeouts.connect": "10s",
        "distributed.logging": {"distributed": "critical"},
    }
    with dask.config.set(settings), quiet():
        yield
