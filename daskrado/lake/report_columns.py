"""Columns of local reports: each value is randomised at the source, and estimated from exact sums of reports."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from daskrado.lake.report_rows import SourceRows
from daskrado.privacy.local import Estimate, Response
from daskrado.privacy.local_numbers import LocalNumber
from daskrado.statistics.universe import Axis
from daskrado.table.domain import NumericColumn


@dataclass(frozen=True)
class ReportedColumn(ABC):
    """One column of the reports. There is one sum, and one estimate, for each of ``values``."""

    name: str
    values: tuple[str, ...]
    mechanism: Any

    @property
    def columns(self) -> tuple[str, ...]:
        """The names under which the reports hold it."""
        return (self.name,)

    @abstractmethod
    def randomised(self, rows: SourceRows) -> dict[str, Any]:
        """The reports of some rows."""

    @abstractmethod
    def sums(self, table: pa.Table) -> list[int]:
        """The sums over some reports."""

    def fits(self, sums: NDArray[np.int64], reports: int) -> bool:
        """Whether so many reports can have these sums."""
        del sums, reports
        return True

    def estimate(self, sums: NDArray[np.int64], reports: int, confidence: float) -> Estimate:
        """Unbiased estimates of the fractions of categories, or of the mean."""
        found: Estimate = self.mechanism.estimate(sums, reports, confidence)
        return found


@dataclass(frozen=True)
class ReportedBits(ReportedColumn):
    """One bit for each category, by unary encoding."""

    mechanism: Response
    axis: Axis

    @property
    def columns(self) -> tuple[str, ...]:
        """One for each bit."""
        return tuple(f"{self.name}={value}" for value in self.values)

    def randomised(self, rows: SourceRows) -> dict[str, Any]:
        """Each bit by itself."""
        drawn = self.mechanism.randomise(self.axis.codes(rows.x, rows.y))
        return {column: drawn[:, k].astype(bool) for k, column in enumerate(self.columns)}

    def sums(self, table: pa.Table) -> list[int]:
        """Bits that are set."""
        return [int(table.column(column).to_numpy().sum()) for column in self.columns]


@dataclass(frozen=True)
class ReportedCategory(ReportedColumn):
    """One category, as text."""

    mechanism: Response
    axis: Axis

    def randomised(self, rows: SourceRows) -> dict[str, Any]:
        """Another category, perhaps."""
        drawn = self.mechanism.randomise(self.axis.codes(rows.x, rows.y))
        return {self.name: pa.array(self.values).take(pa.array(drawn))}

    def sums(self, table: pa.Table) -> list[int]:
        """Reports of each category."""
        found = table.column(self.name).to_pandas().value_counts()
        return [int(found.get(value, 0)) for value in self.values]

    def fits(self, sums: NDArray[np.int64], reports: int) -> bool:
        """Each report names one category."""
        return int(sums.sum()) == reports


@dataclass(frozen=True)
class ReportedNumber(ReportedColumn):
    """A number, in steps above its lower bound. ``place`` is where encoded rows hold it, as ``column`` scales it."""

    mechanism: LocalNumber
    place: int
    column: NumericColumn

    def randomised(self, rows: SourceRows) -> dict[str, Any]:
        """The clipped number, in its own unit, plus noise."""
        centre, reach = self.column.scale
        number = centre + rows.x[:, self.place] * reach
        return {self.name: self.mechanism.randomise(np.expm1(number) if self.column.transform == "log1p" else number)}

    def sums(self, table: pa.Table) -> list[int]:
        """The sum of steps."""
        return [int(table.column(self.name).to_numpy().astype(np.int64).sum())]

    def estimate(self, sums: NDArray[np.int64], reports: int, confidence: float) -> Estimate:
        """The mean."""
        return self.mechanism.estimate(int(sums[0]), reports, confidence)


@dataclass(frozen=True)
class ColumnSums:
    """Rows, then the sums of each column of a table of reports."""

    columns: tuple[ReportedColumn, ...]

    def __call__(self, table: pa.Table) -> NDArray[np.int64]:
        """Sum one table."""
        return np.array([table.num_rows, *(s for column in self.columns for s in column.sums(table))], dtype=np.int64)

    @property
    def names(self) -> list[str]:
        """The columns that are read."""
        return [name for column in self.columns for name in column.columns]
