"""PrivateClassifier: every learner of ``kind: learn`` behind scikit-learn's interface."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from daskrado.api import first_limit_keys
from daskrado.cluster import cluster_config
from daskrado.sklearn.classes import LakeClassifier
from daskrado.table.domain import Domain


class PrivateClassifier(LakeClassifier):
    """A differentially private linear classifier of two classes, or of up to a hundred.

    ``domain`` holds public bounds and categories, ``dataset`` is the name by which the ledger knows the rows,
    ``unit`` the column of the ids of the people who own them (without it the guarantee is for one row), ``rows`` a
    public guess at their number. ``learner`` is a kind, or a mapping with its options; ``goal`` is what ``auto``
    learns for: "error", "auc", "logloss" or ``{"cost": 5}``, where a missed positive costs five false alarms. In
    place of a Domain an array of numbers has ``bounds``, a pair for all columns or one for each, and ``classes``, the
    negative one first. ``private=False`` protects nobody, needs neither, and behaves as any other estimator of
    scikit-learn.

    Sensitivity
        Derived by the learner's statistics from the Domain's norm bound and the relation.

    Reference
        See ``statement_.theorem`` after a fit.

    >>> import numpy as np
    >>> X = np.array([[-2.0], [-1.0], [1.0], [2.0]])
    >>> model = PrivateClassifier(private=False).fit(X, ["no", "no", "yes", "yes"])
    >>> model.predict([[-1.5], [1.5]]).tolist()
    ['no', 'yes']
    """

    several: ClassVar[bool] = True

    def __init__(
        self,
        domain: Domain | Mapping[str, Any] | str | Path | None = None,
        *,
        bounds: Any = None,
        classes: tuple[Any, ...] | None = None,
        dataset: str | None = None,
        epsilon: float = 1.0,
        delta: float = 0.0,
        relation: str = "add_remove",
        unit: str | Mapping[str, Any] | None = None,
        learner: str | Mapping[str, Any] = "auto",
        goal: str | Mapping[str, Any] | None = None,
        rows: int | None = None,
        private: bool = True,
        ledger: str | Path | None = None,
        first_limit: tuple[float, float] | None = None,
        workers: int | None = None,
        cluster: Any = None,
    ) -> None:
        self.domain = domain
        self.bounds = bounds
        self.classes = classes
        self.dataset = dataset
        self.epsilon = epsilon
        self.delta = delta
        self.relation = relation
        self.unit = unit
        self.learner = learner
        self.goal = goal
        self.rows = rows
        self.private = private
        self.ledger = ledger
        self.first_limit = first_limit
        self.workers = workers
        self.cluster = cluster

    def _job(self, domain: Domain) -> Mapping[str, Any]:
        return {**common_keys(self), "learner": self._learner(domain), "goal": self.goal, "rows": self.rows}

    def _learner(self, domain: Domain) -> Any:
        if not self.private and self.learner == "auto":
            plain = {"kind": "erm", "regularisation": 1e-4}
            return plain if domain.label.target == "sides" else {"kind": "moments", "regularisation": 1e-9}
        return {"kind": self.learner} if isinstance(self.learner, str) else self.learner


def common_keys(estimator: Any) -> dict[str, Any]:
    """Who is protected, the budget, the ledger and the workers, as a pipeline writes them."""
    limit = estimator.first_limit
    keys: dict[str, Any] = {
        "private": estimator.private,
        "cluster": cluster_config(estimator.workers, estimator.cluster),
        "ledger": {
            "path": None if estimator.ledger is None else str(estimator.ledger),
            "first_limit": None if limit is None else first_limit_keys(limit),
        },
    }
    if estimator.private:
        keys["protect"] = {"relation": estimator.relation, "unit": estimator._whose}
        keys["budget"] = {"epsilon": estimator.epsilon, "delta": estimator.delta}
    return keys
