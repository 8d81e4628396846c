"""RadoClassifier: boosting on Rademacher observations, from a file of them or from a lake."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from daskrado.jobs.rado_file import learn_rados
from daskrado.sklearn.classes import LakeClassifier
from daskrado.sklearn.classifier import common_keys
from daskrado.table.domain import Domain


class RadoClassifier(LakeClassifier):
    """A classifier from rados: ``fit("set.rados.parquet")`` needs nothing but the file, and charges nothing.

    Fitted on a lake, a frame or ``X`` and ``y`` it releases ``count`` Hadamard rados with noise, in one charge; of up
    to a hundred classes as many for each, at the same price.
    ``learner`` is ``rado_moments``, ``radoboost`` or ``rado_newton``, or a mapping with its options.

    Sensitivity
        Of the noisy sketch behind the rados: sqrt(2) times the norm bound under add_remove.

    Reference
        Nock, Patrini and Friedman (2015), Rademacher observations, private data, and boosting.
    """

    gives_probabilities: ClassVar[bool] = False
    several: ClassVar[bool] = True

    def __init__(
        self,
        domain: Domain | Mapping[str, Any] | str | Path | None = None,
        *,
        bounds: Any = None,
        classes: tuple[Any, ...] | None = None,
        dataset: str | None = None,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        relation: str = "add_remove",
        unit: str | Mapping[str, Any] | None = None,
        learner: str | Mapping[str, Any] = "rado_moments",
        count: int = 1024,
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
        self.count = count
        self.private = private
        self.ledger = ledger
        self.first_limit = first_limit
        self.workers = workers
        self.cluster = cluster

    def fit(self, X: Any, y: Any = None, *, units: Any = None) -> Self:
        """Learn from a file of rados, or release rados of a lake and learn from them."""
        if isinstance(X, str | Path) and str(X).endswith(".rados.parquet"):
            return self._learned(learn_rados(X, learner=self.learner), arrays=False)
        return super().fit(X, y, units=units)

    def _job(self, domain: Domain) -> Mapping[str, Any]:
        several = domain.label.target == "classes"
        statistic = {"kind": "class_rados" if several else "hadamard_rados", "count": self.count}
        if not self.private:
            statistic["seed"] = 0  # nobody is protected by secret signatures, and the fit can be repeated
        learner = {"kind": self.learner} if isinstance(self.learner, str) else self.learner
        return {**common_keys(self), "learner": learner, "statistic": statistic}
