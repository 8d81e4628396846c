"""Reports of rows: every row is randomised once, in this process, before anything of it leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from daskrado.lake.scan import Lake
from daskrado.table.domain import Domain
from daskrado.table.encoding import encode_table, needed_columns

_CHUNK = 16_384


@dataclass(frozen=True, slots=True)
class SourceRows:
    """Rows as they are stored, encoded as ``x``, and their labels. Private: never shown."""

    table: pa.Table
    x: NDArray[np.float64]
    y: NDArray[np.int8]

    def __repr__(self) -> str:
        return "<SourceRows>"


Randomise = Callable[[SourceRows], pa.Table]


def check_readable(domain: Domain, lake: Lake) -> None:
    """Read every file once: what is damaged is found before anything is spent or drawn."""
    for partition in lake.partitions:
        for _ in partition.tables(needed_columns(domain)):
            pass


def write_reports(
    domain: Domain, lake: Lake, randomise: Randomise, folder: Path, progress: Callable[[int, int], None] | None = None
) -> int:
    """Randomise every row of a lake, once, into one file for each partition; returns the number of rows.

    Not a task of a cluster: a task may run twice, and two reports of one row cost twice.
    """
    rows = 0
    for number, partition in enumerate(lake.partitions):
        writer: pq.ParquetWriter | None = None
        try:
            for block in _blocks(domain, partition):
                part = randomise(block)
                if writer is None:
                    path = folder / f"part-{number:05d}.parquet"
                    writer = pq.ParquetWriter(path, part.schema, compression="zstd", write_page_checksum=True)
                writer.write_table(part)
                rows += part.num_rows
        finally:
            if writer is not None:
                writer.close()
        if progress is not None:
            progress(number + 1, len(lake.partitions))
    return rows


def _blocks(domain: Domain, partition: Any) -> Iterator[SourceRows]:
    """The rows of a partition; each block's ``x`` is overwritten by the next one."""
    for _, table in partition.tables(needed_columns(domain)):
        encoded = encode_table(domain, table)
        assert encoded.labels is not None
        buffer = np.empty((min(_CHUNK, max(1, encoded.length)), domain.width), order="F")
        for start in range(0, encoded.length, _CHUNK):
            stop = min(start + _CHUNK, encoded.length)
            x = encoded.block(start, stop, buffer)
            yield SourceRows(table.slice(start, stop - start), x, encoded.labels[start:stop])
