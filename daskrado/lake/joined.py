"""Features in one lake, labels in another, matched by a key column: for a label provider.

Keys are compared as 64-bit words (integers exactly; strings by a hash). Mismatches are counted, never shown.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from daskrado.errors import DataError, UsageError
from daskrado.lake.parquet_files import ParquetPartition
from daskrado.lake.scan import Lake, open_lake
from daskrado.lake.seeds import SignatureKey, record_seeds
from daskrado.table.arrow_arrays import plain
from daskrado.table.domain import Domain
from daskrado.table.encoding import known_ids

KEY = SignatureKey.from_seed(0)  # public: it only spreads record ids over 64-bit words


@dataclass(frozen=True)
class JoinedPartition:
    """A partition of features whose label column is looked up in the label lake, wherever the task runs."""

    features: ParquetPartition
    labels: tuple[ParquetPartition, ...]
    key: str
    label: str

    @property
    def name(self) -> str:
        """The features' name."""
        return self.features.name

    @property
    def path(self) -> str:
        """The features' path, for messages."""
        return self.features.path

    @property
    def rows(self) -> int:
        """Rows of features."""
        return self.features.rows

    @property
    def identity(self) -> str:
        """Changes with the features and with any file of labels."""
        parts = [self.features.identity, *(part.identity for part in self.labels)]
        return hashlib.blake2b("\0".join(parts).encode(), digest_size=12).hexdigest()

    def tables(self, columns: Sequence[str]) -> Iterator[tuple[int, pa.Table]]:
        """Features with the label of each row's key."""
        stored = [name for name in columns if name not in (self.label, self.key)] + [self.key]
        for group, table in self.features.tables(stored):
            if self.label in columns:
                keys = key_words(table.column(self.key), self.key)
                found = _label_table(self.labels, self.key, self.label).look_up(keys)
                table = table.append_column(self.label, found)
            yield group, table.select(list(columns))


def open_joined(
    features: Any, labels: Any, domain: Domain, progress: Callable[[int, int], None] | None = None
) -> Lake:
    """The features with their labels, after every key was matched with exactly one other.

    Raises a DataError that counts missing, extra and repeated keys.
    """
    if domain.id is None:
        raise UsageError("matching rows needs the domain's id: the key column that features and labels share")
    for what, source in (("features", features), ("labels", labels)):
        if hasattr(source, "columns"):
            raise UsageError(f"{what} must be an address of Parquet files, not a DataFrame")
    left = open_lake(features, domain, label=False, ids=True)
    right = open_lake(labels, domain, columns=[domain.id, domain.label.column])
    _match(left, right, domain.id, progress)
    parts = tuple(JoinedPartition(part, right.partitions, domain.id, domain.label.column) for part in left.partitions)
    # The labels are what is protected: the ledger knows this data by them.
    size, fingerprint, reading = left.size + right.size, right.fingerprint, right.reading
    return replace(left, partitions=parts, size=size, fingerprint=fingerprint, reading=reading)


def key_words(column: pa.ChunkedArray, name: str) -> NDArray[np.uint64]:
    """Record ids as 64-bit words."""
    if column.null_count:
        raise DataError(f"key column {name!r} is null in {column.null_count} rows")
    return record_seeds(KEY.key_bytes(), known_ids(plain(column).combine_chunks()))


def _match(left: Lake, right: Lake, key: str, progress: Callable[[int, int], None] | None) -> None:
    kinds = {left.schema.field(key).type, right.schema.field(key).type}
    if len({pa.types.is_integer(kind) for kind in kinds}) > 1:
        raise DataError(
            f"key column {key!r} is {left.schema.field(key).type} in the features and "
            f"{right.schema.field(key).type} in the labels"
        )
    total, done = len(left.partitions) + len(right.partitions), 0
    found = []
    for lake in (left, right):
        words = []
        for partition in lake.partitions:
            words += [key_words(table.column(key), key) for _, table in partition.tables([key])]
            done += 1
            if progress is not None:
                progress(done, total)
        found.append(np.sort(np.concatenate(words)))
    features, labels = (np.unique(words) for words in found)
    shared = len(np.intersect1d(features, labels, assume_unique=True))
    counts = {
        "keys of the features have no label": len(features) - shared,
        "keys of the labels have no features": len(labels) - shared,
        "rows of the features repeat a key": len(found[0]) - len(features),
        "rows of the labels repeat a key": len(found[1]) - len(labels),
    }
    wrong = [f"{count} {what}" for what, count in counts.items() if count]
    if wrong:
        raise DataError(f"features and labels do not match by {key!r}: {'; '.join(wrong)}")


@dataclass(frozen=True)
class _LabelTable:
    """Sorted keys and their labels. Its repr shows a size."""

    keys: NDArray[np.uint64]
    values: pa.ChunkedArray

    def __repr__(self) -> str:
        return f"<labels of {len(self.keys)} records>"

    def look_up(self, keys: NDArray[np.uint64]) -> pa.ChunkedArray:
        """The label of each key."""
        place = np.minimum(np.searchsorted(self.keys, keys), max(len(self.keys) - 1, 0))
        lost = int((self.keys[place] != keys).sum())
        if lost:
            raise DataError(f"{lost} keys lost their labels: the lakes changed while they were read")
        return self.values.take(pa.array(place))


_KEPT: dict[str, _LabelTable] = {}


def _label_table(partitions: tuple[ParquetPartition, ...], key: str, label: str) -> _LabelTable:
    """Read once in each process, where it stays until the next label lake or :func:`forget_labels`."""
    identity = "\0".join([key, label, *(part.identity for part in partitions)])
    if identity not in _KEPT:
        whole = pa.concat_tables(table for part in partitions for _, table in part.tables([key, label]))
        keys = key_words(whole.column(key), key)
        order = np.argsort(keys, kind="stable")
        _KEPT.clear()
        _KEPT[identity] = _LabelTable(keys[order], whole.column(label).take(pa.array(order)))
    return _KEPT[identity]


def forget_labels() -> None:
    """Drop the labels that this process keeps."""
    _KEPT.clear()
