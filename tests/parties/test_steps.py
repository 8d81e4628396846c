"""Studies that take many steps: equal to the pooled lake, one charge, shares of noise, crashes, forged files."""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from study_parties import PROTECT, SITES, Clinic, Parties

import daskrado
from daskrado.errors import DataError, UsageError
from daskrado.jobs.outcome import Result
from daskrado.learners.on_passes import centring, gradient
from daskrado.ledger.ledger import Ledger
from daskrado.models.linear import LinearModel
from daskrado.parties.keys import PrivateKeys
from daskrado.parties.mailbox import Mailbox
from daskrado.parties.serving import serve
from daskrado.parties.status import status_lines
from daskrado.parties.steps import run_study
from daskrado.parties.study import terms_of
from daskrado.parties.study_folder import StudyFolder
from daskrado.privacy.accountant import GaussianEvent

STEPS = 4
ALL = STEPS + 3  # two rounds of centring and the second moments come first
LEARNER = {"kind": "gradient", "steps": STEPS}
BUDGET = {"epsilon": 2.0, "delta": 1e-6}
TERMS: dict[str, Any] = {"protect": PROTECT, "budget": BUDGET, "learner": LEARNER, "rows": 3000}
CENTRAL = {**TERMS, "noise": {"kind": "central"}}
SHARED = {**TERMS, "noise": {"kind": "distributed", "honest": 2}}
NOISES = pytest.mark.parametrize("terms", [CENTRAL, SHARED], ids=["central", "distributed"])
SOON = 120.0  # a step is waited for so long before a test fails; nothing depends on how long it takes


class Study(Parties):
    """Sites that serve, each in a thread of its own, and a coordinator."""

    def ledger(self, name: str) -> Path:
        path = self.place / f"{name}.sqlite"
        if not path.exists():
            with Ledger.open(path) as opened:
                opened.set_limit("clinic", None, 30.0, 1e-4)
        return path

    def serve(self, name: str, **options: Any) -> Any:
        given = {"lake": self.lakes[name], "ledger": self.ledger(name), "roster": self.roster, "timeout": SOON}
        return serve(self.box, site=name, keys=self.keys(name), dataset="clinic", **{**given, **options})

    @contextlib.contextmanager
    def serving(self, *names: str) -> Iterator[dict[str, Future[Any]]]:
        with ThreadPoolExecutor(len(SITES)) as pool:
            found = {name: pool.submit(self.serve, name) for name in names or SITES}
            try:
                yield found
            finally:
                for future in found.values():
                    future.result()

    def run(self, **options: Any) -> Result:
        given = {"ledger": self.place / "boss.sqlite", "timeout": SOON}
        return run_study(self.box, keys=self.keys("boss"), **{**given, **options})

    def whole(self, **options: Any) -> Result:
        with self.serving():
            return self.run(**options)

    def bundles(self) -> list[str]:
        return sorted(str(path.relative_to(self.box)) for path in (self.box / "bundles").rglob("*.json"))

    def call(self, what: str) -> str:
        """The same as a program, for a process that dies."""
        if what == "boss":
            own = f"keys={str(self.keys('boss'))!r}, ledger={str(self.place / 'boss.sqlite')!r}, timeout={SOON}"
            return f"from daskrado.parties.steps import run_study\nrun_study({str(self.box)!r}, {own})\n"
        own = f"site={what!r}, keys={str(self.keys(what))!r}, lake={self.lakes[what]!r}, dataset='clinic'"
        own += f", ledger={str(self.ledger(what))!r}, roster={self.roster!r}, timeout={SOON}"
        return f"from daskrado.parties.serving import serve\nserve({str(self.box)!r}, {own})\n"


@pytest.fixture
def study(tmp_path: Path, clinic: Clinic) -> Study:
    return Study(tmp_path, clinic)


def without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (gradient, centring):
        monkeypatch.setattr(module, "discrete_gaussian", lambda values, scale: values + 0 * int(scale))


def private(study: Study, **options: Any) -> LinearModel:
    path = study.place / "pooled.sqlite"
    return daskrado.fit(
        study.path, study.domain, dataset="pooled", learner=LEARNER, rows=3000, unit="one patient", ledger=path,
        first_limit=(10.0, 1e-5), workers=0, **BUDGET, **options,
    ).model  # fmt: skip


@NOISES
def test_a_study_without_noise_is_the_pooled_lake_to_the_last_bit(
    study: Study, monkeypatch: pytest.MonkeyPatch, terms: dict[str, Any]
) -> None:
    """All steps, centring included; where all sites are honest, noise and so the schedule are those of one lake."""
    without_noise(monkeypatch)
    noise = {"kind": "distributed", "honest": 3} if terms is SHARED else terms["noise"]
    study.open(**{**terms, "noise": noise, "minimum": 3})
    found, pooled = study.whole().model, private(study)
    assert np.array_equal(found.weights, pooled.weights)
    assert found.domain == pooled.domain
    assert found.domain != study.domain  # numbers were centred
    assert np.array_equal(found.error_bars.low, pooled.error_bars.low, equal_nan=True)


@NOISES
def test_a_study_is_charged_once_for_all_of_its_steps(study: Study, terms: dict[str, Any]) -> None:
    round_ = study.open(**terms)
    found = study.whole(output=study.place / "out")
    assert all(study.states(name) == ["published"] for name in SITES)
    plan = terms_of(round_, "x").plan(3)
    for name in SITES:
        (entry,) = Ledger.open(study.ledger(name)).entries()
        assert entry.event == plan.charge.event
    assert len([*(study.box / "sums").rglob("*.json")]) == ALL
    assert len(study.bundles()) == 3 * ALL
    assert found.statement.epsilon <= 2.0
    said = "trusted with the exact sums of every pass" if terms is CENTRAL else "2 or more add their share"
    assert any(said in text for text in found.statement.assumptions)
    manifest = json.loads((study.place / "out" / "manifest.json").read_text())
    assert manifest["facts"]["noise"]["steps"] == ALL
    assert "one model of 3 sites" in (study.place / "out" / "report.html").read_text()
    assert LinearModel.load(study.place / "out" / "model.json").weights.tolist() == found.model.weights.tolist()
    boss = [str(e.state) for e in Ledger.open(study.place / "boss.sqlite").entries()] if terms is CENTRAL else []
    assert boss == (["published"] if terms is CENTRAL else [])


@NOISES
def test_a_study_that_is_over_gives_the_same_model_under_any_ledger(study: Study, terms: dict[str, Any]) -> None:
    study.open(**terms)
    first = study.whole().model.weights
    for ledger in ("boss.sqlite", "other.sqlite"):
        assert np.array_equal(study.run(ledger=study.place / ledger).model.weights, first)
    assert Ledger.open(study.place / "other.sqlite").entries() == []
    for name in SITES:
        assert study.serve(name).again
        assert study.states(name) == ["published"]


def test_the_shares_of_honest_sites_are_the_noise_that_the_charge_says(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Independent of the code that sizes them: what h shares of each draw leave of a row, summed over all draws.

    A row moves c counts by sqrt(c), the moments by at most 1 (squares 1, products 1 / sqrt(2) of the noise), a sum of
    gradients by at most 1, each in units of one row. Gaussians compose by their squares.
    """
    drawn: dict[int, list[float]] = {}
    for module in (gradient, centring):
        true = module.discrete_gaussian

        def noted(values: Any, scale: float, true: Any = true) -> Any:
            drawn.setdefault(threading.get_ident(), []).append(scale)
            return true(values, scale)

        monkeypatch.setattr(module, "discrete_gaussian", noted)
    round_ = study.open(**SHARED)
    study.whole()
    plan = terms_of(round_, "x").plan(3)
    assert plan.charge is not None
    assert plan.facts is not None
    event, (moment, slope) = plan.charge.event, gradient._units(plan.facts)
    assert isinstance(event, GaussianEvent)
    assert len(drawn) == len(SITES)  # the coordinator draws nothing
    for scales in drawn.values():
        counts, (squares, products), slopes = scales[:2], scales[2:4], scales[4:]
        assert products == pytest.approx(squares / math.sqrt(2))
        assert len(slopes) == STEPS
        far = [math.sqrt(plan.facts.numbers) / (scale * centring._STEP) for scale in counts]
        far += [1 / (squares * moment), *(1 / (scale * slope) for scale in slopes)]
        alone = sum(one**2 for one in far)
        assert alone / 2 == pytest.approx(event.mu**2, rel=1e-9)  # two honest shares


def test_forged_sums_are_refused(study: Study) -> None:
    round_ = study.open(**CENTRAL)
    folder, boss = StudyFolder(study.box), PrivateKeys.open(study.keys("boss"), create=False)
    size = terms_of(round_, "x").plan(3).facts.numbers * centring.CELLS
    folder.put_sums(round_.at(1), np.zeros(size, dtype=np.int64), PrivateKeys.make())
    with pytest.raises(DataError, match=r"sums/0001/00001\.json: tampered with"):
        study.serve("east")
    path = study.box / "sums" / "0001" / "00001.json"
    path.unlink()
    folder.put_sums(round_.at(2), np.zeros(size, dtype=np.int64), boss)  # of another step
    (study.box / "sums" / "0001" / "00002.json").rename(path)
    with pytest.raises(DataError, match="tampered with: the coordinator's signature for this step"):
        study.serve("east")
    path.unlink()
    folder.put_sums(round_.at(1), np.zeros(size - 1, dtype=np.int64), boss)
    with pytest.raises(DataError, match=f"holds {size - 1} numbers, where the step has {size}"):
        study.serve("east")
    assert study.states("east") == ["void"] * 3
    assert not (study.box / "bundles").exists()


def test_a_missing_site_is_named_and_nothing_is_lost(study: Study) -> None:
    study.open(**CENTRAL)
    with pytest.raises(
        DataError, match=r"step 1 lacks east, north, west; 0\.01 s are over: the same command goes on"
    ):
        study.run(timeout=0.01)
    with pytest.raises(DataError, match=r"step 1 waits for the coordinator or for other sites; 0 s are over"):
        study.serve("east", timeout=0.0)
    lines = "\n".join(status_lines(study.box))
    assert "0 published" in lines
    assert "answered     east" in lines
    assert "not yet      west" in lines
    study.whole()
    assert study.states("east") == ["published"]
    assert f"{ALL} published" in "\n".join(status_lines(study.box))


@NOISES
@pytest.mark.parametrize(
    "moment",
    [
        "daskrado.parties.serving.mask",
        "daskrado.parties.site.Agreement.store",
        "daskrado.parties.study_folder.StudyFolder.put_bundle",
    ],
)
def test_a_killed_site_goes_on_with_the_step_that_was_open(
    study: Study, killed: Callable[[str], None], terms: dict[str, Any], moment: str
) -> None:
    """Killed in its fourth step; the others wait. One charge, one bundle for each step."""
    study.open(**terms)
    owner, _, name = moment.rpartition(".")
    dying = (
        "import daskrado.parties.serving, daskrado.parties.site, daskrado.parties.study_folder\n"
        f"owner = {owner}\n"
        f"true, calls = owner.{name}, []\n"
        f"def dying(*a, **k):\n"
        f"    calls.append(1)\n"
        f"    return true(*a, **k) if len(calls) < 4 else os.kill(os.getpid(), signal.SIGKILL)\n"
        f"owner.{name} = dying\n"
    )
    with study.serving("north", "west"), ThreadPoolExecutor(1) as pool:
        result = pool.submit(study.run)
        killed(dying + study.call("east"))
        study.serve("east")
        found = result.result()
    assert study.states("east") == ["published"]
    assert len(study.bundles()) == 3 * ALL
    assert np.isfinite(found.model.weights).all()


@NOISES
@pytest.mark.parametrize("moment", ["put_sums", "sums"])
def test_a_killed_coordinator_goes_on_with_the_noise_that_it_drew(
    study: Study, killed: Callable[[str], None], terms: dict[str, Any], moment: str
) -> None:
    """Killed before it published the third step, or just after: what it drew, or summed, is what is published."""
    study.open(**terms)
    seen = study.place / "third.npy"
    dying = (
        "import numpy as np\n"
        "from daskrado.parties.study_folder import StudyFolder\n"
        "put = StudyFolder.put_sums\n"
        "def dying(self, step, sums, keys):\n"
        f"    if step.step == 3: np.save({str(seen)!r}, sums)\n"
        f"    if step.step == 3 and {moment == 'put_sums'}: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    put(self, step, sums, keys)\n"
        "    if step.step == 3: os.kill(os.getpid(), signal.SIGKILL)\n"
        "StudyFolder.put_sums = dying\n"
    )
    with study.serving():
        killed(dying + study.call("boss"))
        study.run()
    drawn = np.load(seen)
    round_ = StudyFolder(study.box).latest()
    assert np.array_equal(StudyFolder(study.box).sums(round_.at(3), len(drawn)), drawn)
    if terms is CENTRAL:
        assert [str(e.state) for e in Ledger.open(study.place / "boss.sqlite").entries()] == ["published"]


def test_a_share_that_was_drawn_and_lost_is_not_drawn_again(study: Study, killed: Callable[[str], None]) -> None:
    study.open(**SHARED)
    dying = "import daskrado.ledger.journal as j\nj.Journal.keep = lambda *a: os.kill(os.getpid(), signal.SIGKILL)\n"
    killed(dying + study.call("east"))
    with pytest.raises(daskrado.errors.LedgerError, match=r"noise is never drawn twice .* with --pay-again"):
        study.serve("east")
    with study.serving("north", "west"), ThreadPoolExecutor(1) as pool:
        result = pool.submit(study.run)
        study.serve("east", pay_again=True)
        result.result()
    assert study.states("east") == ["spent", "published"]


def test_no_step_is_answered_for_another_roster(study: Study) -> None:
    """A coordinator who stops after some steps asks two sites alone for the same point: the third one's sums."""
    round_ = study.open(**CENTRAL)
    boss = PrivateKeys.open(study.keys("boss"), create=False)
    with pytest.raises(DataError, match="0 s are over"):
        study.serve("east", timeout=0.0)
    smaller = replace(round_, roster={name: round_.roster[name] for name in ("east", "north")})
    forged = study.place / "forged"
    StudyFolder(forged).put_round(smaller, boss)
    for _ in range(2):  # then with the memory beside the keys put back from before
        with pytest.raises(DataError, match=r"contributes once for each number|as its ledger knows"):
            serve(
                forged, site="east", keys=study.keys("east"), lake=study.lakes["east"], dataset="clinic",
                ledger=study.ledger("east"), roster=smaller.roster_fingerprint, timeout=0.0,
            )  # fmt: skip
        shutil.rmtree(study.keys("east") / "studies", ignore_errors=True)
    assert not (forged / "bundles").exists()
    second = replace(smaller, number=2)
    StudyFolder(study.place / "second").put_round(second, boss)
    with pytest.raises(DataError, match="gives none to round 2"):
        serve(
            study.place / "second", site="east", keys=study.keys("east"), lake=study.lakes["east"],
            dataset="clinic", ledger=study.ledger("east"), roster=second.roster_fingerprint, timeout=0.0,
        )  # fmt: skip


def test_commands_of_one_round_and_of_many_name_each_other(study: Study) -> None:
    study.open(**CENTRAL)
    with pytest.raises(UsageError, match="answer them with daskrado site serve"):
        study.send("east")
    with pytest.raises(UsageError, match="combine them with daskrado study run"):
        study.combine()


def test_a_study_of_one_round_can_be_served_and_run(study: Study) -> None:
    study.open(private=False)
    found = study.whole()
    assert np.array_equal(found.model.weights, study.pooled().model.weights)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"protect": {**PROTECT, "relation": "replace_one"}}, "protects under add_remove, not replace_one"),
        ({"protect": {**PROTECT, "relation": "label_flip"}}, "protects under add_remove, not label_flip"),
        ({"budget": {"epsilon": 2.0}}, "needs budget.delta above 0"),
        ({"rows": 3}, "too small for 3 rows"),
        ({"lattice_bits": 4}, "shares of noise on this grid are too far from normal noise"),
        ({"private": False, "protect": None, "budget": None, "noise": None}, "learner"),
    ],
)
def test_a_study_that_cannot_be_kept_is_refused_when_it_is_opened(
    study: Study, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        study.open(**{key: value for key, value in {**SHARED, **changes}.items() if value is not None})
    assert not (study.box / "rounds").exists()


def test_a_folder_is_listed_while_others_write_to_it(tmp_path: Path) -> None:
    """Temporary files come and go meanwhile; the lists have whole files alone."""
    box = Mailbox(tmp_path)
    with ThreadPoolExecutor(2) as pool:
        writing = [pool.submit(lambda k: [box.put_new(f"b/{k}-{n}", b"x") for n in range(200)], k) for k in "ab"]
        while not all(one.done() for one in writing):
            assert not [name for name in box.names("b") if name.startswith(".")]
    assert len(box.names("b")) == 400
    assert box.names("nowhere") == []


@pytest.mark.slow
def test_the_command_line_serves_and_runs_a_study(study: Study) -> None:
    for name in SITES:
        _daskrado(study, "site", "join", "box", "--site", name, "--keys", name)
        study.ledger(name)
    content = {"study": "clinics", "domain": f"{study.path}.yaml", "minimum": 2, "sites": dict.fromkeys(SITES)}
    (study.place / "study.yaml").write_text(yaml.safe_dump(content | CENTRAL))
    _daskrado(study, "study", "open", "study.yaml", "box", "--keys", "boss")
    sites = []
    for name in SITES:
        lake = study.place / f"lake-{name}"
        lake.mkdir()
        for file in study.lakes[name]:
            shutil.copy(file, lake)
        words = ["--site", name, "--keys", name, "--lake", lake.name, "--dataset", "clinic", "--roster", study.roster]
        words += ["--ledger", f"{name}.sqlite", "--timeout", str(SOON)]
        sites.append(_begun(study, "site", "serve", "box", *words))
    out = _daskrado(study, "study", "run", "box", "--keys", "boss", "--out", "out", "--timeout", str(SOON))
    assert "one model of 3 sites" in out
    for site in sites:
        said, _ = site.communicate()
        assert site.returncode == 0
        assert "every step was answered" in said
        assert "charged to clinic: epsilon " in said


def _begun(study: Study, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "daskrado", *words]
    return subprocess.Popen(command, cwd=study.place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _daskrado(study: Study, *words: str) -> str:
    process = _begun(study, *words)
    out, err = process.communicate()
    assert process.returncode == 0, err
    return out
