"""Facts about the features alone, for learning where only the labels are secret: no label column is read."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from daskrado.privacy.relations import Relation, Sensitivity
from daskrado.statistics.base import Block, Groups, IntVector, Rows, Statistic
from daskrado.table.encoded_table import Labels
from daskrado.table.lattice import Lattice
from daskrado.table.products import Features, norms, scatter


@dataclass(frozen=True)
class LabelFree(Statistic):
    """A statistic of the features: public under a label flip, and never released under another relation."""

    released: ClassVar[bool] = False

    @property
    def label_use(self) -> Literal["required", "optional", "none"]:
        """The label column is not read."""
        return "none"

    def sensitivity(self, relation: Relation) -> Sensitivity:
        """A label flip does not move it."""
        if relation is not Relation.LABEL_FLIP:
            self.unsupported(relation)
        return Sensitivity(0.0, 0.0, frozenset(block.name for block in self.blocks))


@dataclass(frozen=True)
class FeatureFacts(LabelFree):
    """Largest norms, and for each group the ``sum`` of rows, their ``count`` and the sum of their ``squares``.

    ``largest`` holds max |x|_1 and max |x|_2^2 over rows in integer grid steps: merged by maximum, not by sum. They
    are exact bounds for the label mechanisms (see :class:`daskrado.statistics.label_means.LabelMeans`).

    Sensitivity
        Zero under a label flip, where features are public; no other relation is offered.

    Reference
        Patrini, Nielsen and Nock (2015), with the norms that its algorithm 2 needs.
    """

    groups: Groups | None = None
    squares: bool = False

    name: ClassVar[str] = "feature_facts"
    compact: ClassVar[bool] = True
    maxima: ClassVar[int] = 2

    @property
    def blocks(self) -> tuple[Block, ...]:
        """Largest norms, then sums by group."""
        count = 1 if self.groups is None else len(self.groups.values)
        largest, total = Block("largest", (2,), power=0), Block("sum", (count, self.width))
        parts = (largest, total, Block("count", (count,), power=0))
        return (*parts, Block("squares", (count,), power=2)) if self.squares else parts

    @property
    def grouped_by(self) -> Groups | None:
        """The bags or strata."""
        return self.groups

    def partial(self, rows: Rows) -> IntVector:
        """One block of rows; all numbers are whole and below 2**53."""
        lengths, squares = norms(rows.features)
        groups, count = np.zeros(len(rows.y), dtype=np.int32), 1
        if self.groups is not None:
            assert rows.groups is not None
            groups, count = rows.groups, len(self.groups.values)
        largest = np.array([lengths.max(initial=0), squares.max(initial=0)])
        parts = [largest, group_sums(rows.features, groups, count).ravel(), np.bincount(groups, minlength=count)]
        if self.squares:
            total = np.zeros(count, dtype=np.int64)
            np.add.at(total, groups, squares)
            parts.append(total)
        return np.concatenate(parts).astype(np.int64)

    def largest_per_row(self, lattice: Lattice) -> int:
        """One coordinate of one row, or its square where squares are summed."""
        return 1 << (2 * lattice.bits if self.squares else lattice.bits)


def group_sums(x: Features, groups: NDArray[np.integer], count: int, y: Labels | None = None) -> IntVector:
    """Exact sum of rows, or of labels times rows, by group, as int64 of shape (count, features); -1 is no group."""
    factors = np.ones(len(groups), dtype=np.int64) if y is None else y.astype(np.int64)
    return np.ascontiguousarray(scatter(x, factors, groups.astype(np.int64), count).T)


@dataclass(frozen=True)
class FeatureDigest(LabelFree):
    """A digest of all (record id, encoded row) pairs that no order and no partitioning changes.

    Four 64-bit words: the sum, modulo 2^64 each, of a 256-bit hash of every row. It tells an honest party that its
    features are those of the other party. It is no commitment against a party that chooses rows to collide, and no
    privacy guarantee rests on it.
    """

    name: ClassVar[str] = "feature_digest"
    needs_seeds: ClassVar[bool] = True

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The four words."""
        return (Block("words", (4,), power=0),)

    def partial(self, rows: Rows) -> IntVector:
        """Hash every row with the seed that its record id gives."""
        assert rows.seeds is not None
        content = np.ascontiguousarray(np.column_stack([rows.seeds.view(np.int64), rows.x.astype(np.int64)]))
        digests = b"".join(hashlib.blake2b(row, digest_size=32).digest() for row in content.astype("<i8"))
        words = np.frombuffer(digests, dtype="<i8").reshape(-1, 4)
        return np.asarray(words.sum(axis=0, dtype=np.int64))

    def largest_per_row(self, lattice: Lattice) -> int:
        """Sums wrap around on purpose: there is nothing to guard."""
        del lattice
        return 0


def digest_text(vector: IntVector, count: int, lattice: Lattice) -> str:
    """The digest of a whole lake as text, with its row count and grid."""
    head = f"{count}|{lattice.bits}|{lattice.norm_bound!r}|".encode()
    return hashlib.sha256(head + vector.astype("<i8").tobytes()).hexdigest()


def normalised_l2(square_steps: int, bits: int) -> float:
    """The square root of an integer square in grid steps, as a share of the norm bound, rounded up."""
    return math.nextafter(math.ldexp(math.sqrt(square_steps), -bits), math.inf)
