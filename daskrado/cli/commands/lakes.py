"""Commands on lakes: make one, describe one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import click

from daskrado.cli.commands.signature import Lines, command

lake = click.Group("lake", help="Lakes: make a synthetic one, make few files of many.")


@command(name="make-lake")
def make_lake(
    path: Path,
    *,
    rows: int,
    features: int = 12,
    partitions: int = 8,
    seed: Annotated[int, click.IntRange(0, 2**63 - 1)] = 7,
    overwrite: bool = False,
) -> Lines:
    """Make a synthetic clinic lake and its domain file (PATH.yaml)."""
    from daskrado.lake.make import make_lake

    domain = make_lake(path, rows=rows, features=features, partitions=partitions, seed=seed, overwrite=overwrite)
    return f"{path}: {rows:,} rows in {partitions} partitions; domain in {domain}"


lake.add_command(make_lake, "make")


@command(lake)
def compact(lake: str) -> Lines:
    """Rewrite the many small files of an ingested lake as few large ones; no sum and no fingerprint changes."""
    from daskrado.lake.files import shown
    from daskrado.lake.growing import compact_lake

    before, after = compact_lake(lake)
    return f"{shown(lake)}: {before} files before, {after} now"


@command()
def describe(lake: str, *, label: Annotated[str, "The label column."], out: Path, overwrite: bool = False) -> Lines:
    """Draft a domain file from Parquet schemas; bounds and categories are left to fill in."""
    from daskrado.lake.describe import describe
    from daskrado.lake.publish import check_free_text
    from daskrado.table.yaml_file import write_text

    check_free_text(out, overwrite=overwrite)
    text, left = describe(lake, label)
    write_text(out, text)
    return f"{out}: {left} facts to fill in (marked ...)"
