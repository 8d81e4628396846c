"""Calibration of output and objective perturbation: against the theorems' own inequalities, on real minimisers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from daskrado.errors import UsageError
from daskrado.losses.margin import Huber, Logistic, Loss, SmoothHinge, Square
from daskrado.privacy.perturbation import PublicFacts, objective_gamma, objective_gaussian, output_scale, reach
from daskrado.privacy.relations import Relation

PAPER = PublicFacts(40_698, 105, 1.0, Relation.REPLACE_ONE, 0.1)
LOSSES = [Logistic(), Huber(0.5), SmoothHinge(0.5)]


def test_published_figures_of_the_paper_and_of_its_repair() -> None:
    """Lambda + Delta and E|b| / (n (Lambda + Delta)) at n = 40,698, epsilon 0.1, logistic."""
    noise = objective_gamma(Logistic(), 1e-10, PAPER, 0.1)
    assert 1e-10 + noise.extra == pytest.approx(2.43e-4, rel=0.01)
    tilted = objective_gamma(Logistic(), 1.2e-4, PAPER, 0.1)
    assert tilted.expected_norm(105) / 40_698 / (1.2e-4 + tilted.extra) == pytest.approx(425, rel=0.01)
    # Output perturbation: beta = n Lambda epsilon / 2.
    assert output_scale(Logistic(), 1e-2, PAPER, 0.1, 0.0) == pytest.approx(2 / (40_698 * 1e-2 * 0.1))


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
@pytest.mark.parametrize("bound", [0.5, 1.0, 3.0])
def test_output_noise_scales_with_the_norm_bound_and_the_curvature_with_its_square(loss: Loss, bound: float) -> None:
    facts = PublicFacts(1000, 4, bound, Relation.REPLACE_ONE, 1.0)
    assert output_scale(loss, 0.1, facts, 1.0, 0.0) == pytest.approx(2 * bound / (1000 * 0.1))
    noise = objective_gamma(loss, 0.1, facts, 1.0)
    assert loss.smoothness is not None
    assert noise.slack == pytest.approx(2 * math.log1p(loss.smoothness * bound**2 / 100))
    assert noise.scale == pytest.approx(2 * bound / (1 - noise.slack))


def test_noise_is_continuous_where_the_branches_meet() -> None:
    curve = 0.25 / PAPER.rows
    meet = curve / math.expm1(0.1 / 4)
    left = objective_gamma(Logistic(), meet * (1 - 1e-9), PAPER, 0.1)
    right = objective_gamma(Logistic(), meet * (1 + 1e-9), PAPER, 0.1)
    assert left.scale == pytest.approx(right.scale, rel=1e-6)
    assert left.extra == pytest.approx(right.extra, abs=1e-11)
    assert right.extra == 0.0


def data(relation: Relation, seed: int, n: int = 5, d: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Two neighbouring sets of signed rows y x in the unit ball."""
    draw = np.random.default_rng(seed)
    signed = draw.normal(size=(n, d))
    signed /= np.maximum(1.0, np.linalg.norm(signed, axis=1))[:, None]
    other = signed.copy()
    if relation is Relation.ADD_REMOVE:
        return signed, signed[1:]
    if relation is Relation.LABEL_FLIP:
        other[0] = -signed[0]
    else:
        fresh = draw.normal(size=d)
        other[0] = fresh / np.linalg.norm(fresh)
    return signed, other


def density_ratio(
    loss: Loss, a: np.ndarray, b: np.ndarray, w: np.ndarray, total: float, n: int, scale: float
) -> float:
    """log p_a(w) - log p_b(w) for objective perturbation with L2-gamma noise, from the definition."""

    def log_density(rows: np.ndarray) -> float:
        z = rows @ w
        noise = -(rows.T @ loss.slope(z) + n * total * w)
        hessian = rows.T @ (rows * loss.curvature(z)[:, None]) + n * total * np.eye(len(w))
        return -float(np.linalg.norm(noise)) / scale + float(np.linalg.slogdet(hessian)[1])

    return log_density(a) - log_density(b)


@pytest.mark.parametrize("tight", [False, True])
@pytest.mark.parametrize("relation", [Relation.ADD_REMOVE, Relation.REPLACE_ONE, Relation.LABEL_FLIP])
@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_the_minimisers_density_never_changes_by_more_than_epsilon(
    loss: Loss, relation: Relation, tight: bool
) -> None:
    """The exact density of the minimiser, by the change of variables, at many weights and neighbours."""
    epsilon, worst = 0.7, 0.0
    for ridge in (0.01, 0.3):
        facts = PublicFacts(5, 2, 1.0, relation, epsilon)
        noise = objective_gamma(loss, ridge, facts, epsilon, tight=tight)
        draw = np.random.default_rng(9)
        for seed in range(20):
            a, b = data(relation, seed)
            for _ in range(25):
                w = draw.normal(size=2) * draw.choice([0.3, 2.0, 20.0])
                ratio = density_ratio(loss, a, b, w, ridge + noise.extra, 5, noise.scale)
                worst = max(worst, abs(ratio))
    assert worst <= epsilon
    assert worst > 0.4 * epsilon  # far from vacuous: 2/5 of this noise would break the promise


@pytest.mark.slow
def test_the_papers_curvature_constant_for_huber_would_break_the_promise() -> None:
    """With c = 1/4 in place of 1/(2h) = 1 the noise is too small: the density changes by more than epsilon."""
    epsilon, ridge, loss = 0.5, 1.2, Huber(0.5)

    class Wrong(Huber):
        smoothness = 0.25  # type: ignore[assignment]

    facts = PublicFacts(1, 1, 1.0, Relation.REPLACE_ONE, epsilon)
    right = objective_gamma(loss, ridge, facts, epsilon)
    wrong = objective_gamma(Wrong(0.5), ridge, facts, epsilon)
    a, b = np.array([[1.0]]), np.array([[-1.0]])

    def worst(noise: object) -> float:
        return max(
            abs(density_ratio(loss, a, b, np.array([w]), ridge + noise.extra, 1, noise.scale))  # type: ignore[attr-defined]
            for w in np.linspace(-4, 4, 4001)
        )

    assert worst(right) <= epsilon < worst(wrong)


@pytest.mark.parametrize("relation", [Relation.ADD_REMOVE, Relation.REPLACE_ONE, Relation.LABEL_FLIP])
@pytest.mark.parametrize("loss", [Logistic(), SmoothHinge(0.5)], ids=repr)
def test_gaussian_tilt_keeps_its_delta_in_one_dimension_exactly(loss: Loss, relation: Relation) -> None:
    """delta(epsilon) of the minimiser by numerical integration of its exact density, both directions, d = 1."""
    epsilon, delta, ridge, n = 0.8, 1e-2, 0.4, 2
    facts = PublicFacts(n, 1, 1.0, relation, epsilon, delta)
    noise = objective_gaussian(loss, ridge, facts, epsilon, delta)
    total = n * (ridge + noise.extra)
    pairs = {
        Relation.ADD_REMOVE: ([1.0, 0.3], [0.3]),
        Relation.REPLACE_ONE: ([1.0, 0.3], [-1.0, 0.3]),
        Relation.LABEL_FLIP: ([1.0, 0.3], [-1.0, 0.3]),
    }
    a, b = (np.array(rows) for rows in pairs[relation])

    def b_of(rows: np.ndarray, w: np.ndarray) -> np.ndarray:
        return -(loss.slope(np.outer(w, rows)) @ rows + total * w)

    edge = max(brentq(lambda w: b_of(a, np.array([w]))[0] + 40 * noise.scale, 0, 1e4), 1.0)
    grid = np.linspace(-edge, edge, 100_001)

    def density(rows: np.ndarray) -> np.ndarray:
        volume = loss.curvature(np.outer(grid, rows)) @ rows**2 + total
        return norm.pdf(b_of(rows, grid), scale=noise.scale) * volume

    p, q = density(a), density(b)
    step = grid[1] - grid[0]
    assert p.sum() * step == pytest.approx(1.0, abs=1e-3)
    spent = max(np.maximum(one - math.exp(epsilon) * two, 0).sum() * step for one, two in ((p, q), (q, p)))
    assert spent <= delta * (1 + 1e-6)
    if relation is Relation.LABEL_FLIP and loss.odd is not None:
        assert spent == pytest.approx(delta, rel=1e-3)  # a constant shift of the noise: the bound is reached
    if relation is Relation.ADD_REMOVE:
        assert spent > delta / 1000  # not a vacuous bound


def test_gaussian_is_tighter_for_many_features_and_gamma_for_few() -> None:
    wide = PublicFacts(40_000, 105, 1.0, Relation.REPLACE_ONE, 0.1, 1e-6)
    gaussian = objective_gaussian(Logistic(), 1e-3, wide, 0.1, 1e-6)
    gamma = objective_gamma(Logistic(), 1e-3, wide, 0.1)
    assert gaussian.expected_norm(105) < gamma.expected_norm(105)
    assert gaussian.expected_norm(3) > gamma.expected_norm(3)


@pytest.mark.parametrize("relation", list(Relation))
@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_sensitivity_of_the_minimiser_against_brute_force(loss: Loss, relation: Relation) -> None:
    """No neighbour moves the exact minimiser further than reach / (n ridge)."""
    ridge, n = 0.2, 5
    facts = PublicFacts(n, 2, 1.0, relation, 1.0)

    def minimiser(rows: np.ndarray) -> np.ndarray:
        w = np.zeros(rows.shape[1])
        for _ in range(70):  # damped Newton, independent of the library's solver
            z = rows @ w
            gradient = rows.T @ loss.slope(z) / n + ridge * w
            hessian = rows.T @ (rows * loss.curvature(z)[:, None]) / n + ridge * np.eye(2)
            w = w - (0.5 if isinstance(loss, Huber | SmoothHinge) else 1.0) * np.linalg.solve(hessian, gradient)
        return w

    moved = [float(np.linalg.norm(minimiser(a) - minimiser(b))) for a, b in (data(relation, s) for s in range(12))]
    assert max(moved) <= reach(loss, facts) / (n * ridge) * (1 + 1e-9)
    assert max(moved) > 0.1 * reach(loss, facts) / (n * ridge)


def test_bad_input() -> None:
    with pytest.raises(UsageError, match="regularisation must be above 0"):
        output_scale(Logistic(), 0.0, PAPER, 0.1, 0.0)
    with pytest.raises(UsageError, match="no bound on its slope"):
        objective_gamma(Square(), 0.1, PAPER, 0.1)
    with pytest.raises(UsageError, match="one row per unit"):
        objective_gaussian(Logistic(), 0.1, PublicFacts(10, 1, 1.0, Relation.ADD_REMOVE, 1.0, 1e-6, 3), 1.0, 1e-6)


def test_more_rows_per_unit_cost_as_much_more() -> None:
    one = PublicFacts(1000, 4, 1.0, Relation.ADD_REMOVE, 1.0)
    three = PublicFacts(1000, 4, 1.0, Relation.ADD_REMOVE, 1.0, 0.0, 3)
    assert reach(Logistic(), three) == 3 * reach(Logistic(), one)
    assert objective_gamma(Logistic(), 0.5, three, 1.0).slack == pytest.approx(
        3 * objective_gamma(Logistic(), 0.5, one, 1.0).slack
    )
