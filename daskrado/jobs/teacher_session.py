"""A session with the teachers of a data set: trained when first needed, kept in memory, asked through the engine."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from daskrado.engines.answers import REFUSED
from daskrado.engines.votes import NEXT_ENGINE, EngineFacts, VoteEngine, open_engine
from daskrado.errors import DataError, UsageError
from daskrado.jobs.base import Opening, Run, opened
from daskrado.lake.ensemble import Ensemble, rows_aside, train
from daskrado.lake.scan import is_address, open_lake
from daskrado.lake.shards import encode_queries
from daskrado.lake.teachers import ERROR_UNIT, AsideRows, Course
from daskrado.learners.black_box import BlackBox, PythonObject, rehearse
from daskrado.table.arrow_arrays import as_table
from daskrado.table.domain import Domain
from daskrado.table.encoding import needed_columns, type_problem

if TYPE_CHECKING:
    import pandas as pd

    from daskrado.jobs.teachers import TeachersJob

ANSWERS, ERROR_RATE = "answers", "error_rate"  # roles of the engine's charges
STATES = {0: "answered", REFUSED: "refused"}


class Session:
    """Ask, look at the answers, ask again: queries may depend on earlier answers."""

    def __init__(
        self, job: TeachersJob, run: Run, engine: VoteEngine, teacher: BlackBox, stack: contextlib.ExitStack
    ) -> None:
        self.job = job
        self.run = run
        self.engine = engine
        self.error_rate: float | None = None
        self._course = Course(job.domain, job.all_classes, job.sharding, teacher)
        self._stack = stack
        self._ensemble: Ensemble | None = None
        if job.estimate_epsilon is None:
            engine.use(job.answering(journal=engine.journal))
        elif engine.released_error is not None:
            self._calibrate(engine.released_error)

    def __repr__(self) -> str:
        return f"<Session with {self.job.count} teachers of {self.job.dataset!r}>"

    def ask(self, queries: Any) -> pd.Series:
        """The private label of each public row of a frame or a lake; None where the engine refused or has stopped."""
        import pandas as pd  # a plan does without

        self.run.check_public({"queries": queries})
        if is_address(queries):
            queries = read_queries(self.job.domain, queries)
        labels = self.answer(encode_queries(self.job.domain, fitting(self.job.domain, queries)))
        index = queries.index if isinstance(queries, pd.DataFrame) else None
        return pd.Series(self.label_values(labels), index=index, name="answer", dtype=object)

    def answer(self, x: NDArray[np.float64]) -> NDArray[np.int64]:
        """Class indices (or REFUSED, UNANSWERED) for encoded queries."""
        digests = [hashlib.blake2b(row.tobytes(), digest_size=16).hexdigest() for row in x]
        if self.engine.known(digests):
            return self.engine.ask(digests, _refuse_to_vote)
        self.engine.check(digests)
        teachers = self._trained()
        with self.run.clock("answer"):
            return self.engine.ask(digests, lambda at: teachers.votes(x[at]))

    def label_values(self, labels: NDArray[np.int64]) -> list[Any]:
        """The Domain's label values for class indices; None for what was not answered."""
        classes = self.job.all_classes
        return [classes[label] if label >= 0 else None for label in labels.tolist()]

    def answered_table(self, table: pa.Table, labels: NDArray[np.int64]) -> pa.Table:
        """The queries with their private answer (null where there is none) and what became of each."""
        answers = pa.array(self.label_values(labels), type=pa.array(list(self.job.all_classes)).type)
        states = [STATES.get(min(label, 0), "stopped") for label in labels.tolist()]
        return table.append_column("answer", answers).append_column("state", pa.array(states, pa.string()))

    def aside(self) -> AsideRows:
        """The label-private queries: rows kept aside, without labels, at most as many as the engine answers."""
        with self.run.clock("aside"):
            return rows_aside(self._course, self.run.lake, self.job.answers.queries, client=self.run.client)

    def _trained(self) -> Ensemble:
        """The teachers; where refusals are to be estimated, their error is released and the engine calibrated."""
        if self._ensemble is None:
            with self.run.clock("train"):
                self._ensemble = self._stack.enter_context(
                    train(self._course, self.run.lake, client=self.run.client, progress=self.run.progress)
                )
        job = self.job
        if job.estimate_epsilon is not None and self.error_rate is None:
            measure, epsilon = self._ensemble.error_units, job.estimate_epsilon
            self._calibrate(self.engine.error_rate(measure, ERROR_UNIT, job.count, job.changed, epsilon))
        return self._ensemble

    def _calibrate(self, error: float) -> None:
        """Set the mechanism from a released error rate."""
        self.error_rate = error
        self.engine.use(self.job.answering(self.job.refusals_for(error), self.engine.journal))


@contextlib.contextmanager
def open_session(job: TeachersJob, *, learner: Any = None, **how: Unpack[Opening]) -> Iterator[Session]:
    """The one engine of a data set, its lake and its workers, for the duration of the block.

    ``learner`` is an unfitted object with fit and predict that teaches in place of the pipeline's; workers must be
    able to import its class.
    """
    teacher = None if learner is None else PythonObject(learner)
    if teacher is not None:
        rehearse(teacher, "learner", job.domain, len(job.all_classes))
    with opened(job, write=False, **how) as run, session_of(job, run, teacher) as session:
        yield session


@contextlib.contextmanager
def session_of(job: TeachersJob, run: Run, teacher: BlackBox | None = None) -> Iterator[Session]:
    """The engine of a run, which is debited before any row is read.

    Whatever fails before the first noise is drawn voids the grant.
    """
    charge, account = run.charges[ANSWERS], run.account
    settings = job.engine_settings() | ({} if teacher is None else {"learner": teacher.title})
    fingerprint = run.lake.fingerprint
    account.first_limit(job.ledger, job.dataset, charge.debit.for_limit)
    theorem, whose = charge.statement.theorem, charge.debit.whose
    facts = EngineFacts(job.dataset, charge.relation, theorem, fingerprint, settings, whose)
    with open_engine(account, facts, charge.event) as engine, contextlib.ExitStack() as stack:
        run.grants[ANSWERS] = engine.grant
        if account.journal is not None:
            account.journal.remember(again=f"{NEXT_ENGINE} and run the pipeline again")
        if job.estimate_epsilon is not None:
            run.grants[ERROR_RATE] = engine.reserve_error_rate(job.estimate_epsilon)
        yield Session(job, run, engine, teacher or job.teachers.learner, stack)


def ask_file(job: TeachersJob, queries: Any, out: str | Path, **how: Unpack[Opening]) -> dict[str, int]:
    """Answer a Parquet file of public queries into another; a refused query has a null answer. Returns counts.

    ``left`` new queries may be asked later; a sparse vector draws one of its remaining ``thresholds`` for each
    session and each refusal.
    """
    target, overwrite = Path(out), how.pop("overwrite", False)
    if target.exists() and not overwrite:
        raise UsageError(f"{target}: exists; choose another or pass --overwrite")
    if not target.parent.is_dir():
        raise UsageError(f"{target}: the folder {target.parent} does not exist")
    table = read_queries(job.domain, queries)
    x = encode_queries(job.domain, table)
    with open_session(job if job.aside else job.model_copy(update={"queries": queries}), **how) as session:
        labels = session.answer(x)
        temporary = target.with_name(f".{target.name}.{session.run.account.run}")
        try:
            answered = session.answered_table(table, labels)
            pq.write_table(answered, temporary, compression="zstd", write_page_checksum=True)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
        left, thresholds = session.engine.left_afterwards, session.engine.refusals_left
    refused, answered = int((labels == REFUSED).sum()), int((labels >= 0).sum())
    counts = {"answered": answered, "refused": refused, "stopped": len(labels) - answered - refused, "left": left}
    return counts if thresholds is None else {**counts, "thresholds": thresholds}


def read_queries(domain: Domain, source: Any) -> pa.Table:
    """Public rows from an address, checked against the Domain before anything is spent."""
    lake = open_lake(source, domain, label=False, strict=True)
    names = needed_columns(domain, label=False)
    tables = [table for partition in lake.partitions for _, table in partition.tables(names)]
    return fitting(domain, pa.concat_tables(tables, promote_options="permissive"))


def fitting(domain: Domain, frame: Any) -> pa.Table:
    """Queries as an Arrow table whose columns fit the Domain; a DataError names the column that does not."""
    names, queries = needed_columns(domain, label=False), as_table(frame)
    if queries is None and not hasattr(frame, "columns"):
        raise UsageError(f"queries are public rows: give a frame or an address, not {type(frame).__name__}")
    if queries is None:
        there = [name for name in names if name in frame.columns]
        queries = pa.Table.from_pandas(frame[there], preserve_index=False)
    for name in names:
        if name not in queries.column_names:
            raise DataError(f"queries: column {name!r} is missing")
        if (problem := type_problem(domain, name, queries.schema.field(name).type)) is not None:
            raise DataError(f"queries: column {name!r} {problem}")
    return queries


def _refuse_to_vote(at: NDArray[np.int64]) -> Any:
    raise AssertionError(f"{len(at)} queries need votes, though all were answered before")
