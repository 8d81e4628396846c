"""AdaBoost on the rows of a lake, one pass a round: the baseline that RadoBoost is compared with. Not private."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from daskrado.errors import UsageError
from daskrado.lake.steps import begin_step
from daskrado.learners.on_release.radoboost import CLAMP, RadoBoost
from daskrado.statistics.base import Additive, Summary
from daskrado.statistics.boosting import ColumnMaxima, WeightedEdges
from daskrado.table.yaml_file import Frozen

Gather = Callable[[Additive], Summary]


class AdaBoost(Frozen):
    """Schapire and Singer's AdaBoost with single features as weak hypotheses, the same oracle as RadoBoost's.

    Weights are exp(-y theta.x). A round sums the weighted edges over all partitions, takes the oracle's feature k
    with its normalised edge r (clamped), and adds log((1+r)/(1-r)) / (2 x*_k) to theta_k, x*_k the largest |x_ik|.
    ``sample`` boosts on a uniform sample of that many rows: AdaBoost(n). ``keep``: the theta of least exponential
    risk, of fewest mistakes on the rows, or the last; all of them read the rows without noise.

    Reference
        Schapire and Singer (1999); baseline of Nock, Patrini and Friedman (2015).
    """

    name: ClassVar[str] = "adaboost"

    rounds: int = Field(default=1000, ge=1, le=1_000_000)
    sample: int | None = Field(default=None, ge=1)
    oracle: Literal["strongest", "median", "prudential"] = "strongest"
    prudence: float = Field(default=0.5, gt=0, le=1)
    clamp: float = Field(default=CLAMP, gt=0, lt=1)
    clamp_low: float = Field(default=0.0, ge=0, lt=1)
    keep: Literal["risk", "training_error", "last"] = "risk"

    @model_validator(mode="after")
    def _check_clamps(self) -> AdaBoost:
        try:
            self._rule()
        except UsageError as error:  # options that contradict each other
            raise ValueError(str(error)) from error
        return self

    def _rule(self) -> RadoBoost:
        """The oracle and the clamps."""
        return RadoBoost(oracle=self.oracle, prudence=self.prudence, clamp=self.clamp, clamp_low=self.clamp_low)

    def fit(
        self,
        gather: Gather,
        width: int,
        progress: Callable[[int, int], None] | None = None,
        watch: Callable[[float], None] | None = None,
    ) -> tuple[NDArray[np.float64], dict[str, Any]]:
        """Learn with ``gather``, which sums a statistic over the lake (the same sample every time).

        ``watch`` sees the log of the exponential risk before every round.
        """
        rule = self._rule()
        maxima = gather(ColumnMaxima(width, self.sample))
        largest = maxima.vector
        used = np.flatnonzero(largest > 0)
        if not len(used):
            raise UsageError("every encoded feature is 0 in every row: nothing to learn from")
        step = maxima.lattice.step
        theta, kept = np.zeros(width), np.zeros(width)  # in grid steps
        statistic = WeightedEdges(width, self.sample, tuple(theta), 0.0)
        best, done, log_risk = math.inf, 0, 0.0
        begin_step(progress, "round")
        for done in range(self.rounds + 1):
            sums = gather(statistic).vector
            weight, mistakes, count = (float(value) for value in sums[width:])
            log_risk = statistic.log_scale + math.log(weight / count)
            if watch is not None:
                watch(log_risk)
            score = mistakes if self.keep == "training_error" else log_risk
            if self.keep == "last" or score < best:
                best, kept = score, theta.copy()
            if progress is not None:
                progress(done, self.rounds)
            edges = sums[:width][used] / weight / largest[used]
            at = rule.choose(edges)
            if at is None or done == self.rounds:
                break
            edge = rule.clamped(float(edges[at]))
            theta[used[at]] += math.log((1 + edge) / (1 - edge)) / (2 * largest[used[at]])
            statistic = replace(statistic, theta=tuple(theta.tolist()), log_scale=log_risk)
        details = {
            "rounds": done,
            "examples": int(count),
            "dropped_features": int(width - len(used)),
            "log_exponential_risk": log_risk,
        }
        return kept / step, details
