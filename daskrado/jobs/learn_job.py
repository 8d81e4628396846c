"""kind: learn. A model from one release of a statistic, or from a learner that reads the lake several times."""

from __future__ import annotations

from collections.abc import Iterator

from daskrado.jobs.job import RunResult, run
from daskrado.jobs.old_show import plan_lines, run_lines
from daskrado.jobs.pipeline import Pipeline
from daskrado.jobs.pipeline_job import PipelineJob
from daskrado.jobs.plan import budget_left, make_plan
from daskrado.ledger.ledger import Ledger


class LearnJob(PipelineJob[Pipeline]):
    """A pipeline that releases a statistic once and learns from it, or lets a learner read the lake many times."""

    schema = Pipeline
    runner = staticmethod(run)

    def plan_lines(self, ledger: Ledger | None) -> Iterator[str]:
        """Cost and noise."""
        plan = make_plan(self.pipeline)
        left = budget_left(plan, ledger) if ledger is not None else None
        yield from plan_lines(plan, left)
        if left is not None and ledger is not None and plan.event is not None:
            assert plan.statement.relation is not None
            after = ledger.after(self.pipeline.dataset, plan.statement.relation, plan.event)
            yield f"after       epsilon {float(after.epsilon):.4g} charged in all ({after.method})"

    def lines(self, result: RunResult) -> Iterator[str]:
        """Guarantee, budget and weights."""
        return run_lines(result)
