"""What a task does with one partition: encode its rows block by block, keep them if told to, and sum."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskrado import __version__
from daskrado.errors import DataError
from daskrado.lake.holdout import Part
from daskrado.lake.row_store import RowStore, row_bytes
from daskrado.lake.seeds import position_seeds, record_seeds
from daskrado.lake.units import Keys
from daskrado.statistics.base import Additive, Place, Rows
from daskrado.statistics.bounded import class_weighted
from daskrado.table.compact_encoding import CompactTable
from daskrado.table.domain import Domain
from daskrado.table.encoded_table import EncodedTable, Problem
from daskrado.table.encoding import encode_groups, encode_table, needed_columns
from daskrado.table.inner_loops import compile_loops
from daskrado.table.label_sides import against_rest
from daskrado.table.lattice import Lattice
from daskrado.table.products import Features

CHUNK_ROWS = 32_768  # encoded rows held at once by a task
_DENSE_CELLS = 1 << 23  # of compact rows that are made dense at once, for statistics that need it
FAN_IN = 8


@dataclass(frozen=True)
class Share:
    """Part ``index`` of ``count``, or the ``rest``: rows are dealt out by their seeds, never by their content."""

    index: int
    count: int
    rest: bool = False

    def of(self, rows: Rows) -> Rows:
        """The rows of this part."""
        assert rows.seeds is not None
        mine = rows.seeds % np.uint64(self.count) == np.uint64(self.index)
        return rows.where(mine != self.rest)


@dataclass(frozen=True)
class Job:
    """Everything public that a task needs; the signature key travels beside it."""

    statistic: Additive
    domain: Domain
    lattice: Lattice
    by_record: bool
    seeded: bool
    by_unit: bool = False  # all rows of a unit have one seed, so that it is in one share
    share: Share | None = None
    against: int | None = None  # the number of a class, from 1: labels are this one or the rest, as two sides
    rows: int | None = None  # of the lake, for sums that go by position
    class_weights: tuple[int, int] | None = None  # of the negative and the positive label, as ``statistics.bounded``
    part: Part | None = None  # of the lake's ids: rows of others count as nothing
    compiled: bool = False  # the lake is large enough to repay compiling the inner loops
    strict: bool = False  # refuse unusable values: only where nobody is protected; else their rows count as nothing
    form: str = (
        ""  # names the encoding, where passes over one lake go by several: rows of one are not those of another
    )
    keep: bool = True  # whether encoded rows are kept for the next pass
    version: str = __version__  # of the driver: a worker that runs another one refuses the task

    def partial(self, rows: Rows) -> NDArray[Any]:
        """The statistic of a block, or of its rows in the share."""
        rows = self.statistic.thin(rows)
        rows = rows if self.share is None else self.share.of(rows)
        rows = rows if self.against is None else replace(rows, y=against_rest(rows.y, self.against))
        if self.statistic.compact:
            return self.statistic.partial(rows)
        total = self.statistic.zero()
        for start in range(0, len(rows.y), step := max(1, _DENSE_CELLS // self.domain.width)):
            total = self.statistic.merge(total, self.statistic.partial(rows.dense(start, start + step)))
        return total


@dataclass(frozen=True)
class Partial:
    """A partial sum, or why its partition cannot be used. Problems travel as values: they need no retry."""

    vector: NDArray[Any]
    rows: int
    problems: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<Partial of {len(self.vector)} private numbers>"


def merge_all(job: Job, parts: list[Partial]) -> Partial:
    """The sum of some partials, from left to right."""
    total = Partial(job.statistic.zero(), 0)
    for part in parts:
        total = merge(job.statistic, total, part)
    return total


def merge(statistic: Additive, a: Partial, b: Partial) -> Partial:
    """Exact sum of two partials; problems are kept in a fixed order."""
    return Partial(statistic.merge(a.vector, b.vector), a.rows + b.rows, tuple(sorted({*a.problems, *b.problems})))


def partition_partial(job: Job, partition: Any, keys: Keys, content: Any, first: int, store: RowStore) -> Partial:
    """The statistic of one partition, ``first`` rows into the lake: a pure function of its rows and the keys."""
    if job.compiled:
        compile_loops()
    use, groups = job.statistic.label_use, job.statistic.grouped_by
    held = "" if job.part is None else f"{job.part.partition} {job.part.names}"
    # Rows in another form are other rows.
    form = f"{partition.identity} {use} {groups and groups.column} {held} {job.form}"
    kept = store.get(form)
    if kept is not None:
        vector = job.statistic.zero()
        for block in kept:
            vector = job.statistic.merge(vector, job.partial(block))
        return Partial(vector, partition.rows)
    columns = needed_columns(job.domain, label=use != "none", ids=job.by_record)
    beside = [*([] if groups is None else [groups.column]), *([] if job.part is None else [job.part.column])]
    columns += [name for name in dict.fromkeys(beside) if name not in columns]
    vector, rows = job.statistic.zero(), 0
    weighted = keys.units is not None or job.class_weights is not None
    size = partition.rows * row_bytes(job.domain, seeded=job.seeded, grouped=groups is not None, weighted=weighted)
    keep = _keeper(job, size, store)
    copies: list[Rows] = []
    try:
        weights = None if keys.units is None else keys.units.of_partition(partition, content, first)
        owners = keys.units.owners(partition, content, keys.material) if keys.units and job.by_unit else None
        for group, table in partition.tables(columns) if content is None else [(0, content.select(columns))]:
            encoded = encode_table(
                job.domain, table, label=use != "none", ids=job.by_record, missing_labels=use == "optional"
            )
            if job.part is not None:
                encoded.leave_out(job.part.absent(table))
            if groups is not None:
                encode_groups(
                    encoded, table.column(groups.column), groups.column, groups.values, optional=groups.optional
                )
            if refused := encoded.refused(strict=job.strict):
                return _unusable(job, partition, refused)
            name = f"{partition.name}#{group}"
            whole = None if keep is not None or weights is not None else _at_once(job, encoded, name, keys.material)
            if whole is not None:
                vector = job.statistic.merge(vector, whole)
            own = slice(rows, rows + encoded.length)
            mine = None if weights is None else weights[own]
            if owners is not None:
                encoded.ids = owners[own]
            for block in blocks(job, encoded, name, keys.material, first + rows, mine) if whole is None else ():
                vector = job.statistic.merge(vector, job.partial(block))
                if keep is not None:
                    copies.append(block)
            if refused := encoded.refused(strict=job.strict):
                return _unusable(job, partition, refused)
            rows += encoded.length
            del table, encoded  # before the next row group is read
    except DataError as error:
        return Partial(job.statistic.zero(), 0, (str(error),))
    if keep is not None:
        keep(form, copies)
    return Partial(vector, rows)


def _keeper(job: Job, size: int, store: RowStore) -> Callable[[str, list[Rows]], None] | None:
    """What keeps a partition's rows, of so many bytes, for the next pass: memory, a scratch file, or nothing."""
    if not job.keep:
        return None
    return store.keep if store.room(size) else store.write if store.disk(size) and job.domain.kernel is None else None


def _at_once(job: Job, encoded: EncodedTable, name: str, material: bytes) -> NDArray[Any] | None:
    """The sum over a whole table, where the statistic has a faster way to it than block by block."""
    direct = type(job.statistic).of_table is not Additive.of_table
    if (
        not direct
        or not job.compiled
        or job.share is not None
        or job.against is not None
        or job.domain.kernel is not None
    ):
        return None
    if encoded.labels is None or encoded.groups is not None or not encoded.length:
        return None
    starts = range(0, encoded.length, CHUNK_ROWS)
    seeds = [_seeds(encoded, name, material, s, min(s + CHUNK_ROWS, encoded.length)) for s in starts]
    return job.statistic.of_table(CompactTable(encoded), encoded.labels, np.concatenate(seeds), job.lattice)


def _seeds(encoded: EncodedTable, name: str, material: bytes, start: int, stop: int) -> NDArray[np.uint64]:
    """Seeds of the rows of one chunk, by record id or by place."""
    if encoded.ids is not None:
        return record_seeds(material, encoded.ids[start:stop])
    return position_seeds(material, name, start, stop - start)


def _unusable(job: Job, partition: Any, problems: Iterable[Problem]) -> Partial:
    where = getattr(partition, "path", partition.name)
    return Partial(job.statistic.zero(), 0, tuple(f"{where}: {problem}" for problem in problems))


def blocks(
    job: Job,
    encoded: EncodedTable,
    name: str,
    material: bytes,
    first: int,
    weights: NDArray[np.uint16] | None = None,
) -> Iterator[Rows]:
    """Cut an encoded table into blocks of rows on the lattice; ends early when the table cannot be used."""
    optional = job.statistic.grouped_by is not None and job.statistic.grouped_by.optional
    compact = None if job.domain.kernel is not None else CompactTable(encoded)
    for start in range(0, encoded.length, CHUNK_ROWS):
        stop = min(start + CHUNK_ROWS, encoded.length)
        x: Features
        if compact is not None:
            x = compact.block(start, stop, job.lattice)
        else:
            dense = encoded.block(start, stop, np.empty((stop - start, job.domain.width), order="F"))
            x = job.lattice.quantise(dense)
        if encoded.refused(strict=job.strict):
            return
        seeds = _seeds(encoded, name, material, start, stop) if job.seeded else None
        y = np.zeros(stop - start, dtype=np.int8) if encoded.labels is None else encoded.labels[start:stop]
        groups = None if encoded.groups is None else encoded.groups[start:stop]
        place = None if job.rows is None else Place(material, first + start, job.rows)
        counted = None if weights is None else weights[start:stop]
        if job.class_weights is not None:
            counted = class_weighted(counted, y, job.class_weights)
        rows = Rows(x, y, seeds, groups, place, first + start, counted)
        yield rows if groups is None or optional else rows.where(groups >= 0)
