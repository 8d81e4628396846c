"""goal of a training pipeline: what learner auto optimises, and where yes begins."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from daskrado import fit, run
from daskrado.errors import UsageError
from daskrado.jobs.learn import LearnJob
from daskrado.jobs.load import load_job
from daskrado.learners.on_passes.auto import Auto
from daskrado.learners.on_passes.gradient import PrivateGradient
from daskrado.losses.margin import Huber, HuberLogistic, Logistic
from daskrado.models.link import own_link
from daskrado.privacy.perturbation import PublicFacts
from daskrado.privacy.relations import Relation
from daskrado.sklearn import PrivateClassifier

LABEL = {"column": "sick", "positive": 1, "negative": 0}
COLUMNS = {name: {"kind": "numeric", "lower": -4, "upper": 4} for name in "ab"}
DOMAIN = {"label": LABEL, "id": "id", "columns": COLUMNS}


def rare(rows: int, seed: int = 1) -> pd.DataFrame:
    """About one row in ten is positive, and log-odds are 2 a - b - 3."""
    draw = np.random.default_rng(seed)
    a, b = draw.normal(size=(2, rows))
    sick = draw.random(rows) < 1 / (1 + np.exp(3 + b - 2 * a))
    return pd.DataFrame({"id": np.arange(rows), "a": a, "b": b, "sick": sick.astype(int)})


def keys(**changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"kind": "learn", "dataset": "d", "lake": rare(20_000), "domain": DOMAIN, "output": "out"}
    found |= {"protect": {"relation": "add_remove", "unit": "row"}, "budget": {"epsilon": 1.0, "delta": 1e-6}}
    found |= {"rows": 20_000, "ledger": {"first_limit": {"epsilon": 40.0, "delta": 1e-3}}}
    return found | changes


def job_of(**changes: Any) -> LearnJob:
    found = load_job(keys(**changes))
    assert isinstance(found, LearnJob)
    return found


def mean_cost(model: Any, rows: pd.DataFrame, cost: float) -> float:
    said, true = model.predict(rows).to_numpy(), rows["sick"].to_numpy()
    return float((cost * ((said == 0) & (true == 1)) + ((said == 1) & (true == 0))).mean())


@pytest.mark.parametrize("cost", [0.2, 1.0, 9.0])
def test_costs_put_the_threshold_where_both_mistakes_cost_alike(cost: float) -> None:
    """1 - p = cost p at log-odds of -log(cost); on other rows it costs next to what true log-odds would."""
    model = run(keys(goal={"cost": cost}), write=False).model
    assert model is not None
    assert model.details["huber_share"] <= 0.5
    assert model.decision.threshold == pytest.approx(-math.log(cost), abs=1e-9)
    assert model.decision.chosen == f"a missed positive costs as much as {cost:g} false alarms"
    fresh = rare(40_000, seed=2)
    best = 2 * fresh["a"] - fresh["b"] - 3 >= -math.log(cost)
    sick = fresh["sick"] == 1
    least = float((cost * (~best & sick) + (best & ~sick)).mean())
    assert mean_cost(model, fresh, cost) < 1.1 * least


def test_counts_of_an_evaluation_choose_the_threshold_where_they_are_paid_for(tmp_path: Path) -> None:
    result = run(keys(goal={"cost": 9}, holdout=0.3, output=str(tmp_path / "out")))
    assert result.model is not None
    cells = json.loads((tmp_path / "out" / "evaluation.json").read_text())["counts"]["model"]["cells"]
    edges, yes, no = (np.array(cells[key]) for key in ("edges", "positive", "negative"))
    costs = [9 * yes[: at + 1].sum() + no[at + 1 :].sum() for at in range(len(edges))]
    assert result.model.decision.threshold == edges[int(np.argmin(costs))]
    assert result.model.decision.chosen == "a missed positive costs as much as 9 false alarms"


def test_a_goal_chooses_the_loss() -> None:
    """Where noise is much the rule's loss is Huber's for the most part, whose margins are no probabilities."""
    facts = PublicFacts(2_000, 20, 2.0, Relation.ADD_REMOVE, 1.0, 1e-6)
    chosen = {aim: Auto(aim=aim).chosen(facts) for aim in ("error", "auc", "logloss", "cost")}  # type: ignore[arg-type]
    assert all(isinstance(one, PrivateGradient) for one in chosen.values())
    half = HuberLogistic(0.5, 1.0)
    assert [vars(one)["loss"] for one in chosen.values()] == [None, None, half, half]
    assert own_link("auto", {"loss": "huber_logistic", "huber_share": 0.5}) is not None
    assert chosen["error"].schedule(facts).loss.share > 0.5  # type: ignore[attr-defined]
    pure = PublicFacts(200_000, 20, 2.0, Relation.ADD_REMOVE, 1.0)
    losses = [vars(Auto(aim=aim).chosen(pure))["loss"] for aim in ("error", "logloss")]  # type: ignore[arg-type]
    assert losses == [Huber(0.5), Logistic()]


def test_a_plan_says_in_one_line_what_follows_from_the_goal() -> None:
    said = {str(goal): dict(job_of(goal=goal).plan()) for goal in ("error", "auc", "logloss", {"cost": 4})}
    assert said["error"]["goal"] == "error: yes begins where the loss itself changes sides"
    assert said["{'cost': 4}"]["goal"].endswith("4 false alarms; yes begins at a probability of 0.2")
    assert "counts of the evaluation" in dict(job_of(goal={"cost": 4}, holdout=0.2).plan())["goal"]
    assert said["logloss"]["chooses"].startswith("gradient with a loss whose margins are log-odds: for")
    assert said["error"]["chooses"].startswith("gradient: for")
    assert "goal" not in dict(job_of(learner="auto").plan())


@pytest.mark.parametrize("goal", ["auc", {"cost": 5.0}])
def test_a_goal_is_written_as_it_was_read(goal: Any) -> None:
    found = job_of(goal=goal)
    assert found.model_dump(mode="json", include={"goal"}) == {"goal": goal}
    assert job_of(goal=found.goal).goal == found.goal
    assert job_of(goal="cost=5").goal == job_of(goal={"cost": 5}).goal


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"goal": "cost"}, "goal: cost: say what a missed positive costs, in false alarms: {cost: 5}"),
        ({"goal": "accuracy"}, "goal: is error, auc, logloss or {cost: 5} (of a missed positive, in false alarms)"),
        ({"goal": {"cost": 0}}, "goal.cost: input should be greater than 0 (got 0)"),
        ({"goal": {"cost": True}}, "goal: cost must be a number, got True"),
        ({"goal": {"cost": 2, "loss": 1}}, "goal: is error, auc"),
        ({"goal": "auc", "learner": "moments"}, "goal is what learner auto optimises: drop goal, or learner moments"),
        (
            {"goal": {"cost": 2}, "holdout": 0.2, "evaluate": {"threshold": "f1"}},
            "goal and evaluate.threshold both say where yes begins",
        ),
        ({"goal": "auc", "domain": {"label": {"column": "sick", "bounds": [0, 1]}, "columns": COLUMNS}}, "two sides"),
    ],
)
def test_a_goal_that_nothing_follows_from_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as error:
        job_of(**changes)
    assert said in str(error.value)


def test_python_takes_a_goal_too(tmp_path: Path) -> None:
    rows = rare(20_000)
    how = {"dataset": "d", "epsilon": 1.0, "delta": 1e-6, "first_limit": (40.0, 1e-3), "rows": 20_000}
    model = fit(rows, DOMAIN, goal={"cost": 9}, **how).model
    assert model is not None
    assert model.decision.threshold == pytest.approx(-math.log(9), abs=1e-9)
    estimator = PrivateClassifier(DOMAIN, goal={"cost": 9}, **how)
    assert clone(estimator).goal == {"cost": 9}
    estimator.fit(rows)
    margins = estimator.model_.margins(rows)
    assert estimator.predict(rows).tolist() == (margins >= -math.log(9) - 1e-9).astype(int).tolist()
    public = PrivateClassifier(private=False, goal={"cost": 9}).fit(rows[["a", "b"]].to_numpy(), rows["sick"])
    assert public.model_.decision.threshold == pytest.approx(-math.log(9), abs=1e-9)


def test_auto_is_the_learner_where_there_is_a_goal() -> None:
    assert job_of(goal="error").learner.name == "auto"
    assert job_of(goal="error", budget={"epsilon": 1.0}).learner.name == "auto"
    assert job_of().learner.name == "moments"
    how = {"dataset": "d", "epsilon": 1.0, "delta": 1e-6, "first_limit": (40.0, 1e-3), "rows": 20_000}
    model = fit(rare(20_000), DOMAIN, goal="auc", **how).model
    assert model is not None
    assert (model.learner, model.details["chosen"]) == ("auto", "gradient")
