"""Contracts over every kind of job: one envelope, results without anything private, the command line as Python."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pandas as pd
import pytest
import yaml
from click.testing import CliRunner
from every_kind import make_days, write_draft
from report_pages import check_page

import daskrado
from daskrado.cli.main import cli
from daskrado.jobs.base import Job, Run
from daskrado.jobs.load import load_job
from daskrado.jobs.manifest import manifest_schema
from daskrado.jobs.outcome import Result
from daskrado.lake.make import make_lake
from daskrado.lake.ownership import by_a_run
from daskrado.lake.scan import Lake
from daskrado.models.linear import LinearModel
from daskrado.privacy.statement import PrivacyStatement
from daskrado.registry import kinds
from daskrado.statistics.base import Summary
from daskrado.table.domain import Domain

PATIENT = {"relation": "add_remove", "unit": "one patient"}
REPLACED = {"relation": "replace_one", "unit": "one patient"}
BOTH = {"epsilon": 1.0, "delta": 1e-6}
SECRET = 41.123456789  # a body mass index that one patient has, and nobody else
PATIENT_ID = "987654321987"
EXAMPLES: dict[str, dict[str, Any]] = {
    "learn": {"protect": PATIENT, "budget": BOTH},
    "continual": {
        "protect": PATIENT,
        "budget": BOTH,
        "lake": "days",
        "blocks": {"column": "day"},
        "continual": {"horizon": 5},
    },
    "rados": {"sets": [{"name": "h", "kind": "hadamard", "count": 16, "protect": REPLACED, "budget": BOTH}]},
    "adaboost": {"private": False, "rounds": 3},
    "labels": {"protect": {"unit": "one label"}, "budget": {"epsilon": 1.0}},
    "bags": {
        "protect": {"unit": "one label"},
        "budget": {"epsilon": 1.0},
        "bags": "ward",
        "values": ["cardiology", "maternity", "medicine", "oncology", "surgery"],
    },
    "margins": {"protect": PATIENT, "budget": BOTH, "models": ["model.json"], "bins": 20},
    "describe": {"protect": PATIENT, "budget": BOTH},
    "discover": {"protect": PATIENT, "budget": BOTH, "domain": "draft.yaml"},
    "evaluate": {"protect": PATIENT, "budget": BOTH, "model": "model.json", "by": ["sex"]},
    "local": {
        "protect": {"relation": "label_flip", "unit": "one label"},
        "budget": {"epsilon": 1.0},
        "reports": {"kind": "labels", "epsilon": 1.0},
    },
    "queries": {
        "protect": PATIENT,
        "budget": {"epsilon": 2.0, "delta": 1e-6},
        "universe": ["sex", "smoker"],
        "updates": 3,
        "queries": [{"sex": "F"}, {"smoker": True}],
    },
    "teachers": {
        "protect": PATIENT,
        "budget": {"epsilon": 20.0, "delta": 1e-6},
        "teachers": {"count": 20, "learner": {"kind": "moments"}},
        "answers": {"queries": 30},
        "student": {"learner": {"kind": "moments"}},
        "queries": "queries",
    },
}
every_kind = pytest.mark.parametrize("kind", sorted(EXAMPLES))


@pytest.fixture(scope="module")
def ward(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a lake, its domain, a model and public queries."""
    folder = tmp_path_factory.mktemp("ward")
    domain = Domain.load(make_lake(folder / "lake", rows=2000, features=12, partitions=2, seed=7))
    write_draft(folder / "lake.yaml")
    weights = np.linspace(-1, 1, domain.width)
    LinearModel(domain, weights, PrivacyStatement.none(), "test", {}).save(folder / "model.json")
    make_lake(folder / "queries", rows=30, features=12, partitions=1, seed=9)
    make_days(folder)
    return folder


def content(kind: str, ward: Path, output: Path) -> dict[str, Any]:
    """The keys of an example, as a file beside the lake would write them."""
    common = {"kind": kind, "dataset": "ward", "lake": "lake", "domain": "lake.yaml", "output": str(output)}
    if kind != "adaboost":
        common["ledger"] = {"first_limit": {"epsilon": 40, "delta": 1e-5}}
    return common | EXAMPLES[kind]


@pytest.fixture
def pipeline(kind: str, ward: Path, tmp_path: Path) -> Path:
    path = ward / f"{kind}.yaml"
    path.write_text(yaml.safe_dump(content(kind, ward, tmp_path / "out")))
    return path


def test_every_kind_is_under_contract() -> None:
    """The kinds are found by walking the package: one that nothing imports is missing here and fails."""
    ours = {name for name, job in kinds(Job, "daskrado.jobs").items() if job.__module__.startswith("daskrado.jobs.")}
    assert {name for name in ours if " " not in name} == set(EXAMPLES)


@every_kind
def test_a_kind_publishes_one_envelope_and_the_command_line_says_the_same(
    kind: str, pipeline: Path, tmp_path: Path
) -> None:
    result = daskrado.run(pipeline)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    jsonschema.validate(manifest, manifest_schema())
    assert (manifest["kind"], manifest["run"], manifest["dataset"]) == (kind, result.run, "ward")
    assert manifest["privacy_in_words"] == result.statement.sentence()
    listed = {entry["name"] for entry in manifest["files"]}
    there = {p.relative_to(tmp_path / "out").as_posix() for p in (tmp_path / "out").rglob("*") if p.is_file()}
    assert there == listed | {"manifest.json", "report.html"}
    assert by_a_run(tmp_path / "out") is None  # so that --overwrite may replace it
    report = (tmp_path / "out" / "report.html").read_text()
    assert result.statement.sentence() in report.replace("&#39;", "'")
    titles = [title for title in check_page(report).ids if title.startswith("s")]
    assert titles[0] == "s1-in-short"
    assert any("what-this-means-for-one-person" in title for title in titles) == result.statement.private
    done = CliRunner().invoke(cli, ["run", str(pipeline), "--out", str(tmp_path / "again")], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[0] == result.lines[0]
    planned = CliRunner().invoke(cli, ["plan", str(pipeline)], catch_exceptions=False)
    assert planned.exit_code == 0
    assert "data set    ward" in planned.stdout
    assert "guarantee" in planned.stdout


def held(thing: Any, seen: set[int]) -> Iterator[Any]:
    """Everything that an object holds, through its attributes and containers."""
    if id(thing) in seen:
        return
    seen.add(id(thing))
    yield thing
    parts: list[Any] = []
    if isinstance(thing, dict):
        parts = [*thing.keys(), *thing.values()]
    elif isinstance(thing, list | tuple | set | frozenset):
        parts = list(thing)
    elif dataclasses.is_dataclass(thing):
        parts = [getattr(thing, field.name, None) for field in dataclasses.fields(thing)]
    parts += [*vars(thing).values()] if hasattr(thing, "__dict__") else []
    for part in parts:
        if not isinstance(part, type):
            yield from held(part, seen)


@every_kind
def test_a_result_holds_nothing_private(kind: str, ward: Path, tmp_path: Path) -> None:
    """Rows given as a frame: nothing of it in repr, HTML, pickle, attributes or a copy."""
    frame = pd.read_parquet(ward / "lake")
    frame.loc[frame.index[17], "bmi"] = SECRET
    frame.loc[frame.index[17], "patient_id"] = int(PATIENT_ID)
    frame["day"] = frame.index % 2
    keys = content(kind, ward, tmp_path / "out") | {"lake": frame}
    keys["domain"] = str(ward / keys["domain"])
    for key in ("models", "queries", "model"):
        if kind in ("margins", "teachers", "evaluate") and key in keys:
            keys[key] = [str(ward / name) for name in keys[key]] if key == "models" else str(ward / keys[key])
    result = daskrado.run(keys)
    assert isinstance(result, Result)
    shown = (repr(result), result._repr_html_(), "\n".join(result.lines))
    assert len(repr(result)) < 400
    assert "\n" not in repr(result)
    for text in shown:
        assert PATIENT_ID not in text
        assert "41.1234" not in text
    stored = pickle.dumps(result)
    assert b"DataFrame" not in stored
    assert struct.pack("<d", SECRET) not in stored
    assert PATIENT_ID.encode() not in stored
    assert struct.pack("<q", int(PATIENT_ID)) not in stored
    assert pickle.loads(stored).run == copy.deepcopy(result).run == result.run
    secrets = (pd.DataFrame, Lake, Job, Run, Summary)
    found = [type(thing).__name__ for thing in held(result, set()) if isinstance(thing, secrets)]
    assert found == []
    assert PATIENT_ID not in repr(load_job(keys))


@every_kind
def test_a_report_that_fails_is_a_note_and_loses_nothing(
    kind: str, pipeline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*given: object) -> str:
        raise KeyError("rados")

    monkeypatch.setattr("daskrado.jobs.publish.page_of", broken)
    result = daskrado.run(pipeline)
    assert "report.html could not be drawn (KeyError); everything else is complete" in result.notes
    assert (tmp_path / "out" / "manifest.json").is_file()
    assert not (tmp_path / "out" / "report.html").exists()
