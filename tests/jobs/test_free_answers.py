"""Attacks that once had an exact answer about rows, or about their number, at epsilon 0."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import daskrado
from daskrado.cluster import ClusterConfig
from daskrado.errors import DaskradoError, UsageError
from daskrado.ledger.ledger import Ledger
from daskrado.table.domain import Domain

Clinic = Callable[..., tuple[Path, Domain]]
PRIVATE = {"relation": "replace_one", "unit": "one patient", "first_limit": (40, 1e-4)}
WARDS = [f"ward {number}" for number in range(64)]


def patients(ward: str) -> pd.DataFrame:
    """Forty rows; the patient in question is the last, and all others lie in ward 0."""
    age = np.linspace(20, 80, 40)
    return pd.DataFrame({"age": age, "ward": [WARDS[0]] * 39 + [ward], "sick": (age > 50).astype(int)})


def domain(values: list[str]) -> dict[str, Any]:
    return {
        "label": {"column": "sick", "positive": 1, "negative": 0},
        "norm_bound": 2.0,
        "columns": {
            "age": {"kind": "numeric", "lower": 20, "upper": 80},
            "ward": {"kind": "categorical", "values": values, "other": False},
        },
    }


def outcome(rows: pd.DataFrame, values: list[str], ledger: Path) -> tuple[str, list[str]]:
    """What the attacker sees of one run: whether it is refused and why, and the ledger's entries."""
    said = "done"
    try:
        daskrado.fit(rows, domain(values), dataset="d", epsilon=0.01, delta=1e-6, ledger=ledger, **PRIVATE)
    except DaskradoError as error:
        said = str(error)
    return said, [str(entry.state) for entry in Ledger.open(ledger).entries("d")]


@pytest.mark.slow
@pytest.mark.parametrize("ward", [WARDS[1], WARDS[37], WARDS[63]])
def test_a_patient_is_not_found_by_bisection_of_domains(ward: str, tmp_path: Path) -> None:
    """Six runs halve 64 wards: a refusal said that the patient lies in the half that the domain leaves out."""
    rows, left = patients(ward), WARDS[1:] + WARDS[:1]
    for step in range(6):
        half = left[: len(left) // 2]
        seen = outcome(rows, [WARDS[0], *(w for w in half if w != WARDS[0])], tmp_path / f"{step}.sqlite")
        assert seen == ("done", ["published"])  # whichever half the patient is in
        left = half if ward in half else left[len(left) // 2 :]


def test_a_performance_report_of_a_private_run_is_refused(clinic: Clinic, tmp_path: Path, own_ledger: Path) -> None:
    """It shows the number of passes of a solver, which depends on the rows."""
    path, spec = clinic(3000, 3)
    workers = ClusterConfig(kind="local", workers=1, performance_report=str(tmp_path / "p.html"))
    keys = {
        "kind": "learn",
        "dataset": "c",
        "lake": str(path),
        "domain": spec,
        "output": str(tmp_path / "out"),
        "learner": {"kind": "output_perturbation"},
        "protect": {"relation": "replace_one", "unit": "one patient"},
        "budget": {"epsilon": 1.0},
        "cluster": workers,
    }
    with pytest.raises(UsageError, match="a performance report shows how often and how long rows were read"):
        daskrado.run(keys)
    assert not (tmp_path / "p.html").exists()
    assert not own_ledger.exists()


def test_a_private_lake_is_not_taken_for_a_public_one(clinic: Clinic, tmp_path: Path, own_ledger: Path) -> None:
    """Public rows are read without noise: the private lake must not pass for its own, or another's, public lake."""
    path, spec = clinic(3000, 3)
    other, _ = clinic(2500, 2)
    grid = [{"kind": "output_perturbation", "regularisation": ridge} for ridge in (0.05, 0.5)]

    def tuned(dataset: str, lake: Path, public: Path) -> Any:
        learner = {"kind": "tuning", "grid": grid, "public_lake": str(public)}
        return daskrado.fit(lake, spec, dataset=dataset, learner=learner, epsilon=1.0, **PRIVATE)

    with pytest.raises(UsageError, match=r"learner.public_lake: these rows are private, as data set 'a'"):
        tuned("a", path, path)
    tuned("a", path, other)
    with pytest.raises(UsageError, match=r"learner.public_lake: these rows are private, as data set 'a'"):
        tuned("b", other, path)
    states = [(entry.dataset, str(entry.state)) for entry in Ledger.open(own_ledger).entries()]
    assert states == [("a", "published")]


@pytest.mark.parametrize("form", ["frame", "file"])
@pytest.mark.parametrize("use", ["another name", "public_lake", "the same name"])
def test_made_up_rows_tell_nothing_by_being_refused_or_not(form: str, use: str, tmp_path: Path) -> None:
    """E31: rows as many as the private ones, with their extremes, even all of them, are treated as any others are."""
    ledger = tmp_path / "ledger.sqlite"
    private = patients(WARDS[0])
    guesses = {"all": private, "count": private.assign(age=50.0), "one less": private.iloc[1:]}
    how = PRIVATE | {"relation": "add_remove", "ledger": ledger, "epsilon": 0.1, "delta": 1e-6}
    seen = set()
    for name, rows in {"private": private, **guesses}.items():
        (tmp_path / name).mkdir()
        rows.to_parquet(tmp_path / name / "p.parquet")
    daskrado.fit(tmp_path / "private", domain(WARDS[:2]), dataset="d", **how)
    for name, rows in guesses.items():
        lake: Any = rows if form == "frame" else tmp_path / name
        dataset, learner = {"another name": name.replace(" ", "-")}.get(use, "d"), "moments"
        if use == "public_lake":
            grid = [{"kind": "output_perturbation", "regularisation": ridge} for ridge in (0.05, 0.5)]
            learner, lake = {"kind": "tuning", "grid": grid, "public_lake": lake}, tmp_path / "private"
            how |= {"rows": 1000}  # declared: a noisy count would refuse now and then
        try:
            daskrado.fit(lake, domain(WARDS[:2]), dataset=dataset, learner=learner, **how)
            seen.add("done")
        except DaskradoError as error:
            seen.add(str(error))
    assert len(seen) == 1, seen


@pytest.mark.parametrize("budget", ["enough", "exhausted"])
def test_a_guess_beside_a_private_file_is_not_told_that_it_is_right(budget: str, tmp_path: Path) -> None:
    """E30: two files with the same bytes were refused, so that a free run said whether a guessed file was right."""
    (tmp_path / "lake").mkdir()
    patients(WARDS[1]).to_parquet(tmp_path / "lake" / "p.parquet")
    ledger, seen = tmp_path / "ledger.sqlite", set()
    how = PRIVATE | {"ledger": ledger, "epsilon": 0.1, "delta": 1e-6}
    how["first_limit"] = (40, 1e-4) if budget == "enough" else (0.1001, 1e-6)
    daskrado.fit(tmp_path / "lake", domain(WARDS[:2]), dataset="d", **how)
    for ward in WARDS[:2]:
        patients(ward).to_parquet(tmp_path / "guess.parquet")
        lake = [str(tmp_path / "lake"), str(tmp_path / "guess.parquet")]
        try:
            daskrado.fit(lake, domain(WARDS[:2]), dataset="d", **how)
            seen.add("done")
        except DaskradoError as error:
            seen.add(type(error).__name__)
    assert seen == {"done" if budget == "enough" else "BudgetError"}


@pytest.mark.parametrize("learner", [None, {"kind": "output_perturbation"}])
@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
def test_no_seconds_leave_a_private_run(
    clinic: Clinic, tmp_path: Path, learner: dict[str, Any] | None, relation: str
) -> None:
    path, spec = clinic(3000, 3)
    how = PRIVATE | {"relation": relation} | ({"rows": 3000} if learner else {})
    result = daskrado.fit(
        path, spec, dataset="c", learner=learner or "moments", epsilon=1.0, delta=1e-6, output=tmp_path / "o", **how
    )
    assert result.seconds == {}
    assert '"seconds"' not in (tmp_path / "o" / "manifest.json").read_text()
    assert "seconds" not in (tmp_path / "o" / "report.html").read_text()
    assert not any(line.rstrip().endswith(" s") or " s;" in line for line in result.lines)


@pytest.mark.parametrize(
    ("column", "odd"),
    [
        ("age", "sixty"),
        ("ward", 7),
        ("ward", None),
        ("sick", "perhaps"),
        ("smoker", "x"),
        ("who", None),
        ("who", "p-9"),
    ],
)
def test_one_odd_value_does_not_change_the_type_of_a_frame(column: str, odd: Any, own_ledger: Path) -> None:
    """pandas finds types in values: one of another type turned a column to objects, or whole numbers to floats."""
    rows = patients(WARDS[0]).assign(smoker=True, who=range(40))
    spec = domain(WARDS[:2]) | {"id": "who"}
    spec["columns"]["smoker"] = {"kind": "boolean"}
    statistic = {"kind": "hadamard_rados", "count": 16}
    keys = {
        "dataset": "d",
        "statistic": statistic,
        "learner": "rado_moments",
        "epsilon": 1.0,
        "delta": 1e-6,
        **PRIVATE,
    }
    values = [*rows[column].tolist()[:-1], odd]
    rows[column] = pd.Series(values)
    daskrado.fit(rows, spec, **keys)
    assert [str(entry.state) for entry in Ledger.open(own_ledger).entries("d")] == ["published"]
    if odd is not None and column != "who":  # moments need no id
        with pytest.raises(DaskradoError):
            daskrado.fit(rows, spec, dataset="d", private=False)
