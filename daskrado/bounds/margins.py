"""Bounds on the true error of a voted classifier from its margins on a sample, with explicit constants.

f is a vote sum of a_k h_k, |h_k| <= 1, a_k >= 0 with sum 1, over a finite set H of base hypotheses (a feature and its
negation are two). The n examples are drawn independently from the distribution whose error is bounded. The bounds are
about *examples*: margins of rados say nothing here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from daskrado.errors import UsageError


@dataclass(frozen=True)
class Bound:
    """An upper bound on P(y f(x) <= 0), or why the theorem says nothing. Above 1 it is true but vacuous."""

    value: float | None
    reason: str = ""

    def __str__(self) -> str:
        if self.value is None:
            return f"does not apply: {self.reason}"
        return f"{self.value:.4f}" + (" (vacuous)" if self.value >= 1 else "")


def margin_bound(share: float, theta: float, hypotheses: int, examples: int, failure: float) -> Bound:
    """P_S[y f <= theta] + (2 / theta) sqrt(2 ln|H| / n) + sqrt(ln(1/failure) / 2n), for a theta fixed beforehand.

    ``share`` is P_S[y f <= theta]. For the best of t thetas give failure / t.

    *Reference*: Schapire, Freund, Bartlett and Lee (1998), who hide the constants; these are those of the Rademacher
    proof (Koltchinskii and Panchenko 2002; Bartlett and Mendelson 2002) with Massart's bound on a finite class.
    """
    _check(hypotheses, examples, failure)
    if not 0 <= share <= 1:
        raise UsageError(f"a share of examples lies between 0 and 1, got {share!r}")
    if not 0 < theta <= 1:
        return Bound(None, f"theta must be above 0 and at most 1, got {theta:g}")
    complexity = 2 / theta * math.sqrt(2 * math.log(hypotheses) / examples)
    return Bound(share + complexity + math.sqrt(-math.log(failure) / (2 * examples)))


def breiman_bound(least_margin: float, hypotheses: int, examples: int, failure: float) -> Bound:
    """R (ln 2n + ln 1/R + 1) + ln(|H| / failure) / n, with R = 32 ln(2|H|) / (n theta_0^2).

    theta_0 is the least margin in the sample. It must exceed 4 sqrt(2 / |H|), and R must not exceed 2n.

    *Reference*: Breiman (1999).
    """
    _check(hypotheses, examples, failure)
    floor = 4 * math.sqrt(2 / hypotheses)
    if not least_margin > floor:
        return Bound(None, f"the least margin {least_margin:.4g} must exceed 4 sqrt(2/|H|) = {floor:.4g}")
    ratio = 32 * math.log(2 * hypotheses) / (examples * least_margin**2)
    if ratio > 2 * examples:
        return Bound(None, f"R = {ratio:.4g} must not exceed 2n = {2 * examples:,}")
    return Bound(ratio * (math.log(2 * examples) - math.log(ratio) + 1) + math.log(hypotheses / failure) / examples)


def _check(hypotheses: int, examples: int, failure: float) -> None:
    if hypotheses < 2 or examples < 1:
        raise UsageError(f"a margin bound needs two hypotheses and an example, got {hypotheses} and {examples}")
    if not 0 < failure < 1:
        raise UsageError(f"the chance of failure lies between 0 and 1, got {failure!r}")


@dataclass(frozen=True)
class MarginDistribution:
    """Rows by normalised margin, in equal bins of [-1, 1], with noise of standard deviation ``std`` on each count."""

    counts: NDArray[np.float64]
    examples: int
    std: float = 0.0

    @property
    def edges(self) -> NDArray[np.float64]:
        """The edges of the bins."""
        return np.linspace(-1, 1, len(self.counts) + 1)

    @cached_property
    def shares(self) -> NDArray[np.float64]:
        """The share of rows with a margin below each edge; noise is made monotone and kept within [0, 1]."""
        running = np.maximum.accumulate(np.cumsum(self.counts) / self.examples)
        return np.concatenate([[0.0], np.clip(running, 0.0, 1.0)])

    @property
    def error(self) -> float:
        """The share of rows with a margin below 0."""
        return float(self.shares[len(self.shares) // 2])

    def best_margin_bound(self, thetas: Sequence[float], hypotheses: int, failure: float) -> tuple[Bound, float]:
        """The least :func:`margin_bound` over thetas that were fixed beforehand, and its theta."""
        found = [(self._bound_at(theta, hypotheses, failure / len(thetas)), theta) for theta in thetas]
        return min(found, key=lambda pair: math.inf if pair[0].value is None else pair[0].value)

    def _bound_at(self, theta: float, hypotheses: int, failure: float) -> Bound:
        """Half of the chance of failure pays for the noise on the counts, with its quantile."""
        # P[margin <= theta] is at most the share below the first edge above theta.
        at = int(np.searchsorted(self.edges, theta + 1e-9, side="right"))
        share = float(self.shares[min(at, len(self.counts))])
        if self.std > 0:
            failure /= 2
            spread = self.std * math.sqrt(at + len(self.counts)) / self.examples
            share = min(1.0, share + NormalDist().inv_cdf(1 - failure) * spread)
        return margin_bound(share, theta, hypotheses, self.examples, failure)

    def breiman_bound(self, hypotheses: int, failure: float) -> Bound:
        """:func:`breiman_bound` at the left edge of the first bin that holds a row."""
        if self.std > 0:
            return Bound(None, "the least margin is not known exactly on private data")
        first = int(np.flatnonzero(self.counts)[0])
        return breiman_bound(float(self.edges[first]), hypotheses, self.examples, failure)
