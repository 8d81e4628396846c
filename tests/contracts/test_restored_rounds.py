"""A study's files, put back from earlier copies while the ledgers stay: no share and no total is drawn twice.

A site contributes, and a coordinator combines, in a process of its own that is killed at its last step, or not. Then
any copies of journals, agreements and the study's folder are put back in combination, and the step is taken again.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from restoring import Forge, World, check_counted_before, check_never_twice, counts

from daskrado.lake.make import make_lake
from daskrado.ledger.ledger import Ledger
from daskrado.parties.coordinator import open_study
from daskrado.parties.site import contribute, join
from daskrado.parties.study_folder import StudyFolder
from daskrado.table.domain import Domain

SITES = ("east", "north", "west")
TERMS: dict[str, Any] = {
    "protect": {"relation": "add_remove", "unit": "one patient"},
    "budget": {"epsilon": 1.0, "delta": 1e-6},
}
NOISE = {"distributed": {"kind": "distributed", "honest": 2}, "central": {"kind": "central"}}
TRUTH = ("so the charge stays", "0 % is left; nothing was debited")
STEP = """
import signal
import daskrado.parties.site, daskrado.parties.coordinator
from daskrado.parties.study_folder import StudyFolder
kill = lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL)
{dying}
os.fsync = copying if {copies!r} else os.fsync
try:
    {call}
    note('done')
except daskrado.errors.DaskradoError as error:
    note('refused', str(error))
"""


@pytest.fixture
def study(tmp_path: Path, forge: Forge) -> World:
    """Three sites that joined; their lakes lie outside of what is put back."""
    (tmp_path / "lakes").mkdir()
    domain = make_lake(tmp_path / "lakes" / "lake", rows=600, features=6, partitions=3, seed=3)
    world = World(tmp_path, tmp_path / "lakes", forge)
    for name in SITES:
        join(world.world / "box", site=name, keys=world.world / name)
        Ledger.open(world.world / f"{name}.sqlite").set_limit("clinic", None, 3, 1e-5)
    world.domain = Domain.load(domain)  # type: ignore[attr-defined]
    return world


def begun(world: World, noise: str) -> None:
    content = {"study": "s", "domain": world.domain, "minimum": 2, "sites": dict.fromkeys(SITES), **TERMS}  # type: ignore[attr-defined]
    open_study(content | {"noise": NOISE[noise]}, world.world / "box", keys=world.world / "boss")


def contribution(world: World, site: str) -> dict[str, Any]:
    lake = [str(sorted((world.ward / "lake").glob("*.parquet"))[SITES.index(site)])]
    place, mark = world.world, StudyFolder(world.world / "box").latest().roster_fingerprint
    own = {"site": site, "keys": place / site, "ledger": place / f"{site}.sqlite", "roster": mark}
    return {**own, "dataset": "clinic", "lake": lake}


def told(arguments: dict[str, Any]) -> str:
    """Arguments as a program has them."""
    plain = {key: str(value) if isinstance(value, Path) else value for key, value in arguments.items()}
    return ", ".join(f"{key}={value!r}" for key, value in plain.items())


def check_every_copy(world: World, call: str, dying: str, ledger: Path) -> None:
    world.before()
    first = world.execute(STEP.format(dying=dying, copies=True, call=call), "first.log")
    check_counted_before(first)
    assert len(counts(first)) == 1
    world.keep()
    seen = set()
    for parts in itertools.product(*(world.part_copies(part, 2) for part in world.parts)):
        world.put_back(parts)
        second = world.execute(STEP.format(dying="", copies=False, call=call), "second.log")
        check_counted_before(second)
        check_never_twice(first, second)
        (what, *words) = second[-1]
        assert what in ("done", "refused"), second
        assert not counts(second)  # a site pays again only if it is told to, and a coordinator never
        assert not [event for event in second if event[0] == "noise"]
        assert what == "done" or any(truth in words[0] for truth in TRUTH), words
        assert len(Ledger.open(world.world / ledger.name).entries()) == 1
        seen.add(what)
    assert "refused" in seen


@pytest.mark.parametrize("ending", ["killed", "sent"])
def test_a_site_draws_its_share_once(study: World, ending: str) -> None:
    begun(study, "distributed")
    study.parts = ("east.sqlite.runs", "east", "box")
    call = f"daskrado.parties.site.contribute({str(study.world / 'box')!r}, {told(contribution(study, 'east'))})"
    dying = "StudyFolder.put_bundle = kill" if ending == "killed" else ""
    check_every_copy(study, call, dying, study.world / "east.sqlite")


@pytest.mark.parametrize("ending", ["killed", "published"])
def test_a_coordinator_draws_for_a_total_once(study: World, ending: str) -> None:
    begun(study, "central")
    for site in SITES:
        contribute(study.world / "box", **contribution(study, site))
    study.parts = ("boss.sqlite.runs", "boss", "box")
    arguments = {"keys": study.world / "boss", "ledger": study.world / "boss.sqlite", "output": study.world / "out"}
    call = f"daskrado.parties.coordinator.combine({str(study.world / 'box')!r}, {told(arguments)}, overwrite=True)"
    dying = "daskrado.parties.coordinator.LinearModel = kill" if ending == "killed" else ""
    check_every_copy(study, call, dying, study.world / "boss.sqlite")
