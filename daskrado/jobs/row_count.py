"""How many rows a learner on passes reckons with: given, described, from the footers, or counted in private first."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, cast

from daskrado.errors import DataError, UsageError
from daskrado.jobs import class_weight as weighting
from daskrado.jobs.base import Charge, Line, Outcome, Run
from daskrado.jobs.measure import ROUNDED
from daskrado.lake.holdout import Part
from daskrado.learners.on_passes.iterative import Guarantee, IterativeLearner, worthwhile_guarantee
from daskrado.privacy.accountant import GaussianEvent, gaussian_epsilon, gaussian_mu
from daskrado.privacy.accountant import within as stays_within
from daskrado.privacy.mechanisms import DiscreteGaussian, DiscreteLaplace, OneShot, mechanism
from daskrado.privacy.perturbation import PublicFacts
from daskrado.privacy.protect import Budget, Private
from daskrado.statistics.bounded import target_of
from daskrado.statistics.score_cells import Score, ScoreCells
from daskrado.table.lattice import Lattice

if TYPE_CHECKING:
    from daskrado.jobs.learn import LearnJob

ROLE = "row count"
SHARE = 0.001  # of the budget: of mu^2 where training adds Gaussian noise, else of epsilon
STAND_IN = 100_000  # rows, as if which a learner is chosen and planned before they are counted


class Split(NamedTuple):
    """What the count costs (its mu, or a pure epsilon), and who trains, for how much, under which guarantee."""

    mu: float | None
    epsilon: float
    training: Private
    learner: IterativeLearner
    guarantee: Guarantee


def counted(job: LearnJob) -> bool:
    """Whether rows are counted: their number is secret, a learner on passes needs it, and nobody gave a guess."""
    return isinstance(job.learner, IterativeLearner) and job.counts_rows and job.guessed_rows is None


def split(job: LearnJob) -> Split:
    """A thousandth of the budget for the count, the rest for training; both follow from public facts alone.

    Whatever depends on the number of rows and changes the cost (which learner ``auto`` takes, which noise) is settled
    for STAND_IN rows, so that the charge is known before a row is read.

    Sensitivity
        A row, or a unit that counts for k rows at most, moves the count by 1, or by k. Training takes the noisy count
        as a public fact; its own guarantee holds for any number that it is told, so the two compose adaptively.

    Reference
        Dong, Roth and Su (2022), corollary 3.3, where both are Gaussian; else basic composition.
    """
    try:
        return _split(job, weighting.learning(job))
    except UsageError as error:
        raise UsageError(f"{error}; rows is not given, so this is said for {STAND_IN:,}") from error


def _split(job: LearnJob, whole: Private) -> Split:
    budget, learner = whole.budget, cast(IterativeLearner, job.learner).settled(job.facts_of(STAND_IN, whole))
    mu = gaussian_mu(budget.epsilon - ROUNDED, budget.delta) if budget.delta and budget.epsilon > 2 * ROUNDED else 0.0
    if mu:
        left = gaussian_epsilon(mu * math.sqrt(1 - SHARE), budget.delta)
        training = replace(whole, budget=Budget(epsilon=float(left), delta=budget.delta))
        found, one = worthwhile_guarantee(learner, job.facts_of(STAND_IN, training)), mu * math.sqrt(SHARE)
        if isinstance(found.event, GaussianEvent) and stays_within(
            [GaussianEvent(one), found.event], budget.epsilon, budget.delta
        ):
            return Split(one, 0.0, training, learner, found)
    first, rest = Budget(epsilon=budget.epsilon).shared(SHARE)
    training = replace(whole, budget=Budget(epsilon=rest.epsilon, delta=budget.delta))
    found = worthwhile_guarantee(learner, job.facts_of(STAND_IN, training))
    return Split(None, first.epsilon, training, learner, found)


def _count(job: LearnJob) -> tuple[ScoreCells, Lattice]:
    """One cell that holds every row with a usable label; of a unit, what it counts for."""
    lattice, width = Lattice(job.domain.norm_bound), job.domain.width
    return ScoreCells(width, (Score((0,) * width, ()),), lattice.bits, labels=False), lattice


def _mechanism(job: LearnJob) -> OneShot:
    target = target_of(*_count(job), job.asked.protect)
    if job.split.mu is not None:
        return DiscreteGaussian.of_mu(target, job.split.mu)
    return mechanism(DiscreteLaplace.name, target, job.split.epsilon, 0.0)


def charges(job: LearnJob) -> tuple[Charge, ...]:
    """What the count costs, where there is one."""
    if not counted(job):
        return ()
    return (Charge.of_mechanism(ROLE, _mechanism(job), job.asked, job.assumptions),)


def plan(job: LearnJob) -> Iterator[Line]:
    """Where the number of rows comes from, if not from the pipeline."""
    if counted(job):
        noise = f"standard deviation {_mechanism(job).noise_std()['cells']:.4g}"
        yield "rows", f"counted first, in private, on {100 * SHARE:g} % of the budget ({noise})"
        yield "", f"what follows is said for {STAND_IN:,} of them"


def facts(job: LearnJob, run: Run, part: Part | None) -> PublicFacts:
    """What the learner may know: with the count that is released here, or kept by the run that began it."""
    if not counted(job):
        return job.facts
    statistic, lattice = _count(job)
    values = run.release(ROLE, _mechanism(job), lambda: run.collect(statistic, lattice, part=part)).values["cells"]
    rows = max(1, round(float(values.ravel()[0])))
    found = job.facts_of(rows, job.split.training)
    try:
        again = worthwhile_guarantee(job.split.learner, found)
    except UsageError as error:
        raise DataError(f"{error} (counted in private, which stays charged; nothing was learned)") from error
    if again.event != job.split.guarantee.event:
        raise ValueError(f"learner {job.learner.name} costs {again.event} for {rows} rows, not what was granted")
    return found


def with_count(job: LearnJob, known: PublicFacts, outcome: Outcome) -> Outcome:
    """What training found, with the number of rows that it reckoned with, where that was counted."""
    if not counted(job):
        return outcome
    std = _mechanism(job).noise_std()["cells"]
    whom = "units" if known.by_unit else "rows"
    text = f"about {known.rows:,} {whom}, counted in private (standard deviation {std:.3g})"
    found = {**outcome.facts, "counted": known.rows, "counted_noise_std": std}
    return replace(outcome, facts=found, lines=[*outcome.lines, text], made=[*outcome.made, ("learned from", text)])
