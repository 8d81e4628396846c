"""What a plan says of a learner before a row is read: what it will do, and how much risk its noise will cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from daskrado.errors import UsageError
from daskrado.jobs import holdout as held
from daskrado.jobs import row_count
from daskrado.jobs.base import Line
from daskrado.lake.scan import open_lake
from daskrado.learners.base import ReleaseLearner
from daskrado.learners.on_passes.iterative import IterativeLearner

if TYPE_CHECKING:
    from daskrado.jobs.learn import LearnJob

SECRET_SIZES = (10_000, 100_000, 1_000_000)  # for which a plan forecasts where the number of rows is secret


def forecast_lines(job: LearnJob) -> Iterator[Line]:
    """Of a learner on passes all that it will do; of one on a release the risk alone."""
    if isinstance(job.learner, IterativeLearner):
        yield from row_count.plan(job)
        yield from job.learner.forecast(job.facts)
    if job.private:
        yield from _excess_lines(job)


def _excess_lines(job: LearnJob) -> Iterator[Line]:
    whom = "units" if job.asked.protect.column is not None else "rows"
    rule = "than without noise (a public rule)"
    if isinstance(job.learner, IterativeLearner):
        outlook = job.trainer.outlook(job.facts)
        if outlook is None:
            yield "forecast", f"about {job.learner.excess(job.facts):.2g} more loss per row {rule}"
        else:
            yield "forecast", f"{outlook} those without noise (intervals held nine of ten tables measured)"
        if job.counts_rows:
            what = "" if outlook is None else "error "
            said = ", ".join(_said(job, rows) for rows in SECRET_SIZES)
            yield "", f"were there other numbers of {whom}: {what}{said}"
    elif _excess(job, SECRET_SIZES[0]) is not None:
        sizes: tuple[int, ...] = SECRET_SIZES
        if not job.counts_rows:
            known = job.rows or open_lake(job.source, job.domain, strict=False).rows
            sizes = (max(1, round(known * (1 - held.share_of(job)))),)
        said = ", ".join(_said(job, rows) for rows in sizes)
        yield "forecast", f"more squared loss per row {rule}: about {said} {whom}"


def _excess(job: LearnJob, rows: int) -> float | None:
    """The forecast for a number of rows, of error where it is calibrated; None where the learner has none."""
    if isinstance(job.learner, IterativeLearner):
        facts = replace(job.facts, rows=rows)
        outlook = job.trainer.outlook(facts)
        return job.trainer.excess(facts) if outlook is None else outlook.error.value
    chosen = job.calibrated()
    if chosen is None:
        return None
    return cast(ReleaseLearner, job.learner).excess(chosen.noise_std(), job.domain.norm_bound, job.domain.width, rows)


def _said(job: LearnJob, rows: int) -> str:
    try:
        return f"{_excess(job, rows):.2g} at {rows:,}"
    except UsageError:
        return f"too much noise at {rows:,}"
