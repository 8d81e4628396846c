"""scikit-learn estimators as black boxes, from an allow-list."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, ClassVar

from daskrado.errors import UsageError
from daskrado.learners.black_box import REHEARSAL_ROWS, BlackBox
from daskrado.table.domain import Domain

REHEARSAL_ROUNDS = 3
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


@dataclass(frozen=True)
class SklearnEstimator(BlackBox):
    """A scikit-learn estimator named by an import path of the allow-list, with plain parameters.

    Rows carry the Domain's constant feature, so an estimator that can do without an intercept of its own does:
    its weights are then exactly those of a LinearModel. Its random state is a public function of the shard.
    """

    estimator: str
    parameters: dict[str, Any] = field(default_factory=dict)

    name: ClassVar[str] = "sklearn"

    def __post_init__(self) -> None:
        """Refuse a path that is not allowed and parameters that the estimator does not know."""
        if self.estimator not in ALLOWED:
            raise UsageError(f"estimator {self.estimator!r} is not on the allow-list: {', '.join(ALLOWED)}")
        known = self._class()().get_params()
        for name, value in self.parameters.items():
            if (problem := _problem(name, value, known)) is not None:
                raise UsageError(f"estimator {self.estimator}: {problem}")

    def make(self, domain: Domain, seed: int) -> Any:
        kind = self._class()
        known = kind().get_params()
        settings = dict(self.parameters)
        if "random_state" in known:
            settings.setdefault("random_state", seed % 2**32)
        if domain.intercept > 0 and "fit_intercept" in known:
            settings.setdefault("fit_intercept", False)
        return kind(**settings)

    @property
    def title(self) -> str:
        return self.estimator

    @property
    def rehearsal_rows(self) -> int:
        """At least as many as it looks for neighbours."""
        neighbours = self.parameters.get("n_neighbors", 0)
        return max(REHEARSAL_ROWS, neighbours if isinstance(neighbours, int) else 0)

    def make_quick(self, domain: Domain) -> Any:
        """A few rounds are enough to see that the parameters are taken; a number of rounds that is not, stays."""
        made = self.make(domain, 0)
        for name in ("max_iter", "n_estimators"):
            value = made.get_params().get(name)
            if isinstance(value, int) and value > REHEARSAL_ROUNDS:
                made.set_params(**{name: REHEARSAL_ROUNDS})
        return made

    def _class(self) -> Any:
        module, _, name = self.estimator.rpartition(".")
        try:
            return getattr(import_module(module), name)
        except ImportError as error:
            raise UsageError(f"{self.estimator} needs scikit-learn: pip install 'daskrado[sklearn]'") from error


def _problem(name: str, value: Any, known: Mapping[str, Any]) -> str | None:
    """Why an estimator's parameter is refused, if it is."""
    if name in REFUSED_PARAMETERS:
        return f"parameter {name!r} is refused: {REFUSED_PARAMETERS[name]}"
    if name not in known:
        return f"unknown parameter {name!r}; it knows {', '.join(sorted(known))}"
    if not isinstance(value, str | int | float | bool | list | tuple | None):
        return f"parameter {name} must be plain, got {type(value).__name__}"
    if isinstance(value, float) and not math.isfinite(value):
        return f"parameter {name} must be finite, got {value}"
    return None
