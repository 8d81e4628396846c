"""What a label job publishes: model.json, manifest.json, report.html, from released and public values only."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import daskrado
from daskrado.jobs.labels.learn import Learned
from daskrado.jobs.old_report import privacy_sections
from daskrado.jobs.report import Section, bars, draw, render_page
from daskrado.table.yaml_file import write_text

SCHEMA = "daskrado.labels/1"


def write_labels(
    learned: Learned,
    folder: Path,
    *,
    run: str,
    title: str,
    config: dict[str, Any],
    budget: dict[str, Any],
    seconds: dict[str, float],
    notes: Sequence[str] = (),
    sections: Sequence[Section] = (),
) -> None:
    """Write the three files."""
    learned.model.save(folder / "model.json")
    manifest = {
        "schema": SCHEMA,
        "daskrado": daskrado.__version__,
        "run": run,
        "privacy": learned.model.statement.model_dump(mode="json"),
        "privacy_in_words": learned.model.statement.sentence(),
        "budget": budget,
        "job": config,
        "rows": learned.rows,
        "mean_operator": learned.mean.tolist(),
        "noise": None if learned.noise is None else vars(learned.noise),
        "bounds": None if learned.bounds is None else vars(learned.bounds),
        "fit": learned.model.details,
        **learned.extras,
        "domain_sha256": learned.model.domain.digest(),
        "seconds": seconds,
        "notes": list(notes),
    }
    write_text(folder / "manifest.json", json.dumps(manifest, indent=2, allow_nan=False) + "\n")
    page = render_page(
        title, run, learned.model.statement, list(_sections(learned, budget, seconds, notes, sections))
    )
    write_text(folder / "report.html", page)


def _sections(
    learned: Learned, budget: dict[str, Any], seconds: dict[str, float], notes: Sequence[str], more: Sequence[Section]
) -> Iterator[Section]:
    model = learned.model
    protected, *state = privacy_sections(model.statement, budget)
    if model.statement.private or not learned.extras.get("proportions"):
        yield protected
    else:
        yield Section("What was protected, and for whom", text="Nobody: the proportions were given as public facts.")
    yield from state
    yield _signal(learned)
    if learned.bounds is not None:
        yield _bounds(learned)
    yield from more
    pairs = zip(model.domain.feature_names, model.weights.tolist(), strict=True)
    weights = dict(sorted(pairs, key=lambda item: -abs(item[1])))
    yield Section("Coefficients", plot=bars(weights, "weight"))
    yield Section("All coefficients", rows=[(n, f"{w:+.6g}") for n, w in weights.items()], folded=True)
    made = [
        (key.replace("_", " "), f"{v:g}" if isinstance(v, int | float) else str(v))
        for key, v in model.details.items()
    ]
    made += [("rows", f"{learned.rows:,}"), ("seconds", ", ".join(f"{k} {v:g}" for k, v in seconds.items()))]
    yield Section("How it was made", rows=made)
    if notes:
        yield Section("Notes", text="; ".join(notes))


def _signal(learned: Learned) -> Section:
    names = learned.model.domain.feature_names
    std = learned.noise.std if learned.noise is not None else 0.0
    plot = bars(
        dict(zip(names, learned.mean.tolist(), strict=True)), "mean operator, in shares of the norm bound", noise=std
    )
    length = float(np.linalg.norm(learned.mean))
    if not std:
        return Section("Mean operator", text=f"Length {length:.4g}; no central noise was added.", plot=plot)
    alone = std * float(np.sqrt(len(names)))
    text = f"The released mean operator has length {length:.4g}; noise alone would have length about {alone:.4g}."
    return Section("Mean operator against noise", text=text, plot=plot)


def _bounds(learned: Learned) -> Section:
    bounds, noise = learned.bounds, learned.noise
    assert bounds is not None
    assert noise is not None
    sure = f"{100 * (1 - bounds.failure):g} %"
    return Section(
        "What the noise can do",
        text="Bounds from the public scale of the noise alone; they hold together, with the probability given.",
        rows=[
            (
                "noise",
                f"{noise.kind}, scale {noise.scale:.4g}, standard deviation {noise.std:.4g} for each coordinate",
            ),
            ("probability", sure),
            ("length of the noise", f"at most {bounds.length:.4g}"),
            (
                "risk",
                f"moves by at most {bounds.risk_gap:.4g} (theorem 10 of Patrini, Nielsen and Nock 2015, corrected)",
            ),
            (
                "weights times the norm bound",
                f"move by at most {bounds.weight_gap:.4g} (their theorem 6, with its constant)",
            ),
        ],
    )


def bag_section(names: Sequence[str], proportions: Sequence[float], rows: Sequence[float]) -> Section:
    """Proportions of the bags as used, with their sizes."""
    values, sizes = np.array(proportions), np.array(rows)

    def paint(axes: Any) -> None:
        order = np.argsort(values)
        axes.scatter(
            np.arange(len(values)),
            values[order],
            s=np.clip(sizes[order] / sizes.max() * 120, 6, 120),
            color="#2b6cb0",
        )
        axes.set_ylim(-0.03, 1.03)
        axes.set_xlabel(f"{len(values)} bags, by proportion (area: rows)")
        axes.set_ylabel("share of positive labels")

    table = [(str(n), f"{p:.4f}", f"{int(m):,}") for n, p, m in zip(names, proportions, rows, strict=True)]
    return Section("Bags", header=("bag", "positive", "rows"), rows=table, plot=draw(paint), folded=len(table) > 12)


def descent_section(objectives: Sequence[float]) -> Section:
    """The objective over the rounds of alternation."""

    def paint(axes: Any) -> None:
        axes.plot(np.arange(1, len(objectives) + 1), objectives, marker="o", color="#2b6cb0")
        axes.set_xlabel("round")
        axes.set_ylabel("objective")

    return Section("Alternation", text=f"{len(objectives)} rounds.", plot=draw(paint, height=2.6))


def summary_lines(learned: Learned, budget: dict[str, Any], notes: Sequence[str], output: str) -> Iterator[str]:
    """The summary of a run, for the command line."""
    yield learned.model.statement.sentence()
    if learned.noise is not None:
        strong = int((np.abs(learned.mean) > 2 * learned.noise.std).sum())
        yield f"mean operator: {strong} of {len(learned.mean)} entries stand out of the noise (2 standard deviations)"
    if learned.bounds is not None:
        b = learned.bounds
        yield (
            f"with probability {1 - b.failure:g} the noise moves the risk by at most {b.risk_gap:.4g} "
            f"and the weights, times the norm bound, by at most {b.weight_gap:.4g}"
        )
    if budget:
        yield (
            f"budget of {budget['dataset']}: epsilon {budget['spent_epsilon']:.4g} of "
            f"{budget['limit_epsilon']:g} spent, {budget['left_epsilon']:.4g} left"
        )
    yield from notes
    yield "largest weights:"
    frame = learned.model.coefficients
    for name in frame.abs().sort_values(ascending=False).index[:8]:
        yield f"  {frame[name]:+12.5g}  {name}"
    yield f"{learned.rows:,} rows, {learned.fit.passes} passes"
    yield f"written to {output}: model.json, manifest.json, report.html"
