"""What a plan says, for every kind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from daskrado.errors import BudgetError, UsageError
from daskrado.jobs.base import Charge, Job
from daskrado.jobs.outcome import asked_for
from daskrado.ledger.charging import planned_prices
from daskrado.ledger.ledger import Ledger
from daskrado.ledger.words import no_limit, over_budget, run_line


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
    yield from _budget_lines(job, charges, ledger)


def _budget_lines(job: Job, charges: Sequence[Charge], ledger: Ledger | None) -> Iterator[str]:
    """What the run would take, in the words of a run that did; what would refuse it, in the words of the refusal."""
    debits = [charge.debit for charge in charges]
    try:
        prices, limit = planned_prices(ledger, job.ledger, job.dataset, debits)
    except (BudgetError, UsageError) as error:
        yield f"refused     {error}"
        return
    if limit:
        yield f"limit       {limit}"
    over = [price for price in prices if price.left < 0]
    charged = [price.balance for price in prices]
    missing = [(debit.whose, blocks) for debit in debits if (blocks := debit.unpaid(charged))]
    if over:
        yield f"refused     {over_budget(over[0], debits, several=len(prices) > 1)}"
    elif missing and ledger is not None and ledger.has_limits(job.dataset):
        yield f"refused     {no_limit(job.dataset, *missing[0])}"
    elif prices:
        yield f"budget      {run_line(asked_for(charges), prices)}"


def _charge_lines(charge: Charge, *, several: bool) -> Iterator[str]:
    if several:
        yield f"charge      {charge.role.replace('~', ' ')}"
    yield f"guarantee   {charge.statement.sentence()}"
    yield f"mechanism   {charge.statement.theorem}"
