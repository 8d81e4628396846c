"""LabelPrivateClassifier: features are public, only labels are secret."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from daskrado.sklearn.classes import LakeClassifier
from daskrado.sklearn.classifier import common_keys
from daskrado.table.domain import Domain


class LabelPrivateClassifier(LakeClassifier):
    """A classifier from a noisy mean operator, where **features are public** and one label may change.

    ``loss`` is a linear-odd loss (``logistic``, ``square``, ``matsushita``, ...), ``mechanism`` is ``l2_gamma``,
    ``laplace`` (both pure) or ``gaussian`` (with a delta).

    Sensitivity
        Of the mean operator under a flipped label: twice the largest norm of the public rows, measured.

    Reference
        Patrini, Nielsen and Nock (2015), Bridging weak supervision and privacy aware learning.
    """

    def __init__(
        self,
        domain: Domain | Mapping[str, Any] | str | Path | None = None,
        *,
        bounds: Any = None,
        classes: tuple[Any, Any] | None = None,
        dataset: str | None = None,
        epsilon: float = 1.0,
        delta: float = 0.0,
        unit: str | Mapping[str, Any] | None = None,
        loss: str | Mapping[str, Any] = "logistic",
        regularisation: float = 1e-4,
        mechanism: str = "l2_gamma",
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
        self.unit = unit
        self.loss = loss
        self.regularisation = regularisation
        self.mechanism = mechanism
        self.private = private
        self.ledger = ledger
        self.first_limit = first_limit
        self.workers = workers
        self.cluster = cluster

    relation = "label_flip"  # the only one under which features are public

    def _job(self, domain: Domain) -> Mapping[str, Any]:
        del domain
        noise = {"mechanism": self.mechanism} if self.private else {}
        options = {"loss": self.loss, "regularisation": self.regularisation}
        return {"kind": "labels", **common_keys(self), **options, **noise}
