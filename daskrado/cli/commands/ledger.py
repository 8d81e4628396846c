"""Commands on the ledger."""

from __future__ import annotations

import json
from typing import Annotated

import click

from daskrado.cli.commands.shared import open_ledger
from daskrado.cli.commands.signature import LedgerPath, Lines, command

ledger = click.Group("ledger", help="Budgets: limits set by owners, what was spent, what is left.")


@command(ledger)
def show(*, ledger: LedgerPath = None, as_json: Annotated[bool, "--json", "Every entry, as JSON."] = False) -> Lines:
    """Show limits, spending and what is left, for each data set and relation."""
    from daskrado.ledger.show import ledger_lines

    with open_ledger(ledger, create=False) as opened:
        return json.dumps(opened.to_json(), indent=2) if as_json else [*ledger_lines(opened)]


@command(ledger)
def limit(
    dataset: str,
    *,
    relation: str,
    epsilon: Annotated[str, "The most that may ever be spent."],
    delta: str = "0",
    ledger: LedgerPath = None,
) -> Lines:
    """Set the limit of a data set under a relation; its owner's decision."""
    with open_ledger(ledger, create=True) as opened:
        opened.set_limit(dataset, relation, epsilon, delta)
        return f"{opened.path}: {dataset} under {relation} may spend epsilon {epsilon}, delta {delta}"
