"""Commands on the ledger."""

from __future__ import annotations

import json
from pathlib import Path

import click

from daskrado.cli.commands.shared import open_ledger, with_ledger


@click.group()
def ledger() -> None:
    """Budgets: limits set by owners, what was spent, what is left."""


@ledger.command("show")
@with_ledger
@click.option("--json", "as_json", is_flag=True, help="Every entry, as JSON.")
def ledger_show(ledger: Path | None, as_json: bool) -> None:
    """Show limits, spending and what is left, for each data set and relation."""
    from daskrado.ledger.show import ledger_lines

    with open_ledger(ledger, create=False) as opened:
        if as_json:
            click.echo(json.dumps(opened.to_json(), indent=2))
        else:
            for line in ledger_lines(opened):
                click.echo(line)


@ledger.command("limit")
@click.argument("dataset")
@click.option("--relation", required=True)
@click.option("--epsilon", required=True, help="The most that may ever be spent.")
@click.option("--delta", default="0", show_default=True)
@with_ledger
def ledger_limit(dataset: str, relation: str, epsilon: str, delta: str, ledger: Path | None) -> None:
    """Set the limit of a data set under a relation; its owner's decision."""
    with open_ledger(ledger, create=True) as opened:
        opened.set_limit(dataset, relation, epsilon, delta)
        click.echo(f"{opened.path}: {dataset} under {relation} may spend epsilon {epsilon}, delta {delta}")
