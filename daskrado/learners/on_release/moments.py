"""Least squares from released moments: the one-pass private default."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from daskrado.errors import UsageError
from daskrado.learners.base import ReleaseLearner
from daskrado.privacy.release import Release
from daskrado.statistics.moments import Moments, symmetric


@dataclass(frozen=True)
class MomentsLearner(ReleaseLearner):
    """theta = (S+ + lambda I)^-1 M, with S+ the released second moments, negative eigenvalues set to 0.

    ``regularisation`` is lambda in units of norm_bound^2; by default it is the noise's own public size, sigma
    sqrt(d). Post-processing of the release: no sensitivity of its own.
    """

    regularisation: Annotated[float | None, Field(ge=0)] = None

    name: ClassVar[str] = "moments"
    statistics: ClassVar[tuple[str, ...]] = ("moments",)
    older_names: ClassVar[Mapping[str, str]] = {"ridge": "regularisation"}

    def fit(self, release: Release) -> tuple[NDArray[np.float64], dict[str, Any]]:
        if not isinstance(release.statistic, Moments):
            raise UsageError(f"learner moments needs the statistic moments, got {release.statistic.name}")
        width = release.statistic.width
        bound = release.lattice.norm_bound
        mean = release.values["mean"] / bound
        second = symmetric(release.values["second"], width) / bound**2
        values, vectors = np.linalg.eigh(second)
        noise = release.noise_std["second"] / bound**2
        ridge = self.regularisation if self.regularisation is not None else noise * math.sqrt(width)
        clipped = np.maximum(values, 0.0) + ridge
        # Directions without any signal or ridge get no weight instead of a division by zero.
        useful = clipped > max(float(clipped.max(initial=0.0)), 1.0) * 1e-12
        inverse = np.divide(1.0, clipped, out=np.zeros(width), where=useful)
        weights = vectors @ (inverse * (vectors.T @ mean)) / bound
        return weights, {"ridge": float(ridge), "negative_eigenvalues": int((values < 0).sum())}


@dataclass(frozen=True)
class MeanLearner(ReleaseLearner):
    """theta = M / norm_bound^2: the direction of the mean operator, the minimiser of the regularised linear loss.

    Post-processing of the release. Good where features are nearly uncorrelated, poor elsewhere.
    """

    name: ClassVar[str] = "mean"
    statistics: ClassVar[tuple[str, ...]] = ("mean_operator", "moments")

    def fit(self, release: Release) -> tuple[NDArray[np.float64], dict[str, Any]]:
        if "mean" not in release.values:
            raise UsageError(f"learner mean needs mean_operator or moments, got {release.statistic.name}")
        mean = release.values["mean"] / release.lattice.norm_bound
        return mean / max(float(np.linalg.norm(mean)), 1.0) / release.lattice.norm_bound, {}
