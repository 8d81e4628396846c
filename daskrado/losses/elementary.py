"""exp and log1p by public tables: the same bits with every library and processor.

Libraries differ in the last digit of ``exp``, and so would sums over rows. Here there are only table look-ups,
additions, products and quotients of doubles, which IEEE 754 fixes. The tables are rounded correctly from thirty
digits. Both functions are within ULPS units in the last place (tests/losses/test_elementary.py, by mpmath). Compiled
loops do the same operations.
"""

from __future__ import annotations

import math
from decimal import Context, Decimal
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from daskrado.table import inner_loops as loops
from daskrado.table.inner_loops import STEPS

Vector = NDArray[np.float64]

ULPS = 4
_FARTHEST = 708.0  # exp(-708) is the last that is no subnormal number
_EXP = np.array([(-1.0) ** n / math.factorial(n) for n in range(7)])  # exp(-r), r below 1/64
_LOG = np.array([(-1.0) ** n / (n + 1) for n in range(8)])  # log1p(t) / t, t below 1/64


def exp_minus(a: Vector) -> Vector:
    """exp(-a) for a >= 0, and exp(-708) beyond 708: a product of two table entries and a polynomial.

    >>> exp_minus(np.array([0.0, 1.0])).tolist()
    [1.0, 0.36787944117144233]
    """
    whole, parts, *_ = exp_tables()
    if (loop := loops.compiled("exp_minus")) is not None:
        loop(np.ascontiguousarray(a).ravel(), *exp_tables(), out := np.empty(a.size))
        return out.reshape(a.shape)
    a = np.minimum(a, _FARTHEST)
    at = (a * STEPS).astype(np.int64)
    found = _polynomial(_EXP, a - at * (1.0 / STEPS))
    found *= whole[at // STEPS]
    found *= parts[at % STEPS]
    return found


def log_one_plus(s: Vector) -> Vector:
    """log(1 + s) for s in [0, 1]: with c the last of 64 steps before s, log(1 + c) + log1p((s - c) / (1 + c)).

    >>> log_one_plus(np.array([0.0, 1.0])).tolist()
    [0.0, 0.6931471805599453]
    """
    table = _log_table()
    if (loop := loops.compiled("log_one_plus")) is not None:
        loop(np.ascontiguousarray(s).ravel(), table, _LOG, out := np.empty(s.size))
        return out.reshape(s.shape)
    at = (s * STEPS).astype(np.int64)
    before = at * (1.0 / STEPS)
    rest = (s - before) / (1.0 + before)
    return np.asarray(table[at] + rest * _polynomial(_LOG, rest))


def _polynomial(coefficients: Vector, x: Vector) -> Vector:
    total = np.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        total *= x
        total += coefficient
    return total


@lru_cache(maxsize=1)
def exp_tables() -> tuple[Vector, Vector, Vector, float]:
    """exp(-n) for whole n, exp(-n / STEPS) below 1, the polynomial between, and where it ends: for compiled loops."""
    exact = Context(prec=30)
    whole = [float(exact.exp(Decimal(-n))) for n in range(int(_FARTHEST) + 1)]
    parts = [float(exact.exp(exact.divide(Decimal(-n), Decimal(STEPS)))) for n in range(STEPS)]
    return np.array(whole), np.array(parts), _EXP, _FARTHEST


@lru_cache(maxsize=1)
def _log_table() -> Vector:
    exact = Context(prec=30)
    return np.array([float(exact.ln(exact.divide(Decimal(STEPS + n), Decimal(STEPS)))) for n in range(STEPS + 1)])
