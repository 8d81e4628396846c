"""kind: queries. Counting queries by private multiplicative weights, in a batch or one after another from Python."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field, field_validator, model_validator

from daskrado.cluster import connect
from daskrado.engines.queries import Answer, Calibration, PrivateQueries, WeightsPlan
from daskrado.errors import LedgerError, UsageError
from daskrado.jobs.measure.base import ROLE, MeasurePipeline, plan_head, reserved, statement_of, write_pages
from daskrado.jobs.measure.synthetic import synthetic_rows
from daskrado.jobs.page import Section, draw
from daskrado.jobs.pipeline_job import PipelineJob
from daskrado.lake.collect import Progress, collect
from daskrado.lake.scan import Lake, open_lake
from daskrado.ledger.account import Account, lost
from daskrado.ledger.charging import Clock
from daskrado.ledger.journal import Journal
from daskrado.ledger.ledger import Grant, Ledger, State
from daskrado.ledger.opening import open_account
from daskrado.privacy.accountant import compose
from daskrado.privacy.statement import PrivacyStatement
from daskrado.statistics.counts import Histogram
from daskrado.statistics.universe import Universe
from daskrado.table.lattice import Lattice
from daskrado.table.yaml_file import read_yaml, write_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

THEOREM = "private multiplicative weights from a sparse vector (Hardt and Rothblum 2010), optimal composition"
Query = Mapping[str, Any]


class QueriesPipeline(MeasurePipeline):
    """``universe`` names declared columns; ``queries`` lists conjunctions, or names a YAML or Parquet file."""

    universe: tuple[str, ...] = Field(min_length=1)
    queries: tuple[dict[str, Any], ...] = ()
    updates: int = Field(default=30, ge=1, le=10_000)
    expected: int | None = Field(default=None, ge=1, description="questions to be ready for, when not only the batch")
    threshold: int | None = Field(default=None, ge=1, description="in rows; by default from the noise")
    synthetic_rows: int | None = Field(default=None, ge=1, le=100_000_000)
    synthetic_seed: int = Field(default=0, ge=0)

    @field_validator("queries", mode="before")
    @classmethod
    def _read_queries(cls, value: Any) -> Any:
        return read_queries(value) if isinstance(value, str | Path) else value

    @model_validator(mode="after")
    def _check_universe(self) -> QueriesPipeline:
        if not self.private:
            raise ValueError("exact counts need no engine: kind queries is always private")
        try:
            made = Universe.of(self.domain, self.universe)
            for query in self.queries:
                made.cells(query)
            self.plan()
        except UsageError as error:
            raise ValueError(str(error)) from error
        return self

    def plan(self) -> WeightsPlan:
        """The engine's public plan."""
        assert self.protect is not None
        assert self.budget is not None
        return WeightsPlan(
            Universe.of(self.domain, self.universe),
            self.protect.relation,
            self.budget.epsilon,
            self.budget.delta,
            updates=self.updates,
            queries=self.expected or max(1, len(self.queries)),
            threshold=self.threshold,
            rows_per_unit=self.protect.rows_per_unit,
        )

    def statement(self, calibration: Calibration) -> PrivacyStatement:
        """What the engine's answers protect."""
        assert self.budget is not None
        total = compose(calibration.events, self.budget.delta)
        return statement_of(
            self,
            epsilon=float(total.epsilon),
            delta=0.0 if total.method == "basic" else self.budget.delta,
            mechanism="private multiplicative weights",
            theorem=THEOREM,
            accountant=total.method,
        )


def read_queries(path: str | Path) -> list[dict[str, Any]]:
    """A batch of queries: a YAML list of mappings, or a Parquet file with a row for each query (null: any value)."""
    if str(path).endswith((".parquet", ".pq")):
        try:
            rows = pq.read_table(path).to_pylist()
        except (OSError, pa.ArrowException) as error:
            raise ValueError(f"{path}: cannot be read as Parquet") from error
        return [{key: value for key, value in row.items() if value is not None} for row in rows]
    content = read_yaml(path)
    if not isinstance(content, list) or not all(isinstance(item, dict) for item in content):
        raise ValueError(f"{path}: must hold a list of queries, each a mapping of columns to values")
    return content


@contextlib.contextmanager
def open_queries(
    pipeline: QueriesPipeline,
    *,
    ledger_path: str | Path | None = None,
    progress: Progress | None = None,
    journal: str | Path | None = None,
) -> Iterator[PrivateQueries]:
    """Reserve, count the cells over partitions, spend, and give an engine that answers adaptive queries.

    ``journal`` is a folder for what was answered. With one that exists, the engine goes on where it was, on the
    charge that it had: same lake, same settings, same ledger, or it is refused. Keep it with the ledger: who could
    put an older copy back could ask again without paying.
    """
    with (
        open_account("queries", pipeline, overwrite=False, ledger_path=ledger_path, write=False) as account,
        contextlib.nullcontext() if journal is None else account.engine_journal(Path(journal), {}) as kept,
        _engine(pipeline, account, Clock(), progress, kept) as (engine, _),
    ):
        yield engine


@contextlib.contextmanager
def _engine(
    pipeline: QueriesPipeline, account: Account, clock: Clock, progress: Progress | None, journal: Journal | None
) -> Iterator[tuple[PrivateQueries, Grant]]:
    """The engine and what pays for it. A journal holds every draw, so that it goes on after a crash."""
    calibration = pipeline.plan().calibrated()
    histogram = Histogram(pipeline.domain.width, calibration.plan.universe)
    with clock("scan"):
        lake = open_lake(pipeline.lake, pipeline.domain)
    grant = None if journal is None else _earlier_grant(account, pipeline, calibration, lake, journal)
    if grant is None:
        grant = reserved(account, pipeline, lake, calibration.event, THEOREM)
        if journal is not None:
            journal.granted(ROLE, grant)
    with connect(pipeline.cluster, lake.size) as client, clock("collect"):
        lattice = Lattice(pipeline.domain.norm_bound)
        summary = collect(histogram, lake, pipeline.domain, lattice, client=client, progress=progress)
    if journal is not None and account.spent(grant) and not journal.has_lines("answers"):
        raise LedgerError(f"{journal.place('answers.jsonl')}: is gone, with what was answered; {lost(account.run)}")
    facts = {"dataset": pipeline.dataset, "entry": grant.entry}
    with PrivateQueries(calibration, summary, journal, facts, partial(account.spend, grant)) as engine:
        yield engine, grant


def _earlier_grant(
    account: Account, pipeline: QueriesPipeline, calibration: Calibration, lake: Lake, journal: Journal
) -> Grant | None:
    """The charge that an engine's own journal goes on with, if it is this lake's and this engine's."""
    if journal is account.journal or ROLE not in journal.paid:
        return None
    number, run = journal.paid[ROLE]
    entry, wanted = account.entry(number), (run, pipeline.dataset, calibration.plan.relation, calibration.event)
    if (
        entry is None
        or entry.state is State.VOID
        or (entry.run, entry.dataset, entry.relation, entry.event) != wanted
    ):
        ledger = account.ledger.path
        raise UsageError(f"journal: the ledger {ledger} has no charge that fits it; start a new journal")
    if entry.fingerprint != lake.fingerprint:
        raise UsageError("journal: the lake has changed since it was charged; start a new journal")
    return account.adopt(ROLE, entry)


@dataclass(frozen=True)
class QueriesResult:
    """What a batch leaves behind: all of it released. Queries after the halt are answered by what was public then."""

    run: str
    answers: list[Answer]
    calibration: Calibration
    statement: PrivacyStatement
    budget: dict[str, Any]
    updates: int
    halted_at: int | None
    synthetic: Any
    rows: int
    seconds: dict[str, float]
    notes: tuple[str, ...]


def run_queries(
    pipeline: QueriesPipeline,
    *,
    overwrite: bool = False,
    ledger_path: str | Path | None = None,
    progress: Progress | None = None,
    write: bool = True,
    account: Account | None = None,
) -> QueriesResult:
    """Answer the pipeline's batch and publish answers, the synthetic histogram and, if asked, synthetic rows."""
    if not pipeline.queries:
        raise UsageError("queries: the batch is empty; list at least one, or use open_queries from Python")
    with open_account(
        "queries", pipeline, overwrite=overwrite, ledger_path=ledger_path, write=write, account=account
    ) as account:
        result = _answered(pipeline, account, progress)
        if write:
            with account.publish(pipeline.output) as folder:
                _write(result, pipeline, folder)
    return result


def _answered(pipeline: QueriesPipeline, account: Account, progress: Progress | None) -> QueriesResult:
    clock = Clock()
    with _engine(pipeline, account, clock, progress, account.journal) as (engine, grant):
        answers, halted_at = engine.given, None
        with clock("answer"):
            for position in range(len(answers), len(pipeline.queries)):
                if engine.halted and halted_at is None:
                    halted_at = position
                query = pipeline.queries[position]
                answers.append(engine.estimate(query) if engine.halted else engine.give(query))
                if progress is not None:
                    progress(position + 1, len(pipeline.queries))
        return QueriesResult(
            account.run,
            answers,
            engine.calibration,
            pipeline.statement(engine.calibration),
            account.budget(grant),
            engine.updates,
            halted_at,
            engine.synthetic,
            engine.rows,
            clock.seconds,
            account.notes,
        )


def _write(result: QueriesResult, pipeline: QueriesPipeline, folder: Path) -> None:
    rows = [
        {"query": dict(query), "count": round(answer.count, 3), "fraction": answer.fraction, "lazy": answer.lazy}
        for query, answer in zip(pipeline.queries, result.answers, strict=True)
    ]
    write_text(folder / "answers.json", json.dumps(rows, indent=1, default=str) + "\n")
    if pipeline.synthetic_rows is not None:
        made = synthetic_rows(pipeline.domain, result.calibration.plan.universe, result.synthetic)
        (folder / "synthetic").mkdir()
        table = made(pipeline.synthetic_rows, pipeline.synthetic_seed)
        pq.write_table(table, folder / "synthetic" / "part-00000.parquet", compression="zstd")
    facts = engine_facts(result.calibration) | {
        "updates_used": result.updates,
        "halted_at": result.halted_at,
        "queries": len(result.answers),
    }
    write_pages(
        folder,
        title=f"{pipeline.dataset}: {len(rows):,} counting queries",
        run=result.run,
        pipeline=pipeline,
        statement=result.statement,
        event=result.calibration.event,
        budget=result.budget,
        facts=facts,
        sections=_sections(result, pipeline.queries, facts),
        seconds=result.seconds,
        notes=result.notes,
    )


def engine_facts(calibration: Calibration) -> dict[str, Any]:
    """Public facts about noise and threshold."""
    return {
        "cells": calibration.plan.universe.size,
        "updates_allowed": calibration.plan.updates,
        "threshold_rows": calibration.threshold,
        "lazy_error_95": calibration.accuracy(),
        "update_answer_std": calibration.answer_std,
    }


def _sections(result: QueriesResult, queries: Sequence[Query], facts: dict[str, Any]) -> list[Section]:
    def paint(axes: Axes) -> None:
        for lazy, colour, name in (
            (True, "#2b6cb0", "lazy: from the public histogram"),
            (False, "#c05621", "update"),
        ):
            points = [(i, a.count) for i, a in enumerate(result.answers) if a.lazy is lazy]
            if points:
                axes.plot(*zip(*points, strict=True), ".", markersize=3, color=colour, label=name)
        axes.set_xlabel("query")
        axes.set_ylabel("released count")
        axes.legend(fontsize=8, frameon=False)

    said = f"{result.updates} of {facts['updates_allowed']} updates were used."
    if result.halted_at is not None:
        said += f" The engine halted before query {result.halted_at + 1}; later ones read the public histogram."
    shown = [
        (
            ", ".join(f"{k} = {v}" for k, v in query.items()) or "all",
            f"{a.count:,.0f}",
            "lazy" if a.lazy else "update",
        )
        for query, a in list(zip(queries, result.answers, strict=True))[:100]
    ]
    return [
        Section("Answers", text=said, plot=draw(paint)),
        Section("The first hundred", header=("query", "count", "kind"), rows=shown, folded=True),
        Section(
            "Engine", rows=[(k.replace("_", " "), f"{v:,.6g}" if v is not None else "no") for k, v in facts.items()]
        ),
    ]


class QueriesJob(PipelineJob[QueriesPipeline]):
    """``kind: queries`` for ``daskrado plan`` and ``daskrado run``."""

    schema = QueriesPipeline
    runner = staticmethod(run_queries)

    def plan_lines(self, ledger: Ledger | None) -> Iterator[str]:
        """Cost, threshold and noise."""
        calibration = self.pipeline.plan().calibrated()
        yield from plan_head(self.pipeline, calibration.event, ledger)
        facts = engine_facts(calibration)
        yield f"universe    {facts['cells']:,} cells of {', '.join(self.pipeline.universe)}"
        yield f"engine      {facts['updates_allowed']} updates, at gaps above {facts['threshold_rows']:,} rows"
        yield f"accuracy    lazy answers within {facts['lazy_error_95']:,} rows (95 %, all expected queries)"
        yield f"noise       on an update's answer: standard deviation {facts['update_answer_std']:,.1f} rows"

    def lines(self, result: QueriesResult) -> Iterator[str]:
        """The first answers."""
        return _lines(result, self.pipeline)


def _lines(result: QueriesResult, pipeline: QueriesPipeline) -> Iterator[str]:
    yield result.statement.sentence()
    yield f"{len(result.answers):,} queries answered; {result.updates} updates of {pipeline.updates} used"
    if result.halted_at is not None:
        yield f"the engine halted before query {result.halted_at + 1}; later answers read the public histogram"
    for query, answer in list(zip(pipeline.queries, result.answers, strict=True))[:5]:
        yield f"  {answer.count:12,.0f}  {', '.join(f'{k}={v}' for k, v in query.items()) or 'all rows'}"
    yield from result.notes
    made = ", synthetic/" if pipeline.synthetic_rows is not None else ""
    yield f"written to {pipeline.output}: answers.json, manifest.json, report.html{made}"
