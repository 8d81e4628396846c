"""RadoBoost: boosting on rados, one coordinate a round. On edge vectors instead of rados it is AdaBoost."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from daskrado.errors import UsageError
from daskrado.learners.base import ReleaseLearner, alike
from daskrado.models.rados import RADO_STATISTICS, rados_of
from daskrado.privacy.release import Release
from daskrado.statistics.class_rados import ClassRados
from daskrado.table.label import Target

CLAMP = 1.0 - 1e-12
WHOLE_WEIGHT = 1.0 - 1e-9  # a weight above this holds everything: later rounds could only repeat themselves

Vector = NDArray[np.float64]


class RadoLearner(ReleaseLearner):
    """A learner on rados; of several classes it learns each from its own rados, against the rest.

    Margins that follow from rados are on no scale, so that the weights of each class are given length 1: on wine and
    synthetic rows that was better than lengths as they come, for every learner here.
    """

    statistics: ClassVar[tuple[str, ...]] = (*RADO_STATISTICS, ClassRados.name)
    statistic_of: ClassVar[Mapping[Target, str]] = {"classes": ClassRados.name}

    def fit(self, release: Release) -> tuple[Vector, dict[str, Any]]:
        if not isinstance(release.statistic, ClassRados):
            return self.learn(rados_of(release))
        found = [self.learn(rados) for rados in release.statistic.each(release.values["sketch"])]
        weights = np.array([one for one, _ in found])
        length = np.maximum(np.linalg.norm(weights, axis=1, keepdims=True), np.finfo(np.float64).tiny)
        return weights / length, alike([details for _, details in found])

    @abstractmethod
    def learn(self, rados: Vector) -> tuple[Vector, dict[str, Any]]:
        """Learn from the rows of ``rados``."""


@dataclass(frozen=True)
class Round:
    """What one boosting round did; weights and theta are those after it."""

    feature: int
    edge: float
    log_risk: float
    log_bound: float
    weights: Vector
    theta: Vector


@dataclass(frozen=True)
class RadoBoost(RadoLearner):
    """Minimises log mean exp(-rados theta) by coordinate steps.

    With p_k = max_j |rado_jk| and w the weights over rados, a round takes a feature k, its edge
    r = sum_j w_j rado_jk / p_k, adds log((1+r)/(1-r)) / (2 kappa p_k) to theta_k and updates the weights:
    ``linear`` (AdaBoost.R) multiplies w_j by (1 - r rado_jk / p_k) / (1 - r^2), ``exponential`` (AdaBoost) makes them
    proportional to exp(-rado_j theta). After every round sum w = 1, w >= 0 and
    log F_exp <= (1 / kappa) sum [log(1 - r r') - log(1 - r^2) / 2], r' the edge before clamping: that is
    (1 / (2 kappa)) sum log(1 - r^2) where nothing was clamped.

    ``oracle``: "strongest" takes the largest |r|; "median" the median |r|; "prudential" the largest |r| that does not
    exceed ``prudence``. ``clamp_low`` and ``clamp`` bound |r| from below and above; ``floor`` stops when the oracle's
    |r| falls below it. ``keep``: the theta of least rado risk over the rounds (post-processing of the rados, so
    free), or the last. A choice by training error reads the rows again: see ``learners.choose_round``.

    Reference
        Nock, Patrini and Friedman (2015), algorithm 1, with the step and the weights' index corrected; Nock and
        Nielsen (2007) for the linear update; Schapire and Singer (1999) for the exponential one.
    """

    rounds: Annotated[int, Field(ge=1, le=10_000_000)] = 1000
    kappa: Annotated[float, Field(ge=1)] = 1.0
    oracle: Literal["strongest", "median", "prudential"] = "strongest"
    prudence: Annotated[float, Field(gt=0, le=1)] = 0.5
    clamp: Annotated[float, Field(gt=0, lt=1)] = CLAMP
    clamp_low: Annotated[float, Field(ge=0, lt=1)] = 0.0
    floor: Annotated[float, Field(ge=0, lt=1)] = 1e-12
    update: Literal["linear", "exponential"] = "linear"
    keep: Literal["risk", "last"] = "risk"

    name: ClassVar[str] = "radoboost"

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise UsageError(f"rounds must be at least 1, got {self.rounds}")
        if not self.kappa >= 1:
            raise UsageError(f"kappa must be at least 1, got {self.kappa}")
        if not 0 < self.clamp <= CLAMP:
            raise UsageError(f"clamp must be above 0 and below 1, got {self.clamp}")
        if not 0 <= self.clamp_low <= self.clamp:
            raise UsageError(f"clamp_low must be between 0 and clamp {self.clamp:g}, got {self.clamp_low}")
        if not 0 < self.prudence <= 1:
            raise UsageError(f"prudence must be in (0, 1], got {self.prudence}")

    def learn(self, rados: Vector, watch: Callable[[Round], None] | None = None) -> tuple[Vector, dict[str, Any]]:
        """Learn from the rows of ``rados``; ``watch`` sees every round."""
        count, width = rados.shape
        largest = np.abs(rados).max(axis=0)
        used = np.flatnonzero(largest > 0)
        theta = np.zeros(width)
        details: dict[str, Any] = {"rados": count, "dropped_features": int(width - len(used)), "rounds": 0}
        if not len(used):
            return theta, details
        scaled = np.ascontiguousarray((rados[:, used] / largest[used]).T)  # feature by rado, in [-1, 1]
        weights, margins = np.full(count, 1.0 / count), np.zeros(count)
        steps = np.zeros(len(used))
        best, best_risk, log_bound, log_risk = steps.copy(), 0.0, 0.0, 0.0
        for done in range(1, self.rounds + 1):
            edges = scaled @ weights
            at = self.choose(edges)
            if at is None:
                break
            column, found = scaled[at], float(edges[at])
            edge = self.clamped(found)
            step = math.log((1 + edge) / (1 - edge)) / (2 * self.kappa)
            steps[at] += step
            margins += step * column
            # The risk of this round, from exp(-margins) shifted to a largest term of 1: nothing can overflow.
            lowest = float(margins.min())
            terms = np.exp(lowest - margins)
            total = float(terms.sum())
            log_risk = math.log(total / count) - lowest
            if self.update == "linear":
                weights *= 1.0 - edge * column
                weights /= weights.sum()
            else:
                weights = terms / total
            log_bound += (math.log1p(-edge * found) - math.log1p(-edge * edge) / 2) / self.kappa
            details["rounds"] = done
            if log_risk < best_risk:
                best[:], best_risk = steps, log_risk
            if watch is not None:
                theta[used] = steps / largest[used]
                watch(Round(int(used[at]), edge, log_risk, log_bound, weights.copy(), theta.copy()))
            if weights.max() > WHOLE_WEIGHT:
                break
        theta[used] = (best if self.keep == "risk" else steps) / largest[used]
        details["log_rado_risk"] = best_risk if self.keep == "risk" else log_risk
        return theta, details

    def path(self, rados: Vector) -> Vector:
        """The theta after every round, one per row."""
        thetas: list[Vector] = []
        self.learn(rados, lambda this: thetas.append(this.theta))
        return np.array(thetas).reshape(len(thetas), rados.shape[1])

    def clamped(self, edge: float) -> float:
        """The edge with its size between the two clamps."""
        return math.copysign(min(max(abs(edge), self.clamp_low), self.clamp), edge)

    def choose(self, edges: Vector) -> int | None:
        """The weak feature index oracle; None when no allowed feature has an edge."""
        size = np.abs(edges)
        if self.oracle == "strongest":
            at = int(size.argmax())
        elif self.oracle == "median":
            at = int(np.argsort(size, kind="stable")[len(size) // 2])
        else:
            allowed = np.flatnonzero(size <= self.prudence)
            if not len(allowed):
                return None
            at = int(allowed[size[allowed].argmax()])
        return at if size[at] >= self.floor else None
