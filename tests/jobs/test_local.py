"""Local reports: encoded once at the source and charged there, read by anybody over any partitions."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner
from damaged_files import damaged_copy

from daskrado.cli.commands.local import local as command
from daskrado.errors import BudgetError, DataError, UsageError
from daskrado.jobs.base import perform
from daskrado.jobs.local import LocalJob
from daskrado.jobs.local import estimate_local as estimates
from daskrado.jobs.local import learn_local as learn
from daskrado.jobs.local_reports import ColumnReports, ReportFacts
from daskrado.jobs.outcome import Result
from daskrado.jobs.show import plan_lines
from daskrado.lake.report_columns import ColumnSums
from daskrado.lake.tally import tally
from daskrado.ledger.ledger import Ledger
from daskrado.models.linear import LinearModel
from daskrado.privacy.accountant import compose
from daskrado.privacy.local_numbers import LocalEdges
from daskrado.table.domain import Domain, Kernel
from daskrado.table.yaml_file import parse

Clinic = Callable[..., tuple[Path, Domain]]
SURVEY = {
    "kind": "columns",
    "columns": {
        "smoker": {"kind": "binary", "epsilon": 1.0},
        "prior_visits": {"kind": "kary", "epsilon": 1.0},
        "ward": {"kind": "unary", "epsilon": 1.0},
        "sex": {"kind": "optimised_unary", "epsilon": 1.0},
        "age": {"kind": "number", "epsilon": 1.0},
        "length_of_stay": {"kind": "number", "epsilon": 1.0},
    },
}


def content(clinic: Clinic, **changes: Any) -> dict[str, Any]:
    lake, domain = clinic(3000, 3)
    return {
        "dataset": "clinic",
        "lake": str(lake),
        "domain": domain,
        "output": "unused",
        "protect": {"relation": "replace_one", "unit": "one patient"},
        "budget": {"epsilon": 6.0},
        "ledger": {"first_limit": {"epsilon": 8.0}},
        "reports": SURVEY,
    } | changes


def pipeline(clinic: Clinic, **changes: Any) -> LocalJob:
    return parse(LocalJob, content(clinic, **changes), "test")


def encode(job: LocalJob, out: Path) -> Result:
    return perform(job.encoding(output=str(out)))


LABELS = {
    "protect": {"relation": "label_flip", "unit": "one patient"},
    "budget": {"epsilon": 2.0},
    "reports": {"kind": "labels", "epsilon": 2.0},
}
EDGES = {
    "budget": {"epsilon": 12.0, "delta": 1e-6},
    "reports": {"kind": "edges", "epsilon": 12.0, "delta": 1e-6},
    "ledger": {"first_limit": {"epsilon": 50.0, "delta": 0.1}},
}


def test_a_survey_is_charged_and_estimates_cover_the_truth(clinic: Clinic, tmp_path: Path, own_ledger: Path) -> None:
    made = pipeline(clinic)
    encoded = encode(made, tmp_path / "r")
    assert encoded.rows == encoded.value.reports == 3000
    assert encoded.budget[0]["share"] * encoded.budget[0]["limit_epsilon"] == pytest.approx(6)
    (entry,) = Ledger.open(own_ledger).entries("clinic")
    assert (entry.state, str(entry.relation), float(compose([entry.event], 0).epsilon)) == (
        "published",
        "replace_one",
        6.0,
    )
    columns = set(pq.read_schema(tmp_path / "r" / "part-00000.parquet").names)
    assert "bmi" not in columns  # what is not randomised is not reported
    assert "patient_id" not in columns
    count, found = estimates(tmp_path / "r", confidence=1 - 1e-6)
    assert count == 3000
    frame = pd.read_parquet(made.lake)
    truth = {
        "smoker": {"true": frame["smoker"].mean()},
        "ward": frame["ward"].value_counts(normalize=True).to_dict(),
        "sex": frame["sex"].value_counts(normalize=True).to_dict(),
        "age": {"mean": frame["age"].clip(18, 95).mean()},
        "length_of_stay": {"mean": frame["length_of_stay"].clip(0, 90).mean()},
        "prior_visits": {"[1,3)": ((frame["prior_visits"] >= 1) & (frame["prior_visits"] < 3)).mean()},
    }
    for name, expected in truth.items():
        values, estimate = found[name]
        for value, fraction in expected.items():
            k = values.index(value)
            assert estimate.low[k] - 0.01 <= fraction <= estimate.high[k] + 0.01, (name, value)


def test_estimates_have_the_same_bits_on_workers_and_in_any_partitioning(
    clinic: Clinic, tmp_path: Path, two_workers: Any
) -> None:
    made = pipeline(clinic)
    encode(made, tmp_path / "r")
    facts = ReportFacts.load(tmp_path / "r")
    assert isinstance(facts.reports, ColumnReports)
    count = ColumnSums(facts.reports.reported(facts.domain))
    here = tally(str(tmp_path / "r"), count.names, count)
    far = tally(str(tmp_path / "r"), count.names, count, client=two_workers)
    table = pq.read_table(tmp_path / "r")
    one = tmp_path / "one"
    one.mkdir()
    pq.write_table(table, one / "p.parquet", row_group_size=700)
    assert np.array_equal(here, far)
    assert np.array_equal(here, tally(str(one), count.names, count))
    assert here[0] == 3000


def test_labels_are_learned_from_without_bias(clinic: Clinic, tmp_path: Path) -> None:
    made = pipeline(clinic, **LABELS)
    encode(made, tmp_path / "r")
    model, released = learn(tmp_path / "r")
    frame, reports = pd.read_parquet(made.lake), pd.read_parquet(tmp_path / "r")
    kept = (frame["readmitted"].to_numpy() == reports["readmitted"].to_numpy()).mean()
    p = math.exp(2) / (1 + math.exp(2))
    assert kept == pytest.approx(p, abs=6 * math.sqrt(p * (1 - p) / 3000))
    assert np.array_equal(frame["age"], reports["age"])
    # the mean operator of the true labels lies within the stated noise of the released one
    intercept = made.domain.feature_names.index("intercept")
    signs = np.where(frame["readmitted"] == "yes", 1, -1)
    mean = released.values["mean"][intercept]
    assert abs(mean - signs.sum() / 1.0) < 6 * released.noise_std["mean"] + 0.2 * abs(signs.sum())
    agree = (model.predict(frame).to_numpy() == frame["readmitted"].to_numpy()).mean()
    assert agree > 0.6
    assert model.statement.relation == "label_flip"


def test_edge_vectors_are_learned_from_and_hide_rows(clinic: Clinic, tmp_path: Path) -> None:
    lake, _ = clinic(1000, 2)
    made = pipeline(clinic, **EDGES, lake=str(lake))
    encode(made, tmp_path / "r")
    model, released = learn(tmp_path / "r")
    mechanism = LocalEdges(30.0, 1e-6, 10)
    reports = pq.read_table(tmp_path / "r").to_pandas().to_numpy(dtype=np.float64)
    assert reports.shape == (1000, made.domain.width)
    # the second moments, noise taken off, lie near those of the rows
    size = float((released.values["second"][np.equal(*np.triu_indices(made.domain.width))]).sum())
    assert size == pytest.approx(1000 * made.domain.norm_bound**2, rel=0.5)
    assert reports.std() > mechanism.scale * 0.9
    frame = pd.read_parquet(made.lake)
    assert (model.predict(frame).to_numpy() == frame["readmitted"].to_numpy()).mean() > 0.55
    assert model.statement.delta == 1e-6


def test_the_noise_of_edges_is_what_their_sensitivity_needs() -> None:
    """Two unit vectors that are opposite lie 2 * 2^bits steps apart: rho = (2 * 2^bits)^2 / (2 scale^2)."""
    mechanism = LocalEdges(1.0, 1e-6, 10)
    rho = (2 * 2**10) ** 2 / (2 * mechanism.scale**2)
    assert rho <= mechanism.event.rho  # type: ignore[union-attr]
    assert rho == pytest.approx(mechanism.event.rho, rel=1e-9)  # type: ignore[union-attr]
    with pytest.raises(UsageError, match="longer than"):
        mechanism.randomise(np.array([[1024, 1]], dtype=np.int64))
    drawn = mechanism.randomise(np.zeros((1500, 2), dtype=np.int64))
    assert drawn.std() == pytest.approx(mechanism.scale, rel=0.1)


def test_encoding_twice_is_charged_twice_and_refused_when_the_budget_is_gone(clinic: Clinic, tmp_path: Path) -> None:
    made = pipeline(clinic)
    encode(made, tmp_path / "one")
    with pytest.raises(BudgetError):
        encode(made, tmp_path / "two")
    assert not (tmp_path / "two").exists()
    with pytest.raises(UsageError, match="exists"):
        encode(made, tmp_path / "one")


def test_files_that_cannot_be_read_are_found_before_anything_is_spent(
    clinic: Clinic, tmp_path: Path, own_ledger: Path
) -> None:
    lake, _ = clinic(3000, 3)
    broken = damaged_copy(lake, tmp_path / "broken")
    with pytest.raises(DataError, match=r"part-00002\.parquet: cannot be read as Parquet"):
        encode(pipeline(clinic, lake=str(broken)), tmp_path / "r")
    assert {entry.state for entry in Ledger.open(own_ledger).entries("clinic")} == {"void"}
    assert not (tmp_path / "r").exists()


def test_several_rows_of_one_person_cost_more(clinic: Clinic) -> None:
    who = {"relation": "label_flip", "unit": "one patient", "rows_per_unit": 3}
    made = pipeline(clinic, **LABELS | {"protect": who, "budget": {"epsilon": 6.0}})
    assert float(compose([made.charges()[0].event], 0).epsilon) == 6.0
    with pytest.raises(UsageError, match="more than the budget"):
        pipeline(clinic, **LABELS | {"protect": who})


def test_commands_encode_at_the_source_and_read_anywhere(clinic: Clinic, tmp_path: Path) -> None:
    lake, domain = clinic(3000, 3)
    domain_file = tmp_path / "d.yaml"
    domain_file.write_text(yaml.safe_dump(domain.model_dump(mode="json")))
    file = tmp_path / "local.yaml"
    spec = content(clinic, **LABELS) | {"domain": str(domain_file), "kind": "local"}
    file.write_text(yaml.safe_dump(spec))
    part = str(lake / "part-00000.parquet")
    done = CliRunner().invoke(
        command, ["encode", part, str(file), "--out", str(tmp_path / "r")], catch_exceptions=False
    )
    assert done.exit_code == 0
    assert "1,000 reports of labels" in done.output
    assert "this run: epsilon 2 = 25 % of the budget of clinic (8, 0)" in done.output
    done = CliRunner().invoke(
        command, ["read", str(tmp_path / "r"), "--out", str(tmp_path / "m")], catch_exceptions=False
    )
    assert done.exit_code == 0
    assert LinearModel.load(tmp_path / "m" / "model.json").statement.private
    assert len(Ledger.open(Path(spec["ledger"].get("path") or tmp_path / "ledger.sqlite")).entries("clinic")) == 1


def test_the_job_publishes_reports_estimates_and_a_page(clinic: Clinic, tmp_path: Path) -> None:
    job = pipeline(clinic, output=str(tmp_path / "out"))
    assert any("randomised at the source" in line for line in plan_lines(job, None))
    lines = perform(job).lines
    assert lines[0].startswith("Differentially private for one row")
    found = json.loads((tmp_path / "out" / "estimates.json").read_text())
    assert found["reports"] == 3000
    assert set(found["columns"]["smoker"]) == {"false", "true"}
    assert "<svg" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"reports": {"kind": "labels", "epsilon": 1.0}}, "protect under label_flip"),
        (LABELS | {"reports": {"kind": "labels"}}, "one of them"),
        (LABELS | {"reports": {"kind": "labels", "keep": 0.5}}, "between 1/2 and 1, got 0.5"),
        (LABELS | {"reports": {"kind": "labels", "keep": 1.0}}, "between 1/2 and 1"),
        (LABELS | {"budget": {"epsilon": 1.0}}, "more than the budget 1"),
        ({"reports": {"kind": "edges", "epsilon": 1.0, "delta": 0}}, "delta"),
        ({"reports": {"kind": "columns", "columns": {"ward": {"kind": "binary", "epsilon": 1}}}}, "binary needs 2"),
        ({"reports": {"kind": "columns", "columns": {"ward": {"kind": "number", "epsilon": 1}}}}, "not a number"),
        ({"reports": {"kind": "columns", "columns": {"age": {"kind": "kary", "epsilon": 1}}}}, "without bins"),
        ({"reports": {"kind": "columns", "columns": {"hue": {"kind": "kary", "epsilon": 1}}}}, "no column 'hue'"),
        (
            {"reports": {"kind": "columns", "columns": {"prior_visits": {"kind": "number", "epsilon": 1}}}},
            "'prior_visits' is cut into bins",
        ),
        ({"private": False, "protect": None, "budget": None}, "always private"),
    ],
)
def test_bad_pipelines_are_named(clinic: Clinic, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        pipeline(clinic, **changes)


@pytest.mark.parametrize(("column", "kind"), [("age", "number"), ("smoker", "binary")])
def test_columns_behind_a_kernel_cannot_be_reported(clinic: Clinic, column: str, kind: str) -> None:
    _, domain = clinic(3000, 3)
    mixed = domain.model_copy(update={"kernel": Kernel(kind="gaussian", gamma=1.0, features=8)})
    reports = {"kind": "columns", "columns": {column: {"kind": kind, "epsilon": 1}}}
    with pytest.raises(UsageError, match="drop the kernel"):
        pipeline(clinic, domain=mixed, reports=reports)


def test_folders_that_are_no_reports_are_named(clinic: Clinic, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is this a folder of reports"):
        learn(tmp_path)
    encode(pipeline(clinic), tmp_path / "r")
    with pytest.raises(UsageError, match="not a model"):
        learn(tmp_path / "r")
    with pytest.raises(DataError, match="is missing"):
        tally(str(tmp_path / "r"), ["nothing"], len)  # type: ignore[arg-type]
    table = pq.read_table(tmp_path / "r")
    at = table.column_names.index("smoker")
    forged = table.set_column(at, "smoker", [["perhaps"] * table.num_rows])
    pq.write_table(forged, tmp_path / "r" / "part-00000.parquet")
    with pytest.raises(DataError, match="'smoker' holds reports outside"):
        estimates(tmp_path / "r")
    (tmp_path / "r" / "_local.json").write_text("{}")
    with pytest.raises(UsageError, match=r"daskrado\.local/1"):
        estimates(tmp_path / "r")
