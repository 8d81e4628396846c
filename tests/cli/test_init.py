"""``daskrado init``: a domain and a pipeline from a lake's schema, and from nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from command_line import Shell

SCHEMA = {
    "patient_id": pa.array(["p1", "p2"]),
    "encounter_id": pa.array([11, 12]),
    "admission_type_id": pa.array([1, 2]),
    "age": pa.array([30, 87654321]),
    "dose": pa.array([0.5, 1.5]),
    "seen": pa.array([1, 2], pa.date32()),
    "ward": pa.array(["secret-ward", "b"]),
    "smoker": pa.array([True, False]),
    "blob": pa.array([b"x", b"y"]),
    "readmitted": pa.array(["<30", "NO"]),
}


@pytest.fixture
def lake(tmp_path: Path) -> str:
    (tmp_path / "visits").mkdir()
    pq.write_table(pa.table(SCHEMA), tmp_path / "visits" / "a.parquet")
    return "visits"


def read(path: str) -> Any:
    return yaml.safe_load(Path(path).read_text())


def test_ids_are_no_features_and_the_rest_is_proposed_by_type(shell: Shell, lake: str) -> None:
    words = ("--label", "readmitted", "--unit", "patient_id", "--positive", "<30", "--negative", "NO")
    assert shell("init", lake, *words) == 0
    number = {"kind": "numeric", "lower": "...", "upper": "..."}
    draft = read("domain.yaml")
    assert draft == {
        "label": {"column": "readmitted", "positive": "<30", "negative": "NO"},
        "id": "encounter_id",
        "columns": {
            "admission_type_id": {"kind": "categorical", "values": "..."},
            "age": number,
            "dose": number,
            "seen": {"kind": "date", "lower": "...", "upper": "..."},
            "ward": {"kind": "categorical", "values": "..."},
            "smoker": {"kind": "boolean"},
        },
    }
    text = Path("domain.yaml").read_text()
    assert "# no feature: blob, its type is binary" in text
    pipeline = read("pipeline.yaml")
    assert (pipeline["lake"], pipeline["domain"], pipeline["dataset"]) == ("visits", "domain.yaml", "visits")
    assert pipeline["protect"]["unit"]["column"] == "patient_id"
    assert "columns.age.lower, columns.age.upper" in shell.out
    # Neither values nor what a footer knows of them (its extremes): 87654321 is one.
    assert not any(word in text for word in ("secret-ward", "87654321"))


def test_without_a_terminal_flags_are_asked_for_in_one_line(shell: Shell, lake: str) -> None:
    shell.fails(2, "--label is missing: name the column to predict, one of patient_id, ", "init", lake)
    shell.fails(2, "--label readmited: the lake has no such column", "init", lake, "--label", "readmited")
    assert "did you mean readmitted?" in shell.err
    shell.fails(2, "--above 3: the column ward is string", "init", lake, "--label", "ward", "--above", "3")
    shell.fails(2, "dose is double: 'high' is no value of it", "init", lake, "--label", "dose", "--positive", "high")
    assert not Path("domain.yaml").exists()
    assert shell("init", lake, "--label", "readmitted", "--out", "here") == 0
    assert read("here/domain.yaml")["label"] == {"column": "readmitted", "positive": "...", "negative": "..."}
    assert read("here/pipeline.yaml")["lake"] == "../visits"
    shell.fails(2, "here/domain.yaml: exists", "init", lake, "--label", "readmitted", "--out", "here")
    assert shell("init", lake, "--label", "smoker", "--out", "here", "--overwrite", "--bins") == 0
    assert read("here/domain.yaml")["label"] == {"column": "smoker", "positive": True, "negative": False}
    assert read("here/domain.yaml")["columns"]["age"]["bins"] == "..."
    shell.fails(1, "nowhere: no such file or directory", "init", "nowhere", "--label", "y")


FACTS = {
    "age": {"lower": 0, "upper": 120},
    "ward": {"values": ["a", "b"]},
    "admission_type_id": {"values": [1, 2, 3]},
}
JSON_SCHEMA = {
    "type": "object",
    "properties": {
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "ward": {"enum": ["a", "b"]},
        "admission_type_id": {"type": "integer", "enum": [1, 2, 3]},
        "elsewhere": {"type": "number", "minimum": 1},
    },
}
FIELDS = [
    {"name": "age", "type": "integer", "constraints": {"minimum": 0, "maximum": 120}},
    {"name": "ward", "type": "string", "constraints": {"enum": ["a", "b"]}},
    {"name": "admission_type_id", "type": "integer", "constraints": {"enum": [1, 2, 3]}},
    {"name": "dose", "type": "number"},
]
DOMAIN = {
    "columns": {
        "age": {"kind": "numeric", "lower": 0, "upper": 120},
        "ward": {"kind": "categorical", "values": ["a", "b"]},
        "admission_type_id": {"kind": "categorical", "values": [1, 2, 3]},
        "dose": {"kind": "numeric", "lower": "...", "upper": "..."},
    }
}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("schema.json", JSON_SCHEMA),
        ("table.json", {"fields": FIELDS}),
        ("datapackage.json", {"resources": [{"name": "visits", "schema": {"fields": FIELDS}}]}),
        ("other.yaml", DOMAIN),
    ],
)
def test_bounds_and_categories_are_imported(shell: Shell, lake: str, name: str, content: Any) -> None:
    Path(name).write_text(json.dumps(content) if name.endswith("json") else yaml.safe_dump(content))
    assert shell("init", lake, "--label", "readmitted", "--from", name) == 0
    columns = read("domain.yaml")["columns"]
    for column, facts in FACTS.items():
        assert {key: columns[column][key] for key in facts} == facts
    assert columns["dose"]["lower"] == "..."
    assert "columns.age" not in shell.out


def test_a_file_of_another_form_is_refused(shell: Shell, lake: str) -> None:
    Path("x.json").write_text("[1]")
    shell.fails(2, "x.json: is none of a domain", "init", lake, "--label", "ward", "--from", "x.json")
    Path("x.json").write_text("{")
    shell.fails(2, "x.json: is not valid JSON", "init", lake, "--label", "ward", "--from", "x.json")


def test_names_and_types_that_yaml_cannot_hold_plainly(shell: Shell) -> None:
    pq.write_table(pa.table({"y": [1], "a\nb: [\x85": pa.array([[1]]), "no": [1.0]}), "odd.parquet")
    assert shell("init", "odd.parquet", "--label", "y", "--positive", "1", "--negative", "0") == 0
    draft = read("domain.yaml")
    assert draft["columns"] == {"no": {"kind": "numeric", "lower": "...", "upper": "..."}}
    assert draft["label"] == {"column": "y", "positive": 1, "negative": 0}
    assert read("pipeline.yaml")["dataset"] == "odd.parquet"


def test_a_lake_whose_facts_are_known_is_learned_from_at_once(shell: Shell) -> None:
    assert shell("lake", "make", "clinic", "--rows", 600, "--partitions", 2) == 0
    words = ("--label", "readmitted", "--positive", "yes", "--unit", "patient_id", "--from", "clinic.yaml")
    assert shell("init", "clinic", *words, "--drop", "site") == 0
    assert "still open" not in shell.out
    assert read("domain.yaml")["label"] == {"column": "readmitted", "positive": ["yes"], "negative": "rest"}
    assert shell("plan", "pipeline.yaml") == 0, shell.err
    assert "the usual norm of a row of this domain" in shell.out
    assert shell("run", "pipeline.yaml") == 0, shell.err
    assert Path("runs/clinic/model.json").is_file()


def test_row_numbers_are_no_features_and_name_no_record(shell: Shell) -> None:
    """They depend on the rows before them, so that nothing may go by them."""
    Path("t.csv").write_text(",a,sick\n0,3,x\n1,4,y\n")
    assert shell("ingest", "t.csv", "--out", "lake") == 0
    assert shell("init", "lake", "--label", "sick", "--positive", "x") == 0
    text = Path("domain.yaml").read_text()
    assert "# no feature: index, it numbers the rows" in text
    assert "\nid:" not in text


def test_columns_that_name_somebody_are_no_features_and_no_record(shell: Shell) -> None:
    """A customer has several loans: only loan_id names a record. Without one, init says what to do."""
    loans = {"customer": pa.array([7, 7]), "loan_id": pa.array(["a", "b"]), "customer_type": pa.array(["x", "y"])}
    pq.write_table(pa.table(loans | {"late": pa.array([True, False])}), "loans.parquet")
    assert shell("init", "loans.parquet", "--label", "late") == 0
    assert (read("domain.yaml")["id"], list(read("domain.yaml")["columns"])) == ("loan_id", ["customer_type"])
    assert "no column names a record" not in shell.out
    del loans["loan_id"]
    pq.write_table(pa.table(loans | {"late": pa.array([True, False])}), "loans.parquet")
    for words, lost in (((), "rows are held out"), (("--unit", "customer"), "describe finds categories")):
        assert shell("init", "loans.parquet", "--label", "late", "--overwrite", *words) == 0
        assert f"no column names a record, by which {lost}: --id names it, and daskrado ingest --id" in shell.out
