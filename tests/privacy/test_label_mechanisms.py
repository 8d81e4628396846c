"""Label privacy of the three noises: privacy loss on real neighbours, an audit, and the published mistake."""

import math

import numpy as np
import pytest
from scipy import stats

from daskrado.errors import UsageError
from daskrado.privacy.mechanisms import DiscreteGaussian, DiscreteLaplace, L2Gamma, Target, mechanism
from daskrado.privacy.noise import discrete_laplace
from daskrado.privacy.relations import Relation
from daskrado.statistics.base import Rows
from daskrado.statistics.label_means import LabelMeans
from daskrado.statistics.mean_operator import MeanOperator
from daskrado.statistics.moments import Moments
from daskrado.table.lattice import Lattice

BITS = 10
LATTICE = Lattice(1.0, BITS)


def features(d, n=30, seed=0):
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(n, d))
    x[0] = 1.0  # all coordinates alike: the worst row for an L1 bound taken from an L2 one
    return LATTICE.quantise(np.asfortranarray(x / np.linalg.norm(x, axis=1, keepdims=True) * 0.999))


def target(x, rows_per_unit=1):
    l1, square = int(np.abs(x).sum(axis=1).max()), int((x.astype(np.int64) ** 2).sum(axis=1).max())
    return Target(LabelMeans(x.shape[1], l1, square, BITS), LATTICE, Relation.LABEL_FLIP, rows_per_unit)


@pytest.mark.parametrize("d", [1, 3, 25, 100])
@pytest.mark.parametrize("alpha", [0.1, 1.0, 3.0])
def test_the_largest_privacy_loss_over_all_flips_is_alpha(d, alpha):
    """Flipping label i moves the integers by 2 x_i: the loss of Laplace noise is |2 x_i|_1 / scale, of L2-gamma noise
    |2 x_i|_2 / scale at worst. Over all rows the maximum is alpha, no more and no less."""
    x = features(d)
    for kind, norm in ((DiscreteLaplace, 1), (L2Gamma, 2)):
        chosen = kind(target(x), alpha)
        scale = chosen.grid_scale(chosen.target.statistic.blocks[0])
        losses = 2 * np.linalg.norm(x, ord=norm, axis=1) / scale
        assert losses.max() <= alpha * (1 + 1e-12)
        assert losses.max() == pytest.approx(alpha, rel=1e-9)


def test_gaussian_is_calibrated_in_l2():
    x = features(9)
    chosen = DiscreteGaussian(target(x), 1.0, 1e-6)
    sigma = chosen.grid_scale(chosen.target.statistic.blocks[0])
    rho = ((2 * np.linalg.norm(x, axis=1)) ** 2 / (2 * sigma**2)).max()
    assert rho <= chosen.event.rho * (1 + 1e-12)
    assert rho == pytest.approx(chosen.event.rho, rel=1e-9)


def test_units_with_several_rows_get_more_noise():
    x = features(4)
    for kind in (DiscreteLaplace, L2Gamma):
        assert kind(target(x, 3), 1.0).scale == pytest.approx(3 * kind(target(x), 1.0).scale)


def test_order_of_the_three_noises():
    """E|b| at d = 100 rows of L2 norm 1 and equal coordinates, alpha = 1: 2 sqrt(d) sqrt(2d) = 280 for Laplace, 2 d =
    200 for L2-gamma, 84.5 for the analytic Gaussian at delta = 1e-6."""
    lattice = Lattice(1.0, 20)
    x = np.full((1, 100), math.floor(0.1 * 2**20), dtype=np.float64)
    statistic = LabelMeans(100, int(x.sum()), int((x**2).sum()), 20)
    std = {
        name: mechanism(name, Target(statistic, lattice, Relation.LABEL_FLIP), 1.0, delta).noise_std()["mean"]
        for name, delta in (("laplace", 0.0), ("l2_gamma", 0.0), ("gaussian", 1e-6))
    }
    length = {name: value * math.sqrt(100) for name, value in std.items()}
    assert length["laplace"] == pytest.approx(280, rel=0.02)
    assert length["l2_gamma"] == pytest.approx(200, rel=0.02)
    assert length["gaussian"] == pytest.approx(84.5, rel=1e-3)


def lower_bound(loss_here, loss_there, alpha_level=0.005):
    """Certified epsilon: the threshold is chosen on half the runs and scored on the other, Clopper-Pearson."""
    half = len(loss_here) // 2
    best = max(
        np.quantile(loss_here[:half], np.linspace(0.05, 0.95, 19)),
        key=lambda t: math.log(
            ((loss_here[:half] >= t).mean() + 1e-9) / ((loss_there[:half] >= t).mean() + 1 / half)
        ),
    )
    hits, false = int((loss_here[half:] >= best).sum()), int((loss_there[half:] >= best).sum())
    n = len(loss_here) - half
    low = stats.beta.ppf(alpha_level, hits, n - hits + 1) if hits else 0.0
    high = stats.beta.ppf(1 - alpha_level, false + 1, n - false)
    return math.log(low / high) if low > 0 else 0.0


def audit(x, scale, runs=3000):
    """Two lakes that differ in the label of row 0, told apart by the exact likelihood ratio of Laplace noise."""
    y = np.ones(len(x))
    here = (y @ x).astype(np.int64)
    y[0] = -1
    there = (y @ x).astype(np.int64)

    def losses(center):
        noisy = discrete_laplace(np.tile(center, runs), scale).reshape(runs, -1)
        return (np.abs(noisy - there) - np.abs(noisy - here)).sum(axis=1) / scale

    return lower_bound(losses(here), losses(there))


def test_an_audit_finds_the_published_scale_and_not_the_repaired_one():
    """Scale 2 / alpha, as published, costs alpha |x|_1 = 5 alpha at d = 25 for a row of equal coordinates."""
    x, alpha = features(25), 3.0
    repaired = DiscreteLaplace(target(x), alpha)
    assert audit(x, repaired.grid_scale(repaired.target.statistic.blocks[0]), 1200) <= alpha
    published = 2.0 / alpha * 2**BITS
    assert 2 * np.abs(x[0]).sum() / published == pytest.approx(5 * alpha, rel=0.01)
    assert audit(x, published, 3000) > alpha


def test_a_planted_scale_is_caught():
    """Half the scale doubles epsilon: the audit must certify more than what was promised."""
    x = features(4)
    right = DiscreteLaplace(target(x), 2.0)
    scale = right.grid_scale(right.target.statistic.blocks[0])
    assert audit(x, scale, 6000) <= 2.0
    assert audit(x, scale / 2, 6000) > 2.0


def test_the_mechanism_draws_what_it_declares_and_only_once():
    x = features(6)
    statistic = target(x).statistic
    vector = statistic.partial(Rows(x, np.ones(len(x), dtype=np.int8)))
    gaps = []
    for _ in range(800):
        chosen = L2Gamma(target(x), 0.5)
        noisy = chosen.perturb(vector)
        assert noisy[-1] == vector[-1]  # the number of labelled rows is public
        gaps.append(noisy[:-1] - vector[:-1])
    lengths = np.linalg.norm(gaps, axis=1)
    scale = chosen.grid_scale(statistic.blocks[0])
    assert stats.kstest(lengths, stats.gamma(6, scale=scale).cdf).pvalue > 1e-6
    for wrong in (2 / 3, 3 / 2):
        assert stats.kstest(lengths, stats.gamma(6, scale=scale * wrong).cdf).pvalue < 1e-9
    assert np.std(gaps) * LATTICE.step == pytest.approx(chosen.noise_std()["mean"], rel=0.1)
    with pytest.raises(RuntimeError, match="used already"):
        chosen.perturb(vector)


@pytest.mark.parametrize("name", ["laplace", "l2_gamma", "gaussian"])
def test_two_budgets_do_not_solve_for_the_secret(name):
    """With one seed for both, noise at alpha and 2 alpha would be b and b/2, and 2 second - first the exact sum."""
    x, delta = features(8), 1e-6 if name == "gaussian" else 0.0
    vector = target(x).statistic.partial(Rows(x, np.ones(len(x), dtype=np.int8)))
    first, second = (mechanism(name, target(x), alpha, delta).perturb(vector)[:-1] for alpha in (0.1, 0.2))
    off = np.abs(2 * second - first - vector[:-1])
    assert off.max() > 100  # grid steps; rounding alone would leave 2


def test_spherical_noise_needs_one_noisy_block():
    for statistic in (MeanOperator(3), Moments(3)):
        with pytest.raises(UsageError, match="fits one block"):
            L2Gamma(Target(statistic, LATTICE, Relation.ADD_REMOVE), 1.0)
    L2Gamma(Target(MeanOperator(3), LATTICE, Relation.REPLACE_ONE), 1.0)
    with pytest.raises(UsageError, match="l2_gamma"):
        mechanism("cauchy", target(features(3)), 1.0, 0.0)
