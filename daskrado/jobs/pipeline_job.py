"""What every kind of job does the same for ``daskrado plan``, ``daskrado run`` and ``daskrado run --resume``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from daskrado.cluster import ClusterConfig
from daskrado.jobs.pipeline import LakePipeline
from daskrado.ledger.account import Account
from daskrado.ledger.config import default_ledger
from daskrado.ledger.ledger import Ledger
from daskrado.table.yaml_file import parse

Progress = Callable[[int, int], None]
PipelineT = TypeVar("PipelineT", bound=LakePipeline)


class PipelineJob(ABC, Generic[PipelineT]):
    """A validated pipeline and how to run it."""

    schema: type[PipelineT]
    runner: Callable[..., Any]  # a static function that takes the pipeline and what ``result`` takes

    def __init__(self, pipeline: PipelineT) -> None:
        self.pipeline = pipeline

    @classmethod
    def load(cls, content: Any, where: str) -> Self:
        """Validate the YAML content, ``kind`` aside."""
        return cls(parse(cls.schema, content, where))

    def overridden(self, cluster: ClusterConfig | None, output: str | None) -> Self:
        """The same job on other workers or with another output folder."""
        changes: dict[str, Any] = {}
        if cluster is not None:
            changes["cluster"] = cluster
        if output is not None:
            changes["output"] = output
        return type(self)(self.pipeline.model_copy(update=changes))

    @property
    def ledger_path(self) -> Path:
        """The ledger that the job would debit: the pipeline's, else this user's."""
        config = getattr(self.pipeline, "ledger", None)
        return Path(config.path) if config is not None and config.path else default_ledger()

    @abstractmethod
    def plan_lines(self, ledger: Ledger | None) -> Iterator[str]:
        """Cost and noise, from public facts; ``ledger`` is None where it does not exist yet."""

    def result(
        self,
        *,
        overwrite: bool = False,
        ledger_path: str | Path | None = None,
        progress: Progress | None = None,
        account: Account | None = None,
    ) -> Any:
        """Do the job and publish; ``account`` is that of a run to be finished."""
        return type(self).runner(
            self.pipeline, overwrite=overwrite, ledger_path=ledger_path, progress=progress, account=account
        )

    @abstractmethod
    def lines(self, result: Any) -> Iterator[str]:
        """The summary of a result."""
