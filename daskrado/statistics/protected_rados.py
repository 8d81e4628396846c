"""Rados that protect by noise on the rows, or on the columns that need it: sound for any number of rados."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from daskrado.errors import UsageError
from daskrado.privacy.relations import Relation, Sensitivity
from daskrado.statistics.base import Block, IntVector, Rows, Statistic
from daskrado.statistics.rados import BalancedRados, UniformRados
from daskrado.statistics.row_noise import TAIL, flips, gaussian_noise
from daskrado.table.lattice import Lattice

REACH_ROUNDING = 1 + 2.0**-40  # what rounding may add to an encoded feature of size 1 on its way to the grid


@dataclass(frozen=True)
class _NoisyRows(Statistic):
    """A statistic of perturbed rows. Whatever ``base`` does with them is post-processing of the noisy rows."""

    base: Statistic

    needs_place: ClassVar[bool] = True
    noises_rows: ClassVar[bool] = True

    @property
    def needs_seeds(self) -> bool:  # type: ignore[override]
        """As the base does."""
        return self.base.needs_seeds

    @property
    def blocks(self) -> tuple[Block, ...]:
        """Those of the base."""
        return self.base.blocks

    def check_rows(self, rows: int) -> None:
        """As the base does."""
        self.base.check_rows(rows)

    def sensitivity(self, relation: Relation) -> Sensitivity:
        """None: the noise is on the rows already, and nothing may be added to it again."""
        self.unsupported(relation)

    def _summed(self, rows: Rows) -> IntVector:
        """The base's sums of noisy rows, or of those that are kept of each unit."""
        if rows.weights is not None:
            rows = replace(rows.where(rows.weights > 0), weights=None)
        return self.base.partial(rows)


@dataclass(frozen=True)
class NoisyEdgeRados(_NoisyRows):
    """Rados of edge vectors y_i (x_i + g_i), with discrete Gaussian g_i of ``scale`` grid steps on every coordinate.

    Sensitivity
        Replacing a row, flipping its label or a feature moves one edge vector by at most 2 in norm, whatever n is
        (a row that counts as nothing has the edge 0, and noise like any other):
        rho = (2 * 2**bits / scale)^2 / 2 for the noisy edges, and rados are post-processing of them.

    Reference
        Nock, Patrini and Friedman (2015), section 5.2, with exact discrete noise.
    """

    scale: float

    name: ClassVar[str] = "noisy_edge_rados"

    def partial(self, rows: Rows) -> IntVector:
        """The base's rados of the noisy rows."""
        assert rows.place is not None
        noisy = rows.x + gaussian_noise(rows.place, len(rows.y), self.width, self.scale)
        noisy *= np.where(rows.y == 0, 1, rows.y)[:, None]
        # The base sees noisy edges and no label of their own: it can only post-process what was protected.
        return self._summed(replace(rows, features=np.asfortranarray(noisy), y=np.ones_like(rows.y)))

    def largest_per_row(self, lattice: Lattice) -> int:
        """One noisy coordinate, twice where Hadamard rados use it twice."""
        return 2 * ((1 << lattice.bits) + math.ceil(TAIL * self.scale) + 1)


@dataclass(frozen=True)
class RandomisedRados(_NoisyRows):
    """Rados of rows whose boolean ``features`` went through randomised response at ``epsilon`` each.

    Sensitivity
        Flipping one of the features changes the law of one answer by a factor exp(epsilon): pure epsilon for each
        feature, k epsilon when all k features of a record change together. The expected answer is tanh(epsilon / 2)
        times the truth, by which released columns are divided (post-processing).

    Reference
        Warner (1965). The sound generalisation of DP-FEAT to several features (Nock, Patrini and Friedman 2015).
    """

    features: tuple[int, ...]
    epsilon: float

    name: ClassVar[str] = "randomised_rados"

    @property
    def shrinkage(self) -> float:
        """Expected answer over truth."""
        return math.tanh(self.epsilon / 2)

    def partial(self, rows: Rows) -> IntVector:
        """The base's rados after the flips; a sign flip leaves a row's norm as it was."""
        assert rows.place is not None
        flip = flips(rows.place, len(rows.y), len(self.features), self.epsilon)
        x = rows.x.copy(order="K")
        x[:, self.features] *= np.where(flip, -1.0, 1.0)
        return self._summed(replace(rows, features=x))

    def largest_per_row(self, lattice: Lattice) -> int:
        """As the base."""
        return self.base.largest_per_row(lattice)


@dataclass(frozen=True)
class NoisyColumnRados(Statistic):
    """Balanced or uniform rados, the columns ``features`` in a block of their own: only that block needs noise.

    ``reach`` bounds an encoded feature over the norm bound.

    Sensitivity
        When the named features of one record change to any values within their bounds, each of k columns moves by at
        most 2 reach in each of the c rados that hold the record, c = n/2 balanced and n uniform: 2 reach sqrt(k c) in
        L2, 2 reach k c in L1. The block ``public`` holds other features only and does not move, provided that no row
        is clipped or that the features are +-1 valued.

    Reference
        The sound generalisation of DP-FEAT to a real-valued feature (Nock, Patrini and Friedman 2015).
    """

    count: int
    features: tuple[int, ...]
    reach: float
    balanced: bool = True

    name: ClassVar[str] = "noisy_column_rados"
    needs_seeds: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.features or len(set(self.features)) < len(self.features):
            raise UsageError(f"protected features must be named once each, got {list(self.features)}")
        self._plain()

    def _plain(self) -> BalancedRados | UniformRados:
        return (BalancedRados if self.balanced else UniformRados)(self.width, self.count)

    @property
    def others(self) -> tuple[int, ...]:
        """Features that the relation leaves public."""
        return tuple(k for k in range(self.width) if k not in self.features)

    @property
    def blocks(self) -> tuple[Block, ...]:
        """Protected columns, then public ones."""
        return (
            Block("protected", (self.count, len(self.features))),
            Block("public", (self.count, len(self.others))),
        )

    def partial(self, rows: Rows) -> IntVector:
        """Plain rados, with the columns sorted into the two blocks."""
        rados = self._plain().partial(rows).reshape(self.count, self.width)
        return np.concatenate([rados[:, self.features].ravel(), rados[:, self.others].ravel()])

    def joined(self, protected: np.ndarray, public: np.ndarray) -> np.ndarray:
        """Rados with their columns in the Domain's order."""
        rados = np.empty((self.count, self.width))
        rados[:, self.features] = protected
        rados[:, self.others] = public
        return rados

    def sensitivity(self, relation: Relation) -> Sensitivity:
        """Under feature_flip only; see the class."""
        if relation is not Relation.FEATURE_FLIP:
            self.unsupported(relation)
        cells = len(self.features) * (self.count / 2 if self.balanced else self.count)
        return Sensitivity(2 * self.reach * cells, 2 * self.reach * math.sqrt(cells), frozenset({"public"}))

    def largest_per_row(self, lattice: Lattice) -> int:
        """One coordinate of one row."""
        return 1 << lattice.bits
