"""The window of DP-FEAT: which values the protected coordinate of a rado may take, and their exact law."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal

import numpy as np
from numpy.typing import NDArray

from daskrado.errors import UsageError

_DEVIATIONS = 40.0  # beyond this many standard deviations a binomial has less mass than the least double


@dataclass(frozen=True)
class Window:
    """With edges y_i x_ij = +-1, q of them -1, a rado's coordinate is Z - q where Z ~ Binomial(m, 1/2).

    DP-FEAT keeps signatures with ``low <= Z <= high``: beta = 1 / (1 + exp(epsilon / 2)), low = ceil(beta (m + 1)),
    high = m - low.

    Reference
        Nock, Patrini and Friedman (2015), algorithm 2 and equation 16, for a feature encoded as +-1.
    """

    epsilon: float
    rows: int

    def __post_init__(self) -> None:
        if not 0 < self.epsilon < math.inf:
            raise UsageError(f"DP-FEAT needs an epsilon above 0, got {self.epsilon}")
        if self.low > self.high:
            least = smallest_epsilon(self.rows)
            advice = (
                f"the smallest that works is {rounded_up(least)}" if least < math.inf else "no epsilon would help"
            )
            raise UsageError(
                f"DP-FEAT with epsilon {self.epsilon:g} and {self.rows} rows leaves no rado in its window; {advice}"
            )

    @property
    def beta(self) -> float:
        """The fraction cut off at each end."""
        return 1.0 / (1.0 + math.exp(self.epsilon / 2))

    @property
    def low(self) -> int:
        """Smallest Z kept."""
        return math.ceil(self.beta * (self.rows + 1))

    @property
    def high(self) -> int:
        """Largest Z kept."""
        return self.rows - self.low

    def support(self) -> NDArray[np.int64]:
        """The values of Z with any mass that a double can show."""
        reach = math.ceil(_DEVIATIONS * math.sqrt(self.rows) / 2) + 1
        middle = self.rows // 2
        return np.arange(max(self.low, middle - reach), min(self.high, middle + reach) + 1)

    def log_masses(self) -> NDArray[np.float64]:
        """log P(Z = z) on :meth:`support` for the truncated binomial, normalised."""
        raw = log_binomial(self.rows, self.support())
        return raw - _logsumexp(raw)

    def sizes(self, uniforms: NDArray[np.float64]) -> NDArray[np.int64]:
        """Draws of Z by inversion."""
        cumulative = np.cumsum(np.exp(self.log_masses()))
        at = np.searchsorted(cumulative, uniforms * cumulative[-1], side="right")
        drawn: NDArray[np.int64] = self.support()[np.minimum(at, len(cumulative) - 1)]
        return drawn


def smallest_epsilon(rows: int) -> float:
    """The least epsilon whose window holds at least one value: 2 log((m + 1 - h) / h) with h = floor(m / 2)."""
    half = rows // 2
    return math.inf if half == 0 else 2 * math.log((rows + 1 - half) / half) * (1 + 1e-12)


def rounded_up(value: float, digits: int = 6) -> str:
    """A number with this many digits, never below ``value``: what a person may type in its place."""
    return str(Context(prec=digits, rounding=ROUND_CEILING).create_decimal(Decimal(value)))


def log_binomial(rows: int, values: NDArray[np.int64]) -> NDArray[np.float64]:
    """log P(Binomial(rows, 1/2) = value)."""
    from scipy.special import gammaln

    return np.asarray(
        gammaln(rows + 1.0) - gammaln(values + 1.0) - gammaln(rows - values + 1.0) - rows * math.log(2.0),
        dtype=np.float64,
    )


def _logsumexp(values: NDArray[np.float64]) -> float:
    top = float(values.max())
    return top + math.log(float(np.exp(values - top).sum()))
