"""Error bars of the noisy gradient: coverage on a known population, empty categories, what noise hides."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from known_clinic import Clinic

from daskrado.learners.on_passes.descent_errors import Trace, descent_bars, likely, published_weights
from daskrado.learners.on_passes.preconditioner import Preconditioner
from daskrado.learners.on_passes.schedule import STEPS, Schedule, noises, schedule
from daskrado.losses.margin import Huber, HuberLogistic, Logistic
from daskrado.models.error_bars import NOISE, SIGNAL, UNKNOWN, UNSEEN
from daskrado.privacy.accountant import gaussian_mu
from daskrado.privacy.perturbation import PublicFacts
from daskrado.privacy.relations import Relation

OTHER = 4  # ward=other, which nobody has


def public(clinic: Clinic, rows: int, epsilon: float) -> tuple[PublicFacts, Schedule]:
    domain = clinic.domain
    facts = PublicFacts(rows, domain.width, domain.norm_bound, Relation.ADD_REMOVE, epsilon, 1e-6)
    return facts, schedule(facts, None, STEPS, noises(facts, gaussian_mu(epsilon, 1e-6), STEPS, 1.0, 1.0), 1.0)


def descended(
    clinic: Clinic, facts: PublicFacts, plan: Schedule, random: np.random.Generator
) -> tuple[Trace, np.ndarray]:
    """The learner's own schedule on a sample of the population, summed cell by cell, with normal noise."""
    x, width = clinic.x, facts.width
    counts = random.multinomial(facts.rows, clinic.chance)
    sick = random.binomial(counts, clinic.yes)
    _, second = clinic.sums(counts, sick)
    above = second[np.triu_indices(width, 1)]
    noise = plan.moments_noise * random.normal(size=width), plan.moments_noise * random.normal(size=len(above))
    moments = np.concatenate([np.diag(second) + noise[0], above + noise[1] / math.sqrt(2)])
    metric = Preconditioner(clinic.domain, plan, moments)
    follow = metric.at(np.zeros(width))
    place, before, gathered, total, point, late = (np.zeros(width) for _ in range(6))
    averaged = plan.count // 2
    for step in range(1, plan.count + 1):
        ahead = place + plan.momentum * (place - before)
        here = follow(ahead)
        margin = x @ here
        exact = x.T @ (plan.loss.slope(margin) * sick - plan.loss.slope(-margin) * (counts - sick))
        gradient = (exact + plan.noise * random.normal(size=width)) / plan.rows
        gathered += gradient
        place, before = ahead - gradient, place
        if step & (step - 1) == 0:
            follow = metric.at(metric.standing_out(gathered, plan.noise / plan.rows * math.sqrt(step)))
        if step > plan.count - averaged:
            total += follow(place) / averaged
            point, late = point + here / averaged, late + gradient / averaged
    return Trace.of(plan, facts, moments, point, late, averaged, gathered), total


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shift", "rows", "epsilon"),
    [
        (0.0, 200_000, 1.0),
        (-2.0, 200_000, 1.0),  # one in five is positive
        (0.0, 20_000, 1.0),  # near where there are no intervals any more
    ],
)
def test_intervals_hold_the_populations_weights(shift: float, rows: int, epsilon: float) -> None:
    clinic, random = Clinic(1.0, shift), np.random.default_rng(11)
    facts, plan = public(clinic, rows, epsilon)
    truth, held, right = clinic.best(plan.loss), [], 0
    for _ in range(250):
        bars = descent_bars(clinic.domain, descended(clinic, facts, plan, random)[0])
        held.append(np.delete((bars.low <= truth) & (truth <= bars.high), OTHER))
        right += bars.marks[OTHER] == UNSEEN
    coverage = np.mean(held, axis=0)
    assert 0.93 < coverage.mean() < 0.97
    assert coverage.min() > 0.89  # of 250 runs: three deviations below 0.94
    assert right >= 248


def test_intervals_that_leave_out_the_noise_hold_too_little() -> None:
    clinic, random = Clinic(1.0, 0.0), np.random.default_rng(12)
    facts, plan = public(clinic, 100_000, 0.05)
    truth, held = clinic.best(plan.loss), []
    for _ in range(100):
        trace = descended(clinic, facts, plan, random)[0]
        bars = descent_bars(clinic.domain, replace(trace, gradient_noise=0.0))
        held.append(np.delete((bars.low <= truth) & (truth <= bars.high), OTHER))
    assert np.mean(held) < 0.88


def test_an_empty_category_never_changes_a_prediction() -> None:
    """A row with it gets the mean of its column; predictions of all others are those of the descent itself."""
    clinic, random = Clinic(1.0, -1.0), np.random.default_rng(13)
    facts, plan = public(clinic, 50_000, 1.0)
    for _ in range(20):
        trace, total = descended(clinic, facts, plan, random)
        told = published_weights(clinic.domain, trace, total)
        assert clinic.x @ told == pytest.approx(clinic.x @ total, abs=1e-9)
        assert told[OTHER] == 0
        share = np.diag(trace.second)[1:4] / np.diag(trace.second)[1:4].sum()
        assert share @ told[1:4] == pytest.approx(0.0, abs=1e-9)


def test_a_category_that_noise_may_hide_keeps_its_weight() -> None:
    """At epsilon 0.03 a category of a tenth of the rows may be hidden: its gradients say more than nothing."""
    clinic, random = Clinic(1.0, -1.0), np.random.default_rng(15)
    facts, plan = public(clinic, 20_000, 0.03)
    trace, total = descended(clinic, facts, plan, random)
    told = published_weights(clinic.domain, replace(trace, gathered=np.zeros(len(total))), total)
    assert clinic.x @ told == pytest.approx(clinic.x @ total, abs=1e-9)


def test_an_empty_category_moves_no_prediction_where_noise_could_hide_it() -> None:
    """At so little budget squares say nothing of ward=other, which nobody has: it is the mean of its column."""
    clinic, random = Clinic(1.0, -1.0), np.random.default_rng(16)
    facts, plan = public(clinic, 20_000, 0.3)
    moved = []
    for _ in range(60):
        trace, total = descended(clinic, facts, plan, random)
        told, marks = published_weights(clinic.domain, trace, total), descent_bars(clinic.domain, trace).marks
        assert (told[OTHER] == 0) == (marks[OTHER] == UNSEEN)  # what is said of it is true
        moved.append(told[OTHER] != 0)
    assert sum(moved) <= 3  # each with a chance of 0.003


def test_no_interval_where_noise_hides_an_eigenvalue_or_products_are_missing() -> None:
    clinic, random = Clinic(1.0, 0.0), np.random.default_rng(14)
    facts, plan = public(clinic, 50_000, 3.0)
    trace, _ = descended(clinic, facts, plan, random)
    assert set(descent_bars(clinic.domain, trace).marks) <= {SIGNAL, NOISE, UNSEEN}
    second = trace.second.copy()
    second[0] = second[:, 0] = 0.5 * second[-1]  # age is half the constant, for all but a few
    second[0, 0] = 0.25 * second[-1, -1] + trace.second_noise
    squares = np.diag(trace.second)  # all that is released of very many features
    for worse in (replace(trace, second=second), replace(trace, pairs=False, second=squares)):
        bars = descent_bars(clinic.domain, worse)
        assert np.isnan(bars.low).all()
        assert set(bars.marks) <= {UNKNOWN, UNSEEN}
        assert bars.about.startswith("no intervals: ")


@pytest.mark.parametrize("loss", [Logistic(), Huber(1.0), HuberLogistic(0.3, 1.0)])
def test_a_margin_is_best_at_the_chance_that_is_likely_there(loss: Logistic) -> None:
    margins = np.linspace(-1.5, 1.5, 7)
    chance, little = likely(loss, margins), 1e-4

    def risk(at: np.ndarray) -> np.ndarray:
        return np.asarray(chance * loss.value(at) + (1 - chance) * loss.value(-at))

    assert (risk(margins) <= risk(margins + little) + 1e-12).all()
    assert (risk(margins) <= risk(margins - little) + 1e-12).all()
