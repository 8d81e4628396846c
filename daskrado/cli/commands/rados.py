"""Commands on published rados: learn from a file, attack it."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command()
@click.argument("rados", type=click.Path(path_type=Path))
@click.option("--learner", default="rado_moments", show_default=True, help="Any learner on rados.")
@click.option("--rounds", type=click.IntRange(1), default=None, help="Of radoboost: 1000 where it is left out.")
@click.option("--regularisation", "--ridge", type=float, default=None, help="Of rado_moments and rado_newton.")
@click.option("--domain", type=click.Path(path_type=Path), default=None, help="Refuse rados of another domain.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder for model, manifest and report.")
@click.option("--overwrite", is_flag=True)
def learn(
    rados: Path,
    learner: str,
    rounds: int | None,
    regularisation: float | None,
    domain: Path | None,
    out: Path,
    overwrite: bool,
) -> None:
    """Learn a classifier from a file of rados. The lake behind it is not needed."""
    from daskrado.jobs.rado_file import learn_rados

    found = learn_rados(
        rados, learner, rounds=rounds, regularisation=regularisation, domain=domain, out=out, overwrite=overwrite
    )
    for line in found.lines:
        click.echo(line)


@click.group()
def audit() -> None:
    """Attacks that show what a published object gives away."""


@audit.command("rados")
@click.argument("rados", type=click.Path(path_type=Path))
@click.option("--lake", default=None, help="The lake behind the rados, to count what an attack really recovers.")
@click.option("--candidates", default=None, help="A lake of rows an attacker suspects: the span test.")
@click.option("--seed", type=click.IntRange(0), default=None, help="The public seed of the signatures: lemma 9.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout and nothing else.")
def audit_rados(rados: Path, lake: str | None, candidates: str | None, seed: int | None, as_json: bool) -> None:
    """Try to recover examples from a file of rados, given what an attacker may know.

    The counts are about the lake's rows: they are for the owner, not for publication.
    """
    from daskrado.audit.rados import audit_file

    found = audit_file(rados, lake=lake, candidates=candidates, seed=seed)
    if as_json:
        click.echo(json.dumps(found.to_json()))
    else:
        for line in found.lines():
            click.echo(line)
