"""One reduction after another on workers: secrets sent past the scheduler, rows kept as futures, few large tasks."""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from daskrado import __version__
from daskrado.errors import ClusterError
from daskrado.lake.asking import ask_workers, persist, wanted_resources, workers_of
from daskrado.lake.dealing import cut, deal, is_delayed, without_delayed
from daskrado.lake.failures import RETRIES, gathered
from daskrado.lake.label import job_label
from daskrado.lake.mapping import WINDOW
from daskrado.lake.partial import FAN_IN, Job, Partial, partition_partial
from daskrado.lake.room import WorkerStore, give_back, promised
from daskrado.lake.row_store import RowStore
from daskrado.lake.scan import Lake
from daskrado.lake.sheaf import Sheaf, gather, join
from daskrado.lake.unit_counts import PlacedWeights, ScratchArray
from daskrado.lake.units import Keys
from daskrado.lake.watch import Watch
from daskrado.lake.worker_logs import keep_text_only

if TYPE_CHECKING:
    from distributed import Client


Progress = Callable[[int, int], None]
Names = Callable[[str], str]  # of tasks, by what they do


@dataclass(frozen=True, repr=False)
class Secret:
    """What may never pass through a scheduler: a signature key, or a sum whose parameters depend on rows.

    It is scattered data, never part of a task: the last tasks that a worker was sent stay in its memory until the
    scheduler sends it something else, also after their job has ended.
    """

    content: Any

    def __repr__(self) -> str:
        return "<secret>"

    def __setstate__(self, state: dict[str, Any]) -> None:
        keep_text_only()  # before it can be sent on
        self.__dict__.update(state)


@dataclass(frozen=True)
class Piece:
    """Consecutive partitions that one task reads, and the worker that keeps their rows, if one does."""

    place: int  # of the first partition in the lake
    first: int  # row of it, counted over the lake
    partitions: Sequence[Any]
    store: Any = None
    home: str | None = None


class Crew:
    """The workers of one session over one lake."""

    def __init__(self, client: Client, lake: Lake, ticket: str, keys: Keys, row_bytes: int, memory: int | None):
        self._client = client
        self._lake = lake
        self._ticket = ticket
        self._keys = keys
        self._row_bytes = row_bytes
        self._memory = memory
        self._label = job_label()
        self._key: Any = None
        self._kept: list[Piece] | None = None
        self._tries: Counter[str] = Counter()

    def sum(self, job: Job, report: Progress) -> Partial:
        """The exact sum over the lake; what a lost worker or connection took away is done again."""
        return persist(self._client, partial(self._once, job, report), self._forget)

    def close(self) -> None:
        """Release rows and key on the workers."""
        if self._kept:
            give_back(self._client, self._ticket)
        # By name: an exception that somebody holds may hold the futures, too.
        for future in (self._key, *(piece.store for piece in self._kept or ())):
            if hasattr(future, "release"):
                future.release()
        self._key, self._kept = None, None

    def _forget(self) -> None:
        """Send the key anew; keep rows anew where Dask has forgotten them."""
        self._key = None
        if self._kept and any(piece.store.status not in ("finished", "pending") for piece in self._kept):
            self.close()

    def _once(self, job: Job, report: Progress) -> Partial:
        import dask

        if (weights := self._keys.on_workers) is not None:
            weights.count()  # again, where a lost worker took some away
        name = partial(self._label.task_name, mark=f"{self._ticket}-{secrets.token_hex(4)}")
        prefix = f"{name('partial')}-"
        with (
            dask.annotate(**self._label.annotation()),
            Watch(self._client, prefix, partial(_place, self._lake, prefix), self._tries) as watch,
        ):
            if self._key is None and self._keys:
                self._key = self._hand_over(self._keys.for_workers())
            pieces = [*self._keep(), *self._read(job)]
            groups = [pieces[i : i + FAN_IN] for i in range(0, len(pieces), FAN_IN)]
            tops = self._few if len(groups) == 1 else self._many
            found = gathered(self._client, tops(job, groups, name, watch, report))
        return join(job, found).root()

    def _few(self, job: Job, groups: list[list[Piece]], name: Names, watch: Watch, report: Progress) -> list[Any]:
        """One task for each piece; their sums are merged here: the shortest way for a pass over kept rows."""
        shared = self._hand_over(job) if job.statistic.secret else job
        leaves = self._submit(shared, groups[0], name)
        watch.follow(leaves)
        self._await(watch, {leaf.key: len(p.partitions) for leaf, p in zip(leaves, groups[0], strict=True)}, report)
        return leaves

    def _many(self, job: Job, groups: list[list[Piece]], name: Names, watch: Watch, report: Progress) -> list[Any]:
        """Some tasks at a time, merged FAN_IN at a time as they end; the last few sums are merged here."""
        # A task, not scattered data: if the worker that holds it dies, it is made again.
        shared = (
            self._hand_over(job)
            if job.statistic.secret
            else self._client.submit(_same, job, key=name("job"), pure=False)
        )
        tree, sizes = _Tree(self._client, shared, name("merge")), dict[str, int]()
        for group in groups:
            merged = tree.add(self._submit(shared, group, name))
            sizes[merged.key] = sum(len(piece.partitions) for piece in group)
            watch.follow([merged])
            self._await(watch, sizes, report, self._window)
        self._await(watch, sizes, report)
        tops = tree.tops()
        watch.follow(tops)
        while watch.open:
            watch.next()
        return tops

    def _await(self, watch: Watch, sizes: dict[str, int], report: Progress, most: int = 0) -> None:
        """Wait until at most so many tasks are under way; report the partitions of those that ended."""
        total = len(self._lake.partitions)
        while watch.open > most:
            sizes.pop(watch.next().key)
            report(total - sum(sizes.values()), total)

    def _hand_over(self, content: Any) -> Any:
        """Send it straight to a worker, from which the others fetch it; it is released with the client.

        Not to all at once: Dask's broadcast never ends, on the scheduler, if a worker is killed meanwhile.
        """
        return ask_workers(self._client, self._client.scatter, Secret(content), direct=True, hash=False)

    @cached_property
    def _threads(self) -> int:
        return max(1, sum(worker["threads"] for worker in workers_of(self._client).values()))

    @property
    def _window(self) -> int:
        return max(2, -(-WINDOW * self._threads // FAN_IN))

    def _read(self, job: Job) -> list[Piece]:
        """Pieces of the lake whose rows are not kept."""
        kept = self._keep()
        place = kept[-1].place + len(kept[-1].partitions) if kept else 0
        first = sum(partition.rows for partition in self._lake.partitions[:place])
        pieces = []
        for run in cut(self._lake.partitions[place:], job.domain.width, self._threads):
            pieces.append(Piece(place, first, run))
            place, first = place + len(run), first + sum(partition.rows for partition in run)
        return pieces

    def _submit(self, shared: Any, group: list[Piece], name: Names) -> list[Any]:
        """Tasks with kept rows one by one, each to its home; the others together, which spares the scheduler work."""
        homes = {piece.home for piece in group}
        parts = [group] if homes == {None} else [[piece] for piece in group]
        return [future for part in parts for future in self._submit_alike(shared, part, f"{name('partial')}-")]

    def _submit_alike(self, shared: Any, group: list[Piece], prefix: str) -> list[Any]:
        home, size = group[0].home, len(self._lake.partitions)
        wholes = [piece.partitions[0] for piece in group]
        found: list[Any] = self._client.map(
            _task,
            [shared] * len(group),
            [self._key] * len(group),
            [piece.store for piece in group],
            [tuple(without_delayed(partition) for partition in piece.partitions) for piece in group],
            [(piece.place, piece.first, size) for piece in group],
            [self._client.compute(whole.content) if is_delayed(whole) else None for whole in wholes],
            *self._weights(group),
            key=[f"{prefix}{piece.place}-{_identity(piece.partitions)}" for piece in group],
            retries=RETRIES,
            pure=False,
            **_near(home),
        )
        return found

    def _weights(self, group: list[Piece]) -> list[list[Any]]:
        """What the rows of each piece count for, where that lies on workers."""
        if (weights := self._keys.on_workers) is None:
            return []
        found = [weights.within(piece.first, sum(part.rows for part in piece.partitions)) for piece in group]
        return [[starts for starts, _ in found], [futures for _, futures in found]]

    def _keep(self) -> list[Piece]:
        """Partitions dealt out to workers: as many as there is room for in memory, the others to scratch files.

        Scratch files are for sessions that were given no limit; a worker whose disk has no room reads again.
        """
        if self._memory == 0:
            return []
        if self._kept is not None:
            return self._kept
        self._kept = []
        workers = workers_of(self._client)
        if self._memory is None:
            sizes = [self._row_bytes * partition.rows for partition in self._lake.partitions]
            promises = promised(self._client, self._ticket, sum(sizes) + len(workers) * max(sizes, default=0))
        else:
            promises = dict.fromkeys(workers, self._memory)
        slots = [
            (home, promises.get(home, 0) // worker["threads"])
            for home, worker in workers.items()
            for _ in range(worker["threads"])
        ]
        self._give_stores(slots, scratch=False)
        if self._memory is None:
            self._give_stores([(home, sys.maxsize) for home, _ in slots], scratch=True)
        return self._kept

    def _give_stores(self, slots: Sequence[tuple[str, int]], *, scratch: bool) -> None:
        """Deal the partitions that no worker keeps yet to slots of (home, room), in memory or in scratch files."""
        assert self._kept is not None
        done = sum(len(piece.partitions) for piece in self._kept)
        before = sum(partition.rows for partition in self._lake.partitions[:done])
        name = self._label.task_name("rows", f"{self._ticket}-{secrets.token_hex(4)}")
        dealt = deal(self._lake.partitions[done:], slots, self._row_bytes)
        for number, (home, room, place, first, run) in enumerate(dealt):
            store = self._client.submit(
                WorkerStore,
                *((0, room) if scratch else (room,)),
                key=f"{name}-{number}",
                retries=RETRIES,
                pure=False,
                **_near(home),
            )
            self._kept.append(Piece(done + place, before + first, run, store, home))


class _Tree:
    """Merges futures FAN_IN at a time, in the order in which they are handed in."""

    def __init__(self, client: Client, shared: Any, name: str) -> None:
        self._client = client
        self._shared = shared
        self._name = name
        self._levels: list[list[Any]] = []
        self._made = 0

    def add(self, group: list[Any]) -> Any:
        """Merge a group of tasks; partial sums are released as soon as their group is merged."""
        merged = self._merge(group, 0)
        self._push(merged, 0)
        return merged

    def tops(self) -> list[Any]:
        """The merges that nothing has merged yet: together they are everything."""
        return [node for level in self._levels for node in level]

    def _push(self, node: Any, depth: int) -> None:
        if depth == len(self._levels):
            self._levels.append([])
        self._levels[depth].append(node)
        if len(self._levels[depth]) == FAN_IN:
            group, self._levels[depth] = self._levels[depth], []
            self._push(self._merge(group, depth + 1), depth + 1)

    def _merge(self, group: list[Any], depth: int) -> Any:
        self._made += 1
        return self._client.submit(
            _join, self._shared, group, key=f"{self._name}-{depth}-{self._made}", retries=RETRIES, pure=False
        )


def _near(home: str | None) -> dict[str, Any]:
    """Where a task goes: to the worker that has its rows, to another if that is gone.

    Where workers must offer resources Dask alone chooses, by where rows are: told of a home that may be left, its
    scheduler sends tasks to workers that offer nothing, and fails, when the last one that does goes away.
    """
    return {} if home is None or wanted_resources() else {"workers": home, "allow_other_workers": True}


def _identity(run: Sequence[Any]) -> str:
    """Changes whenever a file of the run is overwritten."""
    digest = hashlib.blake2b("\n".join(partition.identity for partition in run).encode(), digest_size=12)
    return digest.hexdigest()


def _place(lake: Lake, prefix: str, key: str) -> str:
    """The first file of a task, by its key."""
    first = lake.partitions[int(key.removeprefix(prefix).partition("-")[0])]
    return str(getattr(first, "path", first.name))


def _same(job: Job) -> Job:
    return job


def _plain(job: Any) -> Job:
    found: Job = job.content if isinstance(job, Secret) else job
    if found.version != __version__:
        raise ClusterError(
            f"a worker runs daskrado {__version__}, this job {found.version}: install the same version"
        )
    return found


def read_run(
    job: Job, partitions: Sequence[Any], keys: Keys, place: int, first: int, content: Any, store: RowStore
) -> Iterator[tuple[int, Partial]]:
    """The partial sums of consecutive partitions, by their places in the lake."""
    for partition in partitions:
        yield place, partition_partial(job, partition, keys, content, first, store)
        place, first = place + 1, first + partition.rows


def _task(
    job: Any,
    key: Secret | None,
    store: RowStore | None,
    run: Sequence[Any],
    where: tuple[int, int, int],
    content: Any,
    starts: tuple[int, ...] = (),
    weights: Sequence[ScratchArray] = (),
) -> Sheaf:
    keep_text_only()
    place, first, leaves = where
    plain, keys = _plain(job), Keys() if key is None else key.content
    if starts:
        keys = keys.with_weights(PlacedWeights(starts, tuple(held.array for held in weights)))
    return gather(plain, read_run(plain, run, keys, place, first, content, store or RowStore(0)), leaves)


def _join(job: Any, group: list[Sheaf]) -> Sheaf:
    keep_text_only()
    return join(_plain(job), group)


@contextlib.contextmanager
def crew_of(
    client: Client, lake: Lake, ticket: str, keys: Keys, row_bytes: int, memory: int | None
) -> Iterator[Crew]:
    """A crew for the length of a session; its rows and its key are released at the end."""
    crew = Crew(client, lake, ticket, keys, row_bytes, memory)
    with contextlib.closing(crew):
        yield crew
