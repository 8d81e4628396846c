"""From a CSV file to an evaluated, published model with the commands alone: no Python, no YAML by hand.

Each walk is the commands of README's table and their flags; what is written beyond them is counted.
"""

from __future__ import annotations

import csv
import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from command_line import Shell

from daskrado.table.domain import Domain

SIX = ("ingest", "init", "describe", "plan", "run", "evaluate")
WALKS: dict[str, list[str]] = {
    "adult": [
        "ingest {data}/adult/adult.data --out lake",
        "init lake --label c14 --positive '>50K'",
        "describe lake --domain domain.yaml --epsilon 0.1",
        "plan pipeline.yaml",
        "run pipeline.yaml --out runs/model",
        "evaluate runs/model lake --by c09 --epsilon 0.5",
    ],
    "diabetes130": [
        "ingest {data}/diabetes130/dataset_diabetes.zip --member dataset_diabetes/diabetic_data.csv --out lake",
        "init lake --label readmitted --positive '<30' --positive '>30' --unit patient_nbr",
        "describe lake --domain domain.yaml --epsilon 0.1",
        "plan pipeline.yaml",
        "run pipeline.yaml --out runs/model",
        "evaluate runs/model lake --by gender --epsilon 0.5",
    ],
    "covertype": [
        "ingest {data}/covertype/covtype.csv.gz --out lake",
        "init lake --label Cover_Type --positive 2",
        "describe lake --domain domain.yaml --epsilon 0.1",
        "plan pipeline.yaml",
        "run pipeline.yaml --out runs/model",
        "evaluate runs/model lake --epsilon 0.5",
    ],
    "magic": [
        "ingest {data}/magic/magic04.data --out lake",
        "init lake --label c10 --positive g",
        "describe lake --domain domain.yaml --epsilon 0.1",
        "plan pipeline.yaml",
        "run pipeline.yaml --out runs/model",
        "evaluate runs/model lake --epsilon 0.5",
    ],
    "abalone": [
        "ingest {data}/abalone/abalone.csv --out lake",
        "init lake --label c08 --above 9.9",
        "describe lake --domain domain.yaml --epsilon 0.5",
        "plan pipeline.yaml",
        "run pipeline.yaml --out runs/model",
        "evaluate runs/model lake --epsilon 1",
    ],
    "wine": [
        "ingest {data}/wine/winequality-white.csv --out lake",
        "init lake --label c11 --above 5.9",
        "describe lake --domain domain.yaml --epsilon 0.5",
        "plan pipeline.yaml",
        "run pipeline.yaml --out runs/model",
        "evaluate runs/model lake --epsilon 1",
    ],
    "transfusion": [
        "ingest {data}/transfusion/transfusion.data --out lake",
        "init lake --label target --positive 1 --epsilon 4",
        "describe lake --domain domain.yaml --epsilon 2",
        "plan pipeline.yaml",
        "run pipeline.yaml --out runs/model",
        "evaluate runs/model lake --epsilon 2",
    ],
}
SMALL = {"abalone", "wine", "transfusion"}  # too few rows to promise anything at these budgets


@pytest.mark.slow
@pytest.mark.parametrize("name", list(WALKS))
def test_commands_alone_lead_from_csv_to_an_evaluated_model(
    name: str, shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shell = Shell(monkeypatch, capsys)
    walk = [line.format(data=shared_data) for line in WALKS[name]]
    assert [line.split()[0] for line in WALKS[name]] == list(SIX)  # nothing beside the six, but for their flags
    assert all(len(line) <= 120 for line in WALKS[name])
    for line in walk:
        assert shell(*shlex.split(line)) == 0, (line, shell.err)
    domain = Domain.load("domain.yaml")
    assert domain.described is not None
    assert len(domain.columns) >= 2
    figures = json.loads(Path("runs/model-evaluation/evaluation.json").read_text())["figures"]
    if "--unit" in WALKS[name][1]:  # a fifth of the patients was held out, and measured by the run itself
        own = json.loads(Path("runs/model/evaluation.json").read_text())["figures"]
        assert own["area under the ROC curve"]["low"] > 0.6
    if name not in SMALL:
        assert figures["less error than the constant guess"]["low"] > 0
        assert figures["area under the ROC curve"]["low"] > 0.6
    assert shell("predict", "runs/model/model.json", "lake", "--out", "scored") == 0, shell.err
    assert shell("show", "runs/model") == 0, shell.err


MADE: dict[str, list[str]] = {
    "klinik": [
        "ingest klinik.csv --out lake --encoding latin-1",
        "init lake --label Wiederaufnahme --positive J --unit Patienten-ID",
        "describe lake --domain domain.yaml --epsilon 0.1",
        "plan pipeline.yaml",
        "run pipeline.yaml --out runs/model",
        "evaluate runs/model lake --by Kasse --epsilon 0.5",
    ],
    "loans": [
        "ingest loans.csv --out lake --first-year 1950",
        "init lake --label default --positive Yes",
        "describe lake --domain domain.yaml --epsilon 0.1",
        "plan pipeline.yaml",
        "run pipeline.yaml --out runs/model",
        "evaluate runs/model lake --by state --epsilon 0.5",
    ],
    "machines": [
        "ingest machines.tsv --out lake --id row_id",
        "init lake --label failed --positive 1 --unit serial",
        "describe lake --domain domain.yaml --epsilon 1",
        "plan pipeline.yaml",
        "run pipeline.yaml --out runs/model --set learner=auto",
        "evaluate runs/model lake --epsilon 1",
    ],
}
ROWS = 12_000


def klinik(draw: np.random.Generator) -> None:
    """Semicolons, Latin-1, decimal commas, days first, a text column, one in eight null, J and N."""
    age, lab = draw.integers(18, 95, ROWS), draw.normal(5, 1.5, ROWS)
    town = draw.choice(["M\u00fcnchen", "K\u00f6ln", "N\u00fcrnberg", "Bonn"], ROWS, p=[0.4, 0.3, 0.2, 0.1])
    sick = draw.logistic(size=ROWS) < 0.04 * (age - 60) + 0.5 * (lab - 5) + 0.7 * (town == "K\u00f6ln") - 1.6
    notes = ["o.B.", "siehe Bericht", "Schmerz; \u00dcbelkeit", ""]
    with Path("klinik.csv").open("w", encoding="latin-1", newline="") as file:
        write = csv.writer(file, delimiter=";").writerow
        write(
            ["Fall-Nr", "Patienten-ID", "Aufnahme", "Alter", "Ort", "Kasse", "Labor", "Bemerkung", "Wiederaufnahme"]
        )
        for i in range(ROWS):
            held = [age[i], draw.choice(["GKV", "PKV"]), f"{lab[i]:.2f}".replace(".", ",")]
            one, two, three = ("" if draw.random() < 0.12 else cell for cell in held)
            day = f"{draw.integers(1, 29):02d}.{draw.integers(1, 13):02d}.{draw.integers(2023, 2026)}"
            who = [100_000 + i, f"P{draw.integers(0, ROWS // 2):06d}", day, one, town[i], two, three]
            write([*who, draw.choice(notes), "J" if sick[i] else "N"])


def loans(draw: np.random.Generator) -> None:
    """A byte order mark, dollars with commas, per cent with N/A, names of months, Yes and No."""
    amount, rate = np.exp(draw.normal(9, 1, ROWS)), draw.uniform(2, 24, ROWS)
    purpose = draw.choice(["car", "home", "debt"], ROWS, p=[0.3, 0.2, 0.5])
    late = draw.logistic(size=ROWS) < 0.2 * (rate - 12) + 0.8 * (purpose == "debt") - 2.0
    with Path("loans.csv").open("w", encoding="utf-8-sig", newline="") as file:
        write = csv.writer(file).writerow
        write(["loan_id", "customer", "opened", "amount", "rate", "state", "purpose", "default"])
        for i in range(ROWS):
            day = f"{draw.integers(1, 29):02d}-{draw.choice(['Jan', 'May', 'Nov'])}-{draw.integers(19, 26)}"
            price = "N/A" if draw.random() < 0.12 else f"{rate[i]:.1f}%"
            who = [f"L{i:07d}", draw.integers(10**8, 10**9), day, f"${amount[i]:,.2f}", price]
            write([*who, draw.choice(["CA", "TX", "NY"]), purpose[i], "Yes" if late[i] else "No"])


def machines(draw: np.random.Generator) -> None:
    """Tabs, times, NA, 300 codes, four hundred units of thirty rows each and no record id, 0 and 1."""
    heat, shake = draw.normal(60, 15, ROWS), draw.exponential(2, ROWS)
    failed = draw.logistic(size=ROWS) < 0.1 * (heat - 60) + 0.5 * (shake - 2) - 1
    with Path("machines.tsv").open("w", newline="") as file:
        write = csv.writer(file, delimiter="\t").writerow
        write(["serial", "ts", "temp", "vibration", "mode", "code", "failed"])
        for i in range(ROWS):
            time = f"2026-{draw.integers(1, 10):02d}-{draw.integers(10, 28)} 12:{draw.integers(10, 60)}:00"
            seen = ["NA" if draw.random() < 0.12 else f"{heat[i]:.1f}", f"{shake[i]:.3f}"]
            kinds = [draw.choice(["auto", "manual", "idle"]), f"E{draw.integers(0, 300):03d}"]
            write([f"M-{draw.integers(0, 400)}", time, *seen, *kinds, int(failed[i])])


@pytest.mark.slow
@pytest.mark.parametrize("name", list(MADE))
def test_tables_of_other_shapes_lead_to_an_evaluated_model_too(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shell = Shell(monkeypatch, capsys)
    {"klinik": klinik, "loans": loans, "machines": machines}[name](np.random.default_rng(3))
    assert [line.split()[0] for line in MADE[name]] == list(SIX)
    for line in MADE[name]:
        assert shell(*shlex.split(line)) == 0, (line, shell.err)
    own = json.loads(Path("runs/model/evaluation.json").read_text())["figures"]
    assert own["area under the ROC curve"]["high"] > 0.6
    if name != "machines":  # four hundred units say little
        assert own["area under the ROC curve"]["low"] > 0.6
    assert shell("predict", "runs/model", "lake", "--out", "scored", "--probability") == 0, shell.err
