"""Beside the tools people have: what MLflow and a skops card get of a run, and that it is what was published."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import daskrado
from daskrado.errors import UsageError

mlflow = pytest.importorskip("mlflow")
pytest.importorskip("skops")
pytestmark = pytest.mark.filterwarnings("ignore:.*Any type hint is inferred:UserWarning")  # MLflow, of itself

DOMAIN = {
    "label": {"column": "sick", "positive": "yes", "negative": "no"},
    "columns": {
        "age": {"kind": "numeric", "lower": 0, "upper": 100},
        "sex": {"kind": "categorical", "values": ["f", "m"], "other": False},
    },
    "id": "id",
}


def people(rows: int = 4000, seed: int = 3) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    frame = pd.DataFrame({"age": draw.uniform(0, 100, rows), "sex": draw.choice(["f", "m"], rows)})
    sick = frame["age"] / 25 - 2 + draw.logistic(size=rows) > 0
    return frame.assign(sick=np.where(sick, "yes", "no"), id=np.arange(rows))


def fitted(out: Path | None) -> Any:
    keys = {
        "dataset": "clinic",
        "lake": people(),
        "domain": DOMAIN,
        "output": "out",
        "protect": {"relation": "add_remove", "unit": "one patient"},
        "budget": {"epsilon": 1.0, "delta": 1e-6},
        "holdout": 0.25,
        "card": {"purpose": "planning of beds"},
        "ledger": {"first_limit": {"epsilon": 20, "delta": 1e-4}},
    }
    return daskrado.run(keys, out=out, write=out is not None)


@pytest.fixture
def tracking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a folder; the small MLflow has no database
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri((tmp_path / "tracking").as_uri())
    yield tmp_path / "tracking"
    mlflow.set_tracking_uri(before)


def logged_runs() -> list[Any]:
    return list(mlflow.search_runs(output_format="list", search_all_experiments=True))


def test_a_run_in_mlflow_has_model_manifest_report_and_figures(tracking: Path, tmp_path: Path) -> None:
    result = fitted(tmp_path / "out")
    info = daskrado.mlflow.log(result)
    (run,) = logged_runs()
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert run.data.metrics["epsilon"] == manifest["statement"]["epsilon"]
    assert run.data.metrics["evaluation.error.value"] == manifest["facts"]["evaluation"]["error"]["value"]
    assert run.data.params["dataset"] == "clinic"
    assert run.data.params["run"] == result.run
    assert run.data.tags["privacy"] == manifest["privacy_in_words"]
    folder = Path(mlflow.artifacts.download_artifacts(run_id=run.info.run_id, artifact_path="published"))
    for name in ("manifest.json", "model.json", "evaluation.json", "report.html"):
        sums = [hashlib.sha256((one / name).read_bytes()).hexdigest() for one in (folder, tmp_path / "out")]
        assert sums[0] == sums[1]
    fresh = people(200, seed=8)
    told = mlflow.pyfunc.load_model(info.model_uri).predict(fresh)
    pd.testing.assert_series_equal(told, result.model.predict(fresh))
    assert not [path for path in tracking.rglob("*") if path.suffix in (".pkl", ".pickle")]


def test_the_active_run_is_used_and_a_folder_or_a_returned_result_will_do(tracking: Path, tmp_path: Path) -> None:
    fitted(tmp_path / "out")
    with mlflow.start_run() as mine:
        daskrado.mlflow.log(tmp_path / "out")
        assert mlflow.active_run().info.run_id == mine.info.run_id
    (run,) = logged_runs()
    assert run.data.params["learner"] == "moments"
    returned = fitted(None)
    assert returned.folder is None
    daskrado.mlflow.log(returned)
    assert mlflow.active_run() is None
    assert len(logged_runs()) == 2
    with pytest.raises(UsageError, match=r"holds no manifest.json"):
        daskrado.mlflow.log(tmp_path / "nowhere")
    assert len(logged_runs()) == 2


def test_a_card_says_what_is_protected_how_good_it_is_and_by_which_weights(tmp_path: Path) -> None:
    result = fitted(tmp_path / "out")
    text = daskrado.skops.card(tmp_path / "out").render()
    assert result.statement.sentence() in text
    for assumption in result.statement.assumptions:
        assert assumption in text
    assert "planning of beds" in text
    for feature, weight in result.model.coefficients["weight"].items():
        assert str(feature) in text
        assert str(weight) in text
    assert result.run in text
    assert daskrado.skops.card(result).render() == text
    with pytest.raises(UsageError, match="was returned, not written"):
        daskrado.skops.card(fitted(None))
    (tmp_path / "out" / "model.json").unlink()
    with pytest.raises(UsageError, match="published no model"):
        daskrado.skops.card(tmp_path / "out")
