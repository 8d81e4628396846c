"""What noise will cost in error and in area under the ROC curve: a forecast from public facts, with its interval.

How good a model can be without noise nobody knows before rows are read, so a forecast is about the difference. It was
calibrated on tables (pipelines/reproduce/forecast.py): there the difference grows as a power of the noise over the
signal, and by how much tables depart from that is what the interval says.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

FLOOR = 5e-4  # differences below this are not told apart
LEVEL_DEVIATIONS = 1.645  # nine of ten
MOST = 0.5  # of either: a coin has as much


def feature(ratio: float) -> float:
    """What a forecast follows: the log of |noise| over the largest gradient, all steps together."""
    return math.log(max(1e-12, ratio))


@dataclass(frozen=True)
class Difference:
    """A forecast and the interval that holds nine of ten measured ones."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        if self.high <= FLOOR:
            return f"below {FLOOR:g}"
        return f"{self.value:.2g} ({self.low:.2g} to {self.high:.2g})"


@dataclass(frozen=True)
class Law:
    """log difference = intercept + slope log ratio, give or take ``spread``, its standard deviation over tables."""

    intercept: float
    slope: float
    spread: float

    def at(self, ratio: float) -> Difference:
        """The forecast where noise over signal is so large."""
        middle, far = self.intercept + self.slope * feature(ratio), LEVEL_DEVIATIONS * self.spread
        value, low, high = (min(MOST, max(FLOOR, math.exp(middle + side * far))) for side in (0, -1, 1))
        return Difference(value, low, high)


ERROR, AUC = Law(-2.646, 0.623, 1.096), Law(-1.505, 0.733, 1.559)
"""From ten tables; of nine others, one of them with the same rows, the intervals held 91 and 95 % of the points."""


@dataclass(frozen=True)
class Outlook:
    """How far error will be above, and the area under the ROC curve below, those without noise."""

    error: Difference
    auc: Difference

    @classmethod
    def of(cls, ratio: float) -> Outlook:
        """Where noise over signal is so large."""
        return cls(ERROR.at(ratio), AUC.at(ratio))

    def __str__(self) -> str:
        return f"error {self.error} above and AUC {self.auc} below"
