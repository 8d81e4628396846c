"""What a long history costs: ``daskrado bench ledger``, operations on a ledger of many entries and on a new one."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from daskrado.ledger import balances, checked
from daskrado.ledger.chain import head
from daskrado.ledger.ledger import Ledger
from daskrado.ledger.records import Debit, Grant
from daskrado.ledger.show import ledger_lines
from daskrado.privacy.events import Event, GaussianEvent, PureEvent
from daskrado.privacy.groups import ProtectedUnit
from daskrado.privacy.relations import Relation

_ROW = ProtectedUnit(Relation.ADD_REMOVE)
_PEOPLE = ProtectedUnit(Relation.ADD_REMOVE, "one patient", "patient", owns=3)
_DRAWS = 100
_GAUSSIAN = 500  # of a data set's entries: limits count at most 1,000


def ledger_figures(entries: int, datasets: int) -> dict[str, Any]:
    """CPU seconds of each operation, with ``entries`` debits over some data sets, and with one of each.

    Every data set has a limit of (10, 1e-5) under each relation; its debits have 100 different pure epsilons and 50
    different mus, all protect rows.
    """
    found: dict[str, Any] = {"entries": entries, "datasets": datasets, "limits": datasets * len(Relation)}
    with tempfile.TemporaryDirectory(prefix="daskrado-bench-") as folder:
        found["new"] = _operations(Path(folder) / "new.sqlite", datasets, datasets)
        found["old"] = _operations(Path(folder) / "old.sqlite", entries, datasets)
    return found


def _operations(path: Path, entries: int, datasets: int) -> dict[str, float]:
    names = [f"data-{number}" for number in range(datasets)]
    ledger = Ledger.open(path)
    for name in names:
        ledger.set_limit(name, None, 10, 1e-5)
    for number, name in enumerate(names):
        _charge(ledger, name, range(number, entries, datasets))
    run, debit = "measured", Debit(_ROW, PureEvent("0.01"), "bench")
    found: dict[str, float] = {}

    def measured(what: str, work: Callable[[], Any]) -> Any:
        used = time.process_time()
        given = work()
        found[what] = round(time.process_time() - used, 4)
        return given

    for what in ("open_and_check_all", "open"):
        checked.forget(ledger.address)
        ledger = measured(what, lambda: Ledger.open(path))
    [*ledger_lines(ledger)]  # imports are paid for once, by whoever comes first
    measured("plan", lambda: ledger.priced(names[0], [debit]))
    grant = measured("reserve", lambda: ledger.reserve(names[0], _ROW, debit.event, theorem="bench", run=run))
    measured(f"{_DRAWS}_draws", lambda: _draw(ledger, grant))
    measured("publish", lambda: ledger.publish(grant, "0" * 64))
    measured("show", lambda: [*ledger_lines(ledger)])
    measured("show_totals", lambda: [*ledger_lines(ledger, totals=True)])
    measured("limit", lambda: ledger.set_limit(names[0], None, 9, 1e-5))
    measured("limit_for_people", lambda: ledger.set_limit(names[0], _PEOPLE, 10, 1e-5, follows=True))
    return found


def _draw(ledger: Ledger, grant: Grant) -> None:
    for step in range(_DRAWS):
        ledger.count_draw(grant, f"step {step}")


def _charge(ledger: Ledger, dataset: str, numbers: Iterable[int]) -> None:
    """Debits as ``reserve`` writes them, many in one transaction."""
    with ledger.store.transaction() as rows:
        budgets, last = balances.budgets_of(rows, dataset), head(rows).record
        for place, number in enumerate(numbers):
            event: Event = PureEvent(f"0.0000{100 + number % 100}")
            if place < _GAUSSIAN:
                event = GaussianEvent((1 + number % 50) / 1000)
            debit = Debit(_ROW, event, "bench")
            charged = [(budget, cost) for budget in budgets if (cost := budget.cost(debit)) is not None]
            run = f"{dataset}-{place}"
            balances.write_debit(rows, debit, run, charged, ledger.who, dataset, run, last + place + 1)
            budgets = [budget.plus(cost, debit.part) for budget, cost in charged]
