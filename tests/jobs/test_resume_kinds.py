"""Runs of every kind that are cut off at the named points: one debit, one draw, and the answer that was paid for."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml
from every_kind import ENGINES, KINDS, PATIENT, make_ward, pipeline

import daskrado
from daskrado.engines.answers import GaussianVotes
from daskrado.errors import LedgerError, UsageError
from daskrado.jobs.load import resume
from daskrado.ledger.journal import LOST, Journal, journal_folder, unfinished
from daskrado.ledger.ledger import Ledger
from daskrado.ledger.show import ledger_lines
from daskrado.models.linear import LinearModel
from daskrado.privacy.statement import PrivacyStatement
from daskrado.table.domain import Domain

Killed = Callable[[str], None]
KILL = "lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL)"
NO_PLOTS = "from matplotlib.figure import Figure\nFigure.savefig = lambda self, to, **_: to.write('<svg></svg>')\n"
# Two sets and a choice of a round; two grids and unknown values; training and evaluation; a count and training.
SPENT_BY = {"rados": 3, "discover": 3, "holdout": 2, "counted gradient": 2}


@pytest.fixture(autouse=True)
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plots are drawn in other tests; here they would take most of the time."""
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda self, to, **_: to.write("<svg></svg>"))


@pytest.fixture(scope="module")
def ward(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_ward(tmp_path_factory.mktemp("ward"))


@pytest.fixture
def job(ward: tuple[Path, Path], tmp_path: Path) -> Callable[[str], Path]:
    """``job(name)``: the pipeline file of a kind, whose addresses are relative to another folder than the test's."""

    def make(name: str) -> Path:
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump(pipeline(name, ward, tmp_path / "out")))
        return path

    return make


def program(path: Path, ward: tuple[Path, Path], patch: str) -> str:
    return (
        "import daskrado.ledger.account as account, daskrado.ledger.journal as journal, contextlib, pathlib\n"
        f"{NO_PLOTS}import daskrado\nos.chdir({str(ward[0].parent)!r})\n{patch}\n"
        f"daskrado.run({str(path)!r})\n"
    )


def publishing_into(folder: Path) -> str:
    """The run writes its artefacts into another folder, and dies before it may publish them."""
    return (
        "@contextlib.contextmanager\ndef elsewhere(*a, **k):\n"
        f"    seen = pathlib.Path({str(folder)!r})\n    seen.mkdir()\n    yield seen\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "account.new_folder = elsewhere"
    )


def states(ledger: Path) -> list[str]:
    return [str(entry.state) for entry in Ledger.open(ledger, create=False).entries()]


def a_run(ledger: Path) -> str:
    return Ledger.open(ledger, create=False).entries()[0].run


def published(folder: Path) -> dict[str, bytes]:
    """What was released and learned; times and notes aside."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    documents = ("manifest.json", "report.html", "_manifest.json", "_report.html")
    found = {str(p.relative_to(folder)): p.read_bytes() for p in files if p.name not in documents}
    assert found
    return found


def nothing_left(ledger: Path, tmp_path: Path) -> None:
    assert list(ledger.with_name(ledger.name + ".runs").iterdir()) == []
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("kind", [*KINDS, *ENGINES, "random stopping"])
def test_killed_after_the_draw_the_same_bytes_are_published(
    kind: str, job: Callable[[str], Path], ward: tuple[Path, Path], killed: Killed, own_ledger: Path, tmp_path: Path
) -> None:
    killed(program(job(kind), ward, publishing_into(tmp_path / "seen")))
    over = kind in ("teachers", "sparse vector")  # the engine has answered all that it ever will
    charged = ["published" if over else "spent"] * SPENT_BY.get(kind, 1)
    assert states(own_ledger) == charged
    assert not (tmp_path / "out").exists()
    resume(a_run(own_ledger)[:12])
    assert published(tmp_path / "out") == published(tmp_path / "seen")
    assert states(own_ledger) == (charged if kind == "continual" else ["published"] * len(charged))  # it goes on
    nothing_left(own_ledger, tmp_path)


@pytest.mark.parametrize("kind", [*KINDS, "random stopping"])
def test_killed_before_the_draw_the_run_goes_on_under_its_own_grants(
    kind: str, job: Callable[[str], Path], ward: tuple[Path, Path], killed: Killed, own_ledger: Path, tmp_path: Path
) -> None:
    killed(program(job(kind), ward, f"journal.Journal.begin = {KILL}"))  # rows were read, nothing is drawn yet
    count = SPENT_BY.get(kind, 1)
    assert states(own_ledger) == ["reserved"] * count
    resume(a_run(own_ledger))
    assert states(own_ledger) == ["published"] * count
    assert published(tmp_path / "out")
    nothing_left(own_ledger, tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_killed_between_spending_and_keeping_no_noise_is_drawn_again(
    kind: str, job: Callable[[str], Path], ward: tuple[Path, Path], killed: Killed, own_ledger: Path, tmp_path: Path
) -> None:
    killed(program(job(kind), ward, f"journal.Journal.keep = {KILL}"))
    before = states(own_ledger)
    assert before[0] == "spent"
    with pytest.raises(LedgerError, match="noise is never drawn twice for one grant, so the charge stays; run the"):
        resume(a_run(own_ledger))
    assert states(own_ledger)[0] == "spent"
    assert "reserved" not in states(own_ledger)  # what was not drawn is given back
    assert not (tmp_path / "out").exists()
    assert any("its release was lost" in line for line in ledger_lines(Ledger.open(own_ledger)))


@pytest.mark.parametrize(
    "kind",
    [
        "gradient",
        "counted gradient",
        "objective",
        "one against the rest",
        "descent on a number",
        "tuning",
        "random stopping",
        "rados",
    ],
)
def test_a_run_of_several_draws_goes_on_after_the_last_that_it_kept(
    kind: str, job: Callable[[str], Path], ward: tuple[Path, Path], killed: Killed, own_ledger: Path, tmp_path: Path
) -> None:
    """Killed when the second draw is kept: the first two are not drawn again, and the rest follow."""
    patch = (
        "keep, done = journal.Journal.keep, []\n"
        "def dying(self, name, arrays):\n    keep(self, name, arrays)\n    done.append(name)\n"
        "    if len(done) == 2: os.kill(os.getpid(), signal.SIGKILL)\n"
        "journal.Journal.keep = dying"
    )
    killed(program(job(kind), ward, patch))
    (folder,) = own_ledger.with_name(own_ledger.name + ".runs").iterdir()
    kept = {path.name: path.read_bytes() for path in folder.glob("*.npz")}
    assert len(kept) == 2
    drawn: list[str] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("daskrado.ledger.journal.Journal.forget", lambda self: None)
        genuine = __import__("daskrado.ledger.journal").ledger.journal.Journal.keep
        patched.setattr(
            "daskrado.ledger.journal.Journal.keep", lambda self, name, a: (drawn.append(name), genuine(self, name, a))
        )
        resume(a_run(own_ledger))
    assert {path.name: path.read_bytes() for path in folder.glob("*.npz") if path.name in kept} == kept
    assert not {f"{name}.npz" for name in drawn} & set(kept)
    assert states(own_ledger) == ["published"] * SPENT_BY.get(kind, 1)


def test_killed_at_a_later_draw_the_run_is_refused(
    job: Callable[[str], Path], ward: tuple[Path, Path], killed: Killed, own_ledger: Path, tmp_path: Path
) -> None:
    """The second of several draws under one grant may have happened: the first being kept does not help."""
    patch = (
        "keep = journal.Journal.keep\n"
        "def dying(self, name, arrays):\n"
        "    if name.endswith('2'): os.kill(os.getpid(), signal.SIGKILL)\n    keep(self, name, arrays)\n"
        "journal.Journal.keep = dying"
    )
    killed(program(job("gradient"), ward, patch))
    with pytest.raises(LedgerError, match="noise is never drawn twice"):
        resume(a_run(own_ledger))
    assert states(own_ledger) == ["spent"]


def row_noise(ward: tuple[Path, Path], tmp_path: Path) -> Path:
    """A pipeline of two sets whose noise is on rows."""
    edges = {"name": "e", "kind": "noisy_edges", "count": 8, "protect": PATIENT}
    answers = {"name": "r", "kind": "randomised_response", "features": ["smoker"], "unit": "u"}
    sets = [{**edges, "budget": {"epsilon": 2.0, "delta": 1e-6}}, {**answers, "budget": {"epsilon": 1.0}}]
    content = {"kind": "rados", "sets": sets, "dataset": "ward", "lake": "lake", "domain": str(ward[1])}
    content |= {"output": str(tmp_path / "out"), "ledger": {"first_limit": {"epsilon": 40, "delta": 1e-5}}}
    (tmp_path / "r.yaml").write_text(yaml.safe_dump(content))
    return tmp_path / "r.yaml"


def test_noise_on_rows_is_repeated_from_its_key_not_drawn_again(
    ward: tuple[Path, Path], killed: Killed, own_ledger: Path, tmp_path: Path
) -> None:
    """Its grant is spent before it is released. Killed later, the same key gives the same rados, to the bit."""
    killed(program(row_noise(ward, tmp_path), ward, publishing_into(tmp_path / "seen")))
    assert states(own_ledger) == ["spent", "spent"]
    (folder,) = own_ledger.with_name(own_ledger.name + ".runs").iterdir()
    assert {path.stat().st_mode & 0o777 for path in folder.glob("*.key")} == {0o600}
    assert folder.stat().st_mode & 0o777 == 0o700
    resume(a_run(own_ledger))
    assert published(tmp_path / "out") == published(tmp_path / "seen")
    assert states(own_ledger) == ["published", "published"]
    nothing_left(own_ledger, tmp_path)


def test_noise_on_rows_that_was_summed_and_not_paid_for_is_released_under_the_same_grants(
    ward: tuple[Path, Path], killed: Killed, own_ledger: Path, tmp_path: Path
) -> None:
    killed(program(row_noise(ward, tmp_path), ward, f"account.Account.count_repeatable = {KILL}"))
    assert states(own_ledger) == ["reserved", "reserved"]
    assert not (tmp_path / "out").exists()
    resume(a_run(own_ledger))
    assert states(own_ledger) == ["published", "published"]
    assert len(published(tmp_path / "out")) == 2
    nothing_left(own_ledger, tmp_path)


@pytest.mark.parametrize(("kind", "moment"), [("queries", "run.collect"), ("teachers", "session.train")])
def test_an_engine_cut_off_before_its_first_draw_answers_under_the_same_grant(
    kind: str,
    moment: str,
    job: Callable[[str], Path],
    ward: tuple[Path, Path],
    killed: Killed,
    own_ledger: Path,
    tmp_path: Path,
) -> None:
    module = {"queries": "daskrado.jobs.run", "teachers": "daskrado.jobs.teacher_session"}[kind]
    killed(program(job(kind), ward, f"import {module}\n{module}.{moment.partition('.')[2]} = {KILL}"))
    assert states(own_ledger) == ["reserved"]
    resume(a_run(own_ledger))
    assert states(own_ledger) == ["published"]
    nothing_left(own_ledger, tmp_path)


def test_queries_whose_answers_are_gone_are_not_answered_again(
    job: Callable[[str], Path], ward: tuple[Path, Path], killed: Killed, own_ledger: Path, tmp_path: Path
) -> None:
    killed(program(job("queries"), ward, publishing_into(tmp_path / "seen")))
    (answers,) = own_ledger.with_name(own_ledger.name + ".runs").glob("*/answers.jsonl")
    answers.unlink()  # as a disk may after the power went
    with pytest.raises(
        LedgerError, match=r"older than the ledger, or parts of it are gone: it lacks \d+ of .*charge stays"
    ):
        resume(a_run(own_ledger))
    assert states(own_ledger) == ["spent"]
    assert not (tmp_path / "out").exists()


def test_a_published_run_is_not_offered_to_be_finished(
    job: Callable[[str], Path], ward: tuple[Path, Path], killed: Killed, own_ledger: Path, tmp_path: Path
) -> None:
    killed(program(job("learn"), ward, f"journal.Journal.forget = {KILL}"))
    with pytest.raises(UsageError, match="nothing left to finish") as error:
        resume(a_run(own_ledger))
    assert not getattr(error.value, "__notes__", [])
    nothing_left(own_ledger, tmp_path)


def test_the_command_that_finishes_names_a_ledger_of_its_own(
    job: Callable[[str], Path],
    ward: tuple[Path, Path],
    killed: Killed,
    own_ledger: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    killed(program(job("learn"), ward, f"journal.Journal.begin = {KILL}"))
    folder = own_ledger.with_name(own_ledger.name + ".runs") / a_run(own_ledger)
    assert Journal.take(folder).finish == f"daskrado run --resume {folder.name[:12]}"
    monkeypatch.setenv("DASKRADO_LEDGER", "/elsewhere/ledger.sqlite")
    (line,) = [line for line in ledger_lines(Ledger.open(own_ledger)) if "finished with" in line]
    assert line.endswith(f"daskrado run --resume {folder.name[:12]} --ledger {own_ledger}")


def test_a_run_begun_under_another_public_rule_is_not_resumed(
    job: Callable[[str], Path], ward: tuple[Path, Path], killed: Killed, own_ledger: Path
) -> None:
    """Half of its draws by one schedule and half by another would cost more than either."""
    killed(program(job("learn"), ward, f"journal.Journal.begin = {KILL}"))
    folder = own_ledger.with_name(own_ledger.name + ".runs") / a_run(own_ledger)
    kept = (folder / "run.json").read_text()
    assert '"daskrado.journal/6"' in kept
    (folder / "run.json").write_text(kept.replace("daskrado.journal/6", "daskrado.journal/5"))
    with pytest.raises(LedgerError, match="is not a journal that this version reads"):
        Journal.take(folder)


def test_one_journal_that_cannot_be_read_hides_no_other(
    job: Callable[[str], Path], ward: tuple[Path, Path], killed: Killed, own_ledger: Path
) -> None:
    killed(program(job("learn"), ward, f"journal.Journal.begin = {KILL}"))
    broken = own_ledger.with_name(own_ledger.name + ".runs") / "0000"
    broken.mkdir()
    (broken / "run.json").write_text('{"schema": "daskrado.journal/1"}')
    lines = ledger_lines(Ledger.open(own_ledger))
    assert any("is not a journal that this version reads" in line for line in lines)
    assert any("to be finished with" in line for line in lines)


def test_a_journal_in_use_is_neither_taken_nor_removed(own_ledger: Path) -> None:
    with Ledger.open(own_ledger) as ledger:
        folder = journal_folder(ledger) / "one"
        first = Journal.create(folder, {})
        first.begin("release")
        for attempt in (lambda: Journal.create(folder, {}), lambda: Journal.take(folder)):
            with pytest.raises(LedgerError, match="still at work in another process"):
                attempt()
        assert first.begun("release")
        first.close()
        with pytest.raises(LedgerError, match="begun by another process"):
            Journal.create(folder, {})
        (folder / "run.json").unlink()  # cut off as it was begun: the folder is used again
        Journal.create(folder, {}).close()


def test_queries_cut_off_in_the_middle_keep_the_answers_they_had(
    job: Callable[[str], Path], ward: tuple[Path, Path], killed: Killed, own_ledger: Path, tmp_path: Path
) -> None:
    patch = (
        "from daskrado.engines.queries import PrivateQueries as P\n"
        f"give, seen = P.give, pathlib.Path({str(tmp_path / 'given')!r})\n"
        "def dying(self, where):\n"
        "    if len(self.given) == 2: seen.write_text(repr(self.given)); os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return give(self, where)\n"
        "P.give = dying"
    )
    killed(program(job("queries"), ward, patch))
    result = resume(a_run(own_ledger))
    assert repr(list(result.value.answers[:2])) == (tmp_path / "given").read_text()
    assert len(result.value.answers) == 4
    assert states(own_ledger) == ["published"]


def test_teachers_cut_off_between_asking_and_keeping_are_refused_and_the_next_engine_answers(
    job: Callable[[str], Path],
    ward: tuple[Path, Path],
    killed: Killed,
    own_ledger: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    killed(program(job("teachers"), ward, f"import daskrado.engines.votes as v\nv.VoteEngine._keep = {KILL}"))
    path, run = job("teachers"), a_run(own_ledger)
    assert unfinished(Ledger.open(own_ledger)) == [(run, LOST)]
    with pytest.raises(LedgerError, match=r"so the charge stays; open the next engine \(answers.engine\) and run"):
        resume(run)
    assert states(own_ledger) == ["spent"]
    assert not (tmp_path / "out").exists()
    monkeypatch.chdir(ward[0].parent)
    with pytest.raises(LedgerError, match=r"cut off between spending on 30 queries .*; open the next engine"):
        daskrado.run(path)
    content = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**content, "answers": {**content["answers"], "engine": 2}}))
    assert daskrado.run(path).value.counts["asked"] == 30  # as both messages said
    assert states(own_ledger) == ["spent", "published"]


@pytest.mark.parametrize(
    ("queries", "said"),
    [
        (
            30,
            r"was not kept, so the charge stays; open the next engine \(answers.engine\) and run the pipeline again",
        ),
        (60, "what was paid for stands: daskrado run --resume "),
    ],
)
def test_an_interrupted_draw_of_teachers_says_what_can_be_done(
    queries: int,
    said: str,
    job: Callable[[str], Path],
    ward: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    own_ledger: Path,
) -> None:
    path = job("teachers")
    content = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**content, "answers": {"queries": queries}}))
    monkeypatch.chdir(ward[0].parent)

    def interrupt(self: GaussianVotes, counts: np.ndarray) -> np.ndarray:
        raise KeyboardInterrupt

    real = GaussianVotes.release
    monkeypatch.setattr(GaussianVotes, "release", interrupt)
    with pytest.raises(KeyboardInterrupt) as caught:
        daskrado.run(path)
    monkeypatch.setattr(GaussianVotes, "release", real)
    assert re.search(said, "\n".join(caught.value.__notes__))
    if queries == 60:
        assert resume(a_run(own_ledger)).value.counts == {"asked": 60, "answered": 30, "refused": 0}
    assert states(own_ledger) == ["published" if queries == 60 else "spent"]


def command(words: list[str], said: Path, patch: str = "") -> str:
    """The command line, as a program for ``forge``: its exit code, and its errors in a file."""
    return (
        f"import os, signal, sys\nsys.stderr = open({str(said)!r}, 'w')\n{NO_PLOTS}{patch}\n"
        f"sys.argv = ['daskrado', *{words!r}]\nfrom daskrado.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit as left:\n    sys.stderr.flush()\n    os._exit(left.code)\n"
    )


def test_the_command_line_finishes_a_run_of_any_kind_and_another_model_is_refused(
    job: Callable[[str], Path],
    ward: tuple[Path, Path],
    killed: Killed,
    forge: Callable[[str], int],
    own_ledger: Path,
    tmp_path: Path,
) -> None:
    killed(program(job("margins"), ward, publishing_into(tmp_path / "seen")))
    resumed = command(["run", "--resume", a_run(own_ledger)], tmp_path / "err")
    model = ward[0].parent / "model.json"
    before = model.read_text()
    try:
        domain = Domain.load(ward[1])
        LinearModel(domain, np.ones(domain.width), PrivacyStatement.none(), "test", {}).save(model)
        assert forge(resumed) == 1
    finally:
        model.write_text(before)
    (line,) = (tmp_path / "err").read_text().strip().splitlines()
    assert "the models changed since run" in line
    assert forge(resumed) == 0
    assert published(tmp_path / "out") == published(tmp_path / "seen")
    assert states(own_ledger) == ["published"]


@pytest.mark.parametrize(
    ("moment", "times", "said", "charged"),
    [
        ("journal.Journal.begin", 1, "nothing was written, and a grant that it took was given back", "void"),
        ("journal.Journal.keep", 1, "what was drawn is kept: daskrado run --resume ", "spent"),
        ("journal.Journal.keep", 2, "noise was being drawn and was not kept, so the charge stays", "spent"),
        ("publishing.write_files", 1, "what was drawn is kept: daskrado run --resume ", "spent"),
    ],
)
def test_an_interrupted_run_says_what_is_left_of_it(
    moment: str,
    times: int,
    said: str,
    charged: str,
    job: Callable[[str], Path],
    ward: tuple[Path, Path],
    forge: Callable[[str], int],
    own_ledger: Path,
    tmp_path: Path,
) -> None:
    """Ctrl-C, as a signal, before the draw, while it is kept, twice while it is kept, and while files are written."""
    patch = (
        "import daskrado.jobs.run as job, daskrado.jobs.publish as publishing, daskrado.ledger.journal as journal\n"
        f"os.chdir({str(ward[0].parent)!r})\n"
        f"genuine = {moment}\ndef interrupt(*a, **k):\n"
        f"    for _ in range({times}): os.kill(os.getpid(), signal.SIGINT)\n    return genuine(*a, **k)\n"
        f"{moment} = interrupt"
    )
    assert forge(command(["run", str(job("learn"))], tmp_path / "err", patch)) == 130
    line = (tmp_path / "err").read_text().strip()
    assert line.startswith("daskrado: error: interrupted; ")
    assert len(line.splitlines()) == 1
    assert said in line
    assert states(own_ledger) == [charged]
    assert not (tmp_path / "out").exists()
    if "--resume" in said:
        assert resume(line.split()[-1]).run == a_run(own_ledger)
    elif charged == "void":
        nothing_left(own_ledger, tmp_path)


def test_reports_that_were_encoded_by_the_command_line_are_published_once(
    ward: tuple[Path, Path], forge: Callable[[str], int], own_ledger: Path, tmp_path: Path, job: Callable[[str], Path]
) -> None:
    """``daskrado local encode``, killed as it publishes: the same reports, and nothing kept beside them."""
    words = ["local", "encode", str(ward[0]), str(job("local")), "--out", str(tmp_path / "reports")]
    patch = f"import contextlib, pathlib, daskrado.ledger.account as account\n{publishing_into(tmp_path / 'seen')}"
    assert forge(command(words, tmp_path / "err", patch)) == -signal.SIGKILL
    assert states(own_ledger) == ["spent"]
    assert forge(command(["run", "--resume", a_run(own_ledger)[:12]], tmp_path / "err")) == 0
    assert published(tmp_path / "reports") == published(tmp_path / "seen")
    assert states(own_ledger) == ["published"]
    nothing_left(own_ledger, tmp_path)


def test_published_reports_of_the_command_line_are_not_offered_to_be_finished(
    ward: tuple[Path, Path], forge: Callable[[str], int], own_ledger: Path, tmp_path: Path, job: Callable[[str], Path]
) -> None:
    """``daskrado local encode``, killed when all is published: its hidden manifest says whose the folder is."""
    words = ["local", "encode", str(ward[0]), str(job("local")), "--out", str(tmp_path / "reports")]
    patch = f"import daskrado.ledger.journal as journal\njournal.Journal.forget = {KILL}"
    assert forge(command(words, tmp_path / "err", patch)) == -signal.SIGKILL
    with pytest.raises(UsageError, match="nothing left to finish"):
        resume(a_run(own_ledger))
    assert states(own_ledger) == ["published"]
    nothing_left(own_ledger, tmp_path)
