"""The composed epsilon of DP-FEAT's coordinate: exact enumeration in rationals, and brackets by dp-accounting."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from fractions import Fraction

import pytest
from dp_accounting.pld import privacy_loss_distribution

from daskrado.bounds.dp_feat import Marginal
from daskrado.errors import UsageError
from daskrado.statistics.window import Window


def masses_of(window: Window) -> dict[int, Fraction]:
    """The truncated binomial law, in rationals."""
    raw = {z: math.comb(window.rows, z) for z in range(window.low, window.high + 1)}
    return {z: Fraction(mass, sum(raw.values())) for z, mass in raw.items()}


def exact_delta(first: dict[int, Fraction], second: dict[int, Fraction], count: int, epsilon: float) -> Fraction:
    """The hockey stick of all tuples of ``count`` values, in rationals but for exp(epsilon)."""
    bound = Fraction(math.exp(epsilon))
    total = Fraction(0)
    for values, times in Counter(itertools.combinations_with_replacement(first, count)).items():
        orders = math.factorial(count)
        for same in Counter(values).values():
            orders //= math.factorial(same)
        p = math.prod((first[z] for z in values), start=Fraction(1))
        q = math.prod((second.get(z, Fraction(0)) for z in values), start=Fraction(1))
        total += times * orders * max(p - bound * q, Fraction(0))
    return total


@pytest.mark.parametrize(
    ("epsilon", "rows", "count"), [(6.0, 11, 1), (6.0, 11, 3), (3.0, 8, 5), (4.0, 12, 4), (9.0, 14, 2), (8.0, 20, 3)]
)
@pytest.mark.parametrize("share", [0.01, 0.2, 0.7])
def test_epsilon_is_never_below_enumeration_and_close_to_it(epsilon, rows, count, share) -> None:
    """A delta between the leak of the edges and 1; both directions, of which the mirror says that they are equal."""
    window = Window(epsilon, rows)
    law = masses_of(window)
    shifted = {z + 1: mass for z, mass in law.items()}
    leak = 1 - (1 - law[window.low]) ** count
    delta = float(leak + (exact_delta(law, shifted, count, 0.0) - leak) * Fraction(share))
    found = Marginal(window, count).composed_epsilon(delta)
    for one, other in ((law, shifted), (shifted, law)):
        assert exact_delta(one, other, count, found) <= delta
        assert exact_delta(one, other, count, found * (1 - 2e-4) - 1e-9) > delta


def library(window: Window, count: int, delta: float, cell: float, *, pessimistic: bool) -> float:
    law = {z: math.log(mass) for z, mass in masses_of(window).items()}
    one = privacy_loss_distribution.from_two_probability_mass_functions(
        law,
        {z + 1: mass for z, mass in law.items()},
        value_discretization_interval=cell,
        pessimistic_estimate=pessimistic,
    )
    return float(one.self_compose(count).get_epsilon_for_delta(delta))


@pytest.mark.parametrize(
    ("epsilon", "rows", "count", "delta"),
    [
        (1.0, 1000, 16, 1e-6),
        (0.5, 1000, 10, 1e-3),
        (2.0, 100, 100, 1e-3),
        (1.0, 2000, 300, 1e-8),
        (0.9, 1001, 1, 1e-9),
    ],
)
def test_epsilon_lies_between_the_librarys_bounds(epsilon, rows, count, delta) -> None:
    """Its pessimistic and its optimistic grid hold the exact epsilon between them, a cell for each rado apart."""
    window, cell = Window(epsilon, rows), 1e-3 / count
    found = Marginal(window, count).composed_epsilon(delta)
    high = library(window, count, delta, cell, pessimistic=True)
    low = library(window, count, delta, cell, pessimistic=False)
    assert low - 1e-9 <= found <= high + 1e-9


def test_the_size_of_the_privacy_notes() -> None:
    """1000 rados of 10^4 rows at epsilon 0.5: 3.01 with losses rounded up to 1e-4, less on a finer grid."""
    found = Marginal(Window(0.5, 10_000), 1000).composed_epsilon(1e-6)
    assert library(Window(0.5, 10_000), 1000, 1e-6, 1e-4, pessimistic=False) <= found <= 3.01


def test_epsilon_falls_with_delta_and_grows_with_the_rados() -> None:
    window = Window(1.0, 1000)
    by_delta = [Marginal(window, 64).composed_epsilon(delta) for delta in (1e-9, 1e-7, 1e-5, 1e-3, 0.1)]
    assert by_delta == sorted(by_delta, reverse=True)
    by_count = [Marginal(window, count).composed_epsilon(1e-6) for count in (1, 2, 3, 7, 64, 1000)]
    assert by_count == sorted(by_count)


def test_no_finite_epsilon_where_the_edges_leak_more_than_delta() -> None:
    window = Window(0.5, 1000)
    leak = float(1 - (1 - masses_of(window)[window.low]) ** 50)
    assert math.isinf(Marginal(window, 50).composed_epsilon(leak * (1 - 1e-9)))
    assert math.isfinite(Marginal(window, 50).composed_epsilon(leak * (1 + 1e-6)))
    assert math.isinf(Marginal(Window(0.00399601, 1000), 1).composed_epsilon(0.5))
    with pytest.raises(UsageError, match="delta must be between 0 and 1, got 1"):
        Marginal(window).composed_epsilon(1)
