"""A small lake's rows in memory, encoded and on the grid: for audits by its owner, never for a release."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskrado.errors import DataError, UsageError
from daskrado.lake.scan import open_lake
from daskrado.lake.seeds import position_seeds, record_seeds
from daskrado.table.domain import Domain
from daskrado.table.encoding import encode_table, needed_columns
from daskrado.table.lattice import Lattice


@dataclass(frozen=True)
class KeyedRows:
    """Rows on the grid with what their signatures are drawn from: record ids, or partition names and lengths."""

    x: NDArray[np.float64]
    labels: NDArray[np.int8]
    norm_bound: float
    ids: NDArray[Any] | None
    pieces: tuple[tuple[str, int], ...]

    def __repr__(self) -> str:
        return f"<KeyedRows of width {self.x.shape[1]}>"

    def edges(self, bits: int) -> NDArray[np.float64]:
        """Label times row, in the units of the features."""
        return self.x * self.labels[:, None] * math.ldexp(self.norm_bound, -bits)

    def seeds(self, key: bytes) -> NDArray[np.uint64]:
        """The seed of every row under a key."""
        if self.ids is not None:
            return record_seeds(key, self.ids)
        return np.concatenate([position_seeds(key, name, 0, rows) for name, rows in self.pieces])


def read_rows(source: Any, domain: Domain, lattice: Lattice, *, most: int) -> KeyedRows:
    """Every row of a lake of at most ``most`` rows."""
    by_record = domain.id is not None
    lake = open_lake(source, domain, ids=by_record)
    if lake.rows > most:
        raise UsageError(f"an audit reads at most {most:,} rows into memory; give a sample of the lake")
    columns = needed_columns(domain, ids=by_record)
    x, labels, ids, pieces = [], [], [], []
    for partition in lake.partitions:
        for group, table in partition.tables(columns):
            encoded = encode_table(domain, table, ids=by_record)
            block = encoded.block(0, encoded.length, np.empty((encoded.length, domain.width), order="F"))
            if refused := encoded.refused(strict=False):
                raise DataError(f"{getattr(partition, 'path', partition.name)}: {refused[0]}")
            assert encoded.labels is not None
            x.append(lattice.quantise(block))
            labels.append(encoded.labels)
            ids.append(encoded.ids)
            pieces.append((f"{partition.name}#{group}", encoded.length))
    every = np.concatenate([i for i in ids if i is not None]) if by_record else None
    return KeyedRows(np.concatenate(x), np.concatenate(labels), domain.norm_bound, every, tuple(pieces))
