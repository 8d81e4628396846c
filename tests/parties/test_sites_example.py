"""The worked examples of studies, on real hospitals."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daskrado.parties.study import load_study

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script(shared_data: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("DASKRADO_DATA", str(shared_data))
    spec = importlib.util.spec_from_file_location("reproduce_sites", ROOT / "pipelines" / "reproduce" / "sites.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(__import__("sys").modules, "reproduce_sites", module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_four_hospitals_learn_together_what_one_could_not_alone(script: Any, tmp_path: Path) -> None:
    """At a tenth of the usual noise, so that no draw decides: at epsilon 1 one in twenty is below 0.8."""
    figures = script.compare(script.heart(), epsilon=10.0, repeats=2)
    assert figures["same_model_as_pooled"]
    assert figures["auc"]["federated, distributed noise"]["all sites"] > 0.8
    assert figures["auc"]["pooled, no noise"]["all sites"] > 0.84
    script.plot(figures, tmp_path / "heart.png")
    assert (tmp_path / "heart.png").stat().st_size > 10_000


def test_the_auc_is_the_share_of_ordered_pairs(script: Any) -> None:
    example = script.heart()
    model = script.alone(example, example.train["cleveland"], Path(), None, "x")
    rows = example.test["cleveland"]
    margins, sick = model.margins(rows), rows["disease"].to_numpy()
    pairs = np.sign(margins[sick][:, None] - margins[~sick][None, :])
    assert script.auc(model, rows) == pytest.approx(float((pairs + 1).mean() / 2))


def test_the_study_file_to_copy_is_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    study = load_study("pipelines/studies/heart.yaml")
    assert list(study.sites) == ["cleveland", "hungary", "switzerland", "longbeach"]
    assert study.terms.minimum == 3
    steps = load_study("pipelines/studies/heart_gradient.yaml")
    assert steps.terms.descends
    assert list(steps.sites) == list(study.sites)
