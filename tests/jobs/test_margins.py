"""Margins over a lake: exact histograms against NumPy, any partitioning, private releases, bounds and artefacts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from daskrado.errors import BudgetError, UsageError
from daskrado.jobs.base import perform
from daskrado.jobs.load import job_class
from daskrado.jobs.margins import MarginsJob
from daskrado.jobs.show import plan_lines
from daskrado.lake.collect import collect
from daskrado.lake.scan import open_lake
from daskrado.ledger.ledger import Ledger
from daskrado.models.linear import LinearModel
from daskrado.privacy.statement import PrivacyStatement
from daskrado.table.domain import Domain
from daskrado.table.encoding import encode_table
from daskrado.table.yaml_file import parse

Clinic = Callable[..., tuple[Path, Domain]]


def content(clinic: Clinic, tmp_path: Path, **changes: Any) -> dict[str, Any]:
    lake, domain = clinic(3000, 3)
    return {
        "dataset": "clinic",
        "lake": str(lake),
        "domain": domain,
        "output": str(tmp_path / "out"),
        "private": False,
        "boost": {"rounds": [2, 20], "rados": 64},
    } | changes


def pipeline(clinic: Clinic, tmp_path: Path, **changes: Any) -> MarginsJob:
    return parse(MarginsJob, content(clinic, tmp_path, **changes), "test")


def model_file(domain: Domain, folder: Path) -> Path:
    theta = np.random.default_rng(5).normal(size=domain.width)
    folder.mkdir(exist_ok=True)
    LinearModel(domain, theta, PrivacyStatement.none(), "test").save(folder / "model.json")
    return folder / "model.json"


def private(clinic: Clinic, tmp_path: Path, **changes: Any) -> MarginsJob:
    _, domain = clinic(3000, 3)
    return pipeline(
        clinic,
        tmp_path,
        **{
            "private": True,
            "boost": None,
            "models": [str(model_file(domain, tmp_path / "m"))],
            "protect": {"relation": "add_remove", "unit": "one patient"},
            "budget": {"epsilon": 1.0, "delta": 1e-6},
            "ledger": {"first_limit": {"epsilon": 1.55, "delta": 1e-6}},
            "bins": 20,
        }
        | changes,
    )


@pytest.mark.parametrize("partitions", [1, 2, 7])
def test_the_histogram_is_numpys_in_any_partitioning(clinic: Clinic, tmp_path: Path, partitions: int) -> None:
    lake, domain = clinic(2000, partitions)
    made = pipeline(clinic, tmp_path, bins=40)
    thetas = np.random.default_rng(1).normal(size=(2, domain.width))
    statistic = made.statistic(list(thetas))
    found = collect(statistic, open_lake(str(lake), domain), domain, made.lattice).vector.reshape(2, 40)
    table = pq.read_table(lake)
    encoded = encode_table(domain, table)
    rows = encoded.block(0, 2000, np.empty((2000, domain.width), order="F"))
    norms = np.linalg.norm(rows, axis=1)
    rows *= np.minimum(1.0, domain.norm_bound / norms)[:, None]
    bounds = np.full(domain.width, min(1.0, domain.norm_bound))
    for k, theta in enumerate(thetas):
        margins = np.asarray(encoded.labels) * (rows @ theta) / np.abs(theta * bounds).sum()
        expected, _ = np.histogram(margins, bins=np.linspace(-1, 1, 41))
        assert np.abs(found[k] - expected).sum() <= 4  # rows within 2^-20 of an edge may fall on its other side
        assert found[k].sum() == 2000


def test_workers_give_the_same_bits(clinic: Clinic, tmp_path: Path, two_workers: Any) -> None:
    lake, domain = clinic(2000, 7)
    made = pipeline(clinic, tmp_path)
    statistic = made.statistic([np.linspace(-1, 1, domain.width)])
    opened = open_lake(str(lake), domain)
    far = collect(statistic, opened, domain, made.lattice, client=two_workers)
    assert np.array_equal(far.vector, collect(statistic, opened, domain, made.lattice).vector)


def test_boosting_is_studied_and_published(clinic: Clinic, tmp_path: Path) -> None:
    made = pipeline(clinic, tmp_path)
    result = perform(made).value
    assert list(result.names) == [
        "adaboost, 2 rounds",
        "adaboost, 20 rounds",
        "radoboost, 2 rounds",
        "radoboost, 20 rounds",
    ]
    assert (np.diff(result.shares, axis=1) >= 0).all()
    assert np.allclose(result.shares[:, -1], 1)
    errors = [found.training_error for found in result.bounds]
    assert errors[1] < errors[0]  # AdaBoost learns
    for found in result.bounds:
        assert found.margin_bound.value > found.training_error
        assert found.breiman_bound.value is None  # rows that are wrong have negative margins
    report = (tmp_path / "out" / "report.html").read_text()
    assert "<svg" in report
    assert "NOT PRIVATE" in report
    shares = json.loads((tmp_path / "out" / "margins.json").read_text())["shares"]
    assert len(shares["adaboost, 2 rounds"]) == 201


@pytest.mark.parametrize("relation", ["add_remove", "replace_one", "label_flip"])
def test_on_private_data_the_histogram_is_noised_and_charged(
    clinic: Clinic, tmp_path: Path, own_ledger: Path, relation: str
) -> None:
    made = private(clinic, tmp_path, protect={"relation": relation, "unit": "one patient"})
    lines = list(plan_lines(made, None))
    assert any("standard deviation" in line for line in lines)
    result = perform(made)
    exact = perform(made.model_copy(update={"private": False, "protect": None, "budget": None}), write=False)
    gap = result.release.values["margins"] - exact.release.values["margins"]
    assert np.any(gap != 0)
    assert gap.std() == pytest.approx(result.value.noise_std, rel=0.6)
    assert result.value.noise_std > 0
    (entry,) = Ledger.open(own_ledger).entries("clinic")
    assert (entry.state, str(entry.relation)) == ("published", relation)
    assert result.value.bounds[0].breiman_bound.value is None
    assert result.value.bounds[0].margin_bound.value > exact.value.bounds[0].margin_bound.value
    if relation == "add_remove":
        manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
        assert "rows" not in manifest["facts"]
        assert "seconds" not in manifest  # times would tell the number of rows
    with pytest.raises(BudgetError):
        perform(made, overwrite=True)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"boost": None}, "either models"),
        ({"models": ["x.json"]}, "either models"),
        ({"bins": 7}, "bins"),
        ({"thetas": [0.0]}, "thetas"),
        ({"boost": None, "models": ["absent.json"]}, "absent.json"),
    ],
)
def test_bad_pipelines_are_named(clinic: Clinic, tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        perform(pipeline(clinic, tmp_path, **changes))


def test_models_in_folders_of_one_name_are_all_measured_and_none_twice(clinic: Clinic, tmp_path: Path) -> None:
    _, domain = clinic(3000, 3)
    paths = []
    for place in ("a", "b", "c"):
        (tmp_path / place).mkdir()
        paths.append(str(model_file(domain, tmp_path / place / "out")))
    result = perform(pipeline(clinic, tmp_path, boost=None, models=paths))
    assert list(result.value.names) == ["a/out/model.json", "b/out/model.json", "c/out/model.json"]
    with pytest.raises(UsageError, match="listed twice"):
        perform(pipeline(clinic, tmp_path, boost=None, models=[*paths, paths[0]]), write=False)


def test_boosting_private_rows_and_models_of_another_domain_are_refused(clinic: Clinic, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="boost reads rows without noise"):
        private(clinic, tmp_path, boost={}, models=[])
    _, domain = clinic(3000, 3)
    fewer = domain.model_copy(update={"columns": {"smoker": domain.columns["smoker"]}})
    path = model_file(fewer, tmp_path / "other")
    with pytest.raises(UsageError, match="another domain"):
        perform(private(clinic, tmp_path, models=[str(path)]))
    assert job_class("margins") is MarginsJob
