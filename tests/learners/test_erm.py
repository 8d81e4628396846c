"""Private minimisers in whole runs: what they cost, what they hide, how they fail."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damaged_files import damaged_copy
from scipy.stats import binomtest, kstest

import daskrado
from daskrado.errors import BudgetError, DataError, UsageError
from daskrado.lake.collect import open_passes
from daskrado.lake.scan import open_lake
from daskrado.learners.on_passes import erm
from daskrado.learners.on_passes.auto import Auto
from daskrado.learners.on_passes.erm import SHARES, Erm, ObjectivePerturbation, OutputPerturbation
from daskrado.learners.on_passes.gradient import PrivateGradient
from daskrado.learners.on_passes.iterative import Session, noise_to_signal
from daskrado.learners.on_passes.solver import Objective, Solution, certifiable, minimise
from daskrado.learners.on_passes.tuning import Tuning
from daskrado.ledger.ledger import Ledger, State
from daskrado.losses.margin import Huber, Logistic, Square
from daskrado.privacy.accountant import ApproximateEvent, GaussianEvent, PureEvent, gaussian_mu
from daskrado.privacy.perturbation import PublicFacts, output_scale
from daskrado.privacy.relations import Relation
from daskrado.table.domain import Domain
from daskrado.table.lattice import Lattice

Clinic = Callable[..., tuple[Path, Domain]]
PRIVATE = {"relation": "replace_one", "first_limit": (50, 0.1)}


def facts_of(domain: Domain, rows: int, epsilon: float = 1.0, delta: float = 0.0) -> PublicFacts:
    return PublicFacts(rows, domain.width, domain.norm_bound, Relation.REPLACE_ONE, epsilon, delta)


def session(path: Path, domain: Domain) -> Any:
    return open_passes(open_lake(path, domain), domain, Lattice(domain.norm_bound))


@pytest.mark.slow
def test_output_noise_has_the_l2_gamma_law_and_not_one_of_another_scale(clinic: Clinic) -> None:
    """200 releases of one minimiser: their distances from it are Gamma(d, scale), rejected at 2/3 and 3/2 of it."""
    path, domain = clinic(3000, 3)
    facts, learner = facts_of(domain, 3000), OutputPerturbation(Logistic(), 0.05)
    with session(path, domain) as passes:
        exact = minimise(Objective(Logistic(), 0.05, 3000), passes, 1e-9)
        spent: list[int] = []
        drawn = [learner.learn(Session(passes, lambda: spent.append(1)), facts).weights for _ in range(200)]
    assert len(spent) == 200
    scale = output_scale(Logistic(), 0.05, facts, 1.0, 1e-9 * domain.norm_bound)
    assert scale == pytest.approx(2 * domain.norm_bound / (3000 * 0.05), rel=1e-4)
    lengths = [float(np.linalg.norm(w - exact.weights)) for w in drawn]
    assert kstest(lengths, "gamma", args=(domain.width, 0, scale)).pvalue > 1e-4
    for wrong in (2 / 3, 3 / 2):
        assert kstest(lengths, "gamma", args=(domain.width, 0, wrong * scale)).pvalue < 1e-6


@pytest.mark.parametrize(
    ("learner", "budget", "event"),
    [
        ({"kind": "output_perturbation"}, (1.0, 0.0), PureEvent(1.0)),
        ({"kind": "objective_perturbation", "noise": "gamma"}, (1.0, 1e-6), PureEvent(1.0)),
        ({"kind": "objective_perturbation"}, (1.0, 1e-6), ApproximateEvent(1.0, 1e-6)),
        ({"kind": "gradient", "steps": 5}, (1.0, 1e-6), GaussianEvent(gaussian_mu(1.0, 1e-6))),
    ],
)
def test_a_run_spends_exactly_its_event_and_publishes_public_facts(
    clinic: Clinic, tmp_path: Path, own_ledger: Path, learner: dict[str, Any], budget: tuple[float, float], event: Any
) -> None:
    path, domain = clinic(3000, 3)
    result = daskrado.fit(
        path,
        domain,
        dataset="c",
        learner=learner,
        epsilon=budget[0],
        delta=budget[1],
        output=tmp_path / "o",
        **PRIVATE,
    )
    entries = Ledger.open(own_ledger).entries()
    assert [(e.state, e.event) for e in entries] == [(State.PUBLISHED, event)]
    statement = result.statement
    assert statement.epsilon is not None
    assert statement.epsilon <= budget[0] * (1 + 1e-12)
    manifest = json.loads((tmp_path / "o" / "manifest.json").read_text())
    assert "seconds" not in manifest  # how long anything took depends on the rows
    assert not {"passes", "gradient_norm", "risk"} & set(result.model.details)
    said = {"output_perturbation": "128 bits", "objective_perturbation": "idealised"}.get(learner["kind"], "")
    assert any(said in text for text in statement.assumptions)
    assert (tmp_path / "o" / "report.html").read_text().count("Noise against signal") >= 1


def test_the_exact_minimiser_says_it_is_not_private(clinic: Clinic) -> None:
    path, domain = clinic(3000, 3)
    result = daskrado.fit(path, domain, dataset="c", learner={"kind": "erm"}, private=False)
    assert not result.model.statement.private
    assert result.model.details["gradient_norm"] <= 1e-9 * domain.norm_bound
    with pytest.raises(UsageError, match="erm adds no noise"):
        daskrado.fit(path, domain, dataset="c", learner={"kind": "erm"}, epsilon=1.0, **PRIVATE)


@pytest.mark.slow
def test_a_private_minimiser_is_always_certified(clinic: Clinic, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else whether it is would depend on the rows, and with it what is published. Whatever tolerance is asked for."""
    path, domain = clinic(3000, 3)
    found: list[Solution] = []

    def seen(*args: Any, **options: Any) -> Solution:
        found.append(minimise(*args, **{**options, "max_passes": 1}))
        return found[-1]

    monkeypatch.setattr(erm, "minimise", seen)
    with session(path, domain) as passes:
        for kind in (OutputPerturbation, ObjectivePerturbation):
            for loss, tolerance in ((Logistic(), 1e-9), (Huber(0.05), 1e-9), (Logistic(), 1e-300)):
                learner = kind(loss, 0.02, tolerance=tolerance)
                learner.learn(Session(passes, lambda: None), facts_of(domain, 3000))
    assert len(found) == 6
    assert all(solution.certified for solution in found)
    uncertified = replace(found[0], certified=False)
    with pytest.raises(ValueError, match="calibrated for a certified minimiser"):
        OutputPerturbation(Logistic(), 0.02).release(uncertified, facts_of(domain, 3000))


def test_output_noise_that_cannot_be_drawn_is_refused_before_it_is_paid_for() -> None:
    """At a tiny epsilon the noise spans more steps of its grid than the sampler has room for."""
    with pytest.raises(UsageError, match=r"above 0 and below 2\^52 grid steps"):
        OutputPerturbation().guarantee(PublicFacts(10**12, 9, 1.0, Relation.ADD_REMOVE, 1e-9))
    assert OutputPerturbation().guarantee(PublicFacts(10**4, 9, 1.0, Relation.ADD_REMOVE, 1.0)).delta == 0


@pytest.mark.parametrize("kind", ["output_perturbation", "objective_perturbation", "gradient"])
def test_an_unreadable_file_is_found_before_anything_is_spent(
    clinic: Clinic, tmp_path: Path, own_ledger: Path, kind: str
) -> None:
    path, domain = clinic(3000, 3)
    damaged_copy(path, tmp_path / "lake")
    with pytest.raises(DataError, match="cannot be read as Parquet") as caught:
        daskrado.fit(
            tmp_path / "lake", domain, dataset="c", learner={"kind": kind}, epsilon=1.0, delta=1e-6, **PRIVATE
        )
    assert not getattr(caught.value, "__notes__", [])
    assert [e.state for e in Ledger.open(own_ledger).entries()] == [State.VOID]


@pytest.mark.parametrize("kind", ["output_perturbation", "objective_perturbation"])
def test_progress_does_not_tell_how_many_passes_the_solver_takes(clinic: Clinic, kind: str) -> None:
    path, domain = clinic(3000, 3)
    learner = {"output_perturbation": OutputPerturbation, "objective_perturbation": ObjectivePerturbation}[kind]
    steps: list[tuple[int, int]] = []
    with session(path, domain) as passes:
        session_ = Session(passes, lambda: None, progress=lambda done, total: steps.append((done, total)))
        learner(Logistic(), 0.05).learn(session_, facts_of(domain, 3000))
        assert passes.done > 2
    assert steps == [(1, 3), (2, 3), (3, 3)]


def test_one_class_is_an_error_for_a_baseline_and_nothing_to_tell_for_a_private_run(clinic: Clinic) -> None:
    path, domain = clinic(3000, 3)
    table = open_lake(path, domain).partitions[0]
    frame = next(table.tables([*domain.columns, "readmitted"]))[1].to_pandas()
    frame["readmitted"] = "yes"
    domain = domain.model_copy(update={"id": None})
    with pytest.raises(DataError, match="every row has the label 'yes'"):
        daskrado.fit(frame, domain, dataset="c", learner={"kind": "erm"}, private=False)
    for kind in ("output_perturbation", "objective_perturbation"):
        made = daskrado.fit(frame, domain, dataset="c", learner={"kind": kind}, epsilon=5.0, **PRIVATE)
        assert made.model.weights.shape == (domain.width,)


def test_a_refused_budget_reads_nothing_and_a_failed_read_gives_the_grant_back(
    clinic: Clinic, own_ledger: Path, tmp_path: Path
) -> None:
    path, domain = clinic(3000, 3)
    options = PRIVATE | {"first_limit": (0.5, 0)}
    with pytest.raises(BudgetError):
        daskrado.fit(path, domain, dataset="c", learner={"kind": "objective_perturbation"}, epsilon=1.0, **options)
    bad = damaged_copy(path, tmp_path / "bad")
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        daskrado.fit(bad, domain, dataset="c", learner={"kind": "output_perturbation"}, epsilon=0.4, **options)
    assert [e.state for e in Ledger.open(own_ledger).entries()] == [State.VOID]


def test_gradient_learns_and_its_noise_is_that_of_the_composed_gaussian(clinic: Clinic) -> None:
    path, domain = clinic(20_000, 2)
    facts = facts_of(domain, 20_000, 1.0, 1e-6)
    plan = PrivateGradient(steps=60).schedule(facts)
    assert plan.noise == pytest.approx(2 * math.sqrt(60) / gaussian_mu(1.0, 1e-6))
    exact = daskrado.fit(path, domain, dataset="c", learner={"kind": "erm"}, private=False)
    noisy = daskrado.fit(
        path, domain, dataset="c", learner={"kind": "gradient", "steps": 60}, epsilon=1.0, delta=1e-6, **PRIVATE
    )
    partition = open_lake(path, domain).partitions[0]
    table = next(partition.tables([*domain.columns, "readmitted"]))[1]
    truth = np.array(table["readmitted"].to_pylist()) == "yes"
    wrong = [float(((m.model.margins(table) >= 0) != truth).mean()) for m in (exact, noisy)]
    assert wrong[1] < wrong[0] + 0.03
    assert wrong[1] < min(truth.mean(), 1 - truth.mean()) - 0.05


def test_gradient_tells_neighbours_apart_no_better_than_it_says(clinic: Clinic) -> None:
    """An attack on a noisy gradient with a good threshold: its lower bound on epsilon stays below epsilon."""
    from daskrado.privacy.noise import discrete_gaussian

    epsilon, delta, runs = 1.0, 1e-2, 3000
    facts = PublicFacts(10, 1, 1.0, Relation.REPLACE_ONE, epsilon, delta)
    noise = PrivateGradient(steps=1).schedule(facts).noise
    unit = 2.0**-36
    outcomes = []
    for side in (1.0, -1.0):
        sums = np.full(runs, round(side / unit), dtype=np.int64)
        outcomes.append(discrete_gaussian(sums, noise / unit) * unit)
    threshold = 1.0
    hits, false = int((outcomes[0] > threshold).sum()), int((outcomes[1] > threshold).sum())
    low = binomtest(hits, runs).proportion_ci(0.99).low
    high = binomtest(false, runs).proportion_ci(0.99).high
    assert math.log((low - delta) / high) <= epsilon
    # Positive control: a third of the noise would be caught.
    weak = [
        discrete_gaussian(np.full(runs, round(s / unit), dtype=np.int64), noise / unit / 3) * unit for s in (1, -1)
    ]
    hits, false = int((weak[0] > threshold).sum()), int((weak[1] > threshold).sum())
    low, high = binomtest(hits, runs).proportion_ci(0.99).low, binomtest(false, runs).proportion_ci(0.99).high
    assert math.log((low - delta) / high) > epsilon


def test_plan_explains_auto_and_reads_no_row(clinic: Clinic) -> None:
    _, domain = clinic(3000, 3)
    lines = dict(Auto().forecast(facts_of(domain, 50_000, 1.0, 1e-6)))
    assert lines["chooses"].startswith("gradient: ")
    assert "best wherever measured" in lines["chooses"]
    pure = facts_of(domain, 50_000, 1.0)
    assert Auto().chosen(pure).name in ("objective_perturbation", "output_perturbation")
    assert "least forecast excess loss" in dict(Auto().forecast(pure))["chooses"]
    for epsilon in (0.1, 1.0, 10.0, 50.0):  # forecasts cross, measured errors do not
        assert Auto().chosen(facts_of(domain, 15_000, epsilon, 1e-6)).name == "gradient"
    assert Auto(number=True).ranked(facts_of(domain, 50_000, 1.0, 1e-6))[0][0] == Auto(number=True).excess(
        facts_of(domain, 50_000, 1.0, 1e-6)
    )


def test_more_budget_and_more_rows_never_forecast_more_excess(clinic: Clinic) -> None:
    _, domain = clinic(3000, 3)
    base = facts_of(domain, 20_000, 0.3, 1e-6)
    for learner in (OutputPerturbation(), ObjectivePerturbation(), PrivateGradient(), Auto()):
        here = learner.excess(base)
        assert learner.excess(replace(base, epsilon=1.0)) < here
        assert learner.excess(replace(base, rows=100_000)) < here


@pytest.mark.parametrize(
    ("learner", "options", "said"),
    [
        ({"kind": "objective_perturbation", "regularisation": 0}, {}, "must be above 0 for a private fit"),
        ({"kind": "output_perturbation", "loss": "square"}, {}, "no bound on its slope"),
        ({"kind": "gradient"}, {"epsilon": 1.0}, "needs budget.delta"),
        ({"kind": "gradient"}, {"epsilon": 0.001, "delta": 1e-6}, "rows would do"),
        ({"kind": "output_perturbation"}, {"epsilon": 0.001}, "too small for 3,000 rows"),
        ({"kind": "output_perturbation", "loss": "hinge"}, {}, "loss"),
        (
            {"kind": "auto"},
            {"relation": "add_remove", "epsilon": 1e-5},
            "rows is not given, so this is said for 100,000",
        ),
        ({"kind": "tuning", "grid": [{"kind": "output_perturbation"}] * 12}, {"epsilon": 0.1}, "at most"),
        ({"kind": "tuning", "grid": [{"kind": "output_perturbation"}]}, {}, "at least 2"),
    ],
)
def test_bad_input_is_one_line_that_helps(
    clinic: Clinic, own_ledger: Path, learner: dict[str, Any], options: dict[str, Any], said: str
) -> None:
    path, domain = clinic(3000, 3)
    with pytest.raises(UsageError, match=said) as caught:
        daskrado.fit(path, domain, dataset="c", learner=learner, **({"epsilon": 1.0} | PRIVATE | options))
    assert "\n" not in str(caught.value)
    assert not own_ledger.exists() or not Ledger.open(own_ledger).entries()


def test_the_rows_and_the_epsilon_that_would_do_really_do(clinic: Clinic) -> None:
    _, domain = clinic(3000, 3)
    facts = facts_of(domain, 3000, 0.005)
    with pytest.raises(UsageError, match="too small") as caught:
        OutputPerturbation().guarantee(facts)
    words = str(caught.value).split()
    epsilon = float(words[words.index("or") - 1])
    rows = int(words[words.index("or") + 1].replace(",", ""))
    assert noise_to_signal(replace(facts, epsilon=epsilon)) <= 1
    assert noise_to_signal(replace(facts, rows=rows)) <= 1
    assert noise_to_signal(replace(facts, rows=rows - 2)) > 1


def test_square_loss_is_refused_where_it_is_built() -> None:
    with pytest.raises(UsageError, match="no bound on its slope"):
        PrivateGradient(Square())
    with pytest.raises(UsageError, match="adds no noise"):
        Erm().guarantee(PublicFacts(10, 2, 1.0, Relation.REPLACE_ONE, 1.0))
    assert Tuning((OutputPerturbation(Huber()), ObjectivePerturbation(Huber()))).name == "tuning"


def test_a_run_that_could_not_publish_is_resumed_with_the_same_weights(
    clinic: Clinic, own_ledger: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The learner does not run again: what it had drawn is kept beside the ledger and published."""
    from daskrado.errors import PublishError
    from daskrado.jobs import publish

    path, domain = clinic(3000, 3)
    drawn: list[np.ndarray] = []
    write = publish.write_files

    def full(outcome: Any, folder: Path) -> None:
        drawn.append(outcome.model.weights)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(publish, "write_files", full)
    with pytest.raises(PublishError, match="--resume"):
        daskrado.fit(
            path,
            domain,
            dataset="c",
            learner={"kind": "objective_perturbation"},
            epsilon=1.0,
            output=tmp_path / "o",
            **PRIVATE,
        )
    monkeypatch.setattr(publish, "write_files", write)
    (entry,) = Ledger.open(own_ledger).entries()
    result = daskrado.resume(entry.run)
    assert np.array_equal(result.model.weights, drawn[0])
    assert result.model.details["loss"] == "logistic"
    assert [e.state for e in Ledger.open(own_ledger).entries()] == [State.PUBLISHED]


@pytest.mark.cluster
def test_noisy_gradients_and_minimisers_on_two_workers(clinic: Clinic, two_workers: Any) -> None:
    """The same session on workers: integer gradients have the same bits as in this process."""
    from daskrado.statistics.slopes import SlopeSum

    path, domain = clinic(3000, 3)
    lake, lattice = open_lake(path, domain), Lattice(domain.norm_bound)
    statistic = SlopeSum.at(np.linspace(-1, 1, domain.width), Huber(), lattice)
    with open_passes(lake, domain, lattice) as here, open_passes(lake, domain, lattice, client=two_workers) as there:
        assert np.array_equal(here.sum(statistic).vector, there.sum(statistic).vector)
        facts = facts_of(domain, 3000, 5.0, 1e-6)
        assert PrivateGradient(steps=3).learn(Session(there, lambda: None), facts).weights.shape == (domain.width,)
        assert ObjectivePerturbation().learn(Session(there, lambda: None), facts).weights.shape == (domain.width,)


def test_clipped_rows_never_exceed_the_bound_in_higher_precision() -> None:
    from daskrado.table.lattice import clip_rows

    draw = np.random.default_rng(0)
    for width in (1, 7, 300):
        rows = draw.normal(size=(300, width)) * draw.choice([1e-3, 1.0, 1e12], size=(300, 1))
        rows[:100] *= (1.7 / np.linalg.norm(rows[:100], axis=1))[:, None]  # at the bound itself
        clipped = clip_rows(np.asfortranarray(rows), 1.7).astype(np.longdouble)
        assert np.sqrt((clipped**2).sum(axis=1)).max() <= np.longdouble(1.7)


def test_cover_noise_is_as_little_as_the_whole_forecast_allows() -> None:
    """330,000 rows, 300 features: with 1 % of epsilon for the cover, margins would move by 0.5, 1.6 at epsilon 10."""
    for epsilon, before in ((1.0, 0.5), (10.0, 1.5)):
        known = PublicFacts(330_000, 300, 1.0, Relation.ADD_REMOVE, epsilon)
        learner = ObjectivePerturbation(Huber(0.5))
        plan = learner.planned(known)
        assert learner._planned("gamma", 0.01, known).margins(known) > before
        assert plan.margins(known) < before / 5
        others = [learner._planned("gamma", share, known) for share in SHARES]
        assert plan.excess(learner.loss, known) == min(one.excess(learner.loss, known) for one in others)
        radius = plan.tolerance / plan.total + plan.step * math.sqrt(300) / 2
        assert plan.cover == pytest.approx(2 * radius / (plan.share * epsilon))
        assert f"{100 * plan.share:g} % of epsilon" in dict(learner.forecast(known))["cover"]


@pytest.mark.parametrize("rows", [3_000, 45_000, 330_000])
def test_the_solver_goes_as_far_as_rounding_allows_and_its_cover_shrinks(rows: int) -> None:
    """By default the tolerance is what is always certifiable, so that less noise, or less epsilon, covers it."""
    facts = PublicFacts(rows, 50, 1.0, Relation.ADD_REMOVE, 1.0, 1e-6)
    fine, coarse = (ObjectivePerturbation(**keys).planned(facts) for keys in ({}, {"tolerance": 1e-8}))
    tilt = fine.noise.rarely_above(50) / rows
    assert fine.tolerance == certifiable(Objective(Logistic(), fine.total, rows), 1.0, 50, tilt)
    assert fine.tolerance < coarse.tolerance == 1e-8
    assert fine.share <= coarse.share
    assert fine.excess(Logistic(), facts) < coarse.excess(Logistic(), facts)
    assert OutputPerturbation().excess(facts) < OutputPerturbation(tolerance=1e-5).excess(facts)
