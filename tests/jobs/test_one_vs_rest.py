"""Several classes by learners of two sides: the charge, the fits, rados of each class, tuning, SQL and ONNX."""

from __future__ import annotations

import sqlite3
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pytest
from jobs.test_classes import COLOURS, DOMAIN, KEYS, PRIVATE, fitted, plain, pots
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier

import daskrado
from daskrado.errors import DataError, UsageError
from daskrado.learners.on_passes.erm import ObjectivePerturbation, OutputPerturbation
from daskrado.learners.on_passes.one_vs_rest import OneVersusRest
from daskrado.models.linear import LinearModel
from daskrado.models.onnx_graph import write_onnx
from daskrado.privacy.accountant import compose
from daskrado.privacy.events import PureEvent, SeveralEvents, each, exact
from daskrado.privacy.perturbation import PublicFacts
from daskrado.privacy.relations import Relation
from daskrado.privacy.statement import PrivacyStatement
from daskrado.sklearn import PrivateClassifier, RadoClassifier
from daskrado.statistics.base import Rows
from daskrado.statistics.class_rados import ClassRados
from daskrado.statistics.rados import HadamardRados, rados_from_sketch
from daskrado.statistics.risk import Mistakes
from daskrado.table.domain import Domain
from daskrado.table.label_sides import against_rest
from daskrado.table.yaml_file import parse

FACTS = PublicFacts(1_000_000, 6, 2.0, Relation.ADD_REMOVE, 1.0, 1e-6)


@pytest.mark.parametrize("classes", [3, 7, 100])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 7.3])
@pytest.mark.parametrize(
    "learner", [OutputPerturbation(), ObjectivePerturbation(), ObjectivePerturbation(noise="gaussian")]
)
def test_as_many_events_as_classes_cost_what_was_asked(classes: int, epsilon: float, learner: Any) -> None:
    """The sums are exact rationals: no share is rounded up, and next to nothing is lost."""
    facts = PublicFacts(10**8, 6, 2.0, Relation.ADD_REMOVE, epsilon, 1e-6)
    found = OneVersusRest(learner, classes).guarantee(facts)
    ((event, times),) = each(found.event)
    assert times == classes
    assert Fraction(0) <= exact(epsilon) - classes * event.epsilon < Fraction(1, 10**9)  # type: ignore[union-attr]
    total = compose([found.event], 1e-6)
    assert float(total.epsilon) <= epsilon
    assert found.delta <= 1e-6
    assert f"{classes} releases on the same rows" in found.theorem


def test_each_class_has_the_noise_of_its_share_of_the_budget() -> None:
    """Against the fit of two sides at a seventh of epsilon: a whole one for each would be far too little noise."""
    learner = OutputPerturbation(regularisation=1e-3)
    ours = OneVersusRest(learner, 7)
    part = ours.part(FACTS)
    assert learner._scale(part) == pytest.approx(7 * learner._scale(FACTS), rel=1e-3)
    assert ours.guarantee(FACTS).event == SeveralEvents([(PureEvent(part.epsilon), 7)])


def test_drawn_noise_has_the_law_of_a_share_and_not_of_the_whole(fixed_noise: None) -> None:
    """|noise| on the weights of a class is gamma: 24 lengths tell apart scales that differ by a factor of 3."""
    frame, learner = pots(3000), {"kind": "output_perturbation", "regularisation": 0.01}
    exactly = daskrado.fit(
        frame, DOMAIN, dataset="paint", private=False, learner={"kind": "erm", "regularisation": 0.01}
    ).model
    assert exactly is not None
    how: dict[str, Any] = {"learner": learner, "relation": "replace_one", "delta": 0.0, "epsilon": 3.0, "rows": 3000}
    lengths, said = [], 0.0
    for number in range(8):
        model = fitted(frame, **how, dataset=f"paint{number}", first_limit=(3, 0))
        lengths += np.linalg.norm(model.weights - exactly.weights, axis=1).tolist()
        said = model.details["noise_length"]
        assert model.statement.epsilon == pytest.approx(3.0)
    reach = 2 * DOMAIN.norm_bound / (3000 * 0.01)  # of a minimiser, when a row is replaced
    assert said == pytest.approx(DOMAIN.width * reach / (3.0 / 3), rel=0.01)
    assert np.mean(lengths) == pytest.approx(said, rel=0.3)  # 24 lengths of deviation 0.41: 3.6 deviations


def test_without_noise_it_is_one_vs_rest_as_scikit_learn_has_it() -> None:
    frame, new = pots(4000), pots(500, 2)
    model = daskrado.fit(
        frame, DOMAIN, dataset="paint", private=False, learner={"kind": "erm", "regularisation": 1e-7}
    ).model
    assert model is not None
    theirs = OneVsRestClassifier(LogisticRegression(C=1e6, tol=1e-8, max_iter=2000)).fit(
        plain(frame), frame["colour"]
    )
    order = [list(theirs.classes_).index(one) for one in COLOURS]
    np.testing.assert_allclose(model.margins(new), theirs.decision_function(plain(new))[:, order], atol=0.01)
    np.testing.assert_allclose(model.predict_proba(new), theirs.predict_proba(plain(new))[:, order], atol=0.003)


@pytest.mark.parametrize("learner", ["objective_perturbation", "output_perturbation", "radoboost", "rado_moments"])
def test_private_fits_come_near_scikit_learn(learner: str, fixed_noise: None) -> None:
    frame, new = pots(), pots(4000, 2)
    theirs = LogisticRegression().fit(plain(frame), frame["colour"]).score(plain(new), new["colour"])
    model = fitted(frame, learner=learner, epsilon=6.0)
    assert (model.predict(new) == new["colour"]).mean() > theirs - 0.08
    assert model.weights.shape == (3, DOMAIN.width)
    if learner.startswith("rado"):
        with pytest.raises(UsageError, match="gives margins of each class, not probabilities"):
            model.predict_proba(new)
    else:
        assert model.predict_proba(new).sum(axis=1).to_numpy() == pytest.approx(1.0)
        assert "3 releases on the same rows" in model.statement.theorem


def test_auto_without_a_delta_takes_each_class_against_the_rest(fixed_noise: None) -> None:
    frame = pots()
    model = fitted(frame, learner="auto", delta=0.0, epsilon=6.0, first_limit=(20, 0))
    assert (model.details["chosen"], model.statement.delta) == ("one_vs_rest", 0.0)
    assert (model.predict(frame) == frame["colour"]).mean() > 0.6
    assert model.predict_proba(frame).shape == (20_000, 3)


def test_the_rados_of_each_class_are_those_of_its_two_sides() -> None:
    """Same seeds, labels of class k against the rest: equal to the last bit."""
    draw = np.random.default_rng(3)
    x, y = np.asfortranarray(draw.integers(-9, 9, (200, 4)).astype(float)), draw.integers(0, 4, 200).astype(np.int8)
    x[y == 0] = 0  # a row without a label counts as nothing
    seeds = draw.integers(0, 2**64, 200, dtype=np.uint64)
    ours = ClassRados(4, 16, classes=3)
    sketch = ours.partial(Rows(x, y, seeds)).reshape(4, -1).astype(float)
    for k, found in enumerate(ours.each(sketch), start=1):
        two = HadamardRados(4, 16).partial(Rows(x, against_rest(y, k), seeds)).reshape(4, 16).astype(float)
        np.testing.assert_array_equal(found, rados_from_sketch(two))


def test_rados_of_several_classes_cost_one_release(fixed_noise: None) -> None:
    found = daskrado.fit(pots(), DOMAIN, **PRIVATE, first_limit=(20, 1e-4), learner="radoboost")
    assert found.model is not None
    assert found.statement.epsilon == pytest.approx(1.0, rel=1e-6)
    assert found.model.details["rados"] == 256
    given = daskrado.fit(
        pots(), DOMAIN, **PRIVATE | {"dataset": "more"}, first_limit=(20, 1e-4), learner="rado_moments",
        statistic={"kind": "class_rados", "count": 64},
    )  # fmt: skip
    assert given.model is not None
    assert given.model.details["rados"] == 64


def test_estimators_take_several_classes_by_every_learner(fixed_noise: None) -> None:
    frame, new = pots(), pots(2000, 2)
    how: dict[str, Any] = {"domain": DOMAIN, "dataset": "paint", "delta": 1e-6, "first_limit": (50, 1e-3)}
    for model in (
        PrivateClassifier(**how, epsilon=6.0, learner="objective_perturbation", rows=20_000),
        RadoClassifier(**how, epsilon=6.0),
    ):
        model.fit(frame)
        assert model.classes_.tolist() == sorted(COLOURS)
        assert (model.predict(new) == new["colour"]).mean() > 0.55
        assert model.coef_.shape == (3, DOMAIN.width - 1)  # beside the intercept
        assert hasattr(model, "predict_proba") == isinstance(model, PrivateClassifier)


def test_the_same_bits_in_any_partitioning_and_on_two_workers(tmp_path: Path, two_workers: Any) -> None:
    frame, weights = pots(2000), set()
    for parts in (1, 2, 7):
        folder = tmp_path / str(parts)
        folder.mkdir()
        for number, rows in enumerate(np.array_split(np.arange(len(frame)), parts)):
            frame.iloc[rows].to_parquet(folder / f"{number}.parquet")
        for where in ({"workers": 0}, {"cluster": two_workers}):
            found = daskrado.fit(folder, DOMAIN, dataset="paint", private=False, learner="erm", **where)
            assert found.model is not None
            weights.add(found.model.weights.tobytes())
    assert len(weights) == 1


GRID = {"kind": "tuning", "grid": [{"kind": "objective_perturbation", "regularisation": 10.0}, "gradient"]}


def test_tuning_takes_the_better_of_two_learners_of_several_classes(fixed_noise: None) -> None:
    """A ridge of 10 leaves nothing to learn; the private choice is right but for e^-100."""
    frame = pots().assign(id=np.arange(20_000))
    domain = parse(Domain, {**KEYS, "id": "id"}, "here")
    model = daskrado.fit(frame, domain, **PRIVATE | {"epsilon": 3.0}, first_limit=(20, 1e-4), learner=GRID).model
    assert model is not None
    assert (model.details["chosen"], model.details["place_in_grid"]) == ("softmax", 1)
    assert (model.predict(frame) == frame["colour"]).mean() > 0.6
    public = {**GRID, "public_lake": pots(3000, 9)}
    chosen = daskrado.fit(frame, domain, **PRIVATE | {"dataset": "b"}, first_limit=(20, 1e-4), learner=public).model
    assert chosen is not None
    assert chosen.details["place_in_grid"] == 1


def test_mistakes_of_classes_are_counted_as_defined() -> None:
    """By a plain loop."""
    draw = np.random.default_rng(5)
    x = np.asfortranarray(draw.integers(-9, 9, (60, 3)).astype(float))
    classes, models = draw.integers(0, 5, 60).astype(np.int8), draw.normal(size=(4, 3, 2))
    found = Mistakes(3, models).partial(Rows(x, classes))
    for at in range(2):
        wrong = [
            y and np.argmax([w @ row for w in models[:, :, at]]) + 1 != y for row, y in zip(x, classes, strict=True)
        ]
        assert found[at] == sum(map(bool, wrong))
    assert found[-1] == 60


def test_one_class_only_is_no_free_answer_and_is_refused_without_privacy(fixed_noise: None) -> None:
    frame = pots(2000).assign(colour="red")
    for learner in ("moments", "gradient", "objective_perturbation", "radoboost"):
        model = fitted(frame, learner=learner, epsilon=8.0, dataset=learner)
        assert model.statement.private
        assert (model.predict(frame) == "red").mean() > 0.9
    with pytest.raises(DataError, match="column 'colour': every row is of one class"):
        daskrado.fit(frame, DOMAIN, dataset="paint", private=False, learner="erm")
    two = pots(2000)
    missing = two.assign(colour=two["colour"].replace("blue", "red"))  # of three one is missing
    assert daskrado.fit(missing, DOMAIN, dataset="paint", private=False, learner="erm").model is not None


def test_a_share_of_the_budget_that_is_too_small_is_refused_in_one_line() -> None:
    with pytest.raises(
        UsageError,
        match=r"each of 3 classes has its share of epsilon, and epsilon 3\.33333e-05 is too small for 20,000",
    ) as caught:
        fitted(pots(100), learner="output_perturbation", epsilon=1e-4)
    assert "\n" not in str(caught.value)


LEARNERS = ["moments", "gradient", {"kind": "objective_perturbation", "loss": "logistic"}, "radoboost"]


@pytest.mark.parametrize("learner", LEARNERS, ids=str)
def test_sql_and_onnx_predict_the_same(learner: Any, tmp_path: Path, fixed_noise: None) -> None:
    new = pots(400, 3).reset_index(names="row")
    new.loc[0, ["a", "b"]] = [1e9, -1e9]  # beyond their bounds
    model = fitted(pots(4000), learner=learner, epsilon=6.0)
    model.save(tmp_path / "model.json")
    again = LinearModel.load(tmp_path / "model.json")
    margins, likely = again.margins(new), None
    if again.gives_probabilities:
        likely = again.predict_proba(new).to_numpy()
    select = again.sql("pots", keep=("row",), probability=likely is not None)
    with duckdb.connect() as connection:
        connection.register("pots", new)
        ours = connection.execute(select).df()
    with sqlite3.connect(":memory:") as lite:
        new.to_sql("pots", lite, index=False)
        theirs = pd.read_sql(select, lite)
    lite.close()
    for found in (ours, theirs):
        found = found.sort_values("row")
        assert found["predicted"].tolist() == again.predict(new).tolist()
        np.testing.assert_allclose(found["margin"], margins.max(axis=1), atol=1e-9)
        if likely is not None:
            np.testing.assert_allclose(found["probability"], likely.max(axis=1), atol=1e-9)
    runtime = pytest.importorskip("onnxruntime")
    write_onnx(again, tmp_path / "model.onnx")
    session = runtime.InferenceSession(str(tmp_path / "model.onnx"))
    given = {name: new[name].to_numpy() for name in ("a", "b")} | {"s": new["s"].to_numpy(object)}
    names = [one.name for one in session.get_outputs()]
    found = dict(zip(names, session.run(names, given), strict=True))
    np.testing.assert_allclose(found["margin"], margins, atol=1e-6)
    assert found["label"].tolist() == again.predict(new).tolist()
    assert ("probability" in found) == (likely is not None)
    if likely is not None:
        np.testing.assert_allclose(found["probability"], likely, atol=1e-6)


@pytest.mark.parametrize("classes", [3, 5, 100])
def test_sql_names_the_first_of_equal_margins_and_refuses_what_predict_refuses(classes: int) -> None:
    """Every kind of column, weights that are alike: classes 2 and 4 tie everywhere."""
    keys = {
        "label": {"column": "y", "classes": list(range(10, 10 + classes))},
        "columns": {
            "n": {"kind": "numeric", "lower": 0, "upper": 9, "nulls": {"fill": 2, "flag": True}},
            "b": {"kind": "numeric", "lower": 0, "upper": 9, "bins": [2, 5]},
            "t": {"kind": "boolean"},
            "c": {"kind": "categorical", "values": ["u", "v"], "other": False},
        },
    }
    domain = parse(Domain, keys, "here")
    weights = np.random.default_rng(6).normal(size=(classes, domain.width))
    weights[1] = weights.max(axis=0) + 1
    weights[min(3, classes - 1)] = weights[1]
    model = LinearModel(domain, weights, PrivacyStatement.none(), "by hand")
    new = pd.DataFrame({"n": [1.0, None, 30.0], "b": [1.0, 4.0, 9.0], "t": [True, False, True], "c": ["u", "v", "u"]})
    with duckdb.connect() as connection:
        connection.register("lake", new)
        found = connection.execute(model.sql()).df()
        assert found["predicted"].tolist() == model.predict(new).tolist()
        np.testing.assert_allclose(found["margin"], model.margins(new).max(axis=1), atol=1e-12)
        connection.register("lake", new.assign(c=["u", "w", None]))
        odd = connection.execute(model.sql()).df()
    assert odd["predicted"].isna().tolist() == odd["margin"].isna().tolist() == [False, True, True]


def test_thresholds_ranks_and_missing_probabilities_are_refused_in_one_line() -> None:
    model = LinearModel(DOMAIN, np.zeros((3, DOMAIN.width)), PrivacyStatement.none(), "radoboost")
    for act in (lambda: model.saying_yes_from(0.5), lambda: model.probabilities(pots(3))):
        with pytest.raises(UsageError, match="'colour' has several classes: a threshold is for one of two sides"):
            act()
    with pytest.raises(UsageError, match="not probabilities: take gradient, moments or a logistic loss"):
        model.sql(probability=True)
