"""The command that makes a lake of text tables."""

from __future__ import annotations

import click

from daskrado.cli.commands.shared import progress_bar


@click.command()
@click.argument("sources", nargs=-1, required=True)
@click.option("--out", required=True, help="The lake: a folder, or an address such as s3://bucket/lake.")
@click.option("--format", "kind", type=click.Choice(["auto", "csv", "arff"]), default="auto", show_default=True)
@click.option(
    "--no-header", is_flag=True, help="The first line is a row already; columns are c00, c01, ... or --names."
)
@click.option("--names", default=None, help="Column names, separated by commas, instead of a header's.")
@click.option("--delimiter", default=",", show_default=True)
@click.option(
    "--missing", multiple=True, help="A mark of a missing value (repeatable), beside an empty field; '?' by default."
)
@click.option("--skip-lines", type=int, default=0, help="Lines to leave out before the header.")
@click.option("--encoding", default="utf8", show_default=True)
@click.option("--member", default=None, help="The file to read inside a zip archive.")
@click.option("--text", multiple=True, help="A column to keep as text, such as a code (repeatable).")
@click.option("--drop", multiple=True, help="A column to leave out (repeatable).")
@click.option("--by", default=None, help="A column whose values become folders, such as a hospital.")
@click.option("--group-rows", type=int, default=None, help="Rows in a row group; by default about 32 MB in memory.")
@click.option("--file-rows", type=int, default=None, help="Rows in a file; by default 8 row groups.")
@click.option("--overwrite", is_flag=True, help="Replace the lake if it exists.")
def ingest(
    sources: tuple[str, ...],
    out: str,
    kind: str,
    no_header: bool,
    names: str | None,
    delimiter: str,
    missing: tuple[str, ...],
    skip_lines: int,
    encoding: str,
    member: str | None,
    text: tuple[str, ...],
    drop: tuple[str, ...],
    by: str | None,
    group_rows: int | None,
    file_rows: int | None,
    overwrite: bool,
) -> None:
    """Turn CSV (plain, .gz, .bz2, .zst or in a .zip) and ARFF files into one Parquet lake with typed columns.

    The lake appears whole or not at all, with a manifest (_manifest.json) in it.
    """
    from daskrado.lake.files import shown
    from daskrado.lake.ingest import Layout
    from daskrado.lake.ingest import ingest as write
    from daskrado.lake.text_tables import TextFormat

    form = TextFormat(
        kind=kind,  # type: ignore[arg-type]
        header=not no_header,
        names=tuple(name.strip() for name in names.split(",")) if names else (),
        delimiter="\t" if delimiter == "\\t" else delimiter,
        missing=("", *missing) if missing else ("", "?"),
        skip_lines=skip_lines,
        encoding=encoding,
        member=member,
    )
    layout = Layout(by=by, group_rows=group_rows, file_rows=file_rows, text=text, drop=drop)
    with progress_bar("ingest") as progress:
        manifest = write(sources, out, form=form, layout=layout, overwrite=overwrite, progress=progress)
    columns = ", ".join(f"{name} {kind}" for name, kind in list(manifest["columns"].items())[:12])
    more = f" and {len(manifest['columns']) - 12} more" if len(manifest["columns"]) > 12 else ""
    click.echo(f"{shown(out)}: {manifest['rows']:,} rows in {len(manifest['files'])} files; {columns}{more}")
