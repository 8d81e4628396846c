"""A journal's folder: one lock, lines that survive a crash, secrets that do not, and what is refused in one line."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daskrado.errors import LedgerError, UsageError
from daskrado.lake import file_locks
from daskrado.ledger import lines as lines_module
from daskrado.ledger.account import Account
from daskrado.ledger.journal import Journal, lines_of
from daskrado.ledger.journal_folder import InUseError
from daskrado.ledger.ledger import Ledger
from daskrado.ledger.opening import named_account
from daskrado.privacy.accountant import PureEvent
from daskrado.privacy.relations import Relation


def one_line(error: pytest.ExceptionInfo[Exception]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


# Append-only lines


def test_lines_come_back_in_order_and_a_torn_one_is_dropped(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "j", {}) as journal:
        written = journal.lines("answers", {"queries": 3})
        for number in range(3):
            written.append({"answer": number, "text": "süß\n\u2028"})
    path = tmp_path / "j" / "answers.jsonl"
    assert path.stat().st_mode & 0o777 == 0o600
    with path.open("ab") as file:
        file.write(b'{"answer": 3, "te')
    with Journal.open(tmp_path / "j", {}) as journal:
        read = journal.lines("answers", {"queries": 3})
        assert [line["answer"] for line in read.entries] == [0, 1, 2]
        assert {line["text"] for line in read.entries} == {"süß\n\u2028"}
        read.append({"answer": 4})  # is not joined to the torn line
    with Journal.open(tmp_path / "j", {}) as journal:
        assert [line["answer"] for line in journal.lines("answers", {"queries": 3}).entries] == [0, 1, 2, 4]


def test_each_line_is_on_disk_before_append_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    with Journal.open(tmp_path / "j", {}) as journal:
        written = journal.lines("answers", {})
        path, real = tmp_path / "j" / "answers.jsonl", os.fsync

        def noted(handle: int) -> None:
            real(handle)
            synced.append(os.fstat(handle).st_size)

        monkeypatch.setattr(os, "fsync", noted)
        for number in range(3):
            written.append(number)
            assert synced[-1] == path.stat().st_size
    assert len(synced) == 3


@pytest.mark.parametrize("fails", ["half a line", "no space", "no sync"])
def test_a_line_that_could_not_be_written_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    real_write, real_sync = os.write, os.fsync

    def write(handle: int, data: bytes) -> int:
        if fails == "no space":
            raise full
        return real_write(handle, data[:5] if fails == "half a line" else data)

    def sync(handle: int) -> None:
        if fails == "no sync":
            raise full
        real_sync(handle)

    with Journal.open(tmp_path / "j", {}) as journal:
        written = journal.lines("answers", {})
        written.append("first")
        before = (tmp_path / "j" / "answers.jsonl").read_bytes()
        with monkeypatch.context() as patched:
            patched.setattr(lines_module.os, "write", write)
            patched.setattr(lines_module.os, "fsync", sync)
            with pytest.raises(LedgerError, match=r"answers.jsonl: could not be written whole") as error:
                written.append("second")
        one_line(error)
        assert (tmp_path / "j" / "answers.jsonl").read_bytes() == before
        written.append("third")
        assert written.entries == ["first", "third"]
    with Journal.open(tmp_path / "j", {}) as journal:
        assert journal.lines("answers", {}).entries == ["first", "third"]


@pytest.mark.parametrize(
    "content",
    [b"hello\n", b"[1]\n", b'{"settings": {}}\n', b'{"schema": "daskrado.answers/1", "facts": {}}\n', b"\xff\n"],
)
def test_damaged_lines_are_one_clear_error(tmp_path: Path, content: bytes) -> None:
    with Journal.open(tmp_path / "j", {}) as journal:
        (tmp_path / "j" / "answers.jsonl").write_bytes(content)
        with pytest.raises(
            LedgerError, match=r"answers.jsonl: is not a file of a journal .*, or is damaged"
        ) as error:
            journal.lines("answers", {})
        one_line(error)


def test_lines_of_other_settings_are_refused(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "j", {}) as journal:
        journal.lines("answers", {"epsilon": "1", "queries": 3}).close()
        with pytest.raises(UsageError, match=r"belongs to other settings \(epsilon, updates differ\)"):
            journal.lines("answers", {"epsilon": "2", "queries": 3, "updates": 1})
        assert journal.has_lines("answers")
        assert not journal.has_lines("instances")


def test_without_a_journal_lines_stay_in_memory() -> None:
    kept = lines_of(None, "answers", {})
    kept.append(1)
    assert kept.entries == [1]


# The lock and the folder


def test_what_was_closed_writes_no_more(tmp_path: Path) -> None:
    """Another process may have the journal by then."""
    journal = Journal.open(tmp_path / "j", {})
    written = journal.lines("answers", {})
    journal.close()
    journal.close()
    attempts: list[Callable[[], Any]] = [
        lambda: written.append(1),
        lambda: journal.lines("answers", {}),
        lambda: journal.begin("release"),
        lambda: journal.secret("rows"),
        lambda: journal.remember(rows=3),
    ]
    for attempt in attempts:
        with pytest.raises(UsageError, match="this journal was closed"):
            attempt()
    Journal.take(tmp_path / "j").close()


@pytest.mark.parametrize("gone", ["moved", "forgotten"])
def test_the_lock_of_a_folder_that_is_gone_is_worth_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    """The first process leaves between the second one's opening of the lock and its taking it; a third comes."""
    first = Journal.open(tmp_path / "j", {})
    real, third = fcntl.flock, []

    def flock(handle: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", real)
        if gone == "moved":
            first.move(tmp_path / "j.1.done")
        else:
            first.forget()
        first.close()
        third.append(Journal.open(tmp_path / "j", {}))
        real(handle, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(InUseError, match="still at work"):
        Journal.open(tmp_path / "j", {})
    third[0].begin("release")
    third[0].close()


def test_a_folder_of_others_is_neither_used_nor_touched(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.npz").write_bytes(b"years of work")
    with pytest.raises(LedgerError, match=r"home: holds thesis.npz and is not a journal that this version reads"):
        Journal.open(home, {})
    assert [path.name for path in home.iterdir()] == ["thesis.npz"]
    (tmp_path / "empty").mkdir()
    Journal.open(tmp_path / "empty", {}).close()


def test_a_journal_whose_removal_was_cut_off_is_begun_anew(tmp_path: Path) -> None:
    with Journal.create(tmp_path / "j", {}) as journal:
        journal.begin("release")
        journal.keep("release", {"mean": np.zeros(3)})
        journal.secret("rows")
        (tmp_path / "j" / "run.json").unlink()
    with Journal.create(tmp_path / "j", {}) as journal:
        assert journal.kept("release") is None
        assert not [*(tmp_path / "j").glob("*.key")]


def test_secrets_are_overwritten_before_they_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Journal.create(tmp_path / "j", {}) as journal:
        journal.secret("rows")
        journal.begin("share")
        journal.keep("share", {"vector": np.arange(100)})
        seen: dict[str, bytes] = {}

        def look(folder: Path, **_: Any) -> None:
            seen.update({path.name: path.read_bytes() for path in Path(folder).iterdir()})

        monkeypatch.setattr("shutil.rmtree", look)
        journal.forget()
    assert seen.pop("run.json").startswith(b"{")  # public
    assert set(seen) == {"rows.key", "share.npz", "lock"}
    assert not any(any(content) for content in seen.values())


def test_a_kept_draw_that_cannot_be_read_is_one_clear_error(tmp_path: Path) -> None:
    with Journal.create(tmp_path / "j", {}) as journal:
        journal.begin("release")
        journal.keep("release", {"mean": np.zeros(3)})
        path = tmp_path / "j" / "release.npz"
        for damage in (b"", bytes(path.stat().st_size), path.read_bytes()[:60]):
            path.write_bytes(damage)
            with pytest.raises(LedgerError, match=r"release.npz: what was drawn and kept cannot be read") as error:
                journal.kept("release")
            one_line(error)


# Older versions


def test_a_journal_of_an_older_version_is_refused_with_what_to_do(tmp_path: Path) -> None:
    older = "finish it with the version that began it, or move it away and start anew"
    Journal.open(tmp_path / "run", {}).close()
    content = json.loads((tmp_path / "run" / "run.json").read_text())
    (tmp_path / "run" / "run.json").write_text(json.dumps({**content, "schema": "daskrado.journal/4"}))
    (tmp_path / "queries.jsonl").write_text('{"schema": "daskrado.answers/1", "facts": {}}\n')
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "agreed.json").write_text("{}")
    for name in ("run", "queries.jsonl", "study"):
        with pytest.raises(LedgerError, match=older) as error:
            Journal.open(tmp_path / name, {})
        assert "daskrado.journal/6" in one_line(error)
    assert [path.name for path in (tmp_path / "study").iterdir()] == ["agreed.json"]


# Accounts without a journal, and with a name of their own


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger.open(tmp_path / "ledger.sqlite")
    made.set_limit("clinic", Relation.REPLACE_ONE, 10, 0)
    return made


def test_an_account_without_a_journal_draws_once(ledger: Ledger) -> None:
    account = Account("run", ledger)
    grant = account.reserve("release", "clinic", Relation.REPLACE_ONE, PureEvent(1), theorem="t")
    assert account.reserve("release", "clinic", Relation.REPLACE_ONE, PureEvent(1), theorem="t") == grant
    drawn: list[int] = []

    def perturb(_: None) -> dict[str, np.ndarray]:
        account.spend(grant)
        drawn.append(1)
        return {"mean": np.ones(1)}

    account.draw("release", grant, lambda: None, perturb)
    with pytest.raises(LedgerError, match="noise is never drawn twice for one grant"):
        account.draw("release", grant, lambda: None, perturb)
    for number in (1, 2):  # numbered draws of another role share one grant
        other = account.reserve("steps", "clinic", Relation.REPLACE_ONE, PureEvent(1), theorem="t")

        def step(_: None, other: Any = other) -> dict[str, np.ndarray]:
            account.spend(other)
            return {"drawn": np.ones(1)}

        account.draw("steps", other, lambda: None, step, number=number)
    assert len(drawn) == 1
    assert [entry.state for entry in ledger.entries()] == ["spent", "spent"]


def test_what_is_drawn_was_paid_and_counted_before(ledger: Ledger) -> None:
    account = Account("run", ledger)
    grant = account.reserve("release", "clinic", Relation.REPLACE_ONE, PureEvent(1), theorem="t")
    seen = []

    def perturb(_: None) -> dict[str, np.ndarray]:
        seen.append((ledger.state(grant), ledger.draws(grant.entry)))
        return {"mean": np.ones(1)}

    account.draw("release", grant, lambda: None, perturb)
    assert seen == [("spent", {"release"})]
    with pytest.raises(LedgerError, match="noise is never drawn twice for one grant"):
        account.draw("release", grant, lambda: None, perturb)
    with pytest.raises(LedgerError, match=r"draw release of entry 1 .* was made before"):
        account.count(grant, "release")
    assert len(seen) == 1


def test_a_grant_that_was_spent_is_not_found_by_an_engine_that_has_no_answers(ledger: Ledger) -> None:
    def reserve(unspent: bool) -> int:
        with named_account(ledger, "engine", "go on", charged_once=True) as account:
            event = PureEvent(1)
            grant = account.reserve("a", "clinic", Relation.REPLACE_ONE, event, theorem="t", unspent=unspent)
            account.spend(grant)
            return grant.entry

    assert [reserve(True), reserve(False), reserve(True)] == [1, 1, 2]


def test_a_run_of_a_kept_folder_removes_it(ledger: Ledger, tmp_path: Path) -> None:
    account = Account("0123456789abcdef", ledger)
    folder = account.kept_folder(tmp_path / "out")
    assert folder == tmp_path / ".out.0123456789ab.kept"
    folder.mkdir()
    account.done()
    assert not folder.exists()


def test_a_run_is_not_resumed_on_a_ledger_that_was_put_back_from_a_copy(tmp_path: Path) -> None:
    """The journal knows a later head than the ledger has; it stays as it is, for the right one."""
    made = Ledger.open(tmp_path / "ledger.sqlite")
    made.set_limit("clinic", Relation.REPLACE_ONE, 10, 0)
    copy = made.path.read_bytes()
    finish = "finish it"
    with named_account(made, "study", finish) as account:  # and cut off: it never says that it is done
        account.spend(account.reserve("rows", "clinic", Relation.REPLACE_ONE, PureEvent(1), theorem="t"))
    later = made.path.read_bytes()
    made.path.write_bytes(copy)
    for _ in range(2):
        with pytest.raises(LedgerError, match="a copy was put back"), named_account(made, "study", finish):
            pass
    made.path.write_bytes(later)
    with named_account(made, "study", finish) as account:
        assert account.resumed


def test_a_system_without_locks_is_named_before_anything_is_debited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Ledger.open(tmp_path / "ledger.sqlite")
    monkeypatch.setattr(file_locks, "_system", None)  # as on Windows
    with pytest.raises(UsageError, match="runs are not supported on it"), named_account(made, "study", "finish"):
        pass
    assert made.entries() == []
