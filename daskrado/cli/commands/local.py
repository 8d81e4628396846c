"""Commands of local privacy: randomise at the source, read the reports."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import click

from daskrado.cli.commands.shared import progress_bar
from daskrado.cli.commands.signature import LedgerPath, Lines, OnCluster, command

local = click.Group(
    "local", help="Local privacy: rows are randomised where they are, so that nobody has to be trusted with them."
)


@command(local)
def encode(
    lake: str,
    pipeline: Path,
    *,
    out: Annotated[Path, "Folder for the reports."],
    ledger: LedgerPath = None,
    overwrite: bool = False,
) -> Lines:
    """Randomise every row of LAKE (a Parquet file or folder) as PIPELINE (kind: local) says; charges the ledger.

    Examples:
      daskrado local encode lake/ pipelines/local.yaml --out reports/
    """
    from daskrado.jobs.base import perform
    from daskrado.jobs.load import load_kind
    from daskrado.jobs.local import LocalJob

    job = load_kind(LocalJob, pipeline).encoding(lake=lake, output=str(out))
    with progress_bar("encode") as progress:
        return perform(job, overwrite=overwrite, ledger=ledger, progress=progress).lines


@command(local)
def read(
    reports: Path,
    *,
    out: Annotated[Path, "Folder for estimates.json or model.json."],
    cluster: OnCluster,
    overwrite: bool = False,
) -> Lines:
    """Estimate fractions and means, or learn a model, from a folder of reports. Charges nothing.

    Examples:
      daskrado local read reports/ --out runs/local
    """
    from daskrado.jobs.local import read_reports
    from daskrado.jobs.publish import weight_lines, write_files
    from daskrado.lake.publish import new_folder

    with new_folder(out, overwrite=overwrite, reading=(reports,)) as folder, progress_bar("read") as progress:
        found = read_reports(reports, cluster=cluster, progress=progress)
        write_files(found, folder)
    return (*found.lines, *(() if found.model is None else weight_lines(found.model)), f"written to {out}")
