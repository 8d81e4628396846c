"""Gaussian charges beside others, against sums in 40 digits: no epsilon is below the true one, slack included."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from mpmath import mp, mpf

from daskrado.learners.on_passes.gradient import PrivateGradient
from daskrado.privacy.accountant import (
    MAX_ROUNDING_GAP,
    ApproximateEvent,
    Event,
    GaussianEvent,
    PureEvent,
    ZcdpEvent,
    compose,
    exact,
    gaussian_mu,
    rounding_gap,
)
from daskrado.privacy.composition import Parts, basic, concentrated, optimal
from daskrado.privacy.curves import LEAST_MU
from daskrado.privacy.mechanisms import DiscreteGaussian, Target
from daskrado.privacy.perturbation import PublicFacts
from daskrado.privacy.relations import Relation, Sensitivity
from daskrado.privacy.shares import GaussianShares, closeness
from daskrado.privacy.total_loss import Losses, gaussian_curve, normal_losses, summed
from daskrado.statistics import MeanOperator
from daskrado.statistics.base import Block
from daskrado.table.lattice import Lattice

mp.dps = 40


def normal_delta(level: Any, mu: Any) -> Any:
    """P(S) - exp(level) Q(S) at worst, of N(mu, 1) against N(0, 1), at any real level."""
    if level < 0:
        return 1 - mp.exp(level) + mp.exp(level) * normal_delta(-level, mu)
    return mp.ncdf(mu / 2 - level / mu) - mp.exp(level) * mp.ncdf(-mu / 2 - level / mu)


def true_delta(epsilon: Any, mu: Any, bounded: Iterable[tuple[Any, Any]]) -> Any:
    """Of a normal loss and independent losses +-e, each of which is lost with its delta: all outcomes, one by one."""
    law, kept = {mpf(0): mpf(1)}, mpf(1)
    for e, delta in bounded:
        up, grown = mp.exp(e) / (1 + mp.exp(e)), {}
        for value, chance in law.items():
            for move, part in ((e, up), (-e, 1 - up)):
                key = mpf(mp.nstr(value + move, 25))  # equal sums meet again
                grown[key] = grown.get(key, mpf(0)) + chance * part
        law, kept = grown, kept * (1 - delta)
    return 1 - kept * (1 - sum(chance * normal_delta(epsilon - value, mu) for value, chance in law.items()))


def number(value: Fraction | float | str) -> Any:
    found = Fraction(value)
    return mpf(found.numerator) / found.denominator


def ledgers() -> list[tuple[list[float], list[tuple[str, str]], float]]:
    """(mus, (epsilon, delta) of others, delta): some by hand, and random ones from a public seed."""
    draw = random.Random(7)
    found = [
        ([0.84], [("2.4574", "2.61e-20")] * 5, 4.09e-19),
        ([0.2], [("0.02", "0")] * 20, 1e-6),
        ([1e-7], [("0.3", "0")], 1e-6),
        ([0.1] * 50, [("1", "0")], 1e-9),
        ([0.05], [("3", "1e-8")] * 2, 1e-6),
        ([2.0], [("0.5", "0")] * 3, 1e-25),
        ([0.005] * 3000, [("0.3", "0")], 1e-6),  # many events: their slack is larger than what grids round up
        ([0.001] * 50_000, [("0.1", "1e-8")], 1e-6),
    ]
    for _ in range(30):
        delta = float(f"{10 ** draw.uniform(-28, -3):.3g}")
        share = "0" if draw.random() < 0.6 else f"{delta * draw.uniform(0.01, 0.1):.3g}"
        others = [(f"{10 ** draw.uniform(-2.5, 0.5):.4g}", share)] * draw.choice([1, 2, 6])
        found.append(([10 ** draw.uniform(-4, 0.6)] * draw.choice([1, 3]), others, delta))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("mus", "others", "delta"), ledgers())
def test_no_epsilon_is_below_the_true_one(mus: list[float], others: list[tuple[str, str]], delta: float) -> None:
    """Without the slack for discrete noise the true delta is met, too: that slack is there, and for every event."""
    events: list[Event] = [GaussianEvent(mu) for mu in mus]
    events += [ApproximateEvent(e, d) if d != "0" else PureEvent(e) for e, d in others]
    mu = mp.sqrt(sum(mpf(m) ** 2 for m in mus))
    bounded = [(number(e), number(d)) for e, d in others]
    parts, level, slack = Parts.of(events), exact(delta), len(mus) * (MAX_ROUNDING_GAP + 1e-7)
    for theorem in (basic, optimal, concentrated):
        found = theorem(parts, level)
        if found.epsilon == math.inf:
            continue
        assert true_delta(number(found.epsilon), mu, bounded) <= number(level)
        if "Gaussian" in found.method:
            left = number(level) - sum(d for _, d in bounded)
            narrowed = true_delta(number(found.epsilon) - 2 * len(mus) * mpf(MAX_ROUNDING_GAP), mu, bounded)
            assert narrowed <= number(level) - left * slack * (1 - mpf("1e-6"))
    best = number(compose(events, delta).epsilon) - 2 * len(mus) * mpf(MAX_ROUNDING_GAP)
    assert true_delta(best * mpf("0.985"), mu, bounded) > number(level) * (1 - slack), "far from the true one"


@pytest.mark.parametrize("mu", [1e-5, 1e-3, 0.2, 3.0])
def test_curve_and_law_of_the_gaussian_are_bounds_from_above(mu: float) -> None:
    levels = np.linspace(-6 * mu, 6 * mu, 41)
    for level, height in zip(levels, gaussian_curve(levels, mu), strict=True):
        true = normal_delta(mpf(level), mpf(mu))
        assert true <= height
        assert height <= true * (1 + mpf("1e-6")) or mu < LEAST_MU
    law = normal_losses(mu, 1e-6)
    assert law.leak >= mp.ncdf(-(law.values.max() - mpf(mu) ** 2 / 2) / mu) * (1 - mpf("1e-9")) > 0
    above = np.cumsum(law.chances[::-1])[::-1]
    for at in range(1, len(above), 97):
        x = (law.values[at - 1] + law.values[at]) / 2
        assert mp.ncdf((mpf(mu) ** 2 / 2 - x) / mu) <= above[at] + law.leak
    both = summed(law, Losses(np.array([-1.0, 1.0]), np.array([0.25, 0.75]), 1e-9))
    assert both.leak == law.leak + 1e-9
    assert both.chances.sum() == pytest.approx(1, abs=1e-9)
    mean = mu**2 / 2 + 0.5
    assert mean <= both.values @ both.chances <= mean + 4 * (2 + np.ptp(law.values)) / 8192


@pytest.mark.parametrize("seed", range(25))
def test_no_epsilon_beside_zcdp_is_below_what_such_mechanisms_have(seed: int) -> None:
    """A zCDP charge may be a Gaussian of its rho, or randomised response with epsilon sqrt(2 rho)."""
    draw = random.Random(seed)
    mus = [10 ** draw.uniform(-3, 0.5) for _ in range(draw.choice([1, 2]))]
    rhos = [10 ** draw.uniform(-6, 0) for _ in range(draw.choice([1, 3]))]
    pure = [f"{10 ** draw.uniform(-2, 0.3):.4g}" for _ in range(draw.choice([0, 1, 4]))]
    delta = float(f"{10 ** draw.uniform(-20, -3):.3g}")
    events: list[Event] = [*map(GaussianEvent, mus), *map(ZcdpEvent, rhos), *map(PureEvent, pure)]
    epsilon = number(compose(events, delta).epsilon)
    bounded = [(number(e), mpf(0)) for e in pure]
    squares = sum(mpf(mu) ** 2 for mu in mus)
    assert true_delta(epsilon, mp.sqrt(squares + 2 * sum(map(mpf, rhos))), bounded) <= delta
    responses = [(mp.sqrt(2 * mpf(rho)) * (1 - mpf("1e-15")), mpf(0)) for rho in rhos]
    assert true_delta(epsilon, mp.sqrt(squares), bounded + responses) <= delta


def test_where_the_slack_is_not_proved_zcdp_is_what_counts() -> None:
    """Chances lost are multiplied by exp(epsilon) and compared with delta: at most 50, at least 1e-30."""
    assert compose([GaussianEvent(7)], 1e-6).method == "zCDP"
    assert compose([GaussianEvent(0.5)], 1e-31).method == "zCDP"
    assert compose([GaussianEvent(0.5)], 1e-29).method == "Gaussian"
    assert compose([GaussianEvent(5), ZcdpEvent(60)], 1e-6).method == "zCDP"
    for others in ([PureEvent(45)], [PureEvent(20), ZcdpEvent(20)]):
        assert optimal(Parts.of([GaussianEvent(5), *others]), exact(1e-6)).method == "optimal + zCDP"
        assert optimal(Parts.of([GaussianEvent(0.5), *others]), exact(1e-31)).method == "optimal + zCDP"


def test_what_counts_as_nothing_is_refused_or_charged() -> None:
    for tiny in (GaussianEvent("1e-100"), GaussianEvent(1e-6)):
        assert compose([tiny], 0).epsilon == math.inf
        assert compose([tiny, tiny], 1e-6).epsilon <= 1e-3
        assert compose([tiny, PureEvent("0.1")], 1e-6).epsilon >= Fraction(1, 10)
    assert compose([ZcdpEvent(5e-13)], 1e-6).epsilon == 0  # not told apart, but for a chance below delta


def test_what_a_budget_allows_has_few_digits() -> None:
    """Resumed elsewhere, the last bit of another machine's functions must not make it another event."""
    for epsilon, delta in ((0.1, 1e-6), (1, 1e-6), (7.3, 1e-9)):
        assert len(repr(gaussian_mu(epsilon, delta)).replace(".", "").lstrip("0").split("e")[0]) <= 10


def two_blocks(*blocks: Block) -> Any:
    return SimpleNamespace(name="two", blocks=blocks, sensitivity=lambda _relation: Sensitivity(2.0, math.sqrt(2.0)))


@pytest.mark.parametrize("turn", [1, -1])
def test_one_coarse_block_makes_all_noise_coarse(turn: int) -> None:
    fine, coarse = Block("fine", (3,)), Block("coarse", (), power=0)
    for blocks, event in (((fine, fine), GaussianEvent), ((fine, coarse)[::turn], ZcdpEvent)):
        target = Target(two_blocks(*blocks), Lattice(1.0, 20), Relation.ADD_REMOVE)
        assert isinstance(DiscreteGaussian(target, 1.0, 1e-6).event, event)
        assert isinstance(GaussianShares(target, 1.0, 1e-6, honest=4, sites=5).event, event)
    count = Target(MeanOperator(3), Lattice(1.0, 20), Relation.ADD_REMOVE)
    assert isinstance(DiscreteGaussian(count, 1.0, 1e-6).event, ZcdpEvent)


def test_the_gap_of_shares_adds_up_both_steps_over_all_entries() -> None:
    """Ten thousand honest sites with shares near one grid step: their sum is not quite one discrete Gaussian."""
    honest, size = 10_000, 3
    target = Target(two_blocks(Block("a", (size,))), Lattice(1.0, 20), Relation.ADD_REMOVE)
    made = GaussianShares(target, 1.0, 1e-6, honest=honest, sites=honest)
    mu = math.sqrt(2.0) / (1.1 * math.sqrt(honest)) * 2.0**20
    expected = size * closeness(1.1, honest) + rounding_gap(size, 1.1 * math.sqrt(honest))
    assert made._gap(target, mu) == pytest.approx(expected, rel=1e-9)
    assert size * closeness(1.1, honest) > 1e-5
    assert made._gap(target, 3 * mu) == math.inf


def facts(**changes: Any) -> PublicFacts:
    known = {"rows": 50_000, "width": 20, "norm_bound": 1.0, "epsilon": 1.0, "delta": 1e-6}
    return PublicFacts(
        **{**known, "relation": Relation.ADD_REMOVE, "rows_per_unit": 1, "lattice_bits": 11, **changes}
    )


def test_noise_of_the_gradient_grows_with_the_rows_of_a_unit() -> None:
    learner = PrivateGradient(steps=50)
    one, five = learner.schedule(facts()), learner.schedule(facts(rows_per_unit=5))
    assert five.noise == pytest.approx(5 * one.noise, rel=1e-12)
    event = learner.guarantee(facts()).event
    assert isinstance(event, GaussianEvent)
    assert one.noise == pytest.approx(math.sqrt(50 / 0.95) / event.mu, rel=1e-5)
    assert five.moments_noise == pytest.approx(5 * one.moments_noise, rel=1e-12)
    assert 1 / one.moments_noise**2 + 50 / one.noise**2 == pytest.approx(event.mu**2, rel=1e-5)


def test_the_gradient_counts_as_normal_only_where_all_its_draws_do() -> None:
    """draws / (24 scale^2) 2 ln(2 draws / 1e-62), added over squares, products and steps, in units of 2^-22."""
    learner, root = PrivateGradient(steps=50), math.sqrt(2)
    mu = gaussian_mu(20.0, 1e-6)

    def gap(draws: int, scale: float) -> float:
        return draws / (24 * scale**2) * 2 * math.log(2 * draws / 1e-62)

    for width in (20, 5_000, 200_000):
        moments = 1 / (mu * math.sqrt(0.05)) * 2.0**22
        of_moments = gap(210, moments / root) if width == 20 else gap(width, moments)  # products: the least scale
        total = of_moments + gap(width * 50, math.sqrt(50 / 0.95) / mu * 2.0**22)
        fine = total <= MAX_ROUNDING_GAP
        assert isinstance(
            learner.calibration(facts(width=width, epsilon=20.0)).event, GaussianEvent if fine else ZcdpEvent
        )
    assert not fine
