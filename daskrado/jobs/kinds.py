"""Kinds of pipelines: the ``kind`` key of a YAML file says which job reads the rest of it ("learn" by default)."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from daskrado.errors import UsageError
from daskrado.jobs.pipeline_job import PipelineJob
from daskrado.table.yaml_file import read_yaml

KINDS = {
    "teachers": "daskrado.jobs.teachers.job:TeachersJob",
}


def job_of(kind: str, content: Any, where: str) -> PipelineJob[Any]:
    """A job of a kind, from what its YAML file or its journal holds."""
    module, _, name = KINDS[kind].partition(":")
    job: type[PipelineJob[Any]] = getattr(import_module(module), name)
    return job.load(content, where)


def load_job(path: str | Path) -> PipelineJob[Any]:
    """Read a pipeline file and hand it to its kind of job."""
    content = read_yaml(path)
    kind = content.pop("kind", "learn") if isinstance(content, dict) else "learn"
    if not isinstance(kind, str) or kind not in KINDS:
        raise UsageError(f"{path}: kind {kind!r} is unknown; allowed: {', '.join(KINDS)}")
    return job_of(kind, content, str(path))
