"""Sums over people instead of rows: each unit counts as a bounded number of rows, however many it owns.

A unit (a patient, a client) with n rows has each of them weighted by at most k / n, so that all its rows are used and
together count as k rows. Weights are whole numbers in steps of 2^-WEIGHT_BITS, sums are exact, and the last step
alone rounds: the same bits for any partitioning.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from daskrado.errors import UsageError
from daskrado.privacy.mechanisms import Target as Protected
from daskrado.privacy.protect import Protect
from daskrado.privacy.relations import Relation, Sensitivity
from daskrado.statistics.base import Additive, Block, Groups, Headline, IntVector, Rows, Statistic
from daskrado.table.encoded_table import Labels
from daskrado.table.label import Target
from daskrado.table.lattice import Lattice

WEIGHT_BITS = 14
_HALF = 24  # bits of the lower half of a sum, which has two so that it never overflows
_LOWER = (1 << _HALF) - 1
_UP = 1 + 2.0**-40


def unit_weights(owned: NDArray[np.int64], bound: int | NDArray[np.int64]) -> NDArray[np.int32]:
    """The weight of a row whose unit owns so many: floor(2^WEIGHT_BITS min(1, bound / owned)); 0 without a unit.

    >>> unit_weights(np.array([0, 1, 2, 3]), 1).tolist(), unit_weights(np.array([3, 40]), 2).tolist()
    ([0, 16384, 8192, 5461], [10922, 819])
    """
    whole = 1 << WEIGHT_BITS
    spread = (whole * np.minimum(bound, 1 << 20)) // np.maximum(owned, 1)
    return np.where(owned > 0, np.minimum(spread, whole), 0).astype(np.int32)


def _by_weight(rows: Rows) -> Iterator[tuple[int, Rows]]:
    """Each weight above 0 with its rows, which have no place of their own where there are several weights."""
    assert rows.weights is not None
    counts = np.bincount(rows.weights)
    found = np.flatnonzero(counts).tolist()
    order, rows = np.argsort(rows.weights, kind="stable"), replace(rows, weights=None)
    rows, stop = rows if len(found) == 1 else rows.take(order), 0
    for weight in found:
        start, stop = stop, stop + int(counts[weight])
        if weight:
            yield weight, rows if len(found) == 1 else rows.take(slice(start, stop))


def class_weighted(weights: NDArray[np.uint16] | None, y: Labels, pair: tuple[int, int]) -> NDArray[np.uint16]:
    """Weights of rows, full ones where there are none, times those of the negative and the positive label.

    >>> labels = np.array([-1, 1, 0], dtype=np.int8)
    >>> class_weighted(None, labels, (4096, 16384)).tolist()
    [4096, 16384, 16384]
    >>> class_weighted(np.array([8192, 8192, 0], dtype=np.uint16), labels, (4096, 16384)).tolist()
    [2048, 8192, 0]
    """
    whole = 1 << WEIGHT_BITS
    own = np.where(y == 0, whole, np.where(y > 0, pair[1], pair[0])).astype(np.int64)
    given = np.full(len(y), whole, dtype=np.int64) if weights is None else weights.astype(np.int64)
    return np.asarray((own * given) >> WEIGHT_BITS).astype(np.uint16)


@dataclass(frozen=True)
class _OfInner(Additive):
    """A sum made from another one: what it is called and what it reads are that one's."""

    inner: Additive

    @property
    def name(self) -> str:  # type: ignore[override]
        """That of the statistic inside."""
        return self.inner.name

    @property
    def needs_seeds(self) -> bool:  # type: ignore[override]
        return self.inner.needs_seeds

    @property
    def compact(self) -> bool:  # type: ignore[override]
        return self.inner.compact

    @property
    def secret(self) -> bool:  # type: ignore[override]
        return self.inner.secret

    @property
    def targets(self) -> tuple[Target, ...]:  # type: ignore[override]
        return self.inner.targets

    @property
    def label_use(self) -> Literal["required", "optional", "none"]:
        return self.inner.label_use

    @property
    def grouped_by(self) -> Groups | None:
        return self.inner.grouped_by


@dataclass(frozen=True)
class WeightedSum(_OfInner):
    """The weighted sum of a vector, in flight: 2^WEIGHT_BITS times it.

    Whole numbers are held as two halves that add up without overflow; a vector of floats is as it is.
    """

    @property
    def size(self) -> int:
        return 2 * self.inner.size

    def zero(self) -> NDArray[Any]:
        return np.zeros(self.size, dtype=self.inner.zero().dtype)

    @property
    def maxima(self) -> int:  # type: ignore[override]
        """Those of the statistic, whose rows all count in full: they come first, in the upper half."""
        return self.inner.maxima

    def thin(self, rows: Rows) -> Rows:
        return self.inner.thin(rows)

    def partial(self, rows: Rows) -> NDArray[Any]:
        """Exact for whole numbers: a half of a block's sum times a weight stays below 2^62."""
        assert rows.weights is not None
        high, low = self.zero().reshape(2, -1)
        most = self.maxima
        whole = self.inner.weighted(rows, 1 << WEIGHT_BITS)
        each = ((weight, self.inner.partial(some)) for weight, some in _by_weight(rows))
        for weight, found in each if whole is None else ((1, whole),):
            high[:most], found[:most] = np.maximum(high[:most], found[:most]), 0
            if high.dtype != np.int64:
                low += weight * found
                continue
            part = (found & _LOWER) * weight
            high += (found >> _HALF) * weight + (part >> _HALF)
            low += part & _LOWER
        return np.concatenate([high, low])

    def value(self, vector: NDArray[Any]) -> NDArray[np.float64]:
        """The weighted sum, rounded once to the nearest number."""
        high, low = vector.reshape(2, -1)
        if high.dtype != np.int64:
            return np.asarray(np.ldexp(low, -WEIGHT_BITS))
        whole = (high + (low >> _HALF)).astype(np.float64)
        found = np.ldexp(whole, _HALF - WEIGHT_BITS) + np.ldexp((low & _LOWER) * 1.0, -WEIGHT_BITS)
        found[: self.maxima] = vector[: self.maxima]
        return np.asarray(found)


@dataclass(frozen=True)
class Bounded(_OfInner, Statistic):
    """A statistic of units that count as at most ``bound`` rows each, on rows of a lattice of ``bits``.

    Sensitivity
        A unit with n rows adds the sum of w c(row) with n w <= bound and c(row) what a row adds: a vector in bound
        times the convex hull of 0 and all c(row). Adding or removing the unit moves the sum by at most bound times
        what a row does. Replacing all its rows moves it by the difference of two points of that hull: bound times
        the larger of what adding and what replacing a row does. Flipping any of its labels, or its feature, moves it
        by at most bound times what one flip does. The last step rounds each entry down, which moves it by less than
        one integer step: the root of the sum of their squares is added in L2, their sum in L1. Counts, whose step
        would be a whole row, keep bits of the weights: all of them, and then nothing is rounded, or so many that a
        step is 2^-WEIGHT_BITS of a row.
    """

    inner: Statistic
    bound: int
    bits: int

    def __repr__(self) -> str:
        return f"<{self.inner!r} of units that count as {self.bound} row(s)>"

    @property
    def default_bits(self) -> int:  # type: ignore[override]
        return self.inner.default_bits

    @property
    def plain(self) -> Statistic:
        return self.inner

    @property
    def blocks(self) -> tuple[Block, ...]:
        """Those of the statistic; counts on a finer grid."""
        return tuple(replace(block, fine=block.fine + _kept(block)) for block in self.inner.blocks)

    def finished(self, vector: IntVector) -> IntVector:
        """The sum on the grid of :attr:`blocks`, rounded down."""
        high, low = vector.reshape(2, -1)
        high, low = high + (low >> _HALF), low & _LOWER
        kept = np.concatenate([np.full(block.size, _kept(block)) for block in self.inner.blocks])
        dropped = WEIGHT_BITS - kept
        return np.asarray((high << (_HALF - dropped)) + (low >> dropped))

    def partial(self, rows: Rows) -> IntVector:
        """The sum over one block alone, finished; sums over a lake are finished once, at the end."""
        return self.finished(in_flight(self).partial(rows))

    def sensitivity(self, relation: Relation) -> Sensitivity:
        """See the class."""
        far = self.inner.sensitivity(relation)
        if relation is Relation.REPLACE_ONE:
            alone = self.inner.sensitivity(Relation.ADD_REMOVE)
            far = Sensitivity(max(far.l1, alone.l1), max(far.l2, alone.l2), far.public)
        far = far.times(self.bound)
        lattice = Lattice(1.0, self.bits)
        pairs = zip(self.blocks, self.inner.blocks, strict=True)
        rounded = [fine for fine, block in pairs if _kept(block) < WEIGHT_BITS and fine.name not in far.public]
        l1 = sum(block.size * block.normalised_step(lattice) for block in rounded)
        l2 = math.sqrt(sum(block.size * block.normalised_step(lattice) ** 2 for block in rounded))
        return Sensitivity((far.l1 + l1) * _UP, (far.l2 + l2) * _UP, far.public)

    def largest_per_row(self, lattice: Lattice) -> int:
        """A row of full weight."""
        return self.inner.largest_per_row(lattice) << max(map(_kept, self.inner.blocks))

    def check_rows(self, rows: int) -> None:
        self.inner.check_rows(rows)

    def headline(self, values: Mapping[str, NDArray[np.float64]], noise_std: Mapping[str, float]) -> Headline:
        return self.inner.headline(values, noise_std)


def _kept(block: Block) -> int:
    """Bits of the weights that a block's sums keep: counts have steps of 2^-WEIGHT_BITS of a row, or finer."""
    return max(0, WEIGHT_BITS - block.fine) if block.power == 0 else 0


def bounded(statistic: Statistic, bound: int | None, lattice: Lattice) -> Statistic:
    """The statistic of units that count as ``bound`` rows at most.

    As it is where no bound is enforced, where it is never released and its weighted sum need not be whole, or where
    every row has noise of its own: then rows that a unit may not add are left out.
    """
    if bound is None or isinstance(statistic, Bounded) or not statistic.released or statistic.noises_rows:
        return statistic
    if statistic.needs_place:
        raise UsageError(f"{statistic.name} treats rows one by one, by their places: it cannot count units; use rows")
    return Bounded(statistic.width, statistic, bound, lattice.bits)


def target_of(statistic: Statistic, lattice: Lattice, protect: Protect) -> Protected:
    """What is to be protected in a release of a statistic: sums over units where they are bounded, else over rows."""
    if protect.bound is None:
        return Protected(statistic, lattice, protect.relation, protect.rows_per_unit)
    return Protected(bounded(statistic, protect.bound, lattice), lattice, protect.relation)


def in_flight(statistic: Additive) -> WeightedSum:
    """What workers sum for a statistic, or for a vector that is never released."""
    return WeightedSum(statistic.width, statistic.inner if isinstance(statistic, Bounded) else statistic)


def finished(statistic: Additive, vector: NDArray[Any]) -> NDArray[Any]:
    """A sum that workers made, in the units of what was asked for."""
    if isinstance(statistic, Bounded):
        return statistic.finished(vector)
    return WeightedSum(statistic.width, statistic).value(vector)
