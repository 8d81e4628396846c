"""What a task does with one partition: encode its rows block by block, keep them if told to, and sum."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskrado.errors import DataError
from daskrado.lake.seeds import position_seeds, record_seeds
from daskrado.statistics.base import Additive, Place, Rows
from daskrado.table.domain import Domain
from daskrado.table.encoded_table import EncodedTable, Problem
from daskrado.table.encoding import encode_groups, encode_table, needed_columns
from daskrado.table.inner_loops import compile_loops
from daskrado.table.lattice import Lattice

CHUNK_ROWS = 32_768  # encoded rows held at once by a task
FAN_IN = 8


@dataclass(frozen=True)
class Share:
    """Part ``index`` of ``count``: rows are dealt out by their seeds, never by their content."""

    index: int
    count: int

    def of(self, rows: Rows) -> Rows:
        """The rows of this part."""
        assert rows.seeds is not None
        mine = rows.seeds % np.uint64(self.count) == np.uint64(self.index)
        return rows.where(mine)


@dataclass(frozen=True)
class Job:
    """Everything public that a task needs; the signature key is looked up by ``ticket``."""

    statistic: Additive
    domain: Domain
    lattice: Lattice
    ticket: str
    by_record: bool
    seeded: bool
    share: Share | None = None
    rows: int | None = None  # of the lake, for sums that go by position
    compiled: bool = False  # the lake is large enough to repay compiling the inner loops
    strict: bool = False  # refuse unusable values: only where nobody is protected; else their rows count as nothing

    def partial(self, rows: Rows) -> NDArray[Any]:
        """The statistic of a block, or of its rows in the share."""
        return self.statistic.partial(rows if self.share is None else self.share.of(rows))


@dataclass(frozen=True)
class Partial:
    """A partial sum, or why its partition cannot be used. Problems travel as values: they need no retry."""

    vector: NDArray[Any]
    rows: int
    problems: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<Partial of {len(self.vector)} private numbers>"


class RowStore:
    """Encoded rows kept in memory from one pass to the next, up to ``limit`` bytes. Never pickled with content."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._kept: dict[str, list[Rows]] = {}

    def __repr__(self) -> str:
        return f"<RowStore of {len(self._kept)} partitions>"

    def __reduce__(self) -> Any:
        return RowStore, (self.limit,)

    def get(self, identity: str) -> list[Rows] | None:
        """The blocks of a partition, if they were kept."""
        return self._kept.get(identity)

    def keep(self, identity: str, found: list[Rows]) -> None:
        """Keep a partition's blocks; :meth:`room` was asked before they were copied."""
        if identity not in self._kept:
            self._kept[identity] = found

    def room(self, size: int) -> bool:
        """Set ``size`` bytes aside if they fit."""
        if self.used + size > self.limit:
            return False
        self.used += size
        return True


def merge_all(job: Job, parts: list[Partial]) -> Partial:
    """The sum of some partials, from left to right."""
    total = Partial(job.statistic.zero(), 0)
    for part in parts:
        total = merge(job.statistic, total, part)
    return total


def merge_tree(job: Job, parts: Iterable[Partial]) -> Partial:
    """Groups of FAN_IN as they come, groups of such groups, and so on: few are held, and floats always sum alike."""
    levels: list[list[Partial]] = [[]]

    def add(part: Partial, depth: int) -> None:
        if depth == len(levels):
            levels.append([])
        levels[depth].append(part)
        if len(levels[depth]) == FAN_IN:
            group, levels[depth] = levels[depth], []
            add(merge_all(job, group), depth + 1)

    for part in parts:
        add(part, 0)
    carry: list[Partial] = []
    for level in levels:
        rest = level + carry
        carry = [merge_all(job, rest)] if rest else []
    return carry[0]


def merge(statistic: Additive, a: Partial, b: Partial) -> Partial:
    """Exact sum of two partials; problems are kept in a fixed order."""
    return Partial(statistic.merge(a.vector, b.vector), a.rows + b.rows, tuple(sorted({*a.problems, *b.problems})))


def partition_partial(
    job: Job, partition: Any, material: bytes, content: Any, first: int, store: RowStore
) -> Partial:
    """The statistic of one partition, ``first`` rows into the lake: a pure function of its rows and the key."""
    if job.compiled:
        compile_loops()
    use, groups = job.statistic.label_use, job.statistic.grouped_by
    on_grid = job.statistic.on_grid
    form = f"{partition.identity} {use} {on_grid} {groups and groups.column}"  # rows in another form are other rows
    kept = store.get(form)
    if kept is not None:
        vector = job.statistic.zero()
        for block in kept:
            vector = job.statistic.merge(vector, job.partial(block))
        return Partial(vector, partition.rows)
    columns = needed_columns(job.domain, label=use != "none", ids=job.by_record)
    if groups is not None and groups.column not in columns:
        columns.append(groups.column)
    vector, rows = job.statistic.zero(), 0
    buffer = np.empty((CHUNK_ROWS, job.domain.width), order="F")
    keeping = store.limit > 0 and store.room(partition.rows * (8 * job.domain.width + 9))
    copies: list[Rows] = []
    tables = partition.tables(columns) if content is None else [(0, content.select(columns))]
    try:
        for group, table in tables:
            encoded = encode_table(
                job.domain, table, label=use != "none", ids=job.by_record, missing_labels=use == "optional"
            )
            if groups is not None:
                encode_groups(
                    encoded, table.column(groups.column), groups.column, groups.values, optional=groups.optional
                )
            if refused := encoded.refused(strict=job.strict):
                return _unusable(job, partition, refused)
            for block in blocks(job, encoded, f"{partition.name}#{group}", material, buffer, first + rows):
                vector = job.statistic.merge(vector, job.partial(block))
                if keeping:
                    copies.append(replace(block, x=np.array(block.x, order="F")))
            if refused := encoded.refused(strict=job.strict):
                return _unusable(job, partition, refused)
            rows += encoded.length
            del table, encoded  # before the next row group is read
    except DataError as error:
        return Partial(job.statistic.zero(), 0, (str(error),))
    if keeping:
        store.keep(form, copies)
    return Partial(vector, rows)


def _unusable(job: Job, partition: Any, problems: Iterable[Problem]) -> Partial:
    where = getattr(partition, "path", partition.name)
    return Partial(job.statistic.zero(), 0, tuple(f"{where}: {problem}" for problem in problems))


def blocks(
    job: Job, encoded: EncodedTable, name: str, material: bytes, buffer: np.ndarray, first: int
) -> Iterator[Rows]:
    """Cut an encoded table into blocks of rows on the lattice; ends early when the table cannot be used."""
    optional = job.statistic.grouped_by is not None and job.statistic.grouped_by.optional
    for start in range(0, encoded.length, CHUNK_ROWS):
        stop = min(start + CHUNK_ROWS, encoded.length)
        if job.statistic.on_grid:
            x = encoded.on_grid(start, stop, buffer, job.lattice)
        else:
            x = encoded.clipped(start, stop, buffer, job.lattice.norm_bound)
        if encoded.refused(strict=job.strict):
            return
        seeds = None
        if job.seeded:
            if encoded.ids is not None:
                seeds = record_seeds(material, encoded.ids[start:stop])
            else:
                seeds = position_seeds(material, name, start, stop - start)
        y = np.zeros(stop - start, dtype=np.int8) if encoded.labels is None else encoded.labels[start:stop]
        groups = None if encoded.groups is None else encoded.groups[start:stop]
        place = None if job.rows is None else Place(material, first + start, job.rows)
        rows = Rows(x, y, seeds, groups, place)
        yield rows if groups is None or optional else rows.where(groups >= 0)
