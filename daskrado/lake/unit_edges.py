"""Units of a lake that is sorted by them: only those at the edge of a file may have rows in another one.

A partition's *span* is what its footer says of the smallest and the largest id. Where no two spans have more than
their ends in common, all rows of a unit lie in one partition, but for units at shared ends. Those few are counted by
tasks that read the one column, and summed here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from daskrado.lake.asking import ask_workers, persist
from daskrado.lake.mapping import run_here, run_tasks
from daskrado.lake.unit_counts import RECORD, Counting, Records, Stretch, Weights
from daskrado.statistics.bounded import WEIGHT_BITS, unit_weights
from daskrado.table.arrow_arrays import plain

if TYPE_CHECKING:
    from distributed import Client

Span = tuple[int, int]
Spans = Mapping[str, Span | None]  # by a partition's identity; None for the only partition of a lake


@dataclass(frozen=True)
class Edges:
    """What rows of units at shared ends count for: their weight by id or, where rows are sampled, those kept."""

    weights: Mapping[int, int] = field(default_factory=dict, repr=False)
    kept: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64), repr=False)

    def bound(self, found: Weights, tables: Sequence[pa.Table], column: str, span: Span, first: int) -> None:
        """Put right, in place, the weights of a partition's rows, which were counted in this partition alone.

        Rows whose ids are not what the footer says count as nothing: a footer that errs must not split a unit in two.
        """
        ids = _ids(tables, column)
        inside = pc.and_(pc.greater_equal(ids, span[0]), pc.less_equal(ids, span[1]))
        found[~_mask(inside)] = 0
        for value in sorted({*span} & self.weights.keys()):
            found[_mask(pc.equal(ids, pa.scalar(value, ids.type)))] = self.weights[value]
        found[self.kept[(first <= self.kept) & (self.kept < first + len(found))] - first] = 1 << WEIGHT_BITS


def _ids(tables: Sequence[pa.Table], column: str) -> pa.ChunkedArray:
    return pa.chunked_array([chunk for table in tables for chunk in plain(table.column(column)).chunks])


def _mask(chosen: pa.ChunkedArray) -> NDArray[np.bool_]:
    return np.asarray(pc.fill_null(chosen, False).to_numpy())


def shared_ends(spans: Spans) -> frozenset[int]:
    """Ids that more than one span has."""
    seen = Counter(value for span in spans.values() if span is not None for value in {*span})
    return frozenset(value for value, often in seen.items() if often > 1)


@dataclass(frozen=True)
class _Ends:
    """What a task needs to count, sent past the scheduler: the counting with its key, and ids by partition."""

    counting: Counting = field(repr=False)
    values: Mapping[str, tuple[int, ...]] = field(repr=False)


def count_edges(counting: Counting, partitions: Sequence[Any], spans: Spans, client: Client | None) -> Edges:
    """Count the units at shared ends, on workers where there are some."""
    shared = shared_ends(spans)
    if not shared:
        return Edges()
    values = {name: tuple(sorted(shared & {*(span or ())})) for name, span in spans.items()}
    firsts = np.cumsum([0, *(part.rows for part in partitions)]).tolist()
    cuts = [Stretch(first, part.rows, (part,)) for part, first in zip(partitions, firsts, strict=False)]
    cuts = [cut for cut in cuts if values[cut.parts[0].identity]]
    ends: Any = _Ends(counting, values)
    if client is None:
        found = run_here(_edge_rows, [(ends, cut) for cut in cuts])
    else:
        found = persist(client, partial(_on_workers, client, ends, cuts))
    owned = Counter[int]()
    for counts, _ in found:
        owned.update(counts)
    if counting.record is None:
        weights = unit_weights(np.array([owned[value] for value in shared], dtype=np.int64), counting.bound)
        return Edges(dict(zip(shared, weights.tolist(), strict=True)))
    placed = counting.weigh(np.concatenate([records for _, records in found]))
    return Edges(dict.fromkeys(shared, 0), np.sort(placed["place"][placed["weight"] > 0]))


def _on_workers(client: Client, ends: _Ends, cuts: Sequence[Stretch]) -> list[Any]:
    held = ask_workers(client, client.scatter, ends, direct=True, hash=False)
    items = [(held, cut) for cut in cuts]
    return run_tasks(client, "units", _edge_rows, items, place=lambda at: str(cuts[at].parts[0].path))


def _edge_rows(ends: _Ends, cut: Stretch) -> tuple[dict[int, int], Records]:
    """How many rows of a partition have each of its shared ids; and, where rows are sampled, which might be kept."""
    counting, first, counts = ends.counting, cut.first, Counter[int]()
    records = [np.zeros(0, RECORD)]
    for table in cut.tables(counting.columns):
        ids = plain(table.column(counting.column))
        mine = pc.is_in(ids, value_set=pa.array(ends.values[cut.parts[0].identity], ids.type))
        counts.update(ids.filter(mine).to_pylist())
        if counting.record is not None:
            records.append(counting.ranked(table.filter(mine), 0))
            records[-1]["place"] = (first + np.flatnonzero(_mask(mine)))[records[-1]["place"]]
        first += table.num_rows
    return dict(counts), np.concatenate(records)
