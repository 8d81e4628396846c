"""Rademacher observations: sums of edge vectors over random subsets of the rows.

A rado with signature sigma is ``1/2 sum (sigma_i + y_i) x_i``, the sum of the edges y_i x_i over the rows where
sigma_i = y_i (Nock, Patrini and Friedman 2015, definition 1). Without noise no kind of rado is differentially
private, whatever is kept secret.

Every row carries a 64-bit seed. Memberships are a fixed function of it, so a retried task repeats itself.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from daskrado.errors import UsageError
from daskrado.privacy.relations import Relation, Sensitivity
from daskrado.statistics.base import Block, Headline, IntVector, Rows, Statistic, integers
from daskrado.table.compact_encoding import CompactTable
from daskrado.table.encoded_table import Labels
from daskrado.table.lattice import Lattice
from daskrado.table.products import scatter, sums

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
Count = Annotated[int, Field(ge=2, le=1 << 16)]
Seed = Annotated[
    int | None, Field(ge=0)
]  # makes signatures public and repeatable, else their key is secret and fresh
_DENSE_CELLS = 1 << 22  # signature cells held at once by the dense kinds


def mix(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A bijective scrambling of 64-bit words (the SplitMix64 finaliser of Steele, Lea and Flood 2014)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def expand(seeds: NDArray[np.uint64], words: int) -> NDArray[np.uint64]:
    """``words`` 64-bit words for every seed, as an array of shape (rows, words)."""
    counter = np.arange(1, words + 1, dtype=np.uint64) * _GOLDEN
    return mix(mix(mix(seeds))[:, None] + counter[None, :])


def _seeds(rows: Rows) -> NDArray[np.uint64]:
    if rows.seeds is None:
        raise ValueError("rados need one seed per row")
    return rows.seeds


@dataclass(frozen=True)
class RadoRows(Statistic):
    """A statistic whose vector is ``count`` rados, one after another."""

    count: int

    def __post_init__(self) -> None:
        if self.count < 1:
            raise UsageError(f"count of rados must be at least 1, got {self.count}")

    @property
    def blocks(self) -> tuple[Block, ...]:
        """One row per rado."""
        return (Block("rados", (self.count, self.width)),)

    def largest_per_row(self, lattice: Lattice) -> int:
        """One coordinate of one row."""
        return 1 << lattice.bits

    def headline(self, values: Mapping[str, NDArray[np.float64]], noise_std: Mapping[str, float]) -> Headline:
        """The mean of the rados."""
        rados = values["rados"]
        return Headline("mean of the rados", rados.mean(axis=0), noise_std["rados"] / math.sqrt(len(rados)))


@dataclass(frozen=True)
class _DenseRados(RadoRows):
    count: Count = 256
    seed: Seed = None

    needs_seeds: ClassVar[bool] = True

    @abstractmethod
    def memberships(self, seeds: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Which rado (column) each row belongs to: independent of labels and features."""

    def partial(self, rows: Rows) -> IntVector:
        """Sum of the edges of each rado's members, through float64 BLAS on whole numbers."""
        total = np.zeros((self.count, self.width))
        edges = rows.x * rows.y[:, None]
        chunk = max(1, _DENSE_CELLS // self.count)
        for start in range(0, len(edges), chunk):
            piece = slice(start, start + chunk)
            member = self.memberships(_seeds(rows)[piece])
            total += member.T.astype(np.float64) @ edges[piece]
        return integers(total)

    def _sensitivity(self, relation: Relation, most: float) -> Sensitivity:
        """From the largest number of rados one row can be in, whatever its data."""
        root = math.sqrt(self.width)
        match relation:
            case Relation.ADD_REMOVE:
                return Sensitivity(most * root, math.sqrt(most))
            case Relation.REPLACE_ONE | Relation.LABEL_FLIP:
                return Sensitivity(2 * most * root, 2 * math.sqrt(most))
            case Relation.FEATURE_FLIP:
                return Sensitivity(2 * most, 2 * math.sqrt(most))


@dataclass(frozen=True)
class UniformRados(_DenseRados):
    """``count`` rados with independent uniform signatures: each row is in each rado with probability 1/2.

    Sensitivity
        A row may be in all n rados, so sqrt(n) under add/remove and 2 sqrt(n) when a row is replaced, its label
        flipped (it stays in the same rados) or a +-1 feature flipped. Holds whether signatures are secret or not.

    Reference
        Nock, Patrini and Friedman (2015), definition 1.
    """

    name: ClassVar[str] = "uniform_rados"

    def memberships(self, seeds: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """One fair coin per row and rado."""
        words = expand(seeds, -(-self.count // 64))
        bits = np.unpackbits(words.view(np.uint8), axis=1, count=self.count)
        return bits.view(np.bool_)

    def sensitivity(self, relation: Relation) -> Sensitivity:
        """sqrt(n) or 2 sqrt(n): a row may be in every rado."""
        return self._sensitivity(relation, self.count)


@dataclass(frozen=True)
class BalancedRados(_DenseRados):
    """``count`` rados where every row is in exactly half of them, a uniform half.

    Sensitivity
        A row is in exactly n/2 rados: sqrt(n/2) under add/remove, sqrt(2n) for the other relations. A replaced row
        may be in another half: disjoint halves give only sqrt(n).

    Reference
        Each signature alone is exactly uniform (Nock, Patrini and Friedman 2015); balancing is ours.
    """

    name: ClassVar[str] = "balanced_rados"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.count % 2:
            raise UsageError(f"balanced rados need an even count, got {self.count}")

    def memberships(self, seeds: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """The rados with the n/2 smallest of n random words."""
        half = self.count // 2
        words = expand(seeds, -(-self.count // 2)).view(np.uint32)[:, : self.count]
        chosen = np.argpartition(words, half - 1, axis=1)[:, :half]
        member = np.zeros((len(seeds), self.count), dtype=bool)
        np.put_along_axis(member, chosen, True, axis=1)
        return member

    def sensitivity(self, relation: Relation) -> Sensitivity:
        """sqrt(n/2) or sqrt(2n): every row is in exactly n/2 rados."""
        return self._sensitivity(relation, self.count / 2)


@dataclass(frozen=True)
class HadamardRados(Statistic):
    """A sketch from which N rados follow by one fast Walsh-Hadamard transform.

    Row i draws a bucket h_i in 1..N-1 and a sign s_i; its signature is sigma_ji = s_i H[j, h_i]. With
    B[b] = sum of s_i x_i over bucket b and M = sum of y_i x_i, all N rados are ``1/2 H B'`` where
    ``B' = B + e_0 M'`` (bucket 0 of B is empty, so row 0 of the sketch is M). Each signature is exactly uniform.
    ``bucket_zero`` lets h_i = 0 too (any three signatures are then independent): for baselines without noise.

    Sensitivity
        A row moves one bucket and row 0 by at most 1 each: sqrt(2) under add/remove, 2 sqrt(2) when it is replaced
        (worst case: the same bucket). A label flip moves row 0 alone, by 2. A +-1 feature flip moves two entries
        by 2 each. With ``bucket_zero`` both may be the same entry: 2, 4, 2 and 4.

    Reference
        Ours: a CountSketch (Charikar, Chen and Farach-Colton 2002) read as Rademacher observations.
    """

    count: Count = 256
    bucket_zero: bool = False
    seed: Seed = None

    name: ClassVar[str] = "hadamard_rados"
    compact: ClassVar[bool] = True
    needs_seeds: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.count < 2 or self.count & (self.count - 1):
            raise UsageError(f"the count of Hadamard rados must be a power of two, 2 or more, got {self.count}")

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The sketch, transposed: one row per feature, one column per bucket."""
        return (Block("sketch", (self.width, self.count)),)

    def cells(self, seeds: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The bucket of each row."""
        first = 0 if self.bucket_zero else 1
        # The high 32 bits as a fraction, times the number of buckets: uniform up to 2**-32 of it.
        cells = seeds >> np.uint64(32)
        cells *= np.uint64(self.count - first)
        cells >>= np.uint64(32)
        cells += np.uint64(first)
        return cells.view(np.int64)

    @staticmethod
    def signs(seeds: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The sign of each row, +1 or -1, from a bit that its bucket does not depend on."""
        return 1 - 2 * (seeds & np.uint64(1)).view(np.int64)

    def headline(self, values: Mapping[str, NDArray[np.float64]], noise_std: Mapping[str, float]) -> Headline:
        """Bucket 0 of the sketch is the mean operator."""
        return Headline("mean operator (bucket 0 of the sketch)", values["sketch"][:, 0], noise_std["sketch"])

    def partial(self, rows: Rows) -> IntVector:
        """One scatter-add per row, on whole numbers."""
        seeds = _seeds(rows)
        sketch = scatter(rows.features, self.signs(seeds), self.cells(seeds), self.count)
        sketch[:, 0] += sums(rows.features, rows.y.astype(np.int64))
        return sketch.ravel()

    def of_table(
        self, table: CompactTable, y: Labels, seeds: NDArray[np.uint64], lattice: Lattice
    ) -> IntVector | None:
        """One loop from numbers to sums, where all columns are numbers."""
        sketch = table.sketch(lattice, y, seeds, self.count, 0 if self.bucket_zero else 1)
        return None if sketch is None else sketch.ravel()

    def sensitivity(self, relation: Relation) -> Sensitivity:
        """See the class."""
        root = math.sqrt(self.width)
        if self.bucket_zero:
            match relation:
                case Relation.ADD_REMOVE:
                    return Sensitivity(2 * root, 2.0)
                case Relation.REPLACE_ONE:
                    return Sensitivity(4 * root, 4.0)
                case Relation.LABEL_FLIP:
                    return Sensitivity(2 * root, 2.0)
                case Relation.FEATURE_FLIP:
                    return Sensitivity(4.0, 4.0)
        match relation:
            case Relation.ADD_REMOVE:
                return Sensitivity(2 * root, math.sqrt(2.0))
            case Relation.REPLACE_ONE:
                return Sensitivity(4 * root, 2 * math.sqrt(2.0))
            case Relation.LABEL_FLIP:
                return Sensitivity(2 * root, 2.0)
            case Relation.FEATURE_FLIP:
                return Sensitivity(4.0, 2 * math.sqrt(2.0))

    def largest_per_row(self, lattice: Lattice) -> int:
        """One coordinate of one row, twice where bucket 0 is in use."""
        return 1 << (lattice.bits + 1)


def walsh_hadamard(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """H @ matrix for the Sylvester Hadamard matrix H of the row count (a power of two), in O(N log N).

    >>> walsh_hadamard(np.eye(4)).tolist()
    [[1.0, 1.0, 1.0, 1.0], [1.0, -1.0, 1.0, -1.0], [1.0, 1.0, -1.0, -1.0], [1.0, -1.0, -1.0, 1.0]]
    """
    count = len(matrix)
    out = matrix.astype(np.float64, copy=True)
    half = 1
    while half < count:
        pairs = out.reshape(count // (2 * half), 2, half, -1)
        low = pairs[:, 0] + pairs[:, 1]
        pairs[:, 1] = pairs[:, 0] - pairs[:, 1]
        pairs[:, 0] = low
        half *= 2
    return out


def rados_from_sketch(sketch: NDArray[np.float64]) -> NDArray[np.float64]:
    """All N rados ``1/2 H B'``, one per row, from the stored (transposed) sketch."""
    return 0.5 * walsh_hadamard(sketch.T)
