"""PrivateSearchCV: a choice among settings of a learner that costs what one fit costs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Self

from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from daskrado.errors import UsageError
from daskrado.sklearn.classifier import PrivateClassifier


def _has(name: str) -> Any:
    return available_if(lambda search: hasattr(getattr(search, "best_estimator_", search.estimator), name))


class PrivateSearchCV(MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Fit every setting of ``param_grid`` on rows of its own, and choose one in private: one charge of ``epsilon``.

    ``estimator`` is a PrivateClassifier with a learner that can be tuned (``gradient``, ``objective_perturbation``,
    ``output_perturbation``); ``param_grid`` maps the learner's options to lists. No row takes part in two fits, so
    the whole search costs what ``estimator.epsilon`` says, once, however many settings there are; the price is that
    each fit sees a part of the rows. ``announced`` says so before a row is read.

    Sensitivity
        That of learner ``tuning``: fits on disjoint rows, the exponential mechanism on mistakes of the last part.

    Reference
        Chaudhuri, Monteleoni and Sarwate (2011), algorithm 4. Random stopping (Papernot and Steinke 2022) costs about
        three times the epsilon of one fit; at equal budgets each of its fits would have a third of it on all rows.
    """

    def __init__(self, estimator: PrivateClassifier, param_grid: Mapping[str, Sequence[Any]]) -> None:
        self.estimator = estimator
        self.param_grid = param_grid

    @property
    def candidates(self) -> list[dict[str, Any]]:
        """The learners that are tried, as a pipeline writes them."""
        learner = self.estimator.learner
        base = {"kind": learner} if isinstance(learner, str) else dict(learner)
        names = list(self.param_grid)
        found = [
            base | dict(zip(names, values, strict=True)) for values in itertools.product(*self.param_grid.values())
        ]
        if len(found) < 2:
            raise UsageError(f"a search needs at least 2 settings, got {len(found)}: give lists of several values")
        return found

    @property
    def announced(self) -> str:
        """What the search costs, whatever it finds."""
        own = self.estimator
        return (
            f"{len(self.candidates)} settings on disjoint rows and a private choice among them: epsilon "
            f"{own.epsilon:g} at delta {own.delta:g} of {own.dataset!r}, once"
        )

    def fit(self, X: Any, y: Any = None, *, units: Any = None) -> Self:
        """Search; ``best_estimator_`` is the chosen fit, ``best_params_`` its place in the grid."""
        if not isinstance(self.estimator, PrivateClassifier) or not self.estimator.private:
            raise UsageError("PrivateSearchCV takes a private PrivateClassifier: elsewhere GridSearchCV works")
        grid = self.candidates
        self.announced_ = self.announced
        found = clone(self.estimator).set_params(learner={"kind": "tuning", "grid": grid})
        self.best_estimator_ = found.fit(X, y, units=units)
        self.best_index_ = int(found.model_.details["place_in_grid"])
        self.best_params_ = {name: grid[self.best_index_][name] for name in self.param_grid}
        self.classes_ = found.classes_
        return self

    @property
    def statement_(self) -> Any:
        """What the whole search protects."""
        check_is_fitted(self, "best_estimator_")
        return self.best_estimator_.statement_

    def predict(self, X: Any) -> Any:
        """By the chosen model."""
        check_is_fitted(self, "best_estimator_")
        return self.best_estimator_.predict(X)

    @_has("predict_proba")  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> Any:
        """By the chosen model."""
        check_is_fitted(self, "best_estimator_")
        return self.best_estimator_.predict_proba(X)

    def score(self, X: Any, y: Any = None) -> float:
        """Of **public** rows, by the chosen model."""
        check_is_fitted(self, "best_estimator_")
        return float(self.best_estimator_.score(X, y))
