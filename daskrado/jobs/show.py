"""What a plan says, for every kind."""

from __future__ import annotations

from collections.abc import Iterator

from daskrado.errors import BudgetError, UsageError, single_lines
from daskrado.jobs.base import Charge, Job
from daskrado.jobs.chosen_blocks import block_line, unpayable, with_exact_blocks, without
from daskrado.jobs.outcome import asked_for
from daskrado.lake.units import check_units
from daskrado.ledger.charging import planned_prices
from daskrado.ledger.ledger import Ledger
from daskrado.ledger.words import exposed_lines, no_limit, over_budget, run_line
from daskrado.privacy.protect import Protect
from daskrado.table.domain import Domain
from daskrado.table.nearest import no_column


@single_lines
def plan_lines(job: Job, ledger: Ledger | None) -> Iterator[str]:
    """Cost, noise and prospects of a job, from public facts; ``ledger`` is None where it does not exist yet.

    The lake's schema is looked at first, and refused as the run would refuse it; no row is read.
    """
    job = with_exact_blocks(job)
    lake = job.scan()
    for protect in job.whose:
        check_units(lake, protect, job.domain.id)
    charges = job.charges()
    yield f"data set    {job.dataset}"
    yield f"features    {job.domain.width}, {_norm_text(job.domain)}"
    record = job.domain.id
    if record is not None and record not in lake.schema.names:
        yield f"id          {record!r} names no record: {no_column(record, lake.schema.names)}"
    if job.blocks is not None:
        yield f"blocks      {block_line(job, ())}"
    for name, text in job.plan():
        yield f"{name:<11} {text}"
    for protect in dict.fromkeys(job.whose):
        if protect.column is not None:
            yield from _unit_lines(job, protect)
    if job.protects:
        yield from _hints(job)
    if not charges:
        yield f"guarantee   {job.statement.sentence()}"
        yield from (f"assumes     {text}" for text in job.statement.assumptions)
        return
    for charge in charges:
        yield from _charge_lines(charge, several=len(charges) > 1)
    yield from (f"assumes     {text}" for text in dict.fromkeys(t for c in charges for t in c.statement.assumptions))
    public = [] if ledger is None else ledger.exposures(job.dataset, lake.reading.files)
    yield from (f"marked      {line}" for line in exposed_lines(public))
    yield from budget_lines(job, charges, ledger)


def _norm_text(domain: Domain) -> str:
    """The norm bound, and where the domain leaves it out how it was derived."""
    text = f"norm bound {domain.norm_bound:.6g}"
    if domain.norm_bound != domain.usual_norm:
        return text
    return f"{text}, the usual norm of a row of this domain (the largest is {domain.largest_norm:.4g})"


def _unit_lines(job: Job, protect: Protect) -> Iterator[str]:
    """What a bound on people costs and saves; from the pipeline alone."""
    bound, column, unit = protect.rows_per_unit, protect.column, protect.unit
    if not job.weighs_units:
        yield f"people      {unit} is known by {column} and reaches one part alone, however many rows it owns"
        return
    rows = "1 row" if bound == 1 else f"{bound} rows"
    kept = f"at most {rows} of each are kept" if protect.how == "sample" else "all rows are used, each for its share"
    yield f"people      {unit} is known by {column} and counts as {rows} at most: {kept}"
    more = f"rows_per_unit: {40 * bound} would need 40 times as much"
    yield f"saves       the noise is that of {rows}, whatever {unit} owns; {more}, and hold for nobody who owns more"
    yield f"costs       {column} is read once more, or twice and shuffled where {unit} may have rows in several files"


def _hints(job: Job) -> Iterator[str]:
    """What no run may say of rows: which values make a row count as nothing."""
    if job.domain.label.target != "number":
        yield f"label       values of {job.domain.label.column} must agree with the domain's to the letter"
    strict = [name for name, column in job.domain.columns.items() if column.fill is None]
    if strict:
        more = f" and {len(strict) - 8} more" if len(strict) > 8 else ""
        yield (
            f"nulls       a null in {', '.join(strict[:8])}{more} makes its row count as nothing; "
            "nulls: {fill: VALUE} keeps it"
        )


def budget_lines(job: Job, charges: tuple[Charge, ...], ledger: Ledger | None) -> Iterator[str]:
    """What the run would take, in the words of a run that did; what would refuse it, in the words of the refusal."""
    try:
        if job.blocks is not None:
            if ledger is not None:
                ledger.check_column(job.dataset, job.blocks.column)
            left_out = [] if ledger is None or not job.pays_by_block else unpayable(job, charges, ledger)
            job, charges = without(job, charges, left_out)
            yield from (f"left out    {block}: its budget does not cover this run" for block in left_out)
        debits = [charge.debit for charge in charges]
        prices, limit = planned_prices(ledger, job.ledger, job.dataset, debits)
    except (BudgetError, UsageError) as error:
        yield f"refused     {error}"
        return
    if limit:
        yield f"limit       {limit}"
    charged = [price.balance for price in prices]
    missing = [(debit.whose, blocks) for debit in debits if (blocks := debit.unpaid(charged))]
    if (refused := over_budget(prices, debits)) is not None:
        yield f"refused     {refused}"
    elif missing and ledger is not None and ledger.has_limits(job.dataset):
        yield f"refused     {no_limit(job.dataset, *missing[0])}"
    elif prices:
        yield f"budget      {run_line(asked_for(charges), prices)}"


def _charge_lines(charge: Charge, *, several: bool) -> Iterator[str]:
    if several:
        yield f"charge      {charge.role.replace('~', ' ')}"
    yield f"guarantee   {charge.statement.sentence()}"
    yield f"mechanism   {charge.statement.theorem}"
