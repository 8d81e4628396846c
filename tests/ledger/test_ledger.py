"""What every ledger does, in a file and on a server, with real processes: debits, grants, races, crashes."""

import itertools
import json
import pickle
import signal
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from waiting import end, start

from daskrado.errors import BudgetError, LedgerError, UsageError
from daskrado.ledger import chain
from daskrado.ledger.balances import budgets_of, charged_debits, counted, plain
from daskrado.ledger.chain import Kind
from daskrado.ledger.charged import Charged
from daskrado.ledger.history import check_all
from daskrado.ledger.ledger import Ledger, Limit, State
from daskrado.ledger.records import Debit
from daskrado.privacy.accountant import (
    ApproximateEvent,
    GaussianEvent,
    PureEvent,
    SeveralEvents,
    ZcdpEvent,
    gaussian_mu,
)
from daskrado.privacy.filter import Cost
from daskrado.privacy.groups import ProtectedUnit
from daskrado.privacy.relations import Relation

AR = Relation.ADD_REMOVE
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def ledger(address):
    return Ledger.open(address)


def reserve(ledger, epsilon="0.1", *, dataset="adult", relation=AR, run="run-1", fingerprint=None):
    event = PureEvent(epsilon) if isinstance(epsilon, str | float | int | Fraction) else epsilon
    return ledger.reserve(dataset, relation, event, theorem="Laplace", run=run, fingerprint=fingerprint)


RESERVE = """
import sys
from daskrado.errors import BudgetError
from daskrado.privacy.accountant import PureEvent
from daskrado.ledger.ledger import Ledger
ledger = Ledger.open(sys.argv[1], timeout=600)
print("ready", flush=True)
sys.stdin.readline()
try:
    grant = ledger.reserve("adult", "add_remove", PureEvent(sys.argv[2]), theorem="Laplace", run=sys.argv[3])
    print("won", flush=True)
except BudgetError:
    print("refused", flush=True)
sys.stdin.readline()
"""


# Limits


def test_limits_are_kept_per_dataset_and_relation_and_the_latest_counts(ledger):
    assert ledger.limit("adult", AR) is None
    assert not ledger.has_limits("adult")
    ledger.set_limit("adult", AR, 0.1, 0)
    ledger.set_limit("adult", "add_remove", "2.5", 1e-6)
    assert ledger.limit("adult", AR) == Limit(Fraction(5, 2), Fraction(1, 10**6))
    assert ledger.limit("adult", Relation.LABEL_FLIP) is None
    assert ledger.limit("census", AR) is None
    assert ledger.has_limits("adult")
    assert not ledger.has_limits("census")
    assert [row["epsilon"] for row in ledger.to_json()["limits"]] == ["0.1", "2.5"]


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0, 0), (9e-10, 0), (-1, 0), (51, 0), ("nan", 0), (1, -1), (1, 0.2), (1, "nan")]
)
def test_bad_limits_are_refused(ledger, epsilon, delta):
    with pytest.raises(UsageError):
        ledger.set_limit("adult", AR, epsilon, delta)
    assert not ledger.has_limits("adult")


@pytest.mark.parametrize("name", ["", "a b", "a/b", "ä", "x" * 101, "a\n", None, "a;--"])
def test_bad_dataset_names_are_refused(ledger, name):
    with pytest.raises(UsageError, match="data set name"):
        ledger.set_limit(name, AR, 1, 0)


def test_unknown_relation_is_refused(ledger):
    with pytest.raises(UsageError, match=r"'neighbour'.*add_remove"):
        ledger.set_limit("adult", "neighbour", 1, 0)


def test_without_a_limit_the_command_to_set_one_is_given(ledger):
    with pytest.raises(BudgetError) as caught:
        reserve(ledger)
    assert "daskrado ledger limit adult --epsilon E --delta D" in str(caught.value)
    assert ledger.entries() == []


# Debits


def test_ten_tenths_fit_exactly_into_one_and_an_eleventh_does_not(ledger):
    ledger.set_limit("adult", AR, 1, 0)
    for turn in range(10):
        assert ledger.remaining("adult", AR).epsilon == Fraction(10 - turn, 10)
        reserve(ledger, 0.1)
    for more in (0.1, 1e-12):
        with pytest.raises(BudgetError, match=r"adult \(1, 0\) .*asked for .* %, 0 % is left; nothing was debited"):
            reserve(ledger, more)
    assert len(ledger.entries()) == 10
    assert ledger.spent("adult", AR).epsilon == 1


def test_the_refusal_says_what_would_still_fit(ledger):
    ledger.set_limit("adult", AR, 1, 0)
    reserve(ledger, "0.7")
    with pytest.raises(BudgetError, match=r"asked for 50 %, 30 % is left: epsilon 0\.3 would fit"):
        reserve(ledger, "0.5")
    reserve(ledger, "0.3")


def test_with_a_delta_the_squares_of_mu_add_up(ledger):
    """mu of pure epsilon 1/10 is 0.12531 (its trade-off curve's), mu_L of (1, 1e-6) below 0.2228 (E1 of the filter).

    So three fit and a fourth does not: 4 * 0.12531^2 = 0.0628 > 0.0496 = 0.2228^2 > 3 * 0.12531^2 = 0.0471.
    """
    ledger.set_limit("adult", AR, 1, "1e-6")
    for _ in range(3):
        reserve(ledger, 0.1)
    with pytest.raises(BudgetError, match="nothing was debited"):
        reserve(ledger, 0.1)
    assert ledger.balance("adult", AR).entries == 3


def test_relations_count_through_group_events(ledger):
    """A flip is one removal and one addition; what protects a label says nothing about a whole row."""
    ledger.set_limit("adult", AR, 1, 0)
    ledger.set_limit("adult", Relation.LABEL_FLIP, 2, 0)
    reserve(ledger, "0.5")
    reserve(ledger, "0.25", relation=Relation.LABEL_FLIP)
    assert ledger.balance("adult", AR).total.epsilon == Fraction(1, 2)
    assert ledger.balance("adult", Relation.LABEL_FLIP).total.epsilon == 1 + Fraction(1, 4)
    with pytest.raises(BudgetError, match="under label_flip does not cover this"):
        reserve(ledger, "0.4")  # would fit under add_remove, and be 0.8 for a label
    with pytest.raises(BudgetError, match="no limit under replace_one"):
        reserve(ledger, "0.5", relation=Relation.REPLACE_ONE)  # the owner allowed losses of labels, not of features
    ledger.set_limit("adult", Relation.REPLACE_ONE, 2, 0)
    reserve(ledger, "0.5", relation=Relation.REPLACE_ONE)  # a flip is a replacement; rows may be counted
    assert ledger.balance("adult", AR).total.epsilon == Fraction(1, 2)
    ledger.set_limit("census", AR, 1, 0)
    with pytest.raises(BudgetError, match="no limit under replace_one"):
        reserve(ledger, "0.1", dataset="census", relation=Relation.REPLACE_ONE)


def test_a_limit_without_a_relation_is_one_under_every_relation(ledger):
    ledger.set_limit("adult", None, 4, 0)
    for relation in Relation:
        reserve(ledger, "0.5", relation=relation)
    totals = {balance.relation: balance.total.epsilon for balance in ledger.balances("adult")}
    half = Fraction(1, 2)
    assert totals == {
        AR: half,
        Relation.REPLACE_ONE: 1 + half,
        Relation.LABEL_FLIP: 1 + half + half,
        Relation.FEATURE_FLIP: 1 + half + half,
    }


def test_a_limit_for_rows_becomes_one_for_patients(ledger):
    """A patient owns at most five rows, by an enforced bound: each earlier charge for one row counts five times."""
    ledger.set_limit("adult", AR, 4, 0)
    reserve(ledger, "0.5")
    patient = ProtectedUnit(AR, "patient", column="patient_id", owns=5)
    ledger.set_limit("adult", patient, 4, 0)
    assert ledger.balance("adult", patient).total.epsilon == Fraction(5, 2)
    ledger.reserve("adult", patient, PureEvent(1), theorem="Laplace", run="2")
    assert ledger.balance("adult", patient).total.epsilon == Fraction(7, 2)
    with pytest.raises(BudgetError):
        reserve(ledger, "0.2")


@pytest.mark.parametrize("order", list(itertools.permutations(["rows", "people", "several"])))
def test_limits_for_rows_and_for_people_stand_beside_each_other(ledger, order):
    """Whatever is set last replaces only what was set for the same rows or people: each charge has to fit all."""
    whose = {
        "rows": ProtectedUnit(AR),
        "people": ProtectedUnit(AR, "patient", column="patient_id", owns=5),
        "several": ProtectedUnit(AR, rows=3),
    }
    for kind in order:
        ledger.set_limit("adult", whose[kind], 2, 0)
    reserve(ledger, "0.25")
    # One row is one row, three are three steps, a patient is five of them.
    totals = {kind: ledger.balance("adult", whose[kind]).total.epsilon * 4 for kind in order}
    assert totals == {"rows": 1, "people": 5, "several": 3}
    with pytest.raises(BudgetError, match=r"for patient does not cover this: asked for 62\.5 %, 37\.5 % is left"):
        reserve(ledger, "0.25")
    ledger.set_limit("adult", AR, 50, 0)  # raising the one for rows gives patients nothing
    with pytest.raises(BudgetError, match="for patient does not cover this"):
        reserve(ledger, "0.25")
    ledger.set_limit(
        "adult", replace(whose["people"], unit="a person"), 4, 0
    )  # the same people: this one is replaced
    reserve(ledger, "0.25")
    assert len(ledger.balances("adult")) == 3


def test_a_limit_for_people_is_one_under_every_relation_too(ledger):
    patient = ProtectedUnit(AR, "patient", column="patient_id")
    ledger.set_limit("adult", patient, 4, 0, follows=True)
    for relation in Relation:
        feature = "" if relation is Relation.FEATURE_FLIP else None
        own = replace(patient, relation=relation, feature=feature)
        ledger.reserve("adult", own, PureEvent("0.5"), theorem="Laplace", run="1")
    totals = {balance.relation: balance.total.epsilon for balance in ledger.balances("adult")}
    half = Fraction(1, 2)
    assert totals == {
        AR: half,
        Relation.REPLACE_ONE: 1 + half,
        Relation.LABEL_FLIP: 2,
        Relation.FEATURE_FLIP: 2,
    }
    assert {balance.whose.column for balance in ledger.balances("adult")} == {"patient_id"}


def test_totals_planned_beforehand_count_what_the_limit_counts(ledger):
    """Under replace_one a charge for an added row is two steps; it is in that limit's information, too."""
    ledger.set_limit("adult", None, 4, 0)
    reserve(ledger, "0.5")
    reserve(ledger, "0.25", relation=Relation.REPLACE_ONE)
    assert ledger.spent("adult", Relation.REPLACE_ONE).epsilon == Fraction(5, 4)
    assert ledger.spent("adult", AR).epsilon == Fraction(1, 2)


def test_a_charge_for_rows_does_not_count_as_one_for_patients(ledger):
    """Without an enforced bound on the rows that a patient owns nothing follows for him, and nothing is debited."""
    patient = ProtectedUnit(AR, "patient", column="patient_id", bound=1)
    ledger.set_limit("adult", patient, 4, 0)
    with pytest.raises(BudgetError, match=r"for one row proves nothing about .*patient.*nothing was debited"):
        reserve(ledger)
    ledger.reserve("adult", patient, PureEvent(1), theorem="Laplace", run="1")
    ledger.set_limit("census", AR, 4, 0)
    reserve(ledger, dataset="census")
    with pytest.raises(BudgetError, match="proves nothing about"):
        ledger.set_limit("census", patient, 4, 0)
    assert ledger.balance("census", AR).whose == ProtectedUnit(AR)


def test_a_release_debits_the_blocks_that_it_reads(ledger):
    for block in ("", "monday", "tuesday"):
        ledger.set_limit("adult", AR, 1, 0, block=block)
    ledger.reserve("adult", AR, PureEvent("0.5"), theorem="t", run="1", blocks=("monday",))
    reserve(ledger, "0.25")  # reads the whole lake
    totals = {balance.block: balance.total.epsilon for balance in ledger.balances("adult")}
    assert totals == {"": Fraction(3, 4), "monday": Fraction(3, 4), "tuesday": Fraction(1, 4)}


def test_each_block_that_is_read_pays_or_is_named(ledger):
    """Blocks without a budget are read by nobody; a budget of the whole lake would pay for each of them."""
    for block in ("monday", "tuesday"):
        ledger.set_limit("adult", AR, 1, 0, block=block)

    def read(*blocks):
        return ledger.reserve("adult", AR, PureEvent("0.25"), theorem="t", run="1", blocks=blocks)

    with pytest.raises(BudgetError, match=r"no limit under add_remove for block sunday; nothing was debited"):
        read("monday", "sunday")
    with pytest.raises(BudgetError, match=r"for blocks a, b, c and 2 more; nothing"):
        read("monday", *"abcde")
    with pytest.raises(BudgetError, match=r"no limit under add_remove; nothing was debited"):
        read()  # the whole lake may have blocks that nobody limited
    assert {balance.entries for balance in ledger.balances("adult")} == {0}
    read("monday", "tuesday")
    ledger.set_limit("adult", AR, 1, 0)
    read("sunday")
    totals = {balance.block: balance.total.epsilon for balance in ledger.balances("adult")}
    assert totals == {"": Fraction(1, 2), "monday": Fraction(1, 4), "tuesday": Fraction(1, 4)}


def test_datasets_have_budgets_of_their_own(ledger):
    for name in ("adult", "census"):
        ledger.set_limit(name, AR, 1, 0)
        reserve(ledger, 1, dataset=name)
    assert [entry.dataset for entry in ledger.entries("census")] == ["census"]


def test_gaussian_events_share_a_budget_by_the_squares_of_their_mus(ledger):
    """Sixteen releases of a quarter of the rule's mu fill it exactly; a seventeenth does not fit."""
    ledger.set_limit("adult", AR, 1, "1e-6")
    part = float(ledger.balance("adult", AR).rule.mu) / 4 * (1 - 1e-12)
    for _ in range(16):
        reserve(ledger, GaussianEvent(part))
    with pytest.raises(BudgetError):
        reserve(ledger, GaussianEvent(part))


def test_a_gaussian_event_does_not_fit_a_pure_budget(ledger):
    ledger.set_limit("adult", AR, 10, 0)
    with pytest.raises(BudgetError, match="nothing was debited"):
        reserve(ledger, ZcdpEvent(1e-9))


def test_a_limit_of_one_release_holds_that_release_once(ledger):
    """Under every relation that follows, too; its true cost counts as soon as the limit is another one."""
    event = GaussianEvent(gaussian_mu(1, 1e-6))
    for turn in range(2):
        ledger.set_limit("adult", None, 1, 1e-6)
        assert {b.rule.share(b.total) for b in ledger.balances("adult")} == ({1} if turn else {0})
        if not turn:
            grant = reserve(ledger, event)
    assert {b.rule.share(b.total) for b in ledger.balances("adult")} == {1}
    for more in (event, PureEvent(1e-9)):
        with pytest.raises(BudgetError, match="0 % is left; nothing was debited"):
            reserve(ledger, more)
    ledger.set_limit("adult", AR, 10, 1e-5)
    rule, total = ledger.balance("adult", AR).rule, ledger.balance("adult", AR).total
    assert total == rule.cost(event)
    ledger.void(grant)
    assert {b.total.mu2 for b in ledger.balances("adult")} == {0}
    check_all(ledger)
    ledger.set_limit("adult", AR, 1, 1e-6)
    reserve(ledger, PureEvent("0.001"))
    with pytest.raises(BudgetError, match=r"for 100 %, 99\.\d+ % is left: epsilon 0.99 at delta 1e-6 would fit"):
        ledger.reserve("adult", AR, event, theorem="t", run="r", delta=1e-6)
    reserve(ledger, GaussianEvent(gaussian_mu(0.99, 1e-6)))
    check_all(ledger)


@pytest.mark.parametrize("first", [(10, 1e-5), (8, 0)])
@pytest.mark.parametrize("second", [(20, 1e-6), (9, 0)])
def test_a_new_limit_counts_what_was_charged_however_it_gets_there(ledger, first, second):
    """From the total so far or from all entries anew, entries that are void since included: the same."""
    ledger.set_limit("adult", None, *first)
    events = [PureEvent("0.1"), PureEvent("0.25")] + ([GaussianEvent(0.1)] if first[1] and second[1] else [])
    grants = [reserve(ledger, event) for event in events]
    ledger.void(grants[0])
    ledger.set_limit("adult", None, *second)
    carried = {(b.relation, b.total.mu2, b.total.delta, b.total.draws, b.entries) for b in ledger.balances("adult")}
    with ledger.store.reading() as rows:
        debits = charged_debits(rows, "adult")
        known = [counted(budget, Charged(lambda: debits)).balance for budget in budgets_of(rows, "adult")]
    assert carried == {(b.relation, b.total.mu2, b.total.delta, b.total.draws, b.entries) for b in known}
    assert sum(debits.values()) == len(events) - 1
    ledger.void(grants[1])
    check_all(ledger)
    assert [b.entries for b in ledger.balances("adult")] == [len(events) - 2] * len(known)


def test_debits_are_counted_apart_whatever_texts_they_hold(ledger):
    """A record's text is cut where its keys are: names that look like keys, and parts of a data set, move no cut."""
    ledger.set_limit("adult", None, 40, 1e-5)
    keys = [f',"{key}":' for key in ("blocks", "costs", "event", "part", "seal", "whose")]
    names = [*keys, *(key.strip(',":') for key in keys), '{"event":{"epsilon":"1"}}', "\\", ""]
    several = SeveralEvents.of([PureEvent("0.001"), PureEvent("0.002"), PureEvent("0.002")])
    asked = []
    for number, name in enumerate(names):
        for event in (PureEvent("0.001"), PureEvent("0.002"), several):
            block = (f"b{name}",) if number % 2 else ()
            whose = (
                ProtectedUnit("add_remove", f"u{name}", f"c{name}", bound=1)
                if number % 3
                else ProtectedUnit("add_remove")
            )
            for part in ("", name, f"{name}/a"):
                asked.append(Debit(whose, event, name, block, part=part))
                grant = ledger.reserve(
                    "adult", whose, event, theorem=name, run="r", role=name, blocks=block, part=part, fingerprint=name
                )
                if number % 4 == 0:
                    ledger.void(grant)
                    asked.pop()
    with ledger.store.reading() as rows:
        assert charged_debits(rows, "adult") == Counter(plain(debit) for debit in asked)
        known = [*budgets_of(rows, "adult")]
        assert {budget.balance.entries for budget in known} == {len(asked)}
    assert len(set(map(plain, asked))) > 50


def test_deltas_are_limited_too(ledger):
    """A tenth of the limit's delta is for events with a delta of their own."""
    ledger.set_limit("adult", AR, 10, "1e-6")
    reserve(ledger, ApproximateEvent("0.1", "9e-8"))
    assert ledger.remaining("adult", AR).delta == Fraction(1, 10**8)
    with pytest.raises(BudgetError):
        reserve(ledger, ApproximateEvent("0.1", "2e-8"))
    reserve(ledger, ApproximateEvent("0.1", "1e-8"))
    with pytest.raises(BudgetError):
        reserve(ledger, ApproximateEvent("0.1", "1e-13"))


def test_a_lowered_limit_stops_further_spending(ledger):
    ledger.set_limit("adult", AR, 1, 0)
    reserve(ledger, "0.6")
    ledger.set_limit("adult", AR, "0.5", 0)
    assert ledger.remaining("adult", AR).epsilon == 0
    with pytest.raises(BudgetError):
        reserve(ledger, "0.001")


# Grants


def test_a_grant_is_spent_once_and_never_voided(ledger):
    ledger.set_limit("adult", AR, 1, 0)
    grant = reserve(ledger, run="first")
    assert (grant.dataset, grant.relation, grant.event, grant.run) == ("adult", AR, PureEvent("0.1"), "first")
    assert grant.ledger == ledger.path
    ledger.spend(grant)
    with pytest.raises(LedgerError, match="already spent"):
        ledger.spend(grant)
    with pytest.raises(LedgerError, match="already spent"):
        ledger.void(grant)
    (entry,) = ledger.entries()
    assert (entry.id, entry.state, entry.theorem) == (grant.entry, State.SPENT, "Laplace")


def test_a_void_reservation_gives_its_budget_back_and_cannot_be_spent(ledger):
    ledger.set_limit("adult", AR, "0.1", 0)
    grant = reserve(ledger)
    ledger.void(grant)
    assert ledger.spent("adult", AR).epsilon == 0
    with pytest.raises(LedgerError, match="already void"):
        ledger.spend(grant)
    reserve(ledger)


def test_foreign_and_forged_grants_are_refused(ledger, tmp_path):
    other = Ledger.open(tmp_path / "other.db")
    for book in (ledger, other):
        book.set_limit("adult", AR, 1, 0)
    grant = reserve(ledger)
    reserve(other)
    with pytest.raises(LedgerError, match="belongs to the ledger"):
        other.spend(grant)
    with pytest.raises(LedgerError, match="no entry 99"):
        ledger.spend(replace(grant, entry=99))
    with pytest.raises(LedgerError, match="does not match"):
        ledger.spend(replace(grant, event=PureEvent("0.01")))
    assert ledger.entries()[0].state is State.RESERVED


def test_the_same_data_under_another_name_is_refused(ledger):
    for name in ("adult", "census"):
        ledger.set_limit(name, AR, 1, 0)
    reserve(ledger, fingerprint="sha256:1")
    reserve(ledger, fingerprint="sha256:1")
    reserve(ledger, fingerprint="sha256:2")  # the lake has grown
    with pytest.raises(BudgetError, match=r"'adult'.*'census'"):
        reserve(ledger, dataset="census", fingerprint="sha256:1")
    assert ledger.entries("census") == []


def test_a_refused_request_leaves_no_fingerprint(ledger):
    for name in ("adult", "census"):
        ledger.set_limit(name, AR, "0.1", 0)
    with pytest.raises(BudgetError):
        reserve(ledger, 1, fingerprint="sha256:1")
    reserve(ledger, dataset="census", fingerprint="sha256:1")


# What cannot be read


def test_an_entry_of_an_unknown_kind_stops_the_ledger(ledger):
    """What this version cannot read must not count as free."""
    ledger.set_limit("adult", AR, 1, 0)
    with ledger.store.transaction() as rows:
        body = {"event": {"kind": "shuffle"}, "whose": {"relation": "add_remove"}, "seal": None}
        chain.append(rows, Kind.DEBIT, body, "me", "adult", "run", 1)
    with pytest.raises(LedgerError, match="shuffle"):
        ledger.set_limit("adult", Relation.REPLACE_ONE, 2, 0)
    with pytest.raises(LedgerError, match="shuffle"):
        ledger.entries()


# Views


def test_export_is_plain_json_and_complete(ledger):
    ledger.set_limit("adult", AR, 10, "1e-6")
    ledger.spend(reserve(ledger, ApproximateEvent("1/3", "1e-7"), fingerprint="sha256:secret"))
    exported = json.loads(json.dumps(ledger.to_json()))
    assert "fingerprint" not in json.dumps(exported)
    assert ledger.keyed("sha256:secret") not in json.dumps(exported)
    assert exported["format"] == "daskrado-ledger"
    assert exported["entries"][0]["event"] == {"kind": "approximate", "epsilon": "1/3", "delta": "1E-7"}
    assert exported["entries"][0]["state"] == "spent"
    assert exported["limits"][0]["delta"] == "0.000001"


def test_summary_has_a_row_for_each_budget(ledger):
    ledger.set_limit("census", AR, 2, 0)
    ledger.set_limit("adult", Relation.LABEL_FLIP, 9, "1e-6")
    ledger.set_limit("adult", AR, 1, 0)
    ledger.spend(reserve(ledger, "0.2"))
    ledger.void(reserve(ledger, "0.3"))
    reserve(ledger, "0.1")
    reserve(ledger, ZcdpEvent(0.01), relation=Relation.LABEL_FLIP)
    rows = ledger.summary()
    assert [(row.balance.dataset, row.balance.relation) for row in rows] == [
        ("adult", AR),
        ("adult", Relation.LABEL_FLIP),
        ("census", AR),
    ]
    first, second, third = rows
    assert (first.balance.total.epsilon, first.balance.entries) == (Fraction(3, 10), 2)
    assert (second.balance.total.epsilon, second.balance.entries) == (None, 3)
    assert first.counts == second.counts == {State.RESERVED: 2, State.SPENT: 1, State.PUBLISHED: 0, State.VOID: 1}
    assert (third.balance.total, third.balance.entries) == (Cost(), 0)


def test_it_is_a_context_manager_and_can_be_pickled(ledger):
    with ledger as same:
        same.set_limit("adult", AR, 1, 0)
    assert pickle.loads(pickle.dumps(ledger)).limit("adult", AR) == Limit(Fraction(1), Fraction(0))


# Many at once


@pytest.mark.slow
def test_twenty_processes_race_for_the_last_of_the_budget(address):
    ledger = Ledger.open(address)
    ledger.set_limit("adult", AR, 1, 0)
    for _ in range(7):
        reserve(ledger)
    racers = [start(RESERVE, address, "0.1", f"racer-{i}") for i in range(20)]
    for racer in racers:
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        racer.stdin.write("go\n")
        racer.stdin.flush()
    answers = [racer.stdout.readline().strip() for racer in racers]
    for racer in racers:
        end(racer)
    assert sorted(answers) == ["refused"] * 17 + ["won"] * 3
    assert ledger.spent("adult", AR).epsilon == 1


def test_a_hundred_threads_race_for_one_unit(ledger):
    ledger.set_limit("adult", AR, "0.1", 0)

    def attempt(number: int) -> bool:
        try:
            reserve(ledger, run=str(number))
        except BudgetError:
            return False
        return True

    with ThreadPoolExecutor(100) as pool:
        assert sum(pool.map(attempt, range(100))) == 1


def test_one_grant_spent_by_many_threads_is_spent_once(ledger):
    ledger.set_limit("adult", AR, 1, 0)
    grant = reserve(ledger)

    def attempt(_: int) -> bool:
        try:
            ledger.spend(grant)
        except LedgerError:
            return False
        return True

    with ThreadPoolExecutor(20) as pool:
        assert sum(pool.map(attempt, range(20))) == 1


@pytest.mark.slow
def test_many_processes_may_create_the_same_ledger(address):
    script = (
        "import sys; from daskrado.ledger.ledger import Ledger; print('ready', flush=True); sys.stdin.readline();"
        "l = Ledger.open(sys.argv[1]); l.set_limit('d' + sys.argv[2], 'add_remove', 1, 0)"
    )
    makers = [start(script, address, i) for i in range(6)]
    for maker in makers:
        maker.stdout.readline()
    for maker in makers:
        maker.stdin.write("go\n")
        maker.stdin.flush()
    for maker in makers:
        end(maker)
        assert maker.returncode == 0
    assert len(Ledger.open(address, create=False).summary()) == 6


# Crashes


def test_a_process_killed_after_its_reservation_stays_charged(address):
    ledger = Ledger.open(address)
    ledger.set_limit("adult", AR, "0.1", 0)
    victim = start(RESERVE, address, "0.1", "victim")
    victim.stdout.readline()
    victim.stdin.write("go\n")
    victim.stdin.flush()
    assert victim.stdout.readline() == "won\n"
    victim.send_signal(signal.SIGKILL)
    end(victim)
    (entry,) = ledger.entries()
    assert (entry.state, entry.run) == (State.RESERVED, "victim")
    with pytest.raises(BudgetError):
        reserve(ledger)


def test_a_process_killed_inside_its_reservation_leaves_a_valid_ledger(address):
    """The balance check is replaced by one that announces itself and waits, inside the real transaction."""
    ledger = Ledger.open(address, timeout=200)
    ledger.set_limit("adult", AR, "0.1", 0)
    hook = RESERVE.replace(
        'print("ready", flush=True)',
        "import daskrado.ledger.balances as module\n"
        "module.budgets_of = lambda *a: (print('inside', flush=True), sys.stdin.readline())\n",
        1,
    ).replace("sys.stdin.readline()\ntry", "try", 1)
    victim = start(hook, address, "0.1", "victim")
    assert victim.stdout.readline() == "inside\n"
    victim.send_signal(signal.SIGKILL)
    end(victim)
    reserve(ledger, run="after")
    assert [entry.run for entry in Ledger.open(address, create=False).entries()] == ["after"]
