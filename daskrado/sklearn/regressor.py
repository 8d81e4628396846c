"""PrivateRegressor: numbers between public bounds, by every learner of ``kind: learn`` that takes them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils.validation import check_is_fitted

from daskrado.sklearn.base import LakeEstimator
from daskrado.sklearn.classifier import common_keys
from daskrado.table.domain import Domain


class PrivateRegressor(RegressorMixin, LakeEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A differentially private linear regression of a label with public bounds.

    Parameters are those of :class:`PrivateClassifier`, with ``label_bounds`` in place of ``classes``: the least and
    the largest label of an array. ``learner`` is ``auto``, ``gradient``, ``moments`` (whose weights have intervals),
    or another that takes numbers. ``private=False`` is least squares, and behaves as any estimator of scikit-learn.

    Sensitivity
        Derived by the learner's statistics from the Domain's norm bound, the label's bounds and the relation.

    Reference
        See ``statement_.theorem`` after a fit.

    >>> X = np.array([[-2.0], [-1.0], [1.0], [2.0]])
    >>> model = PrivateRegressor(private=False).fit(X, [1.0, 2.0, 4.0, 5.0])
    >>> model.predict([[0.0], [1.5]]).round(2).tolist()
    [3.0, 4.5]
    """

    label_fact: ClassVar[str] = "label_bounds"
    score = LakeEstimator.score  # the mixin's would score private rows
    _checks: ClassVar[Mapping[str, Any]] = {"y_numeric": True}

    def __init__(
        self,
        domain: Domain | Mapping[str, Any] | str | Path | None = None,
        *,
        bounds: Any = None,
        label_bounds: tuple[float, float] | None = None,
        dataset: str | None = None,
        epsilon: float = 1.0,
        delta: float = 0.0,
        relation: str = "add_remove",
        unit: str | Mapping[str, Any] | None = None,
        learner: str | Mapping[str, Any] = "auto",
        rows: int | None = None,
        private: bool = True,
        ledger: str | Path | None = None,
        first_limit: tuple[float, float] | None = None,
        workers: int | None = None,
        cluster: Any = None,
    ) -> None:
        self.domain = domain
        self.bounds = bounds
        self.label_bounds = label_bounds
        self.dataset = dataset
        self.epsilon = epsilon
        self.delta = delta
        self.relation = relation
        self.unit = unit
        self.learner = learner
        self.rows = rows
        self.private = private
        self.ledger = ledger
        self.first_limit = first_limit
        self.workers = workers
        self.cluster = cluster

    def _job(self, domain: Domain) -> Mapping[str, Any]:
        del domain
        plain = not self.private and self.learner == "auto"
        learner = {"kind": "erm", "regularisation": 1e-9} if plain else self.learner
        return {**common_keys(self), "learner": learner, "rows": self.rows}

    def _label(self, fact: Any) -> Mapping[str, Any]:
        return {"column": "y", "kind": "number", "bounds": tuple(map(float, fact))}

    def _fact_of(self, y: Any) -> tuple[float, float]:
        low, high = float(np.min(y)), float(np.max(y))
        room = max(abs(low), abs(high), 1.0) * 1e-6  # of labels that are all alike
        return low - room, high + room

    def predict(self, X: Any) -> NDArray[np.float64]:
        """The predicted number of each row, within the label's bounds."""
        rows = self._rows(X)
        return np.asarray(self.model_.labels(self.model_.margins(rows)))

    def _score(self, rows: Any, labels: Any, sample_weight: Any) -> float:
        truth = np.asarray(labels, dtype=np.float64)
        return float(r2_score(truth, self.model_.labels(self.model_.margins(rows)), sample_weight=sample_weight))

    @property
    def intercept_(self) -> float:
        """The constant of a prediction, before clipping: the middle of the bounds and the constant feature's part."""
        check_is_fitted(self, "model_")
        domain = self.model_.domain
        return domain.label.span[0] + float(self.model_.weights[-1] * domain.intercept if domain.intercept else 0.0)
