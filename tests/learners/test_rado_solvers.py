"""The rado moment solver and the Newton minimiser against closed forms over all rados."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import minimize

from daskrado.bounds.rado_risk import all_rados, log_exponential_risk, logistic_risk
from daskrado.errors import UsageError
from daskrado.learners import RadoBoost, RadoMoments, RadoNewton


def some_edges(m: int = 9, d: int = 3, seed: int = 0) -> np.ndarray:
    draw = np.random.default_rng(seed)
    return draw.normal(size=(m, d)) + 0.6


def test_over_all_rados_the_moment_solver_is_least_squares() -> None:
    """Mean = sum of edges / 2 and Cov = edges' edges / 4: theta is twice the least-squares fit of 1 by the edges."""
    edges = some_edges()
    theta, details = RadoMoments(0.0).learn(all_rados(edges))
    least_squares = np.linalg.lstsq(edges, np.ones(len(edges)), rcond=None)[0]
    bessel = (2 ** len(edges) - 1) / 2 ** len(edges)
    assert theta == pytest.approx(2 * bessel * least_squares, rel=1e-9)
    assert details["flat_directions"] == 0


def test_ridge_and_flat_directions() -> None:
    rados = np.column_stack([np.arange(6.0), np.zeros(6), np.ones(6)])
    theta, details = RadoMoments(regularisation=0.0).learn(rados)
    assert theta[1] == theta[2] == 0
    assert theta[0] == pytest.approx(2.5 / 3.5)  # mean over sample variance
    assert details["dropped_features"] == 1
    assert details["flat_directions"] == 2
    ridged, _ = RadoMoments(regularisation=1.0).learn(rados)
    assert ridged[0] == pytest.approx(2.5 / (3.5 + 3.5 / 3))
    with pytest.raises(UsageError, match="at least 2 rados"):
        RadoMoments().learn(rados[:1])


@pytest.mark.parametrize(("count", "width"), [(12, 3), (40, 60), (500, 8)])
def test_the_default_ridge_is_the_shrinkage_of_ledoit_and_wolf(count: int, width: int) -> None:
    from sklearn.covariance import ledoit_wolf

    rados = np.random.default_rng(width).normal(size=(count, width)) * np.arange(1, width + 1) + 3
    theta, details = RadoMoments().learn(rados)
    covariance, shrinkage = ledoit_wolf(rados)
    assert details["ridge"] == pytest.approx(shrinkage / max(1 - shrinkage, 1e-9))
    expected = np.linalg.solve(covariance, rados.mean(axis=0))
    assert theta / np.linalg.norm(theta) == pytest.approx(expected / np.linalg.norm(expected), abs=1e-6)


def test_alike_in_all_directions_needs_no_ridge() -> None:
    corners = np.array([[3.0, 4.0], [3.0, 2.0], [1.0, 4.0], [1.0, 2.0]])
    theta, details = RadoMoments().learn(corners)
    assert details["ridge"] == 0.0
    assert theta == pytest.approx(np.array([2.0, 3.0]) * 3 / 4)


def problem(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Six kinds of classification problem: one real, five drawn from a public seed."""
    if name == "breast cancer":
        from sklearn.datasets import load_breast_cancer

        x, y = load_breast_cancer(return_X_y=True)
        return (x - x.mean(axis=0)) / x.std(axis=0), 2.0 * y - 1
    draw = np.random.default_rng(17)
    x = draw.normal(size=(4000, 20))
    if name == "correlated":
        x = x @ (np.eye(20) + 0.6 * draw.normal(size=(20, 20)))
    elif name == "sparse binary":
        x = np.where(draw.random(x.shape) < 0.1, 1.0, 0.0)
    elif name == "heavy tails":
        x = draw.standard_t(3, size=x.shape)
    truth = draw.normal(size=20)
    score = x @ truth / np.std(x @ truth)
    y = np.sign(score + 0.4 * draw.normal(size=len(x)) - (1.0 if name == "imbalanced" else 0.0))
    return (x - x.mean(axis=0)) / x.std(axis=0), y


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["breast cancer", "isotropic", "correlated", "sparse binary", "heavy tails", "imbalanced"]
)
def test_better_than_boosting_from_the_same_rados(name: str) -> None:
    """Mean test error over five splits, both from the same i.i.d. rados, boosting kept by rado risk."""
    x, y = problem(name)
    mistakes = np.zeros(2)
    for split in range(5):
        draw = np.random.default_rng(100 + split)
        order = draw.permutation(len(y))
        test, train = order[: len(y) // 5], order[len(y) // 5 :]
        count = min(1000, len(train) // 2)
        members = draw.random((count, len(train))) < 0.5
        rados = members.astype(float) @ (x[train] * y[train, None])
        for place, learner in enumerate((RadoMoments(), RadoBoost(rounds=1000, clamp=0.8))):
            theta = learner.learn(rados)[0]
            mistakes[place] += np.mean(y[test] * (x[test] @ theta) <= 0) / 5
    assert mistakes[0] < mistakes[1]


@pytest.mark.parametrize("ridge", [0.05, 1.0, 20.0])
def test_over_all_rados_newton_is_ridge_logistic_regression(ridge: float) -> None:
    """Lemma 2 turns the rado objective into m times the logistic risk plus the same penalty."""
    edges = some_edges(8)
    rados = all_rados(edges)
    theta, _ = RadoNewton(regularisation=ridge).learn(rados)
    penalty = ridge * rados.var(axis=0).mean()

    def objective(point: np.ndarray) -> float:
        return len(edges) * logistic_risk(edges, point) + penalty / 2 * float(point @ point)

    best = minimize(objective, np.zeros(3), method="BFGS", options={"gtol": 1e-10})
    assert theta == pytest.approx(best.x, abs=1e-6)


def test_newton_ends_at_a_zero_gradient_even_where_the_rados_are_separable() -> None:
    draw = np.random.default_rng(3)
    rados = draw.normal(size=(40, 60)) * 30 + 5  # more features than rados: separable
    learner = RadoNewton(regularisation=0.01)
    theta, details = learner.learn(rados)
    assert np.isfinite(theta).all()
    penalty = learner.regularisation * rados.var(axis=0).mean()
    risk = log_exponential_risk(rados, theta)
    weights = np.exp(-rados @ theta - risk) / len(rados)
    assert np.linalg.norm(penalty * theta - weights @ rados) < 1e-6 * np.linalg.norm(weights @ rados)
    assert details["log_rado_risk"] == pytest.approx(risk)
    assert details["newton_steps"] < 100


def test_nothing_to_learn_is_zero() -> None:
    theta, _ = RadoNewton().learn(np.zeros((4, 2)))
    assert not theta.any()


@pytest.mark.parametrize("ridge", [0.0, -1.0, math.nan, math.inf])
def test_newton_needs_a_ridge(ridge: float) -> None:
    with pytest.raises(UsageError, match="separable rados have no minimiser"):
        RadoNewton(regularisation=ridge)


def test_fewer_rados_than_features_are_a_problem_of_their_span() -> None:
    """40 rados of 60 features, spread over 20,000 columns of zeros: the same weights there, elsewhere 0."""
    small = np.random.default_rng(5).normal(size=(40, 60)) + 0.3
    places = np.arange(60) * 331
    wide = np.zeros((40, 20_000))
    wide[:, places] = small
    ridge, v = 0.7, float(small.var(axis=0).mean())

    def risk(theta: np.ndarray) -> float:
        return float(np.log(np.exp(-small @ theta).mean()) + ridge * v * theta @ theta / 2)

    centred = small - small.mean(axis=0)
    covariance = centred.T @ centred / 39
    solved = np.linalg.solve(covariance + ridge * np.trace(covariance) / 60 * np.eye(60), small.mean(axis=0))
    minimum = minimize(risk, np.zeros(60), method="BFGS", options={"gtol": 1e-9}).x
    for learner, expected in ((RadoMoments, solved), (RadoNewton, minimum)):
        found, _ = learner(regularisation=ridge * 20_000 / 60).learn(wide)  # v is a mean over all columns
        assert found[places] == pytest.approx(expected, abs=1e-6)
        assert np.abs(np.delete(found, places)).max() < 1e-12
