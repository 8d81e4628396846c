"""Noise in shares: the price against exact laws, on scales small enough for every effect to show."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from daskrado.errors import UsageError
from daskrado.privacy.accountant import GaussianEvent, ZcdpEvent, gaussian_mu, zcdp_epsilon, zcdp_rho
from daskrado.privacy.mechanisms import DiscreteGaussian, Target
from daskrado.privacy.relations import Relation
from daskrado.privacy.shares import GaussianShares, closeness, summed_rho
from daskrado.statistics import MeanOperator, Moments
from daskrado.table.lattice import Lattice

REACH = 60  # beyond it every law used here has less than 1e-300 of its mass
ORDERS = (1.001, 1.01, 1.1, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0)


def gaussian(scale: float) -> NDArray[np.longdouble]:
    k = np.arange(-REACH, REACH + 1, dtype=np.longdouble)
    weights = np.exp(-0.5 * (k / scale) ** 2)
    return np.asarray(weights / weights.sum())


def summed(scale: float, shares: int) -> NDArray[np.longdouble]:
    """The exact law of a sum of shares, by convolution, cut to the same reach."""
    law = gaussian(scale)
    for _ in range(shares - 1):
        law = np.convolve(law, gaussian(scale))[REACH:-REACH]
    return law


def renyi(p: NDArray[np.longdouble], q: NDArray[np.longdouble], order: float) -> float:
    seen = (p > 0) & (q > 0)
    terms = order * np.log(p[seen]) + (1 - order) * np.log(q[seen])
    top = terms.max()
    return float((top + np.log(np.exp(terms - top).sum())) / (order - 1))


@pytest.mark.parametrize("shares", [2, 3, 5])
@pytest.mark.parametrize("scale", [0.5, 0.6, 0.75, 1.0, 1.4])
def test_the_closeness_bound_holds(scale: float, shares: int) -> None:
    exact, one = summed(scale, shares), gaussian(scale * math.sqrt(shares))
    middle = slice(REACH - 8, REACH + 9)  # where the convolution is not cut
    worst = float(np.abs(np.log(exact[middle] / one[middle])).max())
    bound = closeness(scale, shares)
    assert worst <= bound
    if shares == 2:  # for two shares it is of the right size, not a blanket; with more, waves cancel
        assert worst > bound / 4


@pytest.mark.parametrize("shares", [2, 3, 10, 100])
@pytest.mark.parametrize("scale", [0.5, 0.6, 1.0, 2.0, 4.0])
def test_the_closeness_bound_is_within_the_published_one(scale: float, shares: int) -> None:
    """Kairouz, Liu and Steinke (2021): tau = 10 sum over k < n of exp(-2 pi^2 scale^2 k / (k + 1))."""
    published = 10 * sum(math.exp(-2 * math.pi**2 * scale**2 * k / (k + 1)) for k in range(1, shares))
    assert 0.3 * published < closeness(scale, shares) < published


@pytest.mark.parametrize("shares", [1, 2, 3, 5])
@pytest.mark.parametrize("scale", [0.5, 0.6, 0.75, 1.0, 1.4])
@pytest.mark.parametrize("shift", [1, 2, 3])
def test_the_price_of_a_sum_is_never_below_its_exact_divergence(scale: float, shares: int, shift: int) -> None:
    law = summed(scale, shares)
    moved = np.roll(law, shift)
    moved[:shift] = 0
    plain = shift**2 / (2 * shares * scale**2)
    price = summed_rho(plain, closeness(scale, shares))
    for order in ORDERS:
        assert renyi(moved[shift:-shift], law[shift:-shift], order) <= price * order * (1 + 1e-9)


def test_a_sum_of_discrete_gaussians_does_cost_more_than_one() -> None:
    """Taking the sum for a discrete Gaussian of the same variance would claim too little: the reason for a price."""
    law = summed(0.5, 2)
    moved = np.roll(law, 1)
    excess = max(renyi(moved[1:-1], law[1:-1], order) / order for order in ORDERS)
    assert excess > 1 / (2 * 2 * 0.5**2) * 1.001


def target(relation: Relation = Relation.ADD_REMOVE, bits: int = 16) -> Target:
    return Target(Moments(5), Lattice(2.0, bits), relation)


@pytest.mark.parametrize("honest", [1, 2, 7])
def test_honest_shares_carry_the_noise_of_one_curator(honest: int) -> None:
    shares = GaussianShares(target(), 1.0, 1e-6, honest=honest, sites=9)
    curator = DiscreteGaussian(target(), 1.0, 1e-6)
    for block, std in curator.noise_std().items():
        assert shares.noise_std()[block] * math.sqrt(honest / 9) == pytest.approx(std, rel=1e-9)
    assert shares.event == curator.event == GaussianEvent(gaussian_mu(1.0, 1e-6))
    assert "shares" in shares.theorem


@pytest.mark.parametrize("honest", [1, 2, 7])
def test_on_a_coarser_grid_shares_are_counted_by_zcdp(honest: int) -> None:
    shares = GaussianShares(target(bits=5), 1.0, 1e-6, honest=honest, sites=9)
    assert isinstance(shares.event, ZcdpEvent)
    assert zcdp_epsilon(shares.event.rho, 1e-6) <= 1.0
    assert shares.event.rho == pytest.approx(zcdp_rho(1.0, 1e-6), rel=1e-9)


def test_a_coarse_grid_pays_for_its_shares() -> None:
    """On a grid of 4 bits and a large epsilon the shares are near a step, and more noise makes up for it."""
    coarse = Target(MeanOperator(3), Lattice(1.0, 4), Relation.REPLACE_ONE)
    one, many = (GaussianShares(coarse, 30.0, 1e-6, honest=h, sites=100) for h in (1, 100))
    goal = zcdp_rho(30.0, 1e-6)
    assert isinstance(many.event, ZcdpEvent)
    assert many.event.rho <= goal
    plain = coarse.sensitivity.l2**2 / (2 * many.scale**2)
    block = coarse.statistic.blocks[0]
    assert summed_rho(plain, 3 * closeness(many.grid_scale(block), 100)) <= goal
    assert many.scale > 1.01 * one.scale


def test_what_cannot_be_shared_is_refused() -> None:
    with pytest.raises(UsageError, match="delta above 0"):
        GaussianShares(target(), 1.0, 0.0, honest=1, sites=2)
    with pytest.raises(UsageError, match="between 1 and the number of sites, 2, got 3"):
        GaussianShares(target(), 1.0, 1e-6, honest=3, sites=2)
    assert closeness(0.1, 2) == math.inf


@pytest.mark.parametrize("wrong", [1.0, 2 / 3, 3 / 2])
def test_the_noise_of_honest_shares_has_the_declared_scale(wrong: float) -> None:
    """Three shares of four: their sum has the guaranteed standard deviation, and not 2/3 or 3/2 of it."""
    spot = Target(MeanOperator(400), Lattice(1.0, 16), Relation.ADD_REMOVE)
    drawn = np.zeros(401)
    for _ in range(3):
        shares = GaussianShares(spot, 1.0, 1e-6, honest=3, sites=4)
        drawn += shares.perturb(np.zeros(401, dtype=np.int64))
    std = shares.noise_std()["mean"] / spot.lattice.step * math.sqrt(3 / 4) * wrong
    square = float((drawn[:400] ** 2).sum() / std**2)  # chi-square with 400 degrees of freedom, if right
    assert (280 < square < 540) == (wrong == 1.0)
    with pytest.raises(RuntimeError, match="used already"):
        shares.perturb(np.zeros(401, dtype=np.int64))
