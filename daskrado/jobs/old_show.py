"""Plans, runs and ledgers as lines that a person can read."""

from __future__ import annotations

from collections.abc import Iterator

from daskrado.jobs.job import RunResult
from daskrado.jobs.old_report import signal_and_noise
from daskrado.jobs.plan import Plan, forecast, hint
from daskrado.ledger.charging import limit_line
from daskrado.ledger.journal import unfinished
from daskrado.ledger.ledger import Ledger, Remaining


def plan_lines(plan: Plan, left: Remaining | None) -> Iterator[str]:
    """Cost and noise of a plan."""
    pipeline = plan.pipeline
    yield f"data set    {pipeline.dataset}"
    yield f"features    {pipeline.domain.width}, norm bound {pipeline.domain.norm_bound:g}"
    if plan.statistic is not None:
        yield f"statistic   {plan.statistic.name}, {plan.statistic.size:,} integers on a 2^-{plan.lattice.bits} grid"
    yield f"learner     {plan.learner.name}"
    yield f"guarantee   {plan.statement.sentence()}"
    for name, text in forecast(plan):
        yield f"{name:<11} {text}"
    if plan.event is None:
        return
    yield f"mechanism   {plan.statement.theorem}"
    yield f"cost        {plan.event}"
    for row in plan.noise():
        text = f"standard deviation {row['std']:.4g}, {hint(row['rows'])}" if row["std"] else "public, none needed"
        yield f"noise       {row['block']}: {text}"
    for text in plan.statement.assumptions:
        yield f"assumes     {text}"
    yield limit_line(left, pipeline.ledger)


def run_lines(result: RunResult) -> Iterator[str]:
    """The summary of a run."""
    plan = result.plan
    yield plan.statement.sentence()
    values, std, what = signal_and_noise(result)
    if plan.statement.private and std:
        strong = int((abs(values) > 2 * std).sum())
        yield f"{what}: {strong} of {len(values)} entries stand out of the noise (above 2 standard deviations)"
    if plan.statement.private:
        yield (
            f"budget of {result.budget['dataset']}: epsilon {result.budget['spent_epsilon']:.4g} of "
            f"{result.budget['limit_epsilon']:g} spent, {result.budget['left_epsilon']:.4g} left"
        )
    yield from result.notes
    yield "largest weights:"
    for name, weight in result.coefficients["weight"].head(8).items():
        yield f"  {weight:+12.5g}  {name}"
    seconds = ", ".join(f"{stage} {value:g} s" for stage, value in result.seconds.items())
    yield f"{seconds}; written to {plan.pipeline.output}: model.json, manifest.json, report.html"


def ledger_lines(ledger: Ledger) -> Iterator[str]:
    """One line for each data set and relation."""
    rows = ledger.summary()
    yield f"{ledger.path}"
    if not rows:
        yield "no limit set and nothing spent"
    for row in rows:
        counts = ", ".join(f"{count} {state}" for state, count in row.counts.items() if count)
        yield f"{row.dataset} under {row.relation}"
        yield f"  limit   {row.limit}"
        charged = f"{float(row.charged.epsilon):.4g} at that delta ({row.charged.method}; {counts or 'no entry'})"
        yield f"  charged epsilon {charged}"
        yield f"  left    epsilon {float(row.left.epsilon):.4g} for one more pure release"
    for run, what in unfinished(ledger):
        yield f"run {run} is {what}"
