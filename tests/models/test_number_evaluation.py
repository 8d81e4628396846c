"""R^2 and mean absolute error from counts: against scikit-learn, and how often intervals hold the truth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import mean_absolute_error, r2_score

import daskrado
from daskrado.errors import UsageError
from daskrado.models.number_evaluation import (
    LABEL_CELLS,
    NumberCells,
    label_values,
    residual_edges,
    residual_powers,
)

BOUNDS = (0.0, 20.0)
KEYS: dict[str, Any] = {
    "label": {"column": "days", "kind": "number", "bounds": list(BOUNDS)},
    "columns": {
        "age": {"kind": "numeric", "lower": 0, "upper": 100},
        "sex": {"kind": "categorical", "values": ["f", "m"], "other": False},
    },
    "id": "stay",
}
PROTECT = {"relation": "add_remove", "unit": "one stay"}


def stays(rows: int, seed: int = 1) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    frame = pd.DataFrame({"age": draw.uniform(0, 100, rows), "sex": draw.choice(["f", "m"], rows)})
    frame["stay"] = np.arange(rows)
    mean = 4 + 0.08 * frame["age"] + 1.5 * (frame["sex"] == "m")
    return frame.assign(days=np.clip(mean + draw.normal(0, 1.5, rows), *BOUNDS))


def counted(residuals: np.ndarray, labels: np.ndarray, std: float, draw: np.random.Generator) -> NumberCells:
    """Cells of known residuals and labels, with noise."""
    half = (BOUNDS[1] - BOUNDS[0]) / 2
    sizes = np.searchsorted(residual_edges(half), np.abs(residuals), side="right")
    places = np.clip((labels - BOUNDS[0]) / (BOUNDS[1] - BOUNDS[0]) * LABEL_CELLS, 0, LABEL_CELLS - 1).astype(int)
    found = [np.bincount(sizes, minlength=len(residual_edges(half)) + 1), np.bincount(places, minlength=LABEL_CELLS)]
    return NumberCells(BOUNDS, *(one + std * draw.normal(size=len(one)) for one in found), std)


@pytest.mark.parametrize("power", [1, 2, 4])
@pytest.mark.parametrize("scale", [0.03, 0.4, 1.2])
def test_cells_tell_the_moments_of_smooth_residuals(power: int, scale: float) -> None:
    """Of a normal law, in closed form, whatever its scale; also of an exponential one."""
    draw = np.random.default_rng(3)
    for sizes in (np.abs(draw.normal(size=400_000)) * scale, draw.exponential(size=400_000) * scale):
        counts = np.bincount(np.searchsorted(residual_edges(10.0), sizes, side="right"), minlength=37)
        assert counts @ residual_powers(10.0, power) / 400_000 == pytest.approx((sizes**power).mean(), rel=0.01)


def test_exact_figures_are_those_of_scikit_learn() -> None:
    frame, new = stays(5000), stays(20_000, 2)
    result = daskrado.fit(frame, KEYS, dataset="ward", private=False)
    assert result.model is not None
    found = daskrado.evaluate(result, new, dataset="ward", private=False, by=["sex"]).value
    predicted = result.model.predict(new)
    assert found.cells.r_squared.value == pytest.approx(r2_score(new["days"], predicted), abs=0.005)
    assert found.cells.absolute_error.value == pytest.approx(mean_absolute_error(new["days"], predicted), rel=0.01)
    assert found.cells.mean_label.value == pytest.approx(new["days"].mean(), abs=0.02)
    for sex, cells in found.groups["sex"].items():
        mine = new["sex"] == sex
        assert cells.r_squared.value == pytest.approx(r2_score(new["days"][mine], predicted[mine]), abs=0.01)


@pytest.mark.parametrize(("rows", "std"), [(5000, 0.0), (5000, 8.0), (50_000, 60.0)])
def test_intervals_hold_the_truth(rows: int, std: float) -> None:
    """Labels are normal around 10 with deviation 3, of which predictions leave 1.5: R^2 is 0.75 in the population."""
    draw = np.random.default_rng(11)
    held = {"r": 0, "mae": 0}
    for _ in range(400):
        residuals = draw.normal(0, 1.5, rows)
        cells = counted(residuals, 10 + draw.normal(0, np.sqrt(9 - 2.25), rows) + residuals, std, draw)
        held["r"] += 0.75 in cells.r_squared
        held["mae"] += 1.5 * np.sqrt(2 / np.pi) in cells.absolute_error
    assert min(held.values()) >= 0.93 * 400


def test_intervals_of_half_the_noise_would_not() -> None:
    draw, held = np.random.default_rng(12), 0
    for _ in range(200):
        residuals = draw.normal(0, 1.5, 50_000)
        cells = counted(residuals, 10 + draw.normal(0, np.sqrt(6.75), 50_000) + residuals, 120.0, draw)
        less = NumberCells(BOUNDS, cells.residuals, cells.labels, 30.0)
        held += 0.75 in less.r_squared
    assert held < 0.85 * 200


def test_where_noise_hides_everybody_nothing_is_claimed() -> None:
    draw = np.random.default_rng(5)
    cells = counted(draw.normal(size=50), draw.normal(10, 3, 50), 200.0, draw)
    assert not cells.seen
    assert (cells.r_squared.low, cells.r_squared.high) == (-1.0, 1.0)
    assert (cells.mean_label.low, cells.mean_label.high) == BOUNDS
    assert len(label_values(BOUNDS)) == LABEL_CELLS


def test_a_private_evaluation_is_charged_once_and_published(tmp_path: Path, fixed_noise: None) -> None:
    frame, new = stays(20_000), stays(20_000, 2)
    how = {"epsilon": 1.0, "delta": 1e-6, "unit": "one stay", "first_limit": (20, 1e-4)}
    result = daskrado.fit(frame, KEYS, dataset="ward", **how)
    assert result.model is not None
    found = daskrado.evaluate(
        result, new, dataset="ward", epsilon=0.5, delta=1e-6, protect=PROTECT, output=tmp_path / "out"
    )
    truth, figure = r2_score(new["days"], result.model.predict(new)), found.value.cells.r_squared
    assert abs(figure.value - truth) < figure.high - figure.low < 0.3  # four deviations
    assert not (tmp_path / "out" / "model.json").exists()  # nothing was fitted
    assert "mean absolute error" in (tmp_path / "out" / "report.html").read_text()
    assert len(found.budget) >= 1


def test_a_holdout_measures_rows_that_training_never_saw(fixed_noise: None) -> None:
    job = {
        "kind": "learn", "dataset": "ward", "lake": stays(20_000), "domain": KEYS, "output": ".", "holdout": 0.2,
        "protect": PROTECT, "budget": {"epsilon": 1.0, "delta": 1e-6}, "learner": "moments",
        "ledger": {"first_limit": {"epsilon": 10, "delta": 1e-5}},
    }  # fmt: skip
    found = daskrado.run(job, write=False)
    figure = found.facts["evaluation"]["R^2"]
    truth = (8**2 / 12 + 1.5**2 / 4) / (8**2 / 12 + 1.5**2 / 4 + 1.5**2)  # of uniform ages and two sexes
    assert abs(figure["value"] - truth) < figure["high"] - figure["low"]  # four deviations


@pytest.mark.parametrize(("keys", "said"), [({"threshold": "f1"}, "threshold and bins"), ({"bins": 20}, "threshold")])
def test_what_is_for_two_sides_is_refused(keys: dict[str, Any], said: str) -> None:
    result = daskrado.fit(stays(200), KEYS, dataset="ward", private=False)
    with pytest.raises(UsageError, match=said):
        daskrado.evaluate(result, stays(200), dataset="ward", private=False, **keys)
