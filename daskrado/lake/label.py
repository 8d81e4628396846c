"""The name under which a job's tasks are seen on a shared scheduler: kind, data set, run. All of it is public."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class JobLabel:
    """Kind of job, data set and run, as the ledger knows them."""

    kind: str = "job"
    dataset: str = "unnamed"
    run: str = ""

    def task_name(self, step: str, mark: str) -> str:
        """The beginning of task names: Dask's dashboard groups tasks by its words, up to the first with a digit."""
        words = ("daskrado", step, self.kind, self.dataset, self.run, mark)
        return "-".join(word for word in words if word)

    def annotation(self) -> dict[str, Any]:
        """The same as an annotation of tasks."""
        return {"daskrado": asdict(self)}


_current: ContextVar[JobLabel | None] = ContextVar("daskrado_job", default=None)


def job_label() -> JobLabel:
    """The label of the job that runs now."""
    return _current.get() or JobLabel()


@contextlib.contextmanager
def labelled(kind: str, dataset: str, run: str) -> Iterator[None]:
    """Tasks that are submitted in this block bear this name."""
    token = _current.set(JobLabel(kind, dataset, run))
    try:
        yield
    finally:
        _current.reset(token)
