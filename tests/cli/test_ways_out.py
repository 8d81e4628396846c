"""What newcomers write: each line says what is wrong, names the place, and says what to do."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from command_line import Shell

DOMAIN = """\
label: {column: sick, positive: "Yes", negative: "No"}
id: visit_id
columns:
  age: {kind: numeric, lower: 0, upper: 120}
  weight: {kind: numeric, lower: 30, upper: 200, nulls: {fill: 80}}
  sex: {kind: categorical, values: [F, M]}
"""
PIPELINE = """\
dataset: v
lake: lake
domain: domain.yaml
output: runs/v
protect: {relation: add_remove, unit: one row}
budget: {epsilon: 1.0, delta: 1.0e-6}
ledger: {first_limit: {epsilon: 10, delta: 1.0e-5}}
"""
TRUTHS = "YAML reads yes, no, on, off, true and false as truths: quote them"
SEX = "  sex: {kind: categorical, values: [F, M]}"

# what somebody did: what is replaced in the domain, what by, what the line says
IN_DOMAINS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "0/1 as boolean": (SEX, "  smoker: {kind: boolean}", ("'smoker' is int64", "values: [0, 1]")),
    "text as boolean": (SEX, "  ward: {kind: boolean}", ("'ward' is", "values: [0, 1] or values: [N, Y]")),
    "yes/no without quotes": ('"Yes", negative: "No"', "yes, negative: no", ("[True, False]", TRUTHS)),
    "NO for Norway": ("[F, M]", "[NO, SE]", ("[False, 'SE']", "quote them all", "as truths")),
    "a date as a number": (SEX, "  day: {kind: numeric, lower: 0, upper: 9}", ("'day' is", "say kind: date")),
    "a date of another form": (
        SEX,
        "  day: {kind: date, lower: 1.2.2026, upper: 2026-09-01}",
        ("columns.day.lower", "'1.2.2026'", "2026-01-31"),
    ),
    "numbers as text": (SEX, "  code: {kind: numeric, lower: 0, upper: 9}", ("'code' is", "--missing for each mark")),
    "text values as numbers": (SEX, "  code: {kind: categorical, values: [1, 2]}", ("[1, 2]", "quote them, as text")),
    "a decimal comma": ("lower: 30", 'lower: "30,5"', ("columns.weight.lower", "'30,5'", "write a point")),
    "bins that touch a bound": ("120}", "120, bins: [0, 50]}", ("strictly between lower 0 and upper 120", "drop")),
    "bins that fall": ("120}", "120, bins: [50, 20]}", ("rising list", "[50.0, 20.0]")),
    "a number of bins": ("120}", "120, bins: 5}", ("columns.age.bins", "a list in brackets (got 5)")),
    "bounds swapped": ("lower: 0, upper: 120", "lower: 120, upper: 0", ("lower 120", "swap them")),
    "a bound left out": (", upper: 120", "", ("columns.age.upper: missing", "... leaves it to daskrado describe")),
    "a bound left open": ("upper: 120", "upper: ...", ("still open (...): columns.age.upper", "daskrado describe")),
    "an unknown kind": ("{kind: numeric, lower: 0", "{kind: number, lower: 0", ("got 'number'", "mean numeric?")),
    "an unknown key": ("upper: 120", "uper: 120", ("columns.age.uper: unknown key", "did you mean upper?")),
    "a column misspelt": ("  age:", "  agee:", ("column 'agee' is missing", "did you mean age?")),
    "the label's column misspelt": ("column: sick", "column: sik", ("column 'sik' is missing", "did you mean sick?")),
    "a null among values": ("[F, M]", "[F, M, null]", ("columns.sex.values", "nulls: {fill: VALUE}")),
    "values as one text": ("[F, M]", '"F, M"', ("columns.sex.values", "a list in brackets (got 'F, M')")),
    "a value twice": ("[F, M]", "[F, F]", ("values repeats F", "list each category once")),
    "nulls by a word": ("{fill: 80}", "keep", ("columns.weight.nulls", "{fill: VALUE}", "got 'keep'")),
    "both sides alike": ('negative: "No"', 'negative: "Yes"', ("both 'Yes'", "values of its own")),
    "one side alone": (', negative: "No"', "", ("negative is missing", "or rest", "above")),
    "a threshold on text": ('positive: "Yes", negative: "No"', "above: 3", ("'sick' is", "positive and negative")),
    "the label as a feature": (
        SEX,
        '  sick: {kind: categorical, values: ["Yes"]}',
        ("both the label and a feature", "delete it below columns"),
    ),
    "columns as a list": (DOMAIN.partition("columns:")[2], " [age, sex]\n", ("columns: input should be a mapping",)),
    "tabs": ("  age:", "\tage:", ("line 4", "blanks, not with tabs")),
}
# the same of the pipeline
IN_PIPELINES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "CSV as lake": ("lake: lake", "lake: v.csv", ("v.csv", "daskrado ingest makes a lake of CSV")),
    "a lake that is not there": ("lake: lake", "lake: lakee", ("lakee: no such file", "did you mean lake?")),
    "a pipeline as domain": ("domain.yaml", "p.yaml", ("is a pipeline, not a domain", "its domain is")),
    "an unknown key": ("budget:", "budgets:", ("budgets: unknown key", "did you mean budget?")),
    "a word that is nearly allowed": ("add_remove", "ad_remove", ("got 'ad_remove'", "did you mean add_remove?")),
    "a kind misspelt": ("dataset: v", "kind: lern\ndataset: v", ("kind 'lern' is unknown", "did you mean learn?")),
    "a learner misspelt": ("dataset: v", "learner: gradiant\ndataset: v", ("'gradiant'", "did you mean gradient?")),
    "a comma in epsilon": ("epsilon: 1.0", 'epsilon: "1,0"', ("budget.epsilon", "write a point, not a comma")),
    "an epsilon below 0": ("epsilon: 1.0", "epsilon: -1", ("budget.epsilon", "greater than", "got -1")),
    "a blank in the data set": ("dataset: v", "dataset: my data", ("dataset: may hold letters, digits",)),
    "the unit's column misspelt": (
        "unit: one row",
        "unit: {column: patint, name: one patient}",
        ("protect.unit.column 'patint'", "did you mean patient?"),
    ),
    "neither protection nor a word on it": (
        "protect: {relation: add_remove, unit: one row}\n",
        "",
        ("protect and budget are missing", "private: false"),
    ),
    "no privacy with a budget": ("dataset: v", "private: false\ndataset: v", ("drop protect and budget, or",)),
    "a share in percent": ("dataset: v", "holdout: 20\ndataset: v", ("holdout", "got 20", "0.2 for 20 %")),
    "a group misspelt": (
        "dataset: v",
        "holdout: 0.2\nevaluate: {by: sexx}\ndataset: v",
        ("'sexx' is no column", "did you mean sex?"),
    ),
    "class weights misspelt": ("dataset: v", "class_weight: balancd\ndataset: v", ("is balanced,", "got 'balancd'")),
    "a threshold's rule misspelt": (
        "dataset: v",
        "holdout: 0.2\nevaluate: {threshold: f2}\ndataset: v",
        ("evaluate.threshold", "f1, youden, {cost: 5}", "got 'f2'"),
    ),
}
ON_THE_COMMAND_LINE: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "a domain as pipeline": (("plan", "domain.yaml"), ("is a domain, not a pipeline", "daskrado init writes")),
    "a pipeline as domain": (("describe", "lake", "--domain", "p.yaml", "--epsilon", "1"), ("its domain is",)),
    "a CSV as pipeline": (("run", "v.csv"), ("is no pipeline", "daskrado init")),
    "a folder as pipeline": (("run", "lake"), ("lake: cannot be read", "give a file")),
    "a CSV as lake": (("init", "v.csv", "--label", "sick"), ("daskrado ingest makes a lake",)),
    "a Parquet file to ingest": (("ingest", "lake/p.parquet", "--out", "l"), ("is Parquet already", "daskrado init")),
    "a workbook to ingest": (("ingest", "book.xlsx", "--out", "l"), ("save the sheet as CSV",)),
    "a CSV of another encoding": (("ingest", "latin.csv", "--out", "l"), ("give --encoding, such as latin-1",)),
    "a pipeline as model": (
        ("predict", "p.yaml", "lake", "--out", "s"),
        ("give model.json, or the folder of a run",),
    ),
    "a label that is not there": (("init", "lake", "--label", "sik"), ("--label sik", "did you mean sick?")),
    "no label": (("init", "lake"), ("--label is missing", "one of visit_id, patient")),
    "a word for a truth": (("init", "lake", "--label", "flag", "--positive", "ja"), ("'ja'", "true or false")),
    "a command misspelt": (("descibe", "lake"), ("did you mean describe?",)),
    "an option misspelt": (("plan", "p.yaml", "--sett", "x"), ("Did you mean '--set'?",)),
    "a change without a value": (("plan", "p.yaml", "--set", "budget"), ("must be KEY=VALUE, such as",)),
    "a change of an unknown key": (("plan", "p.yaml", "--set", "budget.epsilom=2"), ("did you mean epsilon?",)),
}


@pytest.fixture
def desk(shell: Shell) -> Shell:
    """A working folder with a lake, a CSV, a domain and a pipeline."""
    draw, rows = np.random.default_rng(1), 40
    frame = pd.DataFrame(
        {
            "visit_id": np.arange(rows),
            "patient": draw.integers(0, 9, rows),
            "age": draw.integers(18, 90, rows),
            "weight": draw.normal(80, 9, rows),
            "smoker": draw.integers(0, 2, rows),
            "sex": draw.choice(["F", "M"], rows),
            "ward": draw.choice(["north", "south"], rows),
            "day": pd.Timestamp("2026-01-01") + pd.to_timedelta(draw.integers(0, 90, rows), "D"),
            "code": draw.choice(["1", "2", "x"], rows),
            "sick": draw.choice(["Yes", "No"], rows),
            "flag": draw.integers(0, 2, rows).astype(bool),
        }
    )
    Path("lake").mkdir()
    frame.to_parquet("lake/p.parquet")
    frame.to_csv("v.csv", index=False)
    Path("domain.yaml").write_text(DOMAIN)
    Path("p.yaml").write_text(PIPELINE)
    Path("book.xlsx").write_bytes(b"PK\x03\x04" + b"\x00" * 100)
    Path("latin.csv").write_bytes("name,b\nJosé,2\nA,3\n".encode("latin-1"))
    return shell


def refused(desk: Shell, said: tuple[str, ...], *words: Any) -> None:
    """One line with all that it should say, and nothing left behind."""
    before = sorted(os.listdir())
    assert desk(*words) in (1, 2), desk.out
    assert desk.out == ""
    (line,) = desk.err.strip().splitlines()
    for part in said:
        assert part in line, line
    assert sorted(os.listdir()) == before


@pytest.mark.parametrize("mistake", IN_DOMAINS)
def test_mistakes_in_a_domain(desk: Shell, mistake: str) -> None:
    old, new, said = IN_DOMAINS[mistake]
    assert DOMAIN.count(old) >= 1
    Path("domain.yaml").write_text(DOMAIN.replace(old, new, 1))
    refused(desk, said, "plan", "p.yaml")


@pytest.mark.parametrize("mistake", IN_PIPELINES)
def test_mistakes_in_a_pipeline(desk: Shell, mistake: str) -> None:
    old, new, said = IN_PIPELINES[mistake]
    assert PIPELINE.count(old) == 1
    Path("q.yaml").write_text(PIPELINE.replace(old, new))
    refused(desk, said, "plan", "q.yaml")


@pytest.mark.parametrize("mistake", ON_THE_COMMAND_LINE)
def test_mistakes_on_the_command_line(desk: Shell, mistake: str) -> None:
    words, said = ON_THE_COMMAND_LINE[mistake]
    refused(desk, said, *words)


def test_what_depends_on_values_is_told_by_the_plan_alone(desk: Shell) -> None:
    """A label in another case and nulls make rows count as nothing: no run may say so, the plan says how it is."""
    Path("domain.yaml").write_text(DOMAIN.replace('"Yes"', '"yes"').replace("visit_id", "visitid"))
    assert desk("plan", "p.yaml") == 0
    assert re.search(r"label +values of sick must agree with the domain's to the letter", desk.out)
    assert re.search(r"nulls +a null in age, sex makes its row count as nothing; nulls: \{fill: VALUE\}", desk.out)
    assert re.search(r"id +'visitid' names no record: .*did you mean visit_id\?", desk.out)


BOMB = "a: &a [l,l,l,l,l,l,l,l,l]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (BOMB, ("plan", "bomb.yaml")),
        (BOMB + "dataset: *i\nlake: *i\ndomain: *i\n", ("run", "bomb.yaml")),
        (BOMB + "label: *i\ncolumns: {x: {kind: categorical, values: *i}}\n", ("plan", "bomb.yaml")),
        (BOMB, ("describe", "lake", "--domain", "bomb.yaml", "--epsilon", "1", "--dataset", "v")),
        (BOMB, ("run", "p.yaml", "--cluster", "bomb.yaml")),
        ("dataset: &a [*a]\n", ("plan", "bomb.yaml")),
    ],
)
def test_a_few_bytes_that_stand_for_billions_are_refused_at_once(
    desk: Shell, text: str, words: tuple[str, ...]
) -> None:
    Path("bomb.yaml").write_text(text)
    assert len(BOMB) < 353
    began = time.process_time()
    refused(desk, ("bomb.yaml", "write them out"), *words)
    assert time.process_time() - began < 60  # written out it would take the memory of many machines


def test_a_long_value_is_cut(desk: Shell) -> None:
    Path("q.yaml").write_text(PIPELINE.replace("add_remove", "x" * 5000))
    refused(desk, (f"(got '{'x' * 79}...)",), "plan", "q.yaml")
    Path("q.yaml").write_text(PIPELINE.replace("epsilon: 1.0", f"epsilon: {list(range(5000))}"))
    assert desk("plan", "q.yaml") == 2
    assert len(desk.err) < 200
