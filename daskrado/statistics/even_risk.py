"""The label-free part of a linear-odd risk, its slope and curvature, as exact integer sums over rows.

Margins are whole numbers (weights and rows are both on grids), so they do not depend on how rows are cut into blocks;
slopes are written in two 15-bit digits before they are summed. Any partitioning then gives the same bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from daskrado.errors import UsageError
from daskrado.losses.linear_odd import EvenPart
from daskrado.losses.margin import Loss
from daskrado.statistics.base import Block, Groups, IntVector, Rows
from daskrado.statistics.features import LabelFree
from daskrado.table.lattice import Lattice
from daskrado.table.products import dots, outer, sums

_DIGIT = 15
_WEIGHT_BITS = 30
MAX_BITS = 22  # margins then stay below 2^53
_CURVE_BITS = 17  # of a row times the root of its curvature, which only steers the steps


@dataclass(frozen=True)
class EvenRisk(LabelFree):
    """Sums over rows of g(w.x), g'(w.x) x and g''(w.x) x x', for rows as shares of the norm bound.

    Sensitivity
        None under a label flip: labels are not read. It is never released under another relation.

    Reference
        Patrini, Nielsen and Nock (2015), theorem 3.
    """

    loss: Loss
    weights: tuple[float, ...]
    bits: int
    groups: Groups | None = None  # not used in the sums: rows kept for statistics by group serve this one too

    name: ClassVar[str] = "even_risk"
    compact: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.bits > MAX_BITS:
            raise UsageError(
                f"lattice_bits must be at most {MAX_BITS} to learn from a mean operator, got {self.bits}"
            )

    @property
    def blocks(self) -> tuple[Block, ...]:
        """Two digits of the value and of the slope, the upper triangle of the curvature, the count."""
        triangle = self.width * (self.width + 1) // 2
        return (
            Block("value", (2,), power=0),
            Block("slope", (2, self.width), power=0),
            Block("curvature", (triangle,), power=0),
            Block("count", (), power=0),
        )

    @property
    def grouped_by(self) -> Groups | None:
        """As the other statistics of the session."""
        return self.groups

    def _grid(self) -> tuple[NDArray[np.float64], int]:
        """Whole-number weights T and the exponent e with w = T 2^e."""
        w = np.asarray(self.weights)
        size = float(np.linalg.norm(w))
        exponent = (math.frexp(size)[1] if size else 0) - _WEIGHT_BITS
        return np.rint(np.ldexp(w, -exponent)), exponent

    @property
    def grid_weights(self) -> NDArray[np.float64]:
        """The weights that the sums are really for."""
        whole, exponent = self._grid()
        return np.asarray(np.ldexp(whole, exponent))

    def _bounds(self) -> tuple[float, float, float]:
        """Of |g|, |g'| and g'' at margins up to |w|: the first two of a convex even g are largest at the ends."""
        even, reach = EvenPart(self.loss), float(np.linalg.norm(self.grid_weights)) * (1 + 1e-9) + 1e-300
        z = np.linspace(0.0, reach, 257)
        value, slope, curvature = np.abs(even.value(z)).max(), np.abs(even.slope(z)).max(), even.curvature(z).max()
        # A little room: a slope found by differences need not peak exactly at the end.
        return tuple(max(float(bound) * 1.01, 1e-300) for bound in (value, slope, curvature))  # type: ignore[return-value]

    def partial(self, rows: Rows) -> IntVector:
        """One block of rows."""
        whole, exponent = self._grid()
        even = EvenPart(self.loss)
        z = np.ldexp(dots(rows.features, whole), exponent - self.bits)
        top = self._bounds()
        value = _digits(even.value(z) / top[0])
        slope = _digits(even.slope(z) / top[1])
        roots = np.sqrt(np.clip(even.curvature(z) / top[2], 0.0, 1.0))
        second = outer(rows.features, roots * math.ldexp(1.0, _CURVE_BITS - self.bits))
        slopes = [sums(rows.features, digit) for digit in slope]
        return np.concatenate([value.sum(axis=1), *slopes, second[np.triu_indices(self.width)], [len(z)]])

    def read(self, vector: IntVector) -> tuple[float, NDArray[np.float64], NDArray[np.float64]]:
        """Mean value, slope and curvature of the even part from the integer sums."""
        part = self.split(vector)
        count, top = float(part["count"]), self._bounds()
        value = _number(part["value"]) * top[0] / count
        slope = np.ldexp(_number(part["slope"]), -self.bits) * (top[1] / count)
        second = np.zeros((self.width, self.width))
        second[np.triu_indices(self.width)] = part["curvature"]
        second += np.triu(second, 1).T
        return float(value), slope, np.ldexp(second, -2 * _CURVE_BITS) * (top[2] / count)

    def largest_per_row(self, lattice: Lattice) -> int:
        """A slope's leading digit times a coordinate, or a product of two bent ones."""
        return 1 << max(_DIGIT + lattice.bits, 2 * _CURVE_BITS)


def _digits(share: NDArray[np.float64]) -> IntVector:
    """Numbers in [-1, 1] as a leading and a trailing digit of base 2^15."""
    scaled = np.clip(share, -1.0, 1.0) * 2.0**_DIGIT
    lead = np.rint(scaled)
    return np.stack([lead, np.rint((scaled - lead) * 2.0**_DIGIT)]).astype(np.int64)


def _number(digits: IntVector) -> NDArray[np.float64]:
    return np.asarray(digits[0] * 2.0**-_DIGIT + digits[1] * 2.0 ** (-2 * _DIGIT))
