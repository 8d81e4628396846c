"""The engine of answers: each query answered once, paid before drawn, alive after a crash, one for a data set."""

import contextlib
import json
import multiprocessing
import os
import shutil
import signal
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from published_text import numbers_in

from daskrado.engines.answers import REFUSED, Terms, answering
from daskrado.engines.succession import engine_folder
from daskrado.engines.votes import UNANSWERED, EngineFacts, VoteEngine, open_engine
from daskrado.errors import BudgetError, DataError, LedgerError, UsageError
from daskrado.ledger.account import Account, guarded
from daskrado.ledger.ledger import Ledger, State
from daskrado.ledger.opening import named_account
from daskrado.privacy.accountant import Event
from daskrado.privacy.relations import Relation
from daskrado.statistics.votes import Votes

TERMS = Terms(2.0, 1e-5, 6, 2)


def ledger_of(path: Path, timeout: float = 30) -> Ledger:
    ledger = Ledger.open(path / "ledger.sqlite", timeout=timeout)
    if ledger.limit("clinic", Relation.ADD_REMOVE) is None:
        ledger.set_limit("clinic", Relation.ADD_REMOVE, 30, 1e-3)
    return ledger


@contextlib.contextmanager
def opened(
    path: Path, name: str = "gaussian", terms: Terms = TERMS, lake: str = "f", timeout: float = 30, **more: Any
) -> Iterator[VoteEngine]:
    settings = {"mechanism": name, "queries": terms.queries, **more}
    facts = EngineFacts("clinic", Relation.ADD_REMOVE, "a theorem", lake * 64, settings)
    with (
        guarded(Account("run", ledger_of(path, timeout))) as account,
        open_engine(account, facts, event(name, terms)) as engine,
    ):
        yield engine


def lines(path: Path, name: str = "answers") -> Path:
    """The append-only file of the engine's journal."""
    return engine_folder(path / "ledger.sqlite", "clinic", Relation.ADD_REMOVE) / f"{name}.jsonl"


def event(name: str, terms: Terms = TERMS) -> Event:
    return answering(name, terms).event  # type: ignore[arg-type]


def ready(engine: VoteEngine, name: str = "gaussian", terms: Terms = TERMS) -> VoteEngine:
    engine.use(answering(name, terms, engine.journal))  # type: ignore[arg-type]
    return engine


def votes_for(*differences: int) -> Callable[[np.ndarray], Votes]:
    counts = np.array([[max(0, -d), max(0, d)] for d in differences], dtype=np.int64)
    return lambda at: Votes(counts[at])


CLEAR = votes_for(*[10_000, -10_000] * 10)


def names(*numbers: int) -> list[str]:
    return [f"{n:032x}" for n in numbers]


@pytest.mark.parametrize("name", ["gaussian", "stability", "sparse_vector"])
def test_clear_votes_are_answered_and_replayed_at_no_cost(tmp_path: Path, name: str) -> None:
    with opened(tmp_path, name) as engine:
        ready(engine, name)
        assert engine.ask(names(1, 2, 1), CLEAR).tolist() == [1, 0, 1]  # the third repeats the first
        assert engine.left == 4
    with opened(tmp_path, name) as engine:
        ready(engine, name)
        # Even with other votes: what was answered stays answered.
        assert engine.ask(names(2, 1), votes_for(9_999, 9_999)).tolist() == [0, 1]
        assert engine.left == 4
        assert engine.counts == {"asked": 2, "answered": 2, "refused": 0}
        assert engine.known(names(1, 2))
        assert not engine.known(names(3))
    entries = ledger_of(tmp_path).entries("clinic")
    assert [entry.state for entry in entries] == [State.SPENT]


def test_adaptive_queries_until_the_last_one(tmp_path: Path) -> None:
    with opened(tmp_path) as engine:
        ready(engine)
        first = engine.ask(names(1), CLEAR)[0]
        engine.ask(names(10 + first, 20, 30, 40), CLEAR)
        with pytest.raises(UsageError, match="2 new queries, but the engine of 'clinic' has 1 left of 6"):
            engine.ask(names(50, 60), CLEAR)
        engine.ask(names(50), CLEAR)
        assert engine.left == 0


def test_it_stops_at_the_last_refusal_and_says_so(tmp_path: Path) -> None:
    unsure = votes_for(0, 0, 0, 0, 0)
    with opened(tmp_path, "sparse_vector") as engine:
        ready(engine, "sparse_vector")
        assert engine.ask(names(1, 2, 3, 4), unsure).tolist() == [REFUSED, REFUSED, UNANSWERED, UNANSWERED]
        assert engine.left == 0
        with pytest.raises(UsageError, match="has 0 left"):
            engine.ask(names(5), unsure)


def test_each_session_of_a_sparse_vector_pays_for_its_threshold(tmp_path: Path) -> None:
    with opened(tmp_path, "sparse_vector") as engine:
        assert ready(engine, "sparse_vector").ask(names(1), CLEAR).tolist() == [1]
    with opened(tmp_path, "sparse_vector") as engine:  # the first threshold is gone: the second of two instances
        assert ready(engine, "sparse_vector").ask(names(2), CLEAR).tolist() == [1]
    with opened(tmp_path, "sparse_vector") as engine:  # and now none is left
        assert ready(engine, "sparse_vector").left == 0
        assert engine.ask(names(1, 2), CLEAR).tolist() == [1, 1]


def test_a_second_engine_on_the_same_data_and_budget_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as engine:
        ready(engine).ask(names(1), CLEAR)
    other = Terms(2.0, 1e-5, 9, 2)
    with (
        pytest.raises(UsageError, match="already has an engine under add_remove with another queries"),
        opened(tmp_path, terms=other),
    ):
        raise AssertionError
    assert len(ledger_of(tmp_path).entries("clinic")) == 1


def test_two_processes_cannot_answer_at_once(tmp_path: Path) -> None:
    with opened(tmp_path), pytest.raises(UsageError, match="another process is answering"), opened(tmp_path):
        raise AssertionError


def test_a_finished_engine_makes_way_for_one_with_other_settings_at_its_own_cost(tmp_path: Path) -> None:
    with opened(tmp_path) as engine:
        ready(engine).ask(names(*range(6)), CLEAR)
    with opened(tmp_path) as engine:  # same settings: nothing new, but the answers are still there
        assert ready(engine).ask(names(0, 1), CLEAR).tolist() == [1, 0]
    with opened(tmp_path, engine=2) as engine:
        assert ready(engine).ask(names(1), CLEAR).tolist() == [1]
    assert len(ledger_of(tmp_path).entries("clinic")) == 2
    kept = sorted(path.name for path in lines(tmp_path).parents[1].iterdir())
    assert kept == ["clinic.add_remove", "clinic.add_remove.1.done"]


def test_what_fails_before_the_first_draw_is_given_back(tmp_path: Path) -> None:
    def fail(*, after: bool) -> None:
        with opened(tmp_path) as engine:
            ready(engine)
            if after:
                engine.ask(names(1), CLEAR)
            raise RuntimeError("no rows")

    with pytest.raises(RuntimeError, match="no rows"):
        fail(after=False)
    ledger = ledger_of(tmp_path)
    assert [entry.state for entry in ledger.entries("clinic")] == [State.VOID]
    assert not lines(tmp_path).parent.exists()
    with pytest.raises(RuntimeError, match="no rows"):
        fail(after=True)
    assert [entry.state for entry in ledger.entries("clinic")] == [State.VOID, State.SPENT]


def test_no_engine_without_budget(tmp_path: Path) -> None:
    Ledger.open(tmp_path / "ledger.sqlite").set_limit("clinic", Relation.ADD_REMOVE, 0.5, 1e-6)
    with pytest.raises(BudgetError, match="does not cover this"), opened(tmp_path):
        raise AssertionError
    assert not lines(tmp_path).parent.exists()


def test_an_engine_without_the_ledger_that_paid_for_it_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as engine:
        ready(engine).ask(names(1), CLEAR)
    (tmp_path / "ledger.sqlite").unlink()
    with pytest.raises(LedgerError, match=r"restore (that|the latest) one"), opened(tmp_path):
        raise AssertionError


def test_the_journal_holds_public_facts_only(tmp_path: Path) -> None:
    with opened(tmp_path) as engine:
        ready(engine).ask(names(1, 2), votes_for(8_765, -4_321))
    text = lines(tmp_path).read_text()
    assert sorted(path.name for path in lines(tmp_path).parent.iterdir()) == ["answers.jsonl", "lock", "run.json"]
    for file in lines(tmp_path).parent.iterdir():
        assert not {"8765", "4321"} & numbers_in(file.read_text())
    answers = next(line["answers"] for line in map(json.loads, text.splitlines()[1:]) if "answers" in line)
    assert answers == {names(1)[0]: 1, names(2)[0]: 0}


def _killed_in_mid_answer(path: str) -> None:
    with opened(Path(path)) as engine:
        ready(engine).ask(names(1), CLEAR)
        drawn = engine.answering.release

        def release(counts: np.ndarray) -> np.ndarray:
            drawn(counts)
            os.kill(os.getpid(), signal.SIGKILL)
            raise AssertionError

        engine.answering.release = release
        engine.ask(names(2, 3), CLEAR)


@pytest.mark.slow
def test_a_process_killed_between_draw_and_answer_leaves_the_queries_paid(tmp_path: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=_killed_in_mid_answer, args=(str(tmp_path),))
    process.start()
    process.join(600)
    assert process.exitcode == -signal.SIGKILL
    with opened(tmp_path) as engine:
        ready(engine)
        assert engine.counts == {"asked": 3, "answered": 1, "refused": 0}
        assert engine.left == 3
        assert engine.ask(names(1, 2), CLEAR).tolist() == [1, 0]  # the first from the journal, the second anew
        assert engine.left == 2
    assert [entry.state for entry in ledger_of(tmp_path).entries("clinic")] == [State.SPENT]


def test_the_error_rate_is_released_once_and_kept(tmp_path: Path) -> None:
    unit, teachers = 1 << 20, 4000

    def measure() -> int:
        return round(0.2 * unit * teachers)

    with opened(tmp_path) as engine:
        engine.reserve_error_rate(1.0)
        rate = engine.error_rate(measure, unit, teachers, 1, 1.0)
        assert rate == pytest.approx(0.2, abs=2 * 25 / teachers)  # scale 2 / (k epsilon); 25 scales: never
        assert rate != 0.2
    with opened(tmp_path) as engine:
        assert engine.error_rate(lambda: 0, unit, teachers, 1, 1.0) == rate
    states = [(entry.state, entry.published) for entry in ledger_of(tmp_path).entries("clinic")]
    assert states == [(State.RESERVED, None), (State.PUBLISHED, f"error_rate {rate!r}")]


def test_the_mechanism_must_cost_what_was_reserved(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="another event"), opened(tmp_path) as engine:
        engine.use(answering("gaussian", Terms(3.0, 1e-5, 6)))


def test_an_engine_does_not_answer_from_another_lake(tmp_path: Path) -> None:
    with opened(tmp_path) as engine:
        ready(engine).ask(names(1), CLEAR)
    with (
        pytest.raises(DataError, match=r"is not the one whose engine .* open the next engine"),
        opened(tmp_path, lake="e"),
    ):
        raise AssertionError
    with opened(tmp_path) as engine:  # the lake that was paid for still can
        assert ready(engine).ask(names(2), CLEAR).tolist() == [1]
    with opened(tmp_path, lake="e", engine=2) as engine:  # as the message says, at its own cost
        assert ready(engine).ask(names(3), CLEAR).tolist() == [1]
    book = ledger_of(tmp_path)
    assert [e.fingerprint for e in book.entries("clinic")] == [book.keyed("f" * 64), book.keyed("e" * 64)]


@pytest.mark.parametrize("killed", [False, True])
def test_an_engine_whose_thresholds_are_used_up_by_sessions_makes_way(tmp_path: Path, killed: bool) -> None:
    path = lines(tmp_path)
    for number, left in enumerate([5, 0]):
        with opened(tmp_path, "sparse_vector") as engine:
            ready(engine, "sparse_vector").ask(names(number), CLEAR)
            assert engine.left == 5 - number  # this session could go on
            assert engine.left_afterwards == left
            assert engine.refusals_left == 1 - number
            as_it_was = path.read_bytes()
    if killed:
        path.write_bytes(as_it_was)
    with opened(tmp_path, "sparse_vector", engine=2) as engine:
        assert ready(engine, "sparse_vector").ask(names(1), CLEAR).tolist() == [1]
    assert len(ledger_of(tmp_path).entries("clinic")) == 2


def test_an_engine_without_thresholds_says_why(tmp_path: Path) -> None:
    for number in range(2):
        with opened(tmp_path, "sparse_vector") as engine:
            ready(engine, "sparse_vector").ask(names(number), CLEAR)
    with opened(tmp_path, "sparse_vector") as engine, pytest.raises(UsageError, match="its 2 thresholds are used up"):
        ready(engine, "sparse_vector").ask(names(7), CLEAR)


@pytest.mark.parametrize("damage", ["gone", "empty", "older"])
def test_thresholds_that_were_drawn_cannot_be_forgotten(tmp_path: Path, damage: str) -> None:
    state = lines(tmp_path, "instances")
    with opened(tmp_path, "sparse_vector") as engine:
        ready(engine, "sparse_vector")
        fresh = state.read_bytes()
        assert engine.ask(names(1, 2), votes_for(0, 0)).tolist() == [REFUSED, REFUSED]
    if damage == "gone":
        state.unlink()
    else:
        state.write_bytes(b"" if damage == "empty" else fresh)
    with (
        pytest.raises(LedgerError, match=r"it lacks 2 of the draws that were counted.*or open the next engine"),
        opened(tmp_path, "sparse_vector"),
    ):
        raise AssertionError
    with opened(tmp_path, "sparse_vector", engine=2) as engine:  # as the message says, at its own cost
        assert ready(engine, "sparse_vector").ask(names(3), CLEAR).tolist() == [1]


def test_a_busy_ledger_costs_no_query(tmp_path: Path) -> None:
    with opened(tmp_path):
        pass  # its grant is on record
    blocker = sqlite3.connect(tmp_path / "ledger.sqlite")

    def block(at: np.ndarray) -> Votes:
        blocker.execute("BEGIN IMMEDIATE")
        return CLEAR(at)

    with pytest.raises(LedgerError, match="ledger"), opened(tmp_path, timeout=0) as engine:
        ready(engine).ask(names(*range(6)), block)
    blocker.rollback()
    blocker.close()
    assert [entry.state for entry in ledger_of(tmp_path).entries("clinic")] == [State.RESERVED]
    with opened(tmp_path) as engine:
        assert ready(engine).left == 6
        assert engine.ask(names(*range(6)), CLEAR).tolist() == [1, 0] * 3
    assert [entry.state for entry in ledger_of(tmp_path).entries("clinic")] == [State.PUBLISHED]


@pytest.mark.parametrize("asked", [6, 3])
def test_an_engine_whose_answers_a_crash_took_makes_way(tmp_path: Path, asked: int) -> None:
    with opened(tmp_path) as engine, pytest.raises(KeyboardInterrupt):
        _interrupted(ready(engine)).ask(names(*range(asked)), CLEAR)
    with opened(tmp_path) as engine:
        assert ready(engine).left == 6 - asked
        with pytest.raises(LedgerError, match=rf"cut off between spending on {asked} queries.*open the next engine"):
            engine.ask(names(*range(6)), CLEAR)
    with opened(tmp_path, engine=2) as engine:
        assert ready(engine).ask(names(*range(6)), CLEAR).tolist() == [1, 0] * 3
    assert [entry.state for entry in ledger_of(tmp_path).entries("clinic")] == [State.SPENT, State.PUBLISHED]


def _interrupted(engine: VoteEngine) -> VoteEngine:
    def interrupt(counts: np.ndarray) -> np.ndarray:
        raise KeyboardInterrupt

    engine.answering.release = interrupt  # type: ignore[method-assign]
    return engine


def test_spent_then_counted_then_drawn(tmp_path: Path) -> None:
    """At the moment of the draw the ledger has spent and the file counts the queries."""
    path = lines(tmp_path)
    seen = []
    with opened(tmp_path) as engine:
        drawn = ready(engine).answering.release

        def release(counts: np.ndarray) -> np.ndarray:
            seen.append(
                ([e.state for e in ledger_of(tmp_path).entries("clinic")], b'"asked": 2' in path.read_bytes())
            )
            return drawn(counts)

        engine.answering.release = release
        engine.ask(names(1, 2), CLEAR)
    assert seen == [([State.SPENT], True)]


def test_a_halt_in_the_first_of_two_batches_is_no_crash(tmp_path: Path) -> None:
    terms = Terms(2.0, 1e-5, 3000, 2)
    with opened(tmp_path, "sparse_vector", terms) as engine:
        ready(engine, "sparse_vector", terms).ask(
            names(*range(2000)), lambda at: Votes(np.zeros((len(at), 2), np.int64))
        )
    with opened(tmp_path, "sparse_vector", terms) as engine, pytest.raises(UsageError, match="has 0 left of 3000"):
        ready(engine, "sparse_vector", terms).ask(names(9999), CLEAR)


def test_an_engine_of_an_older_version_is_refused(tmp_path: Path) -> None:
    older = lines(tmp_path).parent.with_name("clinic.add_remove.jsonl")
    older.parent.mkdir()
    older.write_text('{"schema": "daskrado.answers/1", "facts": {}}\n')
    with (
        pytest.raises(LedgerError, match="older version: finish it with the version that began it"),
        opened(tmp_path),
    ):
        raise AssertionError
    assert ledger_of(tmp_path).entries("clinic") == []
    older.rename(older.with_suffix(".away"))
    with opened(tmp_path) as engine:  # as the message says
        assert ready(engine).ask(names(1), CLEAR).tolist() == [1]


def test_another_ledgers_void_entry_does_not_remove_an_engine(tmp_path: Path) -> None:
    with opened(tmp_path) as engine:
        ready(engine).ask(names(1), CLEAR)
    (tmp_path / "ledger.sqlite").rename(tmp_path / "away.sqlite")
    other = ledger_of(tmp_path)
    other.void(other.reserve("clinic", Relation.ADD_REMOVE, event("gaussian"), theorem="t", run="another"))
    with pytest.raises(LedgerError, match=r"restore (that|the latest) one"), opened(tmp_path):
        raise AssertionError
    (tmp_path / "away.sqlite").rename(tmp_path / "ledger.sqlite")
    with opened(tmp_path) as engine:
        assert ready(engine).ask(names(1), votes_for(-10_000)).tolist() == [1]  # the answer that it had


def test_a_damaged_engine_is_one_clear_error(tmp_path: Path) -> None:
    with opened(tmp_path) as engine:
        ready(engine).ask(names(1), CLEAR)
    for damage in (b"3\n", b"{\n"):
        content = lines(tmp_path).read_bytes()
        lines(tmp_path).write_bytes(content + damage)
        with pytest.raises(LedgerError, match=r"answers.jsonl: .* damaged"), opened(tmp_path):
            raise AssertionError
        lines(tmp_path).write_bytes(content)
    with opened(tmp_path) as engine:
        assert ready(engine).known(names(1))


@pytest.mark.parametrize("remembered", [0, 1])
def test_a_debit_that_no_engine_remembers_is_found_by_the_resumed_run(
    tmp_path: Path, killed: Callable[[str], None], remembered: int
) -> None:
    """Killed after the ledger's debit: before the run remembers it, or before the engine does."""
    ledger = ledger_of(tmp_path)
    killed(
        "from daskrado.engines.answers import Terms, answering\n"
        "from daskrado.engines.votes import EngineFacts, open_engine\n"
        "from daskrado.ledger.journal import Journal\nfrom daskrado.ledger.ledger import Ledger\n"
        "from daskrado.ledger.opening import named_account\nfrom daskrado.privacy.relations import Relation\n"
        "real, seen = Journal.granted, []\n"
        "def dying(*a):\n"
        f"    if len(seen) == {remembered}: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    seen.append(real(*a))\n"
        "Journal.granted = dying\n"
        "facts = EngineFacts('clinic', Relation.ADD_REMOVE, 'a theorem', 'f' * 64, {'queries': 6})\n"
        f"ledger, event = Ledger.open({str(ledger.path)!r}), answering('gaussian', Terms(2.0, 1e-5, 6, 2)).event\n"
        "with named_account(ledger, 'run', 'go on') as account, open_engine(account, facts, event): pass\n"
    )
    assert [entry.state for entry in ledger.entries("clinic")] == [State.RESERVED]
    facts = EngineFacts("clinic", Relation.ADD_REMOVE, "a theorem", "f" * 64, {"queries": 6})
    with named_account(ledger, "run", "go on") as account, open_engine(account, facts, event("gaussian")) as engine:
        assert ready(engine).ask(names(1), CLEAR).tolist() == [1]
    assert [entry.state for entry in ledger.entries("clinic")] == [State.SPENT]


def test_an_engine_that_lost_its_answers_is_paid_for_anew(tmp_path: Path) -> None:
    """The resumed run knows a grant that was spent; an engine without answers must not draw for it again."""
    facts = EngineFacts("clinic", Relation.ADD_REMOVE, "a theorem", "f" * 64, {"queries": 6})
    ledger = ledger_of(tmp_path)
    for _ in range(2):
        with (
            named_account(ledger, "run", "go on") as account,
            open_engine(account, facts, event("gaussian")) as engine,
        ):
            ready(engine).ask(names(1), CLEAR)
        shutil.rmtree(lines(tmp_path).parent)
    assert [entry.state for entry in ledger.entries("clinic")] == [State.SPENT, State.SPENT]
