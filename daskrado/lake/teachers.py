"""What one task does for teachers: pick rows by shard, train one group of shards, vote. Pure functions, no Dask."""

from __future__ import annotations

import contextlib
import itertools
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from daskrado.errors import DataError
from daskrado.lake.shards import ASIDE, LabelledRows, Sharding, read_rows
from daskrado.lake.silence import SILENCE
from daskrado.lake.worker_logs import keep_text_only
from daskrado.statistics.rados import mix
from daskrado.table.domain import Domain
from daskrado.table.label import Scalar

ERROR_UNIT = 1 << 20  # an error rate as an integer
_GROUP_TEACHERS = 128


class Estimator(Protocol):
    """A learner as a black box: class indices in, class indices out."""

    def fit(self, x: NDArray[np.float64], y: NDArray[np.int64]) -> Any:
        """Learn from rows."""

    def predict(self, x: NDArray[np.float64]) -> Any:
        """The class index of each row."""


class Factory(Protocol):
    """Makes one fresh estimator for each teacher; picklable."""

    def make(self, domain: Domain, seed: int) -> Estimator:
        """An unfitted estimator for rows of the Domain; ``seed`` is public and its own."""


@dataclass(frozen=True)
class Course:
    """Everything public that training needs."""

    domain: Domain
    classes: tuple[Scalar, ...]
    sharding: Sharding
    factory: Factory

    def groups(self) -> list[range]:
        """Runs of shards that one task trains: a function of their number alone, at least two shards in each."""
        count = self.sharding.count
        wanted = max(1, min(count // 2, max(16, math.ceil(count / _GROUP_TEACHERS))))
        edges = [count * i // wanted for i in range(wanted + 1)]
        return [range(a, b) for a, b in itertools.pairwise(edges)]


@dataclass(frozen=True)
class Trained:
    """The teachers of one group and facts about them. Private; lives in worker memory."""

    teachers: tuple[Any, ...]
    rows: int
    errors: int
    problems: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<{len(self.teachers)} teachers, private>"


@dataclass(frozen=True)
class Ballots:
    """Votes of some teachers. Private."""

    counts: NDArray[np.int64]

    def __repr__(self) -> str:
        return "<ballots, private>"


class Constant:
    """A teacher with one answer to every query."""

    def __init__(self, label: int) -> None:
        self.label = label

    def predict(self, x: NDArray[np.float64]) -> NDArray[np.int64]:
        """The same class for every row."""
        return np.full(len(x), self.label, dtype=np.int64)


def split_rows(
    course: Course, groups: Sequence[range], partition: Any, first: int, content: Any
) -> list[LabelledRows | str]:
    """The rows of one partition, one block for each of the groups; a problem is returned as text, not retried."""
    keep_text_only()
    parts: list[list[LabelledRows]] = [[] for _ in groups]
    low, high = groups[0].start, groups[-1].stop
    try:
        for block in read_rows(course.domain, course.classes, course.sharding, partition, first, content):
            wanted = block.where((block.shard >= low) & (block.shard < high))
            for at, group in enumerate(groups):
                parts[at].append(wanted.where((wanted.shard >= group.start) & (wanted.shard < group.stop)))
    except DataError as error:
        return [str(error)] * len(groups)
    return [LabelledRows.joined(blocks, course.domain.width) for blocks in parts]


def same(value: Any) -> Any:
    """A value as a task's result."""
    return value


def piece(split: list[LabelledRows | str], at: int) -> LabelledRows | str:
    """One group's block of a split partition."""
    return split[at]


def train_group(course: Course, group: range, pieces: Sequence[LabelledRows | str]) -> Trained:
    """Gather the rows of a group of shards, train one teacher on each, examine each on the next one's rows."""
    keep_text_only()
    problems = tuple(sorted({piece for piece in pieces if isinstance(piece, str)}))
    if problems:
        return Trained((), 0, 0, problems)
    rows = LabelledRows.joined([p for p in pieces if isinstance(p, LabelledRows)], course.domain.width)
    edges = np.searchsorted(rows.shard, np.arange(group.start, group.stop + 1))
    classes = len(course.classes)
    spans = [slice(a, b) for a, b in itertools.pairwise(edges)]
    teachers = [_teach(course, shard, rows.x[s], rows.y[s]) for shard, s in zip(group, spans, strict=True)]
    errors = 0
    for at, shard in enumerate(group):
        exam = spans[(at + 1) % len(spans)]
        errors += _error(teachers[at], shard, rows.x[exam], rows.y[exam], classes)
    return Trained(tuple(teachers), len(rows.y), errors)


def _teach(course: Course, shard: int, x: NDArray[np.float64], y: NDArray[np.int64]) -> Any:
    """One teacher, by its usable rows. A shard without any, or one whose training fails, votes for class (shard
    number mod classes) on every query; a shard with one class votes for it. The rule is public, and a record still
    reaches only its own teacher.
    """
    x, y = x[y >= 0], y[y >= 0]
    if len(y) == 0:
        return Constant(_fallback(shard, len(course.classes)))
    if (y == y[0]).all():
        return Constant(int(y[0]))
    try:
        with _quiet():
            estimator = course.factory.make(course.domain, course.sharding.seed * 1_000_003 + shard)
            estimator.fit(x, y)
            return estimator
    except Exception:  # whatever a black box does with some shard's rows must not show
        return Constant(_fallback(shard, len(course.classes)))


def _fallback(shard: int, classes: int) -> int:
    return shard % classes


def _predict(teacher: Any, shard: int, x: NDArray[np.float64], classes: int) -> NDArray[np.int64]:
    """A teacher's class indices; whatever is no class index becomes the public rule's vote."""
    fallback = np.full(len(x), _fallback(shard, classes), dtype=np.int64)
    try:
        with _quiet():
            answer = np.asarray(teacher.predict(x), dtype=np.float64).reshape(len(x))
    except Exception:
        return fallback
    known = np.isin(answer, np.arange(classes))
    fallback[known] = answer[known].astype(np.int64)
    return fallback


def _error(teacher: Any, shard: int, x: NDArray[np.float64], y: NDArray[np.int64], classes: int) -> int:
    """The share of usable rows that a teacher gets wrong, in whole ERROR_UNITs; a half where there are none."""
    x, y = x[y >= 0], y[y >= 0]
    if len(y) == 0:
        return ERROR_UNIT // 2
    return int((_predict(teacher, shard, x, classes) != y).sum()) * ERROR_UNIT // len(y)


def vote(group: range, part: Trained, queries: NDArray[np.float64], classes: int) -> Ballots:
    """How many of a group's teachers vote for each class."""
    keep_text_only()
    counts = np.zeros((len(queries), classes), dtype=np.int64)
    at = np.arange(len(queries))
    for shard, teacher in zip(group, part.teachers, strict=True):
        counts[at, _predict(teacher, shard, queries, classes)] += 1
    return Ballots(counts)


def add_ballots(ballots: Sequence[Ballots]) -> Ballots:
    """The sum of votes."""
    return Ballots(np.sum([b.counts for b in ballots], axis=0, dtype=np.int64))


def facts(part: Trained) -> tuple[int, int, tuple[str, ...]]:
    """Rows, errors and problems of a group, without its teachers. Private."""
    return part.rows, part.errors, part.problems


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """A learner's warnings and whatever it prints would tell about the rows of one shard."""
    with SILENCE, warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield


@dataclass(frozen=True)
class AsideRows:
    """Features of rows that were kept aside, their order and their positions in the lake; no label. Public only where
    features are.
    """

    x: NDArray[np.float64]
    order: NDArray[np.uint64]
    position: NDArray[np.int64]

    def __repr__(self) -> str:
        return f"<AsideRows of width {self.x.shape[1]}>"

    @classmethod
    def first(cls, parts: Sequence[AsideRows], width: int, limit: int) -> AsideRows:
        """At most ``limit`` rows of some parts, in hash order: the same for any partitioning of the lake."""
        none = cls(np.empty((0, width)), np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.int64))
        held = [none, *parts]
        order, position = (np.concatenate([getattr(p, name) for p in held]) for name in ("order", "position"))
        ranks = np.lexsort((position, mix(order)))[:limit]
        return cls(np.concatenate([p.x for p in held])[ranks], order[ranks], position[ranks])


def pick_aside(course: Course, partition: Any, first: int, limit: int, content: Any) -> AsideRows | str:
    """At most ``limit`` rows of a partition that were kept aside, their labels dropped."""
    kept: list[AsideRows] = []
    at = first
    try:
        for block in read_rows(course.domain, course.classes, course.sharding, partition, first, content):
            mine = np.flatnonzero(block.shard == ASIDE)
            kept.append(AsideRows(block.x[mine], block.order[mine], at + mine))
            at += len(block.shard)
    except DataError as error:
        return str(error)
    return AsideRows.first(kept, course.domain.width, limit)
