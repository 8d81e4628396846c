"""Which blocks a run reads: chosen by the pipeline from public names, then by the ledger from what each has left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from daskrado.errors import BudgetError
from daskrado.lake.block_facts import EACH
from daskrado.lake.blocks import shown_blocks
from daskrado.ledger.account import Account
from daskrado.ledger.ledger import Ledger

if TYPE_CHECKING:
    from daskrado.jobs.base import Job
    from daskrado.jobs.outcome import Charge

JobT = TypeVar("JobT", bound="Job")


def with_exact_blocks(job: JobT) -> JobT:
    """The job with its blocks by name: a block that the lake gets meanwhile is not read."""
    return job if job.blocks is None else narrowed(job, job.blocks.chosen(job.lake))


def payable(job: JobT, charges: tuple[Charge, ...], account: Account) -> tuple[JobT, tuple[Charge, ...]]:
    """The job without the blocks that cannot pay for it, and its charges on all others.

    What is left out follows from the ledger and from public facts alone. An engine reads the same blocks for as long
    as it lives, and a run that was cut off those that it had paid for.
    """
    if job.blocks is None or not charges:
        return job, charges
    if not job.reserves or account.resumed:
        return without(job, charges, ())
    left_out = unpayable(job, charges, account.ledger)
    job, charges = without(job, charges, left_out)
    assert job.blocks is not None
    account.remember_blocks(job.blocks.column, job.blocks.values or (), left_out)
    return job, charges


def without(job: JobT, charges: tuple[Charge, ...], left_out: Sequence[str]) -> tuple[JobT, tuple[Charge, ...]]:
    """The job without some blocks, and its charges on all others, which may depend on them."""
    if left_out and job.blocks is not None:
        job = narrowed(job, [value for value in job.blocks.values or () if value not in left_out])
        charges = job.charges()
    return job, on_blocks(job, charges)


def unpayable(job: Job, charges: Sequence[Charge], ledger: Ledger) -> list[str]:
    """The chosen blocks whose own budget does not cover the charges; a BudgetError where that is all of them."""
    assert job.blocks is not None
    values = job.blocks.values or ()
    debits = [charge.debit for charge in on_blocks(job, charges)]
    empty = ledger.unpayable(job.dataset, debits, values)
    if len(empty) == len(values):
        raise BudgetError(
            f"no block of data set {job.dataset!r} has budget left for this run ({job.blocks.column}: "
            f"{shown_blocks(values)}); nothing was debited; wait for new blocks, or ask for less"
        )
    return empty


def on_blocks(job: Job, charges: Sequence[Charge]) -> tuple[Charge, ...]:
    """Charges that each block of the job pays in full, or each block there will ever be."""
    values = () if job.blocks is None else job.blocks.values or () if job.pays_by_block else (EACH,)
    return tuple(replace(charge, blocks=values) for charge in charges)


def block_facts(job: Job, account: Account) -> dict[str, Any]:
    """For a manifest: which blocks were read, and which were left out."""
    if job.blocks is None:
        return {}
    facts = {"column": job.blocks.column, "read": list(job.blocks.values or ()), "left_out": account.left_out}
    return {"blocks": facts}


def block_line(job: Job, left_out: Sequence[str]) -> str:
    """Which blocks a run reads, and which it leaves out and why, in words."""
    assert job.blocks is not None
    text = f"{job.blocks.column}: {shown_blocks(job.blocks.values or ())}"
    why = f"; left out, since their budget does not cover this run: {', '.join(left_out)}" if left_out else ""
    return text + why


def narrowed(job: JobT, values: Sequence[str]) -> JobT:
    """The job on these blocks alone."""
    assert job.blocks is not None
    copy = job.model_copy(update={"blocks": job.blocks.exactly(values)})
    for name in copy.__dict__.keys() - type(copy).model_fields.keys():  # cached, of other blocks
        del copy.__dict__[name]
    return copy
