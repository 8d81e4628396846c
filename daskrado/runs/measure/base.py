"""What measuring jobs have in common: their YAML keys, the charge around a release, and what they publish."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from pydantic import Field, field_validator, model_validator

import daskrado
from daskrado.cluster import ClusterConfig
from daskrado.domain import Domain, Frozen, parse
from daskrado.lake.scan import Lake
from daskrado.models import write_text
from daskrado.privacy.accountant import Event, event_to_json
from daskrado.privacy.ledger import Grant, Ledger
from daskrado.runs.charging import opened_ledger, set_first_limit, void_unless_spent
from daskrado.runs.labels.access import changed
from daskrado.runs.page import Section, render_page
from daskrado.runs.pipeline import Budget, LedgerConfig, Protect, checked_lake, default_ledger, loaded_domain
from daskrado.runs.report import privacy_sections
from daskrado.statement import PrivacyStatement


class MeasurePipeline(Frozen):
    """Keys of every measuring job. ``private: false`` must be written out to get exact figures."""

    dataset: str = Field(pattern=r"^[A-Za-z0-9._-]{1,100}$")
    lake: Any
    domain: Domain
    output: str
    private: bool = True
    protect: Protect | None = None
    budget: Budget | None = None
    ledger: LedgerConfig = LedgerConfig()
    cluster: ClusterConfig = ClusterConfig()

    _read_domain = field_validator("domain", mode="before")(loaded_domain)
    _check_lake = field_validator("lake")(checked_lake)

    @model_validator(mode="after")
    def _check_privacy(self) -> MeasurePipeline:
        if not self.private and (self.protect is not None or self.budget is not None):
            raise ValueError("private: false protects nobody: drop protect and budget, or drop private: false")
        if self.private and (self.protect is None or self.budget is None):
            raise ValueError("protect and budget are missing; exact figures without protection say private: false")
        return self


PipelineT = TypeVar("PipelineT", bound=MeasurePipeline)


class MeasureJob(Generic[PipelineT]):
    """What every measuring job does the same for ``daskrado plan`` and ``daskrado run``."""

    schema: type[PipelineT]

    def __init__(self, pipeline: PipelineT) -> None:
        self.pipeline = pipeline

    @classmethod
    def load(cls, content: Any, where: str) -> Self:
        """Validate the YAML content."""
        return cls(parse(cls.schema, content, where))

    def overridden(self, cluster: ClusterConfig | None, output: str | None) -> Self:
        """The same job on other workers or with another output folder."""
        return type(self)(changed(self.pipeline, cluster, output))

    @property
    def ledger_path(self) -> Path:
        """The pipeline's ledger, else this user's."""
        return Path(self.pipeline.ledger.path) if self.pipeline.ledger.path else default_ledger()


@dataclass(frozen=True)
class Charge:
    """A reservation and the ledger that holds it."""

    ledger: Ledger
    grant: Grant
    notes: tuple[str, ...]

    def spend(self) -> None:
        """Mark it spent: call it just before noise is drawn."""
        self.ledger.spend(self.grant)


@contextlib.contextmanager
def charged(
    pipeline: MeasurePipeline, lake: Lake, event: Event, theorem: str, run: str, path: str | Path | None
) -> Iterator[Charge]:
    """Reserve an event before rows are read; it is given back if the block fails before :meth:`Charge.spend`."""
    assert pipeline.protect is not None
    relation = pipeline.protect.relation
    with opened_ledger(path, pipeline.ledger) as ledger:
        notes = set_first_limit(ledger, pipeline.ledger, pipeline.dataset, relation)
        grant = ledger.reserve(
            pipeline.dataset, relation, event, theorem=theorem, run=run, fingerprint=lake.fingerprint
        )
        with void_unless_spent(ledger, grant):
            yield Charge(ledger, grant, notes)


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
    yield f"protects    {pipeline.protect.unit}: {pipeline.protect.relation.meaning}"
    yield f"cost        {event}"
    relation = pipeline.protect.relation
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
        "seconds": seconds,
        "notes": list(notes),
    }
    write_text(folder / "manifest.json", json.dumps(manifest, indent=2, allow_nan=False) + "\n")
    parts = [*privacy_sections(statement, budget), *sections]
    if notes:
        parts.append(Section("Notes", text="; ".join(notes)))
    write_text(folder / "report.html", render_page(title, run, statement, parts))
