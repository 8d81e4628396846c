"""The forecast of what noise costs: its constants follow from measured points, its intervals hold other tables."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daskrado.jobs.load import load_job
from daskrado.learners.on_passes.outlook import AUC, ERROR, FLOOR, MOST, Outlook
from daskrado.privacy.perturbation import PublicFacts

REPRODUCE = Path(__file__).parents[2] / "pipelines" / "reproduce"


@pytest.fixture(scope="module")
def script() -> Any:
    sys.path.insert(0, str(REPRODUCE))
    try:
        return importlib.import_module("forecast")
    finally:
        sys.path.remove(str(REPRODUCE))


def points(script: Any, tables: tuple[str, ...]) -> list[dict[str, Any]]:
    found = [point for point in script.read(script.POINTS) if point["table"] in tables]
    assert {point["table"] for point in found} == set(tables)
    return found


def test_constants_are_those_of_the_tables_that_they_were_chosen_on(script: Any) -> None:
    """An independent fit: a weighted line through logs, each table counting alike."""
    assert len(script.CHOSEN) >= 8
    some = points(script, script.CHOSEN)
    for key, law in (("error", ERROR), ("auc", AUC)):
        x = np.log([point["ratio"] for point in some])
        y = np.log([max(FLOOR, point[key]) for point in some])
        tables = [point["table"] for point in some]
        weights = np.array([1 / tables.count(table) for table in tables])
        slope, intercept = np.polyfit(x, y, 1, w=np.sqrt(weights))
        spread = np.sqrt(np.average((y - intercept - slope * x) ** 2, weights=weights))
        assert (law.intercept, law.slope, law.spread) == pytest.approx((intercept, slope, spread), abs=1e-3)


def test_intervals_hold_tables_that_were_not_looked_at(script: Any) -> None:
    """Nine of ten is what they claim; of these points, which come from few tables, at least eight of ten."""
    assert len(script.JUDGED) >= 8
    assert not set(script.CHOSEN) & set(script.JUDGED)
    assert not any("adult" in table for table in (*script.CHOSEN, *script.JUDGED))
    found = script.judged(points(script, script.JUDGED))
    assert found["error"]["inside"] >= 0.8
    assert found["auc"]["inside"] >= 0.8


def test_more_noise_is_never_forecast_to_cost_less() -> None:
    told = [Outlook.of(ratio) for ratio in np.logspace(-8, 2, 50)]
    for one in ([each.error for each in told], [each.auc for each in told]):
        assert all(FLOOR <= each.low <= each.value <= each.high <= MOST for each in one)
        for ends in ([each.low for each in one], [each.value for each in one], [each.high for each in one]):
            assert ends == sorted(ends)
    assert str(told[0].error) == f"below {FLOOR:g}"


def test_a_plan_tells_the_interval_and_other_sizes() -> None:
    label = {"column": "sick", "positive": 1, "negative": 0}
    columns = {"a": {"kind": "numeric", "lower": 0, "upper": 1}}
    keys: dict[str, Any] = {"kind": "learn", "dataset": "d", "lake": "nowhere", "output": "out", "rows": 50_000}
    keys |= {"domain": {"label": label, "columns": columns}, "protect": {"relation": "add_remove", "unit": "row"}}
    keys["learner"] = "auto"
    job = load_job(keys | {"budget": {"epsilon": 1.0, "delta": 1e-6}})
    lines = list(job.plan())
    facts: PublicFacts = job.facts  # type: ignore[attr-defined]
    outlook = job.learner.outlook(facts)  # type: ignore[attr-defined]
    told = f"{outlook} those without noise (intervals held nine of ten tables measured)"
    assert ("forecast", told) in lines
    assert any(text.startswith("were there other numbers of rows: error ") for _, text in lines)
    pure = dict(load_job(keys | {"budget": {"epsilon": 1.0}}).plan())
    assert "more loss per row than without noise" in pure["forecast"]
