"""The plan of a teachers job, from public facts alone: cost, margins, teachers needed, and which mechanism to use."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from daskrado.bounds.teachers import (
    CONFIDENCE,
    MOST_COMPARED,
    Forecast,
    compare,
    forecast,
    published_teachers,
    refuse_if_hopeless,
    rows_per_teacher,
    theorem_refusals,
)
from daskrado.engines.answers import Answering, Terms, answering
from daskrado.engines.sparse_vector import MAX_INSTANCES
from daskrado.errors import UsageError
from daskrado.jobs.teachers.config import Aside, EstimatedRefusals, Factory, TeachersPipeline
from daskrado.lake.shards import KEPT_PLACE
from daskrado.learners.rehearsal import dry_fit
from daskrado.ledger.charging import left_for, limit_line
from daskrado.ledger.ledger import Ledger
from daskrado.privacy.accountant import Event
from daskrado.privacy.statement import PrivacyStatement


@dataclass(frozen=True)
class TeachersPlan:
    """Everything a teachers job will do, all of it public."""

    pipeline: TeachersPipeline
    factory: Factory
    student: Factory
    mechanism: Answering  # calibrated for one refusal until those to be estimated are known
    forecast: Forecast
    statement: PrivacyStatement

    @property
    def event(self) -> Event:
        """What the answers cost."""
        return self.mechanism.event


def make_plan(pipeline: TeachersPipeline) -> TeachersPlan:
    """Calibrate the answers; refuse a hopeless plan, and learners that do not learn."""
    factory = pipeline.teachers.learner.factory(pipeline.domain)
    student = pipeline.student.learner.factory(pipeline.domain)
    rehearse(pipeline, factory, "teachers.learner")
    rehearse(pipeline, student, "student.learner")
    mechanism = answering(pipeline.answers.mechanism, pipeline.terms())
    refuse_if_hopeless(mechanism, pipeline.teachers.count, pipeline.answers.agreement)
    expected = forecast(mechanism, pipeline.teachers.count, pipeline.answers.agreement)
    accountant = mechanism.accountant
    if pipeline.estimate_epsilon is not None:
        accountant = "optimal composition of as many sparse-vector instances as the teachers' error asks for"
    statement = _statement(pipeline, mechanism, accountant)
    return TeachersPlan(pipeline, factory, student, mechanism, expected, statement)


def rehearse(pipeline: TeachersPipeline, factory: Factory, where: str) -> None:
    """Refuse a learner, named by its place in the pipeline, that fails on synthetic rows."""
    dry_fit(factory, where, pipeline.domain.width, pipeline.domain.norm_bound, len(pipeline.all_classes))


def with_mechanism(plan: TeachersPlan, mechanism: Answering) -> TeachersPlan:
    """The plan for the mechanism that is really used, once refusals were estimated."""
    pipeline = plan.pipeline
    return replace(
        plan,
        mechanism=mechanism,
        forecast=forecast(mechanism, pipeline.teachers.count, pipeline.answers.agreement),
        statement=_statement(pipeline, mechanism, mechanism.accountant),
    )


def with_refusals(pipeline: TeachersPipeline, error: float) -> int:
    """T from theorem 3.2 for a released error rate, at most what still lets unanimous teachers be heard.

    A function of released and public values only.
    """
    chosen = pipeline.answers.refusals
    assert isinstance(chosen, EstimatedRefusals)
    wanted = min(MAX_INSTANCES, theorem_refusals(error, pipeline.answers.queries, chosen.beta))
    low, high = 1, wanted
    while low < high:
        middle = (low + high + 1) // 2
        heard = answering("sparse_vector", pipeline.terms(middle)).chance(pipeline.teachers.count) >= CONFIDENCE
        low, high = (middle, high) if heard else (low, middle - 1)
    return low


def _statement(pipeline: TeachersPipeline, mechanism: Answering, accountant: str) -> PrivacyStatement:
    protect = pipeline.protect
    said = [
        f"a protected unit ({protect.unit}) has at most {protect.rows_per_unit} row(s) in the lake"
        if pipeline.shard_by != "unit"
        else f"the id column names {protect.unit}: all of its rows have the same id",
        "the Domain (bounds, categories, norm bound) was not chosen by looking at this lake's rows",
        "queries are public: they hold nothing about the lake beyond what was released"
        if not isinstance(pipeline.queries, Aside)
        else "features are public; only labels are protected",
    ]
    if pipeline.shard_by == "record":
        said.append("record ids do not depend on what the record holds")
    if pipeline.shard_by == "position":
        said.append(KEPT_PLACE)
    if pipeline.estimate_epsilon is not None:
        accountant += f", plus epsilon {pipeline.estimate_epsilon:g} for the teachers' error"
    return PrivacyStatement(
        private=True,
        relation=protect.relation,
        unit=protect.unit,
        rows_per_unit=protect.rows_per_unit,
        epsilon=pipeline.budget.epsilon,
        delta=pipeline.budget.delta,
        mechanism=mechanism.name,
        theorem=mechanism.theorem,
        accountant=accountant,
        assumptions=tuple(said),
    )


def plan_lines(plan: TeachersPlan, ledger: Ledger | None) -> Iterator[str]:
    """Cost and prospects of a plan."""
    pipeline, count = plan.pipeline, plan.pipeline.teachers.count
    yield f"data set    {pipeline.dataset}"
    yield f"teachers    {count:,}, shards by {pipeline.shard_by}, learner {pipeline.teachers.learner.kind}"
    if pipeline.rows is not None:
        yield f"rows        {rows_per_teacher(pipeline.rows, count, pipeline.domain.width)}"
    yield f"guarantee   {plan.statement.sentence()}"
    yield f"mechanism   {plan.statement.theorem}"
    yield f"cost        {plan.event}, once, for up to {pipeline.answers.queries:,} queries"
    yield f"accountant  {plan.statement.accountant}"
    if pipeline.estimate_epsilon is not None:
        yield f"cost        epsilon {pipeline.estimate_epsilon:g} for the teachers' error, from which refusals follow"
    refusals = None
    if not isinstance(pipeline.answers.refusals, int):
        refusals = theorem_refusals(1 - pipeline.answers.agreement, pipeline.answers.queries)
    yield from forecast_lines(pipeline.terms(refusals), count, pipeline.answers.agreement, plan.forecast)
    for text in plan.statement.assumptions:
        yield f"assumes     {text}"
    yield limit_line(left_for(ledger, pipeline.dataset, pipeline.protect.relation), pipeline.ledger)


def forecast_lines(terms: Terms, teachers: int, agreement: float, chosen: Forecast | None = None) -> Iterator[str]:
    """The three mechanisms side by side under the same terms, and which to use."""
    found = compare(terms, teachers, agreement)
    yield f"if {agreement:.0%} of {teachers:,} teachers agree, {terms.queries:,} queries, {terms.refusals} refusals:"
    yield f"  {'mechanism':<15}{'vote margin':>12}{'teachers':>10}{'unanimous':>11}{'answered':>10}{'right':>8}"
    rows: list[tuple[str, Forecast]] = [(one.name, one) for one in found]
    mine = None if chosen is None else "as_published" if terms.published else chosen.name
    if chosen is not None and mine is not None and mine not in dict(rows):
        rows.append((mine, chosen))
    for name, one in rows:
        mark = " <- chosen" if name == mine else ""
        yield (
            f"  {name:<15}{one.margin:>12,}{one.teachers:>10,}{one.unanimous:>11.3f}{one.answered:>10.3f}"
            f"{one.right:>8.3f}{mark}"
        )
    if terms.refusals > MOST_COMPARED:
        yield f"  sparse_vector is compared up to {MOST_COMPARED:,} refusals"
    prescribed = published_teachers(terms.queries, terms.refusals, terms.epsilon, terms.delta)
    yield f"  the paper's constants prescribe {prescribed:,} teachers"
    yield f"best        {found[0].name}: {found[0].right:.1%} of the queries get the teachers' answer"


def check_rows(pipeline: TeachersPipeline, rows: int) -> None:
    """Refuse more teachers than the lake has rows for; the message holds no private number."""
    if rows < 2 * pipeline.teachers.count:
        raise UsageError(
            f"teachers.count {pipeline.teachers.count:,} is more than the lake's rows allow: each needs two at least"
        )
