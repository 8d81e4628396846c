"""kind: teachers. Teachers on disjoint shards answer public queries in private; a student learns from the answers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cached_property, lru_cache, partial
from typing import Any, ClassVar, Literal, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field, model_validator

from daskrado.bounds.teachers import (
    CONFIDENCE,
    forecast,
    forecast_lines,
    largest,
    refuse_if_hopeless,
    rows_per_teacher,
    theorem_refusals,
)
from daskrado.engines.answers import Answering, Terms, answering
from daskrado.engines.sparse_vector import MAX_INSTANCES
from daskrado.engines.votes import NEXT_ENGINE
from daskrado.errors import DataError, UsageError, about_the_key
from daskrado.jobs.base import Address, Charge, Line, Outcome, PrivateJob, Run
from daskrado.jobs.student import Student, TeachersFindings, named_classes, train_student
from daskrado.jobs.teacher_keys import AnswersConfig, Aside, StudentConfig, TeachersConfig
from daskrado.jobs.teacher_places import Places, check_place, places_of
from daskrado.jobs.teacher_session import ANSWERS, ERROR_RATE, Session, read_queries, session_of
from daskrado.lake.scan import Lake, open_lake
from daskrado.lake.shards import KEPT_PLACE, Sharding, check_places, encode_queries
from daskrado.lake.units import check_units
from daskrado.learners.black_box import rehearse
from daskrado.ledger.journal import Journal
from daskrado.privacy.accountant import PureEvent
from daskrado.privacy.events import exact
from daskrado.privacy.protect import Budget, Protect
from daskrado.privacy.relations import Relation
from daskrado.privacy.statement import PrivacyStatement
from daskrado.table.label import Scalar, Target

TO_BE_ESTIMATED = "optimal composition of as many sparse-vector instances as the teachers' error asks for"


class TeachersJob(PrivateJob):
    """Train teachers, answer queries, publish the answers and a student."""

    name: ClassVar[str] = "teachers"
    title: ClassVar[str] = "{job.dataset}: a student of private answers"
    addresses: ClassVar[tuple[Address, ...]] = (("queries",),)
    counts_units: ClassVar[bool] = True
    targets: ClassVar[tuple[Target, ...]] = ("sides", "classes")
    weighs_units: ClassVar[bool] = False
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
        relation, by, column = self.protect.relation, self.shard_by, self.protect.column
        if column is not None and self.teachers.shard_by not in (None, "unit"):
            raise ValueError(f"teachers.shard_by: shards go by protect.unit.column {column!r}; drop shard_by")
        if (place := self.teachers.place) is not None:
            check_place(place, self.protect, self.domain)
        elif column is None and self.domain.id is None and (by != "position" or relation is Relation.ADD_REMOVE):
            raise ValueError("shards by record need the domain's id column; without one, use relation replace_one")
        if relation is Relation.ADD_REMOVE and by == "position":
            raise ValueError("shards by position shift when a row is added or removed: shard by the domain's id")
        if column is None and relation is Relation.REPLACE_ONE and by != "position":
            raise ValueError("a replaced record may bring another id and reach two shards: use shard_by: position")
        if self.aside and relation is not Relation.LABEL_FLIP:
            raise ValueError(f"queries.aside publishes features: only under relation label_flip, not {relation}")
        with about_the_key():  # before anybody sees the frozen value
            self.__dict__["classes"] = named_classes(self.domain.label, self.classes)
        return self

    @property
    def shard_by(self) -> str:
        """As given; else by the unit whose column is named, by position under replace_one or without an id, by id."""
        if self.protect.column is not None:
            return "unit"
        if self.teachers.shard_by is not None:
            return str(self.teachers.shard_by)
        return "position" if self.protect.relation is Relation.REPLACE_ONE or self.domain.id is None else "record"

    @property
    def aside(self) -> float:
        """The share of the lake's rows that become queries."""
        return self.queries.aside if isinstance(self.queries, Aside) else 0.0

    @property
    def all_classes(self) -> tuple[Scalar, ...]:
        """The label values by class index: negative and positive unless more are declared."""
        return self.classes or self.domain.label.pair

    @property
    def changed(self) -> int:
        """How many teachers one protected unit reaches."""
        return 1 if self.shard_by == "unit" else self.protect.rows_per_unit

    @property
    def sharding(self) -> Sharding:
        """Which rows go where."""
        column, places = self.protect.column, self.places
        whole = column is not None or places is not None  # the id, if there is one, orders rows and no more
        by_id = self.domain.id is not None if whole else self.shard_by != "position"
        where = (None, ()) if places is None else (places.column, places.values)
        return Sharding(self.count, self.teachers.seed, by_id, self.aside, column, *where)

    @cached_property
    def places(self) -> Places | None:
        """The places that have a teacher each; None where rows are dealt out."""
        by = self.teachers.place
        return None if by is None else places_of(by, self.source, self.protect, self.domain)

    @property
    def count(self) -> int:
        """How many teachers there are."""
        given, places = self.teachers.count, self.places
        if places is not None and given not in (None, len(places.values)):
            raise UsageError(f"teachers.count is {given}, but {len(places.values)} places have a teacher: drop count")
        return len(places.values) if places is not None else cast(int, given)

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
            estimated=self.estimate_epsilon is not None,
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
        wanted = theorem_refusals(error, self.answers.queries, self.answers.estimated.beta)

        def heard(refusals: int) -> bool:
            return self.answering(refusals).chance(self.count) >= CONFIDENCE

        return largest(heard, min(MAX_INSTANCES, wanted)) or 1

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
            **({} if self.protect.column is None else {"unit": self.protect.column}),
            **({} if self.places is None else {"places": [str(value) for value in self.places.values]}),
        }

    @property
    def assumptions(self) -> tuple[str, ...]:
        owned, *others = super().assumptions
        by = self.shard_by
        if self.protect.column is not None:
            owned = f"all rows with one {self.protect.column} belong to {self.protect.unit} and are in one shard"
        elif by == "unit":
            owned = f"the id column names {self.protect.unit}: all of its rows have the same id"
        public = "queries are public: they hold nothing about the lake beyond what was released"
        if self.aside:
            public = "features are public; only labels are protected"
        dealt = {"record": "record ids do not depend on what the record holds", "position": KEPT_PLACE}
        if self.places is not None:
            dealt[by] = self.places.assumption
        return (owned, *others, public, *([dealt[by]] if by in dealt else []))

    def statement_of(self, mechanism: Answering) -> PrivacyStatement:
        """The guarantee of all that the engine releases, answered by this mechanism."""
        accountant, events = mechanism.accountant, [mechanism.event]
        if self.estimate_epsilon is not None:
            events.append(PureEvent(self.estimate_epsilon))
            accountant += f", plus epsilon {self.estimate_epsilon:g} for the teachers' error"
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
        refuse_if_hopeless(mechanism, self.count, self.answers.agreement)
        accountant = mechanism.accountant if self.estimate_epsilon is None else TO_BE_ESTIMATED
        how = (self.asked, mechanism.name, mechanism.theorem, self.assumptions)
        answers = Charge.of(ANSWERS, mechanism.event, *how, accountant=accountant)
        if self.estimate_epsilon is None:
            return (answers,)
        return answers, Charge.of(ERROR_RATE, PureEvent(self.estimate_epsilon), *how)

    def plan(self) -> Iterator[Line]:
        count, agreement, mechanism = self.count, self.answers.agreement, self.answering()
        yield "teachers", f"{count:,}, shards by {self.shard_by}, learner {self.teachers.learner.name}"
        if self.rows is not None:
            yield "rows", rows_per_teacher(self.rows, count, self.domain.width)
        yield "answers", f"{mechanism.name}, charged once, for up to {self.answers.queries:,} queries"
        yield "accountant", mechanism.accountant if self.estimate_epsilon is None else TO_BE_ESTIMATED
        if self.estimate_epsilon is not None:
            yield "together", self.statement_of(mechanism).sentence()
        given = isinstance(self.answers.refusals, int)
        refusals = None if given else theorem_refusals(1 - agreement, self.answers.queries)
        yield from forecast_lines(self.terms(refusals), count, agreement, forecast(mechanism, count, agreement))

    def public_lakes(self) -> Mapping[str, Any]:
        return {} if self.queries is None or self.aside else {"queries": self.queries}

    def scan(self) -> Lake:
        """Open the lake; refuse more teachers than it has rows for, where the number of rows is public."""
        label, binary = self.domain.label.column, self.classes is None
        lake = open_lake(self.source, self.domain, label=binary, ids=self.sharding.by_id, empty=not self.rows_public)
        check_units(lake, self.protect, self.protect.column)
        if not binary and label not in lake.schema.names:
            raise DataError(f"the lake has no label column {label!r}")
        if self.shard_by == "position":
            instead = "shard by the domain's id under another relation than replace_one"
            check_places(lake, "teachers shard rows", instead)
        count = self.count
        if self.rows_public and lake.rows < 2 * count:
            raise UsageError(f"teachers.count {count:,} is more than the lake's rows allow: each needs two at least")
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
                self.count,
                self._student(session, statement, x, labels),
                labels,
                session.answered_table(table, labels),
                session.engine.counts,
                forecast(mechanism, self.count, self.answers.agreement),
                session.error_rate,
                None if mechanism.instances is None else mechanism.terms.refusals,
            )
        student, counts = found.student, found.counts
        own = {} if student.model is not None else {student.file: student.save}
        return Outcome(
            found,
            statement,
            student.model,
            facts={  # everything public about the answers; never a vote
                "error_rate_epsilon": self.estimate_epsilon,
                "released_error_rate": found.error_rate,
                "refusals": found.refusals,
                "classes": [str(c) for c in self.all_classes],
                "counts": counts,
                "aside": self.aside,
                "student": student.file,
                "student_trained_on": student.trained_on,
            },
            lines=list(self._lines(found)),
            made=[
                ("teachers", f"{self.count:,}, shards by {self.shard_by}, {self.teachers.learner.name}"),
                ("answers", f"{mechanism.name}, {mechanism.accountant}"),
                ("engine", ", ".join(f"{count:,} {name}" for name, count in counts.items())),
                ("student", f"{self.student.learner.name} on {student.trained_on:,} answered queries"),
            ],
            sections=partial(found.sections, x),
            files={**own, "answers.parquet": found.save_answers},
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

    def _lines(self, found: TeachersFindings) -> Iterator[str]:
        asked, answered, refused = (found.counts[key] for key in ("asked", "answered", "refused"))
        yield f"{asked:,} of {self.answers.queries:,} queries asked: {answered:,} answered, {refused:,} refused"
        if found.error_rate is not None:
            yield f"teachers' released error: {found.error_rate:.4f}; the engine stops at {found.refusals} refusals"


@lru_cache(maxsize=64)
def _calibrated(name: str, terms: Terms) -> Answering:
    """A search over compositions, for a plan, a charge and a forecast of the same job alike; it draws nothing."""
    return answering(name, terms)
