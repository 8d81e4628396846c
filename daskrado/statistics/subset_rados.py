"""Rados whose supports have an exact size, fixed support and DP-FEAT: not differentially private as a whole."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from daskrado.errors import UsageError
from daskrado.privacy.relations import Relation, Sensitivity
from daskrado.statistics.base import IntVector, Place, Rows, integers
from daskrado.statistics.rados import RadoRows
from daskrado.statistics.subsets import Sizes, check_population, stream, subset_sums
from daskrado.statistics.window import Window


@dataclass(frozen=True)
class _SubsetRados(RadoRows):
    needs_place: ClassVar[bool] = True

    @abstractmethod
    def sizes(self, place: Place) -> Sizes:
        """The size of each rado's random subset: a pure function of the key and the number of rows."""


@dataclass(frozen=True)
class FixedSupportRados(_SubsetRados):
    """``count`` rados, each the sum of the edges of a uniform subset of exactly ``support`` rows.

    Sensitivity
        Memberships go by position, so a replaced row, a flipped label or feature stays in the same rados, of which
        there may be n: 2 sqrt(n). Adding a row shifts every later one: no sensitivity under add/remove.

    Reference
        Nock, Patrini and Friedman (2015), equation 18.
    """

    support: int

    name: ClassVar[str] = "fixed_support_rados"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.support < 1:
            raise UsageError(f"support of a rado must be at least 1 row, got {self.support}")

    def check_rows(self, rows: int) -> None:
        """A support is a subset of the lake."""
        check_population(rows, "fixed-support rados")
        if self.support > rows:
            raise UsageError(f"support {self.support} is larger than the lake, which has {rows} rows")

    def sizes(self, place: Place) -> Sizes:
        """The same for every rado."""
        del place
        return np.full(self.count, self.support, dtype=np.int64)

    def partial(self, rows: Rows) -> IntVector:
        """Sum of the members' edges."""
        place = _place(rows)
        return integers(subset_sums(place, self.sizes(place), rows.x * rows.y[:, None]))

    def sensitivity(self, relation: Relation) -> Sensitivity:
        """See the class."""
        if relation is Relation.ADD_REMOVE:
            self.unsupported(relation)
        root = 1.0 if relation is Relation.FEATURE_FLIP else math.sqrt(self.width)
        return Sensitivity(2 * self.count * root, 2 * math.sqrt(self.count))


@dataclass(frozen=True)
class FeatureRados(_SubsetRados):
    """DP-FEAT: rados whose coordinate ``feature`` avoids the tails, by a sampler that never rejects.

    Each rado draws Z from the truncated binomial of :class:`Window` and a uniform Z-subset A of the rows, and takes
    row i if (i in A) differs from (y_i x_i,feature < 0). That is the law of a uniform signature given its window.

    Sensitivity
        None: only the marginal law of one coordinate of one rado has a guarantee (see ``bounds.dp_feat``). The other
        coordinates tell which rows were taken, so the joint release protects nobody.

    Reference
        Nock, Patrini and Friedman (2015), algorithm 2, without its rejection loop.
    """

    feature: int
    epsilon: float

    name: ClassVar[str] = "dp_feat_rados"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.feature < self.width:
            raise UsageError(f"feature index must be below {self.width}, got {self.feature}")

    def check_rows(self, rows: int) -> None:
        """The window must hold a value."""
        check_population(rows, "DP-FEAT rados")
        Window(self.epsilon, rows)

    def sizes(self, place: Place) -> Sizes:
        """Z of each rado."""
        draw = np.random.Generator(stream(place.key, "window"))
        return Window(self.epsilon, place.total).sizes(draw.random(self.count))

    def partial(self, rows: Rows) -> IntVector:
        """Rows with a negative edge start inside and leave when drawn; the others start outside and enter."""
        place = _place(rows)
        edges = rows.x * rows.y[:, None]
        sign = np.where(edges[:, self.feature] < 0, -1.0, 1.0)
        start = edges[sign < 0].sum(axis=0)
        return integers(start + subset_sums(place, self.sizes(place), edges * sign[:, None]))

    def sensitivity(self, relation: Relation) -> Sensitivity:
        """None, under any relation."""
        self.unsupported(relation)


def _place(rows: Rows) -> Place:
    if rows.place is None:
        raise ValueError("rados by position need the place of their rows")
    return rows.place
