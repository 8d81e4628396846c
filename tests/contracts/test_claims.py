"""Jobs that claim more than they pay for: each is planted here, and none is published."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest

import daskrado
from daskrado.errors import UsageError
from daskrado.jobs.base import Charge, Job, Outcome, PrivateJob, Run, perform
from daskrado.jobs.learn import LearnJob
from daskrado.jobs.load import job_class, load_job
from daskrado.ledger.ledger import Ledger, State
from daskrado.privacy.accountant import PureEvent, compose
from daskrado.privacy.events import event_to_json
from daskrado.privacy.protect import Budget
from daskrado.privacy.statement import PrivacyStatement
from daskrado.table.domain import Domain
from daskrado.table.yaml_file import parse

Clinic = Callable[..., tuple[Path, Domain]]


def stated(job: PrivateJob, epsilon: float) -> PrivacyStatement:
    assert job.protect is not None
    asked = Budget(epsilon=epsilon)
    return PrivacyStatement.of(PureEvent(repr(epsilon)), job.protect, asked, mechanism="m", theorem="t")


class _Planted(PrivateJob):
    """Charges epsilon 5 and draws for it, unless a test says otherwise."""

    def charges(self) -> tuple[Charge, ...]:
        return (Charge("count", PureEvent(5), stated(self, 5.0)),)

    def claim(self) -> PrivacyStatement:
        return stated(self, 5.0)

    def work(self, run: Run) -> Outcome:
        for role in run.charges:
            run.draw(role, lambda: run.lake.rows, lambda rows: {"count": np.array([rows])})
        return Outcome(0, self.claim())


class _Honest(_Planted):
    name: ClassVar[str] = "planted honest"


class _StatesLess(_Planted):
    name: ClassVar[str] = "planted states less"

    def claim(self) -> PrivacyStatement:
        return stated(self, 0.1)


class _ByHand(_Planted):
    name: ClassVar[str] = "planted by hand"

    def claim(self) -> PrivacyStatement:
        return stated(self, 5.0).model_copy(update={"epsilon": 0.01})


class _AnotherUnit(_Planted):
    name: ClassVar[str] = "planted another unit"

    def claim(self) -> PrivacyStatement:
        return stated(self, 5.0).model_copy(update={"unit": "one hospital", "rows_per_unit": 1000})


class _Uncharged(_Planted):
    name: ClassVar[str] = "planted uncharged"

    def charges(self) -> tuple[Charge, ...]:
        return ()


class _NeverReserves(_Planted):
    name: ClassVar[str] = "planted never reserves"
    reserves: ClassVar[bool] = False

    def work(self, run: Run) -> Outcome:
        return Outcome(run.lake.rows, self.claim())


class _NeverDraws(_Planted):
    name: ClassVar[str] = "planted never draws"

    def work(self, run: Run) -> Outcome:
        return Outcome(run.lake.rows, self.claim())


class _TwoOfOneRole(_Planted):
    name: ClassVar[str] = "planted two of one role"

    def charges(self) -> tuple[Charge, ...]:
        return (*super().charges(), Charge("count", PureEvent("0.1"), stated(self, 0.1)))


class _CheapCharge(_Planted):
    name: ClassVar[str] = "planted cheap charge"

    def charges(self) -> tuple[Charge, ...]:
        return (Charge("count", PureEvent(5), stated(self, 0.1)),)


LIARS = (
    _StatesLess,
    _ByHand,
    _AnotherUnit,
    _Uncharged,
    _NeverReserves,
    _NeverDraws,
    _TwoOfOneRole,
    _CheapCharge,
)


def planted(kind: type[Job], clinic: Clinic, out: Path) -> Job:
    path, domain = clinic(3000, 3)
    content = {
        "dataset": "clinic",
        "lake": str(path),
        "domain": domain,
        "output": str(out),
        "protect": {"relation": "add_remove", "unit": "one patient"},
        "budget": {"epsilon": 5.0},
        "ledger": {"first_limit": {"epsilon": 50}},
    }
    return parse(kind, content, "planted")


def test_an_honest_job_is_published(clinic: Clinic, tmp_path: Path) -> None:
    assert perform(planted(_Honest, clinic, tmp_path / "out")).statement.epsilon == 5.0
    assert (tmp_path / "out" / "manifest.json").is_file()


@pytest.mark.parametrize("kind", LIARS, ids=lambda kind: kind.name)
def test_a_job_that_claims_more_than_it_pays_for_publishes_nothing(
    kind: type[Job], clinic: Clinic, tmp_path: Path, own_ledger: Path
) -> None:
    with pytest.raises(ValueError, match=r"planted|says less"):
        perform(planted(kind, clinic, tmp_path / "out"))
    assert not (tmp_path / "out").exists()
    entries = Ledger.open(own_ledger).entries() if own_ledger.exists() else []
    assert all(entry.state is not State.RESERVED for entry in entries)


def test_what_nobody_can_account_for_is_refused() -> None:
    class Renyi:
        epsilon = 0.1

    for use in (lambda: compose([Renyi(), PureEvent("0.1")], 1e-6), lambda: event_to_json(Renyi())):  # type: ignore
        with pytest.raises(UsageError, match="Renyi is no privacy event"):
            use()


@pytest.fixture
def inherits() -> type[Job]:
    class Inheriting(LearnJob):
        """A class without a name of its own."""

        def charges(self) -> tuple[Charge, ...]:
            return ()

    return Inheriting


def test_a_class_that_inherits_its_name_takes_no_kind_over(inherits: type[Job]) -> None:
    assert issubclass(inherits, LearnJob)
    assert job_class("learn") is LearnJob


def test_no_error_prints_a_frame(clinic: Clinic) -> None:
    frame = pd.DataFrame({"patient_id": [987654321987], "age": [41]})
    path, domain = clinic(3000, 3)
    common: dict[str, Any] = {"dataset": "c", "lake": str(path), "domain": domain, "output": "o"}
    private = {"protect": {"relation": "add_remove", "unit": "one"}, "budget": {"epsilon": 1.0}}
    for keys in (
        {"kind": frame},
        {"learner": {"kind": frame}},
        {"learner": frame},
        {"kind": "queries", "universe": ["sex"], "queries": [{"sex": frame}], **private},
        {"kind": "queries", "universe": ["sex"], "queries": frame, **private},
    ):
        with pytest.raises(UsageError) as refused:
            load_job(common | keys)
        assert "987654321987" not in str(refused.value)
        assert "patient_id" not in str(refused.value)


def test_facts_that_json_cannot_say_do_not_cost_a_paid_release(clinic: Clinic, tmp_path: Path) -> None:
    class Odd(_Planted):
        name: ClassVar[str] = "planted odd facts"

        def work(self, run: Run) -> Outcome:
            found = super().work(run)
            return Outcome(0, found.statement, facts={"a": np.int64(3), "b": float("nan"), "c": np.array([1.5])})

    result = perform(planted(Odd, clinic, tmp_path / "out"))
    assert result.facts == {"a": 3, "b": None, "c": [1.5]}


def test_ctrl_c_while_the_page_is_drawn_publishes_first(
    clinic: Clinic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*given: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("daskrado.jobs.publish.page_of", interrupted)
    frame = pd.read_parquet(clinic(3000, 3)[0])
    options = {"dataset": "c", "epsilon": 1.0, "delta": 1e-6, "first_limit": (9, 1e-5), "output": tmp_path / "out"}
    with pytest.raises(KeyboardInterrupt):
        daskrado.fit(frame, clinic(3000, 3)[1], **options)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["manifest.json", "model.json"]


def test_a_ledger_that_only_the_working_folder_has_is_refused(
    clinic: Clinic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else one pipeline would have a second budget in every folder that it is run from."""
    path, _ = clinic(3000, 3)
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "p.yaml").write_text(
        f"dataset: c\nlake: {path}\ndomain: {path}.yaml\noutput: out\nledger: {{path: budget.db}}\n"
        "protect: {relation: add_remove, unit: one}\nbudget: {epsilon: 1.0}\n"
    )
    monkeypatch.chdir(tmp_path)
    assert load_job("jobs/p.yaml").ledger.path == "jobs/budget.db"
    (tmp_path / "budget.db").touch()
    with pytest.raises(UsageError, match=r"ledger.path budget.db is in the working folder"):
        load_job("jobs/p.yaml")
