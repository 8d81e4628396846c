"""goal of a training pipeline: what learner auto optimises, and where a model that is told costs says yes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

from pydantic import Field, model_serializer, model_validator

from daskrado.jobs.base import Line
from daskrado.learners.on_passes.auto import Aim, Auto
from daskrado.learners.on_passes.erm import Erm
from daskrado.models.linear import LinearModel
from daskrado.models.link import own_link
from daskrado.models.threshold import Rule
from daskrado.table.yaml_file import Frozen, shown

if TYPE_CHECKING:
    from daskrado.jobs.holdout import Evaluating
    from daskrado.jobs.learn import LearnJob

_ALLOWED = "is error, auc, logloss or {cost: 5} (of a missed positive, in false alarms)"


class Goal(Frozen):
    """``error``, ``auc``, ``logloss``, or ``{cost: 5}``: a missed positive costs as much as five false alarms."""

    aim: Aim
    cost: float | None = Field(default=None, gt=0, le=1e6)

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, content: Any) -> Any:
        if isinstance(content, cls):
            return content
        if isinstance(content, str) and content.startswith("cost="):
            content = {"cost": content.removeprefix("cost=")}
        if isinstance(content, dict) and content.keys() == {"cost"}:
            return {**content, "aim": "cost"}
        if content == "cost":
            raise ValueError("cost: say what a missed positive costs, in false alarms: {cost: 5}")
        if isinstance(content, str) and content in get_args(Aim):
            return {"aim": content}
        raise ValueError(f"{_ALLOWED}, got {shown(content)}")

    @model_serializer
    def _as_written(self) -> Any:
        return self.aim if self.cost is None else {"cost": self.cost}

    @property
    def rule(self) -> Rule | None:
        """How a threshold is chosen from released counts; None where the loss's own is right."""
        return None if self.cost is None else Rule(cost=self.cost)


def check(job: LearnJob) -> None:
    """Refuse a goal that nothing follows from; tell learner auto of the others."""
    goal = job.goal
    if goal is None:
        return
    if job.domain.label.target != "sides":
        raise ValueError("goal is for labels of two sides: drop it")
    exact = isinstance(job.learner, Erm) and own_link(job.learner.name, {"loss": job.learner.loss.name}) is not None
    if not isinstance(job.learner, Auto) and not exact:
        raise ValueError(
            f"goal is what learner auto optimises: drop goal, or learner {job.learner.name} (evaluate: {{threshold: "
            "{cost: 5}} chooses a threshold for any learner)"
        )
    if goal.rule is not None and job.evaluate is not None and job.evaluate.threshold not in (None, goal.rule):
        raise ValueError("goal and evaluate.threshold both say where yes begins: drop one of them")
    if isinstance(job.learner, Auto):  # before anybody sees the frozen value
        job.__dict__["learner"] = replace(job.learner, aim=goal.aim)


def evaluating(job: LearnJob, keys: Evaluating | None) -> Evaluating | None:
    """How the model is evaluated: with the threshold that the goal asks for."""
    if keys is None or job.goal is None or job.goal.rule is None:
        return keys
    return keys.model_copy(update={"threshold": job.goal.rule})


def plan(job: LearnJob) -> Iterator[Line]:
    """Where yes begins, and why."""
    if job.goal is None:
        return
    if job.goal.rule is None:
        yield "goal", f"{job.goal.aim}: yes begins where the loss itself changes sides"
    elif job.evaluation is not None:
        yield "goal", f"cost: {job.goal.rule}; yes begins where the released counts of the evaluation cost least"
    else:
        yield "goal", f"cost: {job.goal.rule}; yes begins at a probability of {_even(job.goal):.3g}"


def _even(goal: Goal) -> float:
    """The probability at which both mistakes cost alike: (1 - p) = cost p."""
    assert goal.cost is not None
    return 1 / (1 + goal.cost)


def decided(job: LearnJob, model: LinearModel) -> LinearModel:
    """The model with its threshold: by its own probabilities, which is post-processing; counts may better it."""
    if job.goal is None or job.goal.rule is None:
        return model
    found = model.saying_yes_from(_even(job.goal))
    return replace(found, decision=replace(found.decision, chosen=str(job.goal.rule)))
