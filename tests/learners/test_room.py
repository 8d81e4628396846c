"""Budgets and options at the ends of their ranges: refused while a plan is made, by the name of the key."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from daskrado.domain import Domain
from daskrado.errors import UsageError
from daskrado.learners.auto import Auto
from daskrado.learners.gradient import PrivateGradient
from daskrado.privacy.ledger import Ledger
from daskrado.privacy.noise import MAX_SCALE
from daskrado.privacy.perturbation import Facts
from daskrado.relations import Relation
from daskrado.runs.pipeline import make_pipeline
from daskrado.runs.plan import Plan, make_plan

DOMAIN = Domain.model_validate(
    {
        "label": {"column": "y", "positive": 1, "negative": 0},
        "norm_bound": 1.0,
        "columns": {"x": {"kind": "numeric", "lower": -1, "upper": 1}},
    }
)
SCARCE = Facts(10**8, 3, 1.0, Relation.ADD_REMOVE, 0.001, 1e-9)  # noise of some 10^5 rows on each sum


def lake() -> pd.DataFrame:
    x = np.linspace(-1, 1, 60)
    return pd.DataFrame({"x": x, "y": (x > 0.1).astype(int)})


def planned(learner: dict[str, Any], *, epsilon: float = 2.0, **more: Any) -> Plan:
    content = {
        "dataset": "c",
        "lake": lake(),
        "domain": DOMAIN,
        "output": ".",
        "learner": learner,
        "protect": {"relation": "add_remove", "unit": "one record"},
        "budget": {"epsilon": epsilon, "delta": 1e-9},
        "rows": 10**8,
    }
    return make_plan(make_pipeline(**content | more))


def test_noise_of_gradients_has_room_on_a_coarse_lattice() -> None:
    """The sampler takes up to 2^52 steps of 2^-(bits + 16)."""
    with pytest.raises(UsageError, match=r"lower lattice_bits \(now 20\)"):
        PrivateGradient().guarantee(SCARCE)
    coarse = replace(SCARCE, lattice_bits=4)
    PrivateGradient().guarantee(coarse)
    noise = PrivateGradient().schedule(coarse).noise
    assert noise * 2**20 < MAX_SCALE < noise * 2**36
    assert planned({"kind": "gradient"}, epsilon=0.001, lattice_bits=4).facts == replace(coarse, width=DOMAIN.width)


def test_a_plan_refuses_the_fine_lattice_that_a_run_would(own_ledger: Any) -> None:
    planned({"kind": "gradient"}, epsilon=0.02)
    with pytest.raises(UsageError, match=r"lower lattice_bits \(now 26\)"):
        planned({"kind": "gradient"}, epsilon=0.02, lattice_bits=26)
    with pytest.raises(UsageError, match="too many rows"):
        PrivateGradient().guarantee(replace(SCARCE, relation=Relation.REPLACE_ONE, epsilon=1.0))
    assert not own_ledger.exists() or not Ledger.open(own_ledger).entries()


def test_auto_takes_another_learner_where_gradients_have_no_room() -> None:
    auto = Auto()
    assert auto.chosen(replace(SCARCE, lattice_bits=4)).name == "gradient"
    left = [one.name for _, one in auto.ranked(SCARCE)]
    assert sorted(left) == ["objective_perturbation", "output_perturbation"]
    assert auto.guarantee(SCARCE) == auto.chosen(SCARCE).guarantee(SCARCE)
    assert left[0] in dict(auto.forecast(SCARCE))["chooses"]
    assert planned({"kind": "auto"}, epsilon=0.001).statement.epsilon == pytest.approx(0.001)


def test_auto_refuses_where_every_learner_does() -> None:
    with pytest.raises(UsageError, match="too small for 100 rows"):
        Auto().guarantee(replace(SCARCE, rows=100))
