"""The lattice: the integer norm never exceeds the bound, whatever the row."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daskrado.errors import UsageError
from daskrado.table.lattice import Lattice

finite = st.floats(-1e9, 1e9, allow_nan=False)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(
    row=st.lists(finite, min_size=1, max_size=40),
    bits=st.integers(4, 26),
    bound=st.floats(1e-3, 1e3),
    at_bound=st.booleans(),
)
def test_integer_rows_fit_the_bound_exactly(row: list[float], bits: int, bound: float, at_bound: bool) -> None:
    lattice = Lattice(bound, bits)
    x = np.array([row])
    norm = float(np.linalg.norm(x))
    if at_bound and norm > 0:
        x *= bound / norm  # within rounding of the bound: the dangerous place
    q = lattice.quantise(np.asfortranarray(x.copy()))
    whole = [int(v) for v in q[0]]
    assert whole == q[0].tolist()
    assert sum(v * v for v in whole) <= 4**bits
    limit = np.abs(x[0]) / lattice.step
    assert all(abs(v) <= math.ceil(top) for v, top in zip(whole, limit, strict=True))
    assert all(v == 0 or (v > 0) == (given > 0) for v, given in zip(whole, x[0], strict=True))


def test_many_rows_at_the_bound_fit_in_every_dimension() -> None:
    draw = np.random.default_rng(0)
    for width in (1, 2, 3, 28, 100, 700):
        for bits in (8, 20, 26):
            x = draw.normal(size=(4000, width))
            x /= np.linalg.norm(x, axis=1)[:, None]
            q = Lattice(1.0, bits).quantise(np.asfortranarray(x * draw.choice([1.0, 1 + 1e-15, 3.0], size=(4000, 1))))
            exact = (q.astype(np.int64) ** 2).sum(axis=1)
            assert exact.max() <= 4**bits


def test_rows_inside_are_truncated_toward_zero_not_scaled() -> None:
    q = Lattice(2.0, 4).quantise(np.array([[0.249, -0.251, 1.0]], order="F"))
    assert q.tolist() == [[1.0, -2.0, 8.0]]


def test_truncation_is_odd() -> None:
    x = np.random.default_rng(1).normal(size=(500, 6))
    lattice = Lattice(1.5, 10)
    assert np.array_equal(lattice.quantise(np.asfortranarray(-x)), -lattice.quantise(np.asfortranarray(x)))


def test_the_overflow_guard_speaks_before_int64_does() -> None:
    lattice = Lattice(1.0, 20)
    lattice.guard(2**42, 2**20)
    with pytest.raises(UsageError, match="lower lattice_bits"):
        lattice.guard(2**42 + 1, 2**20)


@pytest.mark.parametrize(("bound", "bits"), [(0, 20), (-1, 20), (math.nan, 20), (math.inf, 20), (1, 3), (1, 27)])
def test_bad_lattices_are_refused(bound: float, bits: int) -> None:
    with pytest.raises(UsageError):
        Lattice(bound, bits)
