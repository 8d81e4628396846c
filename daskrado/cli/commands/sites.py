"""Commands of studies: those of a site, and those of the coordinator."""

from __future__ import annotations

from pathlib import Path

import click

from daskrado.cli.commands.shared import progress_bar, with_cluster, with_ledger

_keys = click.option(
    "--keys",
    type=click.Path(path_type=Path),
    required=True,
    help="Folder of this party's private keys and memory; it never leaves the machine.",
)
_name = click.option("--site", required=True, help="This site's name in the study.")


@click.group()
def site() -> None:
    """Take part in a study with rows that stay here."""


@site.command("join")
@click.argument("folder")
@_name
@_keys
def site_join(folder: str, site: str, keys: Path) -> None:
    """Make this site's keys and put its card into the study's FOLDER (shared folder or object store)."""
    from daskrado.parties.site import join

    public = join(folder, site=site, keys=keys)
    click.echo(f"{site}: {public.text}")
    click.echo(f"fingerprint {public.fingerprint}; private keys in {keys}, never to be shared")


@site.command("contribute")
@click.argument("folder")
@_name
@_keys
@click.option("--lake", required=True, help="This site's lake.")
@click.option("--dataset", required=True, help="The name by which this site's ledger knows the lake.")
@click.option("--roster", default=None, help="The roster's fingerprint, as the other sites read it out.")
@click.option(
    "--pay-again", is_flag=True, help="Draw a new share, at a second charge, after one was lost in a crash."
)
@with_cluster
@with_ledger
def site_contribute(
    folder: str,
    site: str,
    keys: Path,
    lake: str,
    dataset: str,
    roster: str | None,
    pay_again: bool,
    workers: int | None,
    cluster: str | None,
    ledger: Path | None,
) -> None:
    """Debit this site's ledger, sum its lake, add its share of noise, mask, sign, upload."""
    from daskrado.cluster import cluster_config
    from daskrado.parties.site import contribute

    where = cluster_config(workers, cluster)
    with progress_bar("collect") as progress:
        done = contribute(
            folder,
            site=site,
            keys=keys,
            lake=lake,
            dataset=dataset,
            ledger=ledger,
            roster=roster,
            cluster=where,
            progress=progress,
            pay_again=pay_again,
        )
    how = "the stored bundle was sent again; nothing was charged" if done.again else "a masked bundle was sent"
    click.echo(f"study {done.study}, round {done.round}, site {done.site}: {how}")
    if done.charged:
        click.echo(f"charged to {dataset}: {done.event}")
    click.echo(done.statement.sentence())
    if roster is None:
        click.echo(
            f"roster fingerprint {done.roster_fingerprint}: compare it with the other sites, not by this folder"
        )


@click.group()
def study() -> None:
    """Coordinate a study: open it, see how it stands, combine its rounds."""


@study.command("open")
@click.argument("study", type=click.Path(path_type=Path))
@click.argument("folder")
@_keys
def study_open(study: Path, folder: str, keys: Path) -> None:
    """Open round 1 of the STUDY file in FOLDER, among the sites that joined."""
    from daskrado.parties.coordinator import open_study

    opened = open_study(study, folder, keys=keys)
    click.echo(f"study {opened.study}, round 1: {', '.join(opened.roster)}; minimum {opened.minimum}")
    click.echo(f"roster fingerprint {opened.roster_fingerprint}: the sites compare it with each other")


@study.command("status")
@click.argument("folder")
def study_status(folder: str) -> None:
    """Show terms, price, rounds, who contributed, and what was refused."""
    from daskrado.parties.coordinator import status_lines

    for line in status_lines(folder):
        click.echo(line)


@study.command("combine")
@click.argument("folder")
@_keys
@click.option("--out", "--output", "out", type=click.Path(path_type=Path), required=True)
@click.option("--close", is_flag=True, help="If sites are missing, open a new round among those present.")
@click.option("--overwrite", is_flag=True)
@with_ledger
def study_combine(folder: str, keys: Path, out: Path, close: bool, overwrite: bool, ledger: Path | None) -> None:
    """Combine the open round into one model; needs the bundle of every site of the round."""
    from daskrado.parties.coordinator import combine
    from daskrado.parties.rounds import Round

    done = combine(folder, keys=keys, output=out, close=close, overwrite=overwrite, ledger=ledger)
    if isinstance(done, Round):
        names = ", ".join(done.roster)
        click.echo(f"study {done.study}: round {done.number} is open among {names}; they contribute again")
        click.echo(f"roster fingerprint {done.roster_fingerprint}; bundles of earlier rounds stay masked")
        return
    for line in done.lines:
        click.echo(line)
