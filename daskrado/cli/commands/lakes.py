"""Commands on lakes: make one, describe one."""

from __future__ import annotations

from pathlib import Path

import click


@click.group()
def lake() -> None:
    """Lakes: make a synthetic one."""


@click.command("make-lake")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--rows", type=int, required=True)
@click.option("--features", type=int, default=12, show_default=True)
@click.option("--partitions", type=int, default=8, show_default=True)
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=7, show_default=True)
@click.option("--overwrite", is_flag=True)
def make_lake(path: Path, rows: int, features: int, partitions: int, seed: int, overwrite: bool) -> None:
    """Make a synthetic clinic lake and its domain file (PATH.yaml)."""
    from daskrado.lake.make import make_lake as make

    domain = make(path, rows=rows, features=features, partitions=partitions, seed=seed, overwrite=overwrite)
    click.echo(f"{path}: {rows:,} rows in {partitions} partitions; domain in {domain}")


lake.add_command(make_lake, "make")


@click.command()
@click.argument("lake")
@click.option("--label", required=True, help="The label column.")
@click.option("--out", type=click.Path(path_type=Path), required=True)
@click.option("--overwrite", is_flag=True)
def describe(lake: str, label: str, out: Path, overwrite: bool) -> None:
    """Draft a domain file from Parquet schemas; bounds and categories are left to fill in."""
    from daskrado.lake.describe import describe as draft
    from daskrado.lake.publish import check_free_text
    from daskrado.table.yaml_file import write_text

    check_free_text(out, overwrite=overwrite)
    text, left = draft(lake, label)
    write_text(out, text)
    click.echo(f"{out}: {left} facts to fill in (marked ...)")
