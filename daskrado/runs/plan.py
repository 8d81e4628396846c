"""The plan of a run: statistic, calibrated mechanism, learner and privacy statement, before any row is read."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from daskrado.lattice import Lattice
from daskrado.privacy.accountant import compose
from daskrado.privacy.ledger import Ledger, Remaining
from daskrado.privacy.mechanisms import Mechanism, Target, mechanism
from daskrado.runs.pipeline import Learner, Pipeline
from daskrado.statement import PrivacyStatement
from daskrado.statistics.base import Statistic


@dataclass(frozen=True)
class Plan:
    """Everything a run will do, all of it public."""

    pipeline: Pipeline
    statistic: Statistic
    lattice: Lattice
    mechanism: Mechanism | None
    learner: Learner
    statement: PrivacyStatement

    def noise(self) -> list[dict[str, Any]]:
        """For each block: entries, noise, and how many rows of full norm would move an entry as far as the noise."""
        if self.mechanism is None:
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
    statistic = pipeline.statistic.build(pipeline.domain.width)
    lattice = Lattice(pipeline.domain.norm_bound, pipeline.lattice_bits or statistic.default_bits)
    chosen, statement = None, PrivacyStatement.none()
    if pipeline.private:
        assert pipeline.protect is not None
        assert pipeline.budget is not None
        protect, budget = pipeline.protect, pipeline.budget
        target = Target(statistic, lattice, protect.relation, protect.rows_per_unit)
        chosen = mechanism(pipeline.noise, target, budget.epsilon, budget.delta)
        total = compose([chosen.event], budget.delta)
        statement = PrivacyStatement(
            private=True,
            relation=protect.relation,
            unit=protect.unit,
            rows_per_unit=protect.rows_per_unit,
            epsilon=min(float(total.epsilon), budget.epsilon),
            delta=budget.delta if pipeline.noise == "gaussian" else 0.0,
            mechanism=chosen.name,
            theorem=chosen.theorem,
            accountant=total.method,
            assumptions=_assumptions(pipeline),
        )
    return Plan(pipeline, statistic, lattice, chosen, pipeline.learner.build(), statement)


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


def hint(rows: float) -> str:
    """The noise in words."""
    return f"as much as {rows:,.1f} rows" if rows < 1000 else f"as much as {math.ceil(rows):,} rows"
