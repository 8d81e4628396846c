"""class_weight: the same as rows that are there more often, with the sensitivity of one row, and what is refused."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit

import daskrado
from daskrado.errors import UsageError
from daskrado.jobs.class_weight import ClassWeight
from daskrado.jobs.load import load_job
from daskrado.privacy.accountant import compose
from daskrado.privacy.relations import Relation
from daskrado.statistics.base import Rows
from daskrado.statistics.bounded import Bounded, class_weighted
from daskrado.statistics.moments import Moments
from daskrado.table.lattice import Lattice

DOMAIN = {
    "label": {"column": "sick", "positive": 1, "negative": 0},
    "columns": {
        "age": {"kind": "numeric", "lower": 0, "upper": 1},
        "sex": {"kind": "categorical", "values": ["f", "m"], "other": False},
    },
    "norm_bound": 1.5,
    "id": "id",
}
EXACT = {"private": False, "protect": None, "budget": None, "ledger": None}


def rows(count: int, seed: int = 1) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    age, sex = draw.uniform(0, 1, count), draw.choice(["f", "m"], count)
    sick = (draw.random(count) < expit(-3.3 + 2.5 * age + 0.5 * (sex == "f"))).astype(int)
    return pd.DataFrame({"id": np.arange(count), "age": age, "sex": sex, "sick": sick})


def keys(lake: Any, **changes: Any) -> dict[str, Any]:
    base = {
        "dataset": "d",
        "lake": lake,
        "domain": DOMAIN,
        "output": "out",
        "protect": {"relation": "add_remove", "unit": "one row"},
        "budget": {"epsilon": 1.0, "delta": 1e-6},
        "ledger": {"first_limit": {"epsilon": 20, "delta": 1e-5}},
    }
    return {key: value for key, value in (base | changes).items() if value is not None}


def test_weights_are_divided_by_the_larger_and_never_round_up() -> None:
    assert ClassWeight.model_validate({"positive": 8, "negative": 1}).pair(None) == (2048, 16384)
    assert ClassWeight.model_validate({"positive": 1, "negative": 3}).pair(None) == (16384, 5461)
    assert ClassWeight.model_validate({"rate": 0.2}).pair(None) == (4096, 16384)
    low, high = ClassWeight.model_validate("balanced").pair(0.75)
    assert (low, high) == (16384, 5461)


@pytest.mark.parametrize("learner", ["moments", "erm"])
def test_a_weight_is_worth_as_many_rows(learner: str) -> None:
    """Weights 4 and 1 against a lake that holds every positive row four times; both without noise."""
    frame = rows(3000)
    options = {"learner": {"kind": learner} | ({"regularisation": 1e-3} if learner == "erm" else {})}
    weighted = daskrado.run(keys(frame, **EXACT, **options, class_weight={"positive": 4, "negative": 1}), write=False)
    more = pd.concat([frame, *[frame[frame["sick"] == 1]] * 3]).assign(id=lambda f: np.arange(len(f)))
    if learner == "erm":  # mean loss + ridge: a quarter of the repeated lake's loss, over the rows of the plain one
        ridge = 1e-3 * 4 * len(frame) / len(more)
        options = {"learner": {"kind": "erm", "regularisation": ridge}}
    repeated = daskrado.run(keys(more, **EXACT, **options), write=False)
    assert np.allclose(weighted.model.weights, repeated.model.weights, rtol=1e-3, atol=1e-3)


def test_a_weighted_row_moves_moments_no_further_than_a_row() -> None:
    """All pairs of adversarial rows and labels, at several weights, against the declared sensitivity."""
    lattice, statistic = Lattice(1.0, 12), Moments(3)
    draw = np.random.default_rng(1)
    raw = np.concatenate([np.eye(3), -np.eye(3), np.zeros((1, 3)), draw.normal(size=(20, 3))])
    found = Bounded(3, statistic, 1, lattice.bits)
    for pair in ((16384, 16384), (2048, 16384), (16384, 1), (5461, 16384)):

        def vector(place: int, label: int, pair: tuple[int, int] = pair) -> np.ndarray:
            y = np.array([label], dtype=np.int8)
            x = lattice.quantise(np.asfortranarray(raw[place : place + 1].copy()))
            whole = found.partial(Rows(x, y, weights=class_weighted(None, y, pair)))
            parts = found.split(whole)
            return np.concatenate([parts[b.name].ravel() * b.normalised_step(lattice) for b in found.blocks])

        all_of = [vector(place, label) for place in range(len(raw)) for label in (-1, 1)]
        for relation, change in (
            (Relation.ADD_REMOVE, all_of),
            (Relation.REPLACE_ONE, [a - b for a in all_of for b in all_of]),
        ):
            declared = found.sensitivity(relation)
            assert max(np.linalg.norm(one) for one in change) <= declared.l2
            assert max(np.abs(one).sum() for one in change) <= declared.l1
    assert found.sensitivity(Relation.ADD_REMOVE).l2 == pytest.approx(
        Moments(3).sensitivity(Relation.ADD_REMOVE).l2, abs=1e-2
    )


@pytest.mark.parametrize("learner", ["moments", "gradient", "output_perturbation", "objective_perturbation"])
@pytest.mark.parametrize("unit", ["one row", {"column": "id", "name": "one client"}], ids=["rows", "units"])
def test_a_balanced_model_finds_the_rare_class(learner: str, unit: Any) -> None:
    """Without weights nearly everybody is called negative, since one in five is positive at most."""
    frame = rows(30_000)
    protect = {"relation": "add_remove", "unit": unit}
    same = {"learner": {"kind": learner}, "rows": 30_000, "protect": protect}
    plain = daskrado.run(keys(frame, **same), write=False).model
    found = daskrado.run(keys(frame, **same, class_weight="balanced"), write=False)
    called = (found.model.predict(frame) == 1).to_numpy()
    positive = (frame["sick"] == 1).to_numpy()
    assert (plain.predict(frame) == 1).mean() < 0.02
    linear_model = pytest.importorskip("sklearn.linear_model")
    x = np.column_stack([frame["age"], frame["sex"] == "f"])
    known = linear_model.LogisticRegression(class_weight="balanced").fit(x, frame["sick"]).predict(x) == 1
    assert (called == known).mean() > 0.85
    assert called[positive].mean() > 0.55
    assert found.statement.epsilon <= 1.0 + 1e-9
    assert found.statement.delta <= 1e-6
    low, high = found.model.details["class_weight"]
    assert high == 1.0
    assert low == pytest.approx(positive.mean() / (1 - positive.mean()), rel=0.2)


def test_the_count_of_classes_is_charged_and_a_public_rate_is_not() -> None:
    counted = load_job(keys(rows(100), class_weight="balanced")).charges()
    assert [charge.role for charge in counted] == ["class rate", "release"]
    assert [charge.statement.epsilon for charge in counted] == pytest.approx([0.05, 0.95], abs=1e-6)
    (only,) = load_job(keys(rows(100), class_weight={"rate": 0.1})).charges()
    assert only.statement.epsilon == pytest.approx(1.0, abs=1e-6)
    small = {"class_weight": "balanced", "holdout": 0.2, "evaluate": {"budget": {"epsilon": 0.5, "delta": 1e-6}}}
    stated = daskrado.run(keys(rows(3000), **small), write=False).statement  # two charges in training, one beside it
    training = [c.event for c in load_job(keys(rows(100), **small)).charges() if c.part.endswith("training")]
    assert len(training) == 2
    assert stated.epsilon == pytest.approx(float(compose(training, 1e-6).epsilon), rel=1e-9)
    held = load_job(keys(rows(100), class_weight="balanced", holdout=0.2)).charges()
    assert [charge.part.rpartition("/")[2] for charge in held] == ["training", "training", "held out"]


def test_a_job_that_was_written_down_is_read_back() -> None:
    """As a journal keeps it for a run that is resumed."""
    keys_of = keys("lake", class_weight="balanced", holdout=0.2, evaluate={"by": ["sex"], "threshold": "cost=5"})
    job = load_job(keys_of)
    again = type(job).model_validate(job.model_dump(mode="json"))
    assert (again.class_weight, again.evaluate, again.holdout) == (job.class_weight, job.evaluate, job.holdout)


def test_with_a_hold_out_probabilities_are_those_of_the_population() -> None:
    frame = rows(50_000)
    found = daskrado.run(keys(frame, class_weight="balanced", holdout=0.2), write=False)
    new = rows(50_000, 2)
    probability = found.model.probabilities(new)
    groups = np.array_split(np.argsort(probability), 10)
    assert sum(abs(probability[g].mean() - new["sick"][g].mean()) * len(g) for g in groups) / len(new) <= 0.03
    alone = daskrado.run(keys(frame, class_weight="balanced"), write=False).model
    with pytest.raises(UsageError, match="gives margins, not probabilities"):
        alone.probabilities(new)  # least squares of weighted rows
    logistic = {"kind": "objective_perturbation"}
    odds = daskrado.run(keys(frame, class_weight="balanced", learner=logistic, rows=50_000), write=False).model
    assert odds.probabilities(new).mean() == pytest.approx(new["sick"].mean(), abs=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("learner", ["moments", "erm"])
def test_two_workers_give_the_same_weights(learner: str, two_workers: Any, tmp_path: Any) -> None:
    """Of rows that are weighted and held out, from a lake of three files, without noise."""
    (tmp_path / "lake").mkdir()
    for number, part in enumerate(np.array_split(np.arange(3000), 3)):
        rows(3000).iloc[part].to_parquet(tmp_path / "lake" / f"{number}.parquet")
    options = {"kind": learner} | ({"regularisation": 1e-3} if learner == "erm" else {})
    same = {"learner": options, "class_weight": "balanced", "holdout": 0.2}
    found = [
        daskrado.run(keys(str(tmp_path / "lake"), **EXACT, **same), write=False, cluster=cluster)
        for cluster in (None, two_workers)
    ]
    assert np.array_equal(found[0].model.weights, found[1].model.weights)
    assert found[0].facts["evaluation"] == found[1].facts["evaluation"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"class_weight": "heavy"}, "class_weight"),
        ({"class_weight": {"positive": 2}}, "is balanced, {rate: 0.1} or {positive: 5, negative: 1}"),
        (
            {"class_weight": "balanced", "protect": {"relation": "label_flip", "unit": "one label"}},
            "under label_flip a row's weight would change",
        ),
        (
            {
                "class_weight": "balanced",
                "protect": {"relation": "add_remove", "unit": "one", "rows_per_unit": 3},
            },
            "give protect.unit as {column, name} in place of rows_per_unit",
        ),
        (
            {
                "class_weight": "balanced",
                "rows": 100,
                "learner": {
                    "kind": "tuning",
                    "grid": [{"kind": "output_perturbation", "regularisation": r} for r in (0.1, 1.0)],
                },
            },
            "tuning chooses by the number of mistakes",
        ),
    ],
)
def test_mistakes_are_named(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as error:
        load_job(keys(rows(50), **changes))
    assert said in str(error.value)


@pytest.mark.parametrize("epsilon", [0.05, 0.07, 0.1, 0.2, 0.3, 0.45, 1.1, 2.2])
def test_a_pure_budget_is_shared_out_to_the_last_digit(epsilon: float) -> None:
    """In floats 0.05 and 0.95 of 0.1 add up to more than 0.1, which no statement may say."""
    job = load_job(keys(rows(50), class_weight="balanced", budget={"epsilon": epsilon}))
    assert compose([charge.event for charge in job.charges()], 0).epsilon <= Fraction(str(epsilon))
    assert job.asked.budget.epsilon == epsilon
