"""The moment learner against normal equations, and its accuracy with noise."""

from __future__ import annotations

import math

import numpy as np
import pytest

from daskrado.errors import UsageError
from daskrado.learners import MeanLearner, MomentsLearner
from daskrado.privacy.release import Release, release_without_privacy
from daskrado.privacy.statement import PrivacyStatement
from daskrado.statistics import MeanOperator, Moments, Rows, Statistic, Summary
from daskrado.table.lattice import Lattice


def exact(statistic: Statistic, x: np.ndarray, y: np.ndarray, bound: float = 2.0, bits: int = 20) -> Release:
    lattice = Lattice(bound, bits)
    rows = Rows(lattice.quantise(np.asfortranarray(x.copy())), y.astype(np.int8), None)
    return release_without_privacy(Summary(statistic, lattice, statistic.partial(rows), len(y)))


@pytest.fixture
def data() -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(2000, 5)) @ np.diag([1, 0.5, 0.3, 0.2, 0.1])
    x /= np.maximum(1, np.linalg.norm(x, axis=1) / 2)[:, None]
    return x, np.where(x @ [1, -2, 0.5, 1, 3] + 0.2 * draw.normal(size=2000) > 0, 1, -1)


def test_without_noise_it_is_ordinary_least_squares(data: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = data
    weights, details = MomentsLearner().fit(exact(Moments(5), x, y))
    assert weights == pytest.approx(np.linalg.lstsq(x, y, rcond=None)[0], rel=1e-4)
    assert details["ridge"] == 0


def test_the_ridge_is_in_units_of_the_norm_bound(data: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = data
    weights, _ = MomentsLearner(regularisation=30.0).fit(exact(Moments(5), x, y))
    assert weights == pytest.approx(np.linalg.solve(x.T @ x + 30.0 * 4 * np.eye(5), x.T @ y), rel=1e-4)


def test_a_constant_zero_feature_gets_no_weight(data: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = data
    x[:, 2] = 0
    weights, _ = MomentsLearner().fit(exact(Moments(5), x, y))
    assert abs(weights[2]) < 1e-12
    assert np.isfinite(weights).all()


def test_the_default_ridge_is_the_noise_and_negative_eigenvalues_are_cut() -> None:
    width = 3
    second = np.array([5.0, 0, 0, -4.0, 0, 2.0])  # diagonal 5, -4, 2
    values = {"mean": np.array([3.0, 2.0, 1.0]), "second": second}
    release = Release(Moments(width), Lattice(1.0), values, {"mean": 0.5, "second": 0.5}, PrivacyStatement.none())
    weights, details = MomentsLearner().fit(release)
    ridge = 0.5 * math.sqrt(3)
    assert weights == pytest.approx([3 / (5 + ridge), 2 / ridge, 1 / (2 + ridge)])
    assert details == {"ridge": pytest.approx(ridge), "negative_eigenvalues": 1}


def test_the_mean_learner_points_along_the_mean_operator(data: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = data
    expected = (y @ x) / np.linalg.norm(y @ x)
    for statistic in (MeanOperator(5), Moments(5)):
        weights, _ = MeanLearner().fit(exact(statistic, x, y))
        assert weights / np.linalg.norm(weights) == pytest.approx(expected, abs=1e-4)


def test_another_statistic_is_refused(data: tuple[np.ndarray, np.ndarray]) -> None:
    with pytest.raises(UsageError, match="needs the statistic moments, got mean_operator"):
        MomentsLearner().fit(exact(MeanOperator(5), *data))
