"""Rados of rows of several classes: one sketch from which the rados of each class against the rest follow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from daskrado.errors import UsageError
from daskrado.privacy.relations import Relation, Sensitivity
from daskrado.statistics.base import Block, Headline, IntVector, Rows
from daskrado.statistics.rados import HadamardRados, rados_from_sketch
from daskrado.table.compact_encoding import CompactTable
from daskrado.table.encoded_table import Labels
from daskrado.table.label import Target
from daskrado.table.lattice import Lattice
from daskrado.table.products import scatter


@dataclass(frozen=True)
class ClassRados(HadamardRados):
    """The buckets of :class:`HadamardRados`, which know nothing of labels, and M_k = sum of the x_i of each class k.

    Against the rest, class k has the mean operator 2 M_k - (sum of all M_j), and with that in bucket 0 its N rados.
    So one release holds the rados of all classes, with as much noise as for two.

    Sensitivity
        A row moves one bucket and one M_k by at most 1 each: sqrt(2) under add/remove. Replaced, it moves a bucket by
        at most 2 (the same one, at worst) and the M_k by at most 2 (within one class): 2 sqrt(2). A +-1 feature flip
        moves two entries by 2 each. A changed label is no flip: not offered.

    Reference
        Nock, Patrini and Friedman (2015), definition 1, for each class; one sketch for all of them is ours.

    >>> rados = ClassRados(1, 2, classes=3)  # two rados: a single bucket
    >>> rows = Rows(np.array([[3.0], [5.0]]), np.array([1, 3], dtype=np.int8), np.array([0, 1], dtype=np.uint64))
    >>> rados.partial(rows).tolist()  # M_1, M_2, M_3, and 3 - 5
    [3, 0, 5, -2]
    """

    classes: int = 3

    name: ClassVar[str] = "class_rados"
    targets: ClassVar[tuple[Target, ...]] = ("classes",)
    hidden: ClassVar[frozenset[str]] = frozenset({"width", "classes", "bucket_zero"})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bucket_zero:
            raise UsageError("class_rados keep bucket 0 for the classes: drop bucket_zero")

    @property
    def blocks(self) -> tuple[Block, ...]:
        """One row per feature; a column for each class, then for each bucket but 0."""
        return (Block("sketch", (self.width, self.classes + self.count - 1)),)

    def partial(self, rows: Rows) -> IntVector:
        """Two scatter-adds, on whole numbers; a row without a class is in no sum of one."""
        assert rows.seeds is not None
        ones = np.ones(len(rows.y), dtype=np.int64)
        means = scatter(rows.features, ones, rows.y.astype(np.int64) - 1, self.classes)
        buckets = scatter(rows.features, self.signs(rows.seeds), self.cells(rows.seeds), self.count)
        return np.concatenate([means, buckets[:, 1:]], axis=1).ravel()

    def of_table(
        self, table: CompactTable, y: Labels, seeds: NDArray[np.uint64], lattice: Lattice
    ) -> IntVector | None:
        """No short way."""
        del table, y, seeds, lattice
        return None

    def sensitivity(self, relation: Relation) -> Sensitivity:
        """See the class."""
        if relation is Relation.LABEL_FLIP:
            self.unsupported(relation)
        return super().sensitivity(relation)

    def headline(self, values: Mapping[str, NDArray[np.float64]], noise_std: Mapping[str, float]) -> Headline:
        """The sums of the classes."""
        sums = values["sketch"][:, : self.classes].T.ravel()
        return Headline("sum of the rows of each class", sums, noise_std["sketch"])

    def each(self, sketch: NDArray[np.float64]) -> Iterator[NDArray[np.float64]]:
        """The rados of each class against the rest, one per row: post-processing."""
        means, buckets = sketch[:, : self.classes], sketch[:, self.classes :]
        for own in means.T:
            yield rados_from_sketch(np.column_stack([2 * own - means.sum(axis=1), buckets]))
