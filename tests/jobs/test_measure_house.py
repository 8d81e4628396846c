"""Margins, queries and local reports in the house: one manifest, one result without rows, one forward path."""

from __future__ import annotations

import copy
import enum
import hashlib
import json
import os
import pickle
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import yaml
from click.testing import CliRunner

import daskrado
from daskrado.cli.main import cli
from daskrado.errors import UsageError
from daskrado.jobs.base import Job, perform
from daskrado.jobs.load import load_job
from daskrado.jobs.local import LocalJob
from daskrado.jobs.manifest import manifest_schema
from daskrado.lake.scan import Lake
from daskrado.ledger.ledger import Ledger
from daskrado.models.linear import LinearModel
from daskrado.privacy import noise
from daskrado.privacy.accountant import compose, event_from_json
from daskrado.privacy.statement import PrivacyStatement
from daskrado.statistics.base import Summary
from daskrado.table.domain import Domain

Clinic = Callable[..., tuple[Path, Domain]]
Keys = Callable[..., dict[str, Any]]
PATIENT = {"relation": "replace_one", "unit": "one patient"}
SECRET = {"relation": "add_remove", "unit": "one patient"}
LABEL = {"relation": "label_flip", "unit": "one patient"}
BOTH = {"epsilon": 1.0, "delta": 1e-6}
COLUMNS = {
    "smoker": {"kind": "binary", "epsilon": 1.0},
    "ward": {"kind": "optimised_unary", "epsilon": 1.0},
    "age": {"kind": "number", "epsilon": 1.0},
}

JOBS: dict[str, dict[str, Any]] = {
    "margins": {"kind": "margins", "protect": SECRET, "budget": BOTH, "bins": 20},
    "pure margins": {"kind": "margins", "protect": PATIENT, "budget": {"epsilon": 1.0}, "bins": 20},
    "boosting": {"kind": "margins", "private": False, "boost": {"rounds": [2, 5], "rados": 16}},
    "queries": {
        "kind": "queries",
        "protect": SECRET,
        "budget": BOTH,
        "universe": ["smoker", "ward", "readmitted"],
        "updates": 4,
        "queries": [{}, {"smoker": True}, {"ward": "surgery", "readmitted": "yes"}],
        "synthetic_rows": 50,
    },
    "labels": {
        "kind": "local",
        "protect": LABEL,
        "budget": {"epsilon": 1.0},
        "reports": {"kind": "labels", "epsilon": 1.0},
    },
    "edges": {"kind": "local", "protect": PATIENT, "budget": BOTH, "reports": {"kind": "edges", **BOTH}},
    "columns": {
        "kind": "local",
        "protect": PATIENT,
        "budget": {"epsilon": 3.0},
        "reports": {"kind": "columns", "columns": COLUMNS},
    },
}
FACTS = {  # what the manifests of these kinds have always said
    "margins": {"noise_std", "bounds"},
    "queries": {
        *("cells", "updates_allowed", "threshold_rows", "lazy_error_95", "update_answer_std"),
        *("updates_used", "halted_at", "queries"),
    },
    "local": {"rows"},
}


@pytest.fixture
def keys(clinic: Clinic, tmp_path: Path) -> Keys:
    """``keys(name)``: the keys of a job, with a lake of its own output."""
    lake, domain = clinic(3000, 3)
    weights = np.linspace(-1, 1, domain.width)
    LinearModel(domain, weights, PrivacyStatement.none(), "test").save(tmp_path / "model.json")

    def get(name: str, **changes: Any) -> dict[str, Any]:
        content = {"dataset": "clinic", "lake": str(lake), "domain": domain, "output": str(tmp_path / "out")}
        content |= {"ledger": {"first_limit": {"epsilon": 50.0, "delta": 1e-3}}, **JOBS[name]}
        if "margins" in name:
            content["models"] = [str(tmp_path / "model.json")]
        return content | changes

    return get


def job_of(keys: Keys, name: str, **changes: Any) -> Job:
    """``encode columns`` and the like are the job of ``daskrado local encode``."""
    job = load_job(keys(name.removeprefix("encode "), **changes))
    if name.startswith("encode "):
        assert isinstance(job, LocalJob)
        return job.encoding()
    return job


def repeat_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same noise and secret keys after each call."""
    generator = np.random.default_rng(5)
    monkeypatch.setattr(noise, "_laplace", lambda s: lambda v: [x + round(generator.laplace(0, s)) for x in v])
    monkeypatch.setattr(noise, "_gaussian", lambda s: lambda v: [x + round(generator.normal(0, s)) for x in v])
    words = np.random.default_rng(6)
    monkeypatch.setattr(noise, "random_words", lambda count: words.integers(0, 2**64, size=count, dtype=np.uint64))
    monkeypatch.setattr(secrets, "token_bytes", np.random.default_rng(7).bytes)


def files(folder: Path) -> dict[str, bytes]:
    names = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in names}


def released(folder: Path) -> dict[str, bytes]:
    """The published files but manifest and report, which name times and runs."""
    return {name: data for name, data in files(folder).items() if not name.endswith(("manifest.json", "report.html"))}


@pytest.mark.parametrize("name", [*JOBS, "encode labels", "encode columns"])
def test_the_manifest_is_the_envelope_and_its_statement_is_what_was_charged(
    name: str, keys: Keys, own_ledger: Path, tmp_path: Path
) -> None:
    job = job_of(keys, name)
    result = perform(job)
    written = files(tmp_path / "out")
    manifest = json.loads(written[f"{job.prefix}manifest.json"])
    jsonschema.Draft202012Validator(manifest_schema()).validate(manifest)
    assert (manifest["kind"], manifest["run"]) == (job.name, result.run)
    assert {entry["name"]: (entry["sha256"], entry["bytes"]) for entry in manifest["files"]} == {
        path: (hashlib.sha256(data).hexdigest(), len(data))
        for path, data in written.items()
        if path not in (f"{job.prefix}manifest.json", f"{job.prefix}report.html")
    }
    assert FACTS[job.name.split()[0]] <= set(manifest["facts"])
    assert manifest["job"] == job.public_options()
    assert str(tmp_path) not in json.dumps(manifest)  # no address of this machine
    if name == "boosting":
        assert not manifest["charges"]
        assert not result.statement.private
        return
    (charge,) = manifest["charges"]
    (entry,) = Ledger.open(own_ledger).entries("clinic")
    event = event_from_json(charge["event"])
    assert (entry.event, entry.state) == (event, "published")
    statement, asked = manifest["statement"], job.privacy.budget  # type: ignore[union-attr]
    assert charge["statement"] == statement == result.statement.model_dump(mode="json")
    cost = float(compose([event], asked.delta).epsilon)
    assert cost - 2e-9 <= statement["epsilon"] <= asked.epsilon  # a ledger rounds up to nine decimals
    assert statement["delta"] <= asked.delta
    assert ("rows" in manifest["facts"]) == (statement["relation"] != "add_remove")
    assert "seconds" not in manifest  # they depend on the rows


@pytest.mark.parametrize("name", [*JOBS, "encode columns"])
def test_a_result_holds_released_values_and_no_rows(name: str, keys: Keys, tmp_path: Path) -> None:
    """The lake is a frame in memory, every row of which carries a mark."""
    marked = pd.read_parquet(keys("columns")["lake"])
    marked["patient_id"] = [f"MARK-{i}" for i in range(len(marked))]
    result = perform(job_of(keys, name, lake=marked), write=name.startswith("encode"))
    again, copied = pickle.loads(pickle.dumps(result)), copy.deepcopy(result)
    assert again.statement == copied.statement == result.statement
    assert len(repr(result)) < 400
    assert b"MARK-" not in pickle.dumps(result)
    for text in (repr(result), repr(result.value), result._repr_html_(), "\n".join(result.lines)):
        assert "MARK-" not in text
    for found in walked(result):
        assert not isinstance(found, pd.DataFrame | pa.Table | Lake | Summary | Job), type(found)
    assert not list(tmp_path.glob(".*"))  # nothing is kept beside the output


def walked(thing: Any, seen: set[int] | None = None) -> Iterator[Any]:
    """Everything that an object holds, once."""
    seen = set() if seen is None else seen
    if id(thing) in seen or isinstance(thing, type | enum.Enum):
        return
    seen.add(id(thing))
    yield thing
    parts: list[Any] = list(vars(thing).values()) if hasattr(thing, "__dict__") else []
    if isinstance(thing, dict):
        parts += [*thing, *thing.values()]
    elif isinstance(thing, list | tuple):
        parts += thing
    for part in parts:
        yield from walked(part, seen)


@pytest.mark.parametrize("name", JOBS)
def test_python_and_the_command_line_publish_and_say_the_same(
    name: str, keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = keys(name)
    content["domain"] = content["domain"].model_dump(mode="json")
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    repeat_noise(monkeypatch)
    result = daskrado.run(tmp_path / "job.yaml", ledger=tmp_path / "one.sqlite")
    repeat_noise(monkeypatch)
    ledger, out = ["--ledger", str(tmp_path / "two.sqlite")], tmp_path / "other"
    done = CliRunner().invoke(
        cli, ["run", str(tmp_path / "job.yaml"), "--output", str(out), *ledger], catch_exceptions=False
    )
    assert done.exit_code == 0
    assert released(tmp_path / "out") == released(out)
    said = [line.replace(str(out), str(tmp_path / "out")) for line in done.output.splitlines()]
    assert said[:-1] == list(result.lines[:-1])  # the last line has seconds
    assert said[-1].split(f"{os.sep}out: ")[-1] == result.lines[-1].split(f"{os.sep}out: ")[-1]


@pytest.mark.parametrize(
    ("name", "drawing"),
    [
        ("margins", "daskrado.jobs.margins.draw"),
        ("boosting", "daskrado.jobs.margins.draw"),
        ("queries", "daskrado.jobs.queries.draw"),
        ("columns", "daskrado.jobs.local.bars"),
        ("labels", "daskrado.jobs.report.bars"),
        ("encode columns", "daskrado.jobs.publish.page_of"),
    ],
)
def test_a_report_that_fails_is_a_note_and_loses_nothing(
    name: str, drawing: str, keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> str:
        raise RuntimeError("planted")

    repeat_noise(monkeypatch)
    job = job_of(keys, name)
    perform(job, ledger=tmp_path / "one.sqlite")
    whole = files(tmp_path / "out")
    repeat_noise(monkeypatch)
    monkeypatch.setattr(drawing, fail)
    result = perform(job, ledger=tmp_path / "two.sqlite", overwrite=True)
    left = files(tmp_path / "out")
    assert set(whole) - set(left) == {f"{job.prefix}report.html"}
    assert released(tmp_path / "out") == {k: v for k, v in whole.items() if k in released(tmp_path / "out")}
    jsonschema.Draft202012Validator(manifest_schema()).validate(json.loads(left[f"{job.prefix}manifest.json"]))
    (note,) = [note for note in result.notes if "could not be drawn" in note]
    assert note.startswith(f"{job.prefix}report.html could not be drawn (RuntimeError)")


def test_a_folder_of_encoded_reports_is_all_parquet_to_its_readers_and_may_be_replaced(
    keys: Keys, tmp_path: Path
) -> None:
    daskrado.encode_local(keys("columns"), tmp_path / "r")
    hidden = {"_local.json", "_manifest.json", "_report.html"}
    assert set(files(tmp_path / "r")) == hidden | {f"part-0000{k}.parquet" for k in range(3)}
    assert len(pd.read_parquet(tmp_path / "r")) == 3000
    again = daskrado.encode_local(keys("columns"), tmp_path / "r", overwrite=True)
    assert daskrado.estimate_local(tmp_path / "r")[0] == again.rows == again.value.reports == 3000


@pytest.mark.parametrize(
    ("function", "kind"),
    [(daskrado.measure_margins, "margins"), (daskrado.open_queries, "queries")],
)
def test_a_pipeline_of_another_kind_is_named(function: Any, kind: str, keys: Keys) -> None:
    with pytest.raises(UsageError, match=f"^pipeline: kind must be {kind} here, got local$"):
        function(keys("columns"))
