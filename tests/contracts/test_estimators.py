"""Every estimator of ``daskrado.sklearn`` under scikit-learn's own checks, and under those of a private result."""

from __future__ import annotations

import importlib
import os
import pickle
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn
from scipy.stats import norm
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.linear_model import RidgeClassifier
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import check_estimator

import daskrado
import daskrado.sklearn as estimators
from daskrado.errors import UsageError
from daskrado.ledger.ledger import Ledger
from daskrado.sklearn.base import LakeEstimator

BASELINES = [
    estimators.PrivateClassifier(private=False),
    estimators.LabelPrivateClassifier(private=False),
    estimators.RadoClassifier(private=False, count=64),
    estimators.PrivateRegressor(private=False),
    estimators.PrivateRegressor(private=False, learner="moments"),
]
PUBLIC: dict[str, Any] = {"bounds": (-10, 10), "dataset": "checks", "epsilon": 0.25}
FACTS: dict[str, Any] = PUBLIC | {"classes": (0, 1)}
PRIVATE = [
    estimators.PrivateClassifier(**FACTS, learner="moments", first_limit=(50, 0)),
    estimators.LabelPrivateClassifier(**FACTS, first_limit=(50, 0)),
    estimators.RadoClassifier(**FACTS, count=64, first_limit=(50, 1e-4)),
    estimators.PrivateRegressor(**PUBLIC, label_bounds=(-10, 10), learner="moments", first_limit=(50, 0)),
]
A_VALUE = "no value of a row stops a private run: a refusal would be a free answer"
A_SECOND_FIT = "it compares two fits, and each draws its own noise"
NOT_WITH_PRIVACY = {
    "check_fit_score_takes_y": "an exact score of private rows is refused",
    "check_estimators_empty_data_messages": "the number of rows is secret, and so is that there are none",
    "check_estimators_nan_inf": A_VALUE,
    "check_supervised_y_no_nan": A_VALUE,
    "check_dtype_object": A_VALUE,
    "check_classifiers_one_label": A_VALUE,
    "check_classifiers_regression_target": A_VALUE,
    "check_classifier_not_supporting_multiclass": A_VALUE,
    "check_classifiers_classes": "classes are declared, never found in private labels",
    "check_classifiers_train": "it wants the accuracy of a fit without noise, on labels that were not declared",
    "check_regressors_train": "it wants the accuracy of a fit without noise",
    "check_fit_idempotent": A_SECOND_FIT,
    "check_classifier_data_not_an_array": A_SECOND_FIT,
    "check_supervised_y_2d": A_SECOND_FIT,
}


def _classes() -> Iterator[type[LakeEstimator]]:
    for found in pkgutil.iter_modules(estimators.__path__, "daskrado.sklearn."):
        for value in vars(importlib.import_module(found.name)).values():
            if isinstance(value, type) and issubclass(value, LakeEstimator) and value.__module__ == found.name:
                yield value


def test_the_scikit_learn_that_runs_is_the_one_that_is_meant() -> None:
    """The test command runs this file with the newest and, by this variable, with the oldest that is allowed."""
    assert sklearn.__version__ == os.environ.get("DASKRADO_SKLEARN", sklearn.__version__)


def test_every_estimator_is_public_and_under_contract() -> None:
    found = {kind.__name__ for kind in _classes()} - {"LakeEstimator", "LakeClassifier"}
    others = {"PrivateKFold", "PrivateSearchCV"}  # no lake of their own: tested in test_search
    assert found == set(estimators.__all__) - others
    checked = {type(one).__name__ for one in [*BASELINES, *PRIVATE]}
    assert found - checked == {"TeacherClassifier"}  # it has no baseline and needs public queries: tested below


@pytest.mark.slow
@pytest.mark.parametrize("estimator", BASELINES, ids=lambda one: type(one).__name__)
def test_without_privacy_all_of_scikit_learns_checks_pass(estimator: Any) -> None:
    results = check_estimator(estimator, on_skip=None)
    assert sum(result["status"] == "passed" for result in results) > 40


@pytest.mark.slow
@pytest.mark.parametrize("estimator", PRIVATE, ids=lambda one: type(one).__name__)
def test_with_privacy_the_others_of_scikit_learn_pass_too(estimator: Any) -> None:
    results = check_estimator(estimator, expected_failed_checks=NOT_WITH_PRIVACY, on_skip=None)
    assert sum(result["status"] == "passed" for result in results) > 30


def _people(rows: int = 4000, seed: int = 3) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    frame = pd.DataFrame({"age": draw.uniform(0, 100, rows), "sex": draw.choice(["f", "m"], rows)})
    frame["patient"] = np.arange(rows) // 4
    sick = frame["age"] / 25 - 2 + (frame["sex"] == "m") + draw.logistic(size=rows) > 0
    return frame.assign(sick=np.where(sick, "yes", "no"))


DOMAIN = {
    "label": {"column": "sick", "positive": "yes", "negative": "no"},
    "columns": {
        "age": {"kind": "numeric", "lower": 0, "upper": 100},
        "sex": {"kind": "categorical", "values": ["f", "m"], "other": False},
    },
}


def _private(**changes: Any) -> Any:
    facts = {"domain": DOMAIN, "dataset": "clinic", "epsilon": 1.0, "delta": 1e-6, "first_limit": (10, 1e-5)}
    return estimators.PrivateClassifier(**facts | {"learner": "moments"} | changes)


def test_a_frame_two_arrays_and_a_lake_give_the_model_that_fit_gives(tmp_path: Path, fixed_noise: None) -> None:
    people = _people()
    (tmp_path / "lake").mkdir()
    people.to_parquet(tmp_path / "lake" / "a.parquet")
    exact = daskrado.fit(people, DOMAIN, dataset="clinic", private=False, learner="moments").model
    assert exact is not None
    plain = {"domain": DOMAIN, "private": False, "learner": "moments"}
    features = people[["age", "sex"]]
    for rows, labels in (
        (people, None),
        (tmp_path / "lake", None),
        (features, people["sick"]),
        (features.to_numpy(), people["sick"].to_numpy()),
        (features.to_numpy().tolist(), people["sick"].tolist()),
    ):
        model = estimators.PrivateClassifier(**plain).fit(rows, labels)
        np.testing.assert_array_equal(model.model_.weights, exact.weights)
        assert model.n_features_in_ == 2
        assert model.feature_names_in_.tolist() == ["age", "sex"]
        assert model.predict(features).tolist() == exact.predict(features).tolist()
        assert model.score(people) == pytest.approx((exact.predict(people) == people["sick"]).mean(), abs=0)


def test_the_second_class_is_the_larger_one_as_scikit_learn_assumes() -> None:
    """Scorers of scikit-learn take it for the positive one, whatever the Domain calls so."""
    people = _people()
    turned = DOMAIN | {"label": {"column": "sick", "positive": "no", "negative": "yes"}}
    one, other = (
        estimators.PrivateClassifier(domain, private=False, learner="moments").fit(people)
        for domain in (DOMAIN, turned)
    )
    assert one.classes_.tolist() == other.classes_.tolist() == ["no", "yes"]
    np.testing.assert_allclose(one.decision_function(people), other.decision_function(people), atol=1e-9)
    np.testing.assert_allclose(one.predict_proba(people), other.predict_proba(people), atol=1e-9)
    least_squares = np.clip((1 + one.decision_function(people)) / 2, 0, 1)  # of E[label], labels being -1 and 1
    np.testing.assert_allclose(one.predict_proba(people)[:, 1], least_squares, atol=1e-12)
    np.testing.assert_allclose(one.coef_, other.coef_, atol=1e-9)
    np.testing.assert_allclose(one.intercept_, other.intercept_, atol=1e-9)
    encoded = np.column_stack([people["age"] / 50 - 1, people["sex"] == "f", people["sex"] == "m"])
    clip = np.minimum(1, one.model_.domain.norm_bound / np.sqrt((encoded**2).sum(axis=1) + 1))
    np.testing.assert_allclose(one.decision_function(people), (encoded @ one.coef_[0] + one.intercept_) * clip)


def test_each_fit_is_charged_and_a_clone_starts_with_nothing() -> None:
    people, model = _people(), _private(unit="patient")
    assert is_classifier(model)
    model.fit(people)
    assert "for one patient" in model.statement_.sentence()
    twin = clone(model)
    assert not hasattr(twin, "model_")
    before = model.result_.budget[0]["share"]
    twin.fit(people)
    assert twin.result_.budget[0]["left"] == pytest.approx(1 - 2 * before)
    assert not np.array_equal(twin.coef_, model.coef_)


def test_units_may_stand_beside_the_rows() -> None:
    people = _people()
    beside = _private(unit="patient").fit(people.drop(columns="patient"), units=people["patient"])
    assert beside.statement_.column == "patient"
    unnamed = _private(unit={"column": "unit", "name": "one patient"}, dataset="other")
    assert unnamed.fit(people.drop(columns="patient"), units=people["patient"]).statement_.column == "unit"
    with pytest.raises(UsageError, match="units is given twice"):
        _private(unit="patient").fit(people, units=people["patient"])


def test_nothing_private_is_in_a_pickle() -> None:
    people = _people().assign(age=lambda frame: frame["age"] + 0.123456789)
    model = _private().fit(people)
    kept = pickle.dumps(model)
    assert people["age"].to_numpy()[:1].tobytes() not in kept
    assert len(kept) < 20_000
    again = pickle.loads(kept)
    np.testing.assert_array_equal(again.decision_function(people), model.decision_function(people))
    older = kept.replace(daskrado.__version__.encode(), b"0.0.9")
    assert older != kept
    with pytest.raises(UsageError, match=r"was pickled by daskrado 0\.0\.9 and this is"):
        pickle.loads(older)


def test_searches_and_exact_scores_of_private_rows_are_refused_and_cost_nothing() -> None:
    people, model = _people(), _private()
    with pytest.raises(UsageError, match="cross-validation on private rows"):
        cross_val_score(model, people[["age", "sex"]], people["sick"], error_score="raise")
    with pytest.raises(UsageError, match="cross-validation on private rows"):
        GridSearchCV(model, {"learner": ["moments"]}, error_score="raise").fit(people[["age", "sex"]], people["sick"])
    model.fit(people)
    with pytest.raises(UsageError, match="these rows are private, as data set 'clinic'"):
        model.score(people)
    shuffled = people.sample(frac=1, random_state=1)
    with pytest.raises(UsageError, match="these rows are private"):
        model.score(shuffled[["age", "sex"]], shuffled["sick"])
    assert model.score(_people(seed=4)) > 0.6
    assert model.result_.budget[0]["left"] == pytest.approx(1 - model.result_.budget[0]["share"])


def test_without_privacy_searches_and_pipelines_work() -> None:
    people = _people()
    plain = estimators.PrivateClassifier(DOMAIN, private=False)
    assert cross_val_score(plain, people[["age", "sex"]], people["sick"], cv=3).min() > 0.6
    found = GridSearchCV(plain, {"learner": ["moments", {"kind": "erm", "regularisation": 0.01}]}, cv=2)
    assert found.fit(people[["age", "sex"]], people["sick"]).best_score_ > 0.6
    chain = make_pipeline(FunctionTransformer(lambda frame: frame.assign(age=frame["age"].clip(0, 100))), plain)
    assert chain.fit(people[["age", "sex"]], people["sick"]).score(people[["age", "sex"]], people["sick"]) > 0.6


@pytest.mark.parametrize(
    ("changes", "rows", "said"),
    [
        ({"domain": None}, "frame", "needs domain=, the public bounds"),
        ({"dataset": None}, "frame", "needs dataset="),
        ({"first_limit": {"epsilon": 1}}, "frame", r"first_limit must be a pair \(epsilon, delta\), got dict"),
        ({"domain": None, "bounds": (0, 1, 2), "classes": (0, 1)}, "arrays", "bounds must be a pair"),
        ({"domain": None, "bounds": (0, 1), "classes": (0,)}, "arrays", "classes must name two values"),
        ({"domain": None, "bounds": (0, 1), "classes": (0, 1)}, "lake", "needs domain= to read a lake"),
        ({}, "lake and labels", "a lake holds its label"),
    ],
)
def test_what_is_missing_is_one_line_and_costs_nothing(changes: Any, rows: str, said: str, own_ledger: Path) -> None:
    people = _people(40)
    given = {
        "frame": (people, None),
        "arrays": (people[["age"]].to_numpy(), np.zeros(40)),
        "lake": ("somewhere", None),
        "lake and labels": ("somewhere", people["sick"]),
    }[rows]
    with pytest.raises(UsageError, match=said) as caught:
        _private(**changes).fit(*given)
    assert "\n" not in str(caught.value)
    if own_ledger.exists():
        with Ledger.open(own_ledger) as ledger:
            assert not list(ledger.entries())


def test_values_that_the_domain_does_not_allow_say_nothing() -> None:
    """A cell that is no number, a label that nobody declared, a null: the same attributes, no word of them."""
    people = _people(200)
    odd = people.astype({"age": object})
    odd.at[3, "age"] = {"secret": 1}
    odd.loc[4, "sick"] = "SECRET"
    odd.loc[5, "sex"] = None
    model = _private(dataset="odd").fit(odd)
    assert "SECRET" not in repr(model.result_) + str(model.result_.lines) + str(model.result_.notes)
    assert model.classes_.tolist() == ["no", "yes"]


def test_rados_from_a_file_need_nothing_else(tmp_path: Path) -> None:
    people = _people()
    keys = {
        "kind": "rados", "dataset": "clinic", "lake": people, "domain": DOMAIN, "output": str(tmp_path / "out"),
        "sets": [{"name": "plain", "kind": "hadamard", "count": 256, "private": False}],
    }  # fmt: skip
    daskrado.run(keys)
    (path,) = (tmp_path / "out").glob("*.rados.parquet")
    model = estimators.RadoClassifier().fit(path)
    assert not hasattr(model, "predict_proba")  # margins of rados are on no scale
    np.testing.assert_array_equal(model.model_.weights, daskrado.learn_rados(path).model.weights)
    assert model.score(_people(seed=5)) > 0.6


def test_several_classes_are_told_apart_in_sorted_order() -> None:
    draw = np.random.default_rng(6)
    frame = pd.DataFrame({"age": draw.uniform(0, 100, 9000), "sex": draw.choice(["f", "m"], 9000)})
    scores = np.column_stack([frame["age"] / 20 - 2, (frame["sex"] == "m") * 2.0, np.zeros(9000)])
    frame["ward"] = np.array(["surgery", "medicine", "eye"])[(scores + draw.gumbel(size=scores.shape)).argmax(axis=1)]
    domain = DOMAIN | {"label": {"column": "ward", "classes": ["surgery", "medicine", "eye"]}}
    plain = estimators.PrivateClassifier(domain, private=False).fit(frame)
    assert plain.classes_.tolist() == ["eye", "medicine", "surgery"]
    assert plain.predict(frame).tolist() == plain.model_.predict(frame).tolist()
    shares = plain.predict_proba(frame)
    assert shares.sum(axis=1) == pytest.approx(1)
    assert (shares.argmax(axis=1) == plain.decision_function(frame).argmax(axis=1)).all()
    assert plain.coef_.shape == (3, 3)
    assert plain.intercept_.shape == (3,)
    theirs = RidgeClassifier().fit(pd.get_dummies(frame[["age", "sex"]], dtype=float), frame["ward"])
    best = theirs.score(pd.get_dummies(frame[["age", "sex"]], dtype=float), frame["ward"])
    for learner in ("moments", "gradient"):
        private = estimators.PrivateClassifier(
            domain, dataset="wards", epsilon=3.0, delta=1e-6, learner=learner, rows=9000, first_limit=(20, 1e-5)
        )
        private.fit(frame)
        with pytest.raises(UsageError, match="these rows are private"):
            private.score(frame)
        assert (private.predict(frame) == frame["ward"]).mean() > best - 0.03


def test_a_regressor_is_charged_scores_public_rows_and_knows_its_errors() -> None:
    people, new = _people(20_000), _people(2000, seed=5)
    for frame in (people, new):
        frame["days"] = 3 + frame["age"] / 20 + (frame["sex"] == "m") + np.random.default_rng(len(frame)).normal(
            size=len(frame)
        )  # fmt: skip
    domain = DOMAIN | {"label": {"column": "days", "kind": "number", "bounds": [0, 12]}}
    model = estimators.PrivateRegressor(
        domain, dataset="ward", epsilon=1.0, delta=1e-6, unit="patient", learner="moments", first_limit=(10, 1e-5)
    )
    assert is_regressor(model)
    model.fit(people)
    assert "for one patient" in model.statement_.sentence()
    with pytest.raises(UsageError, match="these rows are private, as data set 'ward'"):
        model.score(people)
    assert model.score(new[["age", "sex"]], new["days"]) == pytest.approx(
        r2_score(new["days"], model.predict(new)), abs=1e-12
    )
    assert model.score(new) > 0.6
    wide, narrow = model.intervals(0.99), model.intervals(0.5)
    known = wide["low"].notna()
    assert known.any()
    assert (wide[known]["low"] < narrow[known]["low"]).all()
    table = model.coefficients_
    pd.testing.assert_frame_equal(model.intervals(), table[["low", "high"]])
    deviation = (table["high"] - table["low"]) / (2 * norm.ppf(0.975))
    expected = 2 * norm.sf(abs(table["high"] + table["low"]) / 2 / deviation)
    np.testing.assert_allclose(table["p"], expected, rtol=1e-9)
    assert table.loc["age", "p"] < 1e-6
    clip = np.minimum(1, model.model_.domain.norm_bound / np.sqrt((new["age"] / 50 - 1) ** 2 + 2))
    encoded = np.column_stack([new["age"] / 50 - 1, new["sex"] == "f", new["sex"] == "m", np.ones(len(new))])
    by_hand = 6 + (encoded @ [*model.coef_, model.intercept_ - 6]) * clip
    np.testing.assert_allclose(model.predict(new), np.clip(by_hand, 0, 12), atol=1e-9)
    with pytest.raises(UsageError, match=r"needs domain=.*label_bounds= for an array"):
        estimators.PrivateRegressor(dataset="ward").fit(new[["age"]].to_numpy(), new["days"])


@pytest.mark.slow
def test_teachers_answer_public_queries(tmp_path: Path) -> None:
    people = _people(6000)
    _people(300, seed=9)[["age", "sex"]].to_parquet(tmp_path / "public.parquet")
    model = estimators.TeacherClassifier(
        DOMAIN | {"id": "patient"}, queries=str(tmp_path / "public.parquet"), dataset="clinic", epsilon=8.0,
        teachers=100, most_queries=300, first_limit=(20, 1e-5),
    )  # fmt: skip
    people["patient"] = np.arange(6000)
    assert model.fit(people).score(_people(seed=8)) > 0.6
    assert model.statement_.epsilon == pytest.approx(8.0)
