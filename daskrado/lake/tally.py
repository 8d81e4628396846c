"""Exact integer sums over public reports, one task for each partition."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from daskrado.errors import DataError
from daskrado.lake.failures import RETRIES, results
from daskrado.lake.parquet_files import ParquetPartition
from daskrado.lake.scan import open_files

if TYPE_CHECKING:
    from distributed import Client

IntVector = NDArray[np.int64]
Count = Callable[[pa.Table], IntVector]


def tally(
    source: Any,
    columns: Sequence[str],
    count: Count,
    *,
    client: Client | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> IntVector:
    """The sum of ``count(table)`` over all row groups: integers, so the same bits for any partitioning.

    For reports that are public already. For private rows use ``collect``.
    """
    partitions = open_files(source, columns)
    parts: Iterator[IntVector]
    if client is None:
        parts = (_count(partition, columns, count) for partition in partitions)
    else:
        task = partial(_count, columns=columns, count=count)
        parts = results(client, client.map(task, partitions, pure=False, retries=RETRIES))
    total: IntVector | None = None
    for done, part in enumerate(parts, start=1):
        total = part if total is None else total + part
        if progress is not None:
            progress(done, len(partitions))
    if total is None:
        raise DataError("the reports have no rows")
    return total


def _count(partition: ParquetPartition, columns: Sequence[str], count: Count) -> IntVector:
    total: Any = 0
    for _, table in partition.tables(columns):
        total = total + count(table)
    return np.asarray(total, dtype=np.int64)
