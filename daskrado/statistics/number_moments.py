"""Moments of rows whose label is a number: all that least squares needs of a regression, in one pass."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from daskrado.privacy.relations import Relation, Sensitivity
from daskrado.statistics.base import Block, IntVector, Rows
from daskrado.statistics.moments import Moments
from daskrado.table.label import Target
from daskrado.table.label_sides import LABEL_BITS
from daskrado.table.lattice import Lattice
from daskrado.table.products import outer, sums

LABEL_WEIGHT = 0.25
"""Of ``label`` in the joint vector: one number of the order of the rows bears four times the noise of the others, and
then costs them 1.6 % instead of 22 %."""


@dataclass(frozen=True)
class NumberMoments(Moments):
    """``mean`` M = sum of y_i x_i, ``label`` = sum of y_i^2 and ``second`` = upper triangle of S = sum of x_i x_i'.

    Labels y lie in [-1, 1], in steps of 2^-LABEL_BITS of half their bounds.

    Sensitivity
        For rows of norm at most 1, with w = LABEL_WEIGHT: add/remove moves M and the triangle of S by at most 1 each
        and w y^2 by w, jointly sqrt(2 + w^2). Replacing (x, y) by (x', y'), with p = y^2, q = y'^2, c = x.x' moves by
        the root of p + q - 2 y y' c + w^2 (p - q)^2 + 2 - 2 c^2, for |x| = |x'| = 1, where it is largest. Over c that
        is at most 2 + p + q + p q / 2 + w^2 (p - q)^2, which rises in p and in q for w <= 1/2: 4.5, at p = q = 1.
        A flipped feature leaves y and moves the rest as in :class:`Moments`. A changed label is no flip: not derived.

    Reference
        Wang (2018), "Revisiting differentially private linear regression", with the exact joint sensitivity.

    >>> moments = NumberMoments(2)
    >>> rows = Rows(np.array([[1.0, 2.0], [3.0, -1.0]]), np.array([3, -5], dtype=np.int16))
    >>> {name: part.tolist() for name, part in moments.split(moments.partial(rows)).items()}
    {'mean': [-12, 11], 'label': [34], 'second': [10, -1, 5]}
    """

    name: ClassVar[str] = "number_moments"
    targets: ClassVar[tuple[Target, ...]] = ("number",)

    @property
    def blocks(self) -> tuple[Block, ...]:
        """M, the sum of squared labels, then the upper triangle of the second moments, row by row."""
        mean, second = super().blocks
        label = Block("label", (1,), power=0, weight=LABEL_WEIGHT, fine=2 * LABEL_BITS)
        return Block("mean", mean.shape, fine=LABEL_BITS), label, second

    def _sums(self, rows: Rows, weights: IntVector | None) -> IntVector:
        y = rows.y.astype(np.int64)
        own = y if weights is None else y * weights
        second = outer(rows.features, weights=weights)[np.triu_indices(self.width)]
        return np.concatenate([sums(rows.features, own), [own @ y], second])

    def sensitivity(self, relation: Relation) -> Sensitivity:
        """See the class."""
        if relation is Relation.LABEL_FLIP:
            self.unsupported(relation)
        plain = super().sensitivity(relation)
        if relation is Relation.FEATURE_FLIP:
            return Sensitivity(plain.l1, plain.l2, frozenset({"label"}))
        far = math.sqrt(2.0 + LABEL_WEIGHT**2) if relation is Relation.ADD_REMOVE else plain.l2
        return Sensitivity(plain.l1 + LABEL_WEIGHT, far)

    def largest_per_row(self, lattice: Lattice) -> int:
        """A squared coordinate of one row, one times a label, or a squared label."""
        return 1 << max(lattice.bits + max(lattice.bits, LABEL_BITS), 2 * LABEL_BITS)
