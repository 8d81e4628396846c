"""Disjoint shards of a lake: which rows a teacher sees, decided by who or where a row is, never by what it holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from daskrado.errors import DataError, UsageError
from daskrado.lake.scan import Lake
from daskrado.lake.seeds import SignatureKey, record_seeds
from daskrado.lake.unit_ids import unit_hashes
from daskrado.statistics.rados import mix
from daskrado.table.arrow_arrays import places_or_none
from daskrado.table.domain import Domain
from daskrado.table.encoded_table import EncodedTable
from daskrado.table.encoding import encode_classes, encode_table, needed_columns
from daskrado.table.label import Scalar
from daskrado.table.lattice import row_norms

KEPT_PLACE = "a record keeps its file and its place in it, whatever it holds: rows are dealt out by position"
ASIDE = -1  # the shard number of rows that train nobody
_CHUNK_ROWS = 32_768


@dataclass(frozen=True)
class Sharding:
    """k shards, and possibly a part of the rows kept aside as unlabelled queries.

    ``unit`` names the column of the units, whose ids are hashed with a public key: whatever happens to a unit's rows
    reaches one shard, and those without an id count as nothing. Else ``by_id`` does so with the record id: adding or
    removing a record reaches one shard. Else shards are dealt by position in the lake, which is sound where a row is
    replaced in its place. With ``places`` they go by a public column: shard i has the rows whose ``column`` is
    ``places[i]``, or that lie in that folder of the lake; a row of no such place counts as nothing. A row lies in
    exactly one shard by construction: its number is one function of who owns it, of its id, position or place.

    Reference
        Parallel composition needs an assignment that does not look at the content (McSherry 2009).
    """

    count: int
    seed: int = 0
    by_id: bool = True
    aside: float = 0.0
    unit: str | None = None
    column: str | None = None
    places: tuple[Scalar, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.count <= 1_000_000:
            raise UsageError(f"teachers.count must be between 1 and 1000000, got {self.count}")
        if not 0 <= self.aside < 1:
            raise UsageError(f"the share of rows kept aside must be at least 0 and below 1, got {self.aside}")

    def order(self, ids: NDArray[Any] | None, first: int, rows: int) -> NDArray[np.uint64]:
        """One number per row by which a shard's rows are sorted, and by which it is assigned where no unit is."""
        if not self.by_id:
            return np.arange(first, first + rows, dtype=np.uint64)
        if ids is None:
            raise UsageError("shards by record id need the domain's id column")
        return record_seeds(SignatureKey.from_seed(self.seed).key_bytes(), ids)

    def owners(self, table: pa.Table) -> NDArray[np.uint64] | None:
        """One number per row by which its unit is assigned, 0 for none; None where rows are."""
        if self.unit is None:
            return None
        return unit_hashes(table.column(self.unit), SignatureKey.from_seed(self.seed).key_bytes())[:, 0]

    def place(self, table: pa.Table, name: str) -> NDArray[np.int64] | None:
        """The place of each row of a partition, -1 for none; None where places do not matter."""
        if not self.places:
            return None
        if self.column is None:
            folder = folder_of(name)
            return np.full(table.num_rows, self.places.index(folder) if folder in self.places else -1, dtype=np.int64)
        flat = table.column(self.column).combine_chunks()
        found = places_or_none(flat, self.places)
        if found is None and all(
            isinstance(value, str) for value in self.places
        ):  # a table's dates, as it names them
            found = places_or_none(flat.cast(pa.string()), self.places)
        return np.full(len(flat), -1, dtype=np.int64) if found is None else found.astype(np.int64)

    def assign(self, order: NDArray[np.uint64], place: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """The shard of each row, or ASIDE."""
        shard = (order % np.uint64(self.count)).astype(np.int64) if place is None else np.maximum(place, 0)
        if self.aside:
            # Another hash of the same number, so that keeping rows aside does not empty some shards.
            drawn = mix(order ^ np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(11)
            shard[drawn < np.uint64(round(self.aside * 2**53))] = ASIDE
        return shard


@dataclass(frozen=True)
class LabelledRows:
    """Encoded, clipped rows with the index of their class, their shard and their order. Private.

    A row that counts as nothing has the class -1: it trains and examines nobody.
    """

    x: NDArray[np.float64]
    y: NDArray[np.int64]
    shard: NDArray[np.int64]
    order: NDArray[np.uint64]

    def __repr__(self) -> str:
        return f"<LabelledRows of width {self.x.shape[1]}, private>"

    def where(self, mask: NDArray[np.bool_]) -> LabelledRows:
        """Some of the rows."""
        return LabelledRows(self.x[mask], self.y[mask], self.shard[mask], self.order[mask])

    @classmethod
    def joined(cls, parts: Sequence[LabelledRows], width: int) -> LabelledRows:
        """All rows of some blocks, sorted by shard and then by order: the same for any partitioning of the lake."""
        none = np.empty(0, dtype=np.int64)
        empty = cls(np.empty((0, width)), none, none, none.astype(np.uint64))
        held = [part for part in parts if len(part.y)] or [empty]
        x, y = np.concatenate([p.x for p in held]), np.concatenate([p.y for p in held])
        shard, order = np.concatenate([p.shard for p in held]), np.concatenate([p.order for p in held])
        ranks = np.lexsort((order, shard))
        return cls(x[ranks], y[ranks], shard[ranks], order[ranks])


def read_rows(
    domain: Domain, classes: Sequence[Scalar], sharding: Sharding, partition: Any, first: int, content: Any
) -> Iterator[LabelledRows]:
    """Encode one partition block by block; ``first`` is its first row's position."""
    columns = [*needed_columns(domain, label=False, ids=sharding.by_id), domain.label.column]
    columns += [one for one in (sharding.unit, sharding.column) if one is not None and one not in columns]
    tables = partition.tables(columns) if content is None else [(0, content.select(columns))]
    where = getattr(partition, "path", partition.name)
    for _, table in tables:
        encoded = encode_table(domain, table, label=False, ids=sharding.by_id)
        labels = encode_classes(encoded, table.column(domain.label.column), classes)
        _refuse(where, encoded, strict=False)
        owners, places = sharding.owners(table), sharding.place(table, partition.name)
        for start in range(0, encoded.length, _CHUNK_ROWS):
            stop = min(start + _CHUNK_ROWS, encoded.length)
            x = np.ascontiguousarray(encoded.block(start, stop, np.empty((stop - start, domain.width), order="F")))
            y = labels[start:stop]
            if encoded.unusable is not None:
                y = np.where(encoded.unusable[start:stop], -1, y)
            ids = None if encoded.ids is None else encoded.ids[start:stop]
            order = sharding.order(ids, first + start, stop - start)
            by = order if owners is None else owners[start:stop]
            if owners is not None:
                y = np.where(by == 0, -1, y)
            place = None if places is None else places[start:stop]
            if place is not None:
                y = np.where(place < 0, -1, y)
            yield LabelledRows(clipped(x, domain.norm_bound), y, sharding.assign(by, place), order)
        first += encoded.length


def folder_of(name: str) -> str:
    """The folder of a file by its name in the lake."""
    return name.rpartition("/")[0]


def check_places(lake: Lake, what: str, instead: str) -> None:
    """Refuse to deal out rows by position where what a record holds decides its file, as in a tree of folders.

    There a replaced record moves to another folder and shifts all later rows of two files: every part changes.
    """
    if lake.folder_columns:
        raise DataError(
            f"{what} by position, but the lake's folders go by {', '.join(lake.folder_columns)}: a changed record "
            f"would move to another file and shift the rows of both; write the lake without such folders "
            f"(daskrado ingest without --by), or {instead}"
        )


def check_signatures(lake: Lake, domain: Domain) -> None:
    """The same for rados whose signatures are public and, without a record id, by position."""
    if domain.id is None:
        check_places(lake, "rados with a public seed take their signatures", "drop the seed, or name an id column")


def clipped(x: NDArray[np.float64], bound: float) -> NDArray[np.float64]:
    """Rows scaled down to the norm bound, in place."""
    x *= (bound / np.maximum(row_norms(x), bound))[:, None]
    return x


def encode_queries(domain: Domain, table: pa.Table) -> NDArray[np.float64]:
    """Public rows encoded and clipped as the teachers' rows are; a query that does not fit is a DataError."""
    encoded = encode_table(domain, table, label=False)
    x = np.empty((encoded.length, domain.width), order="F")
    encoded.block(0, encoded.length, x)
    _refuse("queries", encoded, strict=True)
    return clipped(np.ascontiguousarray(x), domain.norm_bound)


def _refuse(where: str, encoded: EncodedTable, *, strict: bool) -> None:
    if problems := encoded.refused(strict=strict):
        raise DataError("; ".join(f"{where}: {problem}" for problem in problems[:3]))
