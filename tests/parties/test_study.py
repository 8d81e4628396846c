"""Studies from end to end: equal to the pooled lake, noise from honest sites, drop-out, ledgers, the command line."""

from __future__ import annotations

import base64
import json
import math
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from damaged_files import damaged_copy
from study_parties import CENTRAL, DISTRIBUTED, SITES, Clinic, Parties

import daskrado
import daskrado.parties.site
from daskrado.errors import BudgetError, DataError, LedgerError, UsageError
from daskrado.lake.blocks import Blocks
from daskrado.ledger.ledger import EACH, Ledger
from daskrado.ledger.show import ledger_lines
from daskrado.models.linear import LinearModel
from daskrado.parties.coordinator import combine
from daskrado.parties.keys import PrivateKeys
from daskrado.parties.masks import COORDINATOR, pair_stream
from daskrado.parties.rounds import Round
from daskrado.parties.site import Agreement, contribute, join
from daskrado.parties.status import status_lines
from daskrado.parties.study_folder import StudyFolder
from daskrado.table.domain import Domain
from daskrado.table.yaml_file import parse


@pytest.fixture
def parties(tmp_path: Path, clinic: Clinic) -> Parties:
    return Parties(tmp_path, clinic)


@pytest.mark.parametrize(
    ("learner", "statistic"),
    [
        ({"kind": "moments"}, None),
        ({"kind": "mean"}, {"kind": "mean_operator"}),
        ({"kind": "radoboost", "rounds": 30}, {"kind": "hadamard_rados", "count": 16, "seed": 5}),
    ],
    ids=["moments", "mean", "rados"],
)
def test_the_total_is_the_pooled_lake_to_the_last_bit(parties: Parties, learner: Any, statistic: Any) -> None:
    extra = {} if statistic is None else {"statistic": statistic}
    parties.open(private=False, learner=learner, **extra)
    parties.send()
    federated = parties.combine()
    pooled = parties.pooled(learner=learner, statistic=statistic)
    for name, values in pooled.release.values.items():
        assert np.array_equal(federated.release.values[name], values)
    assert np.array_equal(federated.model.weights, pooled.model.weights)
    assert not federated.model.statement.private


NUMBER = {"column": "length_of_stay", "kind": "number", "bounds": [0, 30]}
WARDS = {"column": "ward", "classes": ["cardiology", "maternity", "medicine", "oncology", "surgery"]}
FEW = {"age": {"kind": "numeric", "lower": 18, "upper": 95}, "diabetic": {"kind": "boolean"}}


@pytest.mark.parametrize("label", [NUMBER, WARDS], ids=["number", "classes"])
def test_numbers_and_classes_are_those_of_the_pooled_lake_and_have_intervals(parties: Parties, label: Any) -> None:
    parties.domain = parse(Domain, {"label": label, "columns": FEW}, "here")
    parties.open(private=False)
    parties.send()
    assert np.array_equal(parties.combine().model.weights, parties.pooled(learner="moments").model.weights)
    private = Parties(parties.place / "private", lambda rows, parts: (parties.path, parties.domain))
    private.place.mkdir()
    private.open(**DISTRIBUTED)
    private.send()
    table = private.combine().model.coefficients
    assert np.isfinite(table[["weight", "low", "high", "p"]]).all(axis=None)
    exact = parties.pooled(learner="moments").model.coefficients["weight"]
    half = (table["high"] - table["low"]) / 2
    assert (abs(table["weight"] - exact) < 2.5 * half).all()  # five deviations


@pytest.fixture
def by_day(parties: Parties) -> Parties:
    """Each site's files in folders of days."""
    for name, files in parties.lakes.items():
        for day, file in enumerate(files):
            folder = parties.place / f"{name}_days/day={day}"
            folder.mkdir(parents=True)
            shutil.copy(file, folder)
    parties.lakes = {name: str(parties.place / f"{name}_days") for name in SITES}  # type: ignore[misc]
    return parties


def test_sites_read_blocks_of_their_lakes(by_day: Parties) -> None:
    """The last day of each site, as if nothing else were there."""
    by_day.open(private=False)
    by_day.send(blocks=Blocks.spoken("day:1"))
    last = [str(max((by_day.place / f"{name}_days").rglob("*.parquet"))) for name in SITES]
    alone = daskrado.fit(last, by_day.domain, dataset="alone", private=False, workers=0)
    assert np.array_equal(by_day.combine().model.weights, alone.model.weights)


def test_each_block_of_a_site_pays_from_its_own_budget(by_day: Parties) -> None:
    by_day.open(**DISTRIBUTED)
    for name in SITES:
        with Ledger.open(by_day.place / f"{name}.sqlite") as opened:
            opened.set_limit("clinic", None, 1.2, 1e-5, block=EACH)
    by_day.send("east", "north", blocks=Blocks.spoken("day:1"))
    (entry,) = Ledger.open(by_day.ledger("east")).entries()
    assert entry.blocks == ("2",)
    assert [*Ledger.open(by_day.ledger("east")).block_balances("clinic")] == ["2"]
    with Ledger.open(by_day.ledger("west")) as opened:
        opened.reserve("clinic", "add_remove", entry.event, theorem="t", run="1", blocks=["1"])
    with pytest.raises(BudgetError, match=r"block 1 of clinic .*nothing was debited"):
        by_day.send("west", blocks=Blocks.spoken("day"))
    assert "west" not in "".join(path.name for path in by_day.box.rglob("*bundle*"))
    assert len(by_day.states("west")) == 1


@pytest.mark.parametrize("terms", [DISTRIBUTED, CENTRAL], ids=["distributed", "central"])
def test_the_statement_of_a_study_says_what_its_sites_read(by_day: Parties, terms: dict[str, Any]) -> None:
    by_day.open(**terms)
    by_day.send("east", "north", blocks=Blocks.spoken("day:1"))
    by_day.send("west")
    found = by_day.combine()
    last = {name: max(path.name for path in Path(by_day.lakes[name]).iterdir())[-1] for name in SITES}
    read = {"east": f"day: {last['east']}", "north": f"day: {last['north']}", "west": "all rows"}
    assert found.facts["sites_read"] == read
    said = "; ".join(f"{site} {text}" for site, text in read.items())
    assert f"sites read, as they say: {said}; a row that is replaced keeps its block" in found.statement.assumptions


@pytest.mark.parametrize("text", ["", ":3", "day:0", "day:x", "day:-1"])
def test_blocks_in_one_word_that_make_no_sense(text: str) -> None:
    with pytest.raises(UsageError, match="blocks are COLUMN, or COLUMN:LAST such as day:30, got"):
        Blocks.spoken(text)


@pytest.mark.cluster
def test_a_site_may_use_its_own_cluster(parties: Parties, two_workers: Any) -> None:
    from daskrado.cluster import ClusterConfig

    parties.open(private=False)
    parties.send("east", "north")
    parties.send("west", cluster=ClusterConfig(kind="scheduler", address=two_workers.scheduler.address))
    assert np.array_equal(parties.combine().model.weights, parties.pooled().model.weights)


@pytest.mark.slow
def test_distributed_noise_is_sized_as_declared_even_if_a_site_strips_its_share(
    parties: Parties, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``west`` adds nothing. What is left, two honest shares, still has the guaranteed standard deviation."""
    from daskrado.privacy.mechanisms import DiscreteGaussian, Target
    from daskrado.privacy.relations import Relation
    from daskrado.privacy.shares import GaussianShares

    parties.open(**DISTRIBUTED)
    parties.send("east", "north")
    with monkeypatch.context() as patch:
        patch.setattr(GaussianShares, "perturb", lambda self, vector: vector)
        parties.send("west")
    result = parties.combine(output=parties.place / "out")
    exact = parties.pooled().release
    second = (result.release.values["second"] - exact.values["second"]).ravel()
    target = Target(exact.statistic, exact.lattice, Relation.ADD_REMOVE)
    guaranteed = DiscreteGaussian(target, 1.0, 1e-6).noise_std()["second"]
    square = float((second**2).sum() / guaranteed**2)  # 351 entries: mean 351, standard deviation 26.5
    assert 351 - 5 * 26.5 < square < 351 + 5 * 26.5
    assert not 351 - 5 * 26.5 < square * 9 / 4 < 351 + 5 * 26.5
    manifest = json.loads((parties.place / "out" / "manifest.json").read_text())
    assert manifest["facts"]["noise"]["std_guaranteed"]["second"] == pytest.approx(guaranteed, rel=1e-9)
    assert manifest["facts"]["noise"]["std_beside_central"] == pytest.approx(math.sqrt(3 / 2))
    assert manifest["facts"]["noise"]["added_by"].startswith("distributed")
    assert 0 < manifest["statement"]["epsilon"] <= 1.0
    assert any("2 or more add their share" in text for text in manifest["statement"]["assumptions"])
    assert all(parties.states(name) == ["published"] for name in SITES)
    assert LinearModel.load(parties.place / "out" / "model.json").statement.mechanism == "gaussian_shares"


@pytest.mark.slow
def test_central_noise_is_drawn_once_by_the_coordinator(parties: Parties) -> None:
    parties.open(**CENTRAL)
    parties.send()
    result = parties.combine(output=parties.place / "out")
    exact = parties.pooled().release
    moved = (result.release.values["second"] - exact.values["second"]) / result.release.noise_std["second"]
    assert 351 - 5 * 26.5 < float((moved**2).sum()) < 351 + 5 * 26.5
    again = parties.combine()  # a second draw would be a second release
    assert all(np.array_equal(again.release.values[name], values) for name, values in result.release.values.items())
    assert all(parties.states(name) == ["published"] for name in SITES)
    manifest = json.loads((parties.place / "out" / "manifest.json").read_text())
    assert manifest["facts"]["noise"]["added_by"].startswith("central")
    assert any("trusted with the exact total" in text for text in manifest["statement"]["assumptions"])


def test_bundles_hold_nothing_that_a_coordinator_could_read(parties: Parties) -> None:
    """Without its pairwise secrets a bundle is noise to the coordinator; with them it is the site's vector."""
    round_ = parties.open(private=False)
    parties.send()
    own = PrivateKeys.open(parties.keys("east"), create=False)
    plan_size = 26 + 351
    (data,) = [d for n, d in StudyFolder(parties.box).bundles(round_) if n.startswith("east")]
    words = np.frombuffer(base64.b64decode(json.loads(data)["body"]["words"]), dtype="<u8").astype(np.uint64)
    alone = daskrado.fit(parties.lakes["east"], parties.domain, dataset="x", private=False, workers=0).release
    truth = np.concatenate(
        [
            np.rint(v.ravel() / b.step(alone.lattice))
            for b, v in zip(alone.statistic.blocks, alone.values.values(), strict=True)
        ]
    )
    assert not (words.view(np.int64) == truth.astype(np.int64)).any()
    for other in ("north", "west"):  # east comes first by name, so it added both streams
        secret = own.agree(round_.roster[other], other)
        words = words - pair_stream(secret, round_.digest, ("east", other), plan_size)
    secret = own.agree(round_.coordinator, "the coordinator")
    words = words - pair_stream(secret, round_.digest, ("east", COORDINATOR), plan_size)
    assert np.array_equal(words.view(np.int64), truth.astype(np.int64))


@pytest.mark.parametrize("terms", [DISTRIBUTED, CENTRAL], ids=["distributed", "central"])
@pytest.mark.parametrize("kind", ["hadamard_rados", "balanced_rados"])
def test_a_study_of_rados_writes_a_file_to_learn_from(parties: Parties, terms: dict[str, Any], kind: str) -> None:
    """Whoever has the file alone learns the model of the study, under its statement."""
    learner = {"kind": "radoboost", "rounds": 30}
    parties.open(**terms, learner=learner, statistic={"kind": kind, "count": 16})
    parties.send()
    found = parties.combine(output=parties.place / "out")
    path = parties.place / "out" / "clinics.rados.parquet"
    assert path.name in {entry["name"] for entry in json.loads((path.parent / "manifest.json").read_text())["files"]}
    alone = daskrado.learn_rados(path, learner, domain=parties.domain)
    assert np.array_equal(alone.model.weights, found.model.weights)
    assert alone.statement == found.statement
    rados = daskrado.RadoSet.load(path)
    std = found.release.noise_std[next(iter(found.release.noise_std))]
    assert rados.noise_std[0] == pytest.approx(std * (math.sqrt(16) / 2 if kind == "hadamard_rados" else 1))
    assert rados.rows is None


def test_rados_without_noise_are_not_written(parties: Parties) -> None:
    """They would give examples away."""
    statistic = {"kind": "hadamard_rados", "count": 16, "seed": 5}
    parties.open(private=False, learner={"kind": "radoboost", "rounds": 30}, statistic=statistic)
    parties.send()
    parties.combine(output=parties.place / "out")
    assert not [*(parties.place / "out").glob("*.parquet")]


def test_a_dropped_site_leads_to_a_new_round_among_the_others(parties: Parties) -> None:
    first = parties.open(**DISTRIBUTED)
    parties.send("east", "north")
    with pytest.raises(DataError, match="lacks west; wait, or open a new round among the 2 present"):
        combine(parties.box, keys=parties.keys("boss"))
    second = combine(parties.box, keys=parties.keys("boss"), close=True)
    assert isinstance(second, Round)
    assert (second.number, sorted(second.roster)) == (2, ["east", "north"])
    with pytest.raises(DataError, match="'west' is not in the roster of round 2: east, north"):
        parties.send("west")
    assert parties.states("west") == []
    # A bundle of round 1 that turns up late, or is replayed into round 2, is refused by name.
    old = StudyFolder(parties.box).bundles(first)
    for name, data in old:
        StudyFolder(parties.box).mailbox.put_new(f"bundles/0002/again-{name}", data)
    lines = "\n".join(status_lines(parties.box))
    assert "remasked" in lines
    assert lines.count("replayed: site") == 2
    parties.send("east", "north")
    result = parties.combine()
    assert sorted(result.facts["sites"]) == ["east", "north"]
    assert len(result.notes) == 2
    assert parties.states("east") == [
        "published",
        "published",
    ]  # whether round 1 stays masked is not east's to decide
    exact = daskrado.fit(
        parties.lakes["east"] + parties.lakes["north"], parties.domain, dataset="p", private=False, workers=0
    ).release
    moved = (result.release.values["second"] - exact.values["second"]) / result.release.noise_std["second"]
    assert 351 - 5 * 26.5 < float((moved**2).sum()) < 351 + 5 * 26.5


def test_a_late_bundle_is_refused_by_name(parties: Parties) -> None:
    """``west`` makes its bundle in time, but it reaches the folder only when the round was closed without it."""
    round_ = parties.open(private=False)
    parties.send()
    folder = StudyFolder(parties.box)
    (name,) = [n for n, _ in folder.bundles(round_) if n.startswith("west")]
    path = parties.box / "bundles" / "0001" / name
    held = path.read_bytes()
    path.unlink()
    assert isinstance(combine(parties.box, keys=parties.keys("boss"), close=True), Round)
    with pytest.raises(DataError, match="'west' is not in the roster of round 2: east, north"):
        parties.send("west")  # west itself does not send it any more
    path.write_bytes(held)
    assert f"{name}: late: round 1 was closed without this bundle of 'west'" in "\n".join(status_lines(parties.box))
    parties.send("east", "north")
    exact = daskrado.fit(
        parties.lakes["east"] + parties.lakes["north"], parties.domain, dataset="p", private=False, workers=0
    )
    assert np.array_equal(parties.combine().model.weights, exact.model.weights)


def test_a_round_that_closes_while_a_site_reads_its_lake_gets_nothing_of_it(parties: Parties) -> None:
    """The bundle is made and stored, and stays at the site: it would complete the masks of the closed round."""
    round_ = parties.open(**DISTRIBUTED)
    parties.send("east", "north")
    done = []

    def close(*_: int) -> None:
        if not done:
            done.append(combine(parties.box, keys=parties.keys("boss"), close=True))

    with pytest.raises(DataError, match="late: round 1 is closed; nothing was sent"):
        parties.send("west", progress=close)
    assert not [name for name, _ in StudyFolder(parties.box).bundles(round_) if name.startswith("west")]
    assert parties.states("west") == ["published"]


def test_too_few_sites_close_nothing(parties: Parties) -> None:
    parties.open(private=False)
    parties.send("east")
    with pytest.raises(DataError, match="1 of 3 sites are there, the minimum is 2"):
        combine(parties.box, keys=parties.keys("boss"), close=True)
    parties.send("north", "west")
    parties.combine()


def test_a_second_call_sends_the_same_bytes_and_charges_nothing(parties: Parties) -> None:
    round_ = parties.open(**DISTRIBUTED)
    parties.send("east")
    (before,) = StudyFolder(parties.box).bundles(round_)
    parties.send("east")
    (again,) = StudyFolder(parties.box).bundles(round_)
    assert before == again
    (parties.box / "bundles" / "0001" / before[0]).unlink()  # lost on the way: sent again from the journal
    parties.send("east")
    assert StudyFolder(parties.box).bundles(round_) == [before]
    assert parties.states("east") == ["published"]


def test_a_number_stands_for_one_roster(parties: Parties) -> None:
    """A coordinator who shows a site two rosters under one number would get two vectors under related masks."""
    round_ = parties.open(**DISTRIBUTED)
    parties.send("east")
    boss = PrivateKeys.open(parties.keys("boss"), create=False)
    smaller = Round("clinics", 1, round_.terms, {n: round_.roster[n] for n in ("east", "west")}, 2, boss.public)
    (parties.box / "rounds" / "0001.json").write_bytes(smaller.seal(boss))
    with pytest.raises(DataError, match="contributes once for each number"):
        parties.send("east")
    # Neither new terms, nor a stranger in the roster, nor an older number pass.
    for changed, text in [
        (
            Round("clinics", 2, {**round_.terms, "lattice_bits": 12}, round_.roster, 2, boss.public),
            "terms are not those",
        ),
        (
            Round("clinics", 2, round_.terms, {**round_.roster, "spy": PrivateKeys.make().public}, 2, boss.public),
            "'spy' is not in the roster that this site agreed to",
        ),
        (
            Round("clinics", 2, round_.terms, {**round_.roster, "east": PrivateKeys.make().public}, 2, boss.public),
            "key of 'east' in the roster of round 2 is not this site's",
        ),
    ]:
        (parties.box / "rounds" / "0002.json").write_bytes(changed.seal(boss))
        with pytest.raises(DataError, match=text):
            parties.send("east")
    other = PrivateKeys.make()
    stolen = Round("clinics", 2, round_.terms, round_.roster, 2, other.public)
    (parties.box / "rounds" / "0002.json").write_bytes(stolen.seal(other))
    with pytest.raises(DataError, match="terms are not those"):
        parties.send("east")
    assert parties.states("east") == ["published"]


def test_a_site_insists_on_the_rosters_fingerprint(parties: Parties) -> None:
    """The first one will do for rounds among fewer sites, which it knows already."""
    round_ = parties.open(**DISTRIBUTED)
    with pytest.raises(DataError, match=f"fingerprint is {round_.roster_fingerprint}, not 0000"):
        parties.send("east", roster="0000")
    assert parties.states("east") == []
    assert len(round_.roster_fingerprint) == 32
    parties.send("east", "north", roster=round_.roster_fingerprint)
    assert isinstance(combine(parties.box, keys=parties.keys("boss"), close=True), Round)
    parties.send("east", roster=round_.roster_fingerprint)
    with pytest.raises(DataError, match="the roster's fingerprint is"):
        parties.send("north", roster="0000")


def test_each_site_is_refused_by_its_own_ledger(parties: Parties) -> None:
    parties.open(**DISTRIBUTED)
    with Ledger.open(parties.ledger("west")) as ledger:
        ledger.set_limit("clinic", "add_remove", 0.5, 1e-6)
    parties.send("east", "north")
    with pytest.raises(BudgetError, match=r"the budget of clinic .* does not cover"):
        parties.send("west")
    assert parties.states("west") == []
    assert parties.states("east") == ["published"]
    with pytest.raises(DataError, match="lacks west"):
        parties.combine()


def test_a_failure_before_the_draw_gives_the_grant_back(parties: Parties, tmp_path: Path) -> None:
    parties.open(**DISTRIBUTED)
    broken = damaged_copy(Path(parties.lakes["east"][0]).parent, tmp_path / "broken")
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        parties.send("east", lake=str(broken))
    assert parties.states("east") == ["void"]
    assert not (parties.box / "bundles").exists()
    parties.send("east")
    assert parties.states("east") == ["void", "published"]


def contribution(parties: Parties) -> str:
    return (
        "import daskrado.ledger.journal, daskrado.parties.site, daskrado.parties.study_folder\n"
        "import daskrado.privacy.shares\n"
        f"def contribute(): daskrado.parties.site.contribute({str(parties.box)!r}, site='east', dataset='clinic',"
        f" keys={str(parties.keys('east'))!r}, lake={parties.lakes['east']!r},"
        f" ledger={str(parties.ledger('east'))!r}, roster={parties.roster!r})\n"
    )


@pytest.mark.parametrize("terms", [DISTRIBUTED, CENTRAL], ids=["distributed", "central"])
@pytest.mark.parametrize(
    ("moment", "state"),
    [
        ("daskrado.ledger.journal.Journal.begin", "reserved"),
        ("daskrado.parties.site.mask", "spent"),
        ("daskrado.parties.study_folder.StudyFolder.put_bundle", "spent"),
    ],
    ids=["before the draw", "before it was stored", "before it was sent"],
)
def test_a_killed_site_sends_one_bundle_on_one_charge(
    parties: Parties, killed: Callable[[str], None], terms: dict[str, Any], moment: str, state: str
) -> None:
    round_ = parties.open(**terms)
    if terms is CENTRAL and state == "reserved":
        moment = "daskrado.ledger.account.Account.count"  # nothing is drawn at a site
    if terms is CENTRAL and moment.endswith("mask"):
        moment = "daskrado.parties.site.Agreement.store"
    kill = "lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL)"
    killed(f"{contribution(parties)}import daskrado.ledger.account\n{moment} = {kill}\ncontribute()\n")
    assert not StudyFolder(parties.box).bundles(round_)
    assert parties.states("east") == ["published" if "put_bundle" in moment else state]
    parties.send()
    assert parties.states("east") == ["published"]
    assert len(StudyFolder(parties.box).bundles(round_)) == 3
    assert list(parties.ledger("east").with_name("east.sqlite.runs").iterdir()) == []
    parties.combine()


def test_a_share_that_was_drawn_is_the_one_that_is_sent(parties: Parties, killed: Callable[[str], None]) -> None:
    """Killed before its bundle was stored: the same share, whose bytes the dying process noted, goes into the sum."""
    parties.open(**DISTRIBUTED)
    seen = parties.place / "share.npy"
    code = (
        "import numpy as np\n"
        f"def dying(vector, *rest): np.save({str(seen)!r}, vector); os.kill(os.getpid(), signal.SIGKILL)\n"
        "daskrado.parties.site.mask = dying\ncontribute()\n"
    )
    killed(contribution(parties) + code)
    sent: list[Any] = []
    with pytest.MonkeyPatch.context() as patched:
        genuine = daskrado.parties.site.mask
        patched.setattr("daskrado.parties.site.mask", lambda v, *rest: (sent.append(v.copy()), genuine(v, *rest))[1])
        parties.send("east")
    assert (sent[0] == np.load(seen)).all()
    assert parties.states("east") == ["published"]


def test_a_share_that_may_have_been_drawn_is_not_drawn_again_unless_the_site_pays(
    parties: Parties, killed: Callable[[str], None]
) -> None:
    parties.open(**DISTRIBUTED)
    kill = "lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL)"
    killed(f"{contribution(parties)}daskrado.privacy.shares.GaussianShares.perturb = {kill}\ncontribute()\n")
    for _ in range(2):
        with pytest.raises(LedgerError, match=r"noise is never drawn twice .* at a second charge with --pay-again"):
            parties.send("east")
    assert parties.states("east") == ["spent"]
    parties.send("east", pay_again=True)
    parties.send("east")
    assert parties.states("east") == ["spent", "published"]
    parties.send("north", "west")
    parties.combine()


@pytest.mark.parametrize(
    ("moment", "state"),
    [("daskrado.ledger.journal.Journal.begin", "reserved"), ("daskrado.parties.coordinator.LinearModel", "spent")],
    ids=["before the draw", "after the draw"],
)
def test_a_killed_coordinator_finishes_on_one_charge_with_the_noise_it_drew(
    parties: Parties, killed: Callable[[str], None], moment: str, state: str
) -> None:
    parties.open(**CENTRAL)
    parties.send()
    seen, boss = parties.place / "drawn.npy", parties.place / "boss.sqlite"
    call = (
        "import numpy as np, daskrado.parties.coordinator, daskrado.ledger.journal\n"
        "keep = daskrado.ledger.journal.Journal.keep\n"
        f"def noted(self, name, arrays): np.save({str(seen)!r}, arrays['mean']); keep(self, name, arrays)\n"
        "daskrado.ledger.journal.Journal.keep = noted\n"
        f"{moment} = lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"daskrado.parties.coordinator.combine({str(parties.box)!r}, keys={str(parties.keys('boss'))!r},"
        f" output={str(parties.place / 'out')!r}, ledger={str(boss)!r})\n"
    )
    killed(call)
    assert [str(e.state) for e in Ledger.open(boss).entries()] == [state]
    assert not (parties.place / "out").exists()
    if state == "spent":
        assert any("daskrado study combine, as before" in line for line in ledger_lines(Ledger.open(boss)))
    result = parties.combine(output=parties.place / "out")
    if state == "spent":
        assert (result.release.values["mean"] == np.load(seen)).all()
    assert [str(e.state) for e in Ledger.open(boss).entries()] == ["published"]
    assert (parties.place / "out" / "model.json").exists()
    assert (parties.combine().release.values["mean"] == result.release.values["mean"]).all()
    assert len(Ledger.open(boss).entries()) == 1


def test_a_coordinator_killed_at_the_draw_releases_the_total_no_more(
    parties: Parties, killed: Callable[[str], None]
) -> None:
    parties.open(**CENTRAL)
    parties.send()
    boss = parties.place / "boss.sqlite"
    killed(
        "import daskrado.parties.coordinator, daskrado.ledger.journal\n"
        "daskrado.ledger.journal.Journal.keep = lambda *a: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"daskrado.parties.coordinator.combine({str(parties.box)!r}, keys={str(parties.keys('boss'))!r},"
        f" ledger={str(boss)!r})"
    )
    for _ in range(2):
        with pytest.raises(LedgerError, match="noise is never drawn twice"):
            parties.combine()
    assert [str(e.state) for e in Ledger.open(boss).entries()] == ["spent"]


def test_two_processes_of_a_site_do_not_contribute_at_once(parties: Parties) -> None:
    round_ = parties.open(**DISTRIBUTED)
    with Agreement(parties.keys("east"), "clinics"), pytest.raises(UsageError, match="another process"):
        parties.send("east")
    assert parties.states("east") == []
    assert not StudyFolder(parties.box).bundles(round_)


def test_no_total_can_leave_int64(parties: Parties) -> None:
    """One site alone would fit; three of its size would not. Refused before anything is charged."""
    parties.open(private=False, lattice_bits=25)  # 2^62 / 2^50 = 4,096 rows in all
    with pytest.raises(UsageError, match="too many rows for exact 64-bit sums"):
        parties.send("east", lake=str(parties.path))  # 3,000 rows
    assert parties.states("east") == []


def test_other_relations_keep_public_parts_exact(parties: Parties) -> None:
    """Under replace_one the count is public: every site sends it without noise, and the total has it exactly."""
    terms = {**DISTRIBUTED, "protect": {"relation": "replace_one", "unit": "one patient"}}
    parties.open(**terms, learner={"kind": "mean"}, statistic={"kind": "mean_operator"})
    parties.send()
    result = parties.combine()
    assert result.release.values["count"] == 3000
    assert result.release.noise_std["count"] == 0
    assert result.release.noise_std["mean"] > 0


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"noise": None}, "noise is missing"),
        ({"noise": {"kind": "distributed", "honest": 3}}, "noise.honest 3 is above minimum 2"),
        ({"mechanism": "laplace"}, "laplace cannot be shared out"),
        ({"minimum": 1}, "minimum: input should be greater than or equal to 2"),
        ({"minimum": 9}, "minimum must be between 2 and the 3 sites"),
        ({"budget": {"epsilon": 1.0}}, "delta above 0"),
        ({"sites": {"east": None}}, "sites:"),
        ({"sites": {"../x": None, "east": None}}, "'../x': use 1 to 64 letters"),
        ({"sites": {"east": None, "south": None}}, "'south' has not joined"),
        ({"sites": {"east": "AAAA", "north": None}}, "not 64 bytes"),
        ({"study": "a b"}, "study 'a b'"),
        ({"rounds": 3}, "rounds: unknown key"),
        ({"learner": {"kind": "gradient"}}, "rows is missing: learner gradient needs the number of rows"),
        ({"learner": {"kind": "output_perturbation"}}, "needs exact sums of every pass, which a study does not give"),
        (
            {"learner": {"kind": "radoboost"}, "statistic": {"kind": "hadamard_rados", "count": 100}},
            "power of two",
        ),
    ],
)
def test_a_wrong_study_file_is_refused_in_one_line(parties: Parties, changes: dict[str, Any], text: str) -> None:
    with pytest.raises((UsageError, DataError)) as error:
        parties.open(**{**DISTRIBUTED, **changes})
    assert text in str(error.value)
    assert not (parties.box / "rounds").exists()


def test_keys_of_another_party_open_nothing(parties: Parties) -> None:
    parties.open(private=False)
    with pytest.raises(UsageError, match="another coordinator"):
        combine(parties.box, keys=parties.keys("east"))
    with pytest.raises(UsageError, match="another site has joined under this name"):
        join(parties.box, site="east", keys=parties.keys("thief"))
    with pytest.raises(UsageError, match="no keys there"):
        contribute(parties.box, site="east", keys=parties.place / "nobody", lake="x", dataset="clinic", roster="")
    with pytest.raises(DataError, match="no study is open"):
        list(status_lines(parties.place / "empty"))


def test_an_object_store_works_as_well(parties: Parties) -> None:
    parties.box = f"memory://study-{os.urandom(4).hex()}"  # type: ignore[assignment]
    parties.open(private=False)
    parties.send()
    assert np.array_equal(parties.combine().model.weights, parties.pooled().model.weights)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a bucket on a real S3 server on loopback."""
    reason = "needs moto's S3 server: pip install 'moto[s3,server]'"
    server_module = pytest.importorskip("moto.server", reason=reason)
    boto3 = pytest.importorskip("boto3", reason=reason)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        boto3.client("s3", endpoint_url=f"http://{host}:{port}", region_name="us-east-1").create_bucket(Bucket="box")
        yield f"s3://box/study?endpoint_override={host}:{port}&scheme=http&region=us-east-1"
    finally:
        server.stop()


@pytest.mark.slow
def test_a_study_over_s3(parties: Parties, bucket: str) -> None:
    parties.box = bucket  # type: ignore[assignment]
    parties.open(private=False)
    parties.send("east", "north")
    parties.send("east")
    assert isinstance(combine(bucket, keys=parties.keys("boss"), close=True), Round)
    parties.send("east", "north")
    exact = daskrado.fit(
        parties.lakes["east"] + parties.lakes["north"], parties.domain, dataset="p", private=False, workers=0
    )
    assert np.array_equal(parties.combine().model.weights, exact.model.weights)
    lost = bucket.replace("s3://box/", "s3://no-such-bucket/")
    with pytest.raises(DataError, match=r"no-such-bucket/study/sites/east\.json: cannot be"):
        join(lost, site="east", keys=parties.keys("east"))


@pytest.mark.slow
def test_the_command_line_runs_a_study(
    parties: Parties, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from daskrado.cli.main import main

    monkeypatch.chdir(parties.place)

    def shell(*words: Any) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["daskrado", *map(str, words)])
        with pytest.raises(SystemExit) as stop:
            main()
        out, err = capsys.readouterr()
        return int(stop.value.code or 0), out, err

    for name in SITES:
        code, out, _ = shell("site", "join", "box", "--site", name, "--keys", name)
        assert code == 0
        assert "fingerprint" in out
    content = {
        "study": "clinics",
        "domain": f"{parties.path}.yaml",
        "minimum": 2,
        "sites": dict.fromkeys(SITES),
        **DISTRIBUTED,
    }
    Path("study.yaml").write_text(yaml.safe_dump(content))
    code, out, _ = shell("study", "open", "study.yaml", "box", "--keys", "boss")
    assert code == 0
    assert "roster fingerprint" in out
    code, _, err = shell("study", "combine", "box", "--keys", "boss", "--output", "out")
    assert code == 1
    assert err.startswith("daskrado: error: round 1 of study 'clinics' lacks east, north, west")
    for i, name in enumerate(SITES):
        lake = parties.place / f"lake-{name}"
        lake.mkdir()
        for f in parties.lakes[name]:
            (lake / Path(f).name).write_bytes(Path(f).read_bytes())
        words = [
            "--site",
            name,
            "--keys",
            name,
            "--lake",
            lake,
            "--dataset",
            "clinic",
            "--ledger",
            parties.ledger(name),
        ]
        code, _, err = shell("site", "contribute", "box", *words)
        assert code == 2
        assert "--roster" in err
        words += ["--roster", parties.roster]
        code, out, err = shell("site", "contribute", "box", *words)
        assert code == 0, err
        assert "charged to clinic: epsilon " in out
        code, out, _ = shell("study", "status", "box")
        assert out.count("contributed") == i + 1
    code, out, err = shell("study", "combine", "box", "--keys", "boss", "--output", "out")
    assert code == 0, err
    assert sorted(p.name for p in Path("out").iterdir()) == ["manifest.json", "model.json", "report.html"]
    assert "one model of 3 sites" in out
    assert "one model of 3 sites" in Path("out/report.html").read_text()
