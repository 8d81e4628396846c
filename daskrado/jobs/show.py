"""What a plan says, for every kind."""

from __future__ import annotations

from collections.abc import Iterator

from daskrado.jobs.base import Charge, Job
from daskrado.ledger.charging import left_for, limit_line
from daskrado.ledger.ledger import Ledger


def plan_lines(job: Job, ledger: Ledger | None) -> Iterator[str]:
    """Cost, noise and prospects of a job, from public facts; ``ledger`` is None where it does not exist yet."""
    charges = job.charges()
    yield f"data set    {job.dataset}"
    yield f"features    {job.domain.width}, norm bound {job.domain.norm_bound:g}"
    for name, text in job.plan():
        yield f"{name:<11} {text}"
    if not charges:
        yield f"guarantee   {job.statement.sentence()}"
        yield from (f"assumes     {text}" for text in job.statement.assumptions)
        return
    for charge in charges:
        yield from _charge_lines(charge, several=len(charges) > 1)
    yield from (f"assumes     {text}" for text in dict.fromkeys(t for c in charges for t in c.statement.assumptions))
    relations = dict.fromkeys(charge.relation for charge in charges)
    for relation in relations:
        if len(relations) > 1:
            yield f"budget      under {relation}:"
        left = left_for(ledger, job.dataset, relation)
        yield limit_line(left, job.ledger)
        if left is not None and ledger is not None:
            events = [charge.event for charge in charges if charge.relation is relation]
            after = ledger.after(job.dataset, relation, *events)
            yield f"after       epsilon {float(after.epsilon):.4g} charged in all ({after.method})"


def _charge_lines(charge: Charge, *, several: bool) -> Iterator[str]:
    if several:
        yield f"charge      {charge.role.replace('~', ' ')}"
    yield f"guarantee   {charge.statement.sentence()}"
    yield f"mechanism   {charge.statement.theorem}"
    yield f"cost        {charge.event}"
