"""Discrete Gaussian noise on a fine grid counts as normal: the bound behind that, and exact deltas."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.signal import fftconvolve

from daskrado.errors import UsageError
from daskrado.privacy.accountant import (
    MAX_ROUNDING_GAP,
    GaussianEvent,
    PureEvent,
    ZcdpEvent,
    compose,
    event_from_json,
    event_to_json,
    gaussian_epsilon,
    gaussian_mu,
    group_event,
    rounding_gap,
    within,
    zcdp_rho,
)
from daskrado.privacy.gaussian_calibration import calibrate
from daskrado.privacy.mechanisms import DiscreteGaussian, Target
from daskrado.privacy.relations import Relation
from daskrado.statistics import MeanOperator
from daskrado.statistics.label_means import LabelMeans
from daskrado.table.lattice import Lattice


@pytest.mark.parametrize("scale", [100.0, 133.3, 500.0])
def test_discrete_and_rounded_noise_are_within_the_gap_and_the_gap_is_not_idle(scale: float) -> None:
    """Both probabilities of every integer that counts, the rounded one by quadrature of the normal density."""
    farthest = math.floor(scale * math.sqrt(2 * math.log(2 / 1e-62)))
    k = np.arange(-farthest, farthest + 1, dtype=np.float64)
    every = np.arange(-60 * math.ceil(scale), 60 * math.ceil(scale) + 1, dtype=np.float64)
    total = math.fsum(np.exp(-(every**2) / (2 * scale**2)))
    nodes, weights = np.polynomial.legendre.leggauss(20)
    inside = np.exp(-(2 * k[:, None] * nodes / 2 + nodes**2 / 4) / (2 * scale**2)) @ weights / 2
    log_ratio = np.log(inside) + math.log(total / (scale * math.sqrt(2 * math.pi)))
    gap = rounding_gap(1, scale)
    assert np.abs(log_ratio).max() <= gap
    assert np.abs(log_ratio).max() > 0.9 * gap
    assert rounding_gap(1000, scale) > 1000 * gap


def test_a_coarse_grid_has_no_gap_that_counts() -> None:
    assert rounding_gap(1, 99.9) == math.inf
    assert rounding_gap(0, 1000.0) == math.inf
    assert rounding_gap(1, math.nan) == math.inf


def exact_delta(move: tuple[int, int], scale: float, epsilon: float) -> float:
    """sup over sets of P(S) - exp(epsilon) Q(S) for two discrete Gaussians, and those shifted by ``move``.

    The loss depends on z = a k + b l alone, an integer if (a, b) are the moves over their common divisor.
    """
    common = math.gcd(*move)
    reach = math.ceil(14 * scale)
    k = np.arange(-reach, reach + 1)
    chance = np.exp(-(k**2) / (2 * scale**2))
    chance /= chance.sum()
    spread = []
    for step in (move[0] // common, move[1] // common):
        one = np.zeros(2 * reach * step + 1)
        one[:: step or 1] = chance
        spread.append(one)
    z = np.arange(-(len(spread[0]) + len(spread[1]) - 2) // 2, (len(spread[0]) + len(spread[1]) - 2) // 2 + 1)
    law = fftconvolve(*spread)
    length = float(move[0] ** 2 + move[1] ** 2)
    loss = (common * z + length / 2) / scale**2
    return float((law * np.clip(-np.expm1(epsilon - loss), 0, None))[loss > epsilon].sum())


@pytest.mark.slow
@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 1e-6), (0.6, 1e-5), (4.0, 1e-6)])
def test_the_exact_delta_of_a_discrete_vector_keeps_to_the_calibration(epsilon: float, delta: float) -> None:
    """Sensitivity in both coordinates at once: delta is met, and by less than a hundredth, so nothing is wasted."""
    move, length = (3000, 4000), 5000
    found = calibrate(epsilon, delta, lambda mu: rounding_gap(2, length / mu))
    scale = length / found.mu
    assert found.event == GaussianEvent(found.mu)
    assert 0.99 * delta < exact_delta(move, scale, epsilon) <= delta
    concentrated = length / math.sqrt(2 * zcdp_rho(epsilon, delta))
    assert exact_delta(move, concentrated, epsilon) < 0.6 * delta
    assert exact_delta(move, scale * 0.99, epsilon) > delta


def test_composition_is_that_of_dp_accounting() -> None:
    """T Gaussians are one: the numerical loss distribution of the library, within its discretisation."""
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

    for mu, times in ((0.05, 1), (0.05, 16), (0.2, 9)):
        library = from_gaussian_mechanism(1 / mu, value_discretization_interval=1e-4).self_compose(times)
        ours = compose([GaussianEvent(mu)] * times, 1e-6)
        assert ours.method == "Gaussian"
        assert float(ours.epsilon) == pytest.approx(library.get_epsilon_for_delta(1e-6), rel=2e-3)
        assert float(ours.epsilon) == pytest.approx(gaussian_epsilon(mu * math.sqrt(times), 1e-6), rel=1e-3)
        assert float(ours.epsilon) < float(compose([ZcdpEvent(mu**2 / 2)] * times, 1e-6).epsilon)


def test_mixed_with_other_events_it_costs_less_than_its_zcdp() -> None:
    """Its exact curve is used beside pure and zCDP events, too."""
    others = [PureEvent("0.02")] * 20, [ZcdpEvent(0.001)], [PureEvent("0.3"), ZcdpEvent(0.001)]
    names = ("optimal + Gaussian", "Gaussian + zCDP", "optimal + Gaussian + zCDP")
    for extra, name in zip(others, names, strict=True):
        ours = compose([GaussianEvent(0.2), *extra], 1e-6)
        plain = compose([ZcdpEvent(0.2**2 / 2), *extra], 1e-6)
        assert ours.epsilon <= plain.epsilon * 0.97
        assert ours.method == name
    old, new = zcdp_rho(0.95, 1e-6), gaussian_mu(0.95, 1e-6)
    before = compose([ZcdpEvent(old), ZcdpEvent(zcdp_rho(0.01, 1e-6))], 1e-6).epsilon
    assert compose([GaussianEvent(new), ZcdpEvent(zcdp_rho(0.01, 1e-6))], 1e-6).epsilon < before * 1.005
    assert compose([GaussianEvent(0.1)], 0).epsilon == math.inf
    assert float(compose([GaussianEvent(0.1), PureEvent("0.3")], 1e-6).epsilon) > 0.3


@pytest.mark.parametrize("times", [0, 1, 7])
def test_a_mix_with_pure_events_is_that_of_dp_accounting(times: int) -> None:
    from dp_accounting.pld import privacy_loss_distribution as pld

    mu, grid = 0.25, 1e-4
    library = pld.from_gaussian_mechanism(1 / mu, value_discretization_interval=grid)
    for _ in range(times):
        library = library.compose(pld.from_privacy_parameters(pld.common.DifferentialPrivacyParameters(0.1, 0), grid))
    ours = compose([GaussianEvent(mu), *[PureEvent("0.1")] * times], 1e-6)
    assert float(ours.epsilon) == pytest.approx(library.get_epsilon_for_delta(1e-6), rel=3e-3)


def test_a_mix_with_zcdp_is_between_the_exact_gaussian_and_all_zcdp() -> None:
    """A zCDP event may be a Gaussian of the same rho: then mu^2 + 2 rho is what they are together, at the least."""
    for mu, rho in ((0.2, 0.02), (0.05, 0.0001), (1.0, 0.001), (0.01, 0.1)):
        ours = float(compose([GaussianEvent(mu), ZcdpEvent(rho)], 1e-6).epsilon)
        assert gaussian_epsilon(math.sqrt(mu**2 + 2 * rho), 1e-6) <= ours
        assert ours <= float(compose([ZcdpEvent(mu**2 / 2), ZcdpEvent(rho)], 1e-6).epsilon) * (1 + 1e-9)


def test_a_small_charge_more_costs_no_less() -> None:
    for delta in (1e-6, 1e-29, 1e-31):
        for small in (0.0009, 0.001, 0.3):
            known = [GaussianEvent(small), PureEvent("0.1")]
            costs = [compose(known[:1], delta).epsilon, compose(known, delta).epsilon]
            costs.append(compose([*known, GaussianEvent(2e-5)], delta).epsilon)
            assert costs == sorted(costs)
    with pytest.raises(UsageError, match="mu must be above 1e-100"):
        GaussianEvent(-0.5)


@pytest.mark.slow
@given(epsilon=st.floats(1e-5, 50), exponent=st.floats(-40, -1.01))
def test_what_a_budget_allows_is_within_it(epsilon: float, exponent: float) -> None:
    epsilon = round(epsilon, 6)  # as people write it; a ledger counts in units of 1e-9
    found = calibrate(epsilon, 10**exponent, lambda _mu: 0.0)
    assert found.mu >= math.sqrt(2 * zcdp_rho(epsilon, 10**exponent)) * (1 - 1e-12)
    assert within([found.event], epsilon, 10**exponent)


def test_a_fine_grid_is_normal_and_a_coarse_one_is_not() -> None:
    fine, coarse = (
        DiscreteGaussian(Target(MeanOperator(3), Lattice(1.0, bits), Relation.REPLACE_ONE), 1.0, 1e-6)
        for bits in (20, 4)
    )
    assert isinstance(fine.event, GaussianEvent)
    assert isinstance(coarse.event, ZcdpEvent)
    assert "fine grid" in fine.theorem
    assert "zCDP" in coarse.theorem
    assert coarse.scale / fine.scale == pytest.approx(gaussian_mu(1.0, 1e-6) / math.sqrt(2 * coarse.event.rho))
    assert float(compose([fine.event], 1e-6).epsilon) == pytest.approx(1.0, rel=1e-8)


def test_noise_within_an_event_that_was_granted_for_longer_rows() -> None:
    """Rows may turn out shorter than the Domain allows. On a grid that is coarse for them noise stays fine."""
    lattice, width = Lattice(1.0, 16), 3
    planned = DiscreteGaussian(
        Target(LabelMeans.loosest(width, lattice.bits), lattice, Relation.LABEL_FLIP), 1.0, 1e-6
    )
    assert isinstance(planned.event, GaussianEvent)
    for steps, coarse in ((30_000, False), (300, True)):
        short = Target(LabelMeans(width, steps, steps**2, 16), lattice, Relation.LABEL_FLIP)
        chosen = DiscreteGaussian(short, 1.0, 1e-6, planned.event)
        assert chosen.event == planned.event
        assert chosen.scale <= planned.scale
        (grid,) = (chosen.grid_scale(b) for b in short.statistic.blocks if b.name not in short.sensitivity.public)
        assert rounding_gap(width, grid) <= MAX_ROUNDING_GAP
        assert (chosen.scale > 1.01 * short.sensitivity.l2 / planned.event.mu) == coarse
        assert isinstance(DiscreteGaussian(short, 1.0, 1e-6).event, ZcdpEvent) == coarse
    with pytest.raises(ValueError, match="is not what epsilon 1"):
        DiscreteGaussian(short, 1.0, 1e-6, GaussianEvent(0.5))


def test_a_gaussian_event_in_a_ledger_and_for_a_group() -> None:
    event = GaussianEvent(0.25)
    assert event_from_json(event_to_json(event)) == event
    assert str(event) == "mu 0.25 (Gaussian)"
    grown = group_event(event, 4)
    assert isinstance(grown, GaussianEvent)
    assert grown.mu == pytest.approx(1.0)
    assert group_event(event, 1) == event
