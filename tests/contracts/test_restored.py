"""Files of a run of every kind, put back from earlier copies while the ledger stays: nothing is drawn twice.

A real process runs the job. At every sync a copy of all that it left is taken (journals, engines, the output's
folder); then any copy of each part is put back, in combination, and another process resumes the run. Both note every
draw of noise and every draw that the ledger counts: no noise without a count before it, no count twice, and the truth
is told.
"""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from every_kind import ENGINES, KINDS, OTHERS, make_ward, pipeline

from daskrado.jobs.base import Job
from daskrado.ledger.ledger import Ledger, State
from daskrado.registry import kinds

Forge = Callable[[str], int]
MOST = 9  # copies of a part that are put back: the first, the last, and some between
PARTS = ("ledger.sqlite.runs", "ledger.sqlite.engines", "place")
PROTECT_NOBODY = {"adaboost", "learn from rados", "local encode"}  # the last one draws as kind local does
ENGINE_KINDS = {"teachers"}  # their engine outlives the run
UNUSED = {"queries"}  # an engine may have draws left that were paid for and not made
TRUTH = ("the charge stays", "nothing left to finish", "nothing to resume", "no such run", "never got a grant")

# Notes every low-level draw and every count; copies what a backup would find after each sync.
SPY = """
import json, os, pathlib, shutil
import daskrado, daskrado.ledger.account as account, daskrado.jobs.load
from daskrado.ledger.ledger import Ledger
from daskrado.privacy import gamma, noise
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
for module, name in ((noise, '_add'), (noise, '_chooser'), (noise, '_random_words'), (gamma, '_uniform')):
    setattr(module, name, noted(getattr(module, name)))
count = Ledger.count_draw
def counted(self, grant, name, digest=''):
    count(self, grant, name, digest)
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
RUN = "os.fsync = copying\ndaskrado.run({path!r})\n"
DYING = """
import contextlib, signal
@contextlib.contextmanager
def elsewhere(*a, **k):
    seen = world.parent / 'seen'
    seen.mkdir(exist_ok=True)
    yield seen
    os.kill(os.getpid(), signal.SIGKILL)
account.new_folder = elsewhere
"""
RESUME = """
try:
    result = daskrado.resume({run!r})
    note('done', *result.notes)
except daskrado.errors.DaskradoError as error:
    note('refused', str(error))
"""


@dataclass
class World:
    """A folder with a ledger and all that runs leave, and copies of its parts from every moment."""

    place: Path
    ward: Path
    forge: Forge
    base: Path = field(init=False)

    def __post_init__(self) -> None:
        self.world, self.copies, self.base = (self.place / name for name in ("world", "copies", "base"))
        for folder in (self.world, self.copies):
            folder.mkdir()

    def execute(self, code: str, log: str) -> list[Any]:
        """Run a program under the spy; what it noted."""
        file = self.place / log
        file.write_text("")
        spy = SPY.format(
            world=str(self.world), copies=str(self.copies), log=str(file), ward=str(self.ward), parts=PARTS
        )
        self.forge(spy + code)
        return [json.loads(line) for line in file.read_text().splitlines()]

    def keep(self) -> None:
        """From here on every attempt begins with this ledger."""
        shutil.copytree(self.world, self.base)

    def part_copies(self, part: str) -> list[Path | None]:
        """Distinct copies of a part, the present one last; None where it was not there yet."""
        found: dict[str, Path | None] = {"": None}
        for path in sorted(self.copies.glob(f"{part}#*")):
            content = {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}
            found.setdefault(repr(sorted(content.items())), path)
        copies = [*found.values(), self.base / part if (self.base / part).exists() else None]
        steps = max(1, -(-len(copies) // MOST))
        return [copies[0], *copies[1:-1:steps], copies[-1]]

    def combinations(self) -> Iterator[tuple[Path | None, ...]]:
        """What a backup could put back: every part from a moment of its own."""
        yield from itertools.product(*(self.part_copies(part) for part in PARTS[:2]), self.outputs())

    def outputs(self) -> list[Path | None]:
        there = self.base / "place"
        return [there, None] if (there / "out").exists() else [there]

    def put_back(self, parts: tuple[Path | None, ...]) -> None:
        shutil.rmtree(self.world)
        shutil.copytree(self.base, self.world)
        for part, copy in zip(PARTS, parts, strict=True):
            shutil.rmtree(self.world / part, ignore_errors=True)
            if copy is not None:
                shutil.copytree(copy, self.world / part)
        (self.world / "place").mkdir(exist_ok=True)

    @property
    def ledger(self) -> Ledger:
        return Ledger.open(self.world / "ledger.sqlite", create=False)


@pytest.fixture(scope="module")
def ward(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_ward(tmp_path_factory.mktemp("ward"))


@pytest.fixture
def world(ward: tuple[Path, Path], tmp_path: Path, forge: Forge, monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(tmp_path, ward[0].parent, forge)
    monkeypatch.setenv("DASKRADO_LEDGER", str(made.world / "ledger.sqlite"))
    return made


def counts(events: list[Any]) -> list[tuple[int, str, str]]:
    return [(entry, name, digest) for what, entry, name, digest in (e for e in events if e[0] == "count")]


def check_counted_before(events: list[Any]) -> None:
    """No noise before the first count of its process, and no count twice, unless it is the same to the bit."""
    first = next((at for at, event in enumerate(events) if event[0] == "count"), len(events))
    assert not [event for event in events[:first] if event[0] == "noise"]


def check_never_twice(before: list[Any], after: list[Any]) -> None:
    for entry, name, digest in counts(after):
        assert all((entry, name) != (e, n) or (digest and digest == d) for e, n, d in counts(before)), name


@pytest.mark.parametrize("ending", ["killed", "published"])
@pytest.mark.parametrize("kind", [*KINDS, *ENGINES, *OTHERS])
def test_nothing_is_drawn_twice_whatever_is_put_back(
    kind: str, ending: str, world: World, ward: tuple[Path, Path]
) -> None:
    path = world.place / "p.yaml"
    path.write_text(yaml.safe_dump(pipeline(kind, ward, world.world / "place" / "out")))
    (world.world / "place").mkdir()
    first = world.execute((DYING if ending == "killed" else "") + RUN.format(path=str(path)), "first.log")
    check_counted_before(first)
    assert counts(first)
    world.keep()
    charged = [entry for entry in world.ledger.entries() if entry.state is not State.VOID]
    run, outcomes = charged[0].run, []
    assert {entry.id for entry in charged} == {entry for entry, _, _ in counts(first)}
    if ending == "published":
        assert {entry.state for entry in charged} <= {
            State.PUBLISHED,
            *([State.SPENT] if kind in ENGINE_KINDS else []),
        }
    for parts in world.combinations():
        world.put_back(parts)
        second = world.execute(RESUME.format(run=run), "second.log")
        check_counted_before(second)
        check_never_twice(first, second)
        (what, *words), noise = second[-1], [event for event in second if event[0] == "noise"]
        assert what in ("done", "refused"), second
        entries = [entry for entry in world.ledger.entries() if entry.state is not State.VOID]
        anew = len(entries) > len(charged)
        if what == "refused":
            assert any(truth in words[0] for truth in TRUTH), words
            assert not noise
            assert not anew
        else:
            assert ending == "killed" or kind in ENGINE_KINDS  # whose answers are there for whoever asks again
            assert anew == any("debited anew" in note for note in words), words
            assert not noise or anew or kind in UNUSED  # new draws, each counted for the first time
        outcomes.append((what, parts))
    # With all as it was, a run that was cut off is finished from what it had, and a published one is over.
    assert outcomes[-1 if ending == "killed" else -2][0] == ("done" if ending == "killed" else "refused")
    assert any(what == "refused" for what, _ in outcomes)


def test_no_kind_escapes() -> None:
    covered = {own.get("kind", name) for name, own in (KINDS | ENGINES | OTHERS).items()}
    ours = {name for name, job in kinds(Job, "daskrado.jobs").items() if job.__module__.startswith("daskrado.jobs.")}
    assert covered == ours - PROTECT_NOBODY
