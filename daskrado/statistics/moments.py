"""First and second moments of the edge vectors: all that a least-squares learner needs, in one pass."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from daskrado.errors import UsageError
from daskrado.privacy.relations import Relation, Sensitivity
from daskrado.statistics.base import Block, IntVector, Rows, Statistic
from daskrado.table.lattice import Lattice
from daskrado.table.products import outer, sums, weighs

FINE = 5  # bits: on 11-bit rows, noise on the mean is drawn on a 16-bit grid, where it counts as normal
MOST_FEATURES = 5_000  # their moments have 100 MB, of which a worker merges eight at a time


@dataclass(frozen=True)
class Moments(Statistic):
    """``mean`` M = sum of y_i x_i, shifted by FINE bits, and ``second`` = upper triangle of S = sum of x_i x_i'.

    Sensitivity
        For rows of norm at most 1: add/remove moves M by 1 and the triangle of S by at most the Frobenius norm 1,
        jointly sqrt(2). Replacing x by x', with c = x.x' and s = y y', moves the squared joint norm by at most
        (2 - 2 s c) + (2 - 2 c^2), largest at c = -s/2: 4.5. A label flip leaves S, which is then public. Flipping a
        +-1 feature of size a moves M by 2a and row j of S by 2a sqrt(1 - a^2): 8a^2 - 4a^4 <= 4.
        L1: the triangle of x x' sums to (|x|_1^2 + |x|_2^2)/2 <= (d + 1)/2.

    Reference
        The moment release of Wang (2018), "Revisiting differentially private linear regression", with the exact
        joint sensitivity; integer grid as in :class:`daskrado.table.lattice.Lattice`.

    >>> moments = Moments(2)
    >>> rows = Rows(np.array([[1.0, 2.0], [3.0, -1.0]]), np.array([1, -1], dtype=np.int8))
    >>> {name: part.tolist() for name, part in moments.split(moments.partial(rows)).items()}
    {'mean': [-64, 96], 'second': [10, -1, 5]}
    """

    name: ClassVar[str] = "moments"
    compact: ClassVar[bool] = True
    default_bits: ClassVar[int] = 16  # products take twice the bits: room for 2**30 rows; 11 have room for 2**40

    def __post_init__(self) -> None:
        if self.width > MOST_FEATURES:
            size = self.width + self.width * (self.width + 1) // 2
            raise UsageError(
                f"moments of {self.width:,} features are {size:,} numbers, {8 * size / 1e9:.1f} GB on each worker: "
                f"at most {MOST_FEATURES:,} features; take learner gradient, or declare fewer categories or bins"
            )

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The mean operator, then the upper triangle of the second moments, row by row."""
        return (
            Block("mean", (self.width,), fine=FINE),
            Block("second", (self.width * (self.width + 1) // 2,), power=2),
        )

    def partial(self, rows: Rows) -> IntVector:
        """Exact sums of one block."""
        return self._sums(rows, None)

    def weighted(self, rows: Rows, heaviest: int) -> IntVector | None:
        """Rows times their weights, in one product of dense rows."""
        if rows.weights is None or not weighs(rows.features, heaviest << FINE):
            return None
        return self._sums(rows, rows.weights.astype(np.int64))

    def _sums(self, rows: Rows, weights: IntVector | None) -> IntVector:
        labels = rows.y.astype(np.int64)
        edges = sums(rows.features, labels if weights is None else labels * weights) << FINE
        return np.concatenate([edges, outer(rows.features, weights=weights)[np.triu_indices(self.width)]])

    def sensitivity(self, relation: Relation) -> Sensitivity:
        """See the class."""
        d = self.width
        root = math.sqrt(d)
        match relation:
            case Relation.ADD_REMOVE:
                return Sensitivity(root + (d + 1) / 2, math.sqrt(2.0))
            case Relation.REPLACE_ONE:
                return Sensitivity(2 * root + (d + 1), math.sqrt(4.5))
            case Relation.LABEL_FLIP:
                return Sensitivity(2 * root, 2.0, frozenset({"second"}))
            case Relation.FEATURE_FLIP:
                return Sensitivity(2 + math.sqrt(d - 1), 2.0)

    def largest_per_row(self, lattice: Lattice) -> int:
        """A squared coordinate of one row, or a shifted one."""
        return 1 << (lattice.bits + max(lattice.bits, FINE))


def symmetric(triangle: np.ndarray, width: int) -> np.ndarray:
    """The full symmetric matrix from its upper triangle, row by row."""
    full = np.zeros((width, width), dtype=triangle.dtype)
    full[np.triu_indices(width)] = triangle
    return full + np.triu(full, 1).T
