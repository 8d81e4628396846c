"""How a ledger stands, in lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from daskrado.ledger.journal import unfinished
from daskrado.ledger.ledger import Ledger


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
