"""Runs that are cut off: no second debit, no second draw, and the answer that was paid for is not lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from dying import kill_points

import daskrado
from daskrado.cli.main import main
from daskrado.errors import DataError, LedgerError, UsageError
from daskrado.jobs.load import resume
from daskrado.lake.make import make_lake
from daskrado.ledger.ledger import Ledger
from daskrado.ledger.show import ledger_lines
from daskrado.models.linear import LinearModel
from daskrado.privacy.relations import Relation
from daskrado.table.domain import Domain

Clinic = Callable[..., tuple[Path, Domain]]
Killed = Callable[[str], None]
Cut = Callable[..., None]
KILL = "lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL)"


@pytest.fixture
def cut_off(killed: Killed) -> Callable[..., None]:
    """Run in a process of its own that kills itself at the moment that ``patch`` arranges."""

    def run(lake: Path, out: Path, patch: str, *, relation: str = "add_remove", learner: str = "moments") -> None:
        killed(driver(lake, out, patch, relation=relation, learner=learner))

    return run


def driver(
    lake: Path, out: Path, patch: str, *, relation: str = "add_remove", learner: str = "moments", workers: int = 0
) -> str:
    """The program of such a process."""
    return (
        "import os, signal, daskrado, daskrado.jobs.run, daskrado.jobs.publish\n"
        "import daskrado.privacy.release, daskrado.ledger.journal\n"
        f"{patch}\n"
        f"daskrado.fit({str(lake)!r}, {str(lake) + '.yaml'!r}, dataset='clinic', epsilon=1.0, delta=1e-6, "
        f"relation={relation!r}, first_limit=(20.0, 1e-5), output={str(out)!r}, learner={learner!r}, "
        f"workers={workers})\n"
    )


def entries(ledger: Path) -> list[Any]:
    with Ledger.open(ledger, create=False) as opened:
        return opened.entries()


def test_killed_before_the_draw_the_run_finishes_on_its_own_grant(
    clinic: Clinic, cut_off: Cut, own_ledger: Path, tmp_path: Path
) -> None:
    path, _ = clinic(3000, 3)
    cut_off(path, tmp_path / "out", f"daskrado.jobs.run.collect = {KILL}")
    (entry,) = entries(own_ledger)
    assert entry.state == "reserved"
    before = Ledger.open(own_ledger).spent("clinic", Relation.ADD_REMOVE)
    assert any(f"daskrado run --resume {entry.run[:12]}" in line for line in ledger_lines(Ledger.open(own_ledger)))
    result = resume(entry.run[:12])
    assert result.run == entry.run
    assert [(e.id, e.state) for e in entries(own_ledger)] == [(entry.id, "published")]
    assert Ledger.open(own_ledger).spent("clinic", Relation.ADD_REMOVE) == before
    assert "nothing more was debited" in json.loads((tmp_path / "out" / "manifest.json").read_text())["notes"][0]
    assert (LinearModel.load(tmp_path / "out" / "model.json").weights == result.model.weights).all()
    with pytest.raises(UsageError, match="nothing left to finish"):
        resume(entry.run)


@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
def test_killed_after_the_draw_exactly_that_draw_is_published(
    clinic: Clinic, cut_off: Cut, own_ledger: Path, tmp_path: Path, relation: str
) -> None:
    path, _ = clinic(3000, 3)
    seen = tmp_path / "drawn.npy"
    patch = (  # after the noise is drawn the process notes what it drew, and dies when it begins to publish
        "import numpy as np\nkeep = daskrado.ledger.journal.Journal.keep\n"
        f"def noted(self, name, arrays):\n    np.save({str(seen)!r}, arrays['mean'])\n"
        "    keep(self, name, arrays)\n"
        f"daskrado.ledger.journal.Journal.keep = noted\ndaskrado.jobs.publish.write_files = {KILL}\n"
    )
    cut_off(path, tmp_path / "out", patch, relation=relation)
    (entry,) = entries(own_ledger)
    assert entry.state == "spent"
    assert not (tmp_path / "out").exists()
    lake = path.rename(path.with_name("away"))  # the rows are not needed any more
    try:
        result = resume(entry.run)
    finally:
        lake.rename(path)
    assert np.array_equal(result.release.values["mean"], np.load(seen))
    assert result.rows == (None if relation == "add_remove" else 3000)
    assert [(e.id, e.state) for e in entries(own_ledger)] == [(entry.id, "published")]
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["manifest.json", "model.json", "report.html"]
    assert list(own_ledger.with_name(own_ledger.name + ".runs").iterdir()) == []


def test_killed_between_spending_and_keeping_noise_is_not_drawn_again(
    clinic: Clinic, cut_off: Cut, own_ledger: Path, tmp_path: Path
) -> None:
    path, _ = clinic(3000, 3)
    cut_off(path, tmp_path / "out", f"daskrado.privacy.release._publish = {KILL}")
    (entry,) = entries(own_ledger)
    assert entry.state == "spent"
    for _ in range(2):
        with pytest.raises(LedgerError, match="noise is never drawn twice"):
            resume(entry.run)
    assert entries(own_ledger) == [entry]
    assert not (tmp_path / "out").exists()
    assert any("its release was lost" in line for line in ledger_lines(Ledger.open(own_ledger)))


@pytest.mark.parametrize("exchanges", [True, False])
def test_killed_at_each_step_of_publishing_one_output_is_in_place_and_nothing_is_left(
    clinic: Clinic, forge: Callable[[str], int], own_ledger: Path, tmp_path: Path, exchanges: bool
) -> None:
    """An older output is overwritten: it or the new one is there, and the resumed run removes all else."""
    path, _ = clinic(300, 1)
    place, drawn = tmp_path / "place", tmp_path / "drawn"
    place.mkdir()
    before = daskrado.fit(path, f"{path}.yaml", dataset="clinic", private=False, output=place / "out").run
    code = (
        "import daskrado, daskrado.ledger.account as account, daskrado.privacy.mechanisms as mechanisms\n"
        "from daskrado.jobs import publish\npublish.page_of = lambda *_: 'page'\n"
        "real = account.Account.publish\n"
        "def publish(self, *a):\n    arm()\n    return real(self, *a)\n"
        "account.Account.publish = publish\nkeep = account.Journal.keep\n"
        f"def noted(self, *a):\n    open({str(drawn)!r}, 'a').write(self.run + chr(10))\n    keep(self, *a)\n"
        "account.Journal.keep = noted\n"
        f"daskrado.fit({str(path)!r}, {str(path) + '.yaml'!r}, dataset='clinic', epsilon=0.1, delta=1e-7, "
        f"first_limit=(50.0, 1e-4), output={str(place / 'out')!r}, overwrite=True)\n"
    )
    published = set()
    for _ in kill_points(forge, code, exchanges=exchanges):
        run = drawn.read_text().splitlines()[-1]
        there = owner(place / "out")
        assert there in (run, before) or (there is None and not exchanges)
        if there == run:
            with pytest.raises(UsageError, match=r"is published in|nothing left to finish"):
                resume(run)
            published.add(run)
        else:
            resume(run)
        assert owner(place / "out") == run
        assert [path.name for path in place.iterdir()] == ["out"]
        waste = [path.name for path in own_ledger.with_name(own_ledger.name + ".runs").iterdir()]
        assert waste in ([], [f".{run}.done"])  # wiped; the next run removes it
        before = run
    runs = drawn.read_text().splitlines()
    assert len(runs) == len({*runs})  # each drew once
    assert [str(entry.state) for entry in entries(own_ledger)] == ["published"] * len(runs)
    assert len(published) > 3


def owner(out: Path) -> str | None:
    """The run whose output is there, whole."""
    if not out.exists():
        return None
    assert sorted(path.name for path in out.iterdir()) == ["manifest.json", "model.json", "report.html"]
    return str(json.loads((out / "manifest.json").read_text())["run"])


@pytest.mark.cluster
def test_workers_do_not_outlive_a_killed_driver(clinic: Clinic, own_ledger: Path, tmp_path: Path) -> None:
    path, _ = clinic(3000, 3)
    pids = tmp_path / "pids.json"
    patch = (
        "import json\ndef die(*a, client, **k):\n"
        f"    open({str(pids)!r}, 'w').write(json.dumps(sorted(client.run(os.getpid).values())))\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "daskrado.jobs.run.collect = die\n"
    )
    code = f"if __name__ == '__main__':\n{textwrap.indent(driver(path, tmp_path / 'out', patch, workers=2), '    ')}"
    (tmp_path / "driver.py").write_text(code)
    done = subprocess.run([sys.executable, tmp_path / "driver.py"], env=os.environ, capture_output=True, timeout=600)
    assert done.returncode == -signal.SIGKILL, done.stderr
    workers = json.loads(pids.read_text())
    assert len(workers) == 2
    left = [process for process in psutil.process_iter() if process.pid in workers]
    assert not psutil.wait_procs(left, timeout=300)[1]
    assert [str(e.state) for e in entries(own_ledger)] == ["reserved"]


def test_two_resumed_runs_draw_once(clinic: Clinic, cut_off: Cut, own_ledger: Path, tmp_path: Path) -> None:
    path, _ = clinic(3000, 3)
    cut_off(path, tmp_path / "out", f"daskrado.jobs.run.collect = {KILL}")
    (entry,) = entries(own_ledger)
    command = [sys.executable, "-c", "from daskrado.cli.main import main; main()", "run", "--resume", entry.run]
    racers = [
        subprocess.Popen(command, env=os.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    ends = [(racer.communicate(timeout=600), racer.returncode) for racer in racers]
    assert sorted(code for _, code in ends)[0] == 0
    assert [code for _, code in ends].count(0) == 1, ends
    for (_, err), code in ends:
        if code:
            assert len(err.strip().splitlines()) == 1
            assert "still at work" in err or "nothing left to finish" in err or "cannot be read" in err
    assert [(e.id, e.state) for e in entries(own_ledger)] == [(entry.id, "published")]


def test_ctrl_c_before_a_run_is_taken_up_claims_nothing_about_its_grant(
    clinic: Clinic,
    cut_off: Cut,
    own_ledger: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cut_off(clinic(3000, 3)[0], tmp_path / "out", f"daskrado.jobs.run.collect = {KILL}")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("daskrado.ledger.opening.find_journal", interrupted)
    monkeypatch.setattr(sys, "argv", ["daskrado", "run", "--resume", entries(own_ledger)[0].run])
    with pytest.raises(SystemExit, match="130"):
        main()
    said = "nothing was written, and daskrado ledger show tells how the run stands"
    assert capsys.readouterr().err.strip() == f"daskrado: error: interrupted; {said}"
    assert [e.state for e in entries(own_ledger)] == ["reserved"]


def test_what_cannot_be_resumed_is_said_in_one_line(
    clinic: Clinic, cut_off: Cut, own_ledger: Path, tmp_path: Path
) -> None:
    make_lake(tmp_path / "lake", rows=2000, features=12, partitions=2, seed=3)
    cut_off(tmp_path / "lake", tmp_path / "out", f"daskrado.jobs.run.collect = {KILL}")
    (entry,) = entries(own_ledger)
    with pytest.raises(UsageError, match="no such run"):
        resume("feedbeef")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    with pytest.raises(UsageError, match="move that away, then resume"):
        resume(entry.run)
    assert [e.state for e in entries(own_ledger)] == ["reserved"]
    opened = Ledger.open(own_ledger)
    opened.void(_grant(opened, entry))
    with pytest.raises(UsageError, match="gave its grant back"):
        resume(entry.run)
    assert list(own_ledger.with_name(own_ledger.name + ".runs").iterdir()) == []


def test_a_lake_that_changed_before_noise_was_drawn_frees_the_grant(
    cut_off: Cut, own_ledger: Path, tmp_path: Path
) -> None:
    """The run can never go on, and nothing was released: its budget is there for the next one."""
    make_lake(tmp_path / "lake", rows=2000, features=12, partitions=2, seed=3)
    cut_off(tmp_path / "lake", tmp_path / "out", f"daskrado.jobs.run.collect = {KILL}")
    (entry,) = entries(own_ledger)
    make_lake(tmp_path / "lake", rows=2100, features=12, partitions=2, seed=3, overwrite=True)
    with pytest.raises(DataError, match=r"changed since run .*; run the pipeline again") as caught:
        resume(entry.run)
    assert "--resume" not in " ".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert [e.state for e in entries(own_ledger)] == ["void"]
    with pytest.raises(UsageError, match="nothing left to finish"):
        resume(entry.run)


def _grant(ledger: Ledger, entry: Any) -> Any:
    from daskrado.ledger.ledger import Grant

    return Grant(entry.id, entry.dataset, entry.relation, entry.event, ledger.path, entry.run)
