"""Draws, endings, marks, heads and the chain itself; and ledgers of version 1."""

import json
import sqlite3
from fractions import Fraction
from pathlib import Path

import pytest

from daskrado.errors import BudgetError, LedgerError
from daskrado.ledger import balances
from daskrado.ledger.balances import Budget
from daskrado.ledger.chain import Head
from daskrado.ledger.grants import grant_of
from daskrado.ledger.history import check_all
from daskrado.ledger.ledger import EACH, Ledger, Mark, State
from daskrado.ledger.ledger_file import SqliteRows
from daskrado.ledger.show import ledger_lines
from daskrado.privacy.accountant import ApproximateEvent, GaussianEvent, PureEvent
from daskrado.privacy.relations import Relation

AR = Relation.ADD_REMOVE


@pytest.fixture
def ledger(address):
    made = Ledger.open(address, who="ada")
    made.set_limit("adult", AR, 1, 0)
    return made


def reserve(ledger, epsilon="0.1", run="run-1", fingerprint=None):
    return ledger.reserve("adult", AR, PureEvent(epsilon), theorem="Laplace", run=run, fingerprint=fingerprint)


# Draws and endings


def test_a_draw_is_counted_once_and_the_first_one_spends(ledger):
    grant = reserve(ledger)
    ledger.count_draw(grant, "step#00001")
    assert ledger.state(grant) is State.SPENT
    ledger.count_draw(grant, "2")
    for again in ("step#00001", "2"):
        with pytest.raises(LedgerError, match=r"draw .* of entry 1 .* was made before; noise is never drawn twice"):
            ledger.count_draw(grant, again)
    assert ledger.draws(grant.entry) == {"step#00001", "2"}
    assert ledger.entry(grant.entry).draws == 2
    with pytest.raises(LedgerError, match="already spent"):
        ledger.void(grant)


def test_a_draw_that_is_a_function_of_a_key_may_be_repeated_and_no_other(ledger):
    grant = reserve(ledger)
    for _ in range(2):
        ledger.count_draw(grant, "rows", "digest")
    for other in ("", "another"):
        with pytest.raises(LedgerError, match="noise is never drawn twice"):
            ledger.count_draw(grant, "rows", other)
    assert ledger.entry(grant.entry).draws == 1


def test_a_draw_of_one_grant_says_nothing_of_another(ledger):
    first, second = reserve(ledger), reserve(ledger)
    for grant in (first, second):
        ledger.count_draw(grant, "release")
    assert [entry.draws for entry in ledger.entries()] == [1, 1]


def test_a_published_grant_is_over(ledger):
    grant = reserve(ledger)
    with pytest.raises(LedgerError, match="already reserved"):
        ledger.publish(grant, "ab" * 32)
    ledger.count_draw(grant, "release")
    ledger.publish(grant, "ab" * 32)
    ledger.publish(grant, "ab" * 32)  # said twice by a run that was cut off after the first time
    entry = ledger.entry(grant.entry)
    assert (entry.state, entry.published) == (State.PUBLISHED, "ab" * 32)
    for change in (
        lambda: ledger.publish(grant, "cd" * 32),
        lambda: ledger.count_draw(grant, "another"),
        lambda: ledger.spend(grant),
        lambda: ledger.void(grant),
    ):
        with pytest.raises(LedgerError, match="already published"):
            change()
    assert ledger.balance("adult", AR).total.epsilon == Fraction(1, 10)


def test_a_void_grant_draws_nothing(ledger):
    grant = reserve(ledger)
    ledger.void(grant)
    with pytest.raises(LedgerError, match="already void"):
        ledger.count_draw(grant, "release")


def test_marks_say_what_became_public_when_and_by_whom(ledger):
    ledger.mark("adult", Mark.FEATURES, run="run-9")
    ledger.mark("census", Mark.NOT_PRIVATE)
    (found,) = ledger.marks("adult")
    assert (found.mark, found.run, found.who) == (Mark.FEATURES, "run-9", "ada")
    assert [mark.dataset for mark in ledger.marks()] == ["adult", "census"]


def test_a_release_marks_what_its_relation_takes_as_public(ledger):
    """Once, when noise is drawn: a limit for rows says nothing about whoever learns the exact features."""
    ledger.set_limit("adult", None, 9, 0)
    for relation in (Relation.REPLACE_ONE, Relation.LABEL_FLIP, Relation.LABEL_FLIP, AR):
        grant = ledger.reserve("adult", relation, PureEvent("0.1"), theorem="t", run=str(relation))
        assert len(ledger.marks()) <= 2  # label_flip takes counts as public, too, which are marked already
        ledger.count_draw(grant, "release")
    assert [(m.mark, m.run) for m in ledger.marks("adult")] == [
        (Mark.COUNTS, "replace_one"),
        (Mark.FEATURES, "label_flip"),
    ]


def test_records_name_who_wrote_them(ledger, address):
    reserve(ledger)
    reserve(Ledger.open(address, who="bob"))
    assert [entry.who for entry in ledger.entries()] == ["ada", "bob"]


# Version 1


def version_1(path: Path, rows: list[tuple], limits: list[tuple]) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.executescript((Path(__file__).parent / "version_1.sql").read_text())
    for limit in limits:
        columns = "(dataset, relation, epsilon, delta, set_at)"
        connection.execute(f"INSERT INTO limits {columns} VALUES (?, ?, ?, ?, 't')", limit)
    for dataset, event, state, fingerprint in rows:
        made = connection.execute(
            "INSERT INTO entries (dataset, relation, event, theorem, run, fingerprint, state, reserved_at) "
            "VALUES (?, 'add_remove', ?, 'Laplace', 'old', ?, 'reserved', 'then')",
            (dataset, json.dumps(event), fingerprint),
        )
        if state != "reserved":
            connection.execute(
                "UPDATE entries SET state = ?, settled_at = 'later' WHERE id = ?", (state, made.lastrowid)
            )
    connection.close()


PURE = {"kind": "pure", "epsilon": "0.25"}


def test_a_ledger_of_version_1_is_converted_and_nobody_gains_budget(tmp_path):
    path = tmp_path / "old.db"
    rows = [("adult", PURE, "spent", "f"), ("adult", PURE, "void", None), ("adult", PURE, "reserved", "f")]
    version_1(path, rows, [("adult", "add_remove", "5", "0"), ("adult", "add_remove", "1", "0")])
    ledger = Ledger.open(path)
    assert [(e.id, e.state, e.run, e.reserved_at) for e in ledger.entries("adult")] == [
        (1, State.SPENT, "old", "then"),
        (2, State.VOID, "old", "then"),
        (3, State.RESERVED, "old", "then"),
    ]
    assert ledger.balance("adult", AR).total.epsilon == Fraction(1, 2)
    assert ledger.limit("adult", AR).epsilon == 1
    assert ledger.entry(1).fingerprint == ledger.keyed("f")
    ledger.set_limit("census", AR, 1, 0)
    with pytest.raises(BudgetError, match="already in the ledger"):
        ledger.reserve("census", AR, PureEvent("0.1"), theorem="t", run="r", fingerprint="f")
    with pytest.raises(BudgetError):
        reserve(ledger, "0.6")
    assert path.stat().st_mode & 0o777 == 0o600
    assert ledger.relations("adult") == {AR: 2}
    check_all(ledger)
    assert Ledger.open(path, create=False).entries() == ledger.entries()


def test_old_charges_above_the_new_rule_leave_nothing(tmp_path):
    """Version 1 let eight events of epsilon 1/4 into (2, 1e-6): 8 * 0.313^2 = 0.78 > 0.5^2 > mu_L^2."""
    path = tmp_path / "old.db"
    version_1(path, [("adult", PURE, "spent", None)] * 8, [("adult", "add_remove", "2", "1e-6")])
    ledger = Ledger.open(path)
    balance = ledger.balance("adult", AR)
    assert balance.rule.share(balance.total) > 1
    for event in (PureEvent("1e-9"), GaussianEvent(1e-9), ApproximateEvent("1e-9", "1e-20")):
        with pytest.raises(BudgetError, match=r", 0 % is left"):
            ledger.reserve("adult", AR, event, theorem="t", run="r")
    assert ledger.remaining("adult", AR).epsilon == 0


def test_a_reservation_of_version_1_can_be_voided_and_spent(tmp_path):
    path = tmp_path / "old.db"
    version_1(path, [("adult", PURE, "reserved", None)] * 3, [("adult", "add_remove", "1", "0")])
    ledger = Ledger.open(path)
    first, second, _ = (grant_of(entry, ledger) for entry in ledger.entries())
    ledger.void(first)
    ledger.spend(second)
    assert ledger.balance("adult", AR).total.epsilon == Fraction(1, 2)


def test_what_version_1_holds_unreadable_stops_the_conversion_and_changes_nothing(tmp_path):
    path = tmp_path / "old.db"
    version_1(path, [("adult", {"kind": "shuffle"}, "spent", None)], [("adult", "add_remove", "1", "0")])
    before = path.read_bytes()
    with pytest.raises(LedgerError, match=r"version 1 holds something unreadable.*shuffle"):
        Ledger.open(path)
    assert path.read_bytes() == before


def test_the_secret_is_the_ledgers_own(tmp_path, ledger):
    other = Ledger.open(tmp_path / "other.db")
    assert ledger.keyed("f") == ledger.keyed("f") != other.keyed("f")
    with ledger.store.transaction() as rows:
        rows.execute("UPDATE notes SET value = ? WHERE name = 'secret'", ("0" * 64,))
    with pytest.raises(LedgerError, match="its secret was changed"):
        reserve(ledger, fingerprint="f")


# Heads


def test_a_ledger_put_back_from_a_copy_is_noticed_by_whoever_noted_a_head(tmp_path):
    ledger = Ledger.open(tmp_path / "ledger.db")
    ledger.set_limit("adult", AR, 1, 0)
    reserve(ledger)
    before, copy = ledger.head(), ledger.path.read_bytes()
    reserve(ledger)
    after = ledger.head()
    ledger.check_head(before)
    ledger.check_head(after)
    ledger.path.write_bytes(copy)
    ledger.check_head(before)
    with pytest.raises(LedgerError, match=r"has 3 records and is not the one that had 4 .*a copy was put back"):
        ledger.check_head(after)
    reserve(ledger, "0.2")  # as many records again, and still another history
    with pytest.raises(LedgerError, match="a copy was put back"):
        ledger.check_head(after)
    assert Head.read(str(after)) == after


def test_costs_do_not_grow_with_the_history(tmp_path, monkeypatch):
    """Rows that a debit, a draw, a void and a view read: as many after 80 entries more, of any data set."""
    ledger = Ledger.open(tmp_path / "ledger.db")
    for name in ("adult", "census"):
        ledger.set_limit(name, None, 50, 0)
    read, real = [], SqliteRows.execute

    def counting(self, statement, values=()):
        found = list(real(self, statement, values))
        read.append(len(found))
        return found

    monkeypatch.setattr(SqliteRows, "execute", counting)

    def work() -> list[int]:
        costs = []
        for call in (
            lambda: ledger.count_draw(reserve(ledger, "0.001"), "release"),
            lambda: ledger.void(reserve(ledger, "0.001")),
            lambda: ledger.balances("adult"),
            lambda: ledger.summary(),
            lambda: list(ledger_lines(ledger)),
        ):
            read.clear()
            call()
            costs.append(sum(read))
        return costs

    fill(ledger, 12)  # more than are listed
    few = work()
    fill(ledger, 40)
    assert work() == few


def test_a_debit_is_checked_against_the_blocks_that_it_reads_and_a_limit_is_read_once(tmp_path, monkeypatch):
    """However many other blocks there are: budgets that are asked for a price, and limits that are read."""
    ledger = Ledger.open(tmp_path / "ledger.db")
    ledger.set_limit("adult", AR, 50, 0, block=EACH)
    for day in range(30):
        ledger.reserve("adult", AR, PureEvent("0.001"), theorem="t", run="r", blocks=[f"{day}", f"{day + 1}"])
    asked, limits, price, limit = [], [], Budget.cost, balances.budget_from
    with monkeypatch.context() as patch:
        patch.setattr(Budget, "cost", lambda self, *a, **how: asked.append(self.name) or price(self, *a, **how))
        check_all(ledger)
    assert len(asked) == 2 * 30  # each debit: once for its two blocks, which pay alike, and what is for each block
    monkeypatch.setattr(balances, "budget_from", lambda *what: limits.append(what) or limit(*what))
    assert len(ledger.balances("adult")) == 32
    assert len(limits) == 1


def fill(ledger: Ledger, number: int) -> None:
    for name in ("adult", "census"):
        for turn in range(number):
            ledger.spend(ledger.reserve(name, AR, PureEvent("0.001"), theorem="t", run=f"{name} {turn}"))
