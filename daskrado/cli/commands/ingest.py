"""The command that makes a lake of text tables."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Literal

from daskrado.cli.commands.shared import open_ledger, progress_bar
from daskrado.cli.commands.signature import LedgerPath, Lines, OnCluster, command
from daskrado.errors import NoLedgerError


@command()
def ingest(
    sources: tuple[str, ...],
    *,
    out: Annotated[str, "The lake: a folder, or an address such as s3://bucket/lake."],
    format: Literal["auto", "csv", "arff"] = "auto",
    header: Annotated[bool, "The first line holds names, also where that cannot be seen."] = False,
    no_header: Annotated[bool, "The first line is a row already; columns are c00, c01, ... or --names."] = False,
    names: Annotated[str | None, "Column names, separated by commas, instead of a header's."] = None,
    delimiter: Annotated[str | None, "One character; by default as the first lines show."] = None,
    missing: Annotated[
        tuple[str, ...], "A mark of a missing value (repeatable), beside an empty field; by default as seen."
    ] = (),
    skip_lines: Annotated[int, "Lines to leave out before the header."] = 0,
    encoding: Annotated[str | None, "By default UTF-8."] = None,
    dates: Annotated[
        Literal["dmy", "mdy", "text"] | None, "The order of 3/4/2026, or text to keep it; by default as seen."
    ] = None,
    first_year: Annotated[int | None, "Where years have two digits (17-Nov-26), the first of the hundred."] = None,
    decimal: Annotated[
        Literal["point", "comma"] | None, "What stands before decimals: 1,234.5 or 1.234,5; by default as seen."
    ] = None,
    member: Annotated[str | None, "The file to read inside a zip archive."] = None,
    text: Annotated[tuple[str, ...], "A column to keep as text, such as a code (repeatable)."] = (),
    drop: Annotated[tuple[str, ...], "A column to leave out (repeatable)."] = (),
    id: Annotated[str | None, "A column of random ids to add, where rows have none: hold-outs go by it."] = None,
    by: Annotated[str | None, "A column whose values become folders, such as a hospital."] = None,
    group_rows: Annotated[int | None, "Rows in a row group; by default about 32 MB in memory."] = None,
    file_rows: Annotated[int | None, "Rows in a file; by default 8 row groups."] = None,
    append: Annotated[bool, "Add the rows to the lake, at once or not at all; new columns are null before."] = False,
    cluster: OnCluster,
    ledger: LedgerPath = None,
    overwrite: Annotated[bool, "Replace the lake if it exists."] = False,
) -> Lines:
    """Turn CSV (plain, .gz, .bz2, .zst or in a .zip) and ARFF files into one Parquet lake with typed columns.

    The lake appears whole or not at all, with a manifest (_manifest.json) in it. Rows for a block that the ledger has
    charged are refused by --append.

    Examples:
      daskrado ingest visits.csv --out lake/ --id row_id
      daskrado ingest 2025.csv.gz 2026.csv.gz --out lake/ --by hospital --text icd10
      daskrado ingest tonight.csv --out lake/ --append
    """
    from daskrado.cluster import ClusterConfig, connect
    from daskrado.lake.files import shown
    from daskrado.lake.ingest import Layout, ingest
    from daskrado.lake.text_tables import TextFormat, file_size

    form = TextFormat(
        kind=format,
        header=True if header else False if no_header else None,
        names=tuple(name.strip() for name in names.split(",")) if names else (),
        delimiter="\t" if delimiter == "\\t" else delimiter,
        missing=("", *missing) if missing else (),
        skip_lines=skip_lines,
        encoding=encoding,
        member=member,
        dates=dates,
        first_year=first_year,
        decimal=decimal,
    )
    layout = Layout(by=by, group_rows=group_rows, file_rows=file_rows, text=text, drop=drop, record=id)
    size = sum(map(file_size, sources))
    with connect(cluster or ClusterConfig(), size) as client, progress_bar("ingest") as progress:
        manifest = ingest(
            sources,
            out,
            form=form,
            layout=layout,
            overwrite=overwrite,
            append=append,
            closed=partial(_closed, ledger) if append else None,
            client=client,
            progress=progress,
        )
    columns = ", ".join(f"{name} {kind}" for name, kind in list(manifest["columns"].items())[:12])
    more = f" and {len(manifest['columns']) - 12} more" if len(manifest["columns"]) > 12 else ""
    return (
        f"read as {manifest['read_as']}",
        f"{shown(out)}: {manifest['rows']:,} rows in {len(manifest['files'])} files; {columns}{more}",
    )


def _closed(ledger: str | None, lake: str, column: str) -> Mapping[str, str]:
    """The blocks of a lake that the ledger has closed; none where there is no ledger."""
    try:
        with open_ledger(ledger, create=False) as opened:
            return opened.closed_blocks(lake, column)
    except NoLedgerError:
        if ledger is not None:
            raise
        return {}
