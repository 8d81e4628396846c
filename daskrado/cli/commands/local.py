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
    from daskrado.errors import UsageError
    from daskrado.jobs.kinds import load_job
    from daskrado.jobs.measure.local_job import EncodeJob, LocalJob

    job = load_job(pipeline)
    if not isinstance(job, LocalJob):
        raise UsageError(f"{pipeline}: local encode needs a pipeline of kind local")
    chosen = EncodeJob(job.pipeline.model_copy(update={"lake": lake, "output": str(out)}))
    with progress_bar("encode") as progress:
        result = chosen.result(overwrite=overwrite, ledger_path=ledger, progress=progress)
    for line in chosen.lines(result):
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
    from daskrado.jobs.measure.local import analysed
    from daskrado.lake.publish import new_folder

    with new_folder(out, overwrite=overwrite, reading=(reports,)) as folder, progress_bar("read") as progress:
        _, lines = analysed(reports, folder, cluster_config(workers, cluster), progress)
    for line in lines:
        click.echo(line)
    click.echo(f"written to {out}")
