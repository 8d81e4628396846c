"""Evaluation inside a training pipeline: on rows that were held out, else on the training rows, which it says."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, PlainSerializer, ValidationError, WrapValidator

from daskrado.jobs.base import Charge, Outcome, Run
from daskrado.jobs.measure import ROLE, EvaluationKeys, Measurement, measurement
from daskrado.jobs.outcome import covers
from daskrado.lake.holdout import HELD_OUT, TRAINING, Fold, Part
from daskrado.ledger.parts import part_name
from daskrado.models.linear import LinearModel
from daskrado.privacy.protect import Budget, Private, together
from daskrado.privacy.relations import Relation
from daskrado.privacy.statement import PrivacyStatement
from daskrado.table.yaml_file import NestedMistakes, write_text

if TYPE_CHECKING:
    from daskrado.jobs.evaluate import EvaluateJob
    from daskrado.jobs.learn import LearnJob

ON_TRAINING_ROWS = "on training rows"


def _share_or_fold(value: Any, share: Callable[[Any], float]) -> float | Fold:
    """A share of the ids, or a fold: ``{fold: 0, of: 5}``."""
    if not isinstance(value, Mapping | Fold):
        return share(value)
    try:
        return Fold.model_validate(value)
    except ValidationError as error:
        raise NestedMistakes.of(error, value) from error


if TYPE_CHECKING:
    Holdout = float | Fold
else:
    _PLAIN = PlainSerializer(lambda held: held.model_dump() if isinstance(held, Fold) else held)
    Holdout = Annotated[float, Field(ge=0.01, le=0.9), WrapValidator(_share_or_fold), _PLAIN]


class Evaluating(EvaluationKeys):
    """``budget`` is what the evaluation may cost: the job's where rows are held out, since nobody pays twice."""

    budget: Budget | None = Field(default=None)


def check(job: LearnJob) -> None:
    """Refuse an evaluation that nobody pays for, and a hold-out that rows would decide."""
    used = [key for key in ("holdout", "evaluate", "class_weight", "goal") if getattr(job, key) is not None]
    if used and job.name != "learn":
        raise ValueError(f"{used[0]} is a key of kind learn, which kind {job.name} does not have")
    if job.evaluation is None:
        return
    if job.private and job.holdout is None and job.evaluation.budget is None:
        raise ValueError(
            "evaluate: budget is missing: without holdout the training rows pay for the evaluation, too; give "
            "evaluate: {budget: {epsilon, delta}}, or holdout: 0.2"
        )
    if not job.private and job.evaluation.budget is not None:
        raise ValueError("evaluate: budget is for private evaluations: drop it, or private: false")
    check_ids(job)
    planned(job)


def check_ids(job: LearnJob | EvaluateJob) -> None:
    """Refuse a hold-out without ids."""
    if job.holdout is not None and column_of(job) is None:
        raise ValueError(
            "holdout: rows are held out by an id, never by their place: give protect.unit as {column, name}, or name "
            "the domain's id column"
        )


def column_of(job: LearnJob | EvaluateJob) -> str | None:
    """The column whose ids decide which rows are held out: that of units, else of records."""
    unit = None if job.protect is None else job.protect.column
    return unit or job.domain.id


def share_of(job: LearnJob | EvaluateJob) -> float:
    """The part of the ids that is held out, about."""
    return 1 / job.holdout.of if isinstance(job.holdout, Fold) else job.holdout or 0.0


def in_words(job: LearnJob) -> str:
    """What is held out."""
    if isinstance(job.holdout, Fold):
        return f"fold {job.holdout.fold} of {job.holdout.of}"
    return f"{100 * share_of(job):g} %"


def part_of(job: LearnJob | EvaluateJob, name: str) -> Part | None:
    """One side of the hold-out; None where all rows are read."""
    if job.holdout is None:
        return None
    column = column_of(job)
    assert column is not None
    return Part(job.dataset, column, job.holdout, name)


def planned(job: LearnJob) -> Measurement | None:
    """The evaluation's plan, where there is one."""
    if job.evaluation is None:
        return None
    private = None
    if job.private:
        private = Private(job.asked.protect, job.evaluation.budget or job.asked.budget)
    keys = EvaluationKeys(**{name: getattr(job.evaluation, name) for name in EvaluationKeys.model_fields})
    return measurement(job.domain, keys, private, job.assumptions if job.private else ())


def all_charges(job: LearnJob, training: Sequence[Charge]) -> tuple[Charge, ...]:
    """The charges of training and evaluation."""
    plan = planned(job)
    return of_parts(job, (*training, *(() if plan is None else plan.charges())))


def of_parts(job: LearnJob | EvaluateJob, charges: tuple[Charge, ...]) -> tuple[Charge, ...]:
    """Charges of training and evaluation that read disjoint parts; as they are where nothing is held out.

    Under ``replace_one`` that takes for granted that a replaced row, or unit, keeps its id.

    Proof, for k folds
        The fold j(u) of a unit u is a fixed function of its id, so two lakes that differ in the rows of u alone have
        the same rows in all folds but j(u). Training on all folds but j(u), and evaluating a model on any fold but
        j(u), read none of the rows that differ: given the answers so far, their laws are the same for both lakes. So
        of k fits and k evaluations u pays for the k - 1 fits and the one evaluation that read its fold, by the same
        filter that would count all of them; whoever chooses the next one may look at the answers so far.
    """
    if job.holdout is None:
        return charges
    column, replaced = column_of(job), job.asked.protect.relation is Relation.REPLACE_ONE
    assumed = [f"training and evaluation read disjoint rows: a hash of {column} decides"]
    assumed += [f"what is replaced keeps its {column}"] if replaced else []

    def placed(charge: Charge) -> Charge:
        part = part_of(job, HELD_OUT if charge.role == ROLE else TRAINING)
        assert part is not None
        said = charge.statement.assuming(*assumed)
        return replace(charge, part=part_name(part.partition, *part.names), statement=said)

    return tuple(map(placed, charges))


def statement_of(job: LearnJob, charges: Sequence[Charge]) -> PrivacyStatement:
    """What holds for whoever is in the lake: the largest of disjoint parts, else all charges together."""
    if not charges:
        return PrivacyStatement.none()
    parts = [[one for one in charges if one.part == part] for part in dict.fromkeys(one.part for one in charges)]
    if len(parts) > 1 and all(one.part for one in charges):
        found = [_together(job, part) for part in parts]
        for statement in found:
            if all(covers(statement, [one.event for one in part]) for part in parts):
                return statement
    return _together(job, charges)


def _together(job: LearnJob, charges: Sequence[Charge]) -> PrivacyStatement:
    """What charges that read the same rows protect together."""
    if len(charges) == 1:
        return charges[0].statement
    training = any(charge.role != ROLE for charge in charges)
    budgets = [job.asked.budget] if training else []
    if job.evaluation is not None and any(charge.role == ROLE for charge in charges):
        budgets.append(job.evaluation.budget or job.asked.budget)
    first = charges[-1].statement if training and charges[-1].role != ROLE else charges[0].statement
    return PrivacyStatement.of(
        [charge.event for charge in charges],
        job.asked.protect,
        together(budgets),
        mechanism=first.mechanism,
        theorem=first.theorem,
        assumptions=tuple(dict.fromkeys(text for charge in charges for text in charge.statement.assumptions)),
    )


def measured(job: LearnJob, run: Run, model: LinearModel, outcome: Outcome) -> Outcome:
    """What training found, with the evaluation before it."""
    plan = planned(job)
    if plan is None:
        return outcome
    plan = replace(plan, domain=model.domain)  # as the model scales numbers
    gather = partial(run.collect, part=part_of(job, HELD_OUT), domain=model.domain)
    (found,), released = plan.measure(run, [model], gather)
    where = ON_TRAINING_ROWS if job.holdout is None else ""
    rows = "the training rows" if job.holdout is None else f"{in_words(job)} of the ids, held out"
    result = plan.measured(["model"], [found], where, f"counts of {rows}", model)
    model = replace(model, decision=result.decision)
    facts = {**outcome.facts, **result.facts(), "evaluation_noise_std": released.noise_std}

    def save(path: Path) -> None:
        write_text(path, json.dumps(result.to_json(), allow_nan=False) + "\n")

    return replace(
        outcome,
        value=model,
        model=model,
        facts=facts,
        lines=[*result.lines(), *outcome.lines],
        made=[*outcome.made, ("evaluated on", rows)],
        sections=lambda: [*result.sections(), *outcome.sections()],
        files={**outcome.files, "evaluation.json": save},
    )
