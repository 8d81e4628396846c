"""Published figures on the Adult table, on one of ten folds: skipped where the table is absent."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from daskrado.learners.on_passes.gradient import PrivateGradient
from daskrado.learners.on_passes.iterative import Session
from daskrado.losses.margin import Huber, Logistic
from daskrado.privacy.perturbation import PublicFacts
from daskrado.privacy.relations import Relation

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def script(shared_data: Path) -> ModuleType:
    folder = str(Path(__file__).parents[2] / "pipelines" / "reproduce")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setenv("DASKRADO_DATA", str(shared_data))
        yield importlib.import_module("dp_erm")  # type: ignore[misc]
    for name in ("dp_erm", "tables", "public_bins"):
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def fold(script: ModuleType) -> Any:
    """Fold 4 of 10 of the paper's own preprocessing: a fold of middling difficulty."""
    table, domain = script.load("adult", public=False)
    assert (len(table), domain.width) == (45_222, 105)
    for held, parts in enumerate(script.folds(table, domain, 5)):
        if held == 4:
            yield parts


def test_table_one_at_the_papers_best_regularisations(script: ModuleType, fold: Any) -> None:
    """Non-private 0.1533 / 0.1521 and best objective perturbation 0.2161 / 0.2046, within 0.02 on a single fold."""
    train, test, rows = fold
    facts = PublicFacts(rows, 105, 1.0, Relation.REPLACE_ONE, 0.1)
    for loss, bare, tilted, output in ((Logistic(), 0.1533, 0.2161, 0.2395), (Huber(0.5), 0.1521, 0.2046, 0.2376)):
        low = script.one_row(train, test, loss, 1e-7, facts, 0, 1)
        assert low["non_private"][0] == pytest.approx(bare, abs=0.01)
        assert np.mean(script.one_row(train, test, loss, 10**-2.5, facts, 16, 1)["objective"]) == pytest.approx(
            tilted, abs=0.025
        )
        assert np.mean(script.one_row(train, test, loss, 10**-2.0, facts, 0, 40)["output"]) == pytest.approx(
            output, abs=0.02
        )


def gradient_error(script: ModuleType, parts: Any, runs: int = 2) -> float:
    train, test, rows = parts
    facts = PublicFacts(rows, train.domain.width, 1.0, Relation.ADD_REMOVE, 0.1, 1e-6)
    models = [PrivateGradient().learn(Session(train, lambda: None), facts).weights for _ in range(runs)]
    return float(np.mean(script.errors(test, models)))


def test_the_noisy_gradient_beats_them_by_far(script: ModuleType) -> None:
    """At epsilon 0.1, delta 1e-6, all choices from public facts: the bar is 0.180 over all folds; fold 4."""
    table, domain = script.load("adult", public=False)
    for held, parts in enumerate(script.folds(table, domain, 5, bits=11)):
        if held == 4:
            assert gradient_error(script, parts) < 0.185


def test_public_bins_are_better_still(script: ModuleType) -> None:
    """The bar is 0.168 over all folds; fold 0."""
    table, categories = script.LOADERS["adult"]()
    bins = importlib.import_module("public_bins")
    domain = script.public_domain("adult", table, categories, edges=bins.by_rule("adult", *bins.COARSE))
    assert gradient_error(script, next(script.folds(table, domain, 1, bits=11)), 1) < 0.175
