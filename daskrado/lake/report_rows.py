"""Reports of rows: every row is randomised once, in this process, before anything of it leaves."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from daskrado.lake.scan import Lake
from daskrado.lake.units import Units
from daskrado.table.domain import Domain
from daskrado.table.encoded_table import Labels
from daskrado.table.encoding import encode_table, needed_columns

_CHUNK = 16_384
_SHARE = 1 << 20  # reports in one file, where they are mixed


@dataclass(frozen=True, slots=True)
class SourceRows:
    """Rows as they are stored, encoded as ``x``, and their labels. Private: never shown."""

    table: pa.Table
    x: NDArray[np.float64]
    y: Labels

    def __repr__(self) -> str:
        return "<SourceRows>"


Randomise = Callable[[SourceRows], pa.Table]


def check_readable(domain: Domain, lake: Lake) -> None:
    """Read every file once: what is damaged is found before anything is spent or drawn."""
    for partition in lake.partitions:
        for _ in partition.tables(needed_columns(domain)):
            pass


@dataclass(frozen=True)
class Kept:
    """Which rows report, where units are bounded.

    ``mixed``: files and places must not tell where a unit's rows lie, so reports are in the order of a keyed hash of
    their units.
    """

    units: Units
    mixed: bool


def write_reports(
    domain: Domain,
    lake: Lake,
    randomise: Randomise,
    folder: Path,
    progress: Callable[[int, int], None] | None = None,
    kept: Kept | None = None,
) -> int:
    """Randomise every row of a lake that reports, once; returns the number of reports.

    There is one file for each partition, or for each share of the units where reports are mixed. Not a task of a
    cluster: a task may run twice, and two reports of one row cost twice.
    """
    files = _by_partition(domain, lake, randomise, kept)
    if kept is not None and kept.mixed:
        files = _by_unit(domain, lake, randomise, kept.units)
    rows = 0
    for number, (total, parts) in enumerate(files):
        writer: pq.ParquetWriter | None = None
        try:
            for part in parts:
                if writer is None:
                    path = folder / f"part-{number:05d}.parquet"
                    writer = pq.ParquetWriter(path, part.schema, compression="zstd", write_page_checksum=True)
                writer.write_table(part)
                rows += part.num_rows
        finally:
            if writer is not None:
                writer.close()
        if progress is not None:
            progress(number + 1, total)
    return rows


Files = Iterator[tuple[int, Iterator[pa.Table]]]  # how many there are, and the content of each


def _by_partition(domain: Domain, lake: Lake, randomise: Randomise, kept: Kept | None) -> Files:
    weighted = zip(lake.partitions, itertools.repeat(None)) if kept is None else kept.units.of_lake(lake)
    for partition, weights in weighted:
        blocks = _blocks(domain, partition, None if weights is None else weights > 0)
        yield len(lake.partitions), (randomise(block) for block in blocks)


def _by_unit(domain: Domain, lake: Lake, randomise: Randomise, units: Units) -> Files:
    """The lake is read once for each share, so that memory holds the reports of one share alone."""
    reporting = sum(int(np.count_nonzero(weights)) for _, weights in units.of_lake(lake))
    shares = max(1, -(-reporting // _SHARE))
    for share in range(shares):
        tables, order = [], []
        for partition, weights in units.of_lake(lake):
            owners = units.owners(partition, None, units.counting.key)
            mine = (weights > 0) & (owners % np.uint64(shares) == np.uint64(share))
            order.append(owners[mine])
            tables += [randomise(block) for block in _blocks(domain, partition, mine)]
        yield shares, iter([pa.concat_tables(tables).take(np.argsort(np.concatenate(order)))] if tables else [])


def _blocks(domain: Domain, partition: Any, chosen: NDArray[np.bool_] | None = None) -> Iterator[SourceRows]:
    """The rows of a partition, or those chosen; each block's ``x`` is overwritten by the next one."""
    first = 0
    for _, table in partition.tables(needed_columns(domain)):
        if chosen is not None:
            mine = chosen[first : first + table.num_rows]
            first += table.num_rows
            table = table.filter(pa.array(mine))
        encoded = encode_table(domain, table)
        assert encoded.labels is not None
        buffer = np.empty((min(_CHUNK, max(1, encoded.length)), domain.width), order="F")
        for start in range(0, encoded.length, _CHUNK):
            stop = min(start + _CHUNK, encoded.length)
            x = encoded.block(start, stop, buffer)
            yield SourceRows(table.slice(start, stop - start), x, encoded.labels[start:stop])
