"""A number of rows that nobody gave: counted in private on a thousandth of the budget, or read off the footers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from scipy.stats import kstest, laplace, norm

import daskrado
from daskrado.errors import BudgetError, DataError
from daskrado.jobs import row_count
from daskrado.jobs.learn import LearnJob
from daskrado.jobs.load import load_job
from daskrado.jobs.show import plan_lines
from daskrado.lake.collect import collect
from daskrado.lake.scan import open_lake
from daskrado.ledger.history import check_all
from daskrado.ledger.ledger import Ledger
from daskrado.privacy.accountant import GaussianEvent, PureEvent, compose
from daskrado.privacy.mechanisms import DiscreteLaplace

GRID = [{"kind": "objective_perturbation"}, {"kind": "gradient"}]
LEARNERS: list[Any] = ["gradient", "auto", "objective_perturbation", "output_perturbation"]
LEARNERS.append({"kind": "tuning", "grid": GRID})
Clinic = Any


def keys(lake: Any, domain: Any, **changes: Any) -> dict[str, Any]:
    base = {
        "dataset": "d",
        "lake": lake,
        "domain": domain,
        "output": "out",
        "protect": {"relation": "add_remove", "unit": "one row"},
        "budget": {"epsilon": 1.0, "delta": 1e-6},
        "learner": "gradient",
        "ledger": {"first_limit": {"epsilon": 50, "delta": 1e-3}},
    }
    return {key: value for key, value in (base | changes).items() if value is not None}


def job_of(clinic: Clinic, **changes: Any) -> LearnJob:
    lake, domain = clinic(3000, 3)
    found = load_job(keys(lake, domain, **changes))
    assert isinstance(found, LearnJob)
    return found


@pytest.mark.parametrize("learner", LEARNERS, ids=str)
@pytest.mark.parametrize("epsilon", [0.1, 0.3, 0.7, 1.0, 8.0, 50.0])
@pytest.mark.parametrize("delta", [0.0, 1e-9, 1e-5])
def test_count_and_training_together_stay_within_the_budget(
    clinic: Clinic, learner: Any, epsilon: float, delta: float
) -> None:
    if not delta and "gradient" in str(learner):
        return
    job = job_of(clinic, learner=learner, budget={"epsilon": epsilon, "delta": delta})
    count, training = job.charges()
    assert (count.role, training.role) == ("row count", "release")
    assert compose([count.event, training.event], delta).epsilon <= epsilon * (1 + 1e-9)
    if isinstance(training.event, GaussianEvent) and epsilon < 50:  # there the plain sum is told, which is more
        assert isinstance(count.event, GaussianEvent)
        mus = count.event.mu**2, training.event.mu**2
        assert mus[0] / sum(mus) == pytest.approx(0.001, rel=1e-6)
    else:
        assert isinstance(count.event, PureEvent)
        assert float(count.event.epsilon) == pytest.approx(epsilon / 1000)


@pytest.mark.parametrize(("learner", "law"), [("gradient", norm), ("output_perturbation", laplace)])
def test_the_count_has_the_noise_that_its_charge_pays_for(clinic: Clinic, learner: str, law: Any) -> None:
    """2,000 counts of 3,000 rows against the law of mu = 1 / sigma, or of scale 1 / epsilon; not 2/3 or 3/2 of it."""
    job = job_of(clinic, learner=learner, budget={"epsilon": 4.0, "delta": 1e-6})
    lake, domain = clinic(3000, 3)
    event = job.charges()[0].event
    assert isinstance(event, GaussianEvent if law is norm else PureEvent)
    scale = 1 / event.mu if isinstance(event, GaussianEvent) else 1 / float(event.epsilon)
    statistic, lattice = row_count._count(job)
    summary = collect(statistic, open_lake(lake, domain), domain, lattice)
    drawn = []
    for _ in range(2000):
        mechanism = row_count._mechanism(job)
        noisy = mechanism.perturb(summary.vector)
        drawn.append(float(noisy[0]) / (1 << 16))
    assert kstest(np.array(drawn) - 3000, law(scale=scale).cdf).pvalue > 1e-4
    for wrong in (2 / 3, 3 / 2):
        assert kstest(np.array(drawn) - 3000, law(scale=scale * wrong).cdf).pvalue < 1e-4


@pytest.mark.parametrize(("unit", "times"), [({"rows_per_unit": 7}, 7), ({}, 1)])
def test_a_unit_of_k_rows_means_k_times_the_noise(clinic: Clinic, unit: dict[str, int], times: int) -> None:
    plain = job_of(clinic, learner="output_perturbation", budget={"epsilon": 8.0})
    many = job_of(
        clinic,
        learner="output_perturbation",
        budget={"epsilon": 8.0},
        protect={"relation": "add_remove", "unit": "u", **unit},
    )
    ratio = row_count._mechanism(many).noise_std()["cells"] / row_count._mechanism(plain).noise_std()["cells"]
    assert ratio == pytest.approx(times, rel=1e-6)


def test_the_rule_reckons_with_the_noisy_count_and_never_with_the_true_one(
    clinic: Clinic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The regularisation that is published is the public rule at the count that was released, however wrong it is."""
    job = job_of(clinic, learner={"kind": "output_perturbation", "centre": False}, budget={"epsilon": 2.0})
    genuine = DiscreteLaplace.perturb
    monkeypatch.setattr(DiscreteLaplace, "perturb", lambda self, v: genuine(self, v * 0 + (77_000 << 16)))
    found = daskrado.run(job, write=False)
    counted = found.facts["counted"]
    assert abs(counted - 77_000) < 10 * found.facts["counted_noise_std"]
    said = found.model.details["regularisation"]
    assert said == job.trainer.ridge(job.facts_of(counted, job.split.training))  # type: ignore[attr-defined]
    assert said != job.trainer.ridge(job.facts_of(3000, job.split.training))  # type: ignore[attr-defined]


def test_one_statement_covers_both_and_the_manifest_tells_of_both(clinic: Clinic, tmp_path: Path) -> None:
    lake, domain = clinic(3000, 3)
    daskrado.run(keys(str(lake), domain, output=str(tmp_path / "out"), budget={"epsilon": 8.0, "delta": 1e-6}))
    manifest = yaml.safe_load((tmp_path / "out" / "manifest.json").read_text())
    assert [one["role"] for one in manifest["charges"]] == ["row count", "release"]
    assert manifest["facts"]["counted"] == pytest.approx(3000, abs=6 * manifest["facts"]["counted_noise_std"])
    model = yaml.safe_load((tmp_path / "out" / "model.json").read_text())
    assert math.isclose(model["privacy"]["epsilon"], 8.0, rel_tol=1e-3)
    assert "counted in private" in (tmp_path / "out" / "report.html").read_text()


def test_a_lake_that_turns_out_too_small_costs_the_count_alone(clinic: Clinic, own_ledger: Path) -> None:
    lake, domain = clinic(60, 1)
    with pytest.raises(DataError, match=r"too small for .* rows .*counted in private, which stays charged") as caught:
        daskrado.run(keys(lake, domain, budget={"epsilon": 0.05, "delta": 1e-6}), write=False)
    assert "\n" not in str(caught.value)
    assert [str(one.state) for one in Ledger.open(own_ledger).entries()] == ["spent", "void"]


@pytest.mark.parametrize("relation", ["replace_one", "label_flip"])
def test_a_public_number_is_read_off_the_footers_and_costs_nothing(clinic: Clinic, relation: str) -> None:
    job = job_of(clinic, learner="output_perturbation", protect={"relation": relation, "unit": "one row"})
    assert [charge.role for charge in job.charges()] == ["release"]
    assert job.facts.rows == 3000


def test_a_guess_is_taken_as_it_is(clinic: Clinic) -> None:
    job = job_of(clinic, rows=5000)
    assert [charge.role for charge in job.charges()] == ["release"]
    assert job.facts.rows == 5000


def test_of_held_out_rows_only_the_training_part_is_counted(clinic: Clinic) -> None:
    lake, domain = clinic(3000, 3)
    budget = {"epsilon": 20.0, "delta": 1e-6}
    found = daskrado.run(keys(lake, domain, holdout=0.5, budget=budget), write=False)
    assert found.facts["counted"] == pytest.approx(1500, abs=6 * found.facts["counted_noise_std"] + 150)
    assert found.statement.epsilon == pytest.approx(20, rel=1e-3)


def test_a_plan_says_that_rows_are_counted_and_reads_none(clinic: Clinic) -> None:
    lines = dict(job_of(clinic).plan())
    assert "counted first, in private, on 0.1 % of the budget (standard deviation 133" in lines["rows"]


@pytest.mark.parametrize(
    ("learner", "budget", "limit"),
    [
        ("gradient", {"epsilon": 2.0, "delta": 1e-5}, {"epsilon": 2, "delta": 1e-5}),
        ("output_perturbation", {"epsilon": 2.0}, {"epsilon": 2, "delta": 1e-5}),
        ("output_perturbation", {"epsilon": 2.0}, {"epsilon": 2}),
        ("objective_perturbation", {"epsilon": 0.5}, {"epsilon": 0.5, "delta": 1e-6}),
    ],
)
def test_a_run_that_asks_for_all_of_a_limit_is_granted_once_and_whole(
    clinic: Clinic, own_ledger: Path, learner: str, budget: dict[str, float], limit: dict[str, float]
) -> None:
    """The count is a part of what is asked for: it must not tip the run over the limit that it equals."""
    job = job_of(clinic, learner=learner, budget=budget, ledger={"first_limit": limit})
    planned = next(line for line in plan_lines(job, None) if "this run:" in line)
    assert "= 100 % of the budget of d" in planned
    assert "; 0 % left, no more run like this" in planned
    found = daskrado.run(job, write=False)
    assert "counted" in found.facts
    ledger = Ledger.open(own_ledger)
    assert {str(entry.state) for entry in ledger.entries()} == {"published"}
    assert ledger.balance("d", "add_remove").rule.share(ledger.balance("d", "add_remove").total) == 1  # type: ignore[union-attr]
    assert any("= 100 % of the budget of d" in line for line in found.lines)
    with pytest.raises(BudgetError, match="does not cover this"):
        daskrado.run(job, write=False)
    assert any(line.startswith("refused ") for line in plan_lines(job, ledger))
    check_all(ledger)


def test_what_is_granted_whole_is_given_back_whole_and_resumed_whole(
    clinic: Clinic, own_ledger: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, domain = clinic(3000, 3)
    limit = {"first_limit": {"epsilon": 2, "delta": 1e-5}}
    job = keys(str(lake), domain, output=str(tmp_path / "out"), budget={"epsilon": 2.0, "delta": 1e-5}, ledger=limit)
    genuine = LearnJob.work

    def fails(self: LearnJob, run: Any) -> Any:
        raise DataError("before a draw")

    monkeypatch.setattr(LearnJob, "work", fails)
    with pytest.raises(DataError, match="before a draw"):
        daskrado.run(job)
    ledger = Ledger.open(own_ledger)
    assert [str(entry.state) for entry in ledger.entries()] == ["void"]
    assert ledger.balance("d", "add_remove").total.mu2 == 0  # type: ignore[union-attr]

    def stops(self: LearnJob, run: Any) -> Any:
        row_count.facts(self, run, None)
        raise KeyboardInterrupt

    monkeypatch.setattr(LearnJob, "work", stops)
    with pytest.raises(KeyboardInterrupt):
        daskrado.run(job)
    monkeypatch.setattr(LearnJob, "work", genuine)
    (_, entry) = ledger.entries()
    assert (str(entry.state), entry.role, entry.draws) == ("spent", "all of it", 1)
    done = daskrado.resume(entry.run)
    assert done.run == entry.run
    assert [str(one.state) for one in ledger.entries()] == ["void", "published"]
    check_all(ledger)


def test_a_budget_of_a_block_of_python_holds_a_run_that_asks_for_all_of_it(clinic: Clinic) -> None:
    job = job_of(clinic, budget={"epsilon": 2.0, "delta": 1e-5})
    with daskrado.budget("d", epsilon=2.0, delta=1e-5) as spending:
        daskrado.run(job, write=False)
        assert spending.share == 1
        with pytest.raises(
            BudgetError, match=r"needs .* % of the block's epsilon 2 at delta 1e-05, and 0 % are left"
        ):
            daskrado.run(job, write=False)
