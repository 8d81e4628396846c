"""Commands of local privacy: randomise at the source, read the reports."""

from __future__ import annotations

from pathlib import Path

import click

from daskrado.cli.commands.shared import progress_bar, with_cluster, with_ledger


@click.group()
def local() -> None:
    """Local privacy: rows are randomised where they are, so that nobody has to be trusted with them."""


@local.command("encode")
@click.argument("lake")
@click.argument("pipeline", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder for the reports.")
@with_ledger
@click.option("--overwrite", is_flag=True)
def local_encode(lake: str, pipeline: Path, out: Path, ledger: Path | None, overwrite: bool) -> None:
    """Randomise every row of LAKE (a Parquet file or folder) as PIPELINE (kind: local) says; charges the ledger."""
    from daskrado.jobs.base import perform
    from daskrado.jobs.load import load_kind
    from daskrado.jobs.local import LocalJob

    job = load_kind(LocalJob, pipeline).encoding(lake=lake, output=str(out))
    with progress_bar("encode") as progress:
        result = perform(job, overwrite=overwrite, ledger=ledger, progress=progress)
    for line in result.lines:
        click.echo(line)


@local.command("read")
@click.argument("reports", type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, help="Folder for estimates.json or model.json."
)
@with_cluster
@click.option("--overwrite", is_flag=True)
def local_read(reports: Path, out: Path, workers: int | None, cluster: str | None, overwrite: bool) -> None:
    """Estimate fractions and means, or learn a model, from a folder of reports. Charges nothing."""
    from daskrado.cluster import cluster_config
    from daskrado.jobs.local import read_reports
    from daskrado.jobs.publish import weight_lines, write_files
    from daskrado.lake.publish import new_folder

    where = cluster_config(workers, cluster)
    with new_folder(out, overwrite=overwrite, reading=(reports,)) as folder, progress_bar("read") as progress:
        found = read_reports(reports, cluster=where, progress=progress)
        write_files(found, folder)
    for line in (*found.lines, *(() if found.model is None else weight_lines(found.model))):
        click.echo(line)
    click.echo(f"written to {out}")
