"""Exact integer sums over public reports, one task for each partition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from daskrado.errors import DataError
from daskrado.lake.mapping import run_here, run_tasks
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
    items = [(partition, columns, count) for partition in partitions]
    if client is None:
        parts = run_here(_count, items, progress)
    else:
        where = [str(partition.path) for partition in partitions]
        parts = run_tasks(client, "tally", _count, items, place=where.__getitem__, report=progress)
    if not parts:
        raise DataError("the reports have no rows")
    return np.asarray(sum(parts), dtype=np.int64)


def _count(partition: ParquetPartition, columns: Sequence[str], count: Count) -> IntVector:
    total: Any = 0
    for _, table in partition.tables(columns):
        total = total + count(table)
    return np.asarray(total, dtype=np.int64)
