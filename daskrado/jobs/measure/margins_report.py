"""What a margins job shows and writes: the margin distribution graph and the bounds, from released values only."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from daskrado.bounds.margins import Bound
from daskrado.jobs.measure.base import write_pages
from daskrado.jobs.report import Section, draw
from daskrado.privacy.accountant import Event
from daskrado.privacy.release import Release
from daskrado.table.yaml_file import write_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from daskrado.jobs.measure.margins import MarginsPipeline


@dataclass(frozen=True)
class MarginsResult:
    """Released margin distributions. ``shares[model][j]`` is the share of examples with margin below edge j."""

    run: str
    names: list[str]
    edges: NDArray[np.float64]
    shares: NDArray[np.float64]
    release: Release
    examples: int
    noise_std: float
    bounds: list[dict[str, Any]]
    budget: dict[str, Any]
    seconds: dict[str, float]
    notes: tuple[str, ...]


def margin_plot(result: MarginsResult) -> str:
    """The margin distribution graph: the share of examples with margin at most theta, against theta."""
    styles = (":", "--", "-", "-.")
    colours = ("#2b6cb0", "#c05621", "#2f855a", "#6b46c1")

    def paint(axes: Axes) -> None:
        families = list(dict.fromkeys(name.split(",")[0] for name in result.names))
        seen: dict[str, int] = {}
        for name, share in zip(result.names, result.shares, strict=True):
            family = name.split(",")[0]
            turn = seen[family] = seen.get(family, -1) + 1
            colour = colours[families.index(family) % len(colours)]
            axes.plot(result.edges, share, styles[turn % len(styles)], color=colour, linewidth=1.4, label=name)
        axes.axvline(0, color="#2d3748", linewidth=0.6)
        axes.set_xlabel("theta")
        axes.set_ylabel("share of examples with margin at most theta")
        axes.legend(fontsize=8, frameon=False)

    return draw(paint, height=4.2)


def write_margins(result: MarginsResult, pipeline: MarginsPipeline, event: Event | None, folder: Path) -> None:
    """margins.json, manifest.json and report.html."""
    shares = dict(zip(result.names, result.shares, strict=True))
    content = {
        "edges": [round(float(edge), 9) for edge in result.edges],
        "shares": {name: [round(float(s), 9) for s in share] for name, share in shares.items()},
    }
    write_text(folder / "margins.json", json.dumps(content, allow_nan=False) + "\n")
    rows = [
        (
            found["model"],
            f"{found['training_error']:.4f}",
            f"{found['margin_bound']} at theta {found['theta']:g}",
            str(found["breiman_bound"]),
        )
        for found in result.bounds
    ]
    said = (
        f"Holds with probability {pipeline.confidence:g} if the rows were drawn independently; |H| = "
        f"{2 * pipeline.domain.width} (each feature and its negation)."
    )
    sections = [
        Section("Margin distribution", text="Normalised margins of the rows of the lake.", plot=margin_plot(result)),
        Section(
            "Bounds on the true error",
            text=said,
            header=("model", "error on these rows", "Schapire, Freund, Bartlett and Lee", "Breiman"),
            rows=rows,
        ),
    ]
    write_pages(
        folder,
        title=f"{pipeline.dataset}: margins of {len(result.names)} models",
        run=result.run,
        pipeline=pipeline,
        statement=result.release.statement,
        event=event,
        budget=result.budget,
        facts={
            "bins": pipeline.bins,
            "noise_std": result.noise_std,
            "bounds": [
                {key: (str(value) if isinstance(value, Bound) else value) for key, value in found.items()}
                for found in result.bounds
            ],
        },
        sections=sections,
        seconds=result.seconds,
        notes=result.notes,
    )


def margin_lines(result: MarginsResult, pipeline: MarginsPipeline) -> Iterator[str]:
    """The summary of a run."""
    yield result.release.statement.sentence()
    for found in result.bounds:
        yield f"{found['model']}: error {found['training_error']:.4f} on these rows"
        yield f"  true error at most {found['margin_bound']}, at theta {found['theta']:g}"
        yield f"  Breiman's bound {found['breiman_bound']}"
    yield from result.notes
    yield f"written to {pipeline.output}: margins.json, manifest.json, report.html"
