"""Rado risks, Lemma 2 and separability."""

from __future__ import annotations

import math

import numpy as np
import pytest

from daskrado.bounds.rado_risk import (
    all_rados,
    log_exponential_risk,
    logistic_rado_risk,
    logistic_risk,
    separability,
)
from daskrado.errors import UsageError


@pytest.mark.parametrize("m", [1, 4, 12])
def test_lemma_two_is_exact_over_all_rados(m: int) -> None:
    draw = np.random.default_rng(m)
    edges, theta = draw.normal(size=(m, 3)), draw.normal(size=3) * 2
    rados = all_rados(edges)
    assert rados.shape == (2**m, 3)
    assert logistic_rado_risk(rados, theta, m) == pytest.approx(logistic_risk(edges, theta), abs=1e-13)


def test_nothing_overflows_at_a_huge_theta() -> None:
    rados = np.array([[1e6], [-1e6]])
    assert log_exponential_risk(rados, np.array([1.0])) == pytest.approx(1e6 - math.log(2))
    with pytest.raises(UsageError, match="up to 20"):
        all_rados(np.zeros((21, 1)))
    with pytest.raises(UsageError, match="at least 1"):
        logistic_rado_risk(rados, np.array([1.0]), 0)


def test_separable_sets_are_found_with_a_witness_and_a_warning() -> None:
    draw = np.random.default_rng(0)
    rados = draw.normal(size=(50, 4)) * 100
    rados[:, 2] = np.abs(rados[:, 2]) + 1
    found = separability(rados)
    assert found.separable
    assert (rados @ found.direction > 0).all()
    assert "infimum 0" in found.warning
    # Its risk really goes to 0 along the witness, whatever the examples are.
    assert log_exponential_risk(rados, found.direction * 1e6) < -1e3


def test_sets_that_no_direction_separates() -> None:
    """A rado and its opposite cannot both have a positive margin; nor can all rados of one edge (0 is among them)."""
    draw = np.random.default_rng(1)
    half = draw.normal(size=(20, 3))
    assert not separability(np.concatenate([half, -half[:1]])).separable
    assert not separability(all_rados(draw.normal(size=(6, 3)))).separable
    assert not separability(np.zeros((3, 2))).separable
    assert separability(np.concatenate([half, -half[:1]])).warning == ""
