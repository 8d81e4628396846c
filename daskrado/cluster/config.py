"""A cluster as a YAML file: how workers are started or reached, and what is demanded of the way there."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PrivateAttr, model_validator

from daskrado.errors import UsageError
from daskrado.table.yaml_file import Frozen, parse, read_yaml

MOST_WORKERS = 1024
_LEAST = 150 * 10**6


def _size(value: str) -> str:
    from dask.utils import parse_bytes

    try:
        size = _LEAST if value == "auto" else parse_bytes(value)
    except ValueError:
        raise ValueError(f"must be a size such as 2GiB or 500MB, got {value!r}") from None
    if 0 < size < _LEAST:
        raise ValueError(f"a worker needs at least {_LEAST // 10**6}MB to start, got {value}; or 0 for no limit")
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
    memory_limit: Size = Field(default="auto", description="of a local worker; auto shares out what the machine has")
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
    _given: Any = PrivateAttr(None)
    priority: int = Field(default=0, ge=-1000, le=1000, description="of the job's tasks beside those of other jobs")
    resources: dict[str, float] = Field(default={}, description="what a worker must offer, such as {GPU: 1}")
    performance_report: str | None = Field(default=None, description="an HTML file about the tasks of the job")

    @model_validator(mode="after")
    def _check(self) -> ClusterConfig:
        files = (self.tls_ca_file, self.tls_client_cert, self.tls_client_key)
        if any(files) and not all(files):
            raise ValueError("tls_ca_file, tls_client_cert and tls_client_key come together")
        return self

    @classmethod
    def of(cls, given: Any) -> ClusterConfig:
        """The workers of a Dask client, or of a cluster object with ``get_client()``.

        A journal remembers its scheduler's address alone: a run that is resumed elsewhere connects anew.
        """
        scheduler = getattr(given, "scheduler", None)
        address = getattr(given, "scheduler_address", None) or getattr(scheduler, "address", None)
        found = cls(kind="scheduler", address=None if address is None else str(address))
        found._given = given
        return found

    @property
    def given(self) -> Any:
        """The client or cluster object that the caller handed in; it is never closed here."""
        return self._given

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


def is_cluster(value: Any) -> bool:
    """Whether a value is a Dask client, or a cluster object that gives one."""
    return callable(getattr(value, "get_client", None)) or all(
        callable(getattr(value, name, None)) for name in ("submit", "scatter", "run_on_scheduler")
    )


def cluster_config(
    workers: int | None = None,
    cluster: Any = None,
    performance_report: str | None = None,
    priority: int | None = None,
    resources: str | None = None,
) -> ClusterConfig:
    """The workers of a job: so many local ones, or those of a file, an address, a Dask client or a cluster object."""
    if workers is not None and cluster is not None:
        raise UsageError("give --workers or --cluster, not both")
    found = ClusterConfig()
    if cluster is not None:
        found = _named(cluster)
    elif workers is not None:
        if not isinstance(workers, int) or isinstance(workers, bool):
            raise UsageError(f"workers must be a whole number, got {type(workers).__name__}")
        if not 0 <= workers <= MOST_WORKERS:
            raise UsageError(f"--workers must be from 0 (in this process) to {MOST_WORKERS}, got {workers}")
        found = ClusterConfig(kind="local", workers=workers) if workers else ClusterConfig(kind="in_process")
    changes: dict[str, Any] = {"performance_report": performance_report, "priority": priority}
    if resources is not None:
        changes["resources"] = _resources(resources)
    return found.model_copy(update={key: value for key, value in changes.items() if value is not None})


def _named(cluster: Any) -> ClusterConfig:
    if isinstance(cluster, ClusterConfig):
        return cluster
    if is_cluster(cluster):
        return ClusterConfig.of(cluster)
    if not isinstance(cluster, str | Path):
        raise UsageError(
            "cluster must be a file, a scheduler's address, a Dask client or a cluster object, "
            f"got {type(cluster).__name__}"
        )
    if "://" in str(cluster):
        return ClusterConfig(kind="scheduler", address=str(cluster))
    return parse(ClusterConfig, read_yaml(cluster), str(cluster))


def _resources(text: str) -> dict[str, float]:
    """``GPU=1,LICENCE=2`` as Dask's workers name what they offer."""
    found = {}
    for pair in text.split(","):
        name, _, amount = pair.partition("=")
        try:
            found[name.strip()] = float(amount)
        except ValueError:
            raise UsageError(f"--resources {text}: must be NAME=NUMBER, separated by commas, such as GPU=1") from None
    return found
