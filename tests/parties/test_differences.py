"""Totals that a coordinator could subtract: with central noise no site gives him a second one.

The coordinator runs his own code here: he signs whatever rounds he likes, shows each site another folder, keeps
bundles back and takes off masks by himself. What he may learn is the one total that every site agreed to.
"""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from daskrado.errors import DataError, LedgerError, UsageError
from daskrado.jobs.outcome import Result
from daskrado.lake.collect import collect
from daskrado.lake.make import make_lake
from daskrado.lake.scan import open_lake
from daskrado.ledger.ledger import Ledger
from daskrado.parties.coordinator import combine, open_study
from daskrado.parties.keys import PrivateKeys
from daskrado.parties.masks import total
from daskrado.parties.rounds import Round
from daskrado.parties.site import contribute, join
from daskrado.parties.study import terms_of
from daskrado.parties.study_folder import StudyFolder
from daskrado.table.domain import Domain

SITES = ("east", "north", "west")
TERMS: dict[str, Any] = {
    "protect": {"relation": "add_remove", "unit": "one patient"},
    "budget": {"epsilon": 1.0, "delta": 1e-6},
    "noise": {"kind": "central"},
    "minimum": 2,
    "learner": {"kind": "mean"},
    "statistic": {"kind": "mean_operator"},
}


class World:
    """Three sites, and a coordinator who has his own code."""

    def __init__(self, place: Path) -> None:
        self.place, self.box = place, place / "box"
        self.domain = Domain.load(make_lake(place / "lake", rows=600, features=4, partitions=3, seed=3))
        self.files = sorted((place / "lake").glob("*.parquet"))
        for name in SITES:
            join(self.box, site=name, keys=place / name)
            Ledger.open(self.ledger(name)).set_limit("clinic", None, 5, 1e-5)
        self.round = self.open("s", self.box)
        self.boss = PrivateKeys.open(place / "boss", create=False)

    def ledger(self, name: str) -> Path:
        return self.place / f"{name}.sqlite"

    def open(self, study: str, box: Path, sites: tuple[str, ...] = SITES) -> Round:
        content = {"study": study, "domain": self.domain, "sites": dict.fromkeys(sites), **TERMS}
        return open_study(content, box, keys=self.place / "boss")

    def send(self, *names: str, box: Path | None = None, **options: Any) -> None:
        folder = box or self.box
        for name in names:
            own = {"keys": self.place / name, "ledger": self.ledger(name), "lake": [str(self.lake_of(name))]}
            mark = StudyFolder(folder).latest().roster_fingerprint  # sites read out whatever roster they are shown
            contribute(folder, site=name, dataset="clinic", roster=mark, **{**own, **options})

    def lake_of(self, name: str) -> Path:
        return self.files[SITES.index(name)]

    def forge(self, round_: Round, name: str) -> Path:
        """Another folder, where a round of the coordinator's own making is the latest."""
        folder = self.place / name
        StudyFolder(folder).put_round(round_, self.boss)
        return folder

    def vectors(self, box: Path, round_: Round) -> dict[str, NDArray[np.uint64]]:
        found = {}
        for _, data in StudyFolder(box).bundles(round_):
            body = json.loads(data)["body"]
            found[body["site"]] = np.frombuffer(base64.b64decode(body["words"]), dtype="<u8").astype(np.uint64)
        return found

    def total(self, box: Path, round_: Round) -> NDArray[np.int64]:
        return total(self.vectors(box, round_), self.boss, round_)

    def entries(self, name: str) -> list[str]:
        return [str(entry.state) for entry in Ledger.open(self.ledger(name)).entries()]

    def combine(self, ledger: str, **options: Any) -> Result:
        found = combine(self.box, keys=self.place / "boss", ledger=self.place / ledger, **options)
        assert isinstance(found, Result)
        return found


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def without(round_: Round, *gone: str, number: int) -> Round:
    roster = {name: keys for name, keys in round_.roster.items() if name not in gone}
    return replace(round_, number=number, roster=roster)


def test_the_attack_works_on_sites_that_forget(world: World) -> None:
    """A control: with memory and ledger taken from two sites the difference is the third one's exact vector."""
    world.send(*SITES)
    whole = world.total(world.box, world.round)
    second = without(world.round, "west", number=2)
    forged = world.forge(second, "forged")
    for name in ("east", "north"):
        shutil.rmtree(world.place / name / "studies")
        Ledger.open(world.place / f"{name}-new.sqlite").set_limit("clinic", None, 5, 1e-5)
        world.send(name, box=forged, ledger=world.place / f"{name}-new.sqlite")
    rest = world.total(forged, second)
    job = terms_of(world.round, "x").plan(3).job
    lake = open_lake([str(world.lake_of("west"))], world.domain, strict=False)
    exact = collect(job.summed, lake, world.domain, job.lattice, key=job.key, secret_rows=True).vector
    assert np.array_equal(whole - rest, exact)


@pytest.mark.parametrize("number", [1, 2, 7], ids=["the same number", "the next", "a later one"])
def test_no_second_vector_for_a_smaller_roster(world: World, number: int) -> None:
    world.send(*SITES)
    smaller = without(world.round, "west", number=number)
    forged = world.forge(smaller, "forged")
    for name in ("east", "north"):
        with pytest.raises(DataError, match=r"central, and totals of two rosters|contributes once for each number"):
            world.send(name, box=forged)
    assert world.vectors(forged, smaller) == {}
    assert all(world.entries(name) == ["published"] for name in SITES)


def test_a_site_that_is_said_to_be_missing_completes_no_second_total(world: World) -> None:
    """The round lacks west; a smaller one follows; west, shown the first folder alone, then completes round 1."""
    world.send("east", "north")
    smaller = without(world.round, "west", number=2)
    forged = world.forge(smaller, "forged")
    for name in ("east", "north"):
        with pytest.raises(DataError, match="gave a vector to round 1 and gives none to round 2"):
            world.send(name, box=forged)
    world.send("west")
    assert world.vectors(forged, smaller) == {}
    assert sorted(world.vectors(world.box, world.round)) == [*SITES]


def test_the_same_roster_again_is_refused_too(world: World) -> None:
    """The difference would be what a site's lake gained or lost since."""
    world.send(*SITES)
    forged = world.forge(replace(world.round, number=2), "forged")
    with pytest.raises(DataError, match="gives none to round 2"):
        world.send("east", box=forged, lake=[str(world.lake_of("north"))])


def test_a_ledger_knows_what_a_restored_folder_of_keys_forgot(world: World) -> None:
    """The memory beside the keys is put back from before the first round; the ledger is not."""
    world.send(*SITES)
    before = world.vectors(world.box, world.round)["east"]
    shutil.rmtree(world.place / "east" / "studies")
    forged = world.forge(without(world.round, "west", number=2), "forged")
    with pytest.raises(DataError, match=r"gave bundle@00000\.\w+, as its ledger knows, and gives none to round 2"):
        world.send("east", box=forged)
    shutil.rmtree(world.place / "east" / "studies")
    shutil.rmtree(world.box / "bundles")
    world.send("east")  # the same round gets the same bytes
    assert np.array_equal(world.vectors(world.box, world.round)["east"], before)
    assert world.entries("east") == ["published"]


def test_other_rows_under_the_same_masks_stay_at_the_site(world: World) -> None:
    """Two vectors under the same masks, subtracted, are the difference of two lakes."""
    world.send("east")
    shutil.rmtree(world.place / "east" / "studies")
    shutil.rmtree(world.box / "bundles")
    frame = pd.read_parquet(world.lake_of("east"))
    frame.iloc[1:].to_parquet(world.lake_of("east"), index=False)
    with pytest.raises((DataError, LedgerError), match=r"changed since|so the charge stays"):
        world.send("east")
    assert not (world.box / "bundles").exists()


def test_a_new_study_is_a_new_charge(world: World) -> None:
    """Whom it trusts the statement says."""
    world.send(*SITES)
    box = world.place / "second"
    for name in SITES:
        join(box, site=name, keys=world.place / name)
    world.open("t", box, ("east", "north"))
    world.send("east", "north", box=box)
    assert world.entries("east") == ["published", "published"]
    assert world.entries("west") == ["published"]
    said = world.combine("boss.sqlite").statement.assumptions
    assert any("trusted with the exact total of this study, and with those of other studies" in text for text in said)


def test_the_coordinator_of_ours_opens_no_smaller_round(world: World) -> None:
    world.send("east", "north")
    with pytest.raises(DataError, match="lacks west; wait for it: noise is central"):
        world.combine("boss.sqlite", close=True)
    assert not (world.box / "closed").exists()
    with pytest.raises(UsageError, match="no site draws a share that it could pay again"):
        world.send("west", pay_again=True)


def test_a_combined_round_is_released_again_only_as_it_was(world: World) -> None:
    """Averages over many ledgers would take the noise off: every one of them gets the same values."""
    world.send(*SITES)
    first = world.combine("boss.sqlite", output=world.place / "out")
    for number in range(3):
        again = world.combine(f"other-{number}.sqlite", output=world.place / f"out-{number}")
        assert np.array_equal(again.release.values["mean"], first.release.values["mean"])
        assert any("this is its one release, nothing was drawn" in note for note in again.notes)
        assert Ledger.open(world.place / f"other-{number}.sqlite").entries() == []
    weights = {(world.place / name / "model.json").read_bytes() for name in ("out", "out-0", "out-1", "out-2")}
    assert len(weights) == 1
    assert len(Ledger.open(world.place / "boss.sqlite").entries()) == 1


def test_a_lost_release_is_not_drawn_again_by_another_ledger(world: World) -> None:
    world.send(*SITES)
    world.combine("boss.sqlite")
    shutil.rmtree(world.place / "boss" / "combined")
    with pytest.raises(LedgerError, match=r"round 1 was combined before, .* did not pay for it: a total is released"):
        world.combine("other.sqlite")
    assert Ledger.open(world.place / "other.sqlite").entries() == []


def test_a_coordinator_killed_before_it_published_goes_on_with_what_it_drew(
    world: World, killed: Callable[[str], None]
) -> None:
    """Whichever ledger is named then."""
    world.send(*SITES)
    seen = world.place / "drawn.npy"
    killed(
        "import numpy as np, daskrado.parties.coordinator as c\n"
        f"def dying(run, outcome, **k): np.save({str(seen)!r}, outcome.release.values['mean']);"
        " os.kill(os.getpid(), signal.SIGKILL)\n"
        "c.publish = dying\n"
        f"c.combine({str(world.box)!r}, keys={str(world.place / 'boss')!r},"
        f" ledger={str(world.place / 'boss.sqlite')!r}, output={str(world.place / 'out')!r})\n"
    )
    other = world.combine("other.sqlite", output=world.place / "elsewhere")
    assert np.array_equal(other.release.values["mean"], np.load(seen))
    same = world.combine("boss.sqlite", output=world.place / "out")
    assert np.array_equal(same.release.values["mean"], np.load(seen))
    states = [str(entry.state) for entry in Ledger.open(world.place / "boss.sqlite").entries()]
    assert states == ["published"]
