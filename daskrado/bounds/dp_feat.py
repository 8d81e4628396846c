"""What DP-FEAT protects, in exact finite-m numbers: the marginal of one coordinate, and nothing else.

Neighbours differ in one record's boolean feature, so q changes by 1 and the law of the coordinate Z - q of one rado
shifts by one step. Where both laws have mass, their ratio C(m, z) / C(m, z + 1) = (z + 1) / (m - z) stays below
exp(epsilon / 2) inside the window; the one value at its edge that the neighbour cannot produce has mass delta_1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from daskrado.errors import UsageError
from daskrado.privacy.repeated_losses import repeated_losses
from daskrado.privacy.statement import MarginalFacts
from daskrado.privacy.total_loss import Losses, optimal_epsilon
from daskrado.statistics.window import Window, log_binomial

COMPOSED_DELTA = 1e-6


@dataclass(frozen=True)
class Marginal:
    """The law of the protected coordinate of ``count`` independent rados, from the window alone."""

    window: Window
    count: int = 1

    def acceptance(self) -> float:
        """P(low <= Binomial(m, 1/2) <= high), exactly: how often rejection sampling would accept."""
        from scipy.special import bdtr

        return 1.0 - 2.0 * float(bdtr(self.window.low - 1, self.window.rows, 0.5)) if self.window.low else 1.0

    def epsilon(self) -> float:
        """The largest log ratio of the two laws where both have mass; at most epsilon / 2 by the window's choice."""
        low, rows = self.window.low, self.window.rows
        return math.log((rows - low) / (low + 1)) if low < self.window.high else 0.0

    def delta(self) -> float:
        """delta_1: the mass of the window's edge, C(m, low) / sum over the window of C(m, z)."""
        edge = float(log_binomial(self.window.rows, np.array([self.window.low]))[0])
        return min(1.0, math.exp(edge - _log_mass(self.window)))

    def untruncated_delta(self) -> float:
        """The delta of the same coordinate without any window, at epsilon / 2: smaller, so the window only hurts.

        sup over z of F(z) - exp(epsilon / 2) F(z - 1) for F the binomial's distribution function.
        """
        from scipy.special import bdtr

        rows, bound = self.window.rows, math.exp(self.window.epsilon / 2)
        # The ratio (m - z + 1) / z of neighbouring masses exceeds the bound below this value.
        last = math.floor((rows + 1) / (1 + bound))
        below = float(bdtr(last - 1, rows, 0.5)) if last > 0 else 0.0
        return max(0.0, float(bdtr(last, rows, 0.5)) - bound * below)

    def composed_epsilon(self, delta: float) -> float:
        """The epsilon of the coordinate in all ``count`` rados together at ``delta``, never below the exact one.

        One rado loses log C(m, z) / C(m, z - 1) = log((m - z + 1) / z) at a value z above the window's low end, and
        everything at that end; the sum of ``count`` losses gives epsilon. It is infinite where the mass of the low
        ends exceeds delta. Mirrored values, m + 1 - z for z, exchange the two neighbours' laws: both directions are
        the same.
        """
        if not 0 < delta < 1:
            raise UsageError(f"delta must be between 0 and 1, got {delta}")
        if self.window.low == self.window.high:  # the neighbour's one value is another
            return math.inf
        return optimal_epsilon(repeated_losses([(self._losses(), self.count)], delta), delta)

    def _losses(self) -> Losses:
        """The losses of one rado; masses follow from the middle one by ratios, and are raised by their rounding."""
        rows, support = self.window.rows, self.window.support().astype(np.float64)
        middle = len(support) // 2
        steps = np.log1p((rows - 2 * support[:-1] - 1) / (support[:-1] + 1))  # log C(m, z + 1) / C(m, z)
        logs = np.concatenate([-np.cumsum(steps[:middle][::-1])[::-1], [0.0], np.cumsum(steps[middle:])])
        masses = np.exp(logs)
        # Each of so many additions may err by 2^-53 of the largest logarithm, and so may the sum of the masses.
        error = len(support) * (2 + float(np.abs(logs).max())) * 2.0**-52
        masses = masses / masses.sum() * (1 + 2 * error)
        return Losses(steps, masses[1:], float(masses[0]))

    def facts(self, feature: str) -> MarginalFacts:
        """The numbers that a statement must carry."""
        composed = self.composed_epsilon(COMPOSED_DELTA)
        return MarginalFacts(
            feature=feature,
            rows=self.window.rows,
            rados=self.count,
            beta=self.window.beta,
            window_low=self.window.low,
            window_high=self.window.high,
            acceptance=self.acceptance(),
            epsilon=self.epsilon(),
            delta=self.delta(),
            untruncated_delta=self.untruncated_delta(),
            composed_epsilon=composed if math.isfinite(composed) else None,
            composed_delta=COMPOSED_DELTA,
        )


def _log_mass(window: Window) -> float:
    raw = log_binomial(window.rows, window.support())
    top = float(raw.max())
    return top + math.log(float(np.exp(raw - top).sum()))
