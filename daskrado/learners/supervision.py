"""Estimates of the mean operator from weak supervision: each is post-processing of sums over the rows.

All vectors are means of rows as shares of the norm bound. The learner that follows is the same for all of them
(Patrini, Nielsen and Nock 2015, meta-algorithm 1).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from daskrado.errors import DataError, UsageError
from daskrado.privacy.local import BinaryResponse

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class LabelledSums:
    """By group: sum of y x over labelled rows (noisy or exact), how many those are, sum of x and number of rows."""

    labelled_sum: NDArray[np.float64]
    labelled: NDArray[np.float64]
    feature_sum: NDArray[np.float64]
    rows: NDArray[np.float64]


@dataclass(frozen=True)
class FlipRates:
    """P(label seen as -1 | it is +1) and P(seen as +1 | it is -1)."""

    positive: float
    negative: float

    def __post_init__(self) -> None:
        for name, rate in (("positive", self.positive), ("negative", self.negative)):
            if not 0 <= rate < 1:
                raise UsageError(f"flip rate {name} must be in [0, 1), got {rate!r}")
        if self.positive + self.negative >= 1:
            raise UsageError(
                f"flip rates {self.positive:g} + {self.negative:g} = {self.positive + self.negative:g}: "
                "their sum must be below 1, else noisy labels say nothing, or the opposite"
            )

    @classmethod
    def of_randomised_response(cls, epsilon: float) -> FlipRates:
        """Each label kept with probability e^eps / (1 + e^eps): both rates are 1 / (1 + e^eps)."""
        rate = BinaryResponse.from_epsilon(epsilon).q
        return cls(rate, rate)


def complete(sums: LabelledSums) -> Vector:
    """The mean operator itself, where every row has a label."""
    if (sums.labelled != sums.rows).any():
        short = int((sums.rows - sums.labelled).sum())
        raise DataError(f"{short} of {int(sums.rows.sum())} rows have no label: use supervision missing")
    return np.asarray(sums.labelled_sum.sum(axis=0) / sums.rows.sum())


def missing(sums: LabelledSums) -> Vector:
    """Rows without a label are taken to be missing at random within their group (stratum).

    Each group's labelled mean counts by the group's share of all rows: unbiased if, within a group, having a label
    does not depend on the row. Without groups, on the whole lake.
    """
    check_labelled(sums.labelled, sums.rows)
    weight = np.divide(sums.rows, sums.labelled, out=np.zeros_like(sums.rows), where=sums.labelled > 0)
    return np.asarray(weight @ sums.labelled_sum / sums.rows.sum())


def check_labelled(labelled: Vector, rows: Vector) -> None:
    """Refuse groups of rows of which none has a label: a public fact where features are."""
    empty = int(((labelled == 0) & (rows > 0)).sum())
    if empty:
        raise DataError(f"{empty} of {len(rows)} groups have no labelled row: merge groups, or drop them")


def noisy(sums: LabelledSums, rates: FlipRates) -> Vector:
    """Unbiased under class-dependent label noise: E[(y~ + p+ - p-) / (1 - p+ - p-) | y] = y.

    So mu = (sum of y~ x + (p+ - p-) sum of x) / (m (1 - p+ - p-)).

    Reference
        Natarajan et al. (2013), the method of unbiased estimators, for linear-odd losses.
    """
    complete(sums)
    seen, features = sums.labelled_sum.sum(axis=0), sums.feature_sum.sum(axis=0)
    keep = 1.0 - rates.positive - rates.negative
    return np.asarray((seen + (rates.positive - rates.negative) * features) / (keep * sums.rows.sum()))


def estimated_rates(table: NDArray[np.int64]) -> FlipRates:
    """Flip rates from audited rows: ``table[true, seen]`` counts, index 0 for -1 and 1 for +1."""
    totals = table.sum(axis=1)
    if (totals == 0).any():
        lacking = "positive" if totals[1] == 0 else "negative"
        raise DataError(f"no audited row is truly {lacking}: its flip rate cannot be estimated")
    return FlipRates(float(table[1, 0] / totals[1]), float(table[0, 1] / totals[0]))
