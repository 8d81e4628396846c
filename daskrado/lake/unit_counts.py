"""Exact counts of units over a lake, out of core: which rows a unit owns, and what each of them counts for.

Three steps, each a pure function of rows and of a key. A *stretch* of rows becomes records, one for each different id
in a row group (or, where rows are sampled, for each row that might be kept). Records of one unit come together, by
hash, and get the weight of its rows. Weights go back to the stretch of their rows. Between the steps records lie in
scratch files without a name (here), or in Dask's own shuffle (``lake/unit_shuffle``).
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from daskrado.errors import DataError
from daskrado.lake.frame_blocks import block_texts
from daskrado.lake.unit_ids import coded_ids, number_hashes, paired, unit_codes, unit_hashes
from daskrado.statistics.bounded import WEIGHT_BITS, unit_weights

STRETCH_ROWS = 1 << 17  # that one task counts at once
BUCKET_ROWS = 1 << 22  # records that this process holds at once
_LOOK = 1 << 12  # rows that show whether ids repeat
_CHANGED = "the lake changed while its units were counted"
_MOST_BUCKETS = 256  # files that are open at once
_IN_MEMORY = 1 << 24  # rows whose weights need no scratch file

RECORD = np.dtype([("high", "u8"), ("low", "u8"), ("value", "u8"), ("place", "i8")])
PLACED = np.dtype([("place", "i8"), ("weight", "i4")])
Records = NDArray[Any]  # of RECORD: a unit's hash, how many rows or which rank, and where in the lake
Weights = NDArray[np.uint16]


@dataclass(frozen=True)
class Counting:
    """How units are known and what they may count for; ``record`` names records where rows are sampled.

    Where there is ``within``, a unit is all rows with one id and one value of that column. The first ``before`` rows
    were counted on earlier nights: units count for what those left of the bound, and these rows for nothing any more.
    """

    column: str
    bound: int
    record: str | None
    key: bytes = field(repr=False)
    within: str | None = None
    before: int = 0

    @property
    def columns(self) -> list[str]:
        """What is read."""
        return list(dict.fromkeys([*self.naming, *([] if self.record is None else [self.record])]))

    @property
    def naming(self) -> list[str]:
        """The columns that say whose a row is."""
        return [self.column, *([] if self.within is None else [self.within])]

    def _named(self, table: pa.Table) -> pa.ChunkedArray:
        """Whose each row is."""
        own = table.column(self.column)
        return own if self.within is None else paired(own, block_texts(table, self.within))

    def records(self, tables: Iterable[pa.Table], first: int) -> Records:
        """What tables, whose first row is the lake's row ``first``, say about units: never more records than rows.

        Rows without an id belong to nobody and have none.
        """
        found = [np.zeros(0, RECORD)]
        for table in tables:
            if self.record is not None:
                found.append(self.ranked(table, first))
            elif self._mostly_apart(table):
                ids = number_hashes(table.column(self.column).to_numpy(), self.key)
                found.append(_records(ids, np.ones(len(ids)), first + np.arange(len(ids))))
            else:
                known, codes = coded_ids(self._named(table), self.key)
                counts = np.bincount(codes, minlength=len(known))
                chosen = np.flatnonzero(known.any(axis=1) & (counts > 0))
                found.append(_records(known[chosen], counts[chosen], first + chosen))
            first += table.num_rows
        return np.concatenate(found)

    def _mostly_apart(self, table: pa.Table) -> bool:
        """Whether to make a record for each row: few rows share an id, as far as the first show, and none lacks one.

        A function of the rows alone: whoever reads them again decides alike.
        """
        ids = table.column(self.column)
        if self.within is not None or not pa.types.is_integer(ids.type) or ids.null_count:
            return False
        return bool(2 * pc.count_distinct(ids[:_LOOK]).as_py() > min(_LOOK, len(ids)))

    def ranked(self, table: pa.Table, first: int) -> Records:
        """Records by a keyed hash of their own ids, never by place or content; only those that may be kept."""
        ids = unit_hashes(self._named(table), self.key)
        known, codes = coded_ids(table.column(self.record), self.key[::-1])
        mine = np.flatnonzero(ids.any(axis=1))
        ranked = _records(ids[mine], known[codes[mine], 0], first + mine)
        return np.asarray(ranked[self.weigh(ranked)["weight"] > 0])

    def weigh(self, records: Records) -> NDArray[Any]:
        """The weight for each record's rows, where all records of its unit are here: PLACED, in the same order."""
        found = np.empty(len(records), PLACED)
        found["place"] = records["place"]
        order, starts = _by_unit(records, by_rank=self.record is not None)
        sizes = np.diff(np.append(starts, len(records)))
        if self.record is None:
            owned = _sums(records["value"][order], starts)
            found["weight"][order] = np.repeat(unit_weights(owned, self.bound), sizes)
            if self.before:
                early = found["place"] < self.before
                used = _sums(np.where(early, records["value"], 0)[order], starts)
                left = unit_weights(owned - used, np.maximum(self.bound - used, 0))
                found["weight"][order] = np.repeat(left, sizes)
                found["weight"][early] = 0
        else:
            nth = np.arange(len(records)) - np.repeat(starts, sizes)
            found["weight"][order] = np.where(nth < self.bound, 1 << WEIGHT_BITS, 0)
        return found

    def expand(self, tables: Iterable[pa.Table], first: int, placed: NDArray[Any], rows: int) -> Weights:
        """The weight of each row of a stretch, from the weights of its places; a place that has none is an error."""
        dense = np.full(rows, -1, dtype=np.int32)
        dense[placed["place"] - first] = placed["weight"]
        if self.record is not None:
            return np.maximum(dense, 0).astype(np.uint16)
        found, start = np.zeros(rows, dtype=np.uint16), 0
        for table in tables:
            if self._mostly_apart(table):
                own = dense[start : start + table.num_rows]
                if (own < 0).any():
                    raise DataError(_CHANGED)
                found[start : start + table.num_rows] = own
                start += table.num_rows
                continue
            values, codes = unit_codes(self._named(table))
            own = np.append(dense[start : start + len(values)], 0)
            lost = np.flatnonzero(own < 0)
            if not all(_nameless(values.take(lost))):
                raise DataError(_CHANGED)
            own[lost] = 0
            found[start : start + table.num_rows] = own[codes]
            start += table.num_rows
        return found

    def alone(self, tables: Sequence[pa.Table]) -> Weights:
        """The weights of rows whose units own no others."""
        if (
            self.within is None
            and self.record is None
            and all(pa.types.is_integer(table.column(self.column).type) for table in tables)
        ):
            return unit_weights(_owned(tables, self.column), self.bound).astype(np.uint16)
        placed = self.weigh(self.records(tables, 0))
        return self.expand(tables, 0, placed, sum(table.num_rows for table in tables))


def _owned(tables: Sequence[pa.Table], column: str) -> NDArray[np.int64]:
    """For each row how many have its whole number, in rows that are all of a file or a frame; 0 for a null."""
    kind = tables[0].column(column).type if tables else pa.int64()
    values = pa.chunked_array([chunk for table in tables for chunk in table.column(column).chunks], kind)
    if values.null_count == 0 and len(values):
        numbers = values.to_numpy()
        steps = numbers[1:] != numbers[:-1]
        if (numbers[1:] >= numbers[:-1]).all():  # sorted: no more is needed than where they change
            sizes = np.diff(np.flatnonzero(np.concatenate([[True], steps, [True]])))
            return np.asarray(np.repeat(sizes, sizes))
    known, codes = unit_codes(values)
    return np.asarray(np.append(np.bincount(codes, minlength=len(known) + 1)[: len(known)], 0)[codes])


def _sums(values: NDArray[np.uint64], starts: NDArray[np.intp]) -> NDArray[np.int64]:
    return np.add.reduceat(values, starts).astype(np.int64) if len(starts) else np.zeros(0, np.int64)


def _nameless(values: pa.Array) -> list[bool]:
    """Which ids are empty texts, that name nobody."""
    if pa.types.is_integer(values.type):
        return [False] * len(values)
    return [not bytes(text).strip() for text in values.cast(pa.large_binary()).to_pylist()]


def _records(ids: NDArray[np.uint64], value: NDArray[Any], place: NDArray[Any]) -> Records:
    found = np.empty(len(ids), RECORD)
    found["high"], found["low"], found["value"], found["place"] = ids[:, 0], ids[:, 1], value, place
    return found


def _by_unit(records: Records, *, by_rank: bool) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Records sorted by unit, then by rank and place; and where each unit begins."""
    high, low = records["high"], records["low"]
    high, low = np.ascontiguousarray(high), np.ascontiguousarray(low)
    order = np.argsort(high)
    one, two = high[order], low[order]
    same = one[1:] == one[:-1]
    if by_rank or (same & (two[1:] != two[:-1])).any():  # 64 bits agree about once in 2^64 pairs
        order = np.lexsort((records["place"], records["value"], low, high))
        same = (high[order][1:] == high[order][:-1]) & (low[order][1:] == low[order][:-1])
    return order, np.flatnonzero(np.append(True, ~same)[: len(records)])


@dataclass(frozen=True)
class Stretch:
    """Rows that follow each other in the lake, as pieces of its partitions: what one task counts."""

    first: int
    rows: int
    parts: tuple[Any, ...]

    def tables(self, columns: Sequence[str], content: pa.Table | None = None) -> Iterator[pa.Table]:
        """The rows, a row group at a time; ``content`` is that of the one piece which is no file."""
        for part in self.parts:
            held = content if content is not None else getattr(part, "content", None)
            if held is not None and not isinstance(held, pa.Table):
                held = held.compute()  # a piece of a Dask frame
            if held is not None:
                yield held.select(columns)
            else:
                yield from (table for _, table in part.tables(columns))


def stretches(partitions: Sequence[Any]) -> list[Stretch]:
    """The rows of partitions in stretches of whole row groups: STRETCH_ROWS at most, or one larger row group."""
    found: list[Stretch] = []
    first, rows, parts = 0, 0, list[Any]()
    for partition in partitions:
        groups = getattr(partition, "group_rows", ())
        pieces = [partition] if len(groups) < 2 else _row_groups(partition)
        for piece in pieces:
            alone = not groups or rows + piece.rows > STRETCH_ROWS
            if parts and alone:
                found.append(Stretch(first, rows, tuple(parts)))
                first, rows, parts = first + rows, 0, []
            if parts and groups and parts[-1].path == piece.path and len(pieces) > 1 and piece is not pieces[0]:
                parts[-1] = _joined(parts[-1], piece)
            else:
                parts.append(piece)
            rows += piece.rows
    return [*found, Stretch(first, rows, tuple(parts))] if parts else found


def _row_groups(partition: Any) -> list[Any]:
    pairs = zip(partition.row_groups, partition.group_rows, strict=True)
    return [replace(partition, row_groups=(group,), group_rows=(rows,), rows=rows) for group, rows in pairs]


def _joined(one: Any, other: Any) -> Any:
    groups, sizes = one.row_groups + other.row_groups, one.group_rows + other.group_rows
    return replace(one, row_groups=groups, group_rows=sizes, rows=sum(sizes))


@dataclass(frozen=True)
class PlacedWeights:
    """The weights of some rows of a lake, by where they are."""

    starts: tuple[int, ...]
    arrays: tuple[Weights, ...] = field(repr=False)

    def cut(self, first: int, rows: int) -> Weights:
        """The weights of ``rows`` rows from ``first`` on."""
        parts = [np.zeros(0, np.uint16)]
        for start, array in zip(self.starts, self.arrays, strict=True):
            parts.append(array[max(0, first - start) : max(0, first + rows - start)])
        found = np.concatenate(parts)
        if len(found) != rows:
            raise DataError(_CHANGED)
        return found


class ScratchArray:
    """An array in a file that has no name and ends with this process; in memory where no file can be written."""

    def __init__(self, array: NDArray[Any], folder: str | None = None) -> None:
        self.array = scratch(array.dtype, [array], folder)

    def __repr__(self) -> str:
        return "<ScratchArray>"

    def __reduce__(self) -> Any:
        return ScratchArray, (np.array(self.array),)


def scratch(kind: Any, parts: Iterable[NDArray[Any]], folder: str | None = None) -> NDArray[Any]:
    """Arrays one after another in a memory-mapped scratch file."""
    with tempfile.TemporaryFile(dir=folder, prefix="daskrado-") as file:
        size = sum(file.write(np.ascontiguousarray(part, kind).data) for part in parts)
        file.flush()
        held = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
    return np.frombuffer(held, dtype=kind)


class _Buckets:
    """Records dealt out to scratch files; with one bucket they stay in memory."""

    def __init__(self, count: int, kind: np.dtype[Any]) -> None:
        self.count = count
        self._kind = kind
        wanted = range(count if count > 1 else 0)
        self._files = [tempfile.TemporaryFile(prefix="daskrado-", buffering=0) for _ in wanted]  # noqa: SIM115
        self._held: list[NDArray[Any]] = []

    def add(self, records: NDArray[Any], bucket: NDArray[Any]) -> None:
        """Put each record into its bucket."""
        if not self._files:
            self._held.append(records)
            return
        order = np.argsort(bucket, kind="stable")
        ends = np.searchsorted(bucket[order], np.arange(1, self.count))
        for file, part in zip(self._files, np.split(records[order], ends), strict=True):
            file.write(part.data)

    def take(self, number: int) -> NDArray[Any]:
        """All records of a bucket, which is empty then."""
        if not self._files:
            found, self._held = np.concatenate([np.zeros(0, self._kind), *self._held]), []
            return found
        with self._files[number] as file:
            file.seek(0)
            return np.fromfile(file, dtype=self._kind)


def count_here(counting: Counting, partitions: Sequence[Any]) -> PlacedWeights:
    """The weight of every row of a lake, in this process: memory holds one bucket of records at a time."""
    cuts = stretches(partitions)
    rows = sum(cut.rows for cut in cuts)
    number = min(_MOST_BUCKETS, max(1, -(-rows // BUCKET_ROWS)))
    forth, back = _Buckets(number, RECORD), _Buckets(number, PLACED)
    for cut in cuts:
        found = counting.records(cut.tables(counting.columns), cut.first)
        forth.add(found, found["low"] % np.uint64(number))
    for bucket in range(number):
        placed = counting.weigh(forth.take(bucket))
        back.add(placed, placed["place"] * number // max(1, rows))
    weights = _expanded(counting, cuts, back, rows)
    return PlacedWeights((0,), (np.concatenate([*weights]) if rows <= _IN_MEMORY else scratch(np.uint16, weights),))


def _expanded(counting: Counting, cuts: Sequence[Stretch], back: _Buckets, rows: int) -> Iterator[Weights]:
    """The weights of stretch after stretch; records of its rows lie in the buckets of its first to its last one."""
    yield np.zeros(0, np.uint16)
    held, taken = np.zeros(0, PLACED), 0
    for cut in cuts:
        last = (cut.first + cut.rows - 1) * back.count // max(1, rows)
        while taken <= last:
            held, taken = np.concatenate([held, back.take(taken)]), taken + 1
        mine = held["place"] < cut.first + cut.rows
        placed, held = held[mine], held[~mine]
        yield counting.expand(cut.tables(counting.naming), cut.first, placed, cut.rows)
