"""Names may hold line breaks and control characters: no line of a ledger, a plan, a run or an error is forged."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import daskrado
from daskrado.cli import main
from daskrado.jobs.load import load_job
from daskrado.jobs.published import published_below
from daskrado.jobs.show import plan_lines
from daskrado.lake.block_facts import EACH
from daskrado.ledger.ledger import Ledger, Mark
from daskrado.ledger.show import balance_line, block_lines, ledger_lines
from daskrado.privacy.accountant import PureEvent
from daskrado.privacy.groups import ProtectedUnit
from daskrado.privacy.relations import Relation

FORGED = "x\n  2026-11-18 09:00 bob, run 1: 0 % (void)\x1b[2K\u202e\r"
DOMAIN = {
    "label": {"column": "y", "positive": 1, "negative": 0},
    "columns": {FORGED: {"kind": "numeric", "lower": 0, "upper": 1}},
}


def check(lines: Any) -> None:
    found = list(lines)
    assert found
    assert all(line.isprintable() for line in found), found
    assert not any(line.startswith("  2026-11-18 09:00 bob") for line in found)


def test_of_a_ledger(tmp_path: Path) -> None:
    """Units, the columns of their ids, protected features, blocks, runs and those who ran them."""
    ledger = Ledger.open(tmp_path / "ledger.db")
    people = ProtectedUnit(Relation.ADD_REMOVE, unit=FORGED, column=FORGED, owns=3)
    feature = ProtectedUnit(Relation.FEATURE_FLIP, feature=FORGED)
    for own in (people, feature):
        ledger.set_limit("clinic", own, 10, 1e-5)
    ledger.set_limit("clinic", None, 10, 1e-5)
    ledger.set_limit("clinic", None, 10, 1e-5, block=EACH)
    ledger.who = FORGED  # as whoever writes into the file himself
    for own in (people, feature, ProtectedUnit(Relation.ADD_REMOVE)):
        ledger.reserve("clinic", own, PureEvent("0.1"), theorem=FORGED, run=FORGED, role=FORGED, blocks=[FORGED])
    ledger.mark("clinic", Mark.MODEL, run=FORGED)
    check(ledger_lines(ledger, totals=True))
    check(block_lines(ledger, "clinic"))
    check(balance_line(balance) for balance in ledger.balances("clinic"))


def test_of_a_plan_a_run_and_what_is_published(tmp_path: Path, own_ledger: Path) -> None:
    rows = pd.DataFrame({FORGED: [0.1, 0.2, 0.9] * 40, "y": [0, 0, 1] * 40, "day": [FORGED, "a", "b"] * 40})
    rows["p\n"] = range(120)
    job = load_job(
        {
            "dataset": "clinic", "lake": rows, "domain": DOMAIN, "output": str(tmp_path / "out"),
            "blocks": {"column": "day"}, "budget": {"epsilon": 0.5},
            "protect": {"relation": "add_remove", "unit": {"column": "p\n", "within": "day", "name": FORGED}},
            "ledger": {"first_limit": {"epsilon": 1}},
        }
    )  # fmt: skip
    check(plan_lines(job, None))
    check(daskrado.run(job).lines)
    with Ledger.open(own_ledger) as ledger:
        check(plan_lines(job, ledger))
        check(ledger_lines(ledger))
        check(block_lines(ledger, "clinic"))
    ((published,), _) = published_below(tmp_path)
    check(published.lines())


def test_of_an_error(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["daskrado", "ledger", "show", "--ledger", FORGED])
    with pytest.raises(SystemExit):
        main.main()
    check(capsys.readouterr().err.removesuffix("\n").split("\n"))
