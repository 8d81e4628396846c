"""kind: queries. Counting queries by private multiplicative weights, in a batch or one after another from Python."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Unpack

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import Field, field_validator, model_validator

from daskrado.engines.queries import Answer, Calibration, PrivateQueries, WeightsPlan
from daskrado.errors import UsageError, about_the_key
from daskrado.jobs.base import Address, Charge, Line, Opening, Outcome, PrivateJob, Run, opened
from daskrado.jobs.report import Section, draw
from daskrado.lake.collect import Progress
from daskrado.ledger.journal import Journal
from daskrado.ledger.ledger import Grant, State
from daskrado.models.synthetic_rows import synthetic_rows
from daskrado.statistics.counts import Histogram
from daskrado.statistics.universe import Universe
from daskrado.table.lattice import Lattice
from daskrado.table.yaml_file import read_yaml, shown, write_text

ROLE = "engine"
MECHANISM = "private multiplicative weights"
THEOREM = "private multiplicative weights from a sparse vector (Hardt and Rothblum 2010), optimal composition"
LISTED = 100  # answers in a report
PRINTED = 5  # answers on a terminal
Query = Mapping[str, Any]


@dataclass(frozen=True)
class Answers:
    """What a batch leaves behind: all of it released. Queries after the halt are answered by what was public then."""

    queries: tuple[Query, ...]
    answers: tuple[Answer, ...]
    calibration: Calibration
    updates: int
    halted_at: int | None
    synthetic: NDArray[np.float64]
    rows: int

    def save(self, path: Path) -> None:
        """Write the answers as JSON."""
        rows = [
            {"query": dict(query), "count": round(answer.count, 3), "fraction": answer.fraction, "lazy": answer.lazy}
            for query, answer in self.pairs()
        ]
        write_text(path, json.dumps(rows, indent=1, default=str) + "\n")

    def pairs(self, most: int | None = None) -> list[tuple[Query, Answer]]:
        """The first queries with their answers."""
        return list(zip(self.queries, self.answers, strict=True))[:most]

    def plot(self) -> str:
        """Released counts, in the order of the queries."""

        def paint(axes: Any) -> None:
            kinds = ((True, "#2b6cb0", "lazy: from the public histogram"), (False, "#c05621", "update"))
            for lazy, colour, name in kinds:
                points = [(i, a.count) for i, a in enumerate(self.answers) if a.lazy is lazy]
                if points:
                    axes.plot(*zip(*points, strict=True), ".", markersize=5, color=colour, label=name)

        return draw(paint, "query", "released count", legend="")


class QueriesJob(PrivateJob):
    """``universe`` names declared columns; ``queries`` lists conjunctions, or names a YAML or Parquet file."""

    name: ClassVar[str] = "queries"
    addresses: ClassVar[tuple[Address, ...]] = (("queries",),)
    reserves: ClassVar[bool] = False  # an engine may go on under the grant that it had
    counts_units: ClassVar[bool] = True

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
        found = read_queries(value) if isinstance(value, str | Path) else value
        if not isinstance(found, list | tuple):
            raise ValueError(f"must be a list of queries or the address of one, got {type(found).__name__}")
        for query in found:
            for column, wanted in query.items() if isinstance(query, Mapping) else ():
                for item in wanted if isinstance(wanted, list | tuple) else [wanted]:
                    if not isinstance(item, str | bool | int | float):
                        kind = type(item).__name__  # never what it holds: that may be rows
                        raise ValueError(f"{shown(column)} must be a value or a list of values, got {kind}")
        return found

    @model_validator(mode="after")
    def _check_universe(self) -> QueriesJob:
        if not self.private:
            raise ValueError("exact counts need no engine: kind queries is always private")
        with about_the_key():
            universe = Universe.of(self.domain, self.universe)
            for query in self.queries:
                universe.cells(query)
            self.weights_plan()
        return self

    def weights_plan(self) -> WeightsPlan:
        """The engine's public plan."""
        protect, budget = self.asked.protect, self.asked.budget
        return WeightsPlan(
            Universe.of(self.domain, self.universe),
            protect.relation,
            budget.epsilon,
            budget.delta,
            updates=self.updates,
            queries=self.expected or max(1, len(self.queries)),
            threshold=self.threshold,
            rows_per_unit=protect.rows_per_unit,
            units=protect.column is not None,
        )

    @cached_property
    def calibration(self) -> Calibration:
        """Noise and threshold: a search over compositions, for a plan, a charge and a run alike."""
        return self.weights_plan().calibrated()

    def charges(self) -> tuple[Charge, ...]:
        return (Charge.of(ROLE, self.calibration.events, self.asked, MECHANISM, THEOREM, self.assumptions),)

    def engine_facts(self) -> dict[str, Any]:
        """Public facts about noise and threshold."""
        return {
            "cells": self.calibration.plan.universe.size,
            "updates_allowed": self.updates,
            "threshold_rows": self.calibration.threshold,
            "lazy_error_95": self.calibration.accuracy(),
            "update_answer_std": self.calibration.answer_std,
        }

    def plan(self) -> Iterator[Line]:
        facts = self.engine_facts()
        yield "universe", f"{facts['cells']:,} cells of {', '.join(self.universe)}"
        yield "engine", f"{facts['updates_allowed']} updates, at gaps above {facts['threshold_rows']:,} rows"
        yield "accuracy", f"lazy answers within {facts['lazy_error_95']:,} rows (95 %, all expected queries)"
        yield "noise", f"on an update's answer: standard deviation {facts['update_answer_std']:,.1f} rows"

    @contextlib.contextmanager
    def engine(self, run: Run, journal: Journal | None) -> Iterator[PrivateQueries]:
        """Reserve, count the cells over partitions, and give the engine, which counts its draws.

        A journal holds every draw, so that it goes on after a crash.
        """
        earlier = None if journal is None else self._earlier_grant(run, journal)
        if earlier is not None:
            run.grants[ROLE] = earlier
        else:
            run.reserve()
            if journal is not None:
                journal.granted(ROLE, run.grants[ROLE])
        grant = run.grants[ROLE]
        with run.clock("collect"):
            histogram = Histogram(self.domain.width, self.calibration.plan.universe)
            summary = run.collect(histogram, Lattice(self.domain.norm_bound))
        facts = {"dataset": self.dataset, "entry": grant.entry}
        count, counted = partial(run.account.count, grant), run.account.ledger.draws(grant.entry)
        with PrivateQueries(self.calibration, summary, journal, facts, count, counted) as engine:
            yield engine

    def _earlier_grant(self, run: Run, journal: Journal) -> Grant | None:
        """The charge that an engine's own journal goes on with, if it is this lake's and this engine's."""
        account = run.account
        if journal is account.journal or ROLE not in journal.paid:
            return None
        number, payer = journal.paid[ROLE]
        entry, charge = account.entry(number), run.charges[ROLE]
        wanted = (payer, self.dataset, charge.debit.whose, charge.event)
        found = entry and (entry.run, entry.dataset, entry.whose, entry.event)
        if entry is None or entry.state is State.VOID or found != wanted:
            ledger = account.ledger.address
            raise UsageError(f"journal: the ledger {ledger} has no charge that fits it; start a new journal")
        if entry.fingerprint != account.ledger.keyed(run.lake.fingerprint):
            raise UsageError("journal: the lake has changed since it was charged; start a new journal")
        return account.adopt(ROLE, entry)

    def work(self, run: Run) -> Outcome:
        """Answer the batch; publish answers, the synthetic histogram's rows if asked, and what the engine did."""
        if not self.queries:
            raise UsageError("queries: the batch is empty; list at least one, or use open_queries from Python")
        with self.engine(run, run.account.journal) as engine, run.clock("answer"):
            found = self._answered(engine, run.progress)
        used = {"updates_used": found.updates, "halted_at": found.halted_at, "queries": len(found.answers)}
        facts = self.engine_facts() | used
        files = {"answers.json": found.save}
        if self.synthetic_rows is not None:
            files["synthetic"] = partial(self._save_rows, found, self.synthetic_rows)
        return Outcome(
            found,
            run.charges[ROLE].statement,
            facts=facts,
            lines=list(self._lines(found)),
            made=[("universe", f"{facts['cells']:,} cells of {', '.join(self.universe)}")],
            sections=lambda: self._sections(found, facts),
            files=files,
            title=f"{self.dataset}: {len(self.queries):,} counting queries",
        )

    def _answered(self, engine: PrivateQueries, progress: Progress | None) -> Answers:
        """All answers, after those that an interrupted run had given."""
        answers, halted_at = engine.given, None
        for position in range(len(answers), len(self.queries)):
            if engine.halted and halted_at is None:
                halted_at = position
            query = self.queries[position]
            answers.append(engine.estimate(query) if engine.halted else engine.give(query))
            if progress is not None:
                progress(position + 1, len(self.queries))
        made = (engine.calibration, engine.updates, halted_at, engine.synthetic, engine.rows)
        return Answers(self.queries, tuple(answers), *made)

    def _save_rows(self, found: Answers, rows: int, folder: Path) -> None:
        """Write synthetic rows: a lake of the universe's columns."""
        universe = found.calibration.plan.universe
        table = synthetic_rows(self.domain, universe, found.synthetic, rows, self.synthetic_seed)
        folder.mkdir()
        pq.write_table(table, folder / "part-00000.parquet", compression="zstd", write_page_checksum=True)

    def _lines(self, found: Answers) -> Iterator[str]:
        yield f"{len(found.answers):,} queries answered; {found.updates} updates of {self.updates} used"
        if found.halted_at is not None:
            yield f"the engine halted before query {found.halted_at + 1}; later answers read the public histogram"
        for query, answer in found.pairs(PRINTED):
            yield f"  {answer.count:12,.0f}  {_text(query, '=')}"

    def _sections(self, found: Answers, facts: Mapping[str, Any]) -> list[Section]:
        text = f"{found.updates} of {self.updates} updates were used."
        if found.halted_at is not None:
            text += f" The engine halted before query {found.halted_at + 1}; later ones read the public histogram."
        listed = [
            (_text(query, " = "), f"{answer.count:,.0f}", "lazy" if answer.lazy else "update")
            for query, answer in found.pairs(LISTED)
        ]
        engine = [(k.replace("_", " "), f"{v:,.6g}" if v is not None else "no") for k, v in facts.items()]
        return [
            Section(
                "Answers",
                text=f"{text} The table has the first {len(listed)} of {len(found.answers):,} answers.",
                plot=found.plot(),
                header=("query", "count", "kind"),
                rows=listed,
                folded=True,
            ),
            Section("Engine", rows=engine, detail=True),
        ]


@contextlib.contextmanager
def open_queries(
    job: QueriesJob, *, journal: str | Path | None = None, **how: Unpack[Opening]
) -> Iterator[PrivateQueries]:
    """An engine that answers adaptive queries.

    ``journal`` is a folder for what was answered. With one that exists, the engine goes on where it was, on the
    charge that it had: same lake, same settings, same ledger, or it is refused. An older copy of it
    answers nothing.
    """
    with (
        opened(job, write=False, **how) as run,
        contextlib.nullcontext() if journal is None else run.account.engine_journal(Path(journal), {}) as kept,
        job.engine(run, kept) as engine,
    ):
        yield engine


def _text(query: Query, equals: str) -> str:
    return ", ".join(f"{column}{equals}{value}" for column, value in query.items()) or "all rows"


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
