"""Copies of all that a process leaves, from every moment, put back while the ledger stays: for contracts on it."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Forge = Callable[[str], int]
MOST = 9  # copies of a part that are put back: the first, the last, and some between

# Notes every low-level draw and every count; copies what a backup would find after each sync.
SPY = """
import json, os, pathlib, shutil
import daskrado, daskrado.ledger.account as account, daskrado.jobs.load
from daskrado.ledger.ledger import Ledger
from daskrado.privacy import gamma, noise
from daskrado.privacy.continual import ContinualGaussian
from matplotlib.figure import Figure
Figure.savefig = lambda self, to, **_: to.write('<svg></svg>')
world, copies, log = pathlib.Path({world!r}), pathlib.Path({copies!r}), open({log!r}, 'a', buffering=1)
def note(*what):
    log.write(json.dumps(what) + chr(10))
def noted(real):
    def call(*a, **k):
        note('noise', real.__name__)
        return real(*a, **k)
    return call
for module, name in (
    (noise, '_add'), (noise, '_chooser'), (noise, 'random_words'), (gamma, '_uniform'),
    (ContinualGaussian, 'release'),  # from a key: the noise of earlier nights is made again, and is no draw
):
    setattr(module, name, noted(getattr(module, name)))
count = Ledger.count_draw
def counted(self, grant, name, digest='', **where):
    count(self, grant, name, digest, **where)
    note('count', grant.entry, name, digest)
Ledger.count_draw = counted
os.chdir({ward!r})
sync = os.fsync
def copying(handle):
    sync(handle)
    for part in {parts!r}:
        held = world / part
        number = len([*copies.glob(part + '#*')])
        if held.exists():
            shutil.copytree(held, copies / f'{{part}}#{{number:04d}}', ignore_dangling_symlinks=True)
"""


@dataclass
class World:
    """A folder with a ledger and all that runs leave, and copies of its parts from every moment."""

    place: Path
    ward: Path
    forge: Forge
    parts: tuple[str, ...] = ("ledger.sqlite.runs", "ledger.sqlite.engines", "place")
    base: Path = field(init=False)
    there: set[str] = field(default_factory=set)  # parts that were there before

    def __post_init__(self) -> None:
        self.world, self.copies, self.base = (self.place / name for name in ("world", "copies", "base"))
        for folder in (self.world, self.copies):
            folder.mkdir()

    def execute(self, code: str, log: str) -> list[Any]:
        """Run a program under the spy; what it noted."""
        file = self.place / log
        file.write_text("")
        spy = SPY.format(
            world=str(self.world), copies=str(self.copies), log=str(file), ward=str(self.ward), parts=self.parts
        )
        self.forge(spy + code)
        return [json.loads(line) for line in file.read_text().splitlines()]

    def keep(self) -> None:
        """From here on every attempt begins with this ledger."""
        shutil.copytree(self.world, self.base)

    def before(self) -> None:
        """Copy what is there before a program runs."""
        for part in self.parts:
            if (self.world / part).exists():
                self.there.add(part)
                shutil.copytree(self.world / part, self.copies / f"{part}#0000")

    def part_copies(self, part: str, most: int = MOST) -> list[Path | None]:
        """Distinct copies of a part, the present one last; None where it was not there yet."""
        found: dict[str, Path | None] = {} if part in self.there else {"": None}
        for path in sorted(self.copies.glob(f"{part}#*")):
            content = {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}
            found.setdefault(repr(sorted(content.items())), path)
        copies = [*found.values(), self.base / part if (self.base / part).exists() else None]
        steps = max(1, -(-len(copies) // most))
        return [copies[0], *copies[1:-1:steps], copies[-1]]

    def combinations(self) -> Iterator[tuple[Path | None, ...]]:
        """What a backup could put back: every part from a moment of its own."""
        yield from itertools.product(*(self.part_copies(part) for part in self.parts[:-1]), self.outputs())

    def outputs(self) -> list[Path | None]:
        there = self.base / self.parts[-1]
        return [there, None] if (there / "out").exists() else [there]

    def put_back(self, parts: tuple[Path | None, ...]) -> None:
        shutil.rmtree(self.world)
        shutil.copytree(self.base, self.world)
        for part, copy in zip(self.parts, parts, strict=True):
            shutil.rmtree(self.world / part, ignore_errors=True)
            if copy is not None:
                shutil.copytree(copy, self.world / part)
        (self.world / self.parts[-1]).mkdir(exist_ok=True)


def counts(events: list[Any]) -> list[tuple[int, str, str]]:
    return [(entry, name, digest) for what, entry, name, digest in (e for e in events if e[0] == "count")]


def check_counted_before(events: list[Any]) -> None:
    """No noise before the first count of its process, and no count twice, unless it is the same to the bit."""
    first = next((at for at, event in enumerate(events) if event[0] == "count"), len(events))
    assert not [event for event in events[:first] if event[0] == "noise"]


def check_never_twice(before: list[Any], after: list[Any]) -> None:
    for entry, name, digest in counts(after):
        assert all((entry, name) != (e, n) or (digest and digest == d) for e, n, d in counts(before)), name
