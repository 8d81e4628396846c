"""The only map and tree reduction: partitions become partial sums, partial sums become one exact Summary."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from dask.delayed import Delayed
from distributed import Client, WorkerPlugin, as_completed, get_worker

from daskrado.domain import Domain
from daskrado.encoding import EncodedTable, encode_table, needed_columns
from daskrado.errors import ClusterError, DataError
from daskrado.lake.scan import Lake
from daskrado.lake.seeds import SignatureKey, position_seeds, record_seeds
from daskrado.lattice import Lattice
from daskrado.statistics.base import IntVector, Rows, Statistic, Summary

CHUNK_ROWS = 32_768  # encoded rows held at once by a task
FAN_IN = 8
RETRIES = 3

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Job:
    """Everything public that a task needs; the signature key is looked up by ``ticket``."""

    statistic: Statistic
    domain: Domain
    lattice: Lattice
    ticket: str
    by_record: bool


@dataclass(frozen=True)
class Partial:
    """A partial sum, or why its partition cannot be used. Problems travel as values: they need no retry."""

    vector: IntVector
    rows: int
    problems: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<Partial of {len(self.vector)} private integers>"


def collect(
    statistic: Statistic,
    lake: Lake,
    domain: Domain,
    lattice: Lattice,
    *,
    key: SignatureKey | None = None,
    client: Client | None = None,
    progress: Progress | None = None,
) -> Summary:
    """Sum a statistic over a lake, exactly.

    In this process without a ``client``, else by tasks on its workers. The result has the same bits either way. Tasks
    are pure and draw no noise, so that a retried or doubled one changes nothing. Unusable rows raise a DataError that
    names files and columns and counts rows.
    """
    lattice.guard(lake.rows, statistic.largest_per_row(lattice))
    job = Job(
        statistic, domain, lattice, secrets.token_hex(8), by_record=domain.id is not None and statistic.needs_seeds
    )
    material = (key or SignatureKey.secret()).reveal()
    report = progress or _silent
    run = _here if client is None else partial(_on_cluster, client)
    total = run(job, lake, material, report)
    if total.problems:
        more = f" (and {len(total.problems) - 3} more)" if len(total.problems) > 3 else ""
        raise DataError("; ".join(total.problems[:3]) + more)
    if total.rows != lake.rows:
        raise DataError(f"the lake changed while it was read: {total.rows} rows, {lake.rows} in its footers")
    return Summary(statistic, lattice, total.vector, total.rows)


def _silent(done: int, total: int) -> None:
    """No progress wanted."""
    del done, total


def _here(job: Job, lake: Lake, material: bytes, report: Progress) -> Partial:
    total = Partial(job.statistic.zero(), 0)
    for done, partition in enumerate(lake.partitions, start=1):
        content = partition.content.compute() if _is_delayed(partition) else None
        total = merge(job.statistic, total, _partial(job, partition, material, content))
        report(done, len(lake.partitions))
    return total


def _on_cluster(client: Client, job: Job, lake: Lake, material: bytes, report: Progress) -> Partial:
    with _key_on_workers(client, job.ticket, material):
        stages: list[Any] = []
        try:
            return _reduce(job, lake, client, report, stages)
        except BaseException:
            with contextlib.suppress(Exception):
                client.cancel(stages, force=True)
            raise


def _reduce(job: Job, lake: Lake, client: Client, report: Progress, stages: list[Any]) -> Partial:
    shared = client.scatter(job, broadcast=False, hash=False)
    names = [f"daskrado-partial-{job.ticket}-{i}-{p.identity}" for i, p in enumerate(lake.partitions)]
    contents = [
        client.compute(p.content) if isinstance(getattr(p, "content", None), Delayed) else None
        for p in lake.partitions
    ]
    partitions = [_without_delayed(p) for p in lake.partitions]
    level = client.map(
        _task,
        [shared] * len(partitions),
        partitions,
        contents,
        key=names,
        retries=RETRIES,
        pure=False,
    )
    stages.extend(level)
    done, depth = 0, 0
    sizes = {future.key: 1 for future in level}
    while True:
        groups = [level[i : i + FAN_IN] for i in range(0, len(level), FAN_IN)]
        merged = [
            client.submit(
                _merge_task,
                shared,
                group,
                key=f"daskrado-merge-{job.ticket}-{depth}-{i}",
                retries=RETRIES,
                pure=False,
            )
            for i, group in enumerate(groups)
        ]
        if depth == 0:
            sizes = {m.key: len(g) for m, g in zip(merged, groups, strict=True)}
            first = as_completed(merged)
        stages[:] = merged
        level = merged
        depth += 1
        if len(level) == 1:
            break
    # The tree is submitted whole: partial sums die as soon as their group is merged.
    for future in first:
        if future.status == "error":
            _raise(future)
        done += sizes[future.key]
        report(done, len(lake.partitions))
    root = level[0]
    if root.exception() is not None:
        _raise(root)
    return root.result()  # type: ignore[no-any-return]


def _raise(future: Any) -> None:
    error = future.exception()
    if isinstance(error, DataError):
        raise error
    raise ClusterError(f"a task failed {RETRIES + 1} times: {type(error).__name__}: {error}") from error


def _is_delayed(partition: Any) -> bool:
    return isinstance(getattr(partition, "content", None), Delayed)


def _without_delayed(partition: Any) -> Any:
    if _is_delayed(partition):
        return type(partition)(partition.name, None, partition.rows, partition.identity)
    return partition


def _task(job: Job, partition: Any, content: Any) -> Partial:
    return _partial(job, partition, get_worker().plugins[_plugin_name(job.ticket)].material, content)


def _merge_task(job: Job, parts: list[Partial]) -> Partial:
    total = Partial(job.statistic.zero(), 0)
    for part in parts:
        total = merge(job.statistic, total, part)
    return total


def merge(statistic: Statistic, a: Partial, b: Partial) -> Partial:
    """Exact sum of two partials; problems are kept in a fixed order."""
    return Partial(statistic.merge(a.vector, b.vector), a.rows + b.rows, tuple(sorted({*a.problems, *b.problems})))


def _partial(job: Job, partition: Any, material: bytes, content: Any) -> Partial:
    """The statistic of one partition: a pure function of its rows and the key."""
    columns = needed_columns(job.domain, ids=job.by_record)
    vector, rows = job.statistic.zero(), 0
    buffer = np.empty((CHUNK_ROWS, job.domain.width), order="F")
    tables = partition.tables(columns) if content is None else [(0, content.select(columns))]
    try:
        for group, table in tables:
            encoded = encode_table(job.domain, table, ids=job.by_record)
            if encoded.problems:
                return _unusable(job, partition, encoded)
            for block in blocks(job, encoded, f"{partition.name}#{group}", material, buffer):
                vector = job.statistic.merge(vector, job.statistic.partial(block))
            if encoded.problems:
                return _unusable(job, partition, encoded)
            rows += encoded.length
    except DataError as error:
        return Partial(job.statistic.zero(), 0, (str(error),))
    return Partial(vector, rows)


def _unusable(job: Job, partition: Any, encoded: EncodedTable) -> Partial:
    where = getattr(partition, "path", partition.name)
    return Partial(job.statistic.zero(), 0, tuple(f"{where}: {problem}" for problem in encoded.problems))


def blocks(job: Job, encoded: EncodedTable, name: str, material: bytes, buffer: np.ndarray) -> Iterator[Rows]:
    """Cut an encoded table into blocks of rows on the lattice; ends early when the table shows a problem."""
    assert encoded.labels is not None
    for start in range(0, encoded.length, CHUNK_ROWS):
        stop = min(start + CHUNK_ROWS, encoded.length)
        encoded_rows = encoded.block(start, stop, buffer)
        if encoded.problems:
            return
        x = job.lattice.quantise(encoded_rows)
        seeds = None
        if job.statistic.needs_seeds:
            if encoded.ids is not None:
                seeds = record_seeds(material, encoded.ids[start:stop])
            else:
                seeds = position_seeds(material, name, start, stop - start)
        yield Rows(x, encoded.labels[start:stop], seeds)


def _plugin_name(ticket: str) -> str:
    return f"daskrado-key-{ticket}"


class _KeyPlugin(WorkerPlugin):  # type: ignore[misc]
    """Brings the signature key to every worker, also to one that joins later, outside the task graph."""

    def __init__(self, ticket: str, material: bytes) -> None:
        self.name = _plugin_name(ticket)
        self.material = material

    def __repr__(self) -> str:
        return "<key plugin>"


@contextlib.contextmanager
def _key_on_workers(client: Client, ticket: str, material: bytes) -> Iterator[None]:
    client.register_plugin(_KeyPlugin(ticket, material))
    try:
        yield
    finally:
        with contextlib.suppress(Exception):
            client.unregister_worker_plugin(_plugin_name(ticket))
