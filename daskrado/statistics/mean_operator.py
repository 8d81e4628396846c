"""The mean operator: the sum of label times row, minimally sufficient for the labels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from daskrado.privacy.relations import Relation, Sensitivity
from daskrado.statistics.base import Block, IntVector, Rows, Statistic
from daskrado.table.lattice import Lattice
from daskrado.table.products import sums

COUNT_WEIGHT = 0.25  # the count gets four times the noise of a coordinate and costs the rest 3 % more


@dataclass(frozen=True)
class MeanOperator(Statistic):
    """``mean`` = sum of y_i x_i and ``count`` = number of rows.

    Sensitivity
        A row of norm at most 1 moves ``mean`` by at most 1 when added or removed, by 2 when it is replaced or its
        label is flipped; flipping one +-1 feature moves one coordinate by at most 2. ``count`` moves by 1, weighed
        by 1/4, under add/remove and is public otherwise. L1 from L2 by Cauchy-Schwarz: a factor sqrt(d).

    Reference
        Patrini, Nielsen and Nock (2015); Quadrianto et al. (2009).

    >>> rows = Rows(np.array([[1.0, 2.0], [3.0, -1.0]]), np.array([1, -1], dtype=np.int8))
    >>> MeanOperator(2).partial(rows).tolist()  # (1, 2) - (3, -1), and two rows
    [-2, 3, 2]
    >>> MeanOperator(2).sensitivity(Relation.LABEL_FLIP).l2
    2.0
    """

    name: ClassVar[str] = "mean_operator"
    compact: ClassVar[bool] = True

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The mean operator, then the count."""
        return (Block("mean", (self.width,)), Block("count", (), power=0, weight=COUNT_WEIGHT))

    def partial(self, rows: Rows) -> IntVector:
        """Sum of y_i x_i, and the number of rows."""
        return np.append(sums(rows.features, rows.y.astype(np.int64)), np.int64(len(rows.y)))

    def sensitivity(self, relation: Relation) -> Sensitivity:
        """See the class: (sqrt(d) + 1/4, sqrt(1 + 1/16)), (2 sqrt(d), 2), (2 sqrt(d), 2), (2, 2)."""
        root = math.sqrt(self.width)
        public = frozenset({"count"})
        match relation:
            case Relation.ADD_REMOVE:
                return Sensitivity(root + COUNT_WEIGHT, math.hypot(1.0, COUNT_WEIGHT))
            case Relation.REPLACE_ONE | Relation.LABEL_FLIP:
                return Sensitivity(2.0 * root, 2.0, public)
            case Relation.FEATURE_FLIP:
                return Sensitivity(2.0, 2.0, public)

    def largest_per_row(self, lattice: Lattice) -> int:
        """One coordinate of one row."""
        return 1 << lattice.bits
