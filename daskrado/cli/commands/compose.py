"""The command that adds up privacy losses."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

import click

from daskrado.cli.commands.shared import open_ledger, with_ledger

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from daskrado.ledger.odometer import Odometer


@click.command()
@click.option(
    "--release",
    "releases",
    multiple=True,
    help="One release of a round: 0.1, or 0.1,1e-8 with a delta, or rho=0.01, or mu=0.1; x20 repeats it (repeatable)",
)
@click.option("--count", type=int, default=None, help="Number of rounds.  [default: 100, or 1 for a ledger]")
@click.option("--delta", default="1e-6", show_default=True)
@click.option("--rows-per-person", type=int, default=1, show_default=True, help="Group privacy.")
@click.option("--dataset", default=None, help="Take the charges of this data set in the ledger as one round.")
@click.option("--relation", default=None, help="Only charges under this relation.")
@with_ledger
@click.option("--plot", type=click.Path(path_type=Path), default=None, help="Write the curves as an SVG file.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout and nothing else.")
def compose(
    releases: tuple[str, ...],
    count: int | None,
    delta: str,
    rows_per_person: int,
    dataset: str | None,
    relation: str | None,
    ledger: Path | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Print epsilon against the number of releases, by every composition theorem; the smallest is what counts."""
    from daskrado.ledger.odometer import charged_events, odometer, odometer_lines, read_release
    from daskrado.table.yaml_file import write_text

    events = [event for text in releases for event in read_release(text)]
    if dataset is not None:
        with open_ledger(ledger, create=False) as opened:
            events += charged_events(opened, dataset, relation)
        if not events:
            raise click.UsageError(f"data set {dataset!r} has no charge" + (f" under {relation}" if relation else ""))
    elif not releases:
        raise click.UsageError("give --release (for example --release 0.1), or --dataset to read the ledger")
    rounds = count if count is not None else (100 if dataset is None else 1)
    found = odometer(events, rounds, delta, rows_per_person)
    if plot is not None:
        write_text(plot, _plot(found) + "\n")
    if as_json:
        best = [{"epsilon": float(b.epsilon), "method": b.method} for b in found.best]
        finite = {n: [v if v < float("inf") else None for v in values] for n, values in found.theorems.items()}
        click.echo(json.dumps({"delta": found.delta, "counts": found.counts, "theorems": finite, "best": best}))
    else:
        for line in odometer_lines(found):
            click.echo(line)
        if plot is not None:
            click.echo(f"{plot}: the curves")


def _plot(found: Odometer) -> str:
    """Epsilon against the number of rounds, both on logarithmic axes, as an SVG."""
    from daskrado.jobs.report import draw

    def paint(axes: Axes) -> None:
        for name, values in found.theorems.items():
            points = [(c, v) for c, v in zip(found.counts, values, strict=True) if 0 < v < math.inf]
            if points:
                style = "--" if name.startswith("loss distribution") else "-"
                axes.plot(*zip(*points, strict=True), style, marker=".", linewidth=1.4, label=name)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("number of releases (rounds)")
        axes.set_ylabel(f"epsilon at delta {found.delta:g}")
        axes.legend(fontsize=8, frameon=False)

    return draw(paint)
