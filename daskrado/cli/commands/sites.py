"""Commands of studies: those of a site, and those of the coordinator."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import click

from daskrado.cli.commands.shared import progress_bar
from daskrado.cli.commands.signature import LedgerPath, Lines, OnCluster, command

Keys = Annotated[Path, "Folder of this party's private keys and memory; it never leaves the machine."]
SiteName = Annotated[str, "This site's name in the study."]
site = click.Group("site", help="Take part in a study with rows that stay here.")
study = click.Group("study", help="Coordinate a study: open it, see how it stands, combine its rounds.")


@command(site)
def join(folder: str, *, site: SiteName, keys: Keys) -> Iterator[str]:
    """Make this site's keys and put its card into the study's FOLDER (shared folder or object store).

    Examples:
      daskrado site join shared/ --site north --keys keys/north
    """
    from daskrado.parties.site import join

    public = join(folder, site=site, keys=keys)
    yield f"{site}: {public.text}"
    yield f"fingerprint {public.fingerprint}; private keys in {keys}, never to be shared"


@command(site)
def contribute(
    folder: str,
    *,
    site: SiteName,
    keys: Keys,
    lake: Annotated[str, "This site's lake."],
    dataset: Annotated[str, "The name by which this site's ledger knows the lake."],
    roster: Annotated[str, "The roster's fingerprint, as the other sites read it out (not by the study's folder)."],
    pay_again: Annotated[bool, "Draw a new share, at a second charge, after one was lost in a crash."] = False,
    blocks: Annotated[
        str | None, "Read some blocks alone, each of which pays: COLUMN, or COLUMN:LAST (day:30)."
    ] = None,
    cluster: OnCluster,
    ledger: LedgerPath = None,
) -> Iterator[str]:
    """Debit this site's ledger, sum its lake, add its share of noise, mask, sign, upload.

    Examples:
      daskrado site contribute shared/ --site north --keys keys/north --lake lake/ --dataset clinic --roster 5b1f
    """
    from daskrado.lake.blocks import Blocks
    from daskrado.parties.site import contribute

    with progress_bar("collect") as progress:
        done = contribute(
            folder,
            site=site,
            keys=keys,
            lake=lake,
            dataset=dataset,
            ledger=ledger,
            roster=roster,
            cluster=cluster,
            progress=progress,
            pay_again=pay_again,
            blocks=None if blocks is None else Blocks.spoken(blocks),
        )
    how = "the stored bundle was sent again; nothing was charged" if done.again else "a masked bundle was sent"
    yield f"study {done.round.study}, round {done.round.number}, site {site}: {how}"
    if done.charged and done.plan.mechanism is not None:
        from daskrado.ledger.words import amount

        claim = done.plan.statement
        yield f"charged to {dataset}: {amount(claim.epsilon or 0, claim.delta or 0)}"
    yield done.plan.statement.sentence()


@command(study)
def open(study: Path, folder: str, *, keys: Keys) -> Iterator[str]:
    """Open round 1 of the STUDY file in FOLDER, among the sites that joined.

    Examples:
      daskrado study open study.yaml shared/ --keys keys/coordinator
    """
    from daskrado.parties.coordinator import open_study

    opened = open_study(study, folder, keys=keys)
    yield f"study {opened.study}, round 1: {', '.join(opened.roster)}; minimum {opened.minimum}"
    yield f"roster fingerprint {opened.roster_fingerprint}: the sites compare it with each other"


@command(study)
def status(folder: str) -> Lines:
    """Show terms, price, rounds, who contributed, and what was refused.

    Examples:
      daskrado study status shared/
    """
    from daskrado.parties.coordinator import status_lines

    return status_lines(folder)


@command(study)
def combine(
    folder: str,
    *,
    keys: Keys,
    out: Annotated[Path, "--out", "--output"],
    close: Annotated[bool, "If sites are missing, open a new round among those present."] = False,
    overwrite: bool = False,
    ledger: LedgerPath = None,
) -> Lines:
    """Combine the open round into one model; needs the bundle of every site of the round.

    Examples:
      daskrado study combine shared/ --keys keys/coordinator --out runs/study
    """
    from daskrado.parties.coordinator import combine
    from daskrado.parties.rounds import Round

    done = combine(folder, keys=keys, output=out, close=close, overwrite=overwrite, ledger=ledger)
    if not isinstance(done, Round):
        return done.lines
    return (
        f"study {done.study}: round {done.number} is open among {', '.join(done.roster)}; they contribute again",
        f"roster fingerprint {done.roster_fingerprint}; bundles of earlier rounds stay masked",
    )
