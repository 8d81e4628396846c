"""How a ledger stands, in lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from daskrado.ledger.journal import unfinished
from daskrado.ledger.ledger import Ledger
from daskrado.ledger.views import left


def ledger_lines(ledger: Ledger) -> Iterator[str]:
    """One line for each data set and relation."""
    rows = ledger.summary()
    yield f"{ledger.address}"
    if not rows:
        yield "no limit set and nothing spent"
    for row in rows:
        counts = ", ".join(f"{count} {state}" for state, count in row.counts.items() if count)
        balance = row.balance
        yield f"{balance.dataset} under {balance.relation}"
        yield f"  limit   {balance.limit}"
        share = 100 * float(balance.rule.share(balance.total))
        yield f"  charged {share:.3g} % ({balance.entries} charges; data set: {counts or 'no entry'})"
        yield f"  left    epsilon {float(left(balance).epsilon):.4g} for one more pure release"
    for run, what in unfinished(ledger):
        yield f"run {run} is {what}"
