"""Encoded rows kept from one pass to the next: in memory, or in a scratch file without a name."""

from __future__ import annotations

import mmap
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from daskrado.statistics.base import Rows
from daskrado.table.compact import Compact, Layout
from daskrado.table.domain import Domain

_NAME = "array"


class RowStore:
    """Blocks of rows by partition: ``limit`` bytes in memory at most, then ``scratch`` bytes in files in ``folder``.

    A file is unlinked as it is made (O_TMPFILE where there is one), readable by this user alone, and memory-mapped:
    it ends with the process, however that ends. Never pickled with content.
    """

    def __init__(self, limit: int, scratch: int = 0, folder: str | Path | None = None) -> None:
        self.limit = limit
        self.scratch = scratch
        self.folder = folder
        self.used = 0
        self.written = 0
        self._kept: dict[str, list[Rows]] = {}

    def __repr__(self) -> str:
        return f"<RowStore of {len(self._kept)} partitions>"

    def __reduce__(self) -> Any:
        return RowStore, (self.limit, self.scratch, self.folder)

    def get(self, identity: str) -> list[Rows] | None:
        """The blocks of a partition, if they were kept."""
        return self._kept.get(identity)

    def room(self, size: int) -> bool:
        """Set ``size`` bytes of memory aside if they fit."""
        if not 0 < self.used + size <= self.limit:
            return False
        self.used += size
        return True

    def keep(self, identity: str, found: list[Rows]) -> None:
        """Keep a partition's blocks in memory; :meth:`room` was asked before."""
        self._kept.setdefault(identity, found)

    def disk(self, size: int) -> bool:
        """Set ``size`` bytes of scratch files aside if they fit."""
        if not 0 < self.written + size <= self.scratch:
            return False
        self.written += size
        return True

    def write(self, identity: str, found: list[Rows]) -> None:
        """Keep a partition's blocks in a scratch file; :meth:`disk` was asked before. A full disk keeps nothing."""
        if (mapped := _mapped(found, self.folder)) is not None:
            self._kept.setdefault(identity, mapped)


def disk_room(folder: str | Path) -> int:
    """Bytes of scratch files for which a folder's disk has room: half of what is free."""
    try:
        return shutil.disk_usage(folder).free // 2
    except OSError:
        return 0


def row_bytes(domain: Domain, *, seeded: bool = True, grouped: bool = True, weighted: bool = False) -> int:
    """Bytes of one kept row: its features, its label, its seed, its group, its weight."""
    own = 8 * domain.width if domain.kernel is not None else Layout.of(domain).row_bytes
    return own + (2 if domain.label.target == "number" else 1) + 8 * seeded + 4 * grouped + 2 * weighted


def _mapped(blocks: list[Rows], folder: str | Path | None) -> list[Rows] | None:
    """The same compact blocks, in a file that only this process holds; None where it cannot be written."""
    try:
        with tempfile.TemporaryFile(dir=folder, prefix="daskrado-") as file:
            with pa.ipc.new_file(file, pa.schema([(_NAME, pa.large_binary())])) as writer:
                for block in blocks:
                    for array in _arrays(block):
                        content = pa.py_buffer(np.ascontiguousarray(array))
                        writer.write_batch(_batch(content))
            file.flush()
            held = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError:
        return None
    reader = pa.ipc.open_file(pa.py_buffer(held))
    arrays = (reader.get_batch(i).column(0).buffers()[2] for i in range(reader.num_record_batches))
    return [_rows(block, arrays) for block in blocks]


def _batch(content: pa.Buffer) -> pa.RecordBatch:
    """One value of raw bytes: an array of a block, in a column of Arrow's file format."""
    ends = pa.py_buffer(np.array([0, content.size], dtype=np.int64))
    value = pa.Array.from_buffers(pa.large_binary(), 1, [None, ends, content])
    return pa.RecordBatch.from_arrays([value], names=[_NAME])


def _arrays(block: Rows) -> list[np.ndarray]:
    """What is written of a block; its layout and its place are no rows."""
    assert isinstance(block.features, Compact)
    optional = [array for array in (block.seeds, block.groups, block.weights) if array is not None]
    return [block.features.one, *block.features.parts, block.y, *optional]


def _rows(block: Rows, buffers: Iterator[pa.Buffer]) -> Rows:
    """A block whose arrays lie in the file."""
    assert isinstance(block.features, Compact)

    def mapped(array: np.ndarray) -> Any:
        return np.frombuffer(next(buffers), dtype=array.dtype, count=array.size).reshape(array.shape)

    one, *parts = (mapped(array) for array in (block.features.one, *block.features.parts))
    features = Compact(block.features.layout, one, tuple(parts))
    y = mapped(block.y)
    seeds = None if block.seeds is None else mapped(block.seeds)
    groups = None if block.groups is None else mapped(block.groups)
    weights = None if block.weights is None else mapped(block.weights)
    return replace(block, features=features, y=y, seeds=seeds, groups=groups, weights=weights)
