"""Commands on published rados: learn from a file, attack it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import click

from daskrado.cli.commands.signature import AsJson, Lines, command


@command()
def learn(
    rados: Path,
    *,
    learner: Annotated[str, "Any learner on rados."] = "rado_moments",
    rounds: Annotated[int | None, click.IntRange(1), "Of radoboost: 1000 where it is left out."] = None,
    regularisation: Annotated[float | None, "--regularisation", "--ridge", "Of rado_moments and rado_newton."] = None,
    domain: Annotated[Path | None, "Refuse rados of another domain."] = None,
    out: Annotated[Path, "Folder for model, manifest and report."],
    overwrite: bool = False,
) -> Lines:
    """Learn a classifier from a file of rados. The lake behind it is not needed.

    Examples:
      daskrado learn runs/rados/balanced.rados.parquet --out runs/learned --rounds 200
    """
    from daskrado.jobs.rado_file import learn_rados

    return learn_rados(
        rados, learner, rounds=rounds, regularisation=regularisation, domain=domain, out=out, overwrite=overwrite
    ).lines


audit = click.Group("audit", help="Attacks that show what a published object gives away.")


@command(audit, "rados")
def audit_rados(
    rados: Path,
    *,
    lake: Annotated[str | None, "The lake behind the rados, to count what an attack really recovers."] = None,
    candidates: Annotated[str | None, "A lake of rows an attacker suspects: the span test."] = None,
    seed: Annotated[int | None, click.IntRange(0), "The public seed of the signatures: lemma 9."] = None,
    as_json: AsJson = False,
) -> Lines:
    """Try to recover examples from a file of rados, given what an attacker may know.

    The counts are about the lake's rows: they are for the owner, not for publication.

    Examples:
      daskrado audit rados runs/rados/balanced.rados.parquet --lake lake/
    """
    from daskrado.audit.rados import audit_file

    found = audit_file(rados, lake=lake, candidates=candidates, seed=seed)
    return json.dumps(found.to_json()) if as_json else found.lines()
