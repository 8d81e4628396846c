"""Commands that read what was published: one run, or all of a folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from daskrado.cli.commands.signature import AsJson, Lines, command


@command()
def show(run: Path, *, as_json: AsJson = False) -> Iterator[str]:
    """Show a published run: what it protects, what it cost, its weights, whether its files are unchanged.

    RUN is its output folder, such as runs/quickstart. Reads no row and no ledger.

    Examples:
      daskrado show runs/visits
    """
    from daskrado.jobs.published import Published

    found = Published.load(run)
    if as_json:
        import json

        yield json.dumps(found.to_json(), allow_nan=False)
    else:
        yield from found.lines()


@command()
def report(
    folder: Path,
    *,
    show_page: Annotated[bool, "--open", "Open the page in a browser."] = False,
    as_json: AsJson = False,
) -> Lines:
    """Write FOLDER/index.html, a page over all runs in FOLDER; for a single run, say where its page is.

    Runs are found by their manifests, up to three folders down: `daskrado report runs/ --open`.

    Examples:
      daskrado report runs/ --open
    """
    from daskrado.jobs.index_report import report

    index = report(folder)
    page, found = index.page, index.runs
    if show_page:
        import webbrowser

        webbrowser.open(page.resolve().as_uri())
    if as_json:
        import json

        runs = [line | one.figures for line, one in zip(index.table, found, strict=True)]
        return json.dumps({"page": str(page), "runs": runs, "problems": index.problems})
    told = [f"  {line['run']:<24} {line['kind']:<20} {line['guarantee']}" for line in index.table]
    return [f"{page}: {len(found)} run{'' if len(found) == 1 else 's'}", *told, *index.problems]
