"""Teachers on a cluster: trained where their rows are gathered, kept in memory, asked for votes, never written."""

from __future__ import annotations

import contextlib
import itertools
import math
import secrets
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from daskrado.errors import ClusterError, DataError
from daskrado.lake.asking import persist, workers_of
from daskrado.lake.crew import Progress
from daskrado.lake.dealing import is_delayed, without_delayed
from daskrado.lake.failures import RETRIES, gathered, give_up, refuse
from daskrado.lake.label import job_label
from daskrado.lake.mapping import run_tasks
from daskrado.lake.partial import FAN_IN
from daskrado.lake.room import give_back, promised, refuse_spilling
from daskrado.lake.scan import Lake
from daskrado.lake.steps import begin_step
from daskrado.lake.teachers import (
    AsideRows,
    Course,
    Trained,
    add_ballots,
    facts,
    pick_aside,
    piece,
    same,
    split_rows,
    train_group,
    vote,
)
from daskrado.lake.watch import Watch
from daskrado.statistics.votes import Votes

if TYPE_CHECKING:
    from distributed import Client

WAVE_BYTES = 64 << 20  # encoded rows that a worker may hold between reading and training
HELD = 2  # times: in pieces, and joined for training


class Ensemble:
    """Trained teachers. ``votes`` and ``error_units`` are private: they may only reach a mechanism."""

    def __init__(self, course: Course, trained: Sequence[Any], client: Client | None) -> None:
        self.course = course
        self._trained = trained
        self._client = client

    def __repr__(self) -> str:
        return f"<Ensemble of {self.course.sharding.count} teachers, private>"

    def votes(self, queries: NDArray[np.float64]) -> Votes:
        """How many teachers vote for each class on each query."""
        classes = len(self.course.classes)
        if self._client is None:
            ballots = [vote(group, part, queries, classes) for group, part in self._pairs()]
            return Votes(add_ballots(ballots).counts)
        name = partial(job_label().task_name, mark=secrets.token_hex(8))
        with Watch(self._client, name("vote"), lambda _: "the teachers' votes") as watch:
            shared = self._client.submit(same, queries, key=name("queries"), pure=False)
            level = [
                self._client.submit(
                    vote, group, part, shared, classes, key=f"{name('vote')}-{i}", retries=RETRIES, pure=False
                )
                for i, (group, part) in enumerate(self._pairs())
            ]
            depth = 0
            while len(level) > 1:
                level = [
                    self._client.submit(
                        add_ballots,
                        level[i : i + FAN_IN],
                        key=f"{name('ballots')}-{depth}-{i}",
                        retries=RETRIES,
                        pure=False,
                    )
                    for i in range(0, len(level), FAN_IN)
                ]
                depth += 1
            watch.follow(level)
            try:
                return Votes(gathered(self._client, watch.next()).counts)
            except Exception as error:  # its text may come from a learner that has seen rows
                raise ClusterError(f"the votes could not be gathered: {type(error).__name__}") from None

    def error_units(self) -> int:
        """Sum over teachers of the share that each gets wrong on the next shard of its group, in ERROR_UNITs.

        Sensitivity
            A record trains one teacher and examines one: two rates in [0, 1] move, so 2 ERROR_UNIT for every shard
            that a protected unit reaches.
        """
        if self._client is None:
            return sum(part.errors for part in self._trained)
        items = [(trained,) for trained in self._trained]
        found = run_tasks(self._client, "facts", facts, items, place=lambda _: "the teachers' facts")
        return sum(fact[1] for fact in found)

    def _pairs(self) -> Iterator[tuple[range, Any]]:
        return zip(self.course.groups(), self._trained, strict=True)


@contextlib.contextmanager
def train(
    course: Course, lake: Lake, *, client: Client | None = None, progress: Progress | None = None
) -> Iterator[Ensemble]:
    """Train every teacher and keep them for the duration of the block.

    The lake is read in waves: one wave reads it once, keeps the rows of as many shards as fit in the workers' memory,
    gathers them by shard and trains. So memory does not grow with the lake; a larger cluster needs fewer waves. The
    scheduler grants that memory, as it does for kept rows: where other jobs have it, waves are a quarter as large.
    """
    report = progress or _silent
    begin_step(progress, "teacher")
    if client is None or lake.in_memory:
        yield Ensemble(course, _train_here(course, lake, report), None)
        return
    refuse_spilling(client)
    ticket = secrets.token_hex(8)
    try:
        held = persist(client, partial(_train_on, client, course, lake, report, ticket))
    finally:
        give_back(client, ticket)
    try:
        yield Ensemble(course, held, client)
    finally:
        give_up(client, held)


def waves(course: Course, rows: int, room: int) -> list[list[int]]:
    """Indices of groups, cut so that the encoded rows of one wave fit into so many bytes."""
    groups = len(course.groups())
    number = min(groups, max(1, math.ceil(_encoded(course, rows) / room)))
    edges = [groups * i // number for i in range(number + 1)]
    return [list(range(a, b)) for a, b in itertools.pairwise(edges)]


def _encoded(course: Course, rows: int) -> int:
    """Bytes of so many encoded rows."""
    return rows * (course.domain.width + 3) * 8


def _room(client: Client, course: Course, rows: int, ticket: str) -> int:
    """Bytes of rows that a wave may hold on all workers: what the scheduler grants, and never less than a quarter."""
    workers = max(1, len(workers_of(client)))
    most = WAVE_BYTES * workers
    given = promised(client, ticket, HELD * (min(most, _encoded(course, rows)) + workers))  # shares are rounded down
    return max(most // 4, sum(given.values()) // HELD)


def _train_here(course: Course, lake: Lake, report: Progress) -> list[Trained]:
    groups, trained = course.groups(), []
    for wave in waves(course, lake.rows, WAVE_BYTES):
        chosen = [groups[i] for i in wave]
        splits = []
        for first, partition in _placed(lake):
            content = partition.content.compute() if is_delayed(partition) else None
            splits.append(split_rows(course, chosen, partition, first, content))
        for at, group in enumerate(chosen):
            part = train_group(course, group, [split[at] for split in splits])
            if part.problems:
                refuse(part.problems)
            trained.append(part)
            report(group.stop, course.sharding.count)
    _check_rows(sum(part.rows for part in trained), course, lake)
    return trained


def _train_on(client: Client, course: Course, lake: Lake, report: Progress, ticket: str) -> list[Any]:
    """One future for each group of teachers, all of them trained."""
    import dask

    groups, label, done, rows = course.groups(), job_label(), 0, 0
    name = partial(label.task_name, mark=secrets.token_hex(8))
    held: list[Any] = []
    with dask.annotate(**label.annotation()), Watch(client, name("split"), lambda _: "the lake") as watch:
        # A task, not scattered data: if the worker that holds it dies, it is made again.
        shared = client.submit(same, course, key=name("course"), pure=False)
        for number, wave in enumerate(waves(course, lake.rows, _room(client, course, lake.rows, ticket))):
            chosen = [groups[i] for i in wave]
            splits = [
                client.submit(
                    split_rows,
                    shared,
                    chosen,
                    without_delayed(partition),
                    first,
                    client.compute(partition.content) if is_delayed(partition) else None,
                    key=f"{name('split')}-{number}-{i}-{partition.identity}",
                    retries=RETRIES,
                    pure=False,
                )
                for i, (first, partition) in enumerate(_placed(lake))
            ]
            sizes = {}
            for at, group in enumerate(chosen):
                part = _taught(client, shared, group, at, splits, f"{name('teachers')}-{number}")
                held.append(part)
                fact = client.submit(facts, part, key=f"{name('facts')}-{group.start}", pure=False)
                sizes[fact.key] = len(group)
                watch.follow([fact])
            del splits
            while watch.open:
                future = watch.next()
                found, _, problems = gathered(client, future)
                if problems:
                    refuse(problems)
                rows += found
                done += sizes[future.key]
                report(done, course.sharding.count)
    _check_rows(rows, course, lake)
    return held


def _taught(client: Client, shared: Any, group: range, at: int, splits: Sequence[Any], name: str) -> Any:
    """The teachers of one group, from its pieces of every partition; the pieces end with the training."""
    pieces = [
        client.submit(piece, split, at, key=f"{name}-piece-{at}-{i}", pure=False) for i, split in enumerate(splits)
    ]
    return client.submit(train_group, shared, group, pieces, key=f"{name}-{group.start}", retries=RETRIES, pure=False)


def _placed(lake: Lake) -> Iterator[tuple[int, Any]]:
    first = 0
    for partition in lake.partitions:
        yield first, partition
        first += partition.rows


def _check_rows(found: int, course: Course, lake: Lake) -> None:
    if course.sharding.aside == 0 and found != lake.rows:
        raise DataError("the lake changed while it was read: its rows are not those of its footers")


def rows_aside(course: Course, lake: Lake, limit: int, *, client: Client | None = None) -> AsideRows:
    """At most ``limit`` rows kept aside, in hash order. Their labels are dropped where they are read.

    Only for a relation under which features, and so the positions of rows, are public.
    """
    if client is None:
        found = [
            pick_aside(course, p, at, limit, p.content.compute() if is_delayed(p) else None)
            for at, p in _placed(lake)
        ]
    else:
        items = [
            (course, without_delayed(p), at, limit, client.compute(p.content) if is_delayed(p) else None)
            for at, p in _placed(lake)
        ]
        found = run_tasks(client, "aside", pick_aside, items, place=lambda _: "the lake")
    problems = sorted(part for part in found if isinstance(part, str))
    if problems:
        refuse(problems)
    return AsideRows.first([part for part in found if isinstance(part, AsideRows)], course.domain.width, limit)


def _silent(done: int, total: int) -> None:
    """No progress wanted."""
    del done, total
