"""The only map and tree reduction: partitions become partial sums, partial sums become one exact Summary."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from daskrado.errors import ClusterError, DataError, UsageError
from daskrado.lake.failures import RETRIES, failure, given_up, refuse
from daskrado.lake.partial import (
    CHUNK_ROWS,
    FAN_IN,
    Job,
    Partial,
    Share,
    merge_all,
    merge_tree,
    partition_partial,
)
from daskrado.lake.row_store import RowStore
from daskrado.lake.scan import Lake, open_lake
from daskrado.lake.seeds import SignatureKey
from daskrado.lake.watch import Watch
from daskrado.statistics.base import Additive, Rows, Statistic, Summary
from daskrado.table.domain import Domain
from daskrado.table.inner_loops import REPAID_CELLS
from daskrado.table.lattice import Lattice

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["CHUNK_ROWS", "FAN_IN", "Partial", "Passes", "Share", "collect", "open_passes"]

TASK_BYTES = 64 << 20  # of encoded rows: a task reads several small files, up to this much
LEAST_TASKS = 8  # for every thread of the workers, so that all end at about the same time
COMPILER_NEEDS = (
    1 << 30
)  # of a worker's memory the compiler of inner loops takes an eighth of this: smaller ones go without

Progress = Callable[[int, int], None]


def collect(
    statistic: Statistic,
    lake: Lake,
    domain: Domain,
    lattice: Lattice,
    *,
    key: SignatureKey | None = None,
    client: Client | None = None,
    progress: Progress | None = None,
    strict: bool = False,
    secret_rows: bool = False,
) -> Summary:
    """Sum a statistic over a lake, exactly.

    In this process without a ``client``, else by tasks on its workers. The result has the same bits either way. Tasks
    are pure and draw no noise, so that a retried or doubled one changes nothing. Unusable rows count as nothing; if
    ``strict``, they raise a DataError that names files and columns.
    """
    with open_passes(
        lake,
        domain,
        lattice,
        seeded=statistic.needs_seeds,
        placed=statistic.needs_place,
        key=key,
        client=client,
        memory=0,
        strict=strict,
        secret_rows=secret_rows,
    ) as passes:
        return passes.sum(statistic, progress=progress)


class Passes:
    """Sums over one lake, one after another; see :func:`open_passes`."""

    def __init__(
        self, lake: Lake, job: Job, key: SignatureKey, store: RowStore, client: Client | None, secret_rows: bool
    ) -> None:
        self.lake = lake
        self._rows = None if secret_rows else lake.rows  # what a grid may be judged by
        self.lattice = job.lattice
        self.domain = job.domain
        self.done = 0
        self._job = job
        self._key = key
        self._store = store
        self._client = client

    def sum(self, statistic: Additive, *, share: Share | None = None, progress: Progress | None = None) -> Summary:
        """One pass: sum a statistic over the lake, or over one share of its rows."""
        if isinstance(statistic, Statistic):
            self.lattice.guard(self._rows, statistic.largest_per_row(self.lattice))
        statistic.check_rows(self.lake.rows)
        if statistic.noises_rows and self._key.public:
            raise UsageError(f"statistic {statistic.name} draws noise on rows: its key must be secret, drop the seed")
        job = replace(self._job, statistic=statistic, share=share)
        report = progress or silent
        if self._client is None:
            total = _here(job, self.lake, self._key.key_bytes(), report, self._store)
        else:
            total = _on_cluster(self._client, job, self.lake, report, near=self._store.limit > 0)
        if total.problems:
            refuse(total.problems)
        if total.rows != self.lake.rows:
            raise DataError("the lake changed while it was read: another number of rows than in its footers")
        self.done += 1
        return Summary(statistic, self.lattice, total.vector, total.rows)

    def over_another(self, source: Any) -> contextlib.AbstractContextManager[Passes]:
        """Passes over another, public lake of the same Domain, on the same workers."""
        key = SignatureKey.from_seed(1)
        return open_passes(
            open_lake(source, self.domain, strict=True),
            self.domain,
            self.lattice,
            seeded=True,
            by_record=False,
            key=key,
            client=self._client,
            strict=True,
        )


@contextlib.contextmanager
def open_passes(
    lake: Lake,
    domain: Domain,
    lattice: Lattice,
    *,
    seeded: bool = False,
    by_record: bool | None = None,
    placed: bool = False,
    key: SignatureKey | None = None,
    client: Client | None = None,
    memory: int | None = None,
    strict: bool = False,
    secret_rows: bool = False,
) -> Iterator[Passes]:
    """Repeated sums over one lake. Encoded partitions stay in memory where they fit and are read again where not.

    ``memory`` is the number of bytes for rows in each process: by default 40 % of a worker's limit, or of what this
    machine has left. Rows are kept beside Dask's own data, so that they are never spilled to disk.
    ``by_record`` gives rows their seeds by record id; by default wherever the Domain has one.
    ``placed`` tells rows their place in the lake. ``strict`` refuses unusable rows, which else count as nothing.
    ``secret_rows``: nothing that is said or refused may depend on the number of rows.
    """
    statistic = _Nothing(domain.width)
    records = seeded and domain.id is not None if by_record is None else by_record
    compiled = lake.rows * domain.width >= REPAID_CELLS and _least_limit(client) >= COMPILER_NEEDS
    job = Job(
        statistic,
        domain,
        lattice,
        secrets.token_hex(8),
        by_record=records,
        seeded=seeded,
        compiled=compiled,
        strict=strict,
    )
    if placed:
        job = replace(job, rows=lake.rows)
    secret = key or SignatureKey.secret()
    client = None if lake.in_memory else client
    store = RowStore(_memory(client) if memory is None else memory)
    if client is None:
        yield Passes(lake, job, secret, store, None, secret_rows)
    else:
        with _key_on_workers(client, job.ticket, secret.key_bytes(), store):
            yield Passes(lake, job, secret, store, client, secret_rows)


class _Nothing(Additive):
    """The placeholder of a session that has not been asked for a sum yet."""

    name = "nothing"
    size = 0

    def zero(self) -> NDArray[Any]:
        """Nothing."""
        return np.zeros(0)

    def partial(self, rows: Rows) -> NDArray[Any]:
        """Nothing of any rows."""
        del rows
        return np.zeros(0)


def silent(done: int, total: int) -> None:
    """No progress wanted."""
    del done, total


def _here(job: Job, lake: Lake, material: bytes, report: Progress, store: RowStore) -> Partial:
    """The same tree of merges as on a cluster, so that float sums have the same bits too."""

    def parts() -> Iterator[Partial]:
        for done, (first, partition) in enumerate(zip(_firsts(lake), lake.partitions, strict=True), start=1):
            content = partition.content.compute() if is_delayed(partition) else None
            yield partition_partial(job, partition, material, content, first, store)
            report(done, len(lake.partitions))

    return merge_tree(job, parts())


def _on_cluster(client: Client, job: Job, lake: Lake, report: Progress, *, near: bool) -> Partial:
    stages: list[Any] = []
    with given_up(client, stages):
        return _reduce(job, lake, client, report, stages, near)


def _reduce(job: Job, lake: Lake, client: Client, report: Progress, stages: list[Any], near: bool) -> Partial:
    from distributed import as_completed  # only where there are workers: Dask takes a quarter of a second

    mark = secrets.token_hex(4)  # passes of one session must not share results
    if job.statistic.secret:
        # Its parameters depend on the rows, so they stay out of the task graph; every worker has a copy.
        shared = client.scatter(job, broadcast=True, hash=False)
    else:
        # A task, not scattered data: if the worker that holds it dies, it is made again.
        shared = client.submit(_same, job, key=f"daskrado-job-{job.ticket}-{mark}", pure=False)
    workers = client.scheduler_info(n_workers=-1)["workers"]
    runs = _runs(lake.partitions, job.domain.width, sum(worker["nthreads"] for worker in workers.values()))
    prefix = f"daskrado-partial-{job.ticket}-{mark}-"
    names = [f"{prefix}{i}-{_identity(run)}" for i, run in enumerate(runs)]
    contents = [client.compute(run[0].content) if is_delayed(run[0]) else None for run in runs]
    firsts = _firsts(lake)[:: len(runs[0])]
    level: list[Any] = [None] * len(runs)
    # Where rows are kept, a partition goes to the same worker in every pass; it may still be taken by another.
    homes = sorted(workers) if near and workers else [None]
    for turn, home in enumerate(homes):
        mine = slice(turn, None, len(homes))
        level[mine] = client.map(
            _task,
            [shared] * len(runs[mine]),
            [tuple(without_delayed(partition) for partition in run) for run in runs[mine]],
            contents[mine],
            firsts[mine],
            key=names[mine],
            retries=RETRIES,
            pure=False,
            workers=home,
            allow_other_workers=home is not None,
        )
    stages.extend(level)
    done, depth = 0, 0
    while True:
        groups = [level[i : i + FAN_IN] for i in range(0, len(level), FAN_IN)]
        merged = client.map(
            merge_all,
            [shared] * len(groups),
            groups,
            key=[f"daskrado-merge-{job.ticket}-{mark}-{depth}-{i}" for i in range(len(groups))],
            retries=RETRIES,
            pure=False,
        )
        if depth == 0:
            sizes = {m.key: sum(map(len, runs[FAN_IN * i : FAN_IN * (i + 1)])) for i, m in enumerate(merged)}
            first = as_completed(merged, loop=client.loop)  # never the process's default client
            give_up = partial(client.cancel, merged, force=True)
        stages[:] = merged
        level = merged
        depth += 1
        if len(level) == 1:
            break
    # The tree is submitted whole: partial sums die as soon as their group is merged.
    with Watch(client, prefix, partial(_place, runs, prefix), give_up) as watch:
        for future in first:
            if future.status != "finished":
                raise ClusterError(watch.problem) if watch.problem is not None else failure(future)
            done += sizes[future.key]
            report(done, len(lake.partitions))
        root = level[0]
        if root.exception() is not None:
            raise ClusterError(watch.problem) if watch.problem is not None else failure(root)
        return root.result()  # type: ignore[no-any-return]


def _runs(partitions: Sequence[Any], width: int, threads: int) -> list[Sequence[Any]]:
    """The partitions that each task reads: whole groups of the tree of merges, so that floats sum as file by file."""
    sizes = [8 * width * partition.rows for partition in partitions]
    length = 1
    while len(sizes) > 1 and not any(map(is_delayed, partitions)):
        grown = [sum(sizes[i : i + FAN_IN]) for i in range(0, len(sizes), FAN_IN)]
        if max(grown) > TASK_BYTES or len(grown) < LEAST_TASKS * max(1, threads):
            break
        sizes, length = grown, FAN_IN * length
    return [partitions[i : i + length] for i in range(0, len(partitions), length)]


def _identity(run: Sequence[Any]) -> str:
    """Changes whenever a file of the run is overwritten."""
    digest = hashlib.blake2b("\n".join(partition.identity for partition in run).encode(), digest_size=12)
    return digest.hexdigest()


def _place(runs: list[Sequence[Any]], prefix: str, key: str) -> str:
    """The file of a task, by its key, or the first of its files."""
    first, *others = runs[int(key.removeprefix(prefix).partition("-")[0])]
    return str(getattr(first, "path", first.name)) + (f" or one of the next {len(others)} files" if others else "")


def _firsts(lake: Lake) -> list[int]:
    """The position in the lake of each partition's first row, from the footers."""
    return [0, *itertools.accumulate(partition.rows for partition in lake.partitions[:-1])]


def is_delayed(partition: Any) -> bool:
    """Whether a partition is a piece of a Dask DataFrame that is yet to be computed."""
    return hasattr(getattr(partition, "content", None), "__dask_graph__")  # Dask's own mark of a collection


def without_delayed(partition: Any) -> Any:
    """The partition as a task may hold it: its content travels beside it."""
    if is_delayed(partition):
        return type(partition)(partition.name, None, partition.rows, partition.identity)
    return partition


def _same(job: Job) -> Job:
    return job


def _task(job: Job, run: Sequence[Any], content: Any, first: int) -> Partial:
    from distributed import get_worker

    plugin = get_worker().plugins[_plugin_name(job.ticket)]
    starts = itertools.accumulate((partition.rows for partition in run), initial=first)
    return merge_tree(
        job,
        (
            partition_partial(job, partition, plugin.material, content, start, plugin.store)
            for partition, start in zip(run, starts, strict=False)
        ),
    )


def _plugin_name(ticket: str) -> str:
    return f"daskrado-key-{ticket}"


def _register(client: Client, plugin: Any) -> None:
    """Again if a worker dies while it is being told: the scheduler forgets nobody, and telling twice does no harm."""
    for attempt in range(RETRIES + 1):
        try:
            client.register_plugin(plugin)
        except OSError as error:
            if attempt == RETRIES:
                raise ClusterError("the scheduler or its workers were lost as the work began") from error
        else:
            return


@contextlib.contextmanager
def _key_on_workers(client: Client, ticket: str, material: bytes, store: RowStore) -> Iterator[None]:
    from daskrado.lake.key_plugin import KeyPlugin

    _register(client, KeyPlugin(_plugin_name(ticket), material, store))
    try:
        yield
    finally:
        with contextlib.suppress(Exception):
            client.unregister_worker_plugin(_plugin_name(ticket))


def _memory(client: Client | None) -> int:
    """Bytes for kept rows in each process: 40 % of the smallest worker's limit, or of this machine's free memory."""
    if client is None:
        import psutil

        return int(0.4 * psutil.virtual_memory().available)
    return int(0.4 * _least_limit(client))


def _least_limit(client: Client | None) -> int:
    """Bytes that the smallest worker may have."""
    if client is None:
        return COMPILER_NEEDS
    limits = [worker["memory_limit"] for worker in client.scheduler_info(n_workers=-1)["workers"].values()]
    return int(min((limit for limit in limits if limit), default=COMPILER_NEEDS))
