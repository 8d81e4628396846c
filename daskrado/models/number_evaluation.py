"""What counts of residuals and of labels say about a model of a number: R^2, mean absolute error, with intervals.

Everything here is post-processing of counts, noisy or exact. Residuals are counted in cells whose edges grow by a
factor: wherever most of them lie, they fall in a dozen cells, and nobody needs to know where before.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from daskrado.models.evaluation import _Z, Estimate, Floats

RATIO, RESIDUAL_CELLS, LABEL_CELLS = 2.0 ** (1 / 3), 37, 32
_TAKEN, _HIDDEN = 1.75, 2.0  # deviations of noise: beyond which a tail is taken for rows, and that may hide some


def residual_edges(half: float) -> Floats:
    """Edges of cells of |prediction - label|, between 0 and the whole bounds, 2 ``half``."""
    return np.asarray(2 * half * RATIO ** -np.arange(RESIDUAL_CELLS - 1, 0, -1.0))


def residual_powers(half: float, power: int) -> Floats:
    """What |residual|^power is taken to be in each cell.

    For a residual a RATIO^u with u uniform in [0, 1], as where densities are smooth on a logarithmic scale, the
    lower edge a to that power underrates it by the mean of RATIO^(-power u), which is divided out. In the first
    cell, down to 0, residuals are taken to be uniform.

    >>> [round(float(v), 3) for v in residual_powers(0.5, 1)[-2:]]  # between 0.63, 0.794 and 1
    [0.706, 0.889]
    """
    edges, growth = residual_edges(half), power * math.log(RATIO)
    return np.concatenate([[edges[0] ** power / (power + 1)], edges**power * (growth / -math.expm1(-growth))])


def label_values(bounds: tuple[float, float]) -> Floats:
    """The middles of cells of labels."""
    return bounds[0] + (bounds[1] - bounds[0]) * (np.arange(LABEL_CELLS) + 0.5) / LABEL_CELLS


@dataclass(frozen=True)
class Moment:
    """A mean, and the variance that noise and another sample of as many units give it; ``beyond`` is the most that
    rows in a tail which noise hides may add."""

    value: float
    variance: float
    beyond: float = 0.0


@dataclass(frozen=True)
class NumberCells:
    """Counts of units by |residual| and by label, each with noise of standard deviation ``std``."""

    bounds: tuple[float, float]
    residuals: Floats
    labels: Floats
    std: float

    @property
    def half(self) -> float:
        """Half of what is between the bounds."""
        return (self.bounds[1] - self.bounds[0]) / 2

    @property
    def total(self) -> float:
        """The number of units, at least 1."""
        return max(1.0, float(self.residuals.sum() + self.labels.sum()) / 2)

    @property
    def seen(self) -> bool:
        """Whether anybody stands out of the noise."""
        return self.total > 3 * _HIDDEN * self.std * math.sqrt(len(self.labels) / 4)

    def residual(self, power: int) -> Moment:
        """The mean of |residual|^power."""
        values = residual_powers(self.half, power)
        return self._mean(self.residuals, values, residual_powers(self.half, 2 * power))

    @property
    def label(self) -> Moment:
        """The mean label."""
        values = label_values(self.bounds)
        return self._mean(self.labels, values, values**2)

    @property
    def variance(self) -> Moment:
        """The variance of labels."""
        apart = (label_values(self.bounds) - self.label.value) ** 2
        return self._mean(self.labels, apart, apart**2)

    def _mean(self, counts: Floats, values: Floats, squares: Floats) -> Moment:
        low, high = _tails(counts, self.std, lower=counts is self.labels)
        kept = counts[low:high]
        rows = max(1.0, float(kept.sum()))
        mean = float(kept @ values[low:high]) / rows
        sampled = max(0.0, float(kept @ squares[low:high]) / rows - mean**2) / rows
        noise = self.std**2 * float(((values[low:high] - mean) ** 2).sum()) / rows**2
        hidden = [(low, values[max(low - 1, 0)]), (len(counts) - high, values[min(high, len(values) - 1)])]
        beyond = sum(_HIDDEN * self.std * math.sqrt(cells) / rows * float(value) for cells, value in hidden)
        return Moment(mean, sampled + noise, beyond)

    @property
    def r_squared(self) -> Estimate:
        """1 - mean squared residual / variance of labels.

        By the delta method. Residuals and labels of the same rows go together, which would narrow it: left out.
        """
        left, whole = self.residual(2), self.variance
        if not self.seen or whole.value <= 0:
            return Estimate(0.0, -1.0, 1.0)
        share = left.value / whole.value
        far = _Z * math.sqrt(left.variance + share**2 * whole.variance) / whole.value
        more = left.value / (whole.value + whole.beyond)  # labels that noise hides have the larger variance
        return Estimate(1 - share, 1 - share - far - left.beyond / whole.value, min(1.0, 1 - more + far))

    @property
    def absolute_error(self) -> Estimate:
        """The mean of |residual|."""
        if not self.seen:
            return Estimate(self.half, 0.0, 2 * self.half)
        return _interval(self.residual(1), 0.0)

    @property
    def root_mean_square(self) -> Estimate:
        """The root of the mean squared residual."""
        if not self.seen:
            return Estimate(self.half, 0.0, 2 * self.half)
        square = _interval(self.residual(2), 0.0)
        return Estimate(*(math.sqrt(max(0.0, one)) for one in (square.value, square.low, square.high)))

    @property
    def mean_label(self) -> Estimate:
        """The mean label."""
        if not self.seen:
            return Estimate(sum(self.bounds) / 2, *self.bounds)
        return _interval(Moment(self.label.value, self.label.variance), self.bounds[0])

    def headline(self, label: str) -> dict[str, Estimate]:
        """The figures that are told first."""
        errors = {"root mean squared error": self.root_mean_square, f"mean {label}": self.mean_label}
        return self.few() | errors

    def few(self) -> dict[str, Estimate]:
        """What is told of a group, or of another model."""
        return {"R^2": self.r_squared, "mean absolute error": self.absolute_error}

    def tables(self) -> list[tuple[str, tuple[str, ...], list[tuple[str, ...]]]]:
        """None beside the figures."""
        return []

    def to_json(self) -> dict[str, Any]:
        """For a file: what was released, from which all else follows."""
        return {
            "residual_edges": residual_edges(self.half).tolist(),
            "residuals": self.residuals.tolist(),
            "labels": self.labels.tolist(),
            "noise_std": self.std,
        }


def _interval(moment: Moment, least: float) -> Estimate:
    far = _Z * math.sqrt(moment.variance)
    return Estimate(moment.value, max(least, moment.value - far), moment.value + far + moment.beyond)


def _tails(counts: Floats, std: float, *, lower: bool) -> tuple[int, int]:
    """The cells between tails that noise alone could have made; the tail above, and with ``lower`` the one below."""

    def length(outer: Floats) -> int:
        sums = np.cumsum(outer)
        there = sums > _TAKEN * std * np.sqrt(np.arange(1, len(outer) + 1))
        return int(np.argmax(there)) if there.any() else len(outer) // 2

    return length(counts) if lower else 0, len(counts) - length(counts[::-1])


def number_evaluation(
    counts: Floats, labels: Floats, bounds: tuple[float, float], std: float, columns: Mapping[str, Sequence[str]],
    units: int = 1,
) -> tuple[NumberCells, dict[str, dict[str, NumberCells]]]:  # fmt: skip
    """From arrays of (groups, 1, cells) of residuals and labels: all units, and each group of each column."""
    residuals, labels, std = counts[:, 0] / units, labels[:, 0] / units, std / units
    if not columns:
        return NumberCells(bounds, residuals[0], labels[0], std), {}
    first = len(next(iter(columns.values())))
    whole = NumberCells(bounds, residuals[:first].sum(axis=0), labels[:first].sum(axis=0), std * math.sqrt(first))
    groups: dict[str, dict[str, NumberCells]] = {}
    at = 0
    for column, names in columns.items():
        pairs = zip(names, residuals[at : at + len(names)], labels[at : at + len(names)], strict=True)
        groups[column] = {name: NumberCells(bounds, one, two, std) for name, one, two in pairs}
        at += len(names)
    return whole, groups
