"""Budgets and options at the ends of their ranges: refused while a plan is made, by the name of the key."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import daskrado
from daskrado.errors import UsageError
from daskrado.jobs.learn import LearnJob
from daskrado.learners.on_passes.auto import Auto
from daskrado.learners.on_passes.erm import OutputPerturbation
from daskrado.learners.on_passes.gradient import PrivateGradient
from daskrado.learners.on_passes.iterative import noise_to_signal
from daskrado.ledger.ledger import Ledger
from daskrado.losses.margin import Huber, SmoothHinge
from daskrado.privacy.accountant import gaussian_sigma
from daskrado.privacy.noise import MAX_SCALE
from daskrado.privacy.perturbation import PublicFacts
from daskrado.privacy.relations import Relation
from daskrado.table.domain import Domain
from daskrado.table.yaml_file import parse

DOMAIN = Domain.model_validate(
    {
        "label": {"column": "y", "positive": 1, "negative": 0},
        "norm_bound": 1.0,
        "columns": {"x": {"kind": "numeric", "lower": -1, "upper": 1}},
    }
)
SCARCE = PublicFacts(10**7, 3, 1.0, Relation.REPLACE_ONE, 0.001, 1e-9)  # noise of some 10^5 rows on each sum
FINE = replace(SCARCE, lattice_bits=24)


def lake() -> pd.DataFrame:
    x = np.linspace(-1, 1, 60)
    return pd.DataFrame({"x": x, "y": (x > 0.1).astype(int)})


def planned(learner: dict[str, Any], *, epsilon: float = 2.0, **more: Any) -> LearnJob:
    content = {
        "dataset": "c",
        "lake": lake(),
        "domain": DOMAIN,
        "output": ".",
        "learner": learner,
        "protect": {"relation": "replace_one", "unit": "one record"},
        "budget": {"epsilon": epsilon, "delta": 1e-9},
        "rows": 10**7,
    }
    job = parse(LearnJob, content | more, "pipeline")
    job.charges()
    return job


def test_noise_of_gradients_has_room_on_a_coarse_lattice() -> None:
    """The sampler takes up to 2^52 steps of 2^-(bits + 16)."""
    with pytest.raises(UsageError, match=r"lower lattice_bits \(now 24\)"):
        PrivateGradient().guarantee(FINE)
    coarse = replace(SCARCE, lattice_bits=4)
    PrivateGradient().guarantee(coarse)
    noise = PrivateGradient().schedule(coarse).noise
    assert noise * 2**20 < MAX_SCALE < noise * 2**40
    assert planned({"kind": "gradient"}, epsilon=0.001, lattice_bits=4).facts == replace(
        coarse, width=DOMAIN.width, numbers=1
    )


def test_a_plan_refuses_the_fine_lattice_that_a_run_would(own_ledger: Any) -> None:
    planned({"kind": "gradient"}, epsilon=0.02)
    with pytest.raises(UsageError, match=r"lower lattice_bits \(now 26\)"):
        planned({"kind": "gradient"}, epsilon=0.02, lattice_bits=26)
    with pytest.raises(UsageError, match="too many rows"):
        PrivateGradient().guarantee(replace(SCARCE, rows=10**10, epsilon=1.0))
    secret = {"protect": {"relation": "add_remove", "unit": "one record"}}
    assert planned({"kind": "gradient"}, **secret).lattice.bits == 11
    assert planned({"kind": "output_perturbation"}, **secret).lattice.bits == OutputPerturbation.default_bits
    with pytest.raises(UsageError, match="lattice_bits must be at most 14 for gradients under a relation"):
        planned({"kind": "gradient"}, lattice_bits=15, **secret)
    assert not own_ledger.exists() or not Ledger.open(own_ledger).entries()


def test_auto_takes_another_learner_where_gradients_have_no_room() -> None:
    auto = Auto()
    assert auto.chosen(replace(SCARCE, lattice_bits=4)).name == "gradient"
    left = [one.name for _, one in auto.ranked(FINE)]
    assert sorted(left) == ["objective_perturbation", "output_perturbation"]
    assert auto.guarantee(FINE) == auto.chosen(FINE).guarantee(FINE)
    assert left[0] in dict(auto.forecast(FINE))["chooses"]
    assert planned({"kind": "auto"}, epsilon=0.001, lattice_bits=24).charges()[0].statement.epsilon == pytest.approx(
        0.001
    )


def test_auto_refuses_where_every_learner_does() -> None:
    with pytest.raises(UsageError, match="too small for 100 rows"):
        Auto().guarantee(replace(SCARCE, rows=100))


@pytest.mark.parametrize(
    ("learner", "more", "said"),
    [
        ({"kind": "objective_perturbation", "regularisation": 1e-320}, {}, "regularisation.*between 1e-30 and 1e30"),
        ({"kind": "output_perturbation", "regularisation": 1e308}, {}, "regularisation.*between 1e-30 and 1e30"),
        ({"kind": "output_perturbation", "regularisation": 0}, {}, "regularisation must be above 0"),
        ({"kind": "gradient", "h": 1e-308}, {}, "h must be between 1e-6 and 1e6, got 1e-308"),
        ({"kind": "objective_perturbation", "loss": "huber", "h": 1e-320}, {}, "h must be between"),
        ({"kind": "gradient", "length": 1e308}, {}, r"learner\S*length"),
        ({"kind": "gradient", "length": 1e-320}, {}, r"learner\S*length"),
        ({"kind": "gradient"}, {"rows": 10**400}, "rows"),
    ],
)
def test_a_number_that_no_arithmetic_could_hold_is_refused_at_reading(
    own_ledger: Any, learner: dict[str, Any], more: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        planned(learner, **more)
    assert not own_ledger.exists()


@pytest.mark.parametrize("loss", [Huber, SmoothHinge])
def test_a_corner_has_a_least_and_a_largest_width(loss: Any) -> None:
    assert loss(1e-6).smoothness < 1e6 < loss(1e-6).smoothness * 2.5
    for h in (0.0, -1.0, 9e-7, 1.1e6, float("nan"), float("inf")):
        with pytest.raises(UsageError, match="h must be between 1e-6 and 1e6"):
            loss(h)


@pytest.mark.parametrize(
    "learner",
    [
        *({"kind": kind, "regularisation": r} for kind in ("output", "objective") for r in (1e-30, 1e30)),
        *({"kind": "objective", "loss": "smooth_hinge", "h": h} for h in (1e-6, 1e6)),
        *({"kind": "gradient", "length": length} for length in (1e-6, 1e6)),
    ],
    ids=lambda learner: "-".join(str(value) for value in learner.values()),
)
@pytest.mark.filterwarnings("error")
def test_what_is_allowed_at_the_ends_of_a_range_runs(learner: dict[str, Any]) -> None:
    kind = learner["kind"] if learner["kind"] == "gradient" else f"{learner['kind']}_perturbation"
    budget = {"relation": "replace_one", "epsilon": 2.0, "delta": 1e-6, "first_limit": (30, 1e-3)}
    weights = daskrado.fit(lake(), DOMAIN, dataset="c", learner=learner | {"kind": kind}, **budget).model.weights
    assert np.isfinite(weights).all()
    assert weights.any()


def test_pure_learners_are_held_against_the_noise_that_they_draw() -> None:
    """100 features: L2-gamma noise is d / epsilon long, Gaussian noise sqrt(d) sigma, which is less; at 3 more."""
    wide = PublicFacts(20_000, 100, 1.0, Relation.REPLACE_ONE, 0.008, 1e-3)
    sigma = gaussian_sigma(0.008, 1e-3)
    assert noise_to_signal(wide) == pytest.approx(2 * 10 * sigma / 20_000)
    assert noise_to_signal(replace(wide, delta=0.0)) == pytest.approx(2 * 100 / 0.008 / 20_000)
    assert noise_to_signal(wide) < 1 < noise_to_signal(replace(wide, delta=0.0))
    assert [one.name for _, one in Auto().ranked(wide)] == ["gradient", "objective_perturbation"]
    narrow = PublicFacts(20_000, 2, 1.0, Relation.REPLACE_ONE, 0.0003, 1e-12)
    assert noise_to_signal(narrow) == noise_to_signal(replace(narrow, delta=0.0)) < 1
    OutputPerturbation().guarantee(narrow)
    with pytest.raises(UsageError, match="too small"):
        PrivateGradient().guarantee(narrow)


def test_a_plan_refuses_a_pure_learner_whose_own_noise_is_too_much() -> None:
    columns = {f"x{i}": {"kind": "numeric", "lower": -1, "upper": 1} for i in range(100)}
    wide = Domain.model_validate(DOMAIN.model_dump() | {"columns": columns})
    budget = {"epsilon": 0.008, "delta": 1e-3}
    common: dict[str, Any] = {"domain": wide, "budget": budget, "rows": 10_000, "lake": "nowhere.parquet"}
    with pytest.raises(UsageError, match=r"epsilon 0\.008 is too small"):
        planned({"kind": "output_perturbation"}, **common)
    planned({"kind": "gradient"}, **common)
