"""How bags of unlabelled rows and their label proportions become a model: one class for each estimator."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from daskrado.learners.bags import Bags, laplacian_mean_map, mean_map, similarity
from daskrado.learners.on_passes.alternating import Alternation, BaggedFeatures, alternate
from daskrado.learners.on_passes.linear_odd import fit_mean
from daskrado.losses.margin import Loss

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class BagEstimator(ABC):
    """An estimator of the mean operator. ``weights`` of the bags are all the same, or by their rows."""

    weights: Literal["uniform", "rows"] = "uniform"

    name: ClassVar[str]

    @classmethod
    def current_spelling(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """A file may leave the options of another estimator in place: they have no effect."""
        other = {part.name for part in fields(Alternating)} - {part.name for part in fields(cls)}
        return {key: value for key, value in options.items() if key not in other}

    @property
    def needs_squares(self) -> bool:
        """Whether sums of squared norms are needed."""
        return False

    @abstractmethod
    def mean(self, bags: Bags) -> Vector:
        """The mean operator."""

    def learn(self, features: BaggedFeatures, bags: Bags, loss: Loss, strength: float) -> Alternation:
        """Weights from the mean operator."""
        mean = self.mean(bags)
        return Alternation(fit_mean(features, loss, mean, strength), mean, ())

    def _weights(self, bags: Bags) -> Vector | None:
        return bags.rows / bags.rows.mean() if self.weights == "rows" else None


@dataclass(frozen=True)
class MeanMap(BagEstimator):
    """Class means that are the same in every bag."""

    name: ClassVar[str] = "mean_map"

    def mean(self, bags: Bags) -> Vector:
        return mean_map(bags, self._weights(bags))


@dataclass(frozen=True)
class LaplacianMeanMap(BagEstimator):
    """Class means that differ little between similar bags."""

    similarity: Literal["gaussian", "association"] = "gaussian"
    sigma: Annotated[float | None, Field(gt=0)] = None
    gamma: Annotated[float, Field(gt=0)] = 0.1

    name: ClassVar[str] = "laplacian"

    @property
    def needs_squares(self) -> bool:
        return self.similarity == "association"

    def mean(self, bags: Bags) -> Vector:
        graph = similarity(bags, self.similarity, self.sigma)
        return laplacian_mean_map(bags, graph, gamma=self.gamma, weights=self._weights(bags))


@dataclass(frozen=True)
class Alternating(LaplacianMeanMap):
    """Alternates between labels and weights, from the mean operator that ``start`` names."""

    start: Literal["mean_map", "laplacian"] = "laplacian"
    labels: Literal["best", "worst"] = "best"
    rounds: Annotated[int, Field(ge=1, le=1000)] = 20

    name: ClassVar[str] = "alternating"

    def mean(self, bags: Bags) -> Vector:
        """The start."""
        return MeanMap(self.weights).mean(bags) if self.start == MeanMap.name else super().mean(bags)

    def learn(self, features: BaggedFeatures, bags: Bags, loss: Loss, strength: float) -> Alternation:
        start, positives = self.mean(bags), bags.proportions * bags.rows
        return alternate(features, loss, start, strength, positives, labels=self.labels, rounds=self.rounds)
