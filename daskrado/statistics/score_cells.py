"""Rows by score bin, label and group: all that error, ROC, calibration and their parts by group are computed from."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from daskrado.errors import UsageError
from daskrado.privacy.relations import Relation, Sensitivity
from daskrado.statistics.base import Block, Groups, IntVector, Rows, Statistic
from daskrado.statistics.universe import Axis
from daskrado.table.domain import CategoricalColumn, Domain, NumericColumn
from daskrado.table.label import Target
from daskrado.table.label_sides import LABEL_BITS
from daskrado.table.lattice import Lattice
from daskrado.table.products import dots

FINE = 16  # bits: noise on counts is drawn on so fine a grid that it counts as normal
_WEIGHT_BITS = 26  # with lattice bits <= 20 every partial sum of a margin is a whole number below 2^53
_LOOSEST = 64  # times: how far the sum of a row's parts may exceed the reach


@dataclass(frozen=True)
class Score:
    """A linear model as whole numbers, and the edges of its score bins in the same units.

    The margin of a row is sum(votes q) / ``whole``, in parts of ``reach``. Bin j holds the margins from edge j - 1 up
    to, but not at, edge j. With ``label`` so much is added for each step of a label that is a number, and margins
    stay within its bounds: the score is a residual, ``folded`` where only its size counts.
    """

    votes: tuple[int, ...]
    edges: tuple[int, ...]
    label: int = 0
    folded: bool = False

    @classmethod
    def of(
        cls,
        weights: NDArray[np.float64],
        lattice: Lattice,
        reach: float,
        edges: NDArray[np.float64],
        *,
        label: float = 0.0,
        folded: bool = False,
    ) -> Score:
        """A model whose margins lie within ``reach``; ``edges`` are margins that rise; ``label`` is of one step."""
        unit = math.ldexp(1.0, _WEIGHT_BITS) / reach
        votes = np.trunc(np.asarray(weights) * lattice.norm_bound * unit)
        whole = np.ceil(edges * unit * 2.0**lattice.bits)
        step = round(label * unit * 2.0**lattice.bits)
        return cls(tuple(map(int, votes.tolist())), tuple(map(int, whole.tolist())), step, folded)

    def scores(self, rows: Rows) -> NDArray[np.float64]:
        """What is counted of each row: whole numbers below 2^53."""
        margins = dots(rows.features, np.array(self.votes, dtype=np.float64))
        if self.label:
            most = abs(self.label) << LABEL_BITS
            margins = np.clip(margins, -most, most) + self.label * rows.y.astype(np.float64)
        return np.abs(margins) if self.folded else margins


def reach_of(domain: Domain, weights: NDArray[np.float64]) -> float:
    """A bound on |margin| from public facts: by the norms, or by the largest weight of each column.

    >>> label = {"column": "sick", "positive": True, "negative": False}
    >>> sex = {"kind": "categorical", "values": ["f", "m"], "other": False}
    >>> reach_of(Domain(label=label, columns={"sex": sex}, norm_bound=2.0), np.array([3.0, -4.0, 1.0]))
    5.0
    """
    length = float(np.linalg.norm(weights)) * domain.norm_bound
    if domain.kernel is not None:
        return length or 1.0
    total, at = 0.0, 0
    for column in domain.columns.values():
        one_hot = isinstance(column, CategoricalColumn) or (isinstance(column, NumericColumn) and column.bins)
        sizes = [column.size if one_hot else 1, *[1] * column.flags]
        for size in sizes:
            total += float(np.abs(weights[at : at + size]).max())
            at += size
    if domain.intercept:
        total += abs(float(weights[at])) * domain.intercept
    return max(min(length, total), length / _LOOSEST) or 1.0


@dataclass(frozen=True)
class ScoreCells(Statistic):
    """``cells``: for each model, rows by group, label and bin of the model's margin, every group column by itself.

    Groups are the values of each of ``axes``, then those of the column ``outside`` the features with a last one for
    all other values; without any, all rows are one group. Without ``labels`` rows are counted by group and bin alone.
    Margins are exact whole numbers, so a row is in the same cell in any partitioning; a row without a usable label is
    in none.

    Sensitivity
        With K models and g group columns (at least 1) a row lies in one cell of each model and column. Adding or
        removing it moves K g counts by 1: (K g, sqrt(K g)). Replacing it takes 1 from as many and gives 1 to as many:
        (2 K g, sqrt(2 K g)). The edges are public.

    Reference
        Dwork, McSherry, Nissim and Smith (2006), histograms of disjoint cells.
    """

    scores: tuple[Score, ...]
    bits: int
    axes: tuple[Axis, ...] = ()
    outside: Groups | None = None
    labels: bool = True

    name: ClassVar[str] = "score_cells"
    compact: ClassVar[bool] = True

    @property
    def targets(self) -> tuple[Target, ...]:  # type: ignore[override]
        return ("sides",) if self.labels else ("sides", "number", "classes")

    def __post_init__(self) -> None:
        if not self.scores or any(len(score.votes) != self.width for score in self.scores):
            raise UsageError(f"each model needs {self.width} weights")
        for score in self.scores:
            if list(score.edges) != sorted(set(score.edges)):
                raise UsageError("edges of score bins must rise, each once")

    @property
    def grouped_by(self) -> Groups | None:
        """The group column that is no feature."""
        return self.outside

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many groups each group column has; one where there is none."""
        found = [len(axis.values) for axis in self.axes]
        found += [] if self.outside is None else [len(self.outside.values) + 1]
        return tuple(found) or (1,)

    @property
    def blocks(self) -> tuple[Block, ...]:
        """One array of groups, labels (negative, positive) and bins for each model."""
        sides = 2 if self.labels else 1
        return tuple(
            Block(f"cells {k}" if k else "cells", (sum(self.sizes), sides, len(score.edges) + 1), power=0, fine=FINE)
            for k, score in enumerate(self.scores)
        )

    def partial(self, rows: Rows) -> IntVector:
        """Count, in steps of 2^-FINE."""
        rows = rows.where(rows.y != 0)
        codes = self._codes(rows)
        side = (rows.y > 0).astype(np.int64) if self.labels else np.zeros(len(rows.y), dtype=np.int64)
        parts: list[IntVector] = []
        for score, block in zip(self.scores, self.blocks, strict=True):
            _, sides, bins = block.shape
            edges = np.array(score.edges, dtype=np.float64)
            cell = side * bins + np.searchsorted(edges, score.scores(rows), side="right")
            parts += self._counted(codes, cell, sides * bins)
        return np.concatenate(parts).astype(np.int64) << FINE

    def _codes(self, rows: Rows) -> list[IntVector]:
        """The group of each row, column by column."""
        codes = [axis.codes(rows.features, rows.y) for axis in self.axes]
        if self.outside is not None:
            known = np.full(len(rows.y), -1) if rows.groups is None else rows.groups
            codes.append(np.where(known < 0, len(self.outside.values), known).astype(np.int64))
        return codes or [np.zeros(len(rows.y), dtype=np.int64)]

    def _counted(self, codes: list[IntVector], cell: IntVector, cells: int) -> Iterator[IntVector]:
        """Rows by group and cell, column by column."""
        for size, group in zip(self.sizes, codes, strict=True):
            inside = group >= 0
            yield np.bincount((group * cells + cell)[inside], minlength=size * cells)

    def sensitivity(self, relation: Relation) -> Sensitivity:
        """See the class."""
        return self._moved(relation, len(self.scores))

    def _moved(self, relation: Relation, models: int) -> Sensitivity:
        if relation not in (Relation.ADD_REMOVE, Relation.REPLACE_ONE):
            self.unsupported(relation)
        moved = models * len(self.sizes) * (1 if relation is Relation.ADD_REMOVE else 2)
        return Sensitivity(float(moved), math.sqrt(moved))

    def largest_per_row(self, lattice: Lattice) -> int:
        """A row counts once in a cell, shifted."""
        if lattice.bits != self.bits:
            raise UsageError(f"score cells were planned for {self.bits} lattice bits, not {lattice.bits}")
        return 1 << FINE
