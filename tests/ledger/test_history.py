"""Histories that others can check, copies without a gap, and flipped bits."""

import itertools
import json
import os
import shutil
import sqlite3
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction

import pytest
from click.testing import CliRunner

import daskrado
from daskrado.cli.main import cli
from daskrado.errors import BudgetError, LedgerError, UsageError
from daskrado.lake.block_facts import EACH
from daskrado.ledger import chain, checked
from daskrado.ledger.balances import Budget
from daskrado.ledger.chain import digest_of
from daskrado.ledger.history import exported, verified
from daskrado.ledger.ledger import Ledger, Mark
from daskrado.ledger.records import Debit
from daskrado.parties.signing import make_keys
from daskrado.privacy.accountant import GaussianEvent, PureEvent
from daskrado.privacy.relations import Relation

AR = Relation.ADD_REMOVE


def lived(address) -> Ledger:
    """A ledger with records of every kind."""
    ledger = Ledger.open(address)
    ledger.set_limit("adult", None, 5, "1e-5")
    grants = [
        ledger.reserve("adult", AR, GaussianEvent(0.1), theorem="t", run=str(i), fingerprint="sha256:f")
        for i in range(4)
    ]
    ledger.set_limit("adult", AR, 4, "1e-5")
    for name in ("a", "b"):
        ledger.count_draw(grants[0], name)
    ledger.publish(grants[0], "ab" * 32)
    ledger.spend(grants[1])
    ledger.void(grants[2])
    ledger.mark("adult", Mark.COUNTS)
    late = ledger.reserve("adult", Relation.REPLACE_ONE, PureEvent("0.1"), theorem="t", run="late")
    ledger.void(late)
    return ledger


def test_a_history_is_checked_by_somebody_who_has_the_file_and_the_public_key_only(tmp_path, monkeypatch):
    monkeypatch.setenv("DASKRADO_LEDGER", str(tmp_path / "ledger.db"))
    ledger = lived(tmp_path / "ledger.db")
    for name in ("owner", "stranger"):
        make_keys(tmp_path / name)
    file = tmp_path / "history.json"
    run = CliRunner().invoke
    assert run(cli, ["ledger", "export", str(file), "--key", str(tmp_path / "owner")]).exit_code == 0
    text = file.read_text()
    assert "sha256:f" not in text
    assert ledger.keyed("sha256:f") not in text
    done = run(cli, ["ledger", "verify", str(file), "--trust", str(tmp_path / "owner.pub")], catch_exceptions=False)
    assert f"head {ledger.head()}" in done.output
    with pytest.raises(Exception, match="signer"):
        run(cli, ["ledger", "verify", str(file), "--trust", str(tmp_path / "stranger.pub")], catch_exceptions=False)
    done = run(cli, ["ledger", "verify", str(ledger.path)], catch_exceptions=False)
    assert "every total adds up" in done.output


def test_a_history_replaces_no_file_unless_it_is_told_to(tmp_path):
    ledger = lived(tmp_path / "ledger.db")
    make_keys(tmp_path / "owner")
    file = tmp_path / "history.json"

    def export(where, *more):
        words = ["ledger", "export", where, "--key", tmp_path / "owner", "--ledger", ledger.path, *more]
        return CliRunner().invoke(cli, [str(word) for word in words])

    file.write_text("minutes of a meeting")
    assert "exists; choose another or pass --overwrite" in str(export(file).exception)
    assert file.read_text() == "minutes of a meeting"
    assert "is not a folder" in str(export(tmp_path / "missing" / "history.json").exception)
    assert export(file, "--overwrite").exit_code == 0
    assert str(ledger.head()) in file.read_text()


def rechained(records: list[list]) -> dict:
    """The records as somebody writes them who knows how digests are made."""
    before = "0" * 64
    for number, record in enumerate(records, 1):
        record[0] = number
        record[-1] = before = digest_of(before, *record[:-1])
    return {"records": records, "head": f"{len(records)}:{before}"}


def changed_total(records):
    body = json.loads(records[-1][8])
    next(iter(body["after"].values()))["entries"] -= 1
    records[-1][8] = json.dumps(body, sort_keys=True, separators=(",", ":"))


def changed_cost(records):
    (debit,) = [r for r in records if r[5] == "3"]
    body = json.loads(debit[8])
    for name in body["costs"]:
        body["costs"][name]["mu2"] = "0.001"
    debit[8] = json.dumps(body, sort_keys=True, separators=(",", ":"))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (changed_total, "total"),
        (changed_cost, "less than its event costs"),
        (lambda records: records.remove(next(r for r in records if r[1] == "spend")), "does not allow"),
        (lambda records: records.append(list(next(r for r in records if r[7] == "a"))), "does not allow"),
        (lambda records: records.remove(next(r for r in records if r[1] == "debit")), "total|allow|Key"),
        (lambda records: records[3].__setitem__(1, "gift"), "not the history of a ledger"),
    ],
)
def test_a_history_that_was_written_anew_does_not_add_up(tmp_path, change, why):
    """Digests alone do not help: whoever can compute them still has to make every total and every state right."""
    told = json.loads(json.dumps(exported(lived(tmp_path / "ledger.db"))))
    assert verified("x", told).head.record == len(told["records"])
    change(told["records"])
    with pytest.raises(LedgerError, match=why):
        verified("x", rechained(told["records"]))


@pytest.mark.parametrize("paid", [Fraction(0), Fraction(1, 1000), None])
def test_charges_below_what_their_events_cost_do_not_pass(tmp_path, monkeypatch, paid):
    """Digests, totals and states all agree; the ledger that wrote them charged too little, or not all limits."""
    real = Budget.cost

    def cheap(self, debit, *, alone=False):
        cost = real(self, debit, alone=alone)
        if cost is None or (paid is None and self.balance.relation is Relation.LABEL_FLIP):
            return None
        return cost if paid is None else replace(cost, mu2=cost.mu2 * paid)

    with monkeypatch.context() as patch:
        patch.setattr(Budget, "cost", cheap)
        ledger = lived(tmp_path / "ledger.db")
        assert verified("x", exported(ledger)).head == ledger.head()
    with pytest.raises(LedgerError, match="record 6 was charged less than its event costs"):
        verified("x", exported(ledger))


@pytest.mark.parametrize("free", ["a", "b", "c"])
def test_a_block_that_did_not_pay_does_not_pass(tmp_path, monkeypatch, free):
    """Blocks under one limit cost alike, and each of those that were read has to be charged."""
    real = Budget.cost

    def cheap(self, debit, *, alone=False):
        return None if self.balance.block == free else real(self, debit, alone=alone)

    ledger = Ledger.open(tmp_path / "ledger.db")
    ledger.set_limit("adult", None, 10, 0, block=EACH)
    ledger.reserve("adult", "add_remove", PureEvent("0.1"), theorem="t", run="r", blocks=["a", "b", "c", "d"])
    with monkeypatch.context() as patch:
        patch.setattr(Budget, "cost", cheap)
        patch.setattr(Debit, "unpaid", lambda self, charged: [])
        ledger.reserve("adult", "add_remove", PureEvent("0.1"), theorem="t", run="s", blocks=["a", "b", "c"])
    with pytest.raises(LedgerError, match="was charged less than its event costs"):
        verified("x", exported(ledger))


def test_no_time_in_a_ledger_tells_how_long_a_run_read_its_rows(address, monkeypatch):
    """Twenty minutes pass between any two records; a slow run leaves the same times as a fast one."""
    start = datetime(2026, 11, 18, 9, 0, 59, 123456, UTC)

    def told(step: timedelta) -> str:
        clock = itertools.count()

        class Clock(datetime):
            @classmethod
            def now(cls, tz=None):
                return start + next(clock) * step

        ledger = Ledger.open(address)
        monkeypatch.setattr(chain, "datetime", Clock)
        name = f"d{step.seconds}"
        ledger.set_limit(name, None, 5, "1e-5")
        first, second, void = (
            ledger.reserve(name, Relation.LABEL_FLIP, GaussianEvent(0.1), theorem="t", run=name, role=role)
            for role in "abc"
        )
        for grant in (first, second):
            ledger.count_draw(grant, "x")
        ledger.void(void)
        ledger.publish(first, "ab" * 32)
        own = [row for row in exported(ledger)["records"] if row[5] == name]
        assert {row[1] for row in own} == {"debit", "spend", "draw", "void", "publish", "mark"}
        (at,) = {row[2] for row in own}
        return at

    fast, slow = told(timedelta(0)), told(timedelta(minutes=20))
    assert fast == "2026-11-18T09:00+00:00"
    assert slow.endswith("+00:00")
    assert len(slow) == len(fast)
    told_json = json.dumps(Ledger.open(address).to_json())
    assert ".123" not in told_json
    assert ":59" not in told_json


def test_a_record_that_was_changed_breaks_the_chain(tmp_path):
    told = json.loads(json.dumps(exported(lived(tmp_path / "ledger.db"))))
    told["records"][4][3] = "somebody else"
    with pytest.raises(LedgerError, match="record 5 does not follow"):
        verified("x", told)


def test_a_ledger_put_back_from_a_copy_lacks_what_published_runs_noted(tmp_path, clinic):
    """The ledger itself and its exported history; each run since the copy is missing, earlier ones are not."""
    path, domain = clinic(1000, 1)
    ledger, copy, runs = tmp_path / "ledger.db", tmp_path / "copy.db", tmp_path / "runs"
    how = {"dataset": "c", "epsilon": 0.1, "delta": 1e-6, "ledger": ledger, "first_limit": (1, 1e-5)}
    daskrado.fit(path, domain, relation="add_remove", unit="one row", output=runs / "first", **how)
    shutil.copy(ledger, copy)
    daskrado.fit(path, domain, relation="add_remove", unit="one row", output=runs / "second", **how)
    make_keys(tmp_path / "owner")

    def verify(*words):
        return CliRunner().invoke(cli, ["ledger", "verify", *map(str, words), "--runs", str(runs)])

    done = verify(ledger)
    assert done.exit_code == 0, done.output
    assert f"{runs}: 2 private runs, all of them in this ledger" in done.output
    shutil.copy(copy, ledger)
    exporting = [
        "ledger",
        "export",
        str(tmp_path / "h.json"),
        "--key",
        str(tmp_path / "owner"),
        "--ledger",
        str(ledger),
    ]
    assert CliRunner().invoke(cli, exporting).exit_code == 0
    for words in ([ledger], [tmp_path / "h.json", "--trust", tmp_path / "owner.pub"]):
        refused = verify(*words)
        assert isinstance(refused.exception, LedgerError)
        assert f"{runs / 'second'}: noted a ledger of" in str(refused.exception)
        assert "a copy was put back" in str(refused.exception)
    daskrado.fit(path, domain, relation="add_remove", unit="one row", output=runs / "third", **how)
    assert isinstance(verify(ledger).exception, LedgerError)  # as many records again, and others
    shutil.rmtree(runs / "second")
    assert verify(ledger).exit_code == 0


# Flipped bits


def small(path) -> bytes:
    """A small ledger with one reservation, in pages of 512 bytes."""
    ledger = Ledger.open(path)
    ledger.set_limit("d", AR, 1, 0)
    ledger.spend(ledger.reserve("d", AR, PureEvent("0.75"), theorem="t", run="r", fingerprint="f"))
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA page_size = 512")
    connection.execute("VACUUM")
    connection.close()
    return bytes(path.read_bytes())


def outcome(path) -> object:
    """What a new process makes of a ledger: one line of refusal, or everything that counts."""
    checked._held.clear()
    try:
        ledger = Ledger.open(path, create=False)
        told = (ledger.to_json(), ledger.balances("d"), ledger.keyed("f"), ledger.summary())
        try:
            ledger.reserve("d", AR, PureEvent("0.5"), theorem="t", run="more")
        except BudgetError as refused:
            return (*told, str(refused))
        return "debited twice"
    except (LedgerError, UsageError) as error:
        return None if "\n" not in str(error) else f"more than one line: {error}"


def used(content: bytes, page: int = 512) -> list[int]:
    """The bytes of an SQLite file that mean something: all but the gap between a page's pointers and its cells."""
    found = []
    for start in range(0, len(content), page):
        head = start + (100 if start == 0 else 0)
        cells, first = (int.from_bytes(content[head + at : head + at + 2]) for at in (3, 5))
        gap = range(head + (8 if content[head] > 8 else 12) + 2 * cells, start + first)
        found += [place for place in range(start, start + page) if content[head] == 0 or place not in gap]
    return found


@pytest.mark.parametrize("stride", [499, pytest.param(1, marks=pytest.mark.slow)])
def test_a_flipped_bit_is_refused_or_harmless(tmp_path, stride):
    """Every used bit of a small ledger (each 499th in the fast suite): 64 % of a charge vanished after one, once."""
    path = tmp_path / "ledger.db"
    whole = small(path)
    expected = outcome(path)
    assert expected is not None
    bits = [8 * place + bit for place in used(whole) for bit in range(8)][::stride]
    refused = 0
    with path.open("r+b", buffering=0) as file:
        for bit in bits:
            os.pwrite(file.fileno(), bytes([whole[bit // 8] ^ 1 << bit % 8]), bit // 8)
            found = outcome(path)
            refused += found is None
            assert found in (None, expected), bit
            os.pwrite(file.fileno(), whole[bit // 8 : bit // 8 + 1], bit // 8)
    assert path.read_bytes() == whole
    assert refused > len(bits) / 2
