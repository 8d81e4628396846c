"""Account under every interleaving that a state machine finds, and some that it meets seldom (account_machine.py)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from account_machine import PUBLISH, ROLES, Accounts, Fault, Work
from hypothesis import settings

from daskrado.errors import LedgerError
from daskrado.ledger.journal import Journal
from daskrado.ledger.opening import resumed_account

TestAccounts = pytest.mark.slow(Accounts.TestCase)
TestAccounts.settings = settings(max_examples=60, stateful_step_count=25, derandomize=True, deadline=None)


# Interleavings that the machine meets seldom


@pytest.fixture
def machine() -> Iterator[Accounts]:
    made = Accounts()
    made.set_limit("50")
    yield made
    made.teardown()


def fine(*names: str) -> Work:
    return [(name, Fault()) for name in names]


def test_a_draw_that_could_not_be_kept_is_used_and_is_not_made_again(machine: Accounts) -> None:
    """Nor by the process that has it: what it drew and did not keep may be published, once."""
    machine.begin_run(Fault(), fine("steps"), [("steps", Fault(full="keep")), *fine("steps", "publish")])
    assert machine.runs[0].published is not None
    machine.begin_run(Fault(), fine("steps"), [("steps", Fault(full="keep")), *fine("repeat")])
    assert machine.runs[1].process is None  # refused
    machine.resume(0, Fault(), False, "", fine("steps"), fine("steps"))
    assert machine.runs[1].process is None  # and so is whoever comes later
    assert len(machine.runs[1].noise) == 1


@pytest.mark.parametrize("step", range(PUBLISH))
def test_a_run_killed_as_it_publishes_is_published_once(machine: Accounts, step: int) -> None:
    work: Work = [*fine("release", "steps"), ("publish", Fault(kill=step))]
    machine.begin_run(Fault(), fine("release", "steps"), work)
    synced = 2 * 4  # two releases, the manifest, their folder: before the folder appears
    assert machine.runs[0].output.exists() == (step > synced)
    machine.check()
    if machine.has_journal(machine.runs[0]):
        machine.resume(0, Fault(), False, "", fine("release", "steps"), fine("release", "steps", "publish"))
    machine.check()
    assert machine.runs[0].published is not None
    assert sorted(path.name for path in machine.place.iterdir() if path.name.startswith(".")) == []


@pytest.mark.parametrize("step", range(10))
def test_a_debit_that_follows_a_voided_one_is_made_once(machine: Accounts, step: int) -> None:
    """One role is drawn, the other's debit is voided by a failure; killed as it is debited anew, and resumed."""
    machine.begin_run(Fault(), fine("release", "steps"), fine("release"))
    machine.end_process(0, Fault(), "failed")
    assert sorted(machine.states(machine.runs[0])) == ["spent", "void"]
    machine.resume(0, Fault(), False, "", [("steps", Fault(kill=step))], [])
    machine.resume(0, Fault(), False, "", fine("release", "steps"), fine("release", "steps", "publish"))
    assert sorted(machine.states(machine.runs[0])) == ["published", "published", "void"]
    assert machine.runs[0].published is not None


@pytest.mark.parametrize("role", ["release", "steps"])
@pytest.mark.parametrize("step", range(20))
def test_a_draw_that_is_cut_off_is_kept_or_lost_or_not_made(machine: Accounts, role: str, step: int) -> None:
    """Killed at each of its steps: then it is finished on the same debit, or refused for ever."""
    machine.begin_run(Fault(), fine(role), [(role, Fault(kill=step))])
    run = machine.runs[0]
    if run.process is not None:  # it has fewer steps
        machine.kill_process(run.process)
    drawn, kept = role in {name.partition("#")[0] for name in run.noise}, machine.files(run, "npz")
    spent_and_lost = machine.lost(run)
    machine.resume(0, Fault(), False, "", fine(role), fine(role, "publish"))
    assert (run.published is None) == spent_and_lost
    assert not (drawn and not kept and run.published)
    assert len(machine.states(run)) == 1
    machine.check()


@pytest.mark.parametrize("end", ["killed", "published"])
def test_a_journal_from_any_step_of_its_run_is_finished_or_refused(end: str) -> None:
    """Every copy of one run's journal is put back and resumed: its draws are made once, and it is debited once."""
    drawing = fine("release", "steps", "steps", "rows", "steps")
    work = drawing + (fine("publish") if end == "published" else [])
    at, outcomes = 0, set()
    while True:
        machine = Accounts()
        machine.set_limit("50")
        machine.begin_run(Fault(), fine(*ROLES), work)
        run = machine.runs[0]
        if run.process is not None:
            machine.kill_process(run.process)
        drawn, charged, copies = dict(run.noise), machine.entries(), len(run.copies)
        machine.put_a_copy_back(0, at)
        machine.resume(0, Fault(), True, "", fine(*ROLES), drawing + fine("publish"))
        machine.check()
        assert run.noise == drawn  # whatever it drew in the end was drawn before
        assert machine.entries().keys() == charged.keys()
        outcomes.add(run.published is not None)
        machine.teardown()
        at += 1
        if at == copies:
            break
    assert at > 20
    assert outcomes == ({True} if end == "published" else {True, False})


def test_a_run_goes_on_with_its_own_ledger_and_journal_only(machine: Accounts) -> None:
    """Neither with an older copy of the ledger, nor as a new run of the same name: what it kept stays."""
    path = machine.ledger.path
    before = path.read_bytes()
    machine.begin_run(Fault(), fine("release"), fine("release"))
    run = machine.runs[0]
    machine.end_process(0, Fault(), "killed")
    later = path.read_bytes()
    path.write_bytes(before)
    with pytest.raises(LedgerError, match="a copy was put back"):
        resumed_account(machine.ledger, run.name).__enter__()
    path.write_bytes(later)
    with pytest.raises(LedgerError, match="was begun by another process"):
        Journal.create(machine.folders / run.name, {})
    assert machine.files(run, "npz") == {"release"}
    machine.resume(0, Fault(), False, "", fine("release"), fine("release", "publish"))
    assert run.published is not None


def test_what_is_shown_of_a_run_is_public(machine: Accounts) -> None:
    machine.begin_run(Fault(), fine("rows"), fine("rows"))
    process = machine.live(0)
    key = machine.runs[0].keys["rows"]
    for shown in (repr(process.account), repr(process.account.journal)):
        assert machine.runs[0].name[:12] in shown
        assert key.hex() not in shown
        assert len(shown) < 100
