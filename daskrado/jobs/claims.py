"""What a run publishes must be covered by what it was charged: checked for every kind before anything is written."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from daskrado.privacy.accountant import Event, compose
from daskrado.privacy.statement import PrivacyStatement

if TYPE_CHECKING:
    from collections.abc import Sequence

    from daskrado.jobs.base import Outcome, Run

_ROUNDING = Fraction(1, 10**8)  # several events are charged as one, whose epsilon is rounded up to nine decimals


def covers(statement: PrivacyStatement, events: Sequence[Event]) -> bool:
    """Whether a statement says at least what events cost together."""
    assert statement.epsilon is not None
    assert statement.delta is not None
    return bool(compose(events, statement.delta).epsilon <= Fraction(statement.epsilon) * (1 + _ROUNDING) + _ROUNDING)


def check_claim(run: Run, outcome: Outcome) -> None:
    """Refuse an outcome whose statement says less than the run's charges, or that nobody paid or drew for."""
    claim, job = outcome.statement, run.job
    if not claim.private:
        return
    if not run.charges:
        if not job.protected_elsewhere or claim != job.statement:
            raise ValueError(f"kind {job.name} publishes a private statement and charges nothing for it")
        return
    whom = (claim.relation, claim.unit, claim.rows_per_unit)
    events = [
        charge.event
        for charge in run.charges.values()
        if (charge.statement.relation, charge.statement.unit, charge.statement.rows_per_unit) == whom
    ]
    if not events or not covers(claim, events):
        raise ValueError(f"kind {job.name} publishes {claim.sentence()!r}, which is not what it was charged for")
    for role in () if run.charged_elsewhere else run.charges:
        if role not in run.grants or not run.account.spent(run.grants[role]):
            raise ValueError(f"kind {job.name} publishes without drawing for its charge {role!r}")
