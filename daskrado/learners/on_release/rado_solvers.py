"""Solvers on rados other than boosting: the second cumulant in closed form, and ridge rado risk by Newton steps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field

from daskrado.errors import UsageError
from daskrado.learners.on_release.radoboost import RadoLearner, Vector


@dataclass(frozen=True)
class RadoMoments(RadoLearner):
    """theta = (Cov + ridge v I)^-1 mean, over the rados; v is the mean variance of a column.

    log E exp(-theta pi) = -theta mean + theta' Cov theta / 2 - ...: this minimises the first two cumulants of the
    rado risk. It does not see the separability of a finite rado set, which drives the risk itself to 0, and is far
    more accurate than boosting from the same rados. By default the ridge is the one that Ledoit and Wolf's shrinkage
    of the covariance amounts to: it follows from the rados alone and vanishes as their number grows.

    Reference
        Cumulants: ours. Ledoit and Wolf (2004), A well-conditioned estimator for large-dimensional covariance
        matrices, lemma 3.3 and section 3.3.
    """

    regularisation: Annotated[float | None, Field(ge=0)] = None

    name: ClassVar[str] = "rado_moments"
    older_names: ClassVar[Mapping[str, str]] = {"ridge": "regularisation"}

    def __post_init__(self) -> None:
        if self.regularisation is not None and not 0 <= self.regularisation < math.inf:
            raise UsageError(f"regularisation must be at least 0, got {self.regularisation}")

    def learn(self, rados: Vector) -> tuple[Vector, dict[str, Any]]:
        count, width = rados.shape
        if count < 2:
            raise UsageError(f"learner rado_moments needs at least 2 rados, got {count}")
        within, basis = _span(rados)
        mean = within.mean(axis=0)
        centred = within - mean
        values, vectors = np.linalg.eigh(centred.T @ centred / (count - 1))
        ridge = _shrinkage_ridge(centred, width) if self.regularisation is None else self.regularisation
        values = np.maximum(values, 0.0)
        values += ridge * float(values.sum()) / width
        # Directions in which the rados do not vary get no weight instead of a division by zero.
        useful = values > float(values.max(initial=0.0)) * 1e-12
        inverse = np.divide(1.0, values, out=np.zeros(values.size), where=useful)
        outside = 0 if ridge > 0.0 else width - values.size
        details = {
            "rados": count,
            "dropped_features": int((np.abs(rados).max(axis=0) == 0).sum()),
            "flat_directions": int((~useful).sum()) + outside,
            "ridge": ridge,
        }
        weights = vectors @ (inverse * (vectors.T @ mean))
        return weights if basis is None else basis @ weights, details


def _span(rados: Vector) -> tuple[Vector, Vector | None]:
    """Rados in coordinates of a basis of their span, and the basis, where there are fewer of them than features.

    The weights of both learners lie in that span: their penalties are the same in every direction, and all else
    that they minimise sees products with rados alone. So 1,024 rados of 20,000 features are a problem of 1,024.
    """
    if rados.shape[0] >= rados.shape[1]:
        return rados, None
    basis, within = np.linalg.qr(rados.T)
    return within.T, basis


def _shrinkage_ridge(centred: Vector, width: int) -> float:
    """s / (1 - s), where (1 - s) Cov + s v I is Ledoit and Wolf's estimate: the same matrix up to a factor."""
    count = centred.shape[0]
    covariance = centred.T @ centred / count
    square = float((covariance**2).sum())
    spread = square / width - (float(np.trace(covariance)) / width) ** 2
    if spread <= 0.0:
        return 0.0
    fourth = float(((centred**2).sum(axis=1) ** 2).sum()) / count
    shrinkage = min(max(fourth - square, 0.0) / (count * width) / spread, 1.0)
    return float(shrinkage / max(1.0 - shrinkage, 1e-9))


@dataclass(frozen=True)
class RadoNewton(RadoLearner):
    """Minimises log mean exp(-rados theta) + (ridge v / 2) |theta|^2, v the mean variance of a rado column.

    That is m times the logistic rado risk with ridge penalty ridge v / m. Without a ridge a separable rado set has
    no minimiser, so ridge > 0. Newton steps with halving; the objective is strongly convex.

    Reference
        Nock, Patrini and Friedman (2015), equation 4.
    """

    regularisation: Annotated[float, Field(gt=0)] = 1.0
    steps: Annotated[int, Field(ge=1, le=10_000)] = 100
    tolerance: Annotated[float, Field(gt=0, lt=1)] = 1e-10

    name: ClassVar[str] = "rado_newton"
    older_names: ClassVar[Mapping[str, str]] = {"ridge": "regularisation"}

    def __post_init__(self) -> None:
        if not (self.regularisation > 0 and math.isfinite(self.regularisation)):
            raise UsageError(
                "regularisation must be above 0 (separable rados have no minimiser without), "
                f"got {self.regularisation}"
            )

    def learn(self, rados: Vector) -> tuple[Vector, dict[str, Any]]:
        from scipy.special import logsumexp, softmax

        count, width = rados.shape
        variance = float(rados.var(axis=0).mean())
        within, basis = _span(rados)
        theta = np.zeros(within.shape[1])
        details: dict[str, Any] = {
            "rados": count,
            "dropped_features": int((np.abs(rados).max(axis=0) == 0).sum()),
            "newton_steps": 0,
        }
        if variance == 0.0:
            return np.zeros(width), details
        scaled, penalty = within / math.sqrt(variance), self.regularisation  # in these units v = 1

        def objective(point: Vector) -> float:
            return float(logsumexp(-scaled @ point)) + penalty * float(point @ point) / 2

        value = objective(theta)
        for done in range(1, self.steps + 1):
            weights = softmax(-scaled @ theta)
            mean = weights @ scaled
            gradient = penalty * theta - mean
            if float(np.linalg.norm(gradient)) <= self.tolerance * max(1.0, float(np.linalg.norm(mean))):
                break
            centred = scaled - mean
            hessian = centred.T @ (weights[:, None] * centred) + penalty * np.eye(theta.size)
            direction = np.linalg.solve(hessian, gradient)
            size, slope = 1.0, float(gradient @ direction)
            while size > 1e-12 and not objective(theta - size * direction) <= value - 1e-4 * size * slope:
                size /= 2
            if size <= 1e-12:
                break  # at the resolution of doubles
            theta = theta - size * direction
            value = objective(theta)
            details["newton_steps"] = done
        details["log_rado_risk"] = float(logsumexp(-scaled @ theta)) - math.log(count)
        theta = theta / math.sqrt(variance)
        return theta if basis is None else basis @ theta, details
