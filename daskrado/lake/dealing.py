"""Which partitions a task reads, and which a worker keeps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any

from daskrado.lake.partial import FAN_IN

TASK_BYTES = 64 << 20  # of encoded rows: a task reads several small files, up to this much
LEAST_TASKS = 8  # for every thread of the workers, so that all end at about the same time


def cut(partitions: Sequence[Any], width: int, threads: int) -> list[Sequence[Any]]:
    """The partitions that each task reads: several small ones, and still enough tasks for all threads."""
    sizes = [8 * width * partition.rows for partition in partitions]
    length = 1
    while len(sizes) > 1 and not any(map(is_delayed, partitions)):
        grown = [sum(sizes[i : i + FAN_IN]) for i in range(0, len(sizes), FAN_IN)]
        if max(grown) > TASK_BYTES or len(grown) < LEAST_TASKS * max(1, threads):
            break
        sizes, length = grown, FAN_IN * length
    return [partitions[i : i + length] for i in range(0, len(partitions), length)]


def deal(
    partitions: Sequence[Any], slots: Sequence[tuple[str, int]], row_bytes: int
) -> Iterator[tuple[str, int, int, int, Sequence[Any]]]:
    """Deal runs of partitions to slots of (home, room): about equal shares, none above its room, none of a frame.

    The smallest room first: what it cannot take is shared out over the larger ones.
    """
    place, first = 0, 0
    left = sum(row_bytes * partition.rows for partition in partitions)
    for number, (home, room) in enumerate(sorted(slots, key=itemgetter(1))):
        share, start, used, rows = left / (len(slots) - number), place, 0, 0
        while place < len(partitions) and used < share and not is_delayed(partitions[place]):
            size = row_bytes * partitions[place].rows
            if used + size > room:
                break
            used, rows, place = used + size, rows + partitions[place].rows, place + 1
        if place > start:
            yield home, used, start, first, partitions[start:place]
        first, left = first + rows, left - used


def is_delayed(partition: Any) -> bool:
    """Whether a partition is a piece of a Dask DataFrame that is yet to be computed."""
    return hasattr(getattr(partition, "content", None), "__dask_graph__")  # Dask's own mark of a collection


def without_delayed(partition: Any) -> Any:
    """The partition as a task may hold it: its content travels beside it."""
    if is_delayed(partition):
        return type(partition)(partition.name, None, partition.rows, partition.identity)
    return partition
