"""Exact counts of the values of some columns, by value: private, and never written or shown."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from daskrado.errors import DataError
from daskrado.lake.dealing import is_delayed
from daskrado.lake.failures import refuse
from daskrado.lake.frame_columns import may_hold_anything
from daskrado.lake.mapping import run_here, run_tasks
from daskrado.lake.scan import Lake
from daskrado.lake.units import Units
from daskrado.table.arrow_arrays import as_text, as_texts, plain
from daskrado.table.type_hints import is_text

if TYPE_CHECKING:
    from distributed import Client

_TRUTHS = {"true": True, "false": False}
LONGEST = 80  # characters of a category: longer texts, and those that cannot be printed, are no values


class ValueCounts(Counter[tuple[str, Any]]):
    """Rows by column and value; a null has the value None."""

    def __repr__(self) -> str:
        return "<ValueCounts, private>"


def value_counts(
    lake: Lake,
    columns: Sequence[str],
    *,
    units: Units | None = None,
    client: Client | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ValueCounts:
    """How many rows hold each value of each column; of a unit's rows those that ``units`` keeps.

    Workers count where rows are protected one by one; the rows of units are counted here, as their weights are.
    """
    items = [(partition, list(columns)) for partition in lake.partitions]
    found: list[Any]
    if units is not None:
        found = [_counted(partition, list(columns), weights > 0) for partition, weights in units.of_lake(lake)]
    elif client is None or lake.in_memory or any(map(is_delayed, lake.partitions)):
        found = run_here(_counted, items, progress)
    else:
        where = [str(getattr(part, "path", part.name)) for part in lake.partitions]
        found = run_tasks(client, "values", _counted, items, place=where.__getitem__, report=progress)
    problems = [one for one in found if isinstance(one, str)]
    if problems:
        refuse(sorted(problems))
    return reduce(_merged, found, ValueCounts())


def as_written(told: Mapping[Any, float]) -> dict[Any, float]:
    """Values that were told as texts, of a column of a pandas frame: numbers or truths where all of them are."""
    words = [word for word in told if word is not None]
    for read in (int, _fraction, _TRUTHS.__getitem__):
        with suppress(ValueError, KeyError):
            values = dict(zip(words, map(read, words), strict=True))
            if all(as_text(value) == word for word, value in values.items()):
                return {values.get(word): count for word, count in told.items()}
    return dict(told)


def _fraction(word: str) -> float:
    if math.isfinite(value := float(word)):
        return value
    raise ValueError(word)


def _merged(total: ValueCounts, more: ValueCounts) -> ValueCounts:
    total.update(more)
    return total


def _counted(partition: Any, columns: list[str], kept: NDArray[np.bool_] | None = None) -> ValueCounts | str:
    """The counts of one partition; a problem is returned as text, so that it is not retried."""
    found = ValueCounts()
    try:
        at = 0
        for table in _tables(partition, columns):
            rows = table.num_rows
            mask = None if kept is None else pa.array(kept[at : at + rows])
            at += rows
            for name in columns:
                data = plain(table.column(name))
                if may_hold_anything(table.schema.field(name)):
                    data = as_texts(data)
                _count(found, name, data if mask is None else data.filter(mask))
    except DataError as error:
        return str(error)
    return found


def _tables(partition: Any, columns: list[str]) -> Iterator[pa.Table]:
    if is_delayed(partition):  # a piece of a Dask frame
        yield partition.content.compute()
    else:
        yield from (table for _, table in partition.tables(columns))


def _count(found: ValueCounts, name: str, data: pa.ChunkedArray) -> None:
    """Add the values of a column. Nothing that a row holds may fail here: texts are counted as bytes."""
    text = is_text(data.type)
    pairs = pc.value_counts(data.cast(pa.large_binary()) if text else data)
    counts = pairs.field("counts").to_numpy(zero_copy_only=False).astype(np.int64)
    for value, count in zip(pairs.field("values").to_pylist(), counts.tolist(), strict=True):
        if value is None or not text:
            found[name, value] += count
        elif (
            (word := value.decode("utf-8", "replace")).isprintable() and len(word) <= LONGEST and "\ufffd" not in word
        ):
            found[name, word] += count
