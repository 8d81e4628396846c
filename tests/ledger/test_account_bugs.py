"""Bugs of one line, planted in Account and its journal one at a time: the state machine finds each of them."""

from __future__ import annotations

import importlib
import inspect
import types

import pytest
from account_machine import PUBLISH, Accounts, Fault, Work
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

BUGS = {
    "a draw is not counted": ("draws", "                self.count(grant, name)\n", "                pass\n"),
    "a draw is not marked": ("draws", "        self._begin(name)\n        with", "        pass\n        with"),
    "what was kept is drawn again": (
        "draws",
        "        drawn = None if self.journal is None else self.journal.kept(name)\n",
        "        drawn = None\n",
    ),
    "what is drawn is not kept": ("draws", "            self.journal.keep(name, drawn)\n", "            pass\n"),
    "all draws of a role have one name": (
        "draws",
        'name = role if number is None else f"{role}#{number:05d}"',
        "name = role",
    ),
    "rows are read for a draw that was made": (
        "draws",
        "            self._check_not_drawn(name, grant)\n        private",
        "            pass\n        private",
    ),
    "a resumed run pays again": ("grants", "if entry is not None:\n            grant", "if 0:\n            grant"),
    "one role's debit serves another": ("grants", "if entry.role == role]", "if True]"),
    "a grant pays for another event": ("grants", "found.event) != wanted:", "found.event) != wanted and 0:"),
    "a grant pays for another lake": (
        "grants",
        "        if fingerprint is not None and found.fingerprint",
        "        if 0 and fingerprint is not None and found.fingerprint",
    ),
    "a failed run keeps its reservation": (
        "grants",
        "                self.ledger.void(grant)\n\n    def void_run",
        "                pass\n\n    def void_run",
    ),
    "a grant is never ended": ("grants", "self._state(grant) is State.SPENT", "0"),
    "a published run does not end": ("account", "        if published is not None and", "        if 0 and"),
    "the journal is wiped before the ledger knows": (
        "account",
        "                self._end(published)\n",
        "                self.journal.forget() or self._end(published)\n",
    ),
    "a published run leaves its journal": (
        "account",
        "            self.journal.forget()\n        elif self._kept_folder",
        "            pass\n        elif self._kept_folder",
    ),
    "a failed run forgets what was charged": (
        "account",
        "            elif self.journal is not None and not charged:",
        "            elif self.journal is not None:",
    ),
    "a failure after publishing says something else": ("account", "        self._done = True\n", "        pass\n"),
    "lost draws are not noticed": (
        "journal",
        "return {name for name in counted if",
        "return {name for name in () if",
    ),
    "a key is drawn anew": ("journal", "if not path.exists():\n            self._", "if 1:\n            self._"),
    "a draw is kept under no name": ("journal", 'drawing.rename(self._path(name, "npz"))', "pass"),
    "the lock outlives its process": ("journal", "            os.close(self._lock)\n", "            pass\n"),
}


def plant(patch: pytest.MonkeyPatch, module: str, right: str, wrong: str) -> None:
    """Replace one line of a class; the class stays, with one other method."""
    real = importlib.import_module(f"daskrado.ledger.{module}")
    source = inspect.getsource(real)
    assert source.count(right) == 1, "this line is not there any more: plant the bug elsewhere"
    made = types.ModuleType(real.__name__)
    exec(compile(source.replace(right, wrong), str(real.__file__), "exec"), made.__dict__)
    classes = {name: value for name, value in vars(made).items() if getattr(value, "__module__", "") == real.__name__}
    changed = 0
    for name, value in classes.items():
        known = getattr(real, name)
        made.__dict__[name] = known
        for own, method in vars(value).items() if isinstance(value, type) else ():
            if isinstance(method, types.FunctionType) and method.__code__ != getattr(known, own).__code__:
                patch.setattr(known, own, method)
                changed += 1
    assert changed == 1


def by_chance() -> None:
    """What the machine comes across in 60 runs."""
    how = settings(
        max_examples=60,
        stateful_step_count=25,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        report_multiple_bugs=False,
    )
    run_state_machine_as_test(Accounts, settings=how)


def by_design() -> None:
    """A full disk, and a kill at every step of publishing."""
    again: Work = [("steps", Fault(full="keep")), ("repeat", Fault())]
    ends: list[Work] = [[("release", Fault()), ("publish", Fault(kill=step))] for step in range(PUBLISH)]
    for work in (again, *ends):
        machine = Accounts()
        try:
            machine.set_limit("50")
            machine.begin_run(Fault(), [(work[0][0], Fault())], work)
            machine.check()
        finally:
            machine.teardown()


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, *BUGS[bug])
    found = None
    try:
        by_design()
        by_chance()
    except (Exception, pytest.fail.Exception) as error:  # whichever invariant it breaks first
        found = error
    assert found is not None


def test_nothing_is_found_without_a_bug() -> None:
    """The machine itself runs in test_account_states.py."""
    by_design()
