"""What a teachers run publishes: student, answers, manifest.json and report.html, all from private answers."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq

import daskrado
from daskrado.engines.answers import REFUSED
from daskrado.jobs.old_report import privacy_sections
from daskrado.jobs.report import Section, bars, draw, render_page
from daskrado.ledger.charging import published_seconds
from daskrado.privacy.accountant import event_to_json
from daskrado.table.yaml_file import write_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from daskrado.jobs.teachers.job import TeachersResult

MANIFEST_SCHEMA = "daskrado.teachers/1"


def write_artefacts(result: TeachersResult, folder: Path) -> None:
    """Write everything that a run publishes."""
    name = result.student.save(folder)
    pq.write_table(result.answers, folder / "answers.parquet", compression="zstd")
    digest = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    content = {**manifest(result), "student": name, "student_sha256": digest}
    write_text(folder / "manifest.json", json.dumps(content, indent=2, allow_nan=False) + "\n")
    write_text(folder / "report.html", report(result))


def manifest(result: TeachersResult) -> dict[str, Any]:
    """Everything public about a run; never a vote."""
    plan, pipeline = result.plan, result.plan.pipeline
    return {
        "schema": MANIFEST_SCHEMA,
        "daskrado": daskrado.__version__,
        "run": result.run,
        "dataset": pipeline.dataset,
        "privacy": plan.statement.model_dump(mode="json"),
        "privacy_in_words": plan.statement.sentence(),
        "event": event_to_json(plan.event),
        "error_rate_epsilon": pipeline.estimate_epsilon,
        "released_error_rate": result.error_rate,
        "refusals": result.refusals if pipeline.answers.mechanism == "sparse_vector" else None,
        "budget": result.budget,
        "teachers": pipeline.teachers.model_dump(mode="json"),
        "answers": pipeline.answers.model_dump(mode="json"),
        "student_learner": pipeline.student.model_dump(mode="json"),
        "classes": [str(c) for c in pipeline.all_classes],
        "counts": result.counts,
        "student_trained_on": result.student.trained_on,
        "domain_sha256": pipeline.domain.digest(),
        "seconds": _seconds(result),
        "notes": list(result.notes),
    }


def report(result: TeachersResult) -> str:
    """A page that a data protection officer can read."""
    plan, pipeline = result.plan, result.plan.pipeline
    sections = [
        *privacy_sections(plan.statement, result.budget),
        _answer_section(result),
        _margin_section(result),
    ]
    if result.student.model is not None:
        weights = {str(name): float(w) for name, w in result.student.model.coefficients.items()}
        sections.append(Section("The student's coefficients", plot=bars(weights, "weight")))
    sections.append(Section("How it was made", rows=_made(result)))
    if result.notes:
        sections.append(Section("Notes", text="; ".join(result.notes)))
    return render_page(f"{pipeline.dataset}: a student of private answers", result.run, plan.statement, sections)


def _seconds(result: TeachersResult) -> dict[str, float]:
    """Stage times, blurred where they would tell a secret number of rows."""
    public = result.plan.pipeline.protect.relation.rows_public
    return published_seconds(result.seconds, rows_public=public)


def _answer_section(result: TeachersResult) -> Section:
    shares = {str(c): int((result.labels == at).sum()) for at, c in enumerate(result.plan.pipeline.all_classes)}
    shares["refused"] = int((result.labels == REFUSED).sum())
    shares["not reached"] = int((result.labels < REFUSED).sum())
    total = max(1, len(result.labels))
    rows = [(name, f"{count:,}", f"{count / total:.1%}") for name, count in shares.items()]
    return Section("Private answers to public queries", header=("answer", "queries", "share"), rows=rows)


def _margin_section(result: TeachersResult) -> Section:
    """Margins of public queries as the published student sees them, by private answer; votes are never shown."""
    expected = result.plan.forecast
    text = (
        f"Votes are never published. A query gets most teachers' answer with probability 0.99 where they differ "
        f"by {expected.margin:,} votes of {result.plan.pipeline.teachers.count:,}."
    )
    scores = result.student.scores(result.queries)
    if scores is None:
        return Section("Margins", text=text)
    groups = {str(c): scores[result.labels == at] for at, c in enumerate(result.plan.pipeline.all_classes)}
    groups["refused"] = scores[result.labels == REFUSED]
    low, high = float(scores.min()), float(scores.max())
    edges = np.linspace(low, high if high > low else low + 1, 31)

    def paint(axes: Axes) -> None:
        kept = {name: values for name, values in groups.items() if len(values)}
        axes.hist(list(kept.values()), bins=edges.tolist(), stacked=True, label=list(kept))
        axes.axvline(0, color="#2d3748", linewidth=0.8)
        axes.set_xlabel("margin of the public query under the published student")
        axes.set_ylabel("queries")
        axes.legend(title="private answer", fontsize=8, frameon=False)

    return Section("Margins of the queries, through the private answers", text=text, plot=draw(paint))


def _made(result: TeachersResult) -> list[tuple[str, str]]:
    plan, pipeline = result.plan, result.plan.pipeline
    return [
        ("teachers", f"{pipeline.teachers.count:,}, shards by {pipeline.shard_by}, {pipeline.teachers.learner.kind}"),
        ("answers", f"{plan.mechanism.name}, {plan.mechanism.accountant}"),
        ("engine", ", ".join(f"{count:,} {name}" for name, count in result.counts.items())),
        ("student", f"{pipeline.student.learner.kind} on {result.student.trained_on:,} answered queries"),
        ("domain", f"{pipeline.domain.width} features, sha256 {pipeline.domain.digest()[:16]}…"),
        ("seconds", ", ".join(f"{stage} {value:g}" for stage, value in _seconds(result).items()) or "none"),
    ]
