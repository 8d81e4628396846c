"""holdout and evaluate in a training pipeline: who is in which part, what it costs, what the page says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import daskrado
from daskrado.errors import BudgetError, DataError, UsageError
from daskrado.jobs.load import load_job
from daskrado.lake.holdout import HELD_OUT, TRAINING, Part
from daskrado.learners.base import Learned
from daskrado.learners.on_release.moments import MomentsLearner
from daskrado.ledger.ledger import Ledger
from daskrado.statistics.base import Summary

BUDGET = {"epsilon": 1.0, "delta": 1e-6}
UNIT = {"column": "patient", "name": "one patient"}
DOMAIN = {
    "label": {"column": "sick", "positive": 1, "negative": 0},
    "columns": {
        "age": {"kind": "numeric", "lower": 0, "upper": 100},
        "sex": {"kind": "categorical", "values": ["f", "m"], "other": False},
    },
    "norm_bound": 1.5,
    "id": "visit",
}


LARGE = {"first_limit": {"epsilon": 20, "delta": 1e-5}}


def visits(people: int = 400, seed: int = 1) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    patient = np.repeat(np.arange(people), draw.integers(1, 5, people))
    age = draw.uniform(0, 100, len(patient))
    sick = (draw.random(len(patient)) < 1 / (1 + np.exp((50 - age) / 10))).astype(int)
    sex = draw.choice(["f", "m"], len(patient))
    return pd.DataFrame({"patient": patient, "visit": np.arange(len(patient)), "age": age, "sex": sex, "sick": sick})


def keys(lake: Any, **changes: Any) -> dict[str, Any]:
    base = {
        "dataset": "d",
        "lake": lake,
        "domain": DOMAIN,
        "output": "out",
        "protect": {"relation": "add_remove", "unit": UNIT},
        "budget": BUDGET,
        "holdout": 0.25,
        "ledger": {"first_limit": {"epsilon": 3, "delta": 1e-5}},
    }
    return {key: value for key, value in (base | changes).items() if value is not None}


def test_a_hash_of_ids_decides_in_any_type_and_about_the_share_is_held_out() -> None:
    ids = np.arange(20_000)
    held = Part("d", "id", 0.2, HELD_OUT)
    whole = held.absent(pa.table({"id": ids}))
    assert abs((~whole).mean() - 0.2) < 5 * (0.16 / 20_000) ** 0.5
    assert np.array_equal(whole, held.absent(pa.table({"id": ids.astype(str)})))
    assert np.array_equal(whole, held.absent(pa.table({"id": [f"{i}.0" for i in ids]})))
    assert np.array_equal(whole, ~Part("d", "id", 0.2, TRAINING).absent(pa.table({"id": ids})))
    assert np.array_equal(whole[::-1], held.absent(pa.table({"id": ids[::-1]})))
    assert not np.array_equal(whole, Part("other", "id", 0.2, HELD_OUT).absent(pa.table({"id": ids})))
    for name in (HELD_OUT, TRAINING):  # nobody's row is in no part
        assert Part("d", "id", 0.2, name).absent(pa.table({"id": pa.array([None, None], pa.int64())})).all()


def sums(frame: pd.DataFrame, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, **changes: Any) -> list[np.ndarray]:
    """The private sums of a run, before noise: of training, of placing bins (whose edges follow from noise)."""
    from daskrado.ledger import draws

    seen: list[np.ndarray] = []
    genuine = draws.Draws.draw

    def spy(self: Any, role: str, grant: Any, gather: Any, perturb: Any, **how: Any) -> Any:
        def gathered() -> Any:
            found = gather()
            assert isinstance(found, Summary)
            seen.append(found.vector.copy())
            return found

        return genuine(self, role, grant, gathered, perturb, **how)

    with monkeypatch.context() as patch:
        patch.setattr(draws.Draws, "draw", spy)
        daskrado.run(keys(frame, **changes), write=False, ledger=tmp_path / f"{len(list(tmp_path.iterdir()))}.sqlite")
    return seen[:2]


@pytest.mark.parametrize("protect", [UNIT, "one visit"], ids=["people", "rows"])
def test_taking_anybody_away_changes_one_of_the_two_sums_only(
    protect: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What parallel composition rests on; the placing of bins depends on the model, so that is held fixed."""
    fixed = np.array([1.0, 0.2, -0.1, 0.0])
    monkeypatch.setattr(MomentsLearner, "fit_columns", lambda self, released, domain: Learned(fixed, {}))
    frame, column = visits(40), "patient" if isinstance(protect, dict) else "visit"
    changes = {"protect": {"relation": "add_remove", "unit": protect}}
    before = sums(frame, monkeypatch, tmp_path, **changes)
    held = Part("d", column, 0.25, HELD_OUT)
    sides = set()
    for one in range(12):
        mine = frame[column] == one
        is_held = not held.absent(pa.table({column: frame.loc[mine, column]})).any()
        after = sums(frame[~mine], monkeypatch, tmp_path, **changes)
        moved = [not np.array_equal(a, b) for a, b in zip(before, after, strict=True)]
        assert moved == [not is_held, is_held]
        sides.add(is_held)
    assert sides == {True, False}


def test_both_parts_are_charged_once_and_any_other_split_pays_in_both(tmp_path: Path) -> None:
    """At a limit of 3: two runs of 1 with the same hold-out cost as much as two without; others cost more."""
    frame, ledger = visits(), tmp_path / "l.sqlite"
    shares = []
    for changes in ({}, {}, {"holdout": 0.5}):
        found = daskrado.run(keys(frame, **changes), write=False, ledger=ledger)
        [own] = [one for one in found.budget if one["relation"] == "add_remove"]
        assert own["share"] == pytest.approx((shares[-1] if shares else 1) - own["left"], abs=1e-4)
        assert own["more_runs"] == pytest.approx(own["left"] / own["share"], abs=1)
        shares.append(own["left"])
    alone = daskrado.run(keys(frame, holdout=None), write=False, ledger=tmp_path / "alone.sqlite")
    [once] = [one for one in alone.budget if one["relation"] == "add_remove"]
    cost = 1 - once["left"]
    assert shares[0] == pytest.approx(1 - cost, abs=1e-5)
    assert shares[1] == pytest.approx(1 - 2 * cost, abs=1e-5)
    assert shares[2] == pytest.approx(1 - 4 * cost, abs=1e-4)  # training and evaluation, for everybody
    parts = {entry.part for entry in Ledger.open(ledger).entries()}
    names = [f"{share} held out by patient/{part}" for share in (0.25, 0.5) for part in ("training", "held out")]
    assert parts == set(names)


def test_the_statement_is_that_of_one_part_and_the_manifest_names_both(tmp_path: Path) -> None:
    found = daskrado.run(keys(visits(4000), evaluate={"by": ["sex"]}), out=tmp_path / "run")
    assert found.statement.epsilon == pytest.approx(1.0, abs=1e-6)
    assert "training and evaluation read disjoint rows: a hash of patient decides" in found.statement.assumptions
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert [charge["part"] for charge in manifest["charges"]] == [
        "0.25 held out by patient/training",
        "0.25 held out by patient/held out",
    ]
    assert manifest["facts"]["evaluation"]["error"]["value"] < 0.4
    evaluation = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert set(evaluation["groups"]["sex"]) == {"f", "m"}
    page = (tmp_path / "run" / "report.html").read_text()
    assert "How good the model is" in page
    assert "on training rows" not in page
    again = daskrado.evaluate(
        tmp_path / "run", visits(4000), epsilon=0.5
    )  # of the rows that were held out, by default
    assert again.facts["evaluation"]["error"]["value"] < 0.4
    assert {entry.part for entry in Ledger.open(_own_ledger()).entries()} == {c["part"] for c in manifest["charges"]}


def _own_ledger() -> Path:
    from daskrado.ledger.config import default_ledger

    return Path(default_ledger())


def test_without_a_hold_out_both_are_charged_and_the_page_says_on_training_rows(tmp_path: Path) -> None:
    changes = {"holdout": None, "evaluate": {"budget": {"epsilon": 0.5, "delta": 1e-6}}}
    found = daskrado.run(keys(visits(), **changes), out=tmp_path / "run")
    assert found.statement.epsilon is not None
    assert 1.0 < found.statement.epsilon <= 1.5
    assert found.statement.delta == 2e-6
    assert len({entry.part for entry in Ledger.open(_own_ledger()).entries()}) == 1
    assert "on training rows" in (tmp_path / "run" / "report.html").read_text()
    assert any("on training rows" in line for line in found.lines)


@pytest.mark.parametrize(("train", "measure", "both"), [(0.3, 0.6, 0.9), (0.1, 0.7, 0.8), (0.6, 0.7, 1.3)])
def test_budgets_add_up_as_they_are_written(train: float, measure: float, both: float, tmp_path: Path) -> None:
    """Doubles do not: 0.3 + 0.6 is below 0.9, and the statement would cost more than was asked for."""
    changes = {"holdout": None, "budget": {"epsilon": train}, "evaluate": {"budget": {"epsilon": measure}}}
    found = daskrado.run(keys(visits(), **changes), out=tmp_path / "run")
    assert found.statement.epsilon == both


def test_figures_are_those_of_the_rows_that_were_held_out() -> None:
    frame = visits(3000)
    exact = {"private": False, "protect": None, "budget": None, "ledger": None}
    found = daskrado.run(keys(frame, **exact), write=False)
    held = ~Part("d", "visit", 0.25, HELD_OUT).absent(pa.table({"visit": frame["visit"]}))
    margins = found.model.margins(frame[held])
    assert found.facts["evaluation"]["error"]["value"] == pytest.approx(
        np.mean((margins >= 0) != (frame["sick"][held] == 1)), abs=1e-12
    )
    trained = daskrado.run(keys(frame[~held], holdout=None, **exact), write=False)
    assert np.array_equal(trained.model.weights, found.model.weights)


@pytest.mark.parametrize("learner", ["gradient", "objective_perturbation", "auto"])
def test_learners_that_read_several_times_hold_out_too(learner: str) -> None:
    found = daskrado.run(keys(visits(2000), learner={"kind": learner}, rows=2000, ledger=LARGE), write=False)
    assert found.facts["evaluation"]["error"]["value"] < 0.45


def test_replaced_rows_keep_their_ids() -> None:
    protect = {"relation": "replace_one", "unit": "one visit"}
    found = daskrado.run(keys(visits(), protect=protect), write=False)
    assert "what is replaced keeps its visit" in found.statement.assumptions


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"domain": {**DOMAIN, "id": None}, "protect": {"relation": "add_remove", "unit": "one row"}}, "by an id"),
        ({"holdout": None, "evaluate": {}}, "evaluate: budget is missing: without holdout"),
        ({"holdout": 1.0}, "holdout"),
        ({"evaluate": {"by": ["age"]}}, "by: column 'age' is a number without bins"),
        ({"private": False, "protect": None, "budget": None, "evaluate": {"budget": BUDGET}}, "drop it"),
        ({"protect": {"relation": "label_flip", "unit": "one label"}}, "not label_flip"),
    ],
)
def test_mistakes_are_named(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as error:
        load_job(keys(visits(5), **changes))
    assert said in str(error.value)


def test_an_id_column_that_is_missing_or_of_another_type_costs_nothing(tmp_path: Path) -> None:
    frame = visits(20)
    protect = {"relation": "add_remove", "unit": "one visit"}
    (tmp_path / "lake").mkdir()
    frame.assign(visit=frame["visit"] / 2).to_parquet(tmp_path / "lake" / "halves.parquet")
    for lake in (frame.drop(columns="visit"), str(tmp_path / "lake")):
        with pytest.raises(DataError, match="holdout by 'visit'"):
            daskrado.run(keys(lake, protect=protect), write=False, ledger=tmp_path / "l.sqlite")
    assert not Ledger.open(tmp_path / "l.sqlite").entries()


def test_a_spent_part_is_refused_and_nothing_is_debited(tmp_path: Path) -> None:
    ledger = tmp_path / "l.sqlite"
    with Ledger.open(ledger, create=True) as opened:
        opened.set_limit("d", "add_remove", 1.2, 1e-5)
    protect = {"relation": "add_remove", "unit": "one visit"}
    daskrado.run(keys(visits(), protect=protect), write=False, ledger=ledger)
    before = len(Ledger.open(ledger).entries())
    with pytest.raises(BudgetError, match="does not cover this"):
        daskrado.run(keys(visits(), protect=protect), write=False, ledger=ledger)
    assert len([e for e in Ledger.open(ledger).entries() if e.state != "void"]) == before


def test_shares_that_differ_in_their_last_digit_are_two_partitions() -> None:
    """Some ids are trained on in the one and held out in the other: as one partition they would pay once for both."""
    one, other = (Part("clinic", "id", share, HELD_OUT) for share in (0.2, 0.2000000001))
    assert one.partition != other.partition
    assert one.partition == "0.2 held out by id"
