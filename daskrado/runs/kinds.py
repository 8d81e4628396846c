"""Kinds of pipelines: the ``kind`` key of a YAML file says which job reads the rest of it ("learn" by default)."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from daskrado.domain import read_yaml
from daskrado.errors import UsageError
from daskrado.runs.pipeline_job import PipelineJob

KINDS = {
    "learn": "daskrado.runs.learn_job:LearnJob",
    "rados": "daskrado.runs.rados.job:RadosJob",
    "adaboost": "daskrado.runs.rados.adaboost:AdaBoostJob",
    "teachers": "daskrado.runs.teachers.job:TeachersJob",
    "labels": "daskrado.runs.labels.job:LabelJob",
    "bags": "daskrado.runs.labels.bag_job:BagJob",
    "queries": "daskrado.runs.measure.queries:QueriesJob",
    "margins": "daskrado.runs.measure.margins:MarginsJob",
    "local": "daskrado.runs.measure.local_job:LocalJob",
}
_COMMANDS = {"local encode": "daskrado.runs.measure.local_job:EncodeJob"}  # jobs that no pipeline file names


def job_of(kind: str, content: Any, where: str) -> PipelineJob[Any]:
    """A job of a kind, from what its YAML file or its journal holds."""
    module, _, name = (KINDS | _COMMANDS)[kind].partition(":")
    job: type[PipelineJob[Any]] = getattr(import_module(module), name)
    return job.load(content, where)


def load_job(path: str | Path) -> PipelineJob[Any]:
    """Read a pipeline file and hand it to its kind of job."""
    content = read_yaml(path)
    kind = content.pop("kind", "learn") if isinstance(content, dict) else "learn"
    if not isinstance(kind, str) or kind not in KINDS:
        raise UsageError(f"{path}: kind {kind!r} is unknown; allowed: {', '.join(KINDS)}")
    return job_of(kind, content, str(path))
