"""Twenty thousand categories: a pass costs by columns, not by features, and moments are refused in one line."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import daskrado
from daskrado.errors import UsageError
from daskrado.lake.collect import open_passes
from daskrado.lake.row_store import row_bytes
from daskrado.lake.scan import open_lake
from daskrado.losses.margin import Huber, Logistic
from daskrado.statistics.risk import Risk, RiskSum
from daskrado.statistics.slopes import SLOPE_BITS, SlopeSum
from daskrado.table.domain import Domain
from daskrado.table.lattice import Lattice

CATEGORIES = 20_000
DOMAIN = Domain.model_validate(
    {
        "label": {"column": "y", "positive": True, "negative": False},
        "norm_bound": 1.5,
        "columns": {
            "code": {"kind": "categorical", "values": [f"c{i:05}" for i in range(CATEGORIES)]},
            "x": {"kind": "numeric", "lower": -1, "upper": 1},
        },
    }
)
DRAW = np.random.default_rng(5)
CODES = DRAW.integers(0, CATEGORIES, 400)
TABLE = pd.DataFrame(
    {"code": [f"c{i:05}" for i in CODES], "x": DRAW.uniform(-1, 1, 400), "y": DRAW.random(400) < 0.5}
)


def test_a_kept_row_has_two_bytes_for_its_category() -> None:
    assert row_bytes(DOMAIN, seeded=False, grouped=False) == 2 + 4 + 1 + 4 + 1


def test_gradients_are_the_naive_sums() -> None:
    """Row by row in plain NumPy, on what a 1 and x are worth after clipping."""
    weights = DRAW.normal(size=DOMAIN.width)
    lattice = Lattice(DOMAIN.norm_bound)
    with open_passes(open_lake(TABLE, DOMAIN), DOMAIN, lattice) as passes:
        slopes = passes.sum(SlopeSum.at(weights, Huber(0.5), lattice)).vector * 2.0 ** -(20 + SLOPE_BITS)
        risk = Risk.of(passes.sum(RiskSum(DOMAIN.width, Logistic(), weights, lattice, 400, second=False)))
    x, y = TABLE.x.to_numpy(), np.where(TABLE.y, 1.0, -1.0)
    shrink = 1 / np.maximum(1.5, np.sqrt(2 + x * x))
    margins = y * shrink * (weights[CODES] + x * weights[-2] + weights[-1])
    factors = y * shrink * Huber(0.5).slope(margins)
    expected = np.zeros(DOMAIN.width)
    np.add.at(expected, CODES, factors)
    expected[-2:] = factors @ x, factors.sum()
    np.testing.assert_allclose(slopes, expected, atol=400 * 2.0**-15)
    assert risk.value == pytest.approx(np.logaddexp(0, -1.5 * margins).sum(), rel=1e-4)


def test_a_private_model_of_so_many_categories_is_learned() -> None:
    learner = {"kind": "gradient", "steps": 2}
    budget = {"epsilon": 8.0, "delta": 1e-6, "first_limit": (9.0, 1e-5)}
    found = daskrado.fit(TABLE, DOMAIN, dataset="many", relation="replace_one", learner=learner, **budget)
    assert found.model.weights.shape == (CATEGORIES + 3,)


def test_their_moments_are_refused_with_their_size_and_a_way_out() -> None:
    """20,003 + 20,003 * 20,004 / 2 numbers of eight bytes."""
    with pytest.raises(UsageError, match=r"20,003 features are 200,090,009 numbers, 1\.6 GB .* learner gradient"):
        daskrado.fit(TABLE, DOMAIN, dataset="many", epsilon=1.0, delta=1e-6, first_limit=(2.0, 1e-5))
