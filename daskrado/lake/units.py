"""Who owns which rows: for each row, how many its unit has in the whole lake, exactly.

Ids are the same value in any type (7, "7" and "7.0") and are known by 128 bits under a secret key: whole numbers
never agree, and two texts are taken for one unit with a chance below (units)^2 / 2^128. A row without an id belongs
to nobody and counts as nothing. Where every unit's rows lie in one partition, as the footers show, each task counts
for itself; else the driver reads the one column, a part of all hashes at a time, so that its memory stays bounded.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from daskrado.errors import DataError, UsageError
from daskrado.lake.scan import Lake
from daskrado.privacy.protect import Protect
from daskrado.statistics.bounded import WEIGHT_BITS, unit_weights
from daskrado.table.arrow_arrays import plain

_WHOLE = re.compile(rb"([+-]?[0-9]{1,40})(?:\.0*)?")
PASS_ROWS = 1 << 25  # ids held at once by the driver: half a gigabyte


@dataclass(frozen=True)
class Units:
    """What one unit may count for, and what rows count for that."""

    column: str
    bound: int
    key: bytes = field(repr=False)
    record: str | None = None  # with ``how: sample``: the column that names a record
    weights: dict[str, NDArray[np.int32]] | None = field(default=None, repr=False)  # by partition; None: by each task

    def of_partition(self, partition: Any, content: pa.Table | None = None) -> NDArray[np.int32]:
        """The weight of each row of a partition, in the order of its rows."""
        if self.weights is not None:
            return self.weights[partition.identity]
        return self.alone(_read(partition, self._read_columns(), content))

    def owners(self, partition: Any, content: pa.Table | None, key: bytes) -> NDArray[np.uint64]:
        """A number for the unit of each row of a partition under another key, by which units are dealt out."""
        tables = _read(partition, [self.column], content)
        return np.concatenate([unit_hashes(table.column(self.column), key)[:, 0] for table in tables])

    def alone(self, tables: Sequence[pa.Table]) -> NDArray[np.int32]:
        """The weights of rows whose units own no others."""
        ids = np.concatenate([np.zeros((0, 2), np.uint64), *(self._ids(table) for table in tables)])
        if self.record is None:
            return unit_weights(_counts(ids), self.bound)
        ranks = np.concatenate([np.zeros(0, np.uint64), *(self._ranks(table) for table in tables)])
        return _smallest(ids, ranks, self.bound)

    def _read_columns(self) -> list[str]:
        return [self.column, *([] if self.record is None else [self.record])]

    def _ids(self, table: pa.Table) -> NDArray[np.uint64]:
        return unit_hashes(table.column(self.column), self.key)

    def _ranks(self, table: pa.Table) -> NDArray[np.uint64]:
        """Where a record stands among those of its unit: by a keyed hash of its id, never by its place or content."""
        assert self.record is not None
        return unit_hashes(table.column(self.record), self.key[::-1])[:, 0]


@dataclass(frozen=True)
class Keys:
    """What tasks need and nobody else may see: the key of signatures, and what rows count for."""

    material: bytes = b""
    units: Units | None = None

    def __repr__(self) -> str:
        return "<Keys>"

    def __bool__(self) -> bool:
        return bool(self.material) or self.units is not None


def check_units(lake: Lake, protect: Protect, record: str | None) -> None:
    """Refuse a unit column that the lake's schema shows to be unusable."""
    if protect.column is None:
        return
    if protect.how == "sample" and record is None:
        raise UsageError(
            "protect.unit.how: sample keeps records by their id: name the domain's id column, or use how: spread"
        )
    for path, schema in lake.schemas or (("", lake.schema),):
        where = f"{path}: protect.unit.column {protect.column!r}".removeprefix(": ")
        if protect.column not in schema.names:
            raise DataError(f"{where}: the lake has no such column; it has {', '.join(schema.names[:20])}")
        if (problem := type_problem(schema.field(protect.column).type)) is not None:
            raise DataError(f"{where} {problem}")


def units_of(lake: Lake, protect: Protect | None, key: bytes, record: str | None) -> Units | None:
    """How the rows of a lake count where units are protected; None where rows are."""
    if protect is None or protect.column is None:
        return None
    check_units(lake, protect, record)
    record = record if protect.how == "sample" else None
    units = Units(protect.column, protect.rows_per_unit, key, record)
    if lake.clustered_by(protect.column):
        return units
    parts = [part for part in lake.partitions if part.rows]
    found = dict(_weights(units, parts, lake.rows))
    return Units(units.column, units.bound, key, units.record, found)


def _weights(units: Units, parts: Sequence[Any], rows: int) -> Iterator[tuple[str, NDArray[np.int32]]]:
    """The weights of every partition, from a few passes over the ids."""
    shares = -(-rows // PASS_ROWS)
    weights = [np.zeros(part.rows, dtype=np.int32) for part in parts]
    for share in range(shares):
        mine: list[NDArray[np.intp]] = []
        ids: list[NDArray[np.uint64]] = [np.zeros((0, 2), np.uint64)]
        ranks: list[NDArray[np.uint64]] = [np.zeros(0, np.uint64)]
        for part in parts:
            tables = _read(part, units._read_columns(), None)
            found = np.concatenate([units._ids(table) for table in tables])
            chosen = np.flatnonzero(found[:, 1] % np.uint64(shares) == np.uint64(share))
            mine.append(chosen)
            ids.append(found[chosen])
            if units.record is not None:
                ranks.append(np.concatenate([units._ranks(table) for table in tables])[chosen])
        together = np.concatenate(ids)
        if units.record is None:
            counted = unit_weights(_counts(together), units.bound)
        else:
            counted = _smallest(together, np.concatenate(ranks), units.bound)
        at = 0
        for weight, chosen in zip(weights, mine, strict=True):
            weight[chosen] = counted[at : at + len(chosen)]
            at += len(chosen)
    yield from zip((part.identity for part in parts), weights, strict=True)


def _read(partition: Any, columns: list[str], content: pa.Table | None) -> list[pa.Table]:
    if content is None and not isinstance(getattr(partition, "content", None), pa.Table | None):
        content = partition.content.compute()  # a piece of a Dask frame
    return [content] if content is not None else [table for _, table in partition.tables(columns)]


def _counts(ids: NDArray[np.uint64]) -> NDArray[np.int64]:
    """For each row how many have its id; 0 for rows without one."""
    order, first = _sorted(ids)
    starts = np.flatnonzero(first)
    sizes = np.diff(np.append(starts, len(ids)))
    found = np.empty(len(ids), dtype=np.int64)
    found[order] = np.repeat(sizes, sizes)
    return np.where(_has_id(ids), found, 0)


def _smallest(ids: NDArray[np.uint64], ranks: NDArray[np.uint64], bound: int) -> NDArray[np.int32]:
    """Full weight for the ``bound`` rows of each id with the smallest ranks, none for the others."""
    order = np.lexsort((ranks, ids[:, 1], ids[:, 0]))
    one = ids[order]
    first = np.append(True, (one[1:] != one[:-1]).any(axis=1))[: len(ids)]
    starts = np.flatnonzero(first)
    place = np.arange(len(ids)) - np.repeat(starts, np.diff(np.append(starts, len(ids))))
    kept = np.zeros(len(ids), dtype=bool)
    kept[order] = place < bound
    return np.where(kept & _has_id(ids), 1 << WEIGHT_BITS, 0).astype(np.int32)


def _sorted(ids: NDArray[np.uint64]) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    order = np.lexsort((ids[:, 1], ids[:, 0]))
    one = ids[order]
    return order, np.append(True, (one[1:] != one[:-1]).any(axis=1))[: len(ids)]


def _has_id(ids: NDArray[np.uint64]) -> NDArray[np.bool_]:
    return np.asarray(ids.any(axis=1))


def type_problem(kind: pa.DataType) -> str | None:
    """Why a column of this type cannot name units; None if it can."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    if pa.types.is_integer(kind) or text or pa.types.is_null(kind):
        return None
    return f"is {kind}, but a unit is named by whole numbers or by text"


def unit_hashes(column: pa.ChunkedArray, key: bytes) -> NDArray[np.uint64]:
    """128 bits for each id under a secret key; zeros for a null or an empty text.

    A whole number is encrypted, so that no two of them ever agree; the text of one is that number.
    """
    data = plain(column)
    if (problem := type_problem(data.type)) is not None:
        raise DataError(f"the unit column {problem}")
    coded = data.combine_chunks().dictionary_encode()
    if isinstance(coded, pa.ChunkedArray):
        coded = coded.combine_chunks()
    values = coded.dictionary
    known = _texts(values, key) if not pa.types.is_integer(values.type) else _numbers(values.to_numpy(), key)
    index = pc.fill_null(coded.indices, len(values)).to_numpy(zero_copy_only=False)
    return np.asarray(np.concatenate([known, np.zeros((1, 2), np.uint64)])[index])


def _numbers(values: NDArray[Any], key: bytes) -> NDArray[np.uint64]:
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    blocks = np.zeros((len(values), 2), dtype=np.uint64)
    blocks[:, 0] = values.astype(np.uint64) if values.dtype == np.uint64 else values.astype(np.int64).view(np.uint64)
    blocks[:, 1] = (values < 0) if values.dtype != np.uint64 else 0  # 2^64 - 1 is not -1
    encrypt = Cipher(algorithms.AES(key), modes.ECB()).encryptor()  # a permutation is what is wanted
    return np.frombuffer(encrypt.update(blocks.tobytes()), dtype=np.uint64).reshape(-1, 2)


def _whole(text: bytes) -> int | None:
    """The whole number that a text writes, if a column of whole numbers could hold it."""
    found = _WHOLE.fullmatch(text)
    number = None if found is None else int(found[1])
    return number if number is not None and -(2**63) <= number < 2**64 else None


def _texts(values: pa.Array, key: bytes) -> NDArray[np.uint64]:
    """Texts, trimmed; those of whole numbers as numbers, also with a decimal point and zeros behind it."""
    texts = [bytes(text).strip() for text in values.cast(pa.large_binary()).to_pylist()]
    whole = [_whole(text) for text in texts]
    small = [n is not None and n < 2**63 for n in whole]
    signed = np.array([n if ok else 0 for n, ok in zip(whole, small, strict=True)], dtype=np.int64)
    unsigned = np.array([0 if ok or n is None else n for n, ok in zip(whole, small, strict=True)], dtype=np.uint64)
    numbers = np.where(np.array(small)[:, None], _numbers(signed, key), _numbers(unsigned, key))
    digests = [hashlib.blake2b(text, key=key, digest_size=16).digest() for text in texts]
    others = np.frombuffer(b"".join(digests), dtype=np.uint64).reshape(-1, 2).copy()
    others[[not text for text in texts]] = 0
    return np.where(np.array([n is not None for n in whole])[:, None], numbers, others)
