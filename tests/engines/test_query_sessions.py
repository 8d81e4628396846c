"""Sessions of the query engine with a journal of their own: one charge, whatever became of the process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daskrado.errors import LedgerError, UsageError
from daskrado.jobs.queries import QueriesJob, open_queries
from daskrado.ledger.journal import Journal
from daskrado.ledger.ledger import Ledger
from daskrado.table.domain import Domain
from daskrado.table.yaml_file import parse

Clinic = Callable[..., tuple[Path, Domain]]
SMOKERS = {"smoker": True}


def content(clinic: Clinic) -> dict[str, Any]:
    lake, _ = clinic(3000, 3)
    return {
        "dataset": "clinic",
        "lake": str(lake),
        "domain": f"{lake}.yaml",
        "output": "unused",
        "protect": {"relation": "add_remove", "unit": "one patient"},
        "budget": {"epsilon": 2.0, "delta": 1e-6},
        "ledger": {"first_limit": {"epsilon": 3.0}},
        "universe": ["smoker", "readmitted"],
        "updates": 3,
    }


@pytest.fixture
def job(clinic: Clinic) -> QueriesJob:
    return parse(QueriesJob, {**content(clinic), "domain": clinic(3000, 3)[1]}, "test")


def states(ledger: Path) -> list[str]:
    return [str(entry.state) for entry in Ledger.open(ledger).entries("clinic")]


def dying(clinic: Clinic, journal: Path, patch: str) -> str:
    return (
        "import daskrado, daskrado.jobs.run as run, daskrado.engines.queries as engines\n"
        f"def die(*a, **k): os.kill(os.getpid(), signal.SIGKILL)\n{patch}\n"
        f"with daskrado.open_queries({content(clinic)!r}, journal={str(journal)!r}) as engine:\n"
        "    engine.ask({'smoker': True})\n    die()\n"
    )


@pytest.mark.parametrize(
    ("patch", "state"),
    [
        ("run.collect = die", "reserved"),
        ("engines.PrivateQueries._release_row_count = die", "reserved"),
        ("", "spent"),
    ],
    ids=["before the cells are counted", "before the first draw", "after an answer"],
)
def test_a_session_that_was_killed_goes_on_under_its_charge(
    clinic: Clinic,
    job: QueriesJob,
    killed: Callable[[str], None],
    own_ledger: Path,
    tmp_path: Path,
    patch: str,
    state: str,
) -> None:
    killed(dying(clinic, tmp_path / "j", patch))
    assert states(own_ledger) == [state]
    for _ in range(2):
        with open_queries(job, journal=tmp_path / "j") as engine:
            engine.ask(SMOKERS)
            public = engine.synthetic
    assert states(own_ledger) == ["spent"]
    with open_queries(job, journal=tmp_path / "j") as engine:
        assert np.array_equal(engine.synthetic, public)
        assert engine.asked == 2 + (not patch)


def test_a_session_killed_as_it_drew_the_row_count_is_refused(
    clinic: Clinic, job: QueriesJob, killed: Callable[[str], None], own_ledger: Path, tmp_path: Path
) -> None:
    killed(dying(clinic, tmp_path / "j", "engines.discrete_laplace = die"))
    with (
        pytest.raises(LedgerError, match="noise is never drawn twice"),
        open_queries(job, journal=tmp_path / "j"),
    ):
        pass
    assert states(own_ledger) == ["spent"]


def test_a_session_that_fails_before_it_draws_leaves_no_charge_and_no_journal(
    job: QueriesJob, own_ledger: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("no rows")

    with monkeypatch.context() as patched:
        patched.setattr("daskrado.jobs.run.collect", fail)
        with pytest.raises(RuntimeError, match="no rows"), open_queries(job, journal=tmp_path / "j"):
            pass
    assert states(own_ledger) == ["void"]
    assert not (tmp_path / "j").exists()
    with open_queries(job, journal=tmp_path / "j") as engine:
        engine.ask(SMOKERS)
    assert states(own_ledger) == ["void", "spent"]


def test_an_error_of_the_user_keeps_the_journal_and_says_where_it_is(
    job: QueriesJob, own_ledger: Path, tmp_path: Path
) -> None:
    with pytest.raises(ZeroDivisionError) as caught, open_queries(job, journal=tmp_path / "j") as engine:
        raise ZeroDivisionError(engine.ask(SMOKERS).count)
    assert caught.value.__notes__ == [f"the grant was spent and stays charged; answers are in {tmp_path / 'j'}"]
    assert states(own_ledger) == ["spent"]
    with open_queries(job, journal=tmp_path / "j") as engine:
        assert engine.asked == 1


def test_two_sessions_do_not_answer_from_one_journal(job: QueriesJob, own_ledger: Path, tmp_path: Path) -> None:
    with (
        open_queries(job, journal=tmp_path / "j") as engine,
        pytest.raises(UsageError, match="another process is answering from this journal"),
        open_queries(job, journal=tmp_path / "j"),
    ):
        pass
    assert engine.asked == 0
    assert states(own_ledger) == ["spent"]


def test_a_journal_that_cannot_be_used_costs_nothing(job: QueriesJob, own_ledger: Path, tmp_path: Path) -> None:
    older = tmp_path / "older"
    older.write_text('{"schema": "daskrado.answers/1", "facts": {"entry": 1}}\n')
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter.txt").write_text("dear")
    for name in ("older", "home"):
        with pytest.raises(LedgerError, match="finish it with the version that began it"):
            open_queries(job, journal=tmp_path / name).__enter__()
    assert states(own_ledger) == []
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["letter.txt"]


def test_answers_that_are_gone_are_not_given_again(job: QueriesJob, own_ledger: Path, tmp_path: Path) -> None:
    with open_queries(job, journal=tmp_path / "j") as engine:
        engine.ask(SMOKERS)
    (tmp_path / "j" / "answers.jsonl").unlink()
    for _ in range(2):
        with pytest.raises(LedgerError, match=r"it lacks 2 of the draws that were counted .* the charge stays"):
            open_queries(job, journal=tmp_path / "j").__enter__()
    assert states(own_ledger) == ["spent"]
    with Journal.take(tmp_path / "j") as journal:
        assert list(journal.grants.values()) == [1]
