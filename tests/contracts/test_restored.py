"""Files of a run of every kind, put back from earlier copies while the ledger stays: nothing is drawn twice.

A real process runs the job. At every sync a copy of all that it left is taken (journals, engines, the output's
folder); then any copy of each part is put back, in combination, and another process resumes the run. Both note every
draw of noise and every draw that the ledger counts: no noise without a count before it, no count twice, and the truth
is told.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from every_kind import ENGINES, KINDS, OTHERS, make_ward, pipeline
from restoring import Forge, World, check_counted_before, check_never_twice, counts

from daskrado.jobs.base import Job
from daskrado.ledger.ledger import Ledger, LedgerEntry, State
from daskrado.registry import kinds

PROTECT_NOBODY = {"adaboost", "learn from rados", "local encode"}  # the last one draws as kind local does
ENGINE_KINDS = {"teachers", "sparse vector", "continual"}  # their engine outlives the run
UNUSED = {"queries"}  # an engine may have draws left that were paid for and not made
TRUTH = (
    "the charge stays",
    "noise is never drawn twice",
    "nothing left to finish",
    "nothing to resume",
    "no such run",
    "never got a grant",
)
UNPAID = "asked for 100 %, 0 % is left; nothing was debited"  # an engine that took the whole budget, and is gone

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


@pytest.fixture(scope="module")
def ward(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_ward(tmp_path_factory.mktemp("ward"))


def entries(world: World) -> list[LedgerEntry]:
    """All debits that are charged."""
    known = Ledger.open(world.world / "ledger.sqlite", create=False).entries()
    return [entry for entry in known if entry.state is not State.VOID]


@pytest.fixture
def world(ward: tuple[Path, Path], tmp_path: Path, forge: Forge, monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(tmp_path, ward[0].parent, forge)
    monkeypatch.setenv("DASKRADO_LEDGER", str(made.world / "ledger.sqlite"))
    return made


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
    charged = entries(world)
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
        anew = len(entries(world)) > len(charged)
        if what == "refused":
            assert any(truth in words[0] for truth in (*TRUTH, *[UNPAID] * (kind == "sparse vector"))), words
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
