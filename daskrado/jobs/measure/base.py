"""What measuring jobs have in common: their YAML keys, the charge around a release, and what they publish."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import model_validator

import daskrado
from daskrado.jobs.old_report import privacy_sections
from daskrado.jobs.pipeline import LakePipeline, check_protected
from daskrado.jobs.report import Section, render_page
from daskrado.lake.scan import Lake
from daskrado.ledger.account import Account
from daskrado.ledger.charging import published_seconds
from daskrado.ledger.config import LedgerConfig
from daskrado.ledger.ledger import Grant, Ledger
from daskrado.privacy.accountant import Event, event_to_json
from daskrado.privacy.protect import Budget, Protect
from daskrado.privacy.statement import PrivacyStatement
from daskrado.table.yaml_file import write_text

ROLE = "measure"


class MeasurePipeline(LakePipeline):
    """Keys of every measuring job. ``private: false`` must be written out to get exact figures."""

    private: bool = True
    protect: Protect | None = None
    budget: Budget | None = None
    ledger: LedgerConfig = LedgerConfig()

    @model_validator(mode="after")
    def _check_privacy(self) -> MeasurePipeline:
        check_protected(self.private, self.protect, self.budget, "exact figures")
        return self


def reserved(
    account: Account, pipeline: MeasurePipeline, lake: Lake, event: Event, theorem: str, room: int = 0
) -> Grant:
    """Reserve what a measuring job costs, before rows are read."""
    assert pipeline.protect is not None
    relation = pipeline.protect.relation
    account.same_lake(pipeline.lake, lake)
    account.first_limit(pipeline.ledger, pipeline.dataset, relation)
    return account.reserve(
        ROLE, pipeline.dataset, relation, event, theorem=theorem, fingerprint=lake.fingerprint, room=room
    )


def statement_of(
    pipeline: MeasurePipeline, *, epsilon: float, delta: float, mechanism: str, theorem: str, accountant: str
) -> PrivacyStatement:
    """The privacy statement of a measuring job."""
    assert pipeline.protect is not None
    protect = pipeline.protect
    return PrivacyStatement(
        private=True,
        relation=protect.relation,
        unit=protect.unit,
        rows_per_unit=protect.rows_per_unit,
        epsilon=epsilon,
        delta=delta,
        mechanism=mechanism,
        theorem=theorem,
        accountant=accountant,
        assumptions=(
            f"a protected unit ({protect.unit}) has at most {protect.rows_per_unit} row(s) in the lake",
            "the Domain (bounds, categories, bins) was not chosen by looking at this lake's rows",
        ),
    )


def plan_head(pipeline: MeasurePipeline, event: Event | None, ledger: Ledger | None) -> Iterator[str]:
    """Data set, cost, and the state of the budget."""
    yield f"data set    {pipeline.dataset}"
    if event is None or pipeline.protect is None:
        yield f"guarantee   {PrivacyStatement.none().sentence()}"
        return
    protect = pipeline.protect
    yield f"protects    {protect.unit}: {protect.relation.meaning(protect.rows_per_unit)}"
    yield f"cost        {event}"
    relation = protect.relation
    if ledger is not None and ledger.limit(pipeline.dataset, relation) is not None:
        after = ledger.after(pipeline.dataset, relation, event)
        yield f"left        epsilon {float(ledger.remaining(pipeline.dataset, relation).epsilon):.4g} before this run"
        yield f"after       epsilon {float(after.epsilon):.4g} charged in all ({after.method})"
    else:
        yield "limit       none set yet: the owner sets one with `daskrado ledger limit`, or first_limit does"


def write_pages(
    folder: Path,
    *,
    title: str,
    run: str,
    pipeline: MeasurePipeline,
    statement: PrivacyStatement,
    event: Event | None,
    budget: dict[str, Any],
    facts: dict[str, Any],
    sections: Sequence[Section],
    seconds: dict[str, float],
    notes: Sequence[str] = (),
) -> None:
    """manifest.json and report.html, from released and public values only."""
    manifest = {
        "schema": "daskrado.manifest/1",
        "daskrado": daskrado.__version__,
        "run": run,
        "dataset": pipeline.dataset,
        "privacy": statement.model_dump(mode="json"),
        "privacy_in_words": statement.sentence(),
        "event": None if event is None else event_to_json(event),
        "budget": budget,
        "domain_sha256": pipeline.domain.digest(),
        **facts,
        "seconds": published_seconds(
            seconds, rows_public=pipeline.protect is None or pipeline.protect.relation.rows_public
        ),
        "notes": list(notes),
    }
    write_text(folder / "manifest.json", json.dumps(manifest, indent=2, allow_nan=False) + "\n")
    parts = [*privacy_sections(statement, budget), *sections]
    if notes:
        parts.append(Section("Notes", text="; ".join(notes)))
    write_text(folder / "report.html", render_page(title, run, statement, parts))
