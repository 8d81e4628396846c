"""Second moments of rows, without their labels: what preconditions a descent, in one pass."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from daskrado.errors import UsageError
from daskrado.privacy.relations import Relation, Sensitivity
from daskrado.statistics.base import Block, IntVector, Rows, Statistic
from daskrado.table.label import Target
from daskrado.table.lattice import Lattice
from daskrado.table.products import outer, squares

MOST_FEATURES = 1_000
"""Beyond so many, ``pairs`` are refused: the matrix of half a million sums is sent, kept and factored."""


@dataclass(frozen=True)
class SecondMoments(Statistic):
    """``squares``, the diagonal of S = sum of x_i x_i', and with ``pairs`` the ``products`` above it, row by row.

    In the normalised vector a product counts sqrt(2) times, as it stands twice in S: the length of the vector is the
    Frobenius norm of S, and products get 1 / sqrt(2) of the noise of squares.

    Sensitivity
        For rows of norm at most 1, |x x'| = |x|^2 <= 1 under add/remove. Replacing x by z moves S by
        |x|^4 + |z|^4 - 2 (x.z)^2 <= 2, squared. S has no label. Flipping a +-1 feature of size a turns the sign of
        its products, of length 2 sqrt(2) a sqrt(1 - a^2) <= sqrt(2), and leaves squares. L1: |x|^2 and
        (|x|_1^2 - |x|^2) / sqrt(2) <= (d - 1) / sqrt(2); of a flip, 2 sqrt(2) a times |x|_1 of the others. Squares
        alone move by the length of (x_j^2), at most 1, or sqrt(2).

    >>> moments = SecondMoments(2)
    >>> rows = Rows(np.array([[1.0, 2.0], [3.0, -1.0]]), np.array([1, -1], dtype=np.int8))
    >>> {name: part.tolist() for name, part in moments.split(moments.partial(rows)).items()}
    {'squares': [10, 5], 'products': [-1]}
    """

    pairs: bool = True

    name: ClassVar[str] = "second_moments"
    targets: ClassVar[tuple[Target, ...]] = ("sides", "number", "classes")  # it looks at none
    compact: ClassVar[bool] = True
    default_bits: ClassVar[int] = 16  # as of ``Moments``

    def __post_init__(self) -> None:
        if self.pairs and self.width > MOST_FEATURES:
            raise UsageError(f"products of pairs are for at most {MOST_FEATURES:,} features, got {self.width:,}")

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The diagonal, and what stands above it."""
        diagonal = Block("squares", (self.width,), power=2)
        above = Block("products", (self.width * (self.width - 1) // 2,), power=2, weight=math.sqrt(2.0))
        return (diagonal, above) if self.pairs else (diagonal,)

    def partial(self, rows: Rows) -> IntVector:
        """Exact sums of one block."""
        if not self.pairs:
            return squares(rows.features)
        found = outer(rows.features)
        return np.concatenate([np.diagonal(found), found[np.triu_indices(self.width, 1)]])

    def sensitivity(self, relation: Relation) -> Sensitivity:
        """See the class."""
        sizes = 1 + (self.width - 1) / math.sqrt(2.0) if self.pairs else 1.0
        match relation:
            case Relation.ADD_REMOVE:
                return Sensitivity(sizes, 1.0)
            case Relation.REPLACE_ONE:
                return Sensitivity(2 * sizes, math.sqrt(2.0))
            case Relation.LABEL_FLIP:
                return Sensitivity(0.0, 0.0, frozenset(block.name for block in self.blocks))
            case Relation.FEATURE_FLIP:
                far = math.sqrt(2.0) if self.pairs and self.width > 1 else 0.0
                return Sensitivity(far * math.sqrt(self.width - 1), far, frozenset({"squares"}))

    def largest_per_row(self, lattice: Lattice) -> int:
        """A squared coordinate of one row."""
        return 1 << (2 * lattice.bits)


def matrix(statistic: SecondMoments, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The symmetric matrix whose diagonal and upper triangle the vector holds."""
    full = np.zeros((statistic.width, statistic.width))
    full[np.triu_indices(statistic.width, 1)] = values[statistic.width :]
    return np.asarray(full + full.T + np.diag(values[: statistic.width]))
