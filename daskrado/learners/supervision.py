"""Estimates of the mean operator from full or weak supervision: each is post-processing of sums over the rows.

A kind of supervision is one class whose fields are the options that a pipeline writes. All vectors are means of rows
as shares of the norm bound. The learner that follows is the same for all of them (Patrini, Nielsen and Nock 2015,
meta-algorithm 1).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from daskrado.errors import DataError, UsageError
from daskrado.privacy.accountant import PureEvent
from daskrado.privacy.events import MAX_EPSILON, MIN_EPSILON
from daskrado.privacy.local import BinaryResponse
from daskrado.privacy.protect import Budget, Protect
from daskrado.privacy.statement import PrivacyStatement
from daskrado.statistics.base import Groups
from daskrado.table.label import Scalar
from daskrado.table.yaml_file import Frozen

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class LabelledSums:
    """By group: sum of y x over labelled rows (noisy or exact), how many those are, sum of x and number of rows.

    ``largest`` is the largest norm of a row.
    """

    labelled_sum: NDArray[np.float64]
    labelled: NDArray[np.float64]
    feature_sum: NDArray[np.float64]
    rows: NDArray[np.float64]
    largest: float = 1.0


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

    @property
    def keep(self) -> float:
        """1 - p+ - p-, the share of a label's mean that flips leave."""
        return 1.0 - self.positive - self.negative

    @classmethod
    def of_randomised_response(cls, epsilon: float) -> FlipRates:
        """Each label kept with probability e^eps / (1 + e^eps): both rates are 1 / (1 + e^eps)."""
        rate = BinaryResponse.from_epsilon(epsilon).q
        return cls(rate, rate)


def complete(sums: LabelledSums) -> Vector:
    """The mean operator over the rows with a usable label; all of them should have one."""
    return np.asarray(sums.labelled_sum.sum(axis=0) / max(1.0, sums.labelled.sum()))


def missing(sums: LabelledSums) -> Vector:
    """Rows without a label are taken to be missing at random within their group (stratum).

    Each group's labelled mean counts by the group's share of all rows: unbiased if, within a group, having a label
    does not depend on the row. Without groups, on the whole lake. A group without labels counts as 0.
    """
    weight = np.divide(sums.rows, sums.labelled, out=np.zeros_like(sums.rows), where=sums.labelled > 0)
    return np.asarray(weight @ sums.labelled_sum / sums.rows.sum())


def check_labelled(labelled: Vector, rows: Vector) -> None:
    """Refuse groups of rows of which none has a label, in a run that protects nobody."""
    empty = int(((labelled == 0) & (rows > 0)).sum())
    if empty:
        raise DataError(f"{empty} of {len(rows)} groups have no labelled row: merge groups, or drop them")


def noisy(sums: LabelledSums, rates: FlipRates) -> Vector:
    """Unbiased under class-dependent label noise: E[(y~ + p+ - p-) / (1 - p+ - p-) | y] = y.

    So mu = (mean of y~ x + (p+ - p-) mean of x) / (1 - p+ - p-).

    Reference
        Natarajan et al. (2013), the method of unbiased estimators, for linear-odd losses.
    """
    features = sums.feature_sum.sum(axis=0) / sums.rows.sum()
    return np.asarray((complete(sums) + (rates.positive - rates.negative) * features) / rates.keep)


def estimated_rates(table: NDArray[np.int64]) -> FlipRates:
    """Flip rates from audited rows: ``table[true, seen]`` counts, index 0 for -1 and 1 for +1."""
    totals = table.sum(axis=1)
    if (totals == 0).any():
        lacking = "positive" if totals[1] == 0 else "negative"
        raise DataError(f"no audited row is truly {lacking}: its flip rate cannot be estimated")
    return FlipRates(float(table[1, 0] / totals[1]), float(table[0, 1] / totals[0]))


@dataclass(frozen=True)
class Estimate:
    """A mean operator, by how much its estimator stretches noise on the labelled sums, and public facts on it."""

    mean: Vector
    stretch: float = 1.0
    facts: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def under_flips(cls, sums: LabelledSums, rates: FlipRates) -> Estimate:
        """The unbiased estimate from flipped labels."""
        facts = {"flip_rates": {"positive": rates.positive, "negative": rates.negative}}
        return cls(noisy(sums, rates), 1.0 / rates.keep, facts)


class Supervision(ABC):
    """What is known of a lake's labels. ``incomplete``: some are null. ``at_source``: they need no noise here."""

    name: ClassVar[str]
    incomplete: ClassVar[bool] = False
    at_source: ClassVar[bool] = False

    @property
    def groups(self) -> Groups | None:
        """The groups of rows that are summed apart."""
        return None

    @property
    def audited(self) -> str | None:
        """The column of true labels that is read to estimate flip rates."""
        return None

    def statement(self, protect: Protect) -> PrivacyStatement:
        """What the labels guarantee before anything is done with them."""
        del protect
        return PrivacyStatement.none()

    @abstractmethod
    def estimate(self, sums: LabelledSums, audited: FlipRates | None = None) -> Estimate:
        """The mean operator from a release; ``audited`` are the flip rates by the column of true labels."""


@dataclass(frozen=True)
class FullLabels(Supervision):
    """Every row has its label."""

    name: ClassVar[str] = "full"

    def estimate(self, sums: LabelledSums, audited: FlipRates | None = None) -> Estimate:
        del audited
        return Estimate(complete(sums))


class Strata(Frozen):
    """A public column and the values that it may hold."""

    column: str
    values: tuple[Scalar, ...] = Field(min_length=1)


@dataclass(frozen=True)
class MissingLabels(Supervision):
    """Some labels are null, at random within each stratum."""

    strata: Strata | None = None

    name: ClassVar[str] = "missing"
    incomplete: ClassVar[bool] = True

    @property
    def groups(self) -> Groups | None:
        return None if self.strata is None else Groups(self.strata.column, self.strata.values)

    def estimate(self, sums: LabelledSums, audited: FlipRates | None = None) -> Estimate:
        """Each stratum's labelled mean, by its share of the rows."""
        del audited
        stretch = float(np.sqrt(((sums.rows / np.where(sums.labelled > 0, sums.labelled, 1)) ** 2).sum()))
        return Estimate(missing(sums), stretch, {"labelled_rows": int(sums.labelled.sum())})


@dataclass(frozen=True)
class NoisyLabels(Supervision):
    """Labels were flipped at known rates, or at rates to be estimated from a column of audited true labels."""

    positive_flips: Annotated[float | None, Field(ge=0, lt=1)] = None
    negative_flips: Annotated[float | None, Field(ge=0, lt=1)] = None
    audit: str | None = None

    name: ClassVar[str] = "noisy"

    def __post_init__(self) -> None:
        given = [self.positive_flips is not None, self.negative_flips is not None]
        if any(given) == (self.audit is not None) or any(given) != all(given):
            raise UsageError("give positive_flips and negative_flips, or audit: the column of true labels")
        _ = self.rates

    @property
    def audited(self) -> str | None:
        return self.audit

    @property
    def rates(self) -> FlipRates | None:
        """The known rates."""
        if self.positive_flips is None or self.negative_flips is None:
            return None
        return FlipRates(self.positive_flips, self.negative_flips)

    def estimate(self, sums: LabelledSums, audited: FlipRates | None = None) -> Estimate:
        rates = self.rates or audited
        assert rates is not None
        return Estimate.under_flips(sums, rates)


@dataclass(frozen=True)
class RandomisedLabels(Supervision):
    """Each label was randomised at its source with this epsilon: nobody here has to be trusted with labels."""

    epsilon: Annotated[float, Field(ge=float(MIN_EPSILON), le=float(MAX_EPSILON))]

    name: ClassVar[str] = "randomised_response"
    at_source: ClassVar[bool] = True

    def statement(self, protect: Protect) -> PrivacyStatement:
        """Label privacy by randomised response before the labels arrived.

        Sensitivity
            Each of a unit's rows has a report of its own, so that all of them together cost epsilon times their
            number.
        """
        rows, total = protect.rows_per_unit, self.epsilon * protect.rows_per_unit
        if total > MAX_EPSILON:
            raise ValueError(
                f"supervision.epsilon {self.epsilon:g} for each of {rows} rows is epsilon {total:g} for one unit; at "
                f"most {MAX_EPSILON} can be stated: randomise with less, or bound protect.rows_per_unit lower"
            )
        return PrivacyStatement.of(
            PureEvent(total),
            protect,
            Budget(epsilon=total),
            mechanism="randomised response at the source",
            theorem="randomised response (Warner 1965)" + (", group privacy" if rows > 1 else ""),
            accountant="local: one report for each label" + (f", {rows} for a unit" if rows > 1 else ""),
            assumptions=(
                protect.owned,
                "all features and the number of rows are public",
                f"each label was randomised once, at its source, with epsilon {self.epsilon:g}, before it reached "
                "the lake",
            ),
        )

    def estimate(self, sums: LabelledSums, audited: FlipRates | None = None) -> Estimate:
        """Unbiased at the rates of randomised response, with its standard error.

        The variance of a label's estimate is 1/keep^2 - 1, and a coordinate is at most the largest norm: over m
        independent reports.
        """
        del audited
        rates = FlipRates.of_randomised_response(self.epsilon)
        found = Estimate.under_flips(sums, rates)
        error = sums.largest * math.sqrt((rates.keep**-2 - 1.0) / sums.rows.sum())
        return Estimate(found.mean, found.stretch, {**found.facts, "standard_error_at_most": error})
