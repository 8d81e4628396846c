"""Commands on lakes: make one, describe one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import click

from daskrado.cli.commands.shared import open_ledger
from daskrado.cli.commands.signature import LedgerPath, Lines, command

lake = click.Group("lake", help="Lakes: make a synthetic one, check one, make few files of many.")


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
    """Make a synthetic clinic lake and its domain file (PATH.yaml).

    Examples:
      daskrado lake make visits --rows 200000 --seed 11
    """
    from daskrado.lake.make import make_lake

    domain = make_lake(path, rows=rows, features=features, partitions=partitions, seed=seed, overwrite=overwrite)
    return f"{path}: {rows:,} rows in {partitions} partitions; domain in {domain}"


lake.add_command(make_lake, "make")


@command(lake)
def compact(lake: str) -> Lines:
    """Rewrite the many small files of an ingested lake as few large ones; no sum and no fingerprint changes.

    Examples:
      daskrado lake compact lake/
    """
    from daskrado.lake.files import shown
    from daskrado.lake.growing import compact_lake

    before, after = compact_lake(lake)
    return f"{shown(lake)}: {before} files before, {after} now"


@command(lake)
def check(
    lake: str,
    *,
    domain: Annotated[Path | None, "The domain file that the rows should fit; without it, files alone."] = None,
    dataset: Annotated[str | None, "Its name in the ledger, where that cannot know it by its files."] = None,
    ledger: LedgerPath = None,
) -> Iterator[str]:
    """For the owner alone: list damaged files, copies, columns and rows that do not fit. Exit code 1 if any.

    Private runs say nothing of such rows and let them count as nothing. What is printed here is exact: the ledger, if
    there is one, remembers that exact counts of each data set were seen that these files belong to, now or later.

    Examples:
      daskrado lake check lake/ --domain domain.yaml
      daskrado lake check lake/ --dataset clinic --json
    """
    from daskrado.lake.check import check_files, check_lake
    from daskrado.table.domain import Domain

    loaded = None if domain is None else Domain.load(domain)
    yield from _marked(lake, dataset, ledger)
    fits = True
    for finding in check_files(lake) if loaded is None else check_lake(lake, loaded):
        fits = False
        yield str(finding)
    if not fits:
        raise click.exceptions.Exit(1)
    said = "every file can be read, their columns agree, and none is a copy"
    yield f"{lake}: {said if domain is None else f'every row fits {domain}'}"


def _marked(lake: str, dataset: str | None, path: str | None) -> tuple[str, ...]:
    """Mark before a row is read: whoever is cut off has seen what was printed. What hinders that, if anything."""
    from daskrado.errors import NoLedgerError
    from daskrado.lake.scan import known_by
    from daskrado.ledger.charging import mark_unprotected
    from daskrado.ledger.config import LedgerConfig
    from daskrado.ledger.records import Mark

    if dataset is None:
        try:
            open_ledger(path, create=False)
        except NoLedgerError:
            return ()  # there is none that could know the files
    return mark_unprotected(path, LedgerConfig(), dataset, "lake check", Mark.COUNTS, known_by(lake))
