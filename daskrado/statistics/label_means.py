"""The mean operator where only labels are secret: its sensitivity comes from the public features themselves."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from daskrado.errors import DataError
from daskrado.privacy.relations import Relation, Sensitivity
from daskrado.statistics.base import Block, Groups, IntVector, Rows, Statistic
from daskrado.statistics.features import group_sums, normalised_l2
from daskrado.table.lattice import Lattice
from daskrado.table.products import norms, sums


@dataclass(frozen=True)
class LabelMeans(Statistic):
    """``mean`` = sum of y_i x_i by group, over the rows that have a label, and ``labelled`` = how many those are.

    Sensitivity
        Flipping the label of one row moves ``mean`` by 2 x_i, in one group: at most 2 max|x|_1 in L1 and 2 max|x|_2
        in L2. Features are public, so both maxima are exact facts (``l1_steps``, ``square_steps``, in grid steps of
        2^-bits), and every row is checked against them while it is summed. Which rows have a label is public.

    Reference
        Patrini, Nielsen and Nock (2015), algorithm 2, whose noise is too small by a factor max|x|_1: there the L2
        bound 1 stands where the L1 norm, up to sqrt(d), is needed.
    """

    l1_steps: int
    square_steps: int
    bits: int
    groups: Groups | None = None
    missing: bool = False

    name: ClassVar[str] = "label_means"
    compact: ClassVar[bool] = True

    @classmethod
    def loosest(cls, width: int, bits: int, groups: Groups | None = None) -> LabelMeans:
        """With the bounds that hold for any features of a Domain: for charges and plans, before a row is read."""
        square = 1 << (2 * bits)
        return cls(width, math.isqrt(width * square), square, bits, groups)

    @property
    def label_use(self) -> Literal["required", "optional", "none"]:
        """Labels may be missing if the statistic says so."""
        return "optional" if self.missing else "required"

    @property
    def grouped_by(self) -> Groups | None:
        """The strata."""
        return self.groups

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The mean operators, then the counts of labelled rows."""
        count = 1 if self.groups is None else len(self.groups.values)
        return (Block("mean", (count, self.width)), Block("labelled", (count,), power=0))

    @property
    def l1(self) -> float:
        """max |x|_1 as a share of the norm bound."""
        return math.ldexp(float(self.l1_steps), -self.bits)

    @property
    def l2(self) -> float:
        """max |x|_2 as a share of the norm bound, rounded up."""
        return normalised_l2(self.square_steps, self.bits)

    def partial(self, rows: Rows) -> IntVector:
        """Sum of y_i x_i; a row above the bounds means that the features changed since they were measured."""
        lengths, squares = norms(rows.features)
        if lengths.max(initial=0) > self.l1_steps or squares.max(initial=0) > self.square_steps:
            raise DataError("the features changed since their largest norms were measured: start again")
        if self.groups is None:
            edges = sums(rows.features, rows.y.astype(np.int64))
            return np.append(edges, np.int64(np.count_nonzero(rows.y)))
        assert rows.groups is not None
        count = len(self.groups.values)
        means = group_sums(rows.features, rows.groups, count, rows.y)
        labelled = np.bincount(rows.groups, weights=rows.y != 0, minlength=count)
        return np.concatenate([means.ravel(), labelled.astype(np.int64)])

    def sensitivity(self, relation: Relation) -> Sensitivity:
        """(2 max|x|_1, 2 max|x|_2) under a label flip; nothing else is protected."""
        if relation is not Relation.LABEL_FLIP:
            self.unsupported(relation)
        return Sensitivity(2 * self.l1, 2 * self.l2, frozenset({"labelled"}))

    def largest_per_row(self, lattice: Lattice) -> int:
        """One coordinate of one row."""
        return 1 << lattice.bits


@dataclass(frozen=True)
class BagCounts(Statistic):
    """For each bag, the number of ``positives`` and of rows (``count``).

    Sensitivity
        A label flip moves one bag's positives by 1; counts are then public. Adding or removing a row moves both by at
        most 1 in one bag. Replacing one moves each in at most two bags.

    Reference
        Quadrianto et al. (2009) for learning from the proportions positives / count.
    """

    groups: Groups

    name: ClassVar[str] = "bag_counts"
    compact: ClassVar[bool] = True

    @property
    def blocks(self) -> tuple[Block, ...]:
        """Positives, then counts."""
        return tuple(Block(name, (len(self.groups.values),), power=0) for name in ("positives", "count"))

    @property
    def grouped_by(self) -> Groups | None:
        """The bags."""
        return self.groups

    def partial(self, rows: Rows) -> IntVector:
        """Exact counts."""
        assert rows.groups is not None
        bags, known = len(self.groups.values), rows.groups >= 0
        positives = np.bincount(rows.groups[known & (rows.y > 0)], minlength=bags)
        return np.concatenate([positives, np.bincount(rows.groups[known], minlength=bags)]).astype(np.int64)

    def sensitivity(self, relation: Relation) -> Sensitivity:
        """(1, 1), (2, sqrt 2), (4, 2) under a label flip, add/remove, replace one."""
        known = {
            Relation.LABEL_FLIP: Sensitivity(1.0, 1.0, frozenset({"count"})),
            Relation.ADD_REMOVE: Sensitivity(2.0, math.sqrt(2.0)),
            Relation.REPLACE_ONE: Sensitivity(4.0, 2.0),
        }
        return known[relation] if relation in known else self.unsupported(relation)

    def largest_per_row(self, lattice: Lattice) -> int:
        """One."""
        del lattice
        return 1
