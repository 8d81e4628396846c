"""What every kind of job does around a charge: open the ledger, set a first limit, report the budget."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from daskrado.errors import LedgerError
from daskrado.lake.block_facts import EACH
from daskrado.ledger.balances import empty, price_of
from daskrado.ledger.config import LedgerConfig, default_ledger
from daskrado.ledger.entries import following_limits, without_limit
from daskrado.ledger.ledger import Ledger
from daskrado.ledger.records import Debit, Mark
from daskrado.ledger.words import Price, affordable, amount
from daskrado.privacy.filter import filter_for
from daskrado.privacy.groups import ProtectedUnit
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


def set_first_limit(
    ledger: Ledger, config: LedgerConfig, dataset: str, relation: Relation | ProtectedUnit, block: str = ""
) -> tuple[str, ...]:
    """Set the pipeline's first limit on a data set that has none, with what follows from it, and say so."""
    first = config.first_limit
    if first is None or not ledger.set_first_limit(dataset, relation, first.epsilon, first.delta, block=block):
        return ()
    of = f"each block of {dataset!r}" if block else repr(dataset)
    missing = without_limit(following_limits(relation, filter_for(first.epsilon, first.delta)))
    less = f"; {missing}" if missing else ""
    return (f"first limit of {of}: {amount(first.epsilon, first.delta)} under {relation}, and what follows{less}",)


def planned_prices(
    ledger: Ledger | None, config: LedgerConfig, dataset: str, debits: Sequence[Debit]
) -> tuple[list[Price], str]:
    """What a run would take from each budget, and what would be said of a limit that it sets first."""
    if ledger is not None and ledger.has_limits(dataset):
        return affordable(partial(ledger.priced, dataset), debits)[0], ""
    first = config.first_limit
    if first is None:
        return [], "none set yet: the owner sets one with `daskrado ledger limit`"
    limits = following_limits(debits[0].for_limit, filter_for(first.epsilon, first.delta))
    people = debits[0].whose.column is not None and debits[0].whose.within is None
    block = EACH if debits[0].blocks and not people else ""
    budgets = [empty(0, dataset, kind, block, rule) for kind, rule in limits]
    said = f"none set yet; this run would set {amount(first.epsilon, first.delta)}"
    return affordable(partial(price_of, budgets), debits)[0], said


def mark_unprotected(
    path: str | Path | None,
    config: LedgerConfig,
    dataset: str | None,
    run: str,
    mark: Mark,
    lake: tuple[str | None, Mapping[str, str]],
) -> tuple[str, ...]:
    """Mark once what a run without privacy does; a note where the ledger is out of reach, which stops no such run.

    ``lake`` is what a lake is known by: whatever the run calls it, the data sets that it was charged as are marked,
    and so are those that it is charged as later.
    """
    try:
        with opened_ledger(path, config) as ledger:
            ledger.expose(lake[1], mark, run=run)
            for name in dict.fromkeys([*([] if dataset is None else [dataset]), *ledger.owners(*lake)]):
                if (mark, run) not in {(marked.mark, marked.run) for marked in ledger.marks(name)}:
                    ledger.mark(name, mark, run=run)
    except (LedgerError, OSError) as error:
        return (f"this run without privacy could not be recorded: {error}",)
    return ()


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
