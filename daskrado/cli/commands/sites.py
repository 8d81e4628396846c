"""Commands of studies: those of a site, and those of the coordinator."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from daskrado.cli.commands.shared import progress_bar
from daskrado.cli.commands.signature import LedgerPath, Lines, OnCluster, command

if TYPE_CHECKING:
    from daskrado.parties.site import Contribution

Keys = Annotated[Path, "Folder of this party's private keys and memory; it never leaves the machine."]
SiteName = Annotated[str, "This site's name in the study."]
OwnLake = Annotated[str, "This site's lake."]
OwnDataset = Annotated[str, "The name by which this site's ledger knows the lake."]
Fingerprint = Annotated[str, "The roster's fingerprint, as the other sites read it out (not by the study's folder)."]
PayAgain = Annotated[bool, "Draw a new share, at a second charge, after one was lost in a crash."]
SomeBlocks = Annotated[str | None, "Read some blocks alone, each of which pays: COLUMN, or COLUMN:LAST (day:30)."]

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
def preview(
    folder: str,
    *,
    site: SiteName,
    keys: Keys,
    lake: OwnLake,
    dataset: OwnDataset,
    blocks: SomeBlocks = None,
    out: Annotated[Path | None, "--out", "--output"] = None,
    ledger: LedgerPath = None,
) -> Iterator[str]:
    """Show what would leave this house, who would learn what, and the price; no row is read, nothing is sent.

    Examples:
      daskrado site preview shared/ --site north --keys keys/north --lake lake/ --dataset clinic --out preview.html
    """
    from daskrado.lake.blocks import Blocks
    from daskrado.parties.preview import Preview
    from daskrado.table.yaml_file import write_text

    chosen = None if blocks is None else Blocks.spoken(blocks)
    found = Preview(folder, site=site, keys=keys, lake=lake, dataset=dataset, ledger=ledger, blocks=chosen)
    yield from found.lines()
    if out is not None:
        write_text(out, found.page())
        yield f"written to {out}"


@command(site)
def contribute(
    folder: str,
    *,
    site: SiteName,
    keys: Keys,
    lake: OwnLake,
    dataset: OwnDataset,
    roster: Fingerprint,
    pay_again: PayAgain = False,
    blocks: SomeBlocks = None,
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
    yield from _charged(done, dataset)


@command(site)
def serve(
    folder: str,
    *,
    site: SiteName,
    keys: Keys,
    lake: OwnLake,
    dataset: OwnDataset,
    roster: Fingerprint,
    pay_again: PayAgain = False,
    blocks: SomeBlocks = None,
    timeout: Annotated[float | None, "Seconds to wait for a step of the others; by default for ever."] = None,
    cluster: OnCluster,
    ledger: LedgerPath = None,
) -> Iterator[str]:
    """Answer every step of a study until it is over, on one charge; start it again after a crash.

    Examples:
      daskrado site serve shared/ --site north --keys keys/north --lake lake/ --dataset clinic --roster 5b1f
    """
    from daskrado.lake.blocks import Blocks
    from daskrado.parties.serving import serve

    with progress_bar("step") as progress:
        done = serve(
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
            timeout=timeout,
        )
    yield f"study {done.round.study}, round {done.round.number}, site {site}: every step was answered"
    yield from _charged(done, dataset)


def _charged(done: Contribution, dataset: str) -> Iterator[str]:
    claim = done.plan.statement
    if done.charged and claim.private:
        from daskrado.ledger.words import amount

        yield f"charged to {dataset}: {amount(claim.epsilon or 0, claim.delta or 0)}"
    yield claim.sentence()


@command(study)
def run(
    folder: str,
    *,
    keys: Keys,
    out: Annotated[Path, "--out", "--output"],
    timeout: Annotated[float | None, "Seconds to wait for the sites in one step; by default for ever."] = None,
    overwrite: bool = False,
    ledger: LedgerPath = None,
) -> Lines:
    """Wait for every site in every step, combine, publish one model; start it again after a crash.

    Examples:
      daskrado study run shared/ --keys keys/coordinator --out runs/study
    """
    from daskrado.parties.steps import run_study

    with progress_bar("step") as progress:
        done = run_study(
            folder, keys=keys, output=out, overwrite=overwrite, ledger=ledger, timeout=timeout, progress=progress
        )
    return done.lines


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
    from daskrado.parties.status import status_lines

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
