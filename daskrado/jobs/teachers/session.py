"""A session with the teachers of a data set: trained when first needed, kept in memory, asked through the engine."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from daskrado.cluster import connect
from daskrado.engines.answers import answering
from daskrado.engines.votes import NEXT_ENGINE, EngineFacts, VoteEngine, open_engine
from daskrado.errors import DataError
from daskrado.jobs.pipeline_job import Progress
from daskrado.jobs.teachers.config import Aside, TeachersPipeline
from daskrado.jobs.teachers.plan import TeachersPlan, check_rows, make_plan, rehearse, with_mechanism, with_refusals
from daskrado.lake.ensemble import Ensemble, rows_aside, train
from daskrado.lake.scan import Lake, open_lake
from daskrado.lake.shards import check_places, encode_queries
from daskrado.lake.teachers import ERROR_UNIT, AsideRows, Course
from daskrado.learners.black_box import ObjectFactory
from daskrado.ledger.account import Account
from daskrado.ledger.charging import Clock
from daskrado.ledger.opening import open_account
from daskrado.table.encoding import needed_columns, type_problem


class Session:
    """Ask, look at the answers, ask again: queries may depend on earlier answers."""

    def __init__(
        self,
        plan: TeachersPlan,
        engine: VoteEngine,
        lake: Lake,
        client: Any,
        stack: contextlib.ExitStack,
        progress: Progress | None,
        notes: tuple[str, ...],
    ) -> None:
        self.plan = plan
        self.engine = engine
        self.notes = notes
        self.clock = Clock()
        self.error_rate: float | None = None
        self._lake = lake
        self._client = client
        self._stack = stack
        self._progress = progress
        self._ensemble: Ensemble | None = None
        if plan.pipeline.estimate_epsilon is None:
            engine.use(answering(plan.pipeline.answers.mechanism, plan.pipeline.terms(), engine.journal))
        elif engine.released_error is not None:
            self._calibrate(engine.released_error)

    def __repr__(self) -> str:
        return f"<Session with {self.plan.pipeline.teachers.count} teachers of {self.plan.pipeline.dataset!r}>"

    def ask(self, queries: pa.Table | pd.DataFrame) -> pd.Series:
        """The private label of each public row; None where the engine refused or has stopped."""
        labels = self.answer(encode_queries(self.plan.pipeline.domain, fitting(self.plan.pipeline, queries)))
        index = queries.index if isinstance(queries, pd.DataFrame) else None
        return pd.Series(self.label_values(labels), index=index, name="answer", dtype=object)

    def answer(self, x: NDArray[np.float64]) -> NDArray[np.int64]:
        """Class indices (or REFUSED, UNANSWERED) for encoded queries."""
        digests = [_digest(row) for row in x]
        if self.engine.known(digests):
            return self.engine.ask(digests, _never)
        self.engine.check(digests)
        self._get_ready()
        with self.clock("answer"):
            return self.engine.ask(digests, lambda at: self._teachers().votes(x[at]))

    def label_values(self, labels: NDArray[np.int64]) -> list[Any]:
        """The Domain's label values for class indices; None for what was not answered."""
        classes = self.plan.pipeline.all_classes
        return [classes[label] if label >= 0 else None for label in labels.tolist()]

    def aside(self) -> AsideRows:
        """The label-private queries: rows kept aside, without labels, at most as many as the engine answers."""
        with self.clock("aside"):
            return rows_aside(self._course(), self._lake, self.plan.pipeline.answers.queries, client=self._client)

    def _course(self) -> Course:
        pipeline = self.plan.pipeline
        return Course(pipeline.domain, pipeline.all_classes, pipeline.sharding, self.plan.factory)

    def _teachers(self) -> Ensemble:
        if self._ensemble is None:
            with self.clock("train"):
                self._ensemble = self._stack.enter_context(
                    train(self._course(), self._lake, client=self._client, progress=self._progress)
                )
        return self._ensemble

    def _get_ready(self) -> None:
        """Train, and where refusals are to be estimated, release the teachers' error and calibrate from it."""
        pipeline = self.plan.pipeline
        teachers = self._teachers()
        if pipeline.estimate_epsilon is not None and self.error_rate is None:
            measure, epsilon = teachers.error_units, pipeline.estimate_epsilon
            self._calibrate(
                self.engine.error_rate(measure, ERROR_UNIT, pipeline.teachers.count, pipeline.changed, epsilon)
            )

    def _calibrate(self, error: float) -> None:
        """Set the mechanism from a released error rate."""
        pipeline = self.plan.pipeline
        self.error_rate = error
        terms = pipeline.terms(with_refusals(pipeline, error))
        mechanism = answering(pipeline.answers.mechanism, terms, self.engine.journal)
        self.engine.use(mechanism)
        self.plan = with_mechanism(self.plan, mechanism)

    @property
    def run(self) -> str:
        """The run under which the ledger knows this session."""
        return self.engine.account.run

    def budget(self) -> dict[str, Any]:
        """The state of the budget."""
        return self.engine.account.budget(self.engine.grant)


@contextlib.contextmanager
def open_session(
    pipeline: TeachersPipeline,
    *,
    ledger_path: str | Path | None = None,
    progress: Progress | None = None,
    learner: Any = None,
    account: Account | None = None,
) -> Iterator[Session]:
    """The one engine of a data set, its lake and its workers, for the duration of the block.

    ``learner`` is an unfitted object with fit and predict that teaches in place of the pipeline's; workers must be
    able to import its class. The ledger is debited before any row is read. Whatever fails before the first noise is
    drawn gives the grant back.
    """
    plan, facts = make_plan(pipeline), pipeline.facts()
    if learner is not None:
        factory = ObjectFactory(learner)
        rehearse(pipeline, factory, "learner")
        plan, facts = replace(plan, factory=factory), {**facts, "learner": factory.path}
    with (
        open_account(
            "teachers", pipeline, overwrite=False, ledger_path=ledger_path, write=False, account=account
        ) as opened,
        _open_session(plan, facts, opened, progress) as session,
    ):
        yield session


@contextlib.contextmanager
def _open_session(
    plan: TeachersPlan, settings: dict[str, Any], account: Account, progress: Progress | None
) -> Iterator[Session]:
    pipeline = plan.pipeline
    binary = pipeline.classes is None
    lake = open_lake(pipeline.lake, pipeline.domain, label=binary, ids=pipeline.shard_by != "position")
    if not binary and pipeline.domain.label.column not in lake.schema.names:
        raise DataError(f"the lake has no label column {pipeline.domain.label.column!r}")
    if pipeline.shard_by == "position":
        check_places(lake, "teachers shard rows", "shard by the domain's id under another relation than replace_one")
    check_rows(pipeline, lake.rows)
    relation = pipeline.protect.relation
    account.same_lake(pipeline.lake, lake)
    account.first_limit(pipeline.ledger, pipeline.dataset, relation)
    facts = EngineFacts(pipeline.dataset, relation, plan.statement.theorem, lake.fingerprint, settings)
    with open_engine(account, facts, plan.event) as engine:
        if account.journal is not None:
            account.journal.remember(again=f"{NEXT_ENGINE} and run the pipeline again")
        if pipeline.estimate_epsilon is not None:
            engine.reserve_error_rate(pipeline.estimate_epsilon)
        with connect(pipeline.cluster, lake.size) as client, contextlib.ExitStack() as stack:
            yield Session(plan, engine, lake, client, stack, progress, account.notes)


def fitting(pipeline: TeachersPipeline, queries: pa.Table | pd.DataFrame) -> pa.Table:
    """Queries as an Arrow table whose columns fit the Domain; a DataError names the column that does not."""
    if isinstance(queries, pd.DataFrame):
        wanted = [name for name in needed_columns(pipeline.domain, label=False) if name in queries.columns]
        queries = pa.Table.from_pandas(queries[wanted], preserve_index=False)
    for name in needed_columns(pipeline.domain, label=False):
        if name not in queries.column_names:
            raise DataError(f"queries: column {name!r} is missing")
        if (problem := type_problem(pipeline.domain, name, queries.schema.field(name).type)) is not None:
            raise DataError(f"queries: column {name!r} {problem}")
    return queries


def is_label_private(pipeline: TeachersPipeline) -> bool:
    """Whether the queries are rows of the lake itself."""
    return isinstance(pipeline.queries, Aside)


def _digest(row: NDArray[np.float64]) -> str:
    return hashlib.blake2b(row.tobytes(), digest_size=16).hexdigest()


def _never(at: NDArray[np.int64]) -> Any:
    raise AssertionError(f"{len(at)} queries need votes, though all were answered before")
