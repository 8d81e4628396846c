"""Commands on published rados: learn from a file, attack it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

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


@command(audit, "units")
def audit_units(
    *,
    releases: Annotated[int, click.IntRange(100), "Of each of the two lakes; a tenth of it for the gradient."] = 3000,
    epsilon: Annotated[float, click.FloatRange(0.1, 50), "Of each release."] = 6.0,
    as_json: AsJson = False,
) -> Lines:
    """Try to tell, from private releases, whether a person with forty rows is in a lake.

    The lakes are made up. Shown is a lower bound on the mu of the guarantee, right with 99.9 %: one above the mu that
    was charged refutes the guarantee.

    Examples:
      daskrado audit units --releases 3000
    """
    from daskrado.jobs.person_audit import audit_units as audited

    found = audited(releases, epsilon)
    return json.dumps(found) if as_json else [f"{name:>10}  {_said(facts)}" for name, facts in found.items()]


def _said(facts: dict[str, Any]) -> str:
    shown = "nothing" if facts["shown_mu"] is None else f"mu {facts['shown_mu']:.3f}"
    return (
        f"charged mu {facts['charged_mu']:.3f}; {facts['releases']:,} releases show {shown} "
        f"(they could show {facts['most_that_could_be_shown']:.3f}): {'holds' if facts['holds'] else 'REFUTED'}"
    )
