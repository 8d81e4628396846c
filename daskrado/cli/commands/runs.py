"""Commands that read what was published: one run, or all of a folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from daskrado.cli.commands.signature import AsJson, Lines, command
from daskrado.errors import UsageError


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
    from daskrado.jobs.index_report import HEADER, index_page, row
    from daskrado.jobs.published import MANIFESTS, Published, published_below
    from daskrado.table.yaml_file import write_text

    if any((folder / name).is_file() for name in MANIFESTS):
        one = Published.load(folder)
        if one.report is None:
            raise UsageError(f"{folder}: its report was not drawn; daskrado show {folder} shows the run")
        found, problems, page = [one], list[str](), one.report
    else:
        found, problems = published_below(folder)
        if not found:
            raise UsageError(f"{folder}: holds no published run; a run's output folder has a manifest.json")
        page = folder / "index.html"
        write_text(page, index_page(found, problems, folder))
    if show_page:
        import webbrowser

        webbrowser.open(page.resolve().as_uri())
    if as_json:
        import json

        runs = [dict(zip(HEADER, row(one, folder), strict=True)) | one.figures for one in found]
        return json.dumps({"page": str(page), "runs": runs, "problems": problems})
    told = [f"  {name:<24} {kind:<20} {said}" for name, kind, _, said, *_ in (row(one, folder) for one in found)]
    return [f"{page}: {len(found)} run{'' if len(found) == 1 else 's'}", *told, *problems]
