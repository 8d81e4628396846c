"""A ledger's file: rules that raw SQL cannot break, half-written, damaged, locked, read-only files, and others."""

import os
import signal
import sqlite3
import tempfile
from pathlib import Path

import pytest
from waiting import end, start

from daskrado.errors import LedgerError, UsageError
from daskrado.ledger.ledger import Ledger
from daskrado.privacy.accountant import PureEvent
from daskrado.privacy.relations import Relation

AR = Relation.ADD_REMOVE


@pytest.fixture
def ledger(tmp_path):
    return Ledger.open(tmp_path / "ledger.db")


def reserve(ledger, epsilon="0.1", fingerprint=None):
    return ledger.reserve("adult", AR, PureEvent(epsilon), theorem="Laplace", run="run-1", fingerprint=fingerprint)


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM records",
        "DELETE FROM lakes",
        "DELETE FROM balances",
        "UPDATE records SET kind = 'void' WHERE kind = 'spend'",
        "UPDATE records SET body = '{}' WHERE kind = 'debit'",
        "UPDATE records SET dataset = 'x'",
        "UPDATE records SET id = 99 WHERE id = 2",
        "UPDATE balances SET record = 2",
        "UPDATE lakes SET dataset = 'x'",
        "INSERT OR REPLACE INTO records SELECT 3, kind, at, who, dataset, run, entry, name, body, digest FROM records"
        " WHERE id = 2",
        "INSERT OR REPLACE INTO lakes SELECT record, 'x', fingerprint, salt FROM lakes",
        "INSERT OR REPLACE INTO balances SELECT budget, dataset, 2, digest FROM balances",
        "INSERT INTO records SELECT 99, kind, at, who, dataset, run, entry, name, body, digest FROM records "
        "WHERE kind = 'spend'",
    ],
)
def test_raw_sql_cannot_rewrite_history(ledger, statement):
    ledger.set_limit("adult", AR, 1, 0)
    ledger.spend(reserve(ledger, fingerprint="f"))
    reserve(ledger, fingerprint="f")
    before = ledger.to_json()
    connection = sqlite3.connect(ledger.path)
    with pytest.raises(sqlite3.IntegrityError):
        connection.execute(statement)
    connection.close()
    assert ledger.to_json() == before


def test_a_half_written_file_is_rolled_back(tmp_path):
    """The victim's tiny page cache forces dirty pages into the file before it dies: a hot rollback journal."""
    ledger = Ledger.open(tmp_path / "ledger.db")
    ledger.set_limit("adult", AR, 1, 0)
    reserve(ledger)
    before, size = ledger.to_json(), ledger.path.stat().st_size
    script = """
import sqlite3, sys
c = sqlite3.connect(sys.argv[1], isolation_level=None)
c.execute("PRAGMA cache_size = 2"); c.execute("PRAGMA cache_spill = 1"); c.execute("BEGIN IMMEDIATE")
for i in range(3000):
    c.execute("INSERT INTO records VALUES (?, 'debit', '', '', '', '', ?, '', ?, '')", (9 + i, 9 + i, "x" * 100))
print("inside", flush=True)
sys.stdin.readline()
"""
    victim = start(script, ledger.path)
    assert victim.stdout.readline() == "inside\n"
    victim.send_signal(signal.SIGKILL)
    end(victim)
    assert ledger.path.stat().st_size > size  # the uncommitted rows did reach the file
    assert Path(f"{ledger.path}-journal").exists()
    assert Ledger.open(ledger.path, create=False).to_json() == before
    reserve(ledger)


def test_a_lock_held_too_long_says_how_long_it_waited(tmp_path):
    Ledger.open(tmp_path / "ledger.db").set_limit("adult", AR, 1, 0)
    script = """
import sqlite3, sys
c = sqlite3.connect(sys.argv[1], isolation_level=None)
c.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.readline()
"""
    holder = start(script, tmp_path / "ledger.db")
    assert holder.stdout.readline() == "locked\n"
    ledger = Ledger.open(tmp_path / "ledger.db", timeout=0.2)
    with pytest.raises(LedgerError, match=r"ledger\.db is locked by another process; waited 0\.2 s"):
        reserve(ledger)
    assert ledger.limit("adult", AR) is not None  # readers are not held up
    end(holder)
    reserve(ledger)


def test_a_ledger_is_its_owners_alone(ledger):
    assert ledger.path.stat().st_mode & 0o777 == 0o600


# Files that are no ledgers


def test_reading_never_creates_a_file(tmp_path):
    path = tmp_path / "absent.db"
    with pytest.raises(LedgerError, match=r"no ledger at .*absent\.db"):
        Ledger.open(path, create=False)
    assert not path.exists()
    ledger = Ledger.open(path)
    path.unlink()
    for call in (ledger.entries, ledger.summary, lambda: reserve(ledger)):
        with pytest.raises(LedgerError, match="no ledger at"):
            call()
    assert not path.exists()


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(LedgerError, match=r"the folder .*nowhere does not exist"):
        Ledger.open(tmp_path / "nowhere" / "ledger.db")


def test_another_kind_of_address_is_named_without_its_password():
    with pytest.raises(UsageError, match=r"a ledger is a file or postgresql://\.\.\., got mysql://\.\.\.$"):
        Ledger.open("mysql://me:secret@server/x")


def test_a_folder_is_no_ledger(tmp_path):
    with pytest.raises(LedgerError, match="is a folder"):
        Ledger.open(tmp_path)


@pytest.mark.parametrize("create", [True, False])
def test_a_text_file_is_no_ledger_and_is_left_alone(tmp_path, create):
    path = tmp_path / "notes.txt"
    text = "these are my notes\n" * 200
    path.write_text(text)
    with pytest.raises(LedgerError, match=r"notes\.txt is not a ledger"):
        Ledger.open(path, create=create)
    assert path.read_text() == text


@pytest.mark.parametrize("create", [True, False])
def test_another_programs_database_is_refused_and_left_alone(tmp_path, create):
    path = tmp_path / "other.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE songs (title)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(LedgerError, match=r"other\.sqlite is not a daskrado ledger"):
        Ledger.open(path, create=create)
    assert path.read_bytes() == before


def test_a_ledger_of_another_version_is_refused(ledger):
    connection = sqlite3.connect(ledger.path)
    connection.execute("PRAGMA user_version = 7")
    connection.close()
    with pytest.raises(LedgerError, match="has version 7"):
        Ledger.open(ledger.path)
    with pytest.raises(LedgerError, match="has version 7"):
        ledger.entries()


def test_an_emptied_ledger_is_no_new_one(ledger):
    ledger.path.write_bytes(b"")
    for create in (True, False):
        with pytest.raises(LedgerError, match=r"is empty: what it held is gone; restore it from a copy"):
            Ledger.open(ledger.path, create=create)
    assert ledger.path.read_bytes() == b""


def test_a_ledger_is_made_whole_or_not_at_all(tmp_path, monkeypatch):
    """On file systems without hard links, too; a ledger that somebody else made meanwhile is never replaced."""
    path = tmp_path / "new.sqlite"
    monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(PermissionError(1, "no links")))
    Ledger.open(path).set_limit("clinic", Relation.ADD_REMOVE, 1, "1e-6")
    Ledger.open(path).store._make()
    assert Ledger.open(path).has_limits("clinic")
    monkeypatch.undo()
    Ledger.open(path).store._make()
    assert Ledger.open(path).has_limits("clinic")
    assert [p.name for p in tmp_path.iterdir()] == ["new.sqlite"]


def test_a_damaged_file_is_reported(ledger):
    ledger.set_limit("adult", AR, 1, 0)
    for _ in range(5):
        reserve(ledger, "0.01")
    content = bytearray(ledger.path.read_bytes())
    content[4096:] = b"\xa5" * (len(content) - 4096)  # everything after the first page
    ledger.path.write_bytes(content)
    with pytest.raises(LedgerError, match=r"ledger\.db is damaged"):
        Ledger.open(ledger.path)
    with pytest.raises(LedgerError, match=r"ledger\.db"):
        reserve(ledger)


def test_a_truncated_file_is_reported(ledger):
    ledger.path.write_bytes(ledger.path.read_bytes()[:5000])
    with pytest.raises(LedgerError, match=r"ledger\.db"):
        Ledger.open(ledger.path)


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf"), 1e9])
def test_bad_timeouts_are_refused(tmp_path, timeout):
    with pytest.raises(UsageError, match="timeout"):
        Ledger.open(tmp_path / "ledger.db", timeout=timeout)


@pytest.mark.parametrize(("file_mode", "folder_mode"), [(0o444, 0o777), (0o666, 0o555), (0o444, 0o555)])
def test_a_read_only_ledger_can_be_read_but_not_debited(file_mode, folder_mode):
    """Permissions do not stop root, so the attempt is made by a process that gives up root after its imports."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ledger = Ledger.open(folder / "ledger.db")
        ledger.set_limit("adult", AR, 1, 0)
        ledger.path.chmod(file_mode)
        folder.chmod(folder_mode)
        script = """
import os, sys
from daskrado.errors import LedgerError
from daskrado.privacy.accountant import PureEvent
from daskrado.ledger.ledger import Ledger
import scipy.special
if os.geteuid() == 0:
    os.setgroups([]), os.setgid(65534), os.setuid(65534)
ledger = Ledger.open(sys.argv[1])
print(ledger.limit("adult", "add_remove"))
try:
    ledger.reserve("adult", "add_remove", PureEvent(1), theorem="", run="")
except LedgerError as error:
    print(error)
"""
        read, refused = end(start(script, ledger.path)).splitlines()
        folder.chmod(0o700)
        assert read == "epsilon 1, delta 0"
        assert f"the ledger {ledger.path} cannot be opened for writing" in refused
        assert ledger.entries() == []


def test_a_ledger_cannot_be_created_in_a_read_only_folder():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o555)
        script = """
import os, sys
from daskrado.errors import LedgerError
from daskrado.ledger.ledger import Ledger
if os.geteuid() == 0:
    os.setgroups([]), os.setgid(65534), os.setuid(65534)
try:
    Ledger.open(sys.argv[1])
except LedgerError as error:
    print(error)
"""
        out = end(start(script, folder / "ledger.db"))
        folder.chmod(0o700)
        assert "ledger.db cannot be opened for writing" in out
        assert list(folder.iterdir()) == []


@pytest.mark.parametrize("address", ["[::1", "u:hun%ter2@h/x", "u:hunter2@h/x?foo=bar", "u:hunter2@h/x?host"])
def test_an_address_that_no_server_has_is_one_line_without_its_password(address):
    pytest.importorskip("psycopg")
    with pytest.raises(UsageError, match="cannot be read: write postgresql://USER@HOST:PORT/DATABASE") as caught:
        Ledger.open(f"postgresql://{address}")
    assert "ter2" not in str(caught.value)


@pytest.mark.parametrize(
    "name", ["eve\n  2026-11-18 09:00 bob, run 1: 0 % (void)", "\x1b[2K", "\udc80", "\u202eeve", "x" * 101]
)
def test_a_name_cannot_forge_a_line(tmp_path, monkeypatch, name):
    path = tmp_path / "ledger.db"
    Ledger.open(path).set_limit("adult", Relation.ADD_REMOVE, 1, 0)
    before = path.read_bytes()
    with pytest.raises(UsageError, match="a name in a ledger has 1 to 100 characters that can be printed") as caught:
        Ledger.open(path, who=name)
    assert str(caught.value).isprintable()
    monkeypatch.setenv("DASKRADO_WHO", name)
    with pytest.raises(UsageError, match="--who"):
        Ledger.open(path)
    assert path.read_bytes() == before
    Ledger.open(path, who="Zoë O'Hara, 3rd floor")
