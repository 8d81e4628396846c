"""Learners as black boxes: rows and class indices in, class indices out. Teachers and students are made here."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskrado.errors import UsageError
from daskrado.learners.on_release.moments import MeanLearner, MomentsLearner
from daskrado.learners.on_release.radoboost import RadoBoost
from daskrado.privacy.release import release_without_privacy
from daskrado.statistics import HadamardRados, MeanOperator, Moments, Rows, Statistic, Summary
from daskrado.table.lattice import Lattice

Floats = NDArray[np.float64]
Solver = Callable[[Floats, NDArray[np.int8]], Floats]

ALLOWED = (
    "sklearn.discriminant_analysis.LinearDiscriminantAnalysis",
    "sklearn.dummy.DummyClassifier",
    "sklearn.ensemble.AdaBoostClassifier",
    "sklearn.ensemble.ExtraTreesClassifier",
    "sklearn.ensemble.GradientBoostingClassifier",
    "sklearn.ensemble.HistGradientBoostingClassifier",
    "sklearn.ensemble.RandomForestClassifier",
    "sklearn.linear_model.LogisticRegression",
    "sklearn.linear_model.Perceptron",
    "sklearn.linear_model.RidgeClassifier",
    "sklearn.linear_model.SGDClassifier",
    "sklearn.naive_bayes.BernoulliNB",
    "sklearn.naive_bayes.GaussianNB",
    "sklearn.neighbors.KNeighborsClassifier",
    "sklearn.neighbors.NearestCentroid",
    "sklearn.neural_network.MLPClassifier",
    "sklearn.svm.LinearSVC",
    "sklearn.svm.SVC",
    "sklearn.tree.DecisionTreeClassifier",
    "sklearn.tree.ExtraTreeClassifier",
)
"""What a pipeline may name: a YAML file must not import anything it likes."""

REFUSED_PARAMETERS = {
    "verbose": "what a teacher prints while it learns tells about the rows of one shard",
    "n_jobs": "teachers run side by side already, and processes of their own would not be silenced",
}


class Linear:
    """One weight vector between two classes; for several, one against the rest for each."""

    def __init__(self, solve: Solver) -> None:
        self.solve = solve

    def fit(self, x: Floats, y: NDArray[np.int64]) -> Linear:
        """Learn from rows."""
        self.classes_ = np.unique(y)
        targets = self.classes_[1:] if len(self.classes_) == 2 else self.classes_
        self.weights_ = np.array([self.solve(x, np.where(y == c, 1, -1).astype(np.int8)) for c in targets])
        return self

    def predict(self, x: Floats) -> NDArray[np.int64]:
        """The class index of each row; a score of exactly 0 counts for the later class."""
        scores = x @ self.weights_.T
        at = (scores[:, 0] >= 0).astype(np.int64) if len(self.classes_) == 2 else scores.argmax(axis=1)
        return np.asarray(self.classes_[at])


@dataclass(frozen=True)
class Logistic:
    """Newton's method on mean log(1 + exp(-y theta x)) + (ridge / 2) |theta|^2, with step halving.

    Not private by itself: it sees rows that are public, or the rows of one shard.
    """

    ridge: float = 1e-3
    steps: int = 30

    def __call__(self, x: Floats, y: NDArray[np.int8]) -> Floats:
        """The weights."""
        from scipy.special import expit

        rows, width = x.shape
        theta = np.zeros(width)
        value = self._value(x, y, theta)
        for _ in range(self.steps):
            slope = expit(-y * (x @ theta))
            gradient = -(x.T @ (slope * y)) / rows + self.ridge * theta
            if np.abs(gradient).max() < 1e-10:
                break
            curvature = (x.T * (slope * (1 - slope))) @ x / rows + self.ridge * np.eye(width)
            step = np.linalg.solve(curvature, gradient)
            scale = 1.0
            while (new := self._value(x, y, theta - scale * step)) > value and scale > 1e-6:
                scale /= 2
            theta, value = theta - scale * step, new
        return theta

    def _value(self, x: Floats, y: NDArray[np.int8], theta: Floats) -> float:
        return float(np.logaddexp(0, -y * (x @ theta)).mean() + self.ridge / 2 * (theta @ theta))


@dataclass(frozen=True)
class OnStatistic:
    """One of this library's learners on a statistic, applied to rows in memory, with no noise."""

    statistic: Statistic
    learner: MomentsLearner | MeanLearner | RadoBoost
    norm_bound: float
    seed: int = 0

    def __call__(self, x: Floats, y: NDArray[np.int8]) -> Floats:
        """The weights."""
        lattice = Lattice(self.norm_bound, self.statistic.default_bits)
        seeds = None
        if self.statistic.needs_seeds:
            seeds = np.random.Philox(key=[self.seed, 1]).random_raw(len(y))
        rows = Rows(lattice.quantise(np.array(x, order="F")), y, seeds)
        summary = Summary(self.statistic, lattice, self.statistic.partial(rows), len(y))
        return self.learner.fit(release_without_privacy(summary))[0]


@dataclass(frozen=True)
class OwnFactory:
    """Makes estimators around this library's learners: logistic, moments, mean or radoboost."""

    kind: str
    width: int
    norm_bound: float
    options: dict[str, Any] = field(default_factory=dict)

    def make(self, seed: int) -> Linear:
        """An unfitted estimator."""
        if self.kind == "logistic":
            return Linear(Logistic(**self.options))
        statistic: Statistic
        learner: MomentsLearner | MeanLearner | RadoBoost
        if self.kind == "moments":
            statistic, learner = Moments(self.width), MomentsLearner(self.options.get("ridge"))
        elif self.kind == "mean":
            statistic, learner = MeanOperator(self.width), MeanLearner()
        else:
            statistic, learner = HadamardRados(self.width, 64), RadoBoost(**self.options)
        return Linear(OnStatistic(statistic, learner, self.norm_bound, seed))


@dataclass(frozen=True)
class SklearnFactory:
    """Makes scikit-learn estimators named by an import path of the allow-list, with plain parameters.

    Rows carry the Domain's constant feature, so an estimator that can do without an intercept of its own does:
    its weights are then exactly those of a LinearModel. Its random state is a public function of the shard.
    """

    path: str
    parameters: dict[str, Any] = field(default_factory=dict)
    constant_feature: bool = True

    def checked(self) -> SklearnFactory:
        """Refuse a path that is not allowed and parameters that the estimator does not know."""
        if self.path not in ALLOWED:
            raise UsageError(f"estimator {self.path!r} is not on the allow-list: {', '.join(ALLOWED)}")
        known = self._kind()().get_params()
        for name, value in self.parameters.items():
            if name in REFUSED_PARAMETERS:
                raise UsageError(f"estimator {self.path}: parameter {name!r} is refused: {REFUSED_PARAMETERS[name]}")
            if name not in known:
                raise UsageError(
                    f"estimator {self.path}: unknown parameter {name!r}; it knows {', '.join(sorted(known))}"
                )
            if not isinstance(value, str | int | float | bool | list | tuple | None):
                raise UsageError(f"estimator {self.path}: parameter {name} must be plain, got {type(value).__name__}")
            if isinstance(value, float) and not math.isfinite(value):
                raise UsageError(f"estimator {self.path}: parameter {name} must be finite, got {value}")
        return self

    def make(self, seed: int) -> Any:
        """An unfitted estimator."""
        kind = self._kind()
        known = kind().get_params()
        settings = dict(self.parameters)
        if "random_state" in known:
            settings.setdefault("random_state", seed % 2**32)
        if self.constant_feature and "fit_intercept" in known:
            settings.setdefault("fit_intercept", False)
        return kind(**settings)

    def _kind(self) -> Any:
        module, _, name = self.path.rpartition(".")
        try:
            return getattr(import_module(module), name)
        except ImportError as error:
            raise UsageError(f"{self.path} needs scikit-learn: pip install 'daskrado[sklearn]'") from error


@dataclass(frozen=True)
class ObjectFactory:
    """Makes copies of an unfitted object with ``fit(x, y)`` and ``predict(x)``: a learner from Python."""

    prototype: Any

    def __post_init__(self) -> None:
        for method in ("fit", "predict"):
            if not callable(getattr(self.prototype, method, None)):
                raise UsageError(f"a learner has fit and predict; {type(self.prototype).__name__} has no {method}")

    @property
    def path(self) -> str:
        """What it is called in manifests."""
        return f"{type(self.prototype).__module__}.{type(self.prototype).__qualname__}"

    def make(self, seed: int) -> Any:
        """A copy; the seed is the prototype's own business."""
        del seed
        return copy.deepcopy(self.prototype)


def linear_weights(estimator: Any, classes: int) -> Floats | None:
    """The weights of a fitted estimator whose prediction is the sign of a dot product, else None."""
    if classes != 2:
        return None
    if isinstance(estimator, Linear):
        return estimator.weights_[0] if len(estimator.classes_) == 2 else None
    weights = getattr(estimator, "coef_", None)
    known = getattr(estimator, "classes_", None)
    if weights is None or known is None or len(known) != 2 or np.any(np.asarray(estimator.intercept_) != 0):
        return None
    return np.asarray(weights, dtype=np.float64).reshape(-1)
