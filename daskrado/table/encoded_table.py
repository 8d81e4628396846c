"""The columns of one table as plain arrays, and the blocks of encoded rows that are cut from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskrado.table.domain import BooleanColumn, Domain, NumericColumn
from daskrado.table.fourier_features import fourier_features

Labels = NDArray[np.signedinteger[Any]]
"""+1 or -1 for two sides, from 1 on for classes, odd steps for numbers (``label_sides``); 0 where there is none."""


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """Why a table cannot be used: which column, and what is wrong.

    Never a value from a row, and never how many rows. A private run is stopped by its schema alone: a refusal because
    of a value would be a free query.
    """

    column: str
    what: str
    schema: bool = False  # a footer shows it: the column's type, not a value

    def __str__(self) -> str:
        return f"column {self.column!r}: {self.what}"


@dataclass(slots=True)
class EncodedTable:
    """One table's columns as plain arrays, from which blocks of encoded rows are cut.

    A row with a value that the Domain does not allow is ``unusable``: it counts as nothing. Its features and its
    label are 0, so that it adds zero to every sum, whatever else it holds. ``problems`` says which columns hold such
    values, and how many: private, for callers that protect nobody and for the owner.
    """

    domain: Domain
    length: int
    labels: Labels | None = None
    ids: NDArray[np.uint64] | NDArray[np.object_] | None = None
    groups: NDArray[np.int32] | None = None
    unusable: NDArray[np.bool_] | None = None
    problems: dict[Problem, int] = field(default_factory=dict)
    values: dict[str, NDArray[Any]] = field(default_factory=dict)  # numbers, or places of one-hot features
    nulls: dict[str, NDArray[np.bool_]] = field(default_factory=dict)
    _settled: bool = False  # whether all numbers are known to be finite

    def refused(self, *, strict: bool) -> list[Problem]:
        """Why the table cannot be used: what its schema shows, and if ``strict`` what its values show."""
        return [problem for problem in self.problems if strict or problem.schema]

    def fault(self, column: str, what: str, rows: NDArray[np.bool_], *, whole_row: bool = True) -> None:
        """Note values that are not allowed; their rows count as nothing, unless only the column itself does."""
        problem = Problem(column, what)
        self.problems[problem] = self.problems.get(problem, 0) + int(np.count_nonzero(rows))
        if whole_row:
            self.leave_out(rows)

    def leave_out(self, rows: NDArray[np.bool_]) -> None:
        """Let rows count as nothing, once labels are read."""
        self.drop(rows)
        if self.labels is not None:
            self.labels[rows] = 0

    def drop(self, rows: NDArray[np.bool_]) -> None:
        """Let rows count as nothing, as the Domain asks for."""
        self.unusable = rows if self.unusable is None else self.unusable | rows

    def mismatch(self, column: str, what: str) -> None:
        """Note a column of the wrong type, in which no row can be read."""
        self.problems[Problem(column, what, schema=True)] = self.length

    def block(self, start: int, stop: int, out: NDArray[np.float64]) -> NDArray[np.float64]:
        """Encode rows start..stop into the first rows of ``out`` (column-major), before clipping.

        NaN and infinity are found here, while the column is at hand: see ``problems`` afterwards.
        """
        rows = out[: stop - start]
        if not self.is_finite(start, stop):
            self.fill_missing()
        if self.domain.kernel is not None:
            plain = np.empty((stop - start, len(self.domain.column_features)), order="F")
            self._columns(start, stop, plain)
            fourier_features(self.domain.kernel, plain, rows)
            at = self.domain.kernel.features
        else:
            at = self._columns(start, stop, rows)
        if self.domain.intercept:
            rows[:, at] = self.domain.intercept
        return self._cleared(start, stop, rows)

    def _cleared(self, start: int, stop: int, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Rows with the unusable ones set to zero."""
        if self.unusable is not None:
            rows[self.unusable[start:stop]] = 0.0
        return rows

    def is_finite(self, start: int, stop: int) -> bool:
        """Whether the numbers of some rows are all finite."""
        return self._settled or all(_all_finite(self.values[name][start:stop]) for name in self._plain_numbers())

    def _plain_numbers(self) -> Iterator[str]:
        """The columns whose numbers are scaled as they are: the only ones that are not known to be finite."""
        for name, column in self.domain.columns.items():
            if isinstance(column, NumericColumn) and column.bins is None and column.transform == "none":
                yield name

    def fill_missing(self) -> None:
        """Find every number that is not finite: filled and flagged, or its row counts as nothing."""
        for name in self._plain_numbers():
            self.values[name] = self.finite(name, self.values[name])
        self._settled = True

    def finite(self, name: str, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """A number that is not finite is missing: filled and flagged, or its row counts as nothing."""
        odd = ~np.isfinite(values)
        if not odd.any():
            return values
        fill = self.domain.columns[name].fill
        if fill is None:
            self.fault(name, "NaN or infinite", odd)
        else:
            self.nulls[name] = self.nulls[name] | odd
        return np.where(odd, float(fill or 0.0), values)

    def _columns(self, start: int, stop: int, rows: NDArray[np.float64]) -> int:
        """Encode the columns themselves; returns how many features they fill."""
        at = 0
        for name, column in self.domain.columns.items():
            piece = self.values[name][start:stop]
            if isinstance(column, NumericColumn) and column.bins is None:
                scale_column(*scaling(column), piece, rows[:, at])
                at += 1
            elif isinstance(column, BooleanColumn):
                rows[:, at] = piece
                at += 1
            else:
                width = column.size
                rows[:, at : at + width] = 0.0
                rows[np.arange(len(rows)), at + piece.astype(np.intp)] = 1.0
                at += width
            if column.flags:
                rows[:, at] = self.nulls[name][start:stop]
                at += 1
        return at


def scaling(column: NumericColumn) -> tuple[float, float]:
    """Factor and offset that map [lower, upper], transformed if the column says so, onto [-1, 1]; or zero and one."""
    if column.zero is not None or column.one is not None:
        centre, reach = column.scale
        return 1.0 / reach, centre / reach
    lower, upper = column.lower, column.upper
    if column.transform == "log1p":
        lower, upper = float(np.log1p(lower)), float(np.log1p(upper))
    return 2.0 / (upper - lower), (upper + lower) / (upper - lower)


def scale_column(factor: float, offset: float, values: NDArray[Any], out: NDArray[np.float64]) -> None:
    """``values * factor - offset``; what lies beyond the bounds is clipped to [-1, 1]."""
    with np.errstate(over="ignore"):  # beyond the bounds anyway
        np.multiply(values, factor, out=out, dtype=np.float64)
    if offset:
        out -= offset
    np.clip(out, -1.0, 1.0, out=out)


def _all_finite(values: NDArray[Any]) -> bool:
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(np.dot(values, values)):  # no copy; squares may overflow, so look again
            return True
    return bool(np.isfinite(values).all())
