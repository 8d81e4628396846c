"""exp and log by tables: against fifty digits of mpmath, and the same bits from both forms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
from loop_forms import both

from daskrado.losses.elementary import ULPS, exp_minus, log_one_plus
from daskrado.losses.margin import Logistic
from daskrado.table import inner_loops as loops

DRAW = np.random.default_rng(1)
SIZES = np.concatenate(
    [DRAW.random(400) * 708, DRAW.random(400), DRAW.random(400) * 1e-9, np.arange(800) / 64, [0.0, 708.0, 1e-300]]
)
SHARES = np.concatenate([DRAW.random(400), 10.0 ** -DRAW.uniform(0, 300, 400), np.arange(65) / 64])


@pytest.mark.parametrize(
    ("ours", "true", "where"),
    [(exp_minus, lambda a: mpmath.exp(-a), SIZES), (log_one_plus, lambda s: mpmath.log1p(s), SHARES)],
)
def test_within_the_declared_error(ours: Callable[..., Any], true: Callable[..., Any], where: np.ndarray) -> None:
    with mpmath.workdps(50):
        for x, found in zip(where.tolist(), ours(where).tolist(), strict=True):
            assert abs(mpmath.mpf(found) - true(mpmath.mpf(x))) <= ULPS * mpmath.mpf(float(np.spacing(found)))


@pytest.mark.parametrize("ours", [exp_minus, log_one_plus])
def test_a_number_does_not_depend_on_those_beside_it(ours: Callable[..., Any]) -> None:
    """Libraries take other instructions for the rest of a vector; tables do not."""
    whole = ours(SHARES)
    for start in range(0, len(SHARES), 7):
        assert ours(SHARES[start : start + 7]).tobytes() == whole[start : start + 7].tobytes()


@pytest.mark.slow
def test_compiled_loops_give_the_same_bits() -> None:
    fast, plain = both(lambda: [exp_minus(SIZES), log_one_plus(SHARES), *Logistic().derivatives(SIZES - 300)])
    assert {"exp_minus", "log_one_plus"} <= set(loops._compiled)
    for a, b in zip(fast, plain, strict=True):
        assert a.tobytes() == b.tobytes()


def test_the_logistic_loss_keeps_its_constants_at_every_table_entry() -> None:
    """A slope in [-1, 0), rising, and curvature of at most 1/4: also beside each step of the tables."""
    near = (np.arange(0, 708 * 64) / 64)[:, None] + np.array([-1e-9, 0.0, 1e-9])
    z = np.sort(np.concatenate([near.ravel(), -near.ravel()]))
    slopes = Logistic().slope(z)
    assert slopes.min() >= -1.0
    assert slopes.max() < 0.0
    assert (np.diff(slopes) >= -ULPS * np.spacing(np.abs(slopes[1:]))).all()
    assert Logistic().curvature(z).max() <= 0.25 * (1 + 2.0**-50)
    np.testing.assert_array_equal(Logistic().slope(z), Logistic().derivatives(z)[1])


def test_matrices_are_taken_entry_by_entry() -> None:
    """With compiled loops, which are for vectors, and without them."""
    table = np.abs(np.random.default_rng(6).normal(size=(5, 7)))[:, ::2]
    for function in (exp_minus, lambda values: log_one_plus(values / (1 + values))):
        for found in both(lambda f=function: f(table)):
            assert found.shape == table.shape
            assert (found.ravel() == function(table.ravel())).all()
