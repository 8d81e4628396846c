"""Queries, margins and local reports in a few lines of Python."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import daskrado
from daskrado.errors import UsageError
from daskrado.jobs.load import load_job
from daskrado.jobs.show import plan_lines
from daskrado.table.domain import Domain


def test_measures_from_python(clinic: Callable[..., tuple[Path, Domain]], tmp_path: Path) -> None:
    lake, domain = clinic(3000, 3)
    common: dict[str, Any] = {
        "dataset": "clinic",
        "lake": str(lake),
        "domain": domain,
        "output": str(tmp_path / "out"),
        "protect": {"relation": "replace_one", "unit": "one patient"},
        "budget": {"epsilon": 2.0, "delta": 1e-6},
        "ledger": {"first_limit": {"epsilon": 30.0, "delta": 1e-3}},
    }
    with daskrado.open_queries({**common, "kind": "queries", "universe": ["smoker", "readmitted"]}) as queries:
        assert 0 <= queries.ask({"smoker": True}).fraction <= 1
    reports = {"kind": "columns", "columns": {"smoker": {"kind": "binary", "epsilon": 2.0}}}
    assert daskrado.encode_local({**common, "reports": reports}, tmp_path / "r").rows == 3000
    rows, found = daskrado.estimate_local(tmp_path / "r")
    assert rows == 3000
    assert found["smoker"][1].values.sum() == pytest.approx(1)
    public = {key: value for key, value in common.items() if key not in ("protect", "budget")}
    margins = daskrado.measure_margins(
        {**public, "private": False, "boost": {"learners": ["radoboost"], "rounds": [3], "rados": 32}}
    )
    assert list(margins.value.names) == ["radoboost, 3 rounds"]
    assert float(daskrado.compose([], 0).epsilon) == 0
    with pytest.raises(UsageError, match="unknown key"):
        daskrado.measure_margins({**public, "privat": False})


@pytest.mark.parametrize("name", ["queries", "local", "local_survey", "margins"])
def test_the_pipelines_that_are_shipped_plan_without_reading(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(__file__).parents[2]
    monkeypatch.chdir(root)
    lines = list(plan_lines(load_job(root / "pipelines" / f"{name}.yaml"), None))
    assert lines[0] == "data set    clinic"
    assert any(line.startswith(("cost", "guarantee")) for line in lines)
