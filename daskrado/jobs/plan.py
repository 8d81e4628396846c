"""The plan of a run: statistic, calibrated mechanism, learner and privacy statement, before any row is read."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from daskrado.errors import UsageError
from daskrado.jobs.pipeline import Learner, Pipeline
from daskrado.lake.scan import open_lake
from daskrado.learners.on_passes.iterative import IterativeLearner, worthwhile_guarantee
from daskrado.ledger.ledger import Ledger, Remaining
from daskrado.privacy.accountant import Event, compose
from daskrado.privacy.mechanisms import Mechanism, Target, mechanism
from daskrado.privacy.perturbation import PublicFacts
from daskrado.privacy.relations import Relation
from daskrado.privacy.statement import PrivacyStatement
from daskrado.statistics.base import Statistic
from daskrado.table.lattice import Lattice


@dataclass(frozen=True)
class Plan:
    """Everything a run will do, all of it public.

    A learner on one release has a statistic and a mechanism; one that reads the lake several times has public facts.
    """

    pipeline: Pipeline
    lattice: Lattice
    learner: Learner | IterativeLearner
    statement: PrivacyStatement
    event: Event | None = None
    statistic: Statistic | None = None
    mechanism: Mechanism | None = None
    facts: PublicFacts | None = None

    @property
    def summed(self) -> Statistic:
        """The one statistic that is released; a job that can do no more refuses other learners here."""
        if self.statistic is None:
            raise UsageError(
                f"learner {self.learner.name} reads the lake several times, which this kind of job cannot"
            )
        return self.statistic

    @property
    def fitter(self) -> Learner:
        """The learner on that release."""
        self.summed  # noqa: B018 - refuses the other learners
        return cast(Learner, self.learner)

    @property
    def size(self) -> int:
        """How many numbers are released."""
        return self.statistic.size if self.statistic is not None else self.pipeline.domain.width

    def noise(self) -> list[dict[str, Any]]:
        """For each block: entries, noise, and how many rows of full norm would move an entry as far as the noise."""
        if self.mechanism is None or self.statistic is None:
            return []
        std = self.mechanism.noise_std()
        return [
            {
                "block": block.name,
                "entries": block.size,
                "std": std[block.name],
                "rows": std[block.name] / self.lattice.norm_bound**block.power,
            }
            for block in self.statistic.blocks
        ]


def make_plan(pipeline: Pipeline) -> Plan:
    """Calibrate a pipeline's mechanism from public facts alone."""
    if pipeline.iterative:
        return _iterative_plan(pipeline)
    assert pipeline.statistic is not None
    statistic = pipeline.statistic.build(pipeline.domain.width)
    lattice = Lattice(pipeline.domain.norm_bound, pipeline.lattice_bits or statistic.default_bits)
    chosen, statement = None, PrivacyStatement.none()
    if pipeline.private:
        assert pipeline.protect is not None
        assert pipeline.budget is not None
        protect, budget = pipeline.protect, pipeline.budget
        target = Target(statistic, lattice, protect.relation, protect.rows_per_unit)
        chosen = mechanism(pipeline.noise, target, budget.epsilon, budget.delta)
        delta = budget.delta if pipeline.noise == "gaussian" else 0.0
        total = compose([chosen.event], delta)
        statement = PrivacyStatement(
            private=True,
            relation=protect.relation,
            unit=protect.unit,
            rows_per_unit=protect.rows_per_unit,
            epsilon=min(float(total.epsilon), budget.epsilon),
            delta=delta,
            mechanism=chosen.name,
            theorem=chosen.theorem,
            accountant=total.method,
            assumptions=_assumptions(pipeline),
        )
    event = chosen.event if chosen is not None else None
    return Plan(pipeline, lattice, pipeline.learner.build(), statement, event, statistic, chosen)


def _iterative_plan(pipeline: Pipeline) -> Plan:
    """The plan of a learner that reads the lake several times: its number of rows is public, or given."""
    learner = pipeline.learner.build()
    lattice = Lattice(pipeline.domain.norm_bound, pipeline.lattice_bits or Statistic.default_bits)
    rows = pipeline.rows or open_lake(pipeline.lake, pipeline.domain).rows
    if pipeline.protect is None or pipeline.budget is None:
        facts = PublicFacts(rows, pipeline.domain.width, pipeline.domain.norm_bound, Relation.REPLACE_ONE, 1.0)
        return Plan(pipeline, lattice, learner, PrivacyStatement.none(), facts=facts)
    protect, budget = pipeline.protect, pipeline.budget
    facts = PublicFacts(
        rows,
        pipeline.domain.width,
        pipeline.domain.norm_bound,
        protect.relation,
        budget.epsilon,
        budget.delta,
        protect.rows_per_unit,
        lattice.bits,
    )
    found = worthwhile_guarantee(cast(IterativeLearner, learner), facts)
    total = compose([found.event], found.delta)
    statement = PrivacyStatement(
        private=True,
        relation=protect.relation,
        unit=protect.unit,
        rows_per_unit=protect.rows_per_unit,
        epsilon=min(float(total.epsilon), budget.epsilon),
        delta=found.delta,
        mechanism=found.mechanism,
        theorem=found.theorem,
        accountant=total.method,
        assumptions=(*_assumptions(pipeline), *found.assumptions),
    )
    return Plan(pipeline, lattice, learner, statement, found.event, facts=facts)


def _assumptions(pipeline: Pipeline) -> tuple[str, ...]:
    assert pipeline.protect is not None
    protect = pipeline.protect
    said = [f"a protected unit ({protect.unit}) has at most {protect.rows_per_unit} row(s) in the lake"]
    said.append("the Domain (bounds, categories, norm bound) was not chosen by looking at this lake's rows")
    if protect.feature is not None:
        said.append(f"only the value of {protect.feature!r} is protected; all other columns are taken as public")
    return tuple(said)


def budget_left(plan: Plan, ledger: Ledger) -> Remaining | None:
    """What the ledger has left for this plan's data set and relation; None if no limit is set yet."""
    relation = plan.statement.relation
    if relation is None or ledger.limit(plan.pipeline.dataset, relation) is None:
        return None
    return ledger.remaining(plan.pipeline.dataset, relation)


def forecast(plan: Plan) -> Iterator[tuple[str, str]]:
    """What a learner that reads the lake several times will do, and the excess risk to expect of its noise."""
    if plan.facts is None:
        return
    learner = cast(IterativeLearner, plan.learner)
    yield from learner.forecast(plan.facts)
    if plan.statement.private:
        yield (
            "forecast",
            f"about {learner.excess(plan.facts):.2g} more loss per row than without noise (a public rule)",
        )


def hint(rows: float) -> str:
    """The noise in words."""
    return f"as much as {rows:,.1f} rows" if rows < 1000 else f"as much as {math.ceil(rows):,} rows"
