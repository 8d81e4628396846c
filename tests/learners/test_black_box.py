"""Learners as black boxes: agreement with scikit-learn, the allow-list, weights that a LinearModel can publish."""

from typing import Any

import numpy as np
import pytest

from daskrado.errors import UsageError
from daskrado.learners.black_box import (
    BlackBox,
    LeastSquares,
    Linear,
    Logistic,
    MeanDirection,
    PythonObject,
    linear_weights,
    rehearse,
)
from daskrado.learners.sklearn_estimator import ALLOWED, SklearnEstimator
from daskrado.registry import kinds, make, options
from daskrado.table.domain import Domain
from daskrado.table.yaml_file import parse

sklearn = pytest.importorskip("sklearn")
PACKAGES = ("daskrado.learners",)


def make_domain(columns: int = 3, norm_bound: float = 2.0) -> Domain:
    """A Domain whose rows have one feature for each column, and the constant one."""
    content = {
        "label": {"column": "y", "positive": "yes", "negative": "no"},
        "norm_bound": norm_bound,
        "columns": {f"x{i}": {"kind": "numeric", "lower": -3, "upper": 3} for i in range(columns)},
    }
    return parse(Domain, content, "domain")


DOMAIN = make_domain()


@pytest.fixture(scope="module")
def rows() -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(4)
    x = np.column_stack([draw.normal(size=(400, 3)), np.ones(400)])
    x /= np.maximum(np.linalg.norm(x, axis=1, keepdims=True) / 2, 1)
    y = (x @ np.array([1.0, -2.0, 0.4, 0.3]) + 0.4 * draw.normal(size=400) > 0).astype(np.int64)
    return x, y


def test_logistic_is_the_minimiser_that_scikit_learn_finds(rows: tuple[np.ndarray, np.ndarray]) -> None:
    from sklearn.linear_model import LogisticRegression

    x, y = rows
    ours = Logistic(regularisation=0.01).solve(x, np.where(y == 1, 1, -1).astype(np.int8))
    theirs = LogisticRegression(C=1 / (0.01 * len(y)), fit_intercept=False, tol=1e-10, max_iter=1000).fit(x, y)
    assert ours == pytest.approx(theirs.coef_[0], abs=1e-5)


OWN = sorted(name for name, box in kinds(BlackBox, *PACKAGES).items() if not box.rehearsed)


def test_own_learners_are_found_by_name() -> None:
    assert OWN == ["logistic", "mean", "moments", "radoboost"]


@pytest.mark.parametrize("kind", OWN)
def test_every_own_learner_beats_guessing(kind: str, rows: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = rows
    estimator = make(BlackBox, PACKAGES, kind).make(DOMAIN, 0).fit(x, y)
    assert (estimator.predict(x) == y).mean() > 0.75
    weights = linear_weights(estimator, 2)
    assert weights is not None
    assert ((x @ weights >= 0) == (y == 1)).mean() == (estimator.predict(x) == y).mean()


def test_moments_is_least_squares(rows: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = rows
    ours = linear_weights(LeastSquares(regularisation=0.0).make(DOMAIN, 0).fit(x, y), 2)
    assert ours is not None
    theirs = np.linalg.lstsq(x, np.where(y == 1, 1.0, -1.0), rcond=None)[0]
    assert ours == pytest.approx(theirs, abs=1e-3)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ({"kind": "logistic", "ridge": 0.5}, Logistic(0.5)),
        ({"kind": "logistic", "ridge": None, "rounds": None}, Logistic()),
        ({"kind": "moments", "regularisation": 0.1}, LeastSquares(0.1)),
        ("mean", MeanDirection()),
        ({"kind": "sklearn", "estimator": ALLOWED[0]}, SklearnEstimator(ALLOWED[0])),
    ],
)
def test_options_are_the_fields_and_older_words_are_read(written: Any, meant: BlackBox) -> None:
    made = make(BlackBox, PACKAGES, written)
    assert made == meant
    assert make(BlackBox, PACKAGES, options(made)) == meant


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ({"kind": "mean", "ridge": 0.1}, "regularisation: unknown key; mean takes none"),
        ({"kind": "logistic", "rounds": 3}, "rounds: unknown key; logistic takes regularisation, steps"),
        ({"kind": "logistic", "regularisation": -1}, "regularisation: input should be greater than or equal to 0"),
        ({"kind": "radoboost", "rounds": 100_001}, "rounds: input should be less than or equal to 100000"),
        ("forest", "kind must be one of 'logistic', 'mean', 'moments', 'radoboost', 'sklearn'"),
    ],
)
def test_options_that_a_learner_does_not_take_are_named(written: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(BlackBox, PACKAGES, written)


def test_three_classes_by_one_against_the_rest() -> None:
    draw = np.random.default_rng(0)
    centres = np.array([[2.0, 0.0, 1.0], [-2.0, 0.0, 1.0], [0.0, 2.5, 1.0]])
    y = draw.integers(3, size=300)
    x = centres[y] + 0.3 * draw.normal(size=(300, 3)) * [1, 1, 0]
    estimator = Logistic().make(make_domain(2, 3.0), 0).fit(x, y)
    assert (estimator.predict(x) == y).mean() > 0.95
    assert linear_weights(estimator, 3) is None


@pytest.mark.slow
def test_the_allow_list_is_the_door() -> None:
    for path in ALLOWED:
        factory = SklearnEstimator(path)
        rehearse(factory, "teachers.learner", DOMAIN, 3)  # every default learns
        made = factory.make(DOMAIN, 7)
        assert hasattr(made, "fit")
        assert hasattr(made, "predict")
    for path in ("os.system", "sklearn.datasets.load_iris", "sklearn.pipeline.Pipeline"):
        with pytest.raises(UsageError, match="is not on the allow-list"):
            SklearnEstimator(path)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"depth": 3}, "unknown parameter 'depth'"),
        ({"max_depth": {"a": 1}}, "must be plain"),
        ({"ccp_alpha": float("nan")}, "finite"),
        ({"verbose": 1}, "parameter 'verbose' is refused: what a teacher prints"),
        ({"n_jobs": 2}, "parameter 'n_jobs' is refused"),
    ],
)
def test_bad_parameters_are_named(parameters: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        SklearnEstimator("sklearn.tree.DecisionTreeClassifier", parameters)


def test_scikit_learn_teachers_repeat_themselves_and_linear_ones_publish_weights(
    rows: tuple[np.ndarray, np.ndarray],
) -> None:
    x, y = rows
    tree = SklearnEstimator("sklearn.tree.ExtraTreeClassifier", {"max_depth": 2})
    assert (tree.make(DOMAIN, 5).fit(x, y).predict(x) == tree.make(DOMAIN, 5).fit(x, y).predict(x)).all()
    assert linear_weights(tree.make(DOMAIN, 5).fit(x, y), 2) is None
    fitted = SklearnEstimator("sklearn.linear_model.LogisticRegression").make(DOMAIN, 0).fit(x, y)
    weights = linear_weights(fitted, 2)
    assert weights is not None
    assert ((x @ weights > 0) == (fitted.predict(x) == 1)).all()
    with_intercept = SklearnEstimator("sklearn.linear_model.LogisticRegression", {"fit_intercept": True})
    assert linear_weights(with_intercept.make(DOMAIN, 0).fit(x, y), 2) is None
    assert isinstance(MeanDirection().make(DOMAIN, 1), Linear)


class Picky:
    """Learns only what it was told to."""

    def __init__(self, mood: str = "good") -> None:
        self.mood = mood

    def fit(self, x: np.ndarray, y: np.ndarray) -> None:
        if self.mood == "bad":
            raise RuntimeError("not today")

    def predict(self, x: np.ndarray) -> np.ndarray:
        return np.zeros(len(x) - (self.mood == "short"))


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (
            ("linear_model.LogisticRegression", {"C": -1}),
            r"teachers.learner: .*The 'C' parameter of LogisticRegression",
        ),
        (("linear_model.LogisticRegression", {"penalty": "l1"}), "got l1 penalty"),
        (("linear_model.LogisticRegression", {"max_iter": -5}), "'max_iter' parameter"),
        (("ensemble.RandomForestClassifier", {"n_estimators": 0}), "'n_estimators' parameter"),
        (("naive_bayes.GaussianNB", {"priors": [0.5, 0.2, 0.3]}), "(?i)priors"),
        (("neighbors.KNeighborsClassifier", {"n_neighbors": "five"}), "'n_neighbors' parameter"),
        ("bad", "Picky does not learn .RuntimeError: not today"),
        ("short", "Picky does not learn .ValueError"),
    ],
)
def test_a_rehearsal_on_public_rows_finds_values_that_do_not_fit(factory: Any, message: str) -> None:
    made = PythonObject(Picky(factory)) if isinstance(factory, str) else None
    with pytest.raises(UsageError, match=message):
        rehearse(made or SklearnEstimator(f"sklearn.{factory[0]}", factory[1]), "teachers.learner", DOMAIN, 2)


def test_a_rehearsal_lets_pass_what_learns_on_rows_of_both_classes_within_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[np.ndarray, np.ndarray]] = []
    monkeypatch.setattr(Picky, "fit", lambda self, x, y: seen.append((x, y)))
    rehearse(PythonObject(Picky()), "learner", DOMAIN, 2)
    ((x, y),) = seen
    assert x.shape == (len(y), 4)
    assert np.linalg.norm(x, axis=1).max() <= 2.0 + 1e-12
    assert len(np.unique(y)) == 2
    for factory in (
        SklearnEstimator("sklearn.neighbors.KNeighborsClassifier", {"n_neighbors": 500}),
        Logistic(),
    ):
        rehearse(factory, "learner", DOMAIN, 2)  # raises where it does not learn
