"""Files that data sets were charged for: in one of them each, compactly, and sealed by the chain."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from daskrado.errors import BudgetError, LedgerError
from daskrado.lake.block_facts import Reading
from daskrado.ledger.history import check_all, exported
from daskrado.ledger.ledger import Grant, Ledger, Mark
from daskrado.ledger.moving import moved
from daskrado.privacy.events import PureEvent

MANY = 100_000


def reading(*names: str) -> Reading:
    return Reading(files={f"{name}\0{17}": f"lake/{name}" for name in names})


def charge(ledger: Ledger, dataset: str, files: Reading) -> Grant:
    return ledger.reserve(dataset, "add_remove", PureEvent(0.1), theorem="t", run="r", reading=files)


@pytest.fixture
def ledger(address: str) -> Ledger:
    found = Ledger.open(address)
    for name in ("a", "b"):
        found.set_limit(name, None, 10, 0)
    return found


def notes(ledger: Ledger) -> dict[str, str]:
    with ledger.store.reading() as rows:
        return {row["name"]: row["value"] for row in rows.execute("SELECT name, value FROM notes")}


def test_a_file_belongs_to_the_data_set_that_it_was_first_charged_as(ledger: Ledger) -> None:
    charge(ledger, "a", reading("1", "2"))
    charge(ledger, "b", reading("4", "5"))
    charge(ledger, "a", reading("2", "3"))
    for file, owner in {"1": "a", "3": "a", "4": "b"}.items():
        other = {"a": "b", "b": "a"}[owner]
        said = f"lake/{file} is already in the ledger {ledger.address} as a file of {owner!r}"
        with pytest.raises(BudgetError, match=re.escape(said)):
            charge(ledger, other, reading("7", file))
        assert ledger.owners("no such lake", reading("7", file).files) == [owner]
    assert ledger.owners("no such lake", reading("7").files) == []  # what was refused was not noted
    assert [entry.dataset for entry in ledger.entries()] == ["a", "b", "a"]


def test_only_new_files_are_noted_and_no_name_is(ledger: Ledger) -> None:
    for _ in range(3):
        charge(ledger, "a", reading("mysterious", "2"))
    charge(ledger, "a", reading("mysterious", "3"))
    kept = [value for name, value in notes(ledger).items() if name.startswith("files ")]
    assert sorted(map(len, kept)) == [12, 24]  # eight bytes a mark, in base64
    assert not any(word in str(exported(ledger)) for word in ("mysterious", *kept))


@pytest.mark.parametrize(
    "change", ["DELETE FROM notes WHERE name = ?", "UPDATE notes SET value = 'AAAA' WHERE name = ?"]
)
def test_a_note_that_is_lost_or_changed_shows(ledger: Ledger, change: str) -> None:
    charge(ledger, "a", reading("1"))
    (name,) = (name for name in notes(ledger) if name.startswith("files "))
    with ledger.store.transaction() as rows:
        rows.execute(change, (name,))
    with pytest.raises(LedgerError, match=r"is damaged: record \d+ does not"):
        charge(ledger, "b", reading("2"))
    with pytest.raises(LedgerError, match="is damaged"):
        ledger.owners("no such lake", reading("2").files)


def test_a_copied_ledger_knows_the_files(ledger: Ledger, tmp_path: Path) -> None:
    ledger.void(charge(ledger, "a", reading("1")))
    there = moved(ledger, tmp_path / "there.sqlite")
    with pytest.raises(BudgetError, match="lake/1 is already in the ledger"):
        charge(there, "b", reading("1"))


def test_lakes_of_many_files_cost_little(ledger: Ledger) -> None:
    """One note, of eleven letters for each mark."""
    files = reading(*map(str, range(MANY)))
    for _ in range(2):
        charge(ledger, "a", files)
    (kept,) = (value for name, value in notes(ledger).items() if name.startswith("files "))
    assert len(kept) < 11 * MANY
    with pytest.raises(BudgetError, match="lake/99999 is already"):
        charge(ledger, "b", reading("99999"))


def test_files_that_were_read_without_protection_mark_whoever_is_charged_for_them_later(ledger: Ledger) -> None:
    """On both back ends: under any name, once for each run, and with the time and the name of that run."""
    ledger.expose(reading("1", "2").files, Mark.NOT_PRIVATE, run="bare")
    ledger.expose(reading("2").files, Mark.NOT_PRIVATE, run="again")  # known: nothing is noted
    ledger.expose(reading("3").files, Mark.MODEL, run="bare")
    assert sorted(map(len, (value for name, value in notes(ledger).items() if name.startswith("files ")))) == [12, 24]
    assert ledger.owners("no such lake", reading("1").files) == []  # nobody's yet
    charge(ledger, "b", reading("4"))
    assert not ledger.marks("b")
    assert [marked.mark for marked in ledger.exposures("a", reading("2", "3").files)] == [
        Mark.NOT_PRIVATE,
        Mark.MODEL,
    ]
    for _ in range(2):
        charge(ledger, "a", reading("2", "3"))
    assert [(marked.mark, marked.run) for marked in ledger.marks("a")] == [
        (Mark.NOT_PRIVATE, "bare"),
        (Mark.MODEL, "bare"),
    ]
    assert ledger.exposures("a", reading("2", "3").files) == []
    check_all(ledger)
    with ledger.store.transaction() as rows:
        rows.execute("DELETE FROM notes WHERE name <> 'secret'")
    with pytest.raises(LedgerError, match="is damaged"):
        ledger.exposures("b", reading("1").files)
