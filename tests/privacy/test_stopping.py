"""Random stopping: the bound on the best of a geometric number of runs, against the exact law of that best."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.stats import chisquare, geom, norm

from daskrado.errors import UsageError
from daskrado.privacy.curves import zcdp_epsilon
from daskrado.privacy.stopping import largest_pure, largest_rho, number_of_runs, stopped_epsilon, which_runs


def best_of(law: np.ndarray, runs: int) -> np.ndarray:
    """The law of the best of K draws, the first outcome being the worst: K geometric with mean ``runs``.

    P(best <= y) = E[F(y)^K] = F g / (1 - (1 - g) F), with g = 1 / runs; its differences, without cancellation.
    """
    above, g = np.concatenate([np.cumsum(law[::-1])[::-1], [0.0]]), 1 / runs
    rest = g + (1 - g) * above
    return g * law / (rest[:-1] * rest[1:])


def delta_of(p: np.ndarray, q: np.ndarray, epsilon: float) -> float:
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum())


def test_the_best_of_pure_runs_is_never_above_three_epsilon_and_reaches_it() -> None:
    draw = np.random.default_rng(0)
    for runs, ranks, _ in itertools.product((1, 2, 12, 10_000), (2, 3, 6), range(200)):
        q = draw.dirichlet(np.full(ranks, 0.3)) + 1e-12
        p = q * np.exp(draw.choice([-0.4, 0.4], ranks))
        p, q = p / p.sum(), q / q.sum()
        most = float(np.abs(np.log(p / q)).max())
        assert np.abs(np.log(best_of(p, runs) / best_of(q, runs))).max() <= 3 * most + 1e-9
    # A middle rank that is likelier by e^eps, under a tail that is as much less likely and still far above 1 / runs.
    tail, middle, epsilon = 0.01, 1e-7, 0.4
    laws = [(tail, middle), (tail * math.exp(-epsilon), middle * math.exp(epsilon))]
    one, other = (best_of(np.array([1 - t - m, m, t]), 10**7) for t, m in laws)
    assert math.log(other[1] / one[1]) > 2.99 * epsilon


@pytest.mark.parametrize("runs", [1, 6, 12, 100])
@pytest.mark.parametrize("mu", [0.1, 0.5])
def test_the_best_of_gaussian_runs_is_within_the_bound_at_every_delta(mu: float, runs: int) -> None:
    """One run is N(0, 1) or N(mu, 1), cut into 4,000 ranks; better is larger, and then smaller."""
    edges = np.linspace(-9, 9 + mu, 4001)
    laws = [np.diff(norm.cdf(edges, at)) for at in (0, mu)]
    laws = [
        np.concatenate([[norm.cdf(edges[0], at)], law, [norm.sf(edges[-1], at)]])
        for at, law in zip((0, mu), laws, strict=True)
    ]
    for order in (1, -1):
        p, q = (best_of(law[::order], runs) for law in laws)
        for delta in (1e-3, 1e-6):
            epsilon = stopped_epsilon(mu**2 / 2, runs, delta)
            assert delta_of(p, q, epsilon) <= delta
            assert delta_of(q, p, epsilon) <= delta


def test_a_bound_that_forgot_the_choice_would_be_refuted() -> None:
    """What one run costs is not what the best of many costs: the law above finds it out."""
    edges = np.linspace(-9, 9.5, 4001)
    p, q = (best_of(np.diff(norm.cdf(edges, at)), 100) for at in (0.5, 0.0))
    assert delta_of(p, q, zcdp_epsilon(0.125, 1e-3)) > 1e-3


@pytest.mark.parametrize(
    ("rho", "runs", "delta"), [(0.005, 12, 1e-6), (0.5, 3, 1e-5), (4.0, 2, 1e-6), (1e-6, 900, 1e-9)]
)
def test_the_closed_form_is_the_least_of_theorem_2_over_all_orders(rho: float, runs: int, delta: float) -> None:
    log = math.log(runs)
    inner = minimize_scalar(
        lambda t: 2 * (1 - 1 / (1 + math.exp(t))) * rho * (1 + math.exp(t)) + 2 * log / (1 + math.exp(t)),
        bounds=(-30, 20), method="bounded", options={"xatol": 1e-12},
    ).fun  # fmt: skip
    outer = minimize_scalar(
        lambda t: (
            rho * (1 + math.exp(t)) + (log - math.log(delta) - math.log1p(math.exp(t))) / math.exp(t)
            - math.log1p(math.exp(-t))
        ),
        bounds=(-10, 20), method="bounded", options={"xatol": 1e-12},
    ).fun  # fmt: skip
    assert stopped_epsilon(rho, runs, delta) == pytest.approx(min(inner, 2 * log) + outer, rel=1e-6)


def test_one_run_costs_what_it_costs_alone_and_more_runs_cost_more() -> None:
    assert stopped_epsilon(0.01, 1, 1e-6) == pytest.approx(zcdp_epsilon(0.01, 1e-6), rel=1e-9)
    costs = [stopped_epsilon(0.01, runs, 1e-6) for runs in (1, 2, 5, 20, 1000)]
    assert costs == sorted(costs)
    assert costs[-1] < 4 * costs[0]  # where a thousand runs, added up, would cost thirty times as much


def test_the_budget_of_one_run_is_the_largest_that_fits() -> None:
    for epsilon, delta, runs in ((1.0, 1e-6, 12), (0.1, 1e-5, 6), (10.0, 1e-9, 30)):
        rho = largest_rho(epsilon, delta, runs)
        assert stopped_epsilon(rho, runs, delta) <= epsilon
        assert stopped_epsilon(rho * (1 + 1e-9), runs, delta) > epsilon * (1 - 1e-9)
    assert largest_pure(0.3, 0, 12) == Fraction(1, 10)
    assert largest_pure(1.0, 1e-6, 12) == Fraction(1, 3)  # above mu, which is what zCDP would allow
    with pytest.raises(UsageError, match="random stopping needs"):
        stopped_epsilon(0.0, 3, 1e-6)


def test_numbers_of_runs_are_geometric_and_settings_uniform() -> None:
    draws = np.array([number_of_runs(5) for _ in range(20_000)])
    most = 25
    counts = np.bincount(np.minimum(draws, most), minlength=most + 1)[1:]
    law = geom.pmf(np.arange(1, most + 1), 0.2)
    law[-1] = geom.sf(most - 1, 0.2)
    assert chisquare(counts, 20_000 * law).pvalue > 1e-6
    for wrong in (4, 6):
        other = geom.pmf(np.arange(1, most + 1), 1 / wrong)
        other[-1] = geom.sf(most - 1, 1 / wrong)
        assert chisquare(counts, 20_000 * other).pvalue < 1e-6
    assert chisquare(np.bincount(which_runs(4, 20_000), minlength=4)).pvalue > 1e-6
    assert number_of_runs(1) == 1
