"""kind: teachers. Teachers on disjoint shards answer public queries in private; a student learns from the answers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache, partial
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field, model_validator

from daskrado.bounds.teachers import (
    CONFIDENCE,
    forecast,
    forecast_lines,
    refuse_if_hopeless,
    rows_per_teacher,
    theorem_refusals,
)
from daskrado.engines.answers import Answering, Terms, answering
from daskrado.engines.sparse_vector import MAX_INSTANCES
from daskrado.engines.votes import NEXT_ENGINE
from daskrado.errors import DataError, UsageError
from daskrado.jobs.base import Address, Charge, Line, Outcome, PrivateJob, Run
from daskrado.jobs.student import Student, train_student
from daskrado.jobs.teacher_findings import TeachersFindings
from daskrado.jobs.teacher_keys import AnswersConfig, Aside, StudentConfig, TeachersConfig
from daskrado.jobs.teacher_session import ANSWERS, ERROR_RATE, Session, read_queries, session_of
from daskrado.lake.scan import Lake, open_lake
from daskrado.lake.shards import KEPT_PLACE, Sharding, check_places, encode_queries
from daskrado.learners.black_box import rehearse
from daskrado.ledger.journal import Journal
from daskrado.privacy.accountant import Event, PureEvent
from daskrado.privacy.events import exact
from daskrado.privacy.protect import Budget, Protect
from daskrado.privacy.relations import Relation
from daskrado.privacy.statement import PrivacyStatement
from daskrado.table.domain import Scalar

TO_BE_ESTIMATED = "optimal composition of as many sparse-vector instances as the teachers' error asks for"


class TeachersJob(PrivateJob):
    """Train teachers, answer queries, publish the answers and a student."""

    name: ClassVar[str] = "teachers"
    title: ClassVar[str] = "{job.dataset}: a student of private answers"
    addresses: ClassVar[tuple[Address, ...]] = (("queries",),)
    reserves: ClassVar[bool] = False  # the engine may go on under the grant that it had

    output: str = "runs/teachers"
    private: Literal[True] = True
    protect: Protect
    budget: Budget
    queries: Aside | str | list[str] | None = None
    teachers: TeachersConfig
    answers: AnswersConfig
    student: StudentConfig = StudentConfig()
    classes: tuple[Scalar, ...] | None = None
    rows: int | None = Field(default=None, ge=1, description="rows that the owner expects, for the plan")

    @model_validator(mode="after")
    def _check(self) -> TeachersJob:
        if self.budget.delta == 0:
            raise ValueError("budget.delta must be above 0: answers to votes have no pure guarantee here")
        relation, by = self.protect.relation, self.shard_by
        if self.domain.id is None and (by != "position" or relation is Relation.ADD_REMOVE):
            raise ValueError("shards by record need the domain's id column; without one, use relation replace_one")
        if relation is Relation.ADD_REMOVE and by == "position":
            raise ValueError("shards by position shift when a row is added or removed: shard by the domain's id")
        if relation is Relation.REPLACE_ONE and by != "position":
            raise ValueError("a replaced record may bring another id and reach two shards: use shard_by: position")
        if self.aside and relation is not Relation.LABEL_FLIP:
            raise ValueError(f"queries.aside publishes features: only under relation label_flip, not {relation}")
        if self.classes is not None:
            pair = {self.domain.label.positive, self.domain.label.negative}
            if len(set(self.classes)) < len(self.classes) or len(self.classes) < 2 or not pair <= set(self.classes):
                raise ValueError("classes must be distinct label values and include the domain's two")
        return self

    @property
    def shard_by(self) -> str:
        """As given, else position under replace_one (or without an id) and the record's id elsewhere."""
        if self.teachers.shard_by is not None:
            return self.teachers.shard_by
        return "position" if self.protect.relation is Relation.REPLACE_ONE or self.domain.id is None else "record"

    @property
    def aside(self) -> float:
        """The share of the lake's rows that become queries."""
        return self.queries.aside if isinstance(self.queries, Aside) else 0.0

    @property
    def all_classes(self) -> tuple[Scalar, ...]:
        """The label values by class index: negative and positive unless more are declared."""
        return self.classes or (self.domain.label.negative, self.domain.label.positive)

    @property
    def changed(self) -> int:
        """How many teachers one protected unit reaches."""
        return 1 if self.shard_by == "unit" else self.protect.rows_per_unit

    @property
    def sharding(self) -> Sharding:
        """Which rows go where."""
        return Sharding(self.teachers.count, self.teachers.seed, self.shard_by != "position", self.aside)

    @property
    def estimate_epsilon(self) -> float | None:
        """What the private error estimate costs, where refusals are to be estimated."""
        if (chosen := self.answers.estimated) is None:
            return None
        return float(exact(self.budget.epsilon, "epsilon") * exact(chosen.share, "share"))

    @property
    def answer_epsilon(self) -> float:
        """What is left of epsilon for the answers: the largest that, as the ledger reads it, fits exactly."""
        if self.estimate_epsilon is None:
            return self.budget.epsilon
        rest = exact(self.budget.epsilon, "epsilon") - exact(self.estimate_epsilon, "epsilon")
        found = float(rest)
        while exact(found, "epsilon") > rest:
            found = math.nextafter(found, 0.0)
        return found

    def terms(self, refusals: int | None = None) -> Terms:
        """The terms of the answers; ``refusals`` where they are estimated."""
        chosen = self.answers.refusals
        return Terms(
            epsilon=self.answer_epsilon,
            delta=self.budget.delta,
            queries=self.answers.queries,
            refusals=refusals or (chosen if isinstance(chosen, int) else 1),
            changed=self.changed,
            published=self.answers.constants == "as_published",
        )

    def answering(self, refusals: int | None = None, journal: Journal | None = None) -> Answering:
        """The mechanism; for one refusal where those to be estimated are not known."""
        if journal is None:
            return _calibrated(self.answers.mechanism, self.terms(refusals))
        return answering(self.answers.mechanism, self.terms(refusals), journal)

    def refusals_for(self, error: float) -> int:
        """T from theorem 3.2 for a released error rate, at most what still lets unanimous teachers be heard.

        A function of released and public values only.
        """
        assert self.answers.estimated is not None
        low, high = 1, theorem_refusals(error, self.answers.queries, self.answers.estimated.beta)
        high = min(MAX_INSTANCES, high)
        while low < high:
            middle = (low + high + 1) // 2
            heard = self.answering(middle).chance(self.teachers.count) >= CONFIDENCE
            low, high = (middle, high) if heard else (low, middle - 1)
        return low

    def engine_settings(self) -> dict[str, Any]:
        """Public settings by which an engine is known again."""
        return {
            "engine": self.answers.engine,
            "mechanism": self.answers.model_dump(mode="json", exclude={"agreement", "engine"}),
            "budget": self.budget.model_dump(mode="json"),
            "teachers": self.teachers.model_dump(mode="json"),
            "changed": self.changed,
            "classes": [str(c) for c in self.all_classes],
            "domain": self.domain.digest(),
        }

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What every statement of the job takes for granted."""
        owned, *others = super().assumptions
        by = self.shard_by
        if by == "unit":
            owned = f"the id column names {self.protect.unit}: all of its rows have the same id"
        public = "queries are public: they hold nothing about the lake beyond what was released"
        if self.aside:
            public = "features are public; only labels are protected"
        dealt = {"record": "record ids do not depend on what the record holds", "position": KEPT_PLACE}
        return (owned, *others, public, *([dealt[by]] if by in dealt else []))

    def statement_of(self, mechanism: Answering) -> PrivacyStatement:
        """The guarantee of all that the engine releases, answered by this mechanism."""
        accountant, events = mechanism.accountant, [mechanism.event]
        if self.estimate_epsilon is not None:
            events.append(PureEvent(self.estimate_epsilon))
            accountant += f", plus epsilon {self.estimate_epsilon:g} for the teachers' error"
        return self._statement(events, mechanism, accountant)

    def _statement(self, events: list[Event], mechanism: Answering, accountant: str | None) -> PrivacyStatement:
        return PrivacyStatement.of(
            events,
            self.protect,
            self.budget,
            mechanism=mechanism.name,
            theorem=mechanism.theorem,
            assumptions=self.assumptions,
            accountant=accountant,
        )

    def charges(self) -> tuple[Charge, ...]:
        """One for all answers, and one for the error from which refusals follow; learners that fail are refused."""
        for where, box in (("teachers", self.teachers.learner), ("student", self.student.learner)):
            rehearse(box, f"{where}.learner", self.domain, len(self.all_classes))
        mechanism = self.answering()
        refuse_if_hopeless(mechanism, self.teachers.count, self.answers.agreement)
        accountant = mechanism.accountant if self.estimate_epsilon is None else TO_BE_ESTIMATED
        answers = Charge(ANSWERS, mechanism.event, self._statement([mechanism.event], mechanism, accountant))
        if self.estimate_epsilon is None:
            return (answers,)
        event = PureEvent(self.estimate_epsilon)
        return answers, Charge(ERROR_RATE, event, self._statement([event], mechanism, None))

    def plan(self) -> Iterator[Line]:
        count, agreement, mechanism = self.teachers.count, self.answers.agreement, self.answering()
        yield "teachers", f"{count:,}, shards by {self.shard_by}, learner {self.teachers.learner.name}"
        if self.rows is not None:
            yield "rows", rows_per_teacher(self.rows, count, self.domain.width)
        yield "answers", f"{mechanism.name}, charged once, for up to {self.answers.queries:,} queries"
        refusals = None
        if self.estimate_epsilon is not None:
            yield "accountant", TO_BE_ESTIMATED
            yield "together", self.statement_of(mechanism).sentence()
        else:
            yield "accountant", mechanism.accountant
        if not isinstance(self.answers.refusals, int):
            refusals = theorem_refusals(1 - agreement, self.answers.queries)
        yield from forecast_lines(self.terms(refusals), count, agreement, forecast(mechanism, count, agreement))

    def scan(self) -> Lake:
        """Open the lake; refuse more teachers than it has rows for, where the number of rows is public."""
        label, binary = self.domain.label.column, self.classes is None
        lake = open_lake(self.lake, self.domain, label=binary, ids=self.shard_by != "position")
        if not binary and label not in lake.schema.names:
            raise DataError(f"the lake has no label column {label!r}")
        if self.shard_by == "position":
            check_places(
                lake, "teachers shard rows", "shard by the domain's id under another relation than replace_one"
            )
        if self.rows_public and lake.rows < 2 * self.teachers.count:
            raise UsageError(
                f"teachers.count {self.teachers.count:,} is more than the lake's rows allow: each needs two at least"
            )
        return lake

    def work(self, run: Run) -> Outcome:
        """Answer the queries, train the student.

        The engine has a journal of its own, which holds every draw: a run that was cut off asks it again.
        """
        if self.queries is None:
            raise UsageError("queries is missing: an address of public rows, or {aside: SHARE} under label_flip")
        table = None if self.aside else read_queries(self.domain, self.queries)
        with session_of(self, run) as session:
            if table is None:
                aside = session.aside()
                x = aside.x
                # By which answers are joined to rows: counted from 0 over the lake's files in the order of names.
                table = pa.table({"row": aside.position})
            else:
                x = encode_queries(self.domain, table)
            labels = session.answer(x)
            mechanism = session.engine.answering
            statement = self.statement_of(mechanism)
            found = TeachersFindings(
                self.teachers.count,
                self._student(session, statement, x, labels),
                labels,
                session.answered_table(table, labels),
                session.engine.counts,
                forecast(mechanism, self.teachers.count, self.answers.agreement),
                session.error_rate,
                None if mechanism.instances is None else mechanism.terms.refusals,
            )
        student = found.student
        return Outcome(
            found,
            statement,
            student.model,
            facts=self._facts(found),
            lines=list(self._lines(found)),
            made=[
                ("teachers", f"{self.teachers.count:,}, shards by {self.shard_by}, {self.teachers.learner.name}"),
                ("answers", f"{mechanism.name}, {mechanism.accountant}"),
                ("engine", ", ".join(f"{count:,} {name}" for name, count in found.counts.items())),
                ("student", f"{self.student.learner.name} on {student.trained_on:,} answered queries"),
            ],
            sections=partial(found.sections, x),
            files={
                **({student.file: student.save} if student.model is None else {}),
                "answers.parquet": found.save_answers,
            },
        )

    def _student(
        self, session: Session, statement: PrivacyStatement, x: NDArray[np.float64], labels: NDArray[np.int64]
    ) -> Student:
        chosen = self.student
        try:
            return train_student(chosen.learner, self.domain, self.all_classes, statement, x, labels, chosen.refused)
        except DataError as error:
            session.run.account.final = True  # the engine keeps the answers, and no student learns from them later
            left = session.engine.left_afterwards
            more = f"{left} further ones may be asked on the same charge"
            error.add_note(f"answers are kept; {more if left else f'for other queries {NEXT_ENGINE}, charged anew'}")
            raise

    def _facts(self, found: TeachersFindings) -> dict[str, Any]:
        """Everything public about the answers; never a vote."""
        return {
            "error_rate_epsilon": self.estimate_epsilon,
            "released_error_rate": found.error_rate,
            "refusals": found.refusals,
            "classes": [str(c) for c in self.all_classes],
            "counts": found.counts,
            "aside": self.aside,
            "student": found.student.file,
            "student_trained_on": found.student.trained_on,
        }

    def _lines(self, found: TeachersFindings) -> Iterator[str]:
        asked, answered, refused = (found.counts[key] for key in ("asked", "answered", "refused"))
        yield f"{asked:,} of {self.answers.queries:,} queries asked: {answered:,} answered, {refused:,} refused"
        if found.error_rate is not None:
            yield f"teachers' released error: {found.error_rate:.4f}; the engine stops at {found.refusals} refusals"


@lru_cache(maxsize=64)
def _calibrated(name: str, terms: Terms) -> Answering:
    """A search over compositions, for a plan, a charge and a forecast of the same job alike; it draws nothing."""
    return answering(name, terms)
