"""What a learning run publishes: model.json, manifest.json and report.html, from released and public values only."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import daskrado
from daskrado.jobs.plan import Plan, forecast, hint
from daskrado.jobs.report import Section, bars, render_page
from daskrado.learners.on_passes.iterative import Learned
from daskrado.ledger.charging import published_seconds
from daskrado.privacy.accountant import event_to_json
from daskrado.privacy.statement import PrivacyStatement
from daskrado.statistics.rados import HadamardRados
from daskrado.table.yaml_file import write_text

if TYPE_CHECKING:
    from daskrado.jobs.job import RunResult

MANIFEST_SCHEMA = "daskrado.manifest/1"


def write_artefacts(result: RunResult, folder: Path) -> None:
    """Write the three files of a run."""
    result.model.save(folder / "model.json")
    write_text(folder / "manifest.json", json.dumps(manifest(result), indent=2, allow_nan=False) + "\n")
    write_text(folder / "report.html", report(result))


def manifest(result: RunResult) -> dict[str, Any]:
    """Everything public about a run; the row count only where the relation makes it public."""
    plan = result.plan
    return {
        "schema": MANIFEST_SCHEMA,
        "daskrado": daskrado.__version__,
        "run": result.run,
        "dataset": plan.pipeline.dataset,
        "privacy": plan.statement.model_dump(mode="json"),
        "privacy_in_words": plan.statement.sentence(),
        "event": event_to_json(plan.event) if plan.event is not None else None,
        "budget": result.budget,
        "statistic": plan.pipeline.statistic.model_dump(mode="json") if plan.pipeline.statistic is not None else None,
        "learner": plan.pipeline.learner.model_dump(mode="json"),
        "lattice": {"norm_bound": plan.lattice.norm_bound, "bits": plan.lattice.bits},
        "noise_std": result.release.noise_std,
        "domain_sha256": plan.pipeline.domain.digest(),
        "features": plan.pipeline.domain.width,
        "rows": result.rows,
        "seconds": _seconds(result),
        "notes": list(result.notes),
    }


def signal_and_noise(result: RunResult) -> tuple[np.ndarray, float, str]:
    """Released values to set against the noise on them: the mean operator's where there is one."""
    released = result.release
    if isinstance(released, Learned):
        return released.weights, released.noise_std.get("weights", 0.0), "weights"
    if isinstance(released.statistic, HadamardRados):
        return released.values["sketch"][:, 0], released.noise_std["sketch"], "mean operator (bucket 0 of the sketch)"
    if "mean" in released.values:
        return released.values["mean"], released.noise_std["mean"], "mean operator"
    rados = released.values["rados"]
    return np.asarray(rados.mean(axis=0)), released.noise_std["rados"] / math.sqrt(len(rados)), "mean of the rados"


def report(result: RunResult) -> str:
    """A page that a data protection officer can read."""
    plan = result.plan
    weights = {str(name): float(weight) for name, weight in result.coefficients["weight"].items()}
    sections = [
        *privacy_sections(plan.statement, result.budget),
        _noise_section(result),
        Section("Coefficients", plot=bars(weights, "weight")),
        Section("All coefficients", rows=[(n, f"{w:+.6g}") for n, w in weights.items()], folded=True),
        Section("How it was made", rows=_made(plan, result)),
    ]
    if result.notes:
        sections.append(Section("Notes", text="; ".join(result.notes)))
    return render_page(f"{plan.pipeline.dataset}: a linear classifier", result.run, plan.statement, sections)


def privacy_sections(statement: PrivacyStatement, budget: dict[str, Any]) -> list[Section]:
    """Who was protected, by what, and the state of the budget."""
    if not statement.private:
        warning = "Nobody. This is a baseline from exact sums; do not publish it where the rows are private."
        return [Section("What was protected, and for whom", text=warning)]
    assert statement.relation is not None
    protected = [
        ("protected", f"{statement.unit}, with up to {statement.rows_per_unit} row(s)"),
        ("neighbouring lakes", statement.relation.meaning(statement.rows_per_unit)),
        ("guarantee", f"epsilon {statement.epsilon:g}, delta {statement.delta:g}"),
        ("mechanism", f"{statement.mechanism}: {statement.theorem}"),
        ("accountant", statement.accountant),
        ("it assumes", "; ".join(statement.assumptions)),
    ]
    about = [Section("What was protected, and for whom", rows=protected)]
    if not budget:  # protected before it came here: no ledger of ours was debited
        return about
    state = [
        ("limit", f"epsilon {budget['limit_epsilon']:g}, delta {budget['limit_delta']:g}"),
        ("spent so far", f"epsilon {budget['spent_epsilon']:.4g} at the limit's delta ({budget['accountant']})"),
        ("left", f"epsilon {budget['left_epsilon']:.4g} for one more pure release"),
    ]
    return [*about, Section("Budget", rows=state)]


def _noise_section(result: RunResult) -> Section:
    plan = result.plan
    if plan.facts is not None:
        return Section("Noise against signal", rows=list(forecast(plan)))
    values, std, what = signal_and_noise(result)
    plot = bars(
        dict(zip(plan.pipeline.domain.feature_names, values.tolist(), strict=True)), f"released {what}", noise=std
    )
    if plan.mechanism is None:
        return Section("Noise against signal", text="No noise was added.", plot=plot)
    length, alone = float(np.linalg.norm(values)), std * float(np.sqrt(len(values)))
    return Section(
        "Noise against signal",
        text=f"The released {what} has length {length:.4g}; noise alone would have length about {alone:.4g}.",
        header=("released", "entries", "noise, standard deviation", "moves an entry"),
        rows=[
            (
                row["block"],
                f"{row['entries']:,}",
                f"{row['std']:.4g}",
                hint(row["rows"]) if row["std"] else "public: no noise needed",
            )
            for row in plan.noise()
        ],
        plot=plot,
    )


def _made(plan: Plan, result: RunResult) -> list[tuple[str, str]]:
    grid = f"on a 2^-{plan.lattice.bits} grid of the norm bound {plan.lattice.norm_bound:g}"
    details = "".join(
        f"; {key.replace('_', ' ')} {value:g}"
        if isinstance(value, int | float)
        else f"; {key.replace('_', ' ')} {value}"
        for key, value in result.model.details.items()
    )
    statistic = plan.statistic
    summed = f"{statistic.name}, {statistic.size:,} integers {grid}" if statistic is not None else "the learner's own"
    return [
        ("statistic", summed),
        ("learner", plan.learner.name + details),
        ("rows", f"{result.rows:,}" if result.rows is not None else "secret under this relation"),
        ("domain", f"{plan.pipeline.domain.width} features, sha256 {plan.pipeline.domain.digest()[:16]}…"),
        (
            "seconds" if result.rows is not None else "seconds, at most",
            ", ".join(f"{stage} {value:g}" for stage, value in _seconds(result).items()),
        ),
    ]


def _seconds(result: RunResult) -> dict[str, float]:
    return published_seconds(result.seconds, rows_public=result.rows is not None)
