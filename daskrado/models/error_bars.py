"""What is known of each weight beside its value: an interval, or that it is noise, or that no row has its feature."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskrado.errors import UsageError

LEVEL = 0.95
SIGNAL, NOISE, UNSEEN, UNKNOWN = "signal", "noise", "unseen", "no error bar"
MEANING = {
    SIGNAL: "its interval leaves out 0",
    NOISE: "its interval holds 0: the weight may be noise",
    UNSEEN: "so few rows have it, if any, that noise hides them: its weight is shrunk to the mean of its column, or, "
    "where noise may hide many rows, so near it that no prediction moves by more than 1 %",
    UNKNOWN: "nothing is known of its error",
}


_EXACT = "no intervals: nobody is protected here, so no noise is on the weights; which rows there are is not counted"
_RADOS = (
    "no intervals: weights follow from few sums of random halves of the rows, and how far those are from all rows is "
    "not known from the sums"
)
_WHY = {  # there are no intervals for the weights of a learner
    "objective_perturbation": "no intervals: noise tilts the objective, and how far that moves a weight depends on "
    "the curvature at the rows, which is not released",
    "mean": "no intervals: weights are the direction of a noisy sum, right up to a factor only where features do not "
    "depend on each other",
    "mean_operator": "no intervals: labels were seen as shares of bags, or as answers that were randomised at the "
    "source, and how their error moves a weight is not known",
    "erm": _EXACT,
    "adaboost": _EXACT,
    **dict.fromkeys(("radoboost", "rado_moments", "rado_newton"), _RADOS),
}
NOISE_ALONE = (
    "95 % intervals for the weights that the same rows would give without noise, shrunk by regularisation as these "
    "are; which rows there are is not counted"
)


def why_none(learner: str) -> str:
    """Why weights of a learner have no intervals, in words."""
    return _WHY.get(learner, f"no intervals: no law of the error of {learner} is known")


@dataclass(frozen=True)
class ErrorBars:
    """95 % intervals of weights, NaN where there is none; ``seen`` is False where a feature was shrunk to nothing.

    ``about`` says what the intervals are for, or why there are none.
    """

    low: NDArray[np.float64]
    high: NDArray[np.float64]
    seen: NDArray[np.bool_]
    about: str

    @classmethod
    def none(cls, width: int, about: str) -> ErrorBars:
        """No intervals, and why."""
        return cls(np.full(width, math.nan), np.full(width, math.nan), np.ones(width, dtype=bool), about)

    @classmethod
    def of_noise(cls, weights: NDArray[np.float64], reach: NDArray[np.float64] | float) -> ErrorBars:
        """Weights whose noise alone is known, and stays within ``reach`` with the chance LEVEL."""
        return cls(weights - reach, weights + reach, np.ones(len(weights), dtype=bool), NOISE_ALONE)

    @classmethod
    def joined(cls, parts: Sequence[ErrorBars]) -> ErrorBars:
        """Those of several vectors of weights, one after another; what they are about is said of the first."""
        low, high, seen = (np.concatenate([getattr(one, name) for one in parts]) for name in ("low", "high", "seen"))
        return cls(low, high, seen, parts[0].about)

    @property
    def marks(self) -> list[str]:
        """One word for each weight: see ``MEANING``."""
        known, holds = np.isfinite(self.low), (self.low <= 0) & (self.high >= 0)
        return [
            UNSEEN if not seen else UNKNOWN if not has else NOISE if zero else SIGNAL
            for seen, has, zero in zip(self.seen.tolist(), known.tolist(), holds.tolist(), strict=True)
        ]

    @property
    def deviations(self) -> NDArray[np.float64]:
        """Of each weight, by the normal law that its interval takes."""
        return np.asarray((self.high - self.low) / (2 * _reach(LEVEL)))

    @property
    def p_values(self) -> NDArray[np.float64]:
        """The chance of an estimate at least this far from 0 were the weight 0; NaN without an interval."""
        from scipy.special import ndtr

        middle, deviations = np.abs(self.low + self.high) / 2, self.deviations
        beyond = np.where(middle > 0, math.inf, 0.0)  # of an interval without length
        far = np.divide(middle, deviations, out=beyond, where=deviations > 0)
        return np.asarray(np.where(np.isnan(self.low), math.nan, 2 * ndtr(-far)))

    def ends(self, level: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Both ends of intervals at another level."""
        if not 0 < level < 1:
            raise UsageError(f"the level of an interval is above 0 and below 1, got {level!r}")
        middle, far = (self.low + self.high) / 2, _reach(level) * self.deviations
        return middle - far, middle + far

    def to_json(self, names: Sequence[str]) -> dict[str, Any]:
        """As it stands in a model's file."""
        rows = zip(names, self.low.tolist(), self.high.tolist(), self.p_values.tolist(), self.marks, strict=True)
        return {
            "level": LEVEL,
            "about": self.about,
            "weights": {
                name: {"mark": mark} | ({"low": low, "high": high, "p": p} if math.isfinite(low) else {})
                for name, low, high, p, mark in rows
            },
        }

    @classmethod
    def from_json(cls, content: Any, names: Sequence[str], where: str) -> ErrorBars:
        """Read what :meth:`to_json` wrote; anything else is refused in one line."""
        try:
            rows = content["weights"]
            if content["level"] != LEVEL or tuple(rows) != tuple(names) or not isinstance(content["about"], str):
                raise ValueError
            ends = [[float(row.get(end, math.nan)) for end in ("low", "high")] for row in rows.values()]
            low, high = np.array(ends, dtype=np.float64).reshape(-1, 2).T
            found = cls(low, high, np.array([row["mark"] != UNSEEN for row in rows.values()]), content["about"])
            if not ((low <= high) | (np.isnan(low) & np.isnan(high))).all() or np.isinf([low, high]).any():
                raise ValueError
            if found.marks != [row["mark"] for row in rows.values()]:
                raise ValueError
        except (KeyError, TypeError, ValueError, AttributeError):
            raise UsageError(f"{where}: error_bars are not intervals of the Domain's features in order") from None
        return found


def _reach(level: float) -> float:
    """So many deviations an interval of this level has on each side."""
    from scipy.special import ndtri

    return -float(ndtri((1 - level) / 2))
