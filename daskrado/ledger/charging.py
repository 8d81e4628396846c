"""What every kind of job does around a charge: open the ledger, set a first limit, report the budget."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

from daskrado.errors import BudgetError
from daskrado.ledger.config import LedgerConfig, default_ledger
from daskrado.ledger.ledger import Grant, Ledger, Remaining
from daskrado.privacy.events import MAX_EPSILON, Amount, Event, exact
from daskrado.privacy.filter import Cost, filter_for
from daskrado.privacy.relations import Relation

_log = logging.getLogger(__name__)


def opened_ledger(path: str | Path | None, config: LedgerConfig) -> Ledger:
    """The ledger that a job debits: the one given, else the pipeline's, else this user's."""
    return own_ledger(create=True) if (chosen := path or config.path) is None else Ledger.open(chosen)


def own_ledger(*, create: bool) -> Ledger:
    """This user's ledger."""
    chosen = default_ledger()
    if create and isinstance(chosen, Path):
        chosen.parent.mkdir(parents=True, exist_ok=True)
    return Ledger.open(chosen, create=create)


def set_first_limit(ledger: Ledger, config: LedgerConfig, dataset: str, *relations: Relation) -> tuple[str, ...]:
    """Set the pipeline's first limit on a data set that has none under any relation, and say so."""
    first = config.first_limit
    if first is None or not ledger.set_first_limit(dataset, relations, first.epsilon, first.delta):
        return ()
    amount = f"epsilon {first.epsilon:g}, delta {first.delta:g}"
    return tuple(f"first limit of {dataset!r} under {relation}: {amount}" for relation in relations)


def least_limit(event: Event, epsilon: Amount, delta: Amount) -> Fraction:
    """The least epsilon of a limit, in tenths of ``epsilon``, that holds one ``event``: a limit for one release.

    A rule keeps a part of epsilon and delta for draws and for deltas, so a release rarely fits its own budget.
    """
    step = exact(epsilon, "epsilon") / 10
    for tenths in range(10, 51):
        rule = filter_for(min(tenths * step, MAX_EPSILON), delta)
        if rule.fits(Cost(), rule.cost(event)):
            return rule.epsilon
    raise BudgetError(f"{event} does not fit a limit of five times epsilon {float(step * 10):g}")


def limit_line(left: Remaining | None, config: LedgerConfig) -> str:
    """What a plan says of the budget: what is left, or what limit would be set, or who sets it."""
    if left is not None:
        return f"left        epsilon {float(left.epsilon):.4g} for one pure release, before this run"
    first = config.first_limit
    if first is not None:
        return f"limit       none set yet; this run would set epsilon {first.epsilon:g}, delta {first.delta:g}"
    return "limit       none set yet: the owner sets one with `daskrado ledger limit`"


def left_for(ledger: Ledger | None, dataset: str, relation: Relation) -> Remaining | None:
    """What a ledger has left for a data set under a relation; None where it has no limit, or there is no ledger."""
    if ledger is None or ledger.limit(dataset, relation) is None:
        return None
    return ledger.remaining(dataset, relation)


def budget_facts(ledger: Ledger, grant: Grant) -> dict[str, Any]:
    """The state of the budget after a grant, for the manifest and the report."""
    limit = ledger.limit(grant.dataset, grant.relation)
    assert limit is not None
    spent = ledger.spent(grant.dataset, grant.relation)
    left = ledger.remaining(grant.dataset, grant.relation)
    return {
        "dataset": grant.dataset,
        "relation": str(grant.relation),
        "limit_epsilon": float(limit.epsilon),
        "limit_delta": float(limit.delta),
        "spent_epsilon": float(spent.epsilon),
        "accountant": spent.method,
        "left_epsilon": float(left.epsilon),
    }


class Clock:
    """Wall seconds of each stage, rounded so that they tell a person enough and nobody more."""

    def __init__(self, begins: Callable[[str], None] | None = None) -> None:
        self.seconds: dict[str, float] = {}
        self._begins = begins

    @contextlib.contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        """Time a block, and log that it begins."""
        _log.info("%s", stage)
        if self._begins is not None:
            self._begins(stage)
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] = round(time.perf_counter() - start, 2)
