"""Kinds of pipelines: the ``kind`` key of a YAML file says which job reads the rest of it ("learn" by default)."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from daskrado.cluster import ClusterConfig
from daskrado.domain import parse, read_yaml
from daskrado.errors import UsageError
from daskrado.privacy.ledger import Ledger
from daskrado.runs.job import Progress, run
from daskrado.runs.pipeline import Pipeline, default_ledger
from daskrado.runs.plan import budget_left, make_plan
from daskrado.runs.show import plan_lines, run_lines


class Job(Protocol):
    """What ``daskrado plan`` and ``daskrado run`` need of a kind of pipeline."""

    @classmethod
    def load(cls, content: Any, where: str) -> Job:
        """Validate the YAML content, ``kind`` aside."""

    def overridden(self, cluster: ClusterConfig | None, output: str | None) -> Job:
        """The same job on other workers or with another output folder."""

    @property
    def ledger_path(self) -> Path:
        """The ledger that the job would debit."""

    def plan_lines(self, ledger: Ledger | None) -> Iterator[str]:
        """Cost and noise, from public facts; ``ledger`` is None where it does not exist yet."""

    def run(self, *, overwrite: bool, ledger_path: Path | None, progress: Progress | None) -> Iterator[str]:
        """Do the job and return the lines of its summary."""


class LearnJob:
    """A pipeline that releases a statistic once and learns from it."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline

    @classmethod
    def load(cls, content: Any, where: str) -> LearnJob:
        """Validate the YAML content."""
        return cls(parse(Pipeline, content, where))

    def overridden(self, cluster: ClusterConfig | None, output: str | None) -> LearnJob:
        """The same job on other workers or with another output folder."""
        changes: dict[str, Any] = {}
        if cluster is not None:
            changes["cluster"] = cluster
        if output is not None:
            changes["output"] = output
        return LearnJob(self.pipeline.model_copy(update=changes))

    @property
    def ledger_path(self) -> Path:
        """The pipeline's ledger, else this user's."""
        return Path(self.pipeline.ledger.path) if self.pipeline.ledger.path else default_ledger()

    def plan_lines(self, ledger: Ledger | None) -> Iterator[str]:
        """Cost and noise."""
        plan = make_plan(self.pipeline)
        left = budget_left(plan, ledger) if ledger is not None else None
        yield from plan_lines(plan, left)
        if left is not None and ledger is not None and plan.event is not None:
            assert plan.statement.relation is not None
            after = ledger.after(self.pipeline.dataset, plan.statement.relation, plan.event)
            yield f"after       epsilon {float(after.epsilon):.4g} charged in all ({after.method})"

    def run(self, *, overwrite: bool, ledger_path: Path | None, progress: Progress | None) -> Iterator[str]:
        """Run the one forward path."""
        return run_lines(run(self.pipeline, overwrite=overwrite, ledger_path=ledger_path, progress=progress))


KINDS = {
    "learn": "daskrado.runs.kinds:LearnJob",
    "rados": "daskrado.runs.rados.job:RadosJob",
    "adaboost": "daskrado.runs.rados.adaboost:AdaBoostJob",
    "teachers": "daskrado.runs.teachers.job:TeachersJob",
    "labels": "daskrado.runs.labels.job:LabelJob",
    "bags": "daskrado.runs.labels.bag_job:BagJob",
    "queries": "daskrado.runs.measure.queries:QueriesJob",
    "margins": "daskrado.runs.measure.margins:MarginsJob",
    "local": "daskrado.runs.measure.local:LocalJob",
}


def load_job(path: str | Path) -> Job:
    """Read a pipeline file and hand it to its kind of job."""
    content = read_yaml(path)
    kind = content.pop("kind", "learn") if isinstance(content, dict) else "learn"
    if not isinstance(kind, str) or kind not in KINDS:
        raise UsageError(f"{path}: kind {kind!r} is unknown; allowed: {', '.join(KINDS)}")
    module, _, name = KINDS[kind].partition(":")
    job: type[Job] = getattr(import_module(module), name)
    return job.load(content, str(path))
