"""Runs of kind ``teachers``: answer the queries, train the student, publish; or answer a file of queries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from daskrado.engines.answers import REFUSED
from daskrado.engines.votes import NEXT_ENGINE
from daskrado.errors import DataError, UsageError
from daskrado.jobs.pipeline_job import PipelineJob, Progress
from daskrado.jobs.teachers.config import TeachersPipeline
from daskrado.jobs.teachers.plan import TeachersPlan, make_plan, plan_lines
from daskrado.jobs.teachers.report import write_artefacts
from daskrado.jobs.teachers.session import Session, fitting, is_label_private, open_session
from daskrado.jobs.teachers.student import Student, train_student
from daskrado.lake.scan import open_lake
from daskrado.lake.shards import encode_queries
from daskrado.ledger.account import Account
from daskrado.ledger.ledger import Ledger
from daskrado.ledger.opening import open_account
from daskrado.table.encoding import needed_columns

STATES = {0: "answered", REFUSED: "refused"}


@dataclass(frozen=True)
class TeachersResult:
    """What a teachers job leaves behind: all of it publishable."""

    plan: TeachersPlan
    run: str
    student: Student
    queries: NDArray[np.float64]
    labels: NDArray[np.int64]
    answers: pa.Table
    counts: dict[str, int]
    budget: dict[str, Any]
    seconds: dict[str, float]
    error_rate: float | None
    refusals: int
    notes: tuple[str, ...]


def run(
    pipeline: TeachersPipeline,
    *,
    overwrite: bool = False,
    ledger_path: str | Path | None = None,
    progress: Progress | None = None,
    write: bool = True,
    account: Account | None = None,
) -> TeachersResult:
    """Answer the pipeline's queries, train a student on them, and publish both.

    The engine has a journal of its own, which holds every draw: a run that was cut off asks it again.
    """
    if pipeline.queries is None:
        raise UsageError("queries is missing: an address of public rows, or {aside: SHARE} under label_flip")
    with open_account(
        "teachers", pipeline, overwrite=overwrite, ledger_path=ledger_path, write=write, account=account
    ) as account:
        result = _answered(pipeline, account, progress)
        if write:
            with account.publish(pipeline.output) as folder:
                write_artefacts(result, folder)
    return result


def _answered(pipeline: TeachersPipeline, account: Account, progress: Progress | None) -> TeachersResult:
    table = None if is_label_private(pipeline) else read_queries(pipeline, pipeline.queries)
    with open_session(pipeline, progress=progress, account=account) as session:
        if table is None:
            aside = session.aside()
            x = aside.x
            # By which answers are joined to rows: counted from 0 over the lake's files in the order of their names.
            table = pa.table({"row": aside.position})
        else:
            x = encode_queries(pipeline.domain, table)
        labels = session.answer(x)
        try:
            student = train_student(
                session.plan.student,
                pipeline.domain,
                pipeline.all_classes,
                session.plan.statement,
                x,
                labels,
                pipeline.student.refused,
            )
        except DataError as error:
            account.final = True  # the engine keeps the answers, and no student learns from them another time
            left = session.engine.left_afterwards
            more = f"{left} further ones may be asked on the same charge"
            error.add_note(f"answers are kept; {more if left else f'for other queries {NEXT_ENGINE}, charged anew'}")
            raise
        return TeachersResult(
            session.plan,
            session.run,
            student,
            x,
            labels,
            answered_table(session, table, labels),
            session.engine.counts,
            session.budget(),
            session.clock.seconds,
            session.error_rate,
            session.engine.answering.terms.refusals,
            session.notes,
        )


def ask(
    pipeline: TeachersPipeline,
    queries: Any,
    out: str | Path,
    *,
    overwrite: bool = False,
    ledger_path: str | Path | None = None,
    progress: Progress | None = None,
) -> dict[str, int]:
    """Answer a Parquet file of public queries into another; a refused query has a null answer. Returns counts.

    ``left`` new queries may be asked later; a sparse vector draws one of its remaining ``thresholds`` for each
    session and each refusal.
    """
    target = Path(out)
    if target.exists() and not overwrite:
        raise UsageError(f"{target}: exists; choose another or pass --overwrite")
    if not target.parent.is_dir():
        raise UsageError(f"{target}: the folder {target.parent} does not exist")
    table = read_queries(pipeline, queries)
    x = encode_queries(pipeline.domain, table)
    with open_session(pipeline, ledger_path=ledger_path, progress=progress) as session:
        labels = session.answer(x)
        answers = answered_table(session, table, labels)
        temporary = target.with_name(f".{target.name}.{session.run}")
        try:
            pq.write_table(answers, temporary, compression="zstd")
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
        refused = int((labels == REFUSED).sum())
        answered = int((labels >= 0).sum())
        left, thresholds = session.engine.left_afterwards, session.engine.refusals_left
    counts = {"answered": answered, "refused": refused, "stopped": len(labels) - answered - refused, "left": left}
    return counts if thresholds is None else {**counts, "thresholds": thresholds}


def read_queries(pipeline: TeachersPipeline, source: Any) -> pa.Table:
    """Public rows from an address, checked against the Domain before anything is spent."""
    lake = open_lake(source, pipeline.domain, label=False)
    names = needed_columns(pipeline.domain, label=False)
    tables = [table for partition in lake.partitions for _, table in partition.tables(names)]
    return fitting(pipeline, pa.concat_tables(tables, promote_options="permissive"))


def answered_table(session: Session, table: pa.Table, labels: NDArray[np.int64]) -> pa.Table:
    """The queries with their private answer (null where there is none) and what became of each."""
    answers = pa.array(session.label_values(labels), type=pa.array(list(session.plan.pipeline.all_classes)).type)
    states = [STATES.get(min(label, 0), "stopped") for label in labels.tolist()]
    return table.append_column("answer", answers).append_column("state", pa.array(states, pa.string()))


class TeachersJob(PipelineJob[TeachersPipeline]):
    """The ``teachers`` kind of pipeline."""

    schema = TeachersPipeline
    runner = staticmethod(run)

    def plan_lines(self, ledger: Ledger | None) -> Iterator[str]:
        """Cost and prospects."""
        return plan_lines(make_plan(self.pipeline), ledger)

    def lines(self, result: TeachersResult) -> Iterator[str]:
        """Queries, budget, student."""
        return run_lines(result)


def run_lines(result: TeachersResult) -> Iterator[str]:
    """The summary of a run."""
    plan, counts = result.plan, result.counts
    yield plan.statement.sentence()
    yield (
        f"{counts['asked']:,} of {plan.pipeline.answers.queries:,} queries asked: {counts['answered']:,} answered, "
        f"{counts['refused']:,} refused"
    )
    if result.error_rate is not None:
        yield f"teachers' released error: {result.error_rate:.4f}; the engine stops at {result.refusals} refusals"
    yield (
        f"budget of {result.budget['dataset']}: epsilon {result.budget['spent_epsilon']:.4g} of "
        f"{result.budget['limit_epsilon']:g} spent, {result.budget['left_epsilon']:.4g} left"
    )
    yield from result.notes
    seconds = ", ".join(f"{stage} {value:g} s" for stage, value in result.seconds.items())
    made = "model.json" if result.student.model is not None else "student.pickle"
    yield f"{seconds or 'all answers from the journal'}; written to {plan.pipeline.output}:"
    yield f"  {made}, answers.parquet, manifest.json, report.html"
