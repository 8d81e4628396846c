"""A cluster as a YAML file: how workers are started or reached, and what is demanded of the way there."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from daskrado.errors import UsageError
from daskrado.table.yaml_file import Frozen, parse, read_yaml

MOST_WORKERS = 1024


def _size(value: str) -> str:
    from dask.utils import parse_bytes

    try:
        if value != "auto":
            parse_bytes(value)
    except ValueError:
        raise ValueError(f"must be a size such as 2GiB or 500MB, got {value!r}") from None
    return value


Size = Annotated[str, AfterValidator(_size)]


class SlurmConfig(Frozen):
    """One SLURM job: each holds ``processes`` workers, which share its cores and its memory."""

    queue: str | None = None
    account: str | None = None
    cores: int = Field(default=1, ge=1, le=1024)
    processes: int = Field(default=1, ge=1, le=1024)
    memory: Size = "2GiB"
    walltime: str = "01:00:00"
    interface: str | None = Field(default=None, description="network interface of the scheduler, such as ib0")
    python: str | None = Field(default=None, description="the interpreter on the nodes, if not this one")
    directives: tuple[str, ...] = Field(default=(), description="more #SBATCH lines, such as --qos=long")
    log_directory: str | None = None
    local_directory: str | None = Field(default=None, description="scratch folder of a worker")


class ClusterConfig(Frozen):
    """How to reach workers. ``auto``: this process for small lakes, local workers for large ones.

    With ``require_encryption`` nothing is sent without TLS: a scheduler that offers none is refused.
    """

    kind: Literal["auto", "in_process", "local", "scheduler", "slurm"] = "auto"
    workers: int | None = Field(default=None, ge=1, le=MOST_WORKERS)
    threads: int = Field(default=1, ge=1, le=64)
    memory_limit: Size = "2GiB"
    address: str | None = None
    scheduler_file: str | None = None
    connect_timeout: float = Field(default=20.0, gt=0, le=3600)
    no_workers_timeout: float = Field(default=60.0, gt=0, le=86400)
    worker_ttl: float = Field(default=60.0, gt=0, le=86400, description="a worker silent for so long is given up")
    task_timeout: float = Field(default=1800.0, gt=0, le=864_000, description="a task that runs longer is tried anew")
    require_encryption: bool = False
    tls_ca_file: str | None = None
    tls_client_cert: str | None = None
    tls_client_key: str | None = None
    slurm: SlurmConfig = SlurmConfig()
    performance_report: str | None = Field(default=None, description="an HTML file about the tasks of the job")

    @model_validator(mode="after")
    def _check(self) -> ClusterConfig:
        files = (self.tls_ca_file, self.tls_client_cert, self.tls_client_key)
        if any(files) and not all(files):
            raise ValueError("tls_ca_file, tls_client_cert and tls_client_key come together")
        return self

    @property
    def encrypted(self) -> bool:
        """Whether there are certificates to show."""
        return self.tls_ca_file is not None

    def check_files(self) -> None:
        """Refuse certificates that are not there, by name."""
        for key in ("tls_ca_file", "tls_client_cert", "tls_client_key"):
            value = getattr(self, key)
            if value is not None and not Path(value).is_file():
                raise UsageError(
                    f"cluster.{key}: {value}: no such file; make one with: daskrado cluster certificates"
                )


def cluster_config(
    workers: int | None = None, cluster: str | Path | None = None, performance_report: str | None = None
) -> ClusterConfig:
    """From the command line: ``--workers N``, or ``--cluster`` with a YAML file or a scheduler's address."""
    if workers is not None and cluster is not None:
        raise UsageError("give --workers or --cluster, not both")
    found = ClusterConfig()
    if cluster is not None:
        if not isinstance(cluster, str | Path):
            raise UsageError(f"cluster must be a file or a scheduler's address, got {type(cluster).__name__}")
        remote = "://" in str(cluster)
        found = (
            ClusterConfig(kind="scheduler", address=str(cluster))
            if remote
            else parse(ClusterConfig, read_yaml(cluster), str(cluster))
        )
    elif workers is not None:
        if not isinstance(workers, int) or isinstance(workers, bool):
            raise UsageError(f"workers must be a whole number, got {type(workers).__name__}")
        if not 0 <= workers <= MOST_WORKERS:
            raise UsageError(f"--workers must be from 0 (in this process) to {MOST_WORKERS}, got {workers}")
        found = ClusterConfig(kind="local", workers=workers) if workers else ClusterConfig(kind="in_process")
    if performance_report is not None:
        return found.model_copy(update={"performance_report": performance_report})
    return found
