"""Counting queries over a lake: exact histograms in any partitioning, the batch job, its artefacts, its charges."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import yaml
from damaged_files import damaged_copy

from daskrado.errors import BudgetError, DataError, LedgerError, UsageError
from daskrado.jobs.base import perform
from daskrado.jobs.load import load_job
from daskrado.jobs.queries import QueriesJob, open_queries, read_queries
from daskrado.jobs.show import plan_lines
from daskrado.lake.collect import collect
from daskrado.lake.scan import open_lake
from daskrado.ledger.ledger import Ledger
from daskrado.privacy.accountant import compose
from daskrado.statistics.counts import Histogram
from daskrado.statistics.universe import Universe
from daskrado.table.domain import Domain, Kernel
from daskrado.table.lattice import Lattice
from daskrado.table.yaml_file import parse

Clinic = Callable[..., tuple[Path, Domain]]
COLUMNS = ["sex", "smoker", "ward", "prior_visits", "readmitted"]


def content(clinic: Clinic, tmp_path: Path, **changes: Any) -> dict[str, Any]:
    lake, domain = clinic(3000, 3)
    return {
        "dataset": "clinic",
        "lake": str(lake),
        "domain": domain,
        "output": str(tmp_path / "out"),
        "protect": {"relation": "replace_one", "unit": "one patient"},
        "budget": {"epsilon": 2.0, "delta": 1e-6},
        "ledger": {"first_limit": {"epsilon": 3.0, "delta": 1e-5}},
        "universe": COLUMNS,
        "updates": 8,
        "queries": [{}, {"smoker": True}, {"smoker": True, "readmitted": "yes"}, {"ward": ["surgery", "oncology"]}],
    } | changes


def pipeline(clinic: Clinic, tmp_path: Path, **changes: Any) -> QueriesJob:
    return parse(QueriesJob, content(clinic, tmp_path, **changes), "test")


def pandas_counts(lake: Path, universe: Universe) -> np.ndarray:
    """The histogram by pandas, independently."""
    frame = pd.read_parquet(lake)
    visits = np.digitize(frame["prior_visits"], [1, 3, 6])
    codes = [
        frame["sex"].map({"F": 0, "M": 1}).fillna(2).astype(int),
        frame["smoker"].astype(int),
        frame["ward"].map({w: i for i, w in enumerate(universe.axes[2].values)}).fillna(5).astype(int),
        visits,
        (frame["readmitted"] == "yes").astype(int),
    ]
    return np.bincount(np.ravel_multi_index([np.asarray(c) for c in codes], universe.shape), minlength=universe.size)


@pytest.mark.parametrize("partitions", [1, 2, 7])
def test_the_histogram_is_exact_in_any_partitioning(clinic: Clinic, partitions: int) -> None:
    lake, domain = clinic(2000, partitions)
    universe = Universe.of(domain, COLUMNS)
    found = collect(
        Histogram(domain.width, universe), open_lake(str(lake), domain), domain, Lattice(domain.norm_bound)
    )
    assert np.array_equal(found.vector, pandas_counts(lake, universe))
    assert found.vector.sum() == 2000


def test_the_histogram_is_the_same_on_workers(clinic: Clinic, two_workers: Any) -> None:
    lake, domain = clinic(2000, 7)
    statistic = Histogram(domain.width, Universe.of(domain, COLUMNS))
    opened, lattice = open_lake(str(lake), domain), Lattice(domain.norm_bound)
    far = collect(statistic, opened, domain, lattice, client=two_workers)
    assert np.array_equal(far.vector, collect(statistic, opened, domain, lattice).vector)


def test_a_batch_is_answered_charged_and_published(clinic: Clinic, tmp_path: Path, own_ledger: Path) -> None:
    made = pipeline(clinic, tmp_path, synthetic_rows=500)
    result = perform(made).value
    assert len(result.answers) == 4
    truth = pandas_counts(Path(made.lake), made.weights_plan().universe).reshape(made.weights_plan().universe.shape)
    allowed = result.calibration.accuracy() + 12 * result.calibration.answer_std
    for query, answer in zip(made.queries, result.answers, strict=True):
        assert abs(answer.count - truth[made.weights_plan().universe.cells(query)].sum()) < allowed
    ledger = Ledger.open(own_ledger, create=False)
    (entry,) = ledger.entries("clinic")
    assert entry.event == result.calibration.event
    assert entry.state == "published"
    folder = Path(made.output)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["statement"]["epsilon"] <= 2.0
    assert manifest["facts"]["updates_used"] == result.updates
    assert "<svg" in (folder / "report.html").read_text()
    rows = pq.read_table(folder / "synthetic")
    assert rows.num_rows == 500
    assert set(rows.column_names) == set(COLUMNS)
    # the synthetic rows are a lake of the same domain's columns
    kept = {name: made.domain.columns[name] for name in COLUMNS[:-1]}
    small = made.domain.model_copy(update={"columns": kept, "id": None})
    assert open_lake(str(folder / "synthetic"), small).rows == 500


def test_adaptive_queries_from_python_and_the_budget_refuses_a_second_engine(
    clinic: Clinic, tmp_path: Path, own_ledger: Path
) -> None:
    made = pipeline(clinic, tmp_path, queries=[])
    with open_queries(made) as engine:
        first = engine.ask({"smoker": True})
        second = engine.ask({"smoker": True, "ward": "surgery"} if first.fraction > 0.1 else {"ward": "surgery"})
        assert second.count <= engine.rows
        (entry,) = Ledger.open(own_ledger).entries(made.dataset)
        assert float(compose([entry.event], made.asked.budget.delta).epsilon) == pytest.approx(2.0, abs=1e-3)
    Ledger.open(own_ledger).set_limit(made.dataset, None, 0.5, 1e-6)  # less than what is spent
    with pytest.raises(BudgetError, match="does not cover"), open_queries(made):
        pass
    with pytest.raises(UsageError, match="closed"):
        engine.ask({})


def test_a_journal_goes_on_with_the_same_engine_on_the_same_charge(
    clinic: Clinic, tmp_path: Path, own_ledger: Path
) -> None:
    made, journal = pipeline(clinic, tmp_path, threshold=1), tmp_path / "journal"
    with open_queries(made, journal=journal) as engine:
        while engine.updates < 2:
            engine.ask({"smoker": True})
        before = engine.synthetic
    spent = Ledger.open(own_ledger).entries()
    with open_queries(made, journal=journal) as engine:
        assert np.array_equal(engine.synthetic, before)
        assert Ledger.open(own_ledger).entries() == spent
    assert len(Ledger.open(own_ledger).entries("clinic")) == 1
    other, _ = clinic(2000, 2)
    with (
        pytest.raises(UsageError, match="lake has changed"),
        open_queries(made.model_copy(update={"lake": str(other)}), journal=journal),
    ):
        pass
    with (
        pytest.raises(UsageError, match="no charge that fits"),
        open_queries(pipeline(clinic, tmp_path, updates=9), journal=journal),
    ):
        pass
    with (
        pytest.raises(LedgerError, match="is not the one that had"),
        open_queries(made, journal=journal, ledger=tmp_path / "another.sqlite"),
    ):
        pass


def test_nothing_is_charged_when_the_lake_cannot_be_read(clinic: Clinic, tmp_path: Path, own_ledger: Path) -> None:
    broken = damaged_copy(clinic(3000, 3)[0], tmp_path / "broken")
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        perform(pipeline(clinic, tmp_path, lake=str(broken)))
    assert {entry.state for entry in Ledger.open(own_ledger).entries("clinic")} == {"void"}
    assert not (tmp_path / "out").exists()


def test_the_job_plans_and_runs_from_a_file(clinic: Clinic, tmp_path: Path) -> None:
    lake, _ = clinic(3000, 3)
    batch = tmp_path / "batch.parquet"
    pd.DataFrame({"smoker": [True, None], "readmitted": ["yes", "no"]}).to_parquet(batch)
    assert read_queries(batch) == [{"smoker": True, "readmitted": "yes"}, {"readmitted": "no"}]
    file = tmp_path / "q.yaml"
    data = content(clinic, tmp_path, domain=str(lake) + ".yaml", queries=str(batch), kind="queries")
    file.write_text(yaml.safe_dump(data))
    job = load_job(file)
    lines = list(plan_lines(job, None))
    assert any("288 cells of sex, smoker, ward" in line for line in lines)  # 3 x 2 x 6 x 4 x 2
    printed = perform(job).lines
    assert printed[0].startswith("Differentially private for one row")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"universe": ["sex", "age"]}, "'age' is a number without bins"),
        ({"universe": ["sex", "colour"]}, "no column 'colour'"),
        ({"universe": ["sex", "sex"]}, "each once"),
        ({"queries": [{"ward": "attic"}]}, "ward = 'attic' is outside the universe"),
        ({"queries": [{"age": 3}]}, "'age' is outside the universe"),
        ({"private": False, "protect": None, "budget": None}, "always private"),
        ({"budget": None}, "protect and budget are missing"),
        ({"updates": 0}, "updates"),
    ],
)
def test_bad_pipelines_are_named(clinic: Clinic, tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        pipeline(clinic, tmp_path, **changes)


def test_a_kernel_has_no_cells(clinic: Clinic, tmp_path: Path) -> None:
    """Its features are waves of all columns: where a one-hot part is largest would be read from noise."""
    _, domain = clinic(3000, 3)
    kernel = Kernel(kind="gaussian", gamma=1.0, features=8)
    with pytest.raises(UsageError, match="kernel mixes every column into every feature; drop the kernel"):
        pipeline(clinic, tmp_path, domain=domain.model_copy(update={"kernel": kernel}))


def test_a_universe_too_large_says_its_size() -> None:
    columns = {f"c{i}": {"kind": "categorical", "values": [str(v) for v in range(9)]} for i in range(7)}
    domain = parse(
        Domain,
        {"label": {"column": "y", "positive": 1, "negative": 0}, "columns": columns, "norm_bound": 1.0},
        "test",
    )
    with pytest.raises(UsageError, match=r"10,000,000 cells \(10 x 10 x 10 x 10 x 10 x 10 x 10\)"):
        Universe.of(domain, list(columns))
