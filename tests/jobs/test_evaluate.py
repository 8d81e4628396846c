"""kind: evaluate. Exact figures against scikit-learn, noise against the sensitivity, groups, errors, commands."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import daskrado
from daskrado.cli.main import cli
from daskrado.errors import DataError, UsageError
from daskrado.jobs.evaluation_report import Measured
from daskrado.jobs.load import load_job
from daskrado.jobs.measure import PLACING, halves
from daskrado.ledger.ledger import Ledger
from daskrado.models.decision import Decision
from daskrado.models.evaluation import Cells, Evaluation
from daskrado.models.linear import LinearModel
from daskrado.models.threshold import Rule
from daskrado.privacy.accountant import GaussianEvent, PureEvent, compose, gaussian_mu
from daskrado.privacy.events import each
from daskrado.privacy.protect import Budget
from daskrado.privacy.statement import PrivacyStatement
from daskrado.table.domain import Domain

BUDGET = {"epsilon": 1.0, "delta": 1e-6}
PATIENT = {"relation": "add_remove", "unit": "one patient"}
Made = tuple[Path, Domain, LinearModel]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A lake with a region that is no feature, its domain, and a model that is neither good nor bad."""
    from daskrado.lake.make import make_lake

    folder = tmp_path_factory.mktemp("evaluate")
    domain = Domain.load(make_lake(folder / "lake", rows=6000, features=12, partitions=3, seed=11))
    draw = np.random.default_rng(1)
    for path in sorted((folder / "lake").glob("*.parquet")):
        frame = pd.read_parquet(path)
        frame.assign(region=draw.choice(["north", "south", "east"], len(frame))).to_parquet(path)
    fitted = daskrado.fit(folder / "lake", domain, dataset="d", private=False, ledger=folder / "l.sqlite").model
    assert fitted is not None
    fitted.save(folder / "model.json")
    worse = LinearModel(domain, fitted.weights * np.linspace(0, 1, domain.width), fitted.statement, "worse", {})
    worse.save(folder / "worse.json")
    return folder, domain, fitted


def keys(made: Made, **changes: Any) -> dict[str, Any]:
    folder = made[0]
    base = {
        "kind": "evaluate",
        "dataset": "d",
        "lake": str(folder / "lake"),
        "model": str(folder / "model.json"),
        "output": "out",
        "protect": PATIENT,
        "budget": BUDGET,
        "ledger": {"first_limit": {"epsilon": 10, "delta": 1e-5}},
    }
    return {key: value for key, value in (base | changes).items() if value is not None}


EXACT = {"private": False, "protect": None, "budget": None, "ledger": None}


def rows_of(made: Made) -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    folder, domain, model = made
    frame = pd.read_parquet(folder / "lake")
    return frame, model.margins(frame), (frame[domain.label.column] == domain.label.pair[1]).to_numpy()


def test_exact_figures_are_scikit_learns(made: Made) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    frame, margins, positive = rows_of(made)
    found = daskrado.run(
        keys(made, **EXACT, by=["sex", {"column": "region", "values": ["north", "south", "east"]}]), write=False
    )
    value = found.value
    assert value.error.value == pytest.approx(np.mean((margins >= 0) != positive), abs=1e-12)
    assert value.base_rate.value == pytest.approx(positive.mean(), abs=1e-12)
    assert value.auc.value == pytest.approx(metrics.roc_auc_score(positive, margins), abs=2e-4)
    for column in ("sex", "region"):
        for name in frame[column].unique():
            mine, cells = (frame[column] == name).to_numpy(), value.groups[column][name]
            assert cells.total.value == mine.sum()
            assert cells.error(cells.place(0.0)).value == pytest.approx(
                np.mean((margins >= 0)[mine] != positive[mine])
            )
            assert cells.auc.value == pytest.approx(metrics.roc_auc_score(positive[mine], margins[mine]), abs=2e-4)
    assert value.groups["region"]["all others"].total.value == 0
    assert not found.statement.private


@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
def test_noise_is_that_of_the_sensitivity_and_both_releases_cost_what_was_asked(made: Made, relation: str) -> None:
    """Two models by two group columns: a row is in four cells, so sigma = sqrt(4) / mu_2, times sqrt 2 replaced."""
    job = load_job(
        keys(
            made,
            protect={"relation": relation, "unit": "one patient"},
            by=["sex", "ward"],
            against=[str(made[0] / "worse.json")],
        )
    )
    (charge,) = job.charges()
    events = [event for event, _ in each(charge.event)]
    mu = [event.mu for event in events if isinstance(event, GaussianEvent)]
    assert mu[0] ** 2 / (mu[0] ** 2 + mu[1] ** 2) == pytest.approx(PLACING, rel=1e-6)
    assert math.hypot(*mu) == pytest.approx(gaussian_mu(1.0, 1e-6), rel=1e-4)
    assert compose(events, 1e-6).epsilon <= 1.0
    found = daskrado.run(job, write=False)
    moved = 4 * (2 if relation == "replace_one" else 1)
    assert found.release.noise_std["cells"] == pytest.approx(math.sqrt(moved) / mu[1], rel=1e-4)
    assert found.statement.epsilon == pytest.approx(1.0, abs=1e-5)


def test_a_pure_budget_is_divided_as_it_is() -> None:
    one, two = halves(Budget(epsilon=0.5), 0.2)
    assert (one.epsilon, two.epsilon, one.delta, two.delta) == (0.1, 0.4, 0.0, 0.0)
    one, two = halves(Budget(epsilon=1e-4, delta=1e-6), 0.2)  # too small for shares of mu
    assert one.epsilon + two.epsilon <= 1e-4
    assert one.delta + two.delta <= 1e-6


@pytest.mark.parametrize("epsilon", [1.0, 8.0, 10.0, 15.0, 20.0, 30.0, 50.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-6, 1e-3])
def test_both_releases_together_cost_no_more_than_any_budget(made: Made, epsilon: float, delta: float) -> None:
    """At large budgets noise is too coarse for its grid to count as normal, and costs more by zCDP."""
    (charge,) = load_job(keys(made, budget={"epsilon": epsilon, "delta": delta})).charges()
    assert compose([charge.event], delta).epsilon <= epsilon * (1 + 1e-9)


def test_a_pure_evaluation_runs(made: Made, own_ledger: Path) -> None:
    found = daskrado.run(keys(made, budget={"epsilon": 1.0}), write=False)
    assert (found.statement.epsilon, found.statement.delta) == (1.0, 0.0)
    (entry,) = Ledger.open(own_ledger).entries()
    assert {type(event) for event, _ in each(entry.event)} == {PureEvent}


def test_noisy_counts_are_the_exact_ones_and_noise(made: Made) -> None:
    """Counts in the bins that the noise placed, by hand from the rows; what is left is noise of the stated size."""
    frame, margins, positive = rows_of(made)
    found = daskrado.run(keys(made, by=["sex"], bins=10), write=False).value
    left = []
    for name, cells in found.groups["sex"].items():
        mine = (frame["sex"] == name).to_numpy()
        code = np.searchsorted(cells.edges, margins, side="right")
        for side, counts in ((False, cells.negative), (True, cells.positive)):
            left.append((counts - np.bincount(code[mine & (positive == side)], minlength=10)) / cells.std)
    noise = np.concatenate(left)
    assert len(noise) == 60
    assert abs(noise.mean()) < 4 / math.sqrt(60)
    assert 0.65 < noise.std() < 1.4
    assert abs(found.error.value - np.mean((margins >= 0) != positive)) < 0.05


def test_bins_follow_scores_that_are_all_on_one_side(made: Made) -> None:
    """A model of rare events says no to everybody, and still its ranking is seen."""
    metrics = pytest.importorskip("sklearn.metrics")
    folder, domain, model = made
    shifted = model.weights.copy()
    shifted[-1] -= 20.0
    _, margins, positive = rows_of((folder, domain, LinearModel(domain, shifted, model.statement, "far", {})))
    assert not (margins >= 0).any()
    found = daskrado.evaluate(
        LinearModel(domain, shifted, model.statement, "far", {}), str(folder / "lake"), dataset="d", private=False
    ).value
    assert found.auc.value == pytest.approx(metrics.roc_auc_score(positive, margins), abs=1e-3)
    assert found.error.value == pytest.approx(positive.mean())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"by": ["patient"]}, "by: 'patient' is no column of the domain; for another column of the lake say which"),
        ({"by": ["age"]}, "by: column 'age' is a number without bins"),
        ({"by": ["readmitted"]}, "by: 'readmitted' is the label"),
        ({"by": ["sex", "sex"]}, "by names a column twice: sex, sex"),
        ({"by": [{"column": "a", "values": [1]}, {"column": "b", "values": [1]}]}, "at most one column may lie"),
        ({"protect": {"relation": "label_flip", "unit": "one label"}}, "add_remove or replace_one, not label_flip"),
        ({"model": "nowhere.json"}, "nowhere.json: cannot be read"),
        ({"model": 7}, "must be the path of a model file, or a model, got int"),
        ({"bins": 1}, "bins"),
        ({"budget": None}, "protect and budget are missing; for exact figures without protection say private: false"),
    ],
)
def test_mistakes_are_named(made: Made, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as error:
        load_job(keys(made, **changes))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_model_of_another_domain_is_refused(made: Made, tmp_path: Path) -> None:
    other = {"label": {"column": "x", "positive": 1, "negative": 0}, "columns": {"a": {"kind": "boolean"}}}
    model = LinearModel(Domain.model_validate(other), np.zeros(2), PrivacyStatement.none(), "other")
    model.save(tmp_path / "other.json")
    with pytest.raises(UsageError, match=r"against: .*other\.json was learned for another domain"):
        load_job(keys(made, against=[str(tmp_path / "other.json")]))


@pytest.mark.parametrize(
    ("by", "said"),
    [
        ({"column": "nowhere", "values": ["a"]}, "by 'nowhere': the lake has no such column; it has"),
        ({"column": "region", "values": [1, 2]}, "by 'region': it is .*string, but the groups are"),
    ],
)
def test_a_group_column_that_does_not_fit_costs_nothing(made: Made, own_ledger: Path, by: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        daskrado.run(keys(made, by=[by]), write=False)
    learn = {"kind": "learn", "domain": made[1], "holdout": 0.2, "evaluate": {"by": [by]}, "model": None}
    with pytest.raises(DataError, match=said):
        daskrado.run(keys(made, **learn), write=False)
    assert not Ledger.open(own_ledger).entries()


def test_a_model_that_is_not_there_is_named(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(cli, ["evaluate", "nowhere", str(made[0] / "lake"), "--epsilon", "0.2"])
    assert isinstance(done.exception, UsageError)
    assert "nowhere: cannot be read" in str(done.exception)


def test_models_of_a_kernel_are_measured_too(made: Made) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    folder, domain, _ = made
    kernel = {"kind": "gaussian", "gamma": 0.1, "features": 40}
    other = Domain.model_validate({**domain.model_dump(mode="json"), "kernel": kernel, "norm_bound": 1.5})
    model = daskrado.fit(folder / "lake", other, dataset="d", private=False).model
    assert model is not None
    frame = pd.read_parquet(folder / "lake")
    positive = (frame[domain.label.column] == domain.label.pair[1]).to_numpy()
    found = daskrado.evaluate(model, str(folder / "lake"), dataset="d", private=False).value
    assert found.auc.value == pytest.approx(metrics.roc_auc_score(positive, model.margins(frame)), abs=5e-4)
    with pytest.raises(UsageError, match="by: the domain's kernel mixes every column"):
        daskrado.evaluate(model, str(folder / "lake"), dataset="d", private=False, by=["sex"])


@pytest.mark.slow
def test_two_workers_give_the_same_bits(made: Made, two_workers: Any) -> None:
    """Without noise, whose seeds the workers' names would move."""
    by = ["sex", {"column": "region", "values": ["north", "south", "east"]}]
    found = [
        daskrado.run(keys(made, **EXACT, by=by), write=False, cluster=cluster).release.values["cells"].tolist()
        for cluster in (None, two_workers)
    ]
    assert found[0] == found[1]


def test_the_command_takes_data_set_protection_and_delta_from_the_models_run(made: Made, tmp_path: Path) -> None:
    folder, domain, _ = made
    unit = {"column": "patient_id", "name": "one patient"}
    daskrado.fit(
        folder / "lake",
        domain,
        dataset="visits",
        epsilon=1.0,
        delta=1e-6,
        unit=unit,
        first_limit=(10, 1e-5),
        output=tmp_path / "run",
    )
    words = ["evaluate", str(tmp_path / "run"), str(folder / "lake"), "--by", "sex", "--by", "region=north,south"]
    done = CliRunner().invoke(cli, [*words, "--epsilon", "0.5"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "Differentially private for one patient" in done.output
    assert "area under the ROC curve: 0." in done.output
    written = json.loads((tmp_path / "run-evaluation" / "evaluation.json").read_text())
    assert written["schema"] == "daskrado.evaluation/1"
    assert set(written["groups"]["region"]) == {"north", "south", "all others"}
    manifest = json.loads((tmp_path / "run-evaluation" / "manifest.json").read_text())
    assert (manifest["dataset"], manifest["statement"]["column"]) == ("visits", "patient_id")
    page = (tmp_path / "run-evaluation" / "report.html").read_text()
    for title in ("How good the model is", "ROC curve, and every threshold", "Calibration", "By sex"):
        assert title in page
    assert "may have been trained on" in done.output
    refused = CliRunner().invoke(cli, words)
    assert "epsilon: an evaluation is charged" in str(refused.exception)


def test_a_threshold_that_was_chosen_says_that_it_flatters_itself() -> None:
    cells = Cells(np.array([-1.0, 0.0, 1.0]), np.array([400.0, 300, 200, 50]), np.array([20.0, 60, 120, 150]), 0.0)
    found = {"model": Evaluation(cells, {})}
    for rule, words in (
        ("f1", "the largest F1"),
        ("youden", "the largest true minus false positive rate"),
        ("cost=5", "a missed positive costs as much as 5 false alarms"),
        ("rate=0.1", "10 % are called positive"),
    ):
        decision = Decision.of(cells, Rule.model_validate(rule), "here")
        lines = [*Measured(found, ("no", "yes"), decision=decision).lines()]
        error = cells.error(cells.place(decision.threshold))
        assert f"  error where {words}: {error}" in lines
        assert any("expect a little more error on new rows" in line for line in lines)
    assert not any("expect a little more" in line for line in Measured(found, ("no", "yes")).lines())


def test_where_noise_hides_the_rows_a_figure_is_not_known_and_not_zero() -> None:
    """Forty rows under noise of 30 on each count: any share of them is possible."""
    few = Cells(np.array([-1.0, 0.0, 1.0]), np.array([9.0, -12, 31, 4]), np.array([-20.0, 6, 12, 10]), 30.0)
    many = Cells(few.edges, 1000 * np.ones(4), 1000 * np.ones(4), 30.0)
    told = Measured({"model": Evaluation(few, {"sex": {"f": few, "m": many}})}, ("no", "yes"))
    lines = [*told.lines()]
    assert "  error: not known" in lines
    assert "  area under the ROC curve: not known" in lines
    assert any("too few rows for this budget" in line and "larger epsilon" in line for line in lines)
    assert any(line.startswith("  sex m: error 0.5") for line in lines)
    first = told.sections()[0]
    assert "too few rows for this budget" in first.text
    assert ("error", "not known", "0.0000 to 1.0000") in first.rows
    enough = Measured({"model": Evaluation(many, {})}, ("no", "yes"))
    assert not any("too few" in line for line in enough.lines())
