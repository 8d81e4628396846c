"""The empirical risk at given weights, with its gradient and Hessian: integer sums for the solver at the driver.

They are never released: what is published is a noisy minimiser, whose proof is about the minimiser.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from daskrado.losses.margin import Loss
from daskrado.statistics.base import Additive, IntVector, Rows, Summary
from daskrado.table.label import Target
from daskrado.table.label_sides import LABEL_BITS
from daskrado.table.lattice import Lattice
from daskrado.table.products import dots, outer, sums

SLOPE_BITS = 48
"""Slopes and values of the loss are truncated to 2^-48 of a power of two that bounds them.

Such a number is three digits of 16 bits; a coordinate times a digit, over a block of rows, stays in int64.
"""
_DIGIT = 16
_WORD = 32  # a total is two words, the lower one in 0..2^32 - 1: no number of rows is too large
_CURVE_BITS = 20

Vector = NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class RiskSum(Additive):
    """Sum over rows of loss(y w.x), of slope(y w.x) y x and, if ``second``, of curvature(y w.x) x x'.

    Each row's margin is a float64 that depends on that row alone. Value and slope are truncated to a fixed grid and
    summed as integers; for the Hessian, which only steers, the row times the root of its curvature is rounded to a
    grid that leaves room for ``rows`` rows. So any partitioning gives the same bits. ``every`` takes only one row in
    so many of the lake, by position.
    """

    loss: Loss
    weights: Vector
    lattice: Lattice
    rows: int
    second: bool = True
    every: int = 1

    name: ClassVar[str] = "risk"
    compact: ClassVar[bool] = True
    secret: ClassVar[bool] = True

    @property
    def targets(self) -> tuple[Target, ...]:  # type: ignore[override]
        return (self.loss.target,)

    def __repr__(self) -> str:
        return f"<RiskSum at {self.width} private weights>"

    @property
    def size(self) -> int:
        """Rows, positive labels, two words of value and gradient, Hessian."""
        return 2 + 2 * (1 + self.width) + (self.width**2 if self.second else 0)

    def zero(self) -> IntVector:
        """The identity of merge."""
        return np.zeros(self.size, dtype=np.int64)

    def merge(self, a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
        """Exact sum; what the lower words have too much goes to the upper ones."""
        total = np.asarray(a + b)
        high, low = self._words(total)
        high += low >> _WORD
        low &= (1 << _WORD) - 1
        return total

    def _words(self, vector: NDArray[Any]) -> NDArray[Any]:
        """A view of the upper and lower words of value and gradient."""
        return vector[2 : 2 + 2 * (1 + self.width)].reshape(2, 1 + self.width)

    def thin(self, rows: Rows) -> Rows:
        """One row in ``every``, by its place in the lake."""
        return rows if self.every == 1 else rows.take(slice(-rows.first % self.every, None, self.every))

    @property
    def reach(self) -> float:
        """A bound on the size of every margin, or residual."""
        return float(np.linalg.norm(self.weights)) * self.lattice.norm_bound * (1 + 1e-9) + self.loss.far

    def scales(self) -> tuple[float, float, float]:
        """Powers of two that bound |value| and |slope| of a convex loss within reach; the largest curvature."""
        ends = np.array([-self.reach, self.reach])
        largest = [float(np.abs(part(ends)).max()) for part in (self.loss.value, self.loss.slope)]
        value, slope = (math.ldexp(1.0, math.frexp(bound * (1 + 1e-9))[1]) for bound in largest)
        return value, slope, self.loss.smoothness or 1.0

    @property
    def curve_bits(self) -> int:
        """Bits of a row in the Hessian: squares of so many rows fit int64."""
        return min(_CURVE_BITS, (62 - max(1, self.rows).bit_length()) // 2)

    def partial(self, rows: Rows) -> IntVector:
        """The sums of one block of rows."""
        out = self.zero()
        out[0], out[1] = len(rows.y), np.count_nonzero(rows.y > 0)
        scores = dots(rows.features, self.weights * self.lattice.step)
        values, slopes, curvatures = self.loss.derivatives(self.loss.arguments(scores, rows.y))
        signs = self.loss.signs(rows.y)
        top = self.scales()
        digits = _digits(values / top[0])
        parts = [np.array([digit.sum()]) for digit in digits]
        totals = [sums(rows.features, digit * signs) for digit in _digits(slopes / top[1])]
        high, middle, low = (np.concatenate(pair) for pair in zip(parts, totals, strict=True))
        words = self._words(out)
        words[1] = low + ((middle & ((1 << _DIGIT) - 1)) << _DIGIT)
        words[0] = high + (middle >> _DIGIT)
        if self.second:
            roots = np.sqrt(np.clip(curvatures / top[2], 0.0, 1.0))
            second = outer(rows.features, roots * math.ldexp(1.0, self.curve_bits - self.lattice.bits))
            out[2 + 2 * (1 + self.width) :] = second.ravel()
        return self.merge(out, self.zero())


def _digits(shares: Vector) -> tuple[IntVector, IntVector, IntVector]:
    """Numbers in [-1, 1], truncated to 2^-48, as three digits of base 2^16: the first has the sign."""
    whole = (shares * math.ldexp(1.0, SLOPE_BITS)).astype(np.int64)
    mask = (1 << _DIGIT) - 1
    return whole >> (2 * _DIGIT), (whole >> _DIGIT) & mask, whole & mask


@dataclass(frozen=True)
class Risk:
    """A RiskSum taken apart: private, for the driver's eyes."""

    rows: int
    positives: int
    value: float
    gradient: Vector
    hessian: Vector | None

    def __repr__(self) -> str:
        return "<Risk: private>"

    @classmethod
    def of(cls, summary: Summary) -> Risk:
        """From the summary of a RiskSum."""
        statistic, vector = summary.statistic, summary.vector
        assert isinstance(statistic, RiskSum)
        high, low = statistic._words(vector).astype(np.float64)
        top, width = statistic.scales(), statistic.width
        totals = (high * math.ldexp(1.0, _WORD) + low) * math.ldexp(1.0, -SLOPE_BITS)
        gradient = totals[1:] * (top[1] * statistic.lattice.step)
        hessian = None
        if statistic.second:
            unit = math.ldexp(statistic.lattice.norm_bound, -statistic.curve_bits)
            hessian = vector[2 + 2 * (1 + width) :].reshape(width, width) * (top[2] * unit * unit)
        return cls(int(vector[0]), int(vector[1]), float(totals[0]) * top[0], gradient, hessian)


@dataclass(frozen=True, eq=False, repr=False)
class Mistakes(Additive):
    """For each of ``models``, by their last axis, the number of rows that it labels wrongly; a margin of 0 counts as
    positive. Of several classes a model has a row of weights for each, and the largest margin is its label, the first
    of equal ones.

    Of numbers, with the ``step`` of the lattice, how far predictions within the bounds are off, in whole steps of the
    label's grid, of which there are ``unit`` between its bounds. A row without a usable label is nobody's mistake.

    Sensitivity
        One row, however it changes, moves each count by at most ``unit``.
    """

    models: Vector
    step: float | None = None

    name: ClassVar[str] = "mistakes"
    compact: ClassVar[bool] = True
    secret: ClassVar[bool] = True

    @classmethod
    def of(cls, passes: Any, models: Vector) -> Mistakes:
        """For the label of the rows that are passed over."""
        number = passes.domain.label.target == "number"
        return cls(passes.domain.width, models, passes.lattice.step if number else None)

    def __repr__(self) -> str:
        return f"<Mistakes of {self.models.shape[-1]} models>"

    @property
    def targets(self) -> tuple[Target, ...]:  # type: ignore[override]
        if self.models.ndim > 2:
            return ("classes",)
        return ("sides",) if self.step is None else ("number",)

    @property
    def unit(self) -> int:
        """The most that a row counts for."""
        return 1 if self.step is None else 2 << LABEL_BITS

    @property
    def size(self) -> int:
        """One count for each model, then the number of rows."""
        return int(self.models.shape[-1]) + 1

    def zero(self) -> IntVector:
        """The identity of merge."""
        return np.zeros(self.size, dtype=np.int64)

    def partial(self, rows: Rows) -> IntVector:
        """Wrong labels of one block."""
        known = rows.where(rows.y != 0)
        models = np.moveaxis(self.models, -1, 0)
        wrong = [int(self._off(self._scores(known, model), known.y).sum()) for model in models]
        return np.array([*wrong, len(rows.y)], dtype=np.int64)

    def _scores(self, rows: Rows, model: Vector) -> Vector:
        """Of each row, or of each class and row."""
        if model.ndim > 1:
            return np.array([dots(rows.features, one) for one in model])
        return dots(rows.features, model)

    def _off(self, scores: Vector, y: NDArray[Any]) -> NDArray[Any]:
        if scores.ndim > 1:
            return np.asarray(scores.argmax(axis=0) + 1 != y)
        if self.step is None:
            return np.asarray((scores >= 0) != (y > 0))
        end = 1 << LABEL_BITS
        told = np.clip(np.nan_to_num(np.ldexp(scores * self.step, LABEL_BITS)), -end, end).astype(np.int64)
        return np.asarray(np.abs(told - y))
