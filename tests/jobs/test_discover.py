"""kind: discover and `daskrado describe` on a draft: what is found, what it costs, what is written."""

from __future__ import annotations

import json
import math
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import yaml
from command_line import Shell

import daskrado
from daskrado.errors import DataError, UsageError
from daskrado.jobs.load import load_job
from daskrado.ledger.ledger import Ledger
from daskrado.privacy.accountant import compose
from daskrado.privacy.relations import Relation
from daskrado.table.domain import Domain

DRAFT: dict[str, Any] = {
    "label": {"column": "sick", "positive": "yes", "negative": "no"},
    "columns": {
        "age": {"kind": "numeric", "lower": "...", "upper": "...", "bins": "..."},
        "level": {"kind": "numeric", "lower": "...", "upper": "..."},
        "spent": {"kind": "numeric", "lower": "...", "upper": "..."},
        "ward": {"kind": "categorical", "values": "..."},
        "code": {"kind": "categorical", "values": "..."},
        "smoker": {"kind": "boolean"},
        "seen": {"kind": "date", "lower": "...", "upper": "..."},
        "same": {"kind": "numeric", "lower": "...", "upper": "..."},
        "free": {"kind": "categorical", "values": "..."},
        "known": {"kind": "numeric", "lower": 0, "upper": 1},
    },
}
LIMIT = {"first_limit": {"epsilon": 40, "delta": 1e-4}}


def clinic(rows: int = 20_000) -> pd.DataFrame:
    draw = np.random.default_rng(5)
    wards = draw.choice(["a, b", "yes", "50: x", "rare"], rows, p=[0.5, 0.3, 0.1995, 0.0005])
    age = draw.integers(18, 91, rows)
    return pd.DataFrame(
        {
            "age": age,
            "level": draw.normal(4300.0, 20.0, rows),
            "spent": np.round(np.exp(draw.normal(2, 2.0, rows)), 2),
            "ward": np.where(draw.random(rows) < 0.1, None, wards),
            "code": draw.choice([1, 2, 7], rows),
            "smoker": draw.random(rows) < 0.3,
            "seen": pd.to_datetime("2020-01-01") + pd.to_timedelta(draw.integers(0, 365, rows), unit="D"),
            "same": 7,
            "free": [f"note {number}" for number in range(rows)],
            "known": draw.random(rows),
            "sick": np.where(draw.random(rows) < age / 200, "yes", "no"),
        }
    )


def job(**changes: Any) -> dict[str, Any]:
    keys = {"kind": "discover", "dataset": "d", "lake": clinic(), "domain": DRAFT, "output": "out", "ledger": LIMIT}
    protect = {"relation": "add_remove", "unit": "one patient"}
    return keys | {"protect": protect, "budget": {"epsilon": 1.0, "delta": 1e-6}} | changes


def test_bounds_bins_values_and_nulls_are_found() -> None:
    result = daskrado.run(job(lake=pa.Table.from_pandas(clinic())), write=False)  # types of Arrow say what is whole
    facts = result.value.facts
    assert (facts["age"]["lower"], facts["age"]["upper"]) == (18, 90)
    assert 8 <= len(facts["age"]["bins"]) <= 15
    assert 4180 < facts["level"]["lower"] < 4270  # far narrower than its power of two
    assert 4330 < facts["level"]["upper"] < 4420
    assert 0 <= facts["spent"]["lower"] <= 1
    assert 150 < facts["spent"]["upper"] < 10_000
    assert facts["spent"]["transform"] == "log1p"
    assert set(facts["ward"]["values"]) == {"a, b", "yes", "50: x"}  # ten patients in "rare" are not told
    assert facts["ward"]["nulls"] == {"fill": "a, b"}
    assert result.value.nulls["ward"] == pytest.approx(0.1, abs=0.01)
    assert sorted(facts["code"]["values"]) == [1, 2, 7]
    assert facts["smoker"] == {"nulls": {"fill": False, "flag": False}}  # rare ones have no feature of their own
    cell = 4 * timedelta(days=2**14 / 128)  # four of the second grid in its power of two
    assert date(2020, 1, 1) - cell <= facts["seen"]["lower"] <= date(2020, 2, 1)
    assert date(2020, 12, 1) <= facts["seen"]["upper"] <= date(2020, 12, 31) + cell
    same = facts["same"]  # constant; in one table of twenty noise alone adds cells somewhere
    assert isinstance(same, str) or 7 in (same["lower"], same["upper"])
    assert isinstance(facts["free"], str)
    assert "known" not in facts
    assert result.value.rows == pytest.approx(20_000, rel=0.02)
    domain = Domain.model_validate(result.value.content())
    assert domain.described is not None
    assert domain.described.rows == 20_000
    assert "free" not in domain.columns
    assert not any("note" in line or "rare" in line for line in result.lines)


def test_the_statement_and_the_ledger_have_all_that_was_drawn(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    result = daskrado.run(job(), write=False, ledger=path)
    entries = Ledger.open(path).entries()
    assert len(entries) == 3
    total = compose([entry.event for entry in entries], 1e-6)
    assert result.statement.delta == 1e-6
    assert 0.99 < float(total.epsilon) <= result.statement.epsilon + 1e-12 <= 1.0 + 1e-9
    leaks = [entry.event.delta for entry in entries if getattr(entry.event, "delta", 0)]  # type: ignore[union-attr]
    assert [float(leak) for leak in leaks] == [1e-8]


@pytest.mark.parametrize("odd", [None, {"code": None, "age": None}, {"code": "seven", "age": "x", "smoker": "x"}])
def test_a_type_that_pandas_finds_in_values_shows_nowhere(odd: dict[str, Any] | None) -> None:
    """One null makes floats of whole numbers, one text makes objects of them: what is found looks the same."""
    frame = clinic()
    whole = frame if odd is None else pd.concat([frame, pd.DataFrame([{**frame.iloc[0].to_dict(), **odd}])])
    assert odd is None or whole["code"].dtype != frame["code"].dtype
    facts = daskrado.run(job(lake=whole), write=False).value.facts
    assert sorted(facts["code"]["values"]) == [1, 2, 7]
    assert {type(value) for value in facts["code"]["values"]} == {int}
    assert {type(facts["age"][end]) for end in ("lower", "upper")} == {float}
    assert facts["smoker"] == {"nulls": {"fill": False, "flag": False}}


@pytest.mark.parametrize(("relation", "factor"), [("add_remove", 1), ("replace_one", 2)])
@pytest.mark.parametrize("rows", [1, 4])
def test_noise_is_that_of_the_sensitivity(relation: str, factor: int, rows: int) -> None:
    """L2: k sqrt(columns) where a unit is added, k sqrt(2 columns) where it is replaced."""
    made = load_job(job(protect={"relation": relation, "unit": "one patient", "rows_per_unit": rows}))
    counted = {"rough": 7, "fine": 5}  # five numbers and dates; a boolean and the label
    for role, columns in counted.items():
        std = made.noise(role, made.mus[role]).noise_std()["cells"]  # type: ignore[attr-defined]
        assert std * made.mus[role] == pytest.approx(rows * math.sqrt(factor * columns), rel=1e-6)  # type: ignore[attr-defined]
    law = made.values_of(made.mus["values"])  # type: ignore[attr-defined]
    assert (law.columns, law.bound, law.relation) == (3, rows, Relation(relation))


def test_nothing_depends_on_a_row_that_no_text_can_hold() -> None:
    """Long, unprintable and broken texts are no values: the run neither fails nor tells of them."""
    odd = pa.array([b"ok"] * 3000 + [b"\xff\xfe", b"x" * 5000, b"a\nb", b""]).cast(pa.binary())
    text = pa.Array.from_buffers(pa.string(), len(odd), odd.buffers())
    other = pa.array(["x"] * 1500 + ["y"] * 1504)
    table = pa.table({"t": text, "u": other, "y": pa.array([True, False] * 1502)})
    draft = {
        "label": {"column": "y", "positive": True, "negative": False},
        "columns": {"t": {"kind": "categorical", "values": "..."}, "u": {"kind": "categorical", "values": "..."}},
    }
    result = daskrado.run(job(lake=table, domain=draft), write=False)
    assert list(result.value.values["t"]) == ["ok"]
    assert result.value.facts["u"]["values"] == ["x", "y"]


def test_a_column_that_can_have_no_categories_is_refused_before_anything_is_spent(tmp_path: Path) -> None:
    draft = DRAFT | {"columns": {"seen": {"kind": "categorical", "values": "..."}}}
    with pytest.raises(DataError, match=r"column 'seen' is timestamp.*; say kind: date"):
        daskrado.run(job(domain=draft), write=False, ledger=tmp_path / "ledger.sqlite")
    assert not Ledger.open(tmp_path / "ledger.sqlite").entries()


def test_what_the_draft_gives_stays_and_is_shown() -> None:
    age = {"kind": "numeric", "lower": 10, "upper": "..."}
    lake = pa.Table.from_pandas(clinic())
    result = daskrado.run(job(lake=lake, domain=DRAFT | {"columns": {"age": age}}), write=False)
    assert result.value.facts["age"] == {
        "upper": 90,
        "nulls": {"fill": result.value.facts["age"]["nulls"]["fill"], "flag": False},
    }
    assert any(line.startswith("age: 10 to 90; ") for line in result.lines)


def test_an_open_label_is_told_and_stays_open() -> None:
    draft = DRAFT | {"label": {"column": "sick", "positive": "...", "negative": "..."}}
    result = daskrado.run(job(domain=draft), write=False)
    assert set(result.value.values["sick"]) == {"yes", "no"}
    assert any("sick (label)" in line and "say which" in line for line in result.lines)
    assert result.value.content()["label"]["positive"] == "..."


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"budget": {"epsilon": 1.0}}, "give budget.delta"),
        ({"protect": {"relation": "label_flip", "unit": "x"}}, "add_remove or replace_one"),
        (
            {"protect": {"relation": "add_remove", "unit": {"column": "code", "name": "x"}}},
            "how must be sample to find the values of ward, code, free",
        ),
        (
            {"domain": {**DRAFT, "columns": {"known": {"kind": "numeric", "lower": 0, "upper": 1}}}},
            "nothing in it is",
        ),
        ({"domain": {"label": 1}}, "is no domain"),
    ],
)
def test_what_cannot_be_found_is_refused_in_one_line(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        load_job(job(**changes))


def test_the_command_fills_the_draft_and_later_statements_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shell = Shell(monkeypatch, capsys)

    def command(line: str) -> str:
        assert shell(*line.split()) == 0, shell.err
        return shell.out

    monkeypatch.chdir(tmp_path)
    clinic().drop(columns="seen").to_csv("visits.csv", index=False)
    command("ingest visits.csv --out lake --text code")
    command("init lake --label sick --positive yes --drop free --drop same --bins --dataset lake")
    text = (tmp_path / "domain.yaml").read_text()
    assert "..." in text
    (tmp_path / "domain.yaml").write_text(text.replace("columns:", "# my own words\ncolumns:"))
    assert "epsilon = 0." in command("describe lake --domain domain.yaml --epsilon 0.5")
    assert "# my own words" in (tmp_path / "domain.yaml").read_text()
    domain = Domain.load("domain.yaml")
    assert domain.described is not None
    manifest = json.loads((tmp_path / "runs/lake-describe/manifest.json").read_text())
    assert domain.described.run == manifest["run"]
    assert Domain.load("runs/lake-describe/domain.yaml").columns == domain.columns
    assert f"run {domain.described.run}" in command("plan pipeline.yaml")
    command("run pipeline.yaml")
    learned = json.loads((tmp_path / "runs/lake/manifest.json").read_text())
    assumed = learned["charges"][0]["statement"]["assumptions"]
    about = [line for line in assumed if "chosen by looking at" in line]
    assert len(about) == 1
    assert domain.described.run in about[0]
    assert "charged epsilon 0." in about[0]


def test_block_style_drafts_are_filled_in_place(tmp_path: Path) -> None:
    from daskrado.table.drafts import filled

    draft = """\
# head
label: {column: y, positive: 1, negative: 0}
columns:
  age:            # years
    kind: numeric
    lower: ...    # least
    upper: ...
  ward:
    kind: categorical
    values: ...
  gone:
    kind: numeric
    lower: ...
    upper: ...
id: visit
"""
    facts: dict[str, Any] = {
        "age": {"lower": 1, "upper": 2.5, "nulls": {"fill": 2}},
        "ward": {"values": ["a: b", "no", "x, y", "1"]},
        "gone": "constant",
    }
    text = filled(draft, facts, ["found"], "described: {}\n")
    content = yaml.safe_load(text)
    assert content["columns"] == {
        "age": {"kind": "numeric", "lower": 1, "upper": 2.5, "nulls": {"fill": 2}},
        "ward": {"kind": "categorical", "values": ["a: b", "no", "x, y", "1"]},
    }
    assert content["id"] == "visit"
    assert text.startswith("# found\n# head\n")
    assert "# years" in text
    assert "# least" in text
    assert "# no feature: 'gone', constant" in text


def test_a_describe_that_was_killed_fills_the_draft_when_it_is_resumed(
    tmp_path: Path, killed: Any, own_ledger: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Killed when the second release is kept: the draft is as it was, and resume fills it like an undisturbed run."""
    monkeypatch.chdir(tmp_path)
    shell = Shell(monkeypatch, capsys)
    clinic(3000).drop(columns="seen").to_csv("visits.csv", index=False)
    assert shell("ingest", "visits.csv", "--out", "lake", "--text", "code") == 0
    assert shell("init", "lake", "--label", "sick", "--positive", "yes", "--dataset", "lake") == 0
    draft = Path("domain.yaml").read_text()
    words = ["daskrado", "describe", "lake", "--domain", "domain.yaml", "--epsilon", "2"]
    killed(
        f"import sys, os\nos.chdir({str(tmp_path)!r})\nsys.argv = {words!r}\n"
        "import daskrado.ledger.journal as journal\nkeep, done = journal.Journal.keep, []\n"
        "def dying(self, name, arrays):\n    keep(self, name, arrays)\n    done.append(name)\n"
        "    if len(done) == 2: os.kill(os.getpid(), signal.SIGKILL)\n"
        "journal.Journal.keep = dying\nfrom daskrado.cli.main import main\nmain()\n"
    )
    assert Path("domain.yaml").read_text() == draft
    run = Ledger.open(own_ledger, create=False).entries()[0].run
    assert shell("resume", run[:12]) == 0, shell.err
    assert "domain.yaml: " in shell.out
    domain = Domain.load("domain.yaml")
    assert domain.described is not None
    assert domain.described.run == run
    assert domain.columns == Domain.load("runs/lake-describe/domain.yaml").columns
    assert "fills" not in Path("runs/lake-describe/manifest.json").read_text()


def test_a_draft_that_was_filled_meanwhile_or_is_gone_is_left_alone(tmp_path: Path) -> None:
    from daskrado.jobs.found_domain import write_draft

    found = daskrado.run(job(), write=False).value
    (tmp_path / "d.yaml").write_text(
        "label: {column: sick, positive: 1, negative: 0}\ncolumns: {age: {kind: boolean}}\n"
    )
    before = (tmp_path / "d.yaml").read_text()
    assert "nothing in it is open" in write_draft(tmp_path / "d.yaml", found)[0]
    assert (tmp_path / "d.yaml").read_text() == before
    (line,) = write_draft(tmp_path / "gone.yaml", found)
    assert "not written" in line
    assert "domain.yaml of the output folder" in line


def test_units_without_a_record_id_are_told_what_to_do() -> None:
    frame = clinic(500).assign(patient=np.arange(500) // 2)
    unit = {"relation": "add_remove", "unit": {"column": "patient", "name": "one patient", "how": "sample"}}
    with pytest.raises(UsageError, match=r"the values of ward, code.* the domain names no id: .* ingest --id row_id"):
        load_job(job(lake=frame, protect=unit))
    numbers = DRAFT | {"columns": {"age": DRAFT["columns"]["age"]}}  # bounds alone need no id
    spread = {"relation": "add_remove", "unit": {"column": "patient", "name": "one patient"}}
    daskrado.run(job(lake=frame, protect=spread, domain=numbers), write=False)


def test_a_category_called_other_is_in_the_catch_all() -> None:
    """KDDCup99 has a service of that name; two features cannot."""
    draw = np.random.default_rng(3)
    frame = clinic(6000).assign(ward=draw.choice(["other", "north", "south"], 6000))
    draft = DRAFT | {"columns": {"ward": {"kind": "categorical", "values": "..."}}}
    found = daskrado.run(job(lake=frame, domain=draft), write=False).value
    assert found.facts["ward"]["values"] == ["north", "south"]
    assert found.values["ward"]["other"] == pytest.approx(1 / 3, abs=0.1)  # and still told
    domain = Domain.model_validate(found.content() | {"norm_bound": 2.0})
    assert "ward=other" in domain.feature_names
