"""Runs whose ledger is a database: planned, charged, cut off, resumed."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import daskrado
from daskrado.cli.main import cli
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
