"""Large text files cut at the ends of lines, so that several processes parse one file.

A newline inside quotes ends no line. Whether a place lies inside quotes depends on how many quotes come before it, so
they are counted first, piece by piece; a file with an odd number of them is read in one piece.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from daskrado.lake.mapping import run_tasks
from daskrado.lake.text_tables import TextFormat, byte_range, file_size, read_text

if TYPE_CHECKING:
    from distributed import Client

PIECE_BYTES = 64 << 20
_STEP = 1 << 20
_PACKED = re.compile(r"\.(zip|gz|bz2|zst|lz4|arff)$", re.IGNORECASE)

A = TypeVar("A")
B = TypeVar("B")
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Piece:
    """Some whole lines of a text file; all of it by default. ``names`` are its columns, if no header is in it."""

    source: str
    start: int = 0
    stop: int | None = None
    names: tuple[str, ...] = ()

    def tables(self, form: TextFormat) -> Iterator[pa.Table]:
        """Its tables of text columns."""
        if self.names:
            form = replace(form, names=self.names, header=False, skip_lines=0)
        return read_text(self.source, form, (self.start, self.stop))


def pieces(sources: Sequence[str], form: TextFormat, client: Client | None) -> list[Piece]:
    """The files, and where there are workers the pieces of large ones, in their order."""
    return [piece for source in sources for piece in _cut(source, form, client)]


def _cut(source: str, form: TextFormat, client: Client | None) -> list[Piece]:
    whole = [Piece(source)]
    if client is None or _PACKED.search(source) or form.is_arff(source):
        return whole
    size = file_size(source)
    starts = [*range(0, size, PIECE_BYTES)]
    if len(starts) < 2:
        return whole
    counted = [*in_turn(client, _quotes, [(source, start, start + PIECE_BYTES) for start in starts])]
    before = [0, *itertools.accumulate(counted)]
    if before[-1] % 2:
        return whole
    names = tuple(next(read_text(source, form)).column_names)
    ends = [_line_end(source, start, bool(count % 2)) for start, count in zip(starts, before, strict=False)][1:]
    marks = sorted({0, *ends, size})
    first, *rest = itertools.pairwise(marks)
    return [Piece(source, *first), *(Piece(source, start, stop, names) for start, stop in rest)]


def _quotes(place: tuple[str, int, int]) -> int:
    return sum(block.count(b'"') for block in _blocks(*place))


def _blocks(source: str, start: int, stop: int) -> Iterator[bytes]:
    for at in range(start, stop, _STEP):
        block = byte_range(source, at, min(at + _STEP, stop))
        if not block:
            return
        yield block


def _line_end(source: str, start: int, quoted: bool) -> int:
    """The first place from ``start`` on where a line begins."""
    at = start
    while block := byte_range(source, at, at + _STEP):
        for mark in re.finditer(rb'["\n]', block):
            if mark[0] == b'"':
                quoted = not quoted
            elif not quoted:
                return at + mark.end()
        at += len(block)
    return at


def in_turn(
    client: Client | None, function: Callable[[A], B], items: Iterable[A], progress: Callable[[], None] | None = None
) -> Iterator[B]:
    """The function of every item, here or on workers, in the order of the items."""
    if client is None:
        for item in items:
            yield function(item)
            if progress is not None:
                progress()
        return
    report = None if progress is None else lambda _done, _total: progress()
    given = [(item,) for item in items]
    yield from run_tasks(
        client, "ingest", function, given, place=lambda i: f"piece {i + 1} of the files", report=report
    )
