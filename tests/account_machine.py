"""Account under every interleaving of reserve, count, draw, keep, publish, end, failure, full disk, kill and resume.

The machine drives the real accounts, journals and an SQLite ledger. A process is an open account; killing it stops
every later effect of it, at any step inside an operation, and releases its lock, as the system does for a dead one.
Invariants carry the numbers of Account's docstring. What they are checked against is kept here: the noise that was
really drawn, and what the ledger (read by plain SQL) and the folders held before. At every step a copy of each
journal is taken, and any copy may be put back at any time, also under a live process: the ledger is the truth.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from daskrado.errors import BudgetError, DaskradoError, DataError, LedgerError, PublishError, UsageError
from daskrado.lake import publish
from daskrado.lake.claim import Claim
from daskrado.ledger import journal as journal_module
from daskrado.ledger.account import Account
from daskrado.ledger.config import LedgerConfig
from daskrado.ledger.journal import Journal, journal_folder
from daskrado.ledger.ledger import Grant, Ledger
from daskrado.ledger.opening import open_account, resumed_account
from daskrado.privacy.accountant import Event, PureEvent, event_to_json
from daskrado.privacy.mechanisms import DiscreteLaplace, Target
from daskrado.privacy.relations import Relation
from daskrado.privacy.statement import PrivacyStatement
from daskrado.statistics import MeanOperator, Summary
from daskrado.table.lattice import Lattice

LATTICE = Lattice(3.0, 12)
STATISTIC = MeanOperator(2)
TARGET = Target(STATISTIC, LATTICE, Relation.REPLACE_ONE)
SUMMARY = Summary(STATISTIC, LATTICE, np.array([4096, 0, 7], dtype=np.int64), 7)
STATEMENT = PrivacyStatement(
    private=True, relation=Relation.REPLACE_ONE, unit="one row", epsilon=0.5, delta=0.0, mechanism="laplace",
    theorem="t", accountant="one release",
)  # fmt: skip
# Two roles cost the same: a debit that was cut off before it was written down must not serve both.
COSTS: dict[str, Event] = {"release": PureEvent("0.5"), "steps": PureEvent("0.25"), "rows": PureEvent("0.25")}
ROLES = tuple(COSTS)
ROOM = {"release": 64, "steps": 0, "rows": 0}
FULL = OSError(errno.ENOSPC, "No space left on device")


@dataclass(frozen=True)
class Fault:
    """When a process dies within an operation, in steps, or which of its writes finds the disk full."""

    kill: int | None = None
    full: str | None = None


def faults(steps: int, *full: str) -> st.SearchStrategy[Fault]:
    """The faults of an operation of so many steps; most often none, so that runs come far."""
    found = [*(Fault(kill=step) for step in range(steps)), *(Fault(full=name) for name in full)]
    return st.sampled_from([Fault()] * 3 * len(found) + found)


Work = list[tuple[str, Fault]]
OVER = st.sampled_from([False, False, False, True])
CHANGE = st.sampled_from(["", "", "", "", "", "", "lake", "event", "data set"])
RESERVE, END = faults(10, "_write"), faults(8)
PUBLISH = 32  # every file and folder is synced
DRAW = faults(19, "begin", "keep", "keep", "keep")
OPERATIONS = {"release": DRAW, "steps": DRAW, "repeat": DRAW, "rows": faults(10), "publish": faults(PUBLISH, "_swap")}
OPERATION = st.sampled_from([*OPERATIONS, "steps", "publish"]).flatmap(lambda n: st.tuples(st.just(n), OPERATIONS[n]))
WORK = st.lists(OPERATION, max_size=6)
ORDER = st.permutations(ROLES).flatmap(lambda roles: st.tuples(*(st.tuples(st.just(r), RESERVE) for r in roles)))


class Killed(BaseException):
    """The process is dead: nothing that it does from here on has an effect."""


class World:
    """When the running process dies, and which of its writes find the disk full."""

    def __init__(self) -> None:
        self.dead = False
        self.steps_left: int | None = None
        self.full: str | None = None
        self.notice: Callable[[], None] = lambda: None  # called at every step

    def step(self) -> None:
        """A moment at which a process may be killed."""
        self.notice()
        if self.steps_left is not None:
            self.steps_left -= 1
            self.dead = self.dead or self.steps_left < 0
        if self.dead:
            raise Killed

    def between_steps(self, owner: Any, name: str) -> Callable[..., Any]:
        """A function with a moment to die before it and one after it."""
        real = getattr(owner, name)

        def stepped(*arguments: Any, **named: Any) -> Any:
            self.step()
            if self.full == name:
                raise FULL
            found = real(*arguments, **named)
            self.step()
            return found

        return stepped


@dataclass
class Job:
    """As much of a job as opening an account reads."""

    output: str
    lake: str = "/lakes/clinic"
    ledger: LedgerConfig = field(default_factory=LedgerConfig)
    common_addresses: tuple[tuple[str, ...], ...] = ()
    addresses: tuple[tuple[str, ...], ...] = ()

    def model_dump(self, **_: Any) -> dict[str, Any]:
        return {"output": self.output}


@dataclass
class Process:
    """An open account, as a job has it."""

    manager: Any
    account: Account
    run: Run
    inherited: set[int]  # reservations of the processes before it
    grants: dict[str, Grant] = field(default_factory=dict)
    released: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)
    unkept: set[str] = field(default_factory=set)  # what it drew when the disk was full
    steps: Callable[..., Any] | None = None
    number: int = 0


@dataclass
class Run:
    """What happened to a run, over all its processes."""

    name: str
    output: Path
    noise: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)  # what was really drawn, by name
    keys: dict[str, bytes] = field(default_factory=dict)
    grants: dict[str, int] = field(default_factory=dict)
    process: Process | None = None
    published: dict[str, bytes] | None = None
    copies: list[dict[str, bytes] | None] = field(default_factory=list)  # of its journal; None where it has none
    restored: bool = False


def artefact(name: str) -> str:
    """The file of a release, with a name that a later run may overwrite where it is told to."""
    return f"{name.replace('#', '-')}.rados.parquet"


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return one.keys() == other.keys() and all(one[k].tobytes() == other[k].tobytes() for k in one)


class Accounts(RuleBasedStateMachine):
    """Up to four runs, each with at most one live process."""

    def __init__(self) -> None:
        super().__init__()
        self.world, self.runs, self.draws = World(), [], 0
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # a disk would make the test slow
        self.place = Path(tempfile.mkdtemp(prefix="accounts", dir=memory))
        self.patch = pytest.MonkeyPatch()
        for owner, name in (
            (Ledger, "reserve"), (Ledger, "count_draw"), (Ledger, "void"), (Journal, "_write"), (Journal, "begin"),
            (Journal, "keep"), (Journal, "secret"), (Journal, "forget"), (Journal, "remove_kept_folder"),
            (journal_module, "sync_folder"), (publish, "_swap"), (os, "fsync"), (Claim, "clear"),
            (Ledger, "publish"),
        ):  # fmt: skip
            self.patch.setattr(owner, name, self.world.between_steps(owner, name))
        self.ledger = Ledger.open(self.place / "ledger.sqlite")
        self.reader = sqlite3.connect(self.place / "ledger.sqlite", isolation_level=None)
        self.folders = journal_folder(self.ledger)
        self.world.notice = self.copy_journals
        self.before: dict[int, tuple[Any, ...]] = {}
        self.operations = {
            "release": self.release, "steps": self.step, "repeat": self.repeat, "rows": self.noise_on_rows,
            "publish": self.publish,
        }  # fmt: skip

    def teardown(self) -> None:
        for run in self.runs:
            if run.process is not None:
                self.kill_process(run.process)
        self.patch.undo()
        self.reader.close()
        shutil.rmtree(self.place, ignore_errors=True)

    @initialize(limit=st.sampled_from(["50", "2.25"]))
    def set_limit(self, limit: str) -> None:
        self.ledger.set_limit("clinic", Relation.REPLACE_ONE, limit, 0)

    # What is really there, read without the code under test

    def entries(self) -> dict[int, tuple[Any, ...]]:
        """Every line of the ledger: (run, data set, relation, event, state)."""
        found: dict[int, tuple[Any, ...]] = {}
        records = self.reader.execute(
            "SELECT entry, kind, run, dataset, body FROM records WHERE entry > 0 ORDER BY id"
        )
        for entry, kind, run, dataset, body in records.fetchall():
            if kind == "debit":
                facts = json.loads(body)
                found[entry] = (run, dataset, facts["whose"]["relation"], json.dumps(facts["event"]), "reserved")
            elif kind != "draw":
                state = {"spend": "spent", "void": "void", "publish": "published"}[kind]
                found[entry] = (*found[entry][:-1], state)
        return found

    def counted(self, run: Run) -> set[str]:
        """The draws of a run that the ledger counted; it counts none twice."""
        rows = self.reader.execute("SELECT name FROM records WHERE kind = 'draw' AND run = ?", (run.name,)).fetchall()
        assert len(rows) == len({*rows})
        return {name for (name,) in rows}

    def copy_journals(self) -> None:
        """Note what a backup would find at this moment."""
        for run in self.runs:
            folder = self.folders / run.name
            held = {path.name: path.read_bytes() for path in folder.glob("*")} if self.has_journal(run) else None
            if run.copies[-1:] != [held]:
                run.copies.append(held)

    def states(self, run: Run) -> list[str]:
        return [row[-1] for row in self.entries().values() if row[0] == run.name]

    def has_journal(self, run: Run) -> bool:
        return (self.folders / run.name / "run.json").exists()

    def files(self, run: Run, ending: str) -> set[str]:
        return {path.stem for path in (self.folders / run.name).glob(f"*.{ending}")}

    def lost(self, run: Run) -> bool:
        """Whether a draw may have been made and is not kept."""
        return bool(self.counted(run) - self.files(run, "npz") - self.files(run, "key"))

    # How a process ends

    @contextlib.contextmanager
    def working(self, process: Process, fault: Fault, *, must: bool = False) -> Iterator[None]:
        """An operation of a process: killed after some steps, or ended by an error, which its job does not catch.

        ``must``: without a fault it succeeds, unless a copy was put back.
        """
        must = must and fault == Fault() and not process.run.restored
        self.world.steps_left, self.world.full = fault.kill, fault.full
        try:
            yield
            self.world.steps_left = self.world.full = None
        except Killed:
            self.kill_process(process)
        except DaskradoError as error:
            if must:
                raise AssertionError("this had to succeed") from error
            self.fail_process(process, error)
        finally:
            self.world.steps_left = self.world.full = None
            self.world.dead = False

    def kill_process(self, process: Process) -> None:
        """Nothing of it has an effect any more; the system releases its lock."""
        before = self.entries(), self.has_journal(process.run)
        self.world.dead = True
        with contextlib.suppress(Killed):
            process.manager.__exit__(Killed, Killed(), None)
        self.world.dead = False
        process.run.process = None
        assert before == (self.entries(), self.has_journal(process.run))  # 7: a killed run gets nothing back

    def fail_process(self, process: Process, error: Exception) -> None:
        """The error ends the job, as the account sees it; the process may still be killed meanwhile."""
        run = process.run
        spent_before = "spent" in self.states(run)
        self.world.full = None
        killed = False
        try:
            process.manager.__exit__(type(error), error, None)
        except Killed:
            killed = True
        except DaskradoError as raised:
            if raised is not error:
                raise
        self.world.dead = False
        run.process = None
        if killed:
            return
        # 8: of reservations only those are left that a process before it made and this one did not take over.
        left = {entry for entry, row in self.entries().items() if (row[0], row[-1]) == (run.name, "reserved")}
        assert left <= process.inherited - {grant.entry for grant in process.grants.values()}
        assert ("spent" in self.states(run)) == spent_before  # 9
        charged = bool(set(self.states(run)) - {"void"})
        assert charged == self.has_journal(run) == (self.folders / run.name).exists()

    def live(self, index: int) -> Process:
        alive = [run.process for run in self.runs if run.process is not None]
        return alive[index % len(alive)]

    def any_alive(self) -> bool:
        return any(run.process is not None for run in self.runs)

    # Rules

    @precondition(lambda self: sum(self.has_journal(run) for run in self.runs) < 3)
    @rule(fault=END, first=ORDER, work=WORK)
    def begin_run(self, fault: Fault, first: Work, work: Work) -> None:
        output = self.place / f"out{len(self.runs)}"
        manager = open_account("learn", Job(str(output)), overwrite=False, ledger_path=self.ledger.path, write=True)
        self.world.steps_left = fault.kill
        try:
            account = manager.__enter__()
        except Killed:  # before it had a name that anybody knows
            return
        finally:
            self.world.steps_left, self.world.dead = None, False
        run = Run(account.run, output)
        run.process = Process(manager, account, run, set())
        self.runs.append(run)
        self.do(run.process, [*first, *work])

    @precondition(any_alive)
    @rule(index=st.integers(0, 3), work=WORK)
    def go_on(self, index: int, work: Work) -> None:
        self.do(self.live(index), work)

    def do(self, process: Process, work: Work) -> None:
        """What a job does, as far as its process gets: reserve what was not, then draw, or publish."""
        for what, fault in work:
            if process.run.process is not process:
                return
            role = {"repeat": "steps", "publish": None}.get(what, what)
            if role is not None and role not in process.grants:
                self.reserve(process, role, fault)
            elif what != "publish" or process.released:
                self.operations[what](process, fault)
            self.check()

    def reserve(self, process: Process, role: str, fault: Fault) -> None:
        run, before = process.run, self.entries()
        with self.working(process, fault):
            try:
                grant = process.account.reserve(
                    role, "clinic", Relation.REPLACE_ONE, COSTS[role], theorem="t", fingerprint="f", room=ROOM[role]
                )
            except BudgetError:
                assert self.entries() == before  # nothing is debited by a refusal
                raise
            if role in run.grants and before[run.grants[role]][-1] != "void":  # 2: it is the debit that it had
                assert grant.entry == run.grants[role]
                assert self.entries() == before
            assert (grant.event, grant.run) == (COSTS[role], run.name)  # 3
            run.grants[role], process.grants[role] = grant.entry, grant
            assert len(set(process.grants.values())) == len(process.grants)

    def release(self, process: Process, fault: Fault) -> None:
        grant = process.grants["release"]
        with self.working(process, fault, must=self.can_have(process, "release")):
            mechanism = self.recorded(process.run, "release", grant)
            rows = self.rows(process.run, "release", SUMMARY)
            found = process.account.release("release", grant, mechanism, STATEMENT, rows)
            self.returned(process, "release", found.values, fault)

    def step(self, process: Process, fault: Fault) -> None:
        """The next of the draws that a learner makes under one grant."""
        process.steps = process.steps or process.account.numbered("steps", process.grants["steps"])
        process.number += 1
        name = f"steps#{process.number:05d}"
        perturb = self.paid_noise(process, name)
        with self.working(process, fault, must=self.can_have(process, name)):
            drawn = process.steps(True, self.rows(process.run, name), lambda private: perturb(private)["drawn"])
            self.returned(process, name, {"drawn": drawn}, fault)

    def repeat(self, process: Process, fault: Fault) -> None:
        """4: the last of them once more; the noise is not drawn again."""
        name = f"steps#{process.number:05d}"
        if not process.number:
            return
        with self.working(process, fault, must=self.can_have(process, name)):
            perturb = self.paid_noise(process, name)
            rows, grant = self.rows(process.run, name), process.grants["steps"]
            drawn = process.account.draw("steps", grant, rows, perturb, number=process.number)
            self.returned(process, name, drawn, fault)

    def can_have(self, process: Process, name: str) -> bool:
        """Whether a draw is there, or may be made: it was not counted, or it is kept."""
        run = process.run
        return name not in self.counted(run) or name in self.files(run, "npz")

    def rows(self, run: Run, name: str, found: Any = None) -> Callable[[], Any]:
        """6: no row is read for a draw that may have been made."""

        def gather() -> Any:
            assert run.restored or name not in self.counted(run)
            return found

        return gather

    def paid_noise(self, process: Process, name: str) -> Callable[[None], dict[str, np.ndarray]]:
        grant = process.grants["steps"]

        return lambda _: self.draw_noise(process.run, name, grant)

    def noise_on_rows(self, process: Process, fault: Fault) -> None:
        """Noise that is a function of a kept key: it may be computed again, and is the same."""
        gone = "rows" in self.counted(process.run) and "rows" not in self.files(process.run, "key")
        with self.working(process, fault, must=not gone):
            key = process.account.row_key("rows").key_bytes()
            assert not gone  # 6: noise under another key is another draw
            assert (self.folders / process.run.name / "rows.key").stat().st_mode & 0o777 == 0o600
            process.account.count_repeatable("rows", process.grants["rows"], np.frombuffer(key, dtype=np.int64))
            assert process.run.keys.setdefault("rows", key) == key  # what is released has one key
            assert self.entries()[process.grants["rows"].entry][-1] == "spent"

    def publish(self, process: Process, fault: Fault) -> None:
        run, there = process.run, process.run.output.exists()
        with self.working(process, fault):
            try:
                with process.account.publish(run.output) as folder:
                    for name, values in process.released.items():
                        with (folder / artefact(name)).open("wb") as file:
                            np.savez(file, **values)
                    manifest = {"schema": "daskrado.manifest/2", "run": run.name}
                    (folder / "manifest.json").write_text(json.dumps(manifest))
            except (UsageError, PublishError):
                assert there or fault.full == "_swap"  # 11: a second time is refused
                raise
            assert not there
            self.check_published(run)
            assert not (self.folders / run.name).exists()
            assert not (self.folders / f".{run.name}.done").exists()  # what is forgotten is gone
            assert set(self.states(run)) <= {"published", "void", "reserved"}  # nothing is drawn for it any more
            self.fail_after_publishing(process)
            run.process = None

    def fail_after_publishing(self, process: Process) -> None:
        """11: whatever fails after a run was published changes nothing, and nothing untrue is said of it."""
        before, error = self.entries(), DataError("the page could not be shown")
        with contextlib.suppress(DataError):
            process.manager.__exit__(DataError, error, None)
        assert self.entries() == before
        assert {note.partition(" in ")[0] for note in getattr(error, "__notes__", [])} <= {"everything was published"}

    @precondition(any_alive)
    @rule(index=st.integers(0, 3), fault=END, how=st.sampled_from(["killed", "failed"]))
    def end_process(self, index: int, fault: Fault, how: str) -> None:
        process = self.live(index)
        if how == "killed":
            self.kill_process(process)
            return
        with self.working(process, fault):
            raise DataError("unusable rows")

    @precondition(any_alive)
    @rule(index=st.integers(0, 3), what=st.sampled_from(["take", "resume", "create"]))
    def second_process(self, index: int, what: str) -> None:
        """10: while a process has the run, no other gets it."""
        run = self.live(index).run
        folder, before = self.folders / run.name, (self.entries(), self.has_journal(run))
        attempts: dict[str, Callable[[], object]] = {
            "take": lambda: Journal.take(folder),
            "create": lambda: Journal.create(folder, {}),
            "resume": resumed_account(self.ledger, run.name).__enter__,
        }
        with pytest.raises(LedgerError, match="still at work in another process"):
            attempts[what]()
        assert before == (self.entries(), self.has_journal(run))

    @precondition(lambda self: any(run.copies for run in self.runs))
    @rule(index=st.integers(0, 3), which=st.integers(0, 60))
    def put_a_copy_back(self, index: int, which: int) -> None:
        """A journal as it was at any earlier step; the ledger stays. Under a live process its lock stays, too."""
        kept = [run for run in self.runs if run.copies]
        run = kept[index % len(kept)]
        copy, folder = run.copies[which % len(run.copies)], self.folders / run.name
        if run.process is not None and copy is None:
            return
        if run.process is None:
            shutil.rmtree(folder, ignore_errors=True)
        run.restored = True
        if copy is None:
            return
        folder.mkdir(mode=0o700, exist_ok=True)
        for path in folder.glob("*"):
            if path.name not in (*copy, "lock"):
                path.unlink()
        for name, content in copy.items():
            if name != "lock" or run.process is None:
                (folder / name).write_bytes(content)
                (folder / name).chmod(0o600)

    @precondition(lambda self: any(run.process is None for run in self.runs))
    @rule(index=st.integers(0, 3), fault=END, over=OVER, change=CHANGE, first=ORDER, work=WORK)
    def resume(self, index: int, fault: Fault, over: bool, change: str, first: Work, work: Work) -> None:
        """Most often a run that left a journal; others, too."""
        idle = [run for run in self.runs if run.process is None]
        idle = [run for run in idle if over or self.has_journal(run)] or idle
        run = idle[index % len(idle)]
        expected = self.resumable(run)
        before = self.entries()
        manager = resumed_account(self.ledger, run.name)
        self.world.steps_left = fault.kill
        try:
            account = manager.__enter__()
        except Killed:
            return
        except DaskradoError as error:
            if expected is None or not isinstance(error, expected):
                raise
            over = ["reserved"] + ["spent"] * ("published" in self.states(run))
            kept = {entry: row for entry, row in before.items() if row[-1] not in over or row[0] != run.name}
            assert kept.items() <= self.entries().items()  # at most reservations of this run were voided, or it ended
            if expected is LedgerError:  # 6: and all that was not drawn for is given back
                assert "reserved" not in self.states(run)
            return
        finally:
            self.world.steps_left, self.world.dead = None, False
        assert expected is None
        assert self.entries() == before  # 2, 7: to resume costs nothing and gives nothing back
        run.process = self.resumed_process(manager, account, run)
        if change:
            self.refuse_something_else(run.process, change)
            return
        self.do(run.process, [*first, *work])

    def resumed_process(self, manager: Any, account: Account, run: Run) -> Process:
        reserved = {entry for entry, row in self.entries().items() if (row[0], row[-1]) == (run.name, "reserved")}
        return Process(manager, account, run, reserved)

    def resumable(self, run: Run) -> type[Exception] | None:
        """The error that refuses to resume a run; None where it can go on."""
        if not self.has_journal(run) or set(self.states(run)) <= {"void"} or "published" in self.states(run):
            return UsageError
        return LedgerError if self.lost(run) else None

    def refuse_something_else(self, process: Process, change: str) -> None:
        """3: a grant pays for what it was reserved for."""
        run, before, journal = process.run, self.entries(), process.account.journal
        assert journal is not None
        held = sorted(role for role, entry in journal.grants.items() if before[entry][-1] != "void")
        if not held:
            return
        event = PureEvent("0.125") if change == "event" else COSTS[held[0]]
        dataset = "hospital" if change == "data set" else "clinic"
        fingerprint = "g" if change == "lake" else "f"
        with self.working(process, Fault()):
            with pytest.raises(DataError if change == "lake" else LedgerError) as refused:
                process.account.reserve(
                    held[0], dataset, Relation.REPLACE_ONE, event, theorem="t", fingerprint=fingerprint
                )
            assert not isinstance(refused.value, BudgetError)
            now = self.entries()
            assert now.keys() == before.keys()
            if change == "lake" and "spent" not in self.states(run):  # 8: it can never go on
                assert set(self.states(run)) == {"void"}
            else:
                assert now == before
            raise refused.value

    # What is drawn, returned and published

    def draw_noise(self, run: Run, name: str, grant: Grant) -> dict[str, np.ndarray]:
        """A draw like no other; 1: paid for and marked before; 4: made once."""
        self.world.step()
        assert self.entries()[grant.entry][-1] == "spent"
        assert name in self.counted(run)
        assert name in self.files(run, "drawing") or run.restored
        assert name not in run.noise
        self.draws += 1
        run.noise[name] = {"drawn": np.array([self.draws, len(self.runs)], dtype=np.int64)}
        self.world.step()
        return run.noise[name]

    def recorded(self, run: Run, name: str, grant: Grant) -> DiscreteLaplace:
        """The same for a real mechanism, which releases what it draws in steps of the grid."""
        mechanism = DiscreteLaplace(TARGET, 0.5)
        real = mechanism.perturb

        def perturb(vector: np.ndarray) -> np.ndarray:
            self.draw_noise(run, name, grant)
            drawn = real(vector)
            run.noise[name] = {"mean": drawn[:2] * LATTICE.step, "count": drawn[2:].astype(np.float64)}
            self.world.step()
            return drawn

        mechanism.perturb = perturb  # type: ignore[method-assign]
        return mechanism

    def returned(self, process: Process, name: str, values: dict[str, np.ndarray], fault: Fault) -> None:
        """5: what an account returns is what was drawn, and it is kept unless the disk is full."""
        kept = name in self.files(process.run, "npz")
        assert kept or fault.full or process.run.restored or name in process.unkept
        process.unkept |= set() if kept else {name}
        assert same({k: np.atleast_1d(v) for k, v in values.items()}, process.run.noise[name])
        process.released[name] = {k: np.atleast_1d(v) for k, v in values.items()}

    def check_published(self, run: Run) -> None:
        """5, 11: what is published is what was drawn, once and for ever."""
        content = {path.name: path.read_bytes() for path in run.output.iterdir()}
        if run.published is None:
            run.published = content
            for name in run.noise:
                if (run.output / artefact(name)).exists():
                    with np.load(run.output / artefact(name)) as stored:
                        assert same(dict(stored), run.noise[name])
        assert run.published == content

    # What holds after every step

    @invariant()
    def check(self) -> None:
        """All that holds after every step."""
        self.ledger_entries_only_go_forward()
        self.each_role_is_charged_once()
        self.what_was_drawn_is_paid_for()
        self.what_was_kept_is_what_was_drawn()
        self.a_charged_run_keeps_its_journal_until_it_is_published()

    def ledger_entries_only_go_forward(self) -> None:
        """7: from reserved to spent and published, or to void, once; nothing else of an entry changes."""
        now, later = self.entries(), {"reserved": {"spent", "published", "void"}, "spent": {"published"}}
        for entry, row in self.before.items():
            assert now[entry][:-1] == row[:-1]
            assert now[entry][-1] == row[-1] or now[entry][-1] in later.get(row[-1], ())
        self.before = now

    def each_role_is_charged_once(self) -> None:
        """2: of every cost no more debits than roles that have it."""
        charged: dict[tuple[str, str], int] = {}
        for run, _, _, event, state in self.entries().values():
            if state != "void":
                charged[run, event] = charged.get((run, event), 0) + 1
        for (_, event), count in charged.items():
            assert count <= sum(event_to_json(cost) == json.loads(event) for cost in COSTS.values())

    def what_was_drawn_is_paid_for(self) -> None:
        """1, 6: in every state that a crash can leave."""
        entries = self.entries()
        for run in self.runs:
            for name in run.noise:
                assert entries[run.grants[name.partition("#")[0]]][-1] in ("spent", "published")
                assert name in self.counted(run)

    def what_was_kept_is_what_was_drawn(self) -> None:
        """5: and nothing that was kept is gone before it is published."""
        for run in self.runs:
            for name in self.files(run, "npz"):
                with np.load(self.folders / run.name / f"{name}.npz") as stored:
                    assert same({k: np.atleast_1d(v) for k, v in stored.items()}, run.noise[name])

    def a_charged_run_keeps_its_journal_until_it_is_published(self) -> None:
        """9, 11."""
        for run in self.runs:
            if run.output.exists():
                self.check_published(run)
                assert self.has_journal(run) or run.restored or "spent" not in self.states(run)
            elif set(self.states(run)) - {"void"} and not run.restored:
                assert self.has_journal(run)
            secret = {*self.files(run, "key"), *self.files(run, "npz")}
            assert self.has_journal(run) or not secret  # nothing secret outlives its journal
            if self.has_journal(run):
                assert (self.folders / run.name).stat().st_mode & 0o777 == 0o700
