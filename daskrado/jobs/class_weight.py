"""class_weight of a training pipeline: what a row of each class counts for, at most 1."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field, model_validator

from daskrado.jobs.base import Charge, Run, calibrated
from daskrado.lake.holdout import Part
from daskrado.privacy.mechanisms import OneShot
from daskrado.privacy.protect import Private
from daskrado.privacy.relations import Relation
from daskrado.statistics.base import Statistic
from daskrado.statistics.bounded import WEIGHT_BITS, bounded
from daskrado.statistics.score_cells import Score, ScoreCells
from daskrado.table.lattice import Lattice
from daskrado.table.yaml_file import Frozen, shown

if TYPE_CHECKING:
    from daskrado.jobs.learn import LearnJob

ROLE = "class rate"
SHARE = 0.05  # of the budget, where the rate is counted
_WHOLE = 1 << WEIGHT_BITS


class ClassWeight(Frozen):
    """``balanced``, ``{rate}`` (balanced for a public share of positives), or ``{positive, negative}``.

    Weights are divided by the larger one, so that no row counts for more than before.

    Sensitivity
        With weights of at most 1 a row adds a point between 0 and what it added before. Adding or removing it moves
        a sum no further; replacing it moves the sum by the difference of two such points, at most the larger of
        what adding and what replacing a row did (:class:`daskrado.statistics.bounded.Bounded`). Slopes and curvatures
        of the loss keep their bounds, so output and objective perturbation hold as they are.
    """

    positive: float | None = Field(default=None, gt=0, le=1e4)
    negative: float | None = Field(default=None, gt=0, le=1e4)
    rate: float | None = Field(default=None, ge=1e-3, le=0.999)
    counted: bool = False

    @model_validator(mode="before")
    @classmethod
    def _balanced(cls, content: Any) -> Any:
        if isinstance(content, str) and content != "balanced":
            raise ValueError(f"is balanced, {{rate: 0.1}} or {{positive: 5, negative: 1}}, got {shown(content)}")
        return {"counted": True} if content == "balanced" else content

    @model_validator(mode="after")
    def _one_way(self) -> ClassWeight:
        both = (self.positive is None) == (self.negative is None)
        ways = [self.positive is not None, self.rate is not None, self.counted]
        if not both or sum(ways) != 1:
            raise ValueError("is balanced, {rate: 0.1} or {positive: 5, negative: 1}")
        return self

    def pair(self, rate: float | None) -> tuple[int, int]:
        """The weights of the negative and the positive label, in steps of 2^-14 that never round up."""
        if self.positive is not None and self.negative is not None:
            found = self.negative, self.positive
        else:
            share = self.rate if rate is None else min(0.999, max(0.001, rate))
            assert share is not None
            found = share, 1 - share  # as 1 / (1 - share) to 1 / share
        low, high = (max(1, int(_WHOLE * one / max(found))) for one in found)
        return low, high


def check(job: LearnJob) -> None:
    """Refuse weights where no proof covers them."""
    if job.class_weight is None:
        return
    if job.domain.label.target != "sides":
        raise ValueError("class_weight is for labels of two sides: drop it")
    if job.learner.name in ("tuning", "random_stopping"):
        raise ValueError(
            f"class_weight: {job.learner.name} chooses by the number of mistakes, each counting 1; drop one of them"
        )
    if job.protect is None:
        return
    if job.protect.relation not in (Relation.ADD_REMOVE, Relation.REPLACE_ONE):
        raise ValueError(
            f"class_weight: under {job.protect.relation} a row's weight would change with what is protected; use "
            "add_remove or replace_one"
        )
    if job.protect.column is None and job.protect.rows_per_unit > 1:
        raise ValueError("class_weight: give protect.unit as {column, name} in place of rows_per_unit")


def learning(job: LearnJob) -> Private:
    """Whom training protects, and what it may cost: less where the rate of the classes is counted first."""
    asked = job.asked
    if job.class_weight is None or not job.class_weight.counted:
        return asked
    return replace(asked, budget=asked.budget.shared(SHARE)[1])


def counted(job: LearnJob, statistic: Statistic) -> Statistic:
    """The statistic of rows that count for at most 1 each; of units it is bounded by itself."""
    if job.class_weight is None or job.asked.protect.bound is not None:
        return statistic
    return bounded(statistic, 1, job.lattice)


def _counting(job: LearnJob) -> OneShot:
    """The mechanism for the number of rows of each class."""
    return calibrated(_price(job), *_counts(job))


def _price(job: LearnJob) -> Private:
    return replace(job.asked, budget=job.asked.budget.shared(SHARE)[0])


def _counts(job: LearnJob) -> tuple[ScoreCells, Lattice]:
    lattice = Lattice(job.domain.norm_bound)
    return ScoreCells(job.domain.width, (Score((0,) * job.domain.width, ()),), lattice.bits), lattice


def charges(job: LearnJob) -> tuple[Charge, ...]:
    """What the count of the classes costs, where there is one."""
    if job.class_weight is None or not job.class_weight.counted:
        return ()
    return (Charge.of_mechanism(ROLE, _counting(job), _price(job), job.assumptions),)


def weights(job: LearnJob, run: Run, part: Part | None) -> tuple[int, int] | None:
    """The weights of the negative and the positive label: declared, or from counts that are released here."""
    if job.class_weight is None:
        return None
    if not job.class_weight.counted:
        return job.class_weight.pair(None)
    statistic, lattice = _counts(job)
    if job.private:
        values = run.release(ROLE, _counting(job), lambda: run.collect(statistic, lattice, part=part)).values["cells"]
    else:
        vector = run.collect(statistic, lattice, part=part).vector
        values = np.asarray(vector, dtype=np.float64)
    negative, positive = np.maximum(values.ravel(), 1.0).tolist()
    return job.class_weight.pair(positive / (positive + negative))


def as_details(pair: tuple[int, int] | None) -> dict[str, Any]:
    """For a model's details."""
    return {} if pair is None else {"class_weight": [one / _WHOLE for one in pair]}
