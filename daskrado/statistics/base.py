"""What every statistic is: a fixed-shape integer vector, summed exactly over rows, with a derived sensitivity."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NoReturn

import numpy as np
from numpy.typing import NDArray

from daskrado.errors import UsageError
from daskrado.privacy.relations import Relation, Sensitivity
from daskrado.table.compact_encoding import CompactTable
from daskrado.table.encoded_table import Labels
from daskrado.table.label import Scalar, Target
from daskrado.table.lattice import INT64_ROOM, LEAST_BITS, Lattice
from daskrado.table.products import Features, dense, take

IntVector = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a block of rows lies in the lake, and the key from which its randomness is drawn."""

    key: bytes
    first: int
    total: int

    def __repr__(self) -> str:
        return "<Place>"


@dataclass(frozen=True, slots=True)
class Rows:
    """A block of rows on the lattice: features, labels +1/-1 or numbers in steps, and one public-law seed per row.

    ``features`` are compact, or dense: whole numbers as float64. A label that is missing or was not asked for is 0. A
    row that counts as nothing, because it holds a value that the Domain does not allow, is 0 in all features and in
    its label; it is still counted where the number of rows is public. ``groups`` holds each row's place in the
    statistic's groups, ``first`` is the block's place in the lake, ``weights`` what rows count for where units may
    own several (see ``statistics.bounded``).
    """

    features: Features
    y: Labels
    seeds: NDArray[np.uint64] | None = None
    groups: NDArray[np.int32] | None = None
    place: Place | None = None
    first: int = 0
    weights: NDArray[np.uint16] | None = None

    @property
    def x(self) -> NDArray[np.float64]:
        """The features as dense rows, made anew where they are compact."""
        return dense(self.features)

    def dense(self, start: int, stop: int) -> Rows:
        """Some rows that follow each other, as a block of their own with dense features."""
        rows = self.take(slice(start, stop))
        place = None if self.place is None else replace(self.place, first=self.place.first + start)
        return replace(rows, features=dense(rows.features), place=place, first=self.first + start)

    def take(self, index: Any) -> Rows:
        """Some of the rows, by a mask, positions or a slice; without a place, which only whole blocks have."""
        seeds = None if self.seeds is None else self.seeds[index]
        groups = None if self.groups is None else self.groups[index]
        weights = None if self.weights is None else self.weights[index]
        return Rows(take(self.features, index), self.y[index], seeds, groups, weights=weights)

    def where(self, mask: NDArray[np.bool_]) -> Rows:
        """Some of the rows, which have no place of their own any more."""
        return self if mask.all() else self.take(mask)


@dataclass(frozen=True, slots=True)
class Groups:
    """A public column that cuts the rows into groups (bags, strata), with the values that it may hold.

    A value that is not listed is no group: the row is left out, or with ``optional`` it has -1. A run that protects
    nobody refuses it, except for a null where groups are optional.
    """

    column: str
    values: tuple[Scalar, ...]
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Block:
    """A named part of a statistic's vector.

    One integer step of the block is worth ``2**-fine (norm_bound * 2**-bits)**power`` in the units of the features.
    In the normalised joint vector, on which sensitivity is stated, it is worth ``weight 2**(-fine - bits * power)``.
    A weight below 1 buys the other blocks less noise at the price of more on this one. ``fine`` is the number of bits
    by which sums are shifted, so that noise is drawn on a finer grid than that of the rows.
    """

    name: str
    shape: tuple[int, ...]
    power: int = 1
    weight: float = 1.0
    fine: int = 0

    @property
    def size(self) -> int:
        """Number of entries."""
        return math.prod(self.shape)

    def step(self, lattice: Lattice) -> float:
        """Worth of one integer step in the units of the features."""
        return math.ldexp(lattice.step**self.power, -self.fine)

    def normalised_step(self, lattice: Lattice) -> float:
        """Worth of one integer step in the normalised joint vector."""
        return self.weight * math.ldexp(1.0, -lattice.bits * self.power - self.fine)


@dataclass(frozen=True)
class Additive(ABC):
    """Any vector that is a sum over rows.

    ``compact``: whether it takes features through ``table.products``, compact or dense; others get blocks small
    enough to be made dense.
    """

    width: int

    name: ClassVar[str]
    needs_seeds: ClassVar[bool] = False
    needs_place: ClassVar[bool] = False  # memberships or row noise by position in the lake: the row count is public
    noises_rows: ClassVar[bool] = False  # noise is drawn for each row from the key, which must be secret and fresh
    compact: ClassVar[bool] = False
    secret: ClassVar[bool] = False  # whether its own parameters were computed from rows
    targets: ClassVar[tuple[Target, ...]] = ("sides",)  # labels for which it is meant, and its sensitivity derived
    maxima: ClassVar[int] = 0  # so many entries, the first ones, are maxima over rows instead of sums

    @property
    def label_use(self) -> Literal["required", "optional", "none"]:
        """Whether rows need labels, may lack them, or are read without looking at that column."""
        return "required"

    @property
    def grouped_by(self) -> Groups | None:
        """The column that groups the rows, if the statistic has one."""
        return None

    @property
    @abstractmethod
    def size(self) -> int:
        """Length of the vector."""

    @abstractmethod
    def zero(self) -> NDArray[Any]:
        """The identity of :meth:`merge`."""

    @abstractmethod
    def partial(self, rows: Rows) -> NDArray[Any]:
        """The sum over one block of rows: a pure function of the rows and their seeds."""

    def weighted(self, rows: Rows, heaviest: int) -> NDArray[Any] | None:
        """The exact sum of what each row adds times its weight, of at most ``heaviest``, if it can be had at once."""
        del rows, heaviest
        return None

    def thin(self, rows: Rows) -> Rows:
        """The rows that take part, where not all do: by their place in the lake alone."""
        return rows

    def of_table(
        self, table: CompactTable, y: Labels, seeds: NDArray[np.uint64], lattice: Lattice
    ) -> NDArray[Any] | None:
        """The same sum over a whole table straight from its columns, where that is faster than block by block."""
        del table, y, seeds, lattice
        return None

    def check_rows(self, rows: int) -> None:
        """Refuse a lake of this many rows, where the definition of the sum needs another number."""
        del rows

    def merge(self, a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
        """Sum of two partial results, or their maximum in the first entries; exact for integers."""
        total = np.asarray(a + b)
        if most := self.maxima:
            total[:most] = np.maximum(a[:most], b[:most])
        return total


@dataclass(frozen=True)
class Statistic(Additive):
    """A sum over rows. ``merge`` is integer addition, so any partitioning and any order give the same bits."""

    default_bits: ClassVar[int] = 20
    released: ClassVar[bool] = True  # False where it is only ever an exact step of a computation
    hidden: ClassVar[frozenset[str]] = frozenset({"width"})  # fields that follow from the Domain: no file has them

    @property
    @abstractmethod
    def blocks(self) -> tuple[Block, ...]:
        """The named parts of the vector, in order."""

    @abstractmethod
    def sensitivity(self, relation: Relation) -> Sensitivity:
        """How far one neighbouring change moves the normalised joint vector."""

    @abstractmethod
    def largest_per_row(self, lattice: Lattice) -> int:
        """The most that one row can add to any single entry, for the overflow guard."""

    def bits_for(self, rows: int) -> int:
        """The finest grid, up to ``default_bits``, on which sums over so many rows fit in 64 bits: a public rule."""
        bits = self.default_bits
        while bits > LEAST_BITS and rows * self.largest_per_row(Lattice(1.0, bits)) > INT64_ROOM:
            bits -= 1
        return bits

    @property
    def plain(self) -> Statistic:
        """The statistic of rows that this one is, or that it bounds for units."""
        return self

    @property
    def size(self) -> int:
        """Length of the vector."""
        return sum(block.size for block in self.blocks)

    def zero(self) -> IntVector:
        """The identity of :meth:`merge`."""
        return np.zeros(self.size, dtype=np.int64)

    def split(self, vector: IntVector) -> dict[str, IntVector]:
        """The vector cut into its blocks."""
        parts, at = {}, 0
        for block in self.blocks:
            parts[block.name] = vector[at : at + block.size].reshape(block.shape)
            at += block.size
        return parts

    def headline(self, values: Mapping[str, NDArray[np.float64]], noise_std: Mapping[str, float]) -> Headline:
        """What a report shows of a release of this statistic: the mean operator, or else the first block."""
        first = "mean" if "mean" in values else self.blocks[0].name
        what = "mean operator" if first == "mean" else first.replace("_", " ")
        return Headline(what, np.asarray(values[first]).ravel(), noise_std[first])

    def unsupported(self, relation: Relation) -> NoReturn:
        """Refuse a relation for which no sensitivity has been derived."""
        raise UsageError(f"statistic {self.name} has no derived sensitivity under {relation}")


@dataclass(frozen=True)
class Headline:
    """Released values that a report sets against the noise on them."""

    what: str
    values: NDArray[np.float64]
    std: float


class Summary:
    """An un-noised aggregate of private rows. It shows its shape only and refuses to be written."""

    __slots__ = ("lattice", "rows", "statistic", "vector")

    def __init__(self, statistic: Additive, lattice: Lattice, vector: NDArray[Any], rows: int) -> None:
        self.statistic = statistic
        self.lattice = lattice
        self.vector = vector
        self.rows = rows

    def __repr__(self) -> str:
        return f"<Summary of {self.statistic.name}: {self.statistic.size} private numbers>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Summary holds un-noised private sums and is never written or sent; release it first")


def integers(values: NDArray[np.float64]) -> IntVector:
    """Whole float64 numbers below 2**53 as a flat int64 vector, exactly."""
    return values.astype(np.int64).ravel()
