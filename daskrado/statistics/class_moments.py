"""Moments of rows of several classes: all that least squares needs of each of them, in one pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from daskrado.privacy.relations import Relation, Sensitivity
from daskrado.statistics.base import Block, IntVector, Rows
from daskrado.statistics.moments import FINE, Moments
from daskrado.table.label import Target
from daskrado.table.products import outer, scatter


@dataclass(frozen=True)
class ClassMoments(Moments):
    """``mean`` M_k = sum of the x_i of each of ``classes`` classes k, and ``second`` = upper triangle of S.

    Sensitivity
        For rows of norm at most 1: add/remove moves one M_k by 1 and the triangle of S by at most 1, jointly sqrt(2).
        Replacing x by x', with c = x.x', moves the squared joint norm by (2 - 2 c) + (2 - 2 c^2) within a class, at
        most 4.5 at c = -1/2, and by 2 + (2 - 2 c^2) <= 4 from one class to another. Flipping a feature moves one M_k
        and S as in :class:`Moments`. A changed label is no flip: not offered.

    Reference
        Wang (2018), "Revisiting differentially private linear regression", with the exact joint sensitivity.

    >>> moments = ClassMoments(2, 3)
    >>> rows = Rows(np.array([[1.0, 2.0], [3.0, -1.0]]), np.array([1, 3], dtype=np.int8))
    >>> {name: part.tolist() for name, part in moments.split(moments.partial(rows)).items()}
    {'mean': [[32, 64], [0, 0], [96, -32]], 'second': [10, -1, 5]}
    """

    classes: int = 3

    name: ClassVar[str] = "class_moments"
    targets: ClassVar[tuple[Target, ...]] = ("classes",)
    hidden: ClassVar[frozenset[str]] = frozenset({"width", "classes"})

    @property
    def blocks(self) -> tuple[Block, ...]:
        """M of each class, then the upper triangle of the second moments, row by row."""
        return Block("mean", (self.classes, self.width), fine=FINE), super().blocks[1]

    def _sums(self, rows: Rows, weights: IntVector | None) -> IntVector:
        """A row without a class is in no sum of one."""
        own = np.ones(len(rows.y), dtype=np.int64) if weights is None else weights
        means = scatter(rows.features, own, rows.y.astype(np.int64) - 1, self.classes).T << FINE
        second = outer(rows.features, weights=weights)[np.triu_indices(self.width)]
        return np.concatenate([means.ravel(), second])

    def sensitivity(self, relation: Relation) -> Sensitivity:
        """See the class."""
        if relation is Relation.LABEL_FLIP:
            self.unsupported(relation)
        return super().sensitivity(relation)
