"""RadoBoost: boosting on rados, one coordinate a round."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from daskrado.errors import UsageError
from daskrado.release import Release
from daskrado.statistics.rados import HadamardRados, rados_from_sketch

CLAMP = 1.0 - 1e-12


@dataclass(frozen=True)
class Round:
    """What one boosting round did; weights are those after it."""

    feature: int
    edge: float
    log_risk: float
    log_bound: float
    weights: NDArray[np.float64]


@dataclass(frozen=True)
class RadoBoost:
    """Minimises log mean exp(-rados theta) by coordinate steps.

    With p_k = max_j |rado_jk| and w the weights over rados, a round takes a feature k, its edge
    r = sum_j w_j rado_jk / p_k, adds log((1+r)/(1-r)) / (2 kappa p_k) to theta_k and multiplies w_j by
    (1 - r rado_jk / p_k) / (1 - r^2). After every round sum w = 1, w >= 0 and
    log F_exp <= (1/(2 kappa)) sum log(1 - r^2).

    ``oracle``: "strongest" takes the largest |r|; "median" the median |r|; "prudential" the largest |r| that does not
    exceed ``prudence``. ``clamp`` bounds |r| from above, ``floor`` stops when the oracle's |r| falls below it.
    ``keep``: the theta of least rado risk over the rounds (post-processing of the rados, so free), or the last.

    Reference
        Nock, Patrini and Friedman (2015), algorithm 1, with the step and the weights' index corrected.
    """

    rounds: int = 1000
    kappa: float = 1.0
    oracle: Literal["strongest", "median", "prudential"] = "strongest"
    prudence: float = 0.5
    clamp: float = CLAMP
    floor: float = 1e-12
    keep: Literal["risk", "last"] = "risk"

    name = "radoboost"

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise UsageError(f"rounds must be at least 1, got {self.rounds}")
        if not self.kappa >= 1:
            raise UsageError(f"kappa must be at least 1, got {self.kappa}")
        if not 0 < self.clamp <= CLAMP:
            raise UsageError(f"clamp must be above 0 and below 1, got {self.clamp}")
        if not 0 < self.prudence <= 1:
            raise UsageError(f"prudence must be in (0, 1], got {self.prudence}")

    def fit(self, release: Release) -> tuple[NDArray[np.float64], dict[str, Any]]:
        """Weights for the encoded features, and public facts on how they came about."""
        weights, details = self.boost(rados_of(release))
        return weights, details

    def boost(
        self, rados: NDArray[np.float64], watch: Callable[[Round], None] | None = None
    ) -> tuple[NDArray[np.float64], dict[str, Any]]:
        """Learn from the rows of ``rados``; ``watch`` sees every round."""
        count, width = rados.shape
        largest = np.abs(rados).max(axis=0)
        used = np.flatnonzero(largest > 0)
        theta = np.zeros(width)
        details: dict[str, Any] = {"rados": count, "dropped_features": int(width - len(used)), "rounds": 0}
        if not len(used):
            return theta, details
        scaled = np.ascontiguousarray((rados[:, used] / largest[used]).T)  # feature by rado, in [-1, 1]
        weights = np.full(count, 1.0 / count)
        margins = np.zeros(count)
        steps = np.zeros(len(used))
        best, best_risk, log_bound = steps.copy(), 0.0, 0.0
        for done in range(1, self.rounds + 1):
            edges = scaled @ weights
            at = self._choose(edges)
            if at is None:
                break
            column = scaled[at]
            edge = float(np.clip(edges[at], -self.clamp, self.clamp))
            step = math.log((1 + edge) / (1 - edge)) / (2 * self.kappa)
            steps[at] += step
            margins += step * column
            weights *= 1.0 - edge * column
            weights /= weights.sum()
            log_risk = float(logsumexp(-margins)) - math.log(count)
            log_bound += math.log1p(-edge * edge) / (2 * self.kappa)
            details["rounds"] = done
            if log_risk < best_risk:
                best, best_risk = steps.copy(), log_risk
            if watch is not None:
                watch(Round(int(used[at]), edge, log_risk, log_bound, weights))
        kept = best if self.keep == "risk" else steps
        theta[used] = kept / largest[used]
        details["log_rado_risk"] = best_risk if self.keep == "risk" else float(logsumexp(-margins)) - math.log(count)
        return theta, details

    def _choose(self, edges: NDArray[np.float64]) -> int | None:
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


def rados_of(release: Release) -> NDArray[np.float64]:
    """The rados that a release holds, or that follow from its sketch."""
    if isinstance(release.statistic, HadamardRados):
        return rados_from_sketch(release.values["sketch"])
    if "rados" not in release.values:
        raise UsageError(f"learner radoboost needs rados, got the statistic {release.statistic.name}")
    return release.values["rados"]
