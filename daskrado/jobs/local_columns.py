"""Columns of local reports: how each value is randomised at the source, and estimated from sums of reports."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field

from daskrado.errors import UsageError
from daskrado.privacy.accountant import Event
from daskrado.privacy.events import MIN_EPSILON
from daskrado.privacy.local import BinaryResponse, Estimate, KaryResponse, Response, UnaryEncoding
from daskrado.privacy.local_numbers import LocalNumber
from daskrado.statistics.universe import Axis, Universe
from daskrado.table.domain import Domain, NumericColumn
from daskrado.table.yaml_file import Frozen


class ReportedColumn(ABC):
    """One column of the reports, for a Domain. Counts are sums over reports: one integer for each of ``values``."""

    name: str
    mechanism: Response | LocalNumber

    @property
    def event(self) -> Event:
        """What one report costs the person whose value it is."""
        return self.mechanism.event

    @property
    def columns(self) -> tuple[str, ...]:
        """The names under which the reports hold it."""
        return (self.name,)

    @property
    @abstractmethod
    def values(self) -> tuple[str, ...]:
        """What is estimated: the fraction of each category, or the mean."""

    @abstractmethod
    def randomised(self, x: NDArray[np.float64], y: NDArray[np.int8]) -> dict[str, Any]:
        """The reports of some encoded rows."""

    @abstractmethod
    def counts(self, table: pa.Table) -> list[int]:
        """The sums over some reports."""

    @abstractmethod
    def estimate(self, counts: NDArray[np.int64], reports: int, confidence: float) -> Estimate:
        """Unbiased estimates of ``values``."""

    def fits(self, counts: NDArray[np.int64], reports: int) -> bool:
        """Whether so many reports can have these sums."""
        del counts, reports
        return True


@dataclass(frozen=True)
class ReportedCategory(ReportedColumn):
    """One category, as text."""

    axis: Axis
    mechanism: Response

    @property
    def name(self) -> str:  # type: ignore[override]
        """The column."""
        return self.axis.name

    @property
    def values(self) -> tuple[str, ...]:
        """The categories."""
        return self.axis.values

    def randomised(self, x: NDArray[np.float64], y: NDArray[np.int8]) -> dict[str, Any]:
        """Another category, perhaps."""
        drawn = self.mechanism.randomise(self.axis.codes(x, y))
        return {self.name: pa.array(self.values).take(pa.array(drawn))}

    def counts(self, table: pa.Table) -> list[int]:
        """Reports of each category."""
        found = table.column(self.name).to_pandas().value_counts()
        return [int(found.get(value, 0)) for value in self.values]

    def estimate(self, counts: NDArray[np.int64], reports: int, confidence: float) -> Estimate:
        """Fractions."""
        return self.mechanism.estimate(counts, reports, confidence)

    def fits(self, counts: NDArray[np.int64], reports: int) -> bool:
        """Each report names one category."""
        return int(counts.sum()) == reports


@dataclass(frozen=True)
class ReportedBits(ReportedCategory):
    """One bit for each category."""

    @property
    def columns(self) -> tuple[str, ...]:
        """One for each bit."""
        return tuple(f"{self.name}={value}" for value in self.values)

    def randomised(self, x: NDArray[np.float64], y: NDArray[np.int8]) -> dict[str, Any]:
        """Each bit by itself."""
        drawn = self.mechanism.randomise(self.axis.codes(x, y))
        return {column: drawn[:, k].astype(bool) for k, column in enumerate(self.columns)}

    def counts(self, table: pa.Table) -> list[int]:
        """Bits that are set."""
        return [int(table.column(column).to_numpy().sum()) for column in self.columns]

    def fits(self, counts: NDArray[np.int64], reports: int) -> bool:
        """A report may set any number of bits."""
        del counts, reports
        return True


@dataclass(frozen=True)
class ReportedNumber(ReportedColumn):
    """A number, in steps above its lower bound. ``place`` is where encoded rows hold it, scaled to [-1, 1]."""

    name: str
    mechanism: LocalNumber
    place: int
    log1p: bool = False

    @property
    def values(self) -> tuple[str, ...]:
        """The mean alone."""
        return ("mean",)

    def randomised(self, x: NDArray[np.float64], y: NDArray[np.int8]) -> dict[str, Any]:
        """The clipped number, in its own unit, plus noise."""
        del y
        low, high = self.mechanism.lower, self.mechanism.upper
        if self.log1p:
            low, high = float(np.log1p(low)), float(np.log1p(high))
        number = low + (x[:, self.place] + 1) / 2 * (high - low)
        return {self.name: self.mechanism.randomise(np.expm1(number) if self.log1p else number)}

    def counts(self, table: pa.Table) -> list[int]:
        """The sum of steps."""
        return [int(table.column(self.name).to_numpy().astype(np.int64).sum())]

    def estimate(self, counts: NDArray[np.int64], reports: int, confidence: float) -> Estimate:
        """The mean."""
        return self.mechanism.estimate(int(counts[0]), reports, confidence)


class ColumnKey(Frozen):
    """How a column is reported: the keys of a pipeline."""

    epsilon: float = Field(ge=float(MIN_EPSILON))

    @abstractmethod
    def reported(self, domain: Domain, name: str) -> ReportedColumn:
        """The same for a column of a Domain."""


class BinaryColumn(ColumnKey):
    """One of two values, by Warner's randomised response."""

    kind: Literal["binary"]

    def reported(self, domain: Domain, name: str) -> ReportedColumn:
        """See the class."""
        axis = _axis(domain, name)
        if len(axis.values) != 2:
            raise UsageError(f"reports: {name!r} has {len(axis.values)} values; binary needs 2, take kary or unary")
        return ReportedCategory(axis, BinaryResponse.from_epsilon(self.epsilon))


class KaryColumn(ColumnKey):
    """A category, a bin, a boolean or the label, by k-ary randomised response."""

    kind: Literal["kary"]

    def reported(self, domain: Domain, name: str) -> ReportedColumn:
        """See the class."""
        axis = _axis(domain, name)
        return ReportedCategory(axis, KaryResponse(self.epsilon, len(axis.values)))


class UnaryColumn(ColumnKey):
    """The same, with one bit for each value."""

    kind: Literal["unary", "optimised_unary"]

    def reported(self, domain: Domain, name: str) -> ReportedColumn:
        """See the class."""
        axis = _axis(domain, name)
        form: Literal["symmetric", "optimised"] = "symmetric" if self.kind == "unary" else "optimised"
        return ReportedBits(axis, UnaryEncoding(self.epsilon, len(axis.values), form))


class NumberColumn(ColumnKey):
    """A number between the Domain's bounds, with Laplace noise, or Gaussian noise where there is a delta."""

    kind: Literal["number"]
    delta: float = Field(default=0.0, ge=0)

    def reported(self, domain: Domain, name: str) -> ReportedColumn:
        """See the class."""
        if name not in domain.columns:
            raise UsageError(f"reports: the domain has no column {name!r}")
        column = domain.columns[name]
        if not isinstance(column, NumericColumn):
            raise UsageError(f"reports: column {name!r} is not a number; take kary or unary")
        if column.bins is not None:
            raise UsageError(f"reports: column {name!r} is cut into bins; report it with kary or unary")
        if domain.kernel is not None:
            raise UsageError("reports: the domain's kernel mixes every column into every feature; drop the kernel")
        mechanism = LocalNumber(column.lower, column.upper, self.epsilon, self.delta)
        return ReportedNumber(name, mechanism, domain.feature_names.index(name), column.transform == "log1p")


AnyColumn = Annotated[BinaryColumn | KaryColumn | UnaryColumn | NumberColumn, Field(discriminator="kind")]


def _axis(domain: Domain, name: str) -> Axis:
    return Universe.of(domain, [name]).axes[0]
