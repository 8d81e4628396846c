"""From a CSV file to an evaluated, published model with the commands alone: no Python, no YAML by hand.

Each walk is the commands of README's table and their flags; what is written beyond them is counted.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path

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
