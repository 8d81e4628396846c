"""Units counted on workers: records go to their units and weights back to their rows by Dask's own shuffle (p2p).

Workers hold a few stretches of rows at a time; what waits lies in the shuffle's files in their local directories, as
keyed hashes and numbers of rows, and is removed with the shuffle. Weights stay in scratch files without a name on the
worker that made them, as plain futures: they end with the client, and are made again if a worker dies.
"""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import logging
import secrets
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from daskrado.lake.asking import ask_workers, persist, workers_of
from daskrado.lake.failures import RETRIES, gathered, give_up
from daskrado.lake.label import job_label
from daskrado.lake.unit_counts import (
    PLACED,
    RECORD,
    Counting,
    PlacedWeights,
    ScratchArray,
    Stretch,
    Weights,
    stretches,
)
from daskrado.lake.watch import Watch

if TYPE_CHECKING:
    import pandas as pd
    from distributed import Client

_BUCKET_ROWS = 1 << 19  # records that a task weighs at once
_FULL = 0.8  # of a worker's memory, where Dask gives it no more tasks
_TARGET, _CONTENT = "target", "content"  # columns of what is shuffled


class ClusterWeights:
    """The weights of a lake's rows on the workers that made them; they never pass through this process."""

    def __init__(self, client: Client, counting: Counting, partitions: Sequence[Any], report: Any = None) -> None:
        self._client = client
        self._counting = counting
        self._cuts = stretches(partitions)
        self._report = report
        self._held: list[Any] = []
        self.count()

    def __repr__(self) -> str:
        return f"<ClusterWeights of {len(self._cuts)} stretches>"

    def __reduce__(self) -> Any:
        raise TypeError("weights on workers are not copied: tasks get those of their own rows")

    def count(self) -> None:
        """Count all units, or those whose weights a lost worker took away."""
        if not self._held or any(future.status not in ("finished", "pending") for future in self._held):
            self.close()
            self._held = persist(self._client, self._counted)

    def close(self) -> None:
        """Release the weights."""
        for future in self._held:
            future.release()
        self._held = []

    def within(self, first: int, rows: int) -> tuple[tuple[int, ...], list[Any]]:
        """Where the stretches that hold some rows begin, and the futures of their weights."""
        before = self._counting.before  # rows of the lake that were counted, and are not among those that are read
        chosen = [
            (cut.first - before, future)
            for cut, future in zip(self._cuts, self._held, strict=True)
            if cut.first - before < first + rows and first < cut.first - before + cut.rows
        ]
        return tuple(start for start, _ in chosen), [future for _, future in chosen]

    def cut(self, first: int, rows: int) -> Weights:
        """The weights of some rows, fetched: for jobs that treat rows in this process."""
        starts, futures = self.within(first, rows)
        return PlacedWeights(starts, tuple(found.array for found in gathered(self._client, futures))).cut(first, rows)

    def _counted(self) -> list[Any]:
        """One future for the weights of each stretch, all of them made."""
        import dask

        logging.getLogger("distributed.shuffle").setLevel(logging.ERROR)  # it tells of each shuffle as a warning
        label = job_label()
        name = partial(label.task_name, mark=secrets.token_hex(8))
        shared = ask_workers(self._client, self._client.scatter, _Shared(self._counting), direct=True, hash=False)
        graph = contextvars.Context().run(self._graph, shared, name("units"))  # Dask's frames take no annotations
        with dask.annotate(**label.annotation()), Watch(self._client, name("units"), lambda _: "the lake") as watch:
            made = self._client.compute(graph, retries=RETRIES, sync=False)
            watch.follow(made)
            while watch.open:
                try:
                    watch.next()
                except BaseException:
                    give_up(self._client, made)
                    raise
                if self._report is not None:
                    self._report(len(made) - watch.open, len(made))
        return list(made)

    def _graph(self, shared: Any, name: str) -> list[Any]:
        """Records by stretch, shuffled to their units, weighed, shuffled back, spread over the rows."""
        import dask.dataframe as dd
        from dask import delayed

        cuts = self._cuts
        contents = [getattr(cut.parts[0], "content", None) for cut in cuts]  # pieces of a Dask frame
        buckets = max(len(workers_of(self._client)), -(-sum(cut.rows for cut in cuts) // _BUCKET_ROWS))
        count, spread = delayed(_records_of, pure=False), delayed(_spread, pure=False)
        counted = [
            count(cut, shared, content, buckets, dask_key_name=f"{name}-count-{number}")
            for number, (cut, content) in enumerate(zip(map(_bare, cuts), contents, strict=True))
        ]
        meta = _packed(np.zeros(0, RECORD), np.zeros(0, np.intp))
        records = dd.from_delayed(counted, meta=meta, verify_meta=False)
        owned = _sent(records, buckets)
        home = _sent(owned.map_partitions(_weigh, shared, tuple(cut.first for cut in cuts), meta=meta), len(cuts))
        return [
            spread(cut, shared, content, placed, dask_key_name=f"{name}-weights-{number}")
            for number, (cut, content, placed) in enumerate(
                zip(map(_bare, cuts), contents, home.to_delayed(), strict=True)
            )
        ]


class _Shared:
    """A counting with its key: scattered, never part of a task, and never shown."""

    def __init__(self, counting: Counting) -> None:
        self.counting = counting

    def __repr__(self) -> str:
        return "<secret>"


def _bare(cut: Stretch) -> Stretch:
    """A stretch as a task may hold it: the content of a frame travels beside it."""
    from daskrado.lake.dealing import without_delayed

    return Stretch(cut.first, cut.rows, tuple(map(without_delayed, cut.parts)))


def _give_back() -> None:
    """Return what was freed to the system once this worker is full.

    Workers are told to keep what was freed for their next pass, which this is none of.
    """
    from distributed import get_worker

    worker = get_worker()
    limit = worker.memory_manager.memory_limit
    if limit is None or worker.monitor.get_process_memory() < _FULL * limit:
        return
    pa.default_memory_pool().release_unused()
    with contextlib.suppress(OSError, AttributeError):  # a system without glibc
        ctypes.CDLL(None).malloc_trim(0)


def _packed(records: NDArray[Any], targets: NDArray[Any]) -> pd.DataFrame:
    """Records as Dask shuffles them: one row for each partition that some go to, with all of those as bytes."""
    import pandas as pd

    order = np.argsort(targets.astype(np.uint16) if targets.max(initial=0) < 1 << 16 else targets, kind="stable")
    ordered, content = targets[order], records[order]
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)])
    ends = np.append(starts, len(ordered)) * records.itemsize
    parts = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(starts), [None, pa.py_buffer(ends), pa.py_buffer(content)]
    )
    return pd.DataFrame(
        {_TARGET: ordered[starts].astype(np.int64), _CONTENT: pd.array(parts, pd.ArrowDtype(parts.type))}
    )


def _unpacked(frame: pd.DataFrame, kind: np.dtype[Any]) -> NDArray[Any]:
    parts = [part.as_buffer() for part in pa.array(frame[_CONTENT])]
    return np.frombuffer(b"".join(parts), kind)


def _sent(frame: Any, partitions: int) -> Any:
    """A frame of packed records with each row in the partition that it names."""
    return frame.set_index(_TARGET, divisions=list(range(partitions + 1)), shuffle_method="p2p")


def _records_of(cut: Stretch, shared: _Shared, content: pa.Table | None, buckets: int) -> pd.DataFrame:
    _give_back()
    counting = shared.counting
    records = counting.records(cut.tables(counting.columns, content), cut.first)
    return _packed(records, records["low"] % np.uint64(buckets))


def _weigh(frame: pd.DataFrame, shared: _Shared, firsts: tuple[int, ...]) -> pd.DataFrame:
    _give_back()
    placed = shared.counting.weigh(_unpacked(frame, RECORD))
    return _packed(placed, np.searchsorted(np.array(firsts), placed["place"], side="right") - 1)


def _spread(cut: Stretch, shared: _Shared, content: pa.Table | None, frame: pd.DataFrame) -> ScratchArray:
    from distributed import get_worker

    _give_back()
    counting = shared.counting
    weights = counting.expand(cut.tables(counting.naming, content), cut.first, _unpacked(frame, PLACED), cut.rows)
    return ScratchArray(weights, get_worker().local_directory)
