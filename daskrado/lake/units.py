"""Who owns which rows: for each row, how many its unit has in the whole lake, exactly.

A row without an id belongs to nobody and counts as nothing. Where the footers show that every unit's rows lie in one
partition, but for those at the edge of a file, each task counts for itself (``lake/unit_edges``). Else units are
counted beforehand: in this process (``lake/unit_counts``), or on workers (``lake/unit_shuffle``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from daskrado.errors import DataError, UsageError
from daskrado.lake.frame_blocks import name_problem
from daskrado.lake.frame_columns import id_type
from daskrado.lake.scan import Lake
from daskrado.lake.unit_counts import Counting, PlacedWeights, Weights, count_here
from daskrado.lake.unit_edges import Edges, Spans, count_edges
from daskrado.lake.unit_ids import type_problem, unit_hashes
from daskrado.privacy.protect import Protect
from daskrado.table.nearest import no_column

if TYPE_CHECKING:
    from distributed import Client

    from daskrado.lake.unit_shuffle import ClusterWeights


@dataclass(frozen=True)
class Units:
    """What one unit may count for, and what rows count for that: ``spans`` of ids by partition, or ``weights``."""

    counting: Counting = field(repr=False)
    spans: Spans | None = field(default=None, repr=False)
    edges: Edges = field(default_factory=Edges, repr=False)
    weights: PlacedWeights | ClusterWeights | None = field(default=None, repr=False)

    @property
    def bound(self) -> int:
        """What one unit counts for at most."""
        return self.counting.bound

    @property
    def sampled(self) -> bool:
        """Whether rows are kept or left out, and not weighted."""
        return self.counting.record is not None

    def of_partition(self, partition: Any, content: pa.Table | None = None, first: int = 0) -> Weights:
        """The weight of each row of a partition that begins at the lake's row ``first``, in the order of its rows."""
        if self.weights is not None:
            return self.weights.cut(first, partition.rows)
        assert self.spans is not None
        tables = _read(partition, self.counting.columns, content)
        found = self.counting.alone(tables)
        if (span := self.spans[partition.identity]) is not None:
            self.edges.bound(found, tables, self.counting.column, span, first)
        return found

    def of_lake(self, lake: Lake) -> Iterator[tuple[Any, Weights]]:
        """Every partition with the weights of its rows, one after another."""
        first = 0
        for partition in lake.partitions:
            yield partition, self.of_partition(partition, None, first)
            first += partition.rows

    def owners(self, partition: Any, content: pa.Table | None, key: bytes) -> NDArray[np.uint64]:
        """A number for the unit of each row of a partition under another key, by which units are dealt out."""
        tables = _read(partition, [self.counting.column], content)
        return np.concatenate([unit_hashes(table.column(self.counting.column), key)[:, 0] for table in tables])


@dataclass(frozen=True)
class Keys:
    """What tasks need and nobody else may see: the key of signatures, and what rows count for."""

    material: bytes = b""
    units: Units | None = None

    def __repr__(self) -> str:
        return "<Keys>"

    def __bool__(self) -> bool:
        return bool(self.material) or self.units is not None

    @property
    def on_workers(self) -> ClusterWeights | None:
        """The weights, where they lie on workers: each task gets those of its own rows."""
        weights = None if self.units is None else self.units.weights
        return None if isinstance(weights, PlacedWeights) else weights

    def for_workers(self) -> Keys:
        """What tasks may hold."""
        return self if self.on_workers is None else self.with_weights(None)

    def with_weights(self, weights: PlacedWeights | None) -> Keys:
        """The same with these weights."""
        assert self.units is not None
        return replace(self, units=replace(self.units, weights=weights))


def check_units(lake: Lake, protect: Protect, record: str | None) -> None:
    """Refuse a unit column that the lake's schema shows to be unusable."""
    if protect.column is None:
        return
    if protect.how == "sample" and record is None:
        raise UsageError(
            "protect.unit.how: sample keeps records by their id: name the domain's id column, or use how: spread"
        )
    named = [("column", protect.column, type_problem)]
    if protect.within is not None:
        named.append(("within", protect.within, name_problem))
    for path, schema in lake.schemas or (("", lake.schema),):
        for key, column, problem_of in named:
            where = f"{path}: protect.unit.{key} {column!r}".removeprefix(": ")
            if column not in schema.names:
                raise DataError(f"{where}: {no_column(column, schema.names)}")
            if (problem := problem_of(id_type(schema.field(column)))) is not None:
                raise DataError(f"{where} {problem}")


def units_of(
    lake: Lake,
    protect: Protect | None,
    key: bytes,
    record: str | None,
    *,
    client: Client | None = None,
    report: Any = None,
    earlier: Lake | None = None,
) -> Units | None:
    """How the rows of a lake count where units are protected; None where rows are.

    ``client`` has units counted on its workers, where the rows are not in this process. Units count for what they
    have left after their rows of an ``earlier`` lake.
    """
    if protect is None or protect.column is None:
        return None
    check_units(lake, protect, record)
    record = record if protect.how == "sample" else None
    parts = [*(() if earlier is None else earlier.partitions), *lake.partitions]
    before = 0 if earlier is None else earlier.rows
    counting = Counting(protect.column, protect.rows_per_unit, record, key, protect.within, before)
    alone = protect.within is None and earlier is None
    spans = lake.spans(protect.column) if alone else None  # which are of ids alone
    client = None if lake.in_memory else client
    if spans is not None:
        return Units(counting, spans, count_edges(counting, lake.partitions, spans, client))
    if client is None:
        counted = count_here(counting, parts)
        return Units(counting, weights=PlacedWeights((-before,), counted.arrays))
    from daskrado.lake.unit_shuffle import ClusterWeights

    return Units(counting, weights=ClusterWeights(client, counting, parts, report))


def _read(partition: Any, columns: list[str], content: pa.Table | None) -> list[pa.Table]:
    if content is None and not isinstance(getattr(partition, "content", None), pa.Table | None):
        content = partition.content.compute()  # a piece of a Dask frame
    return [content] if content is not None else [table for _, table in partition.tables(columns)]
