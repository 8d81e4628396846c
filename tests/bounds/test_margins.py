"""Margin bounds: published figures, preconditions, and validity on a problem with a known true error."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.special import ndtri

from daskrado.bounds.margins import MarginDistribution, breiman_bound, margin_bound
from daskrado.errors import UsageError


@pytest.mark.parametrize(("examples", "expected"), [(10**5, 0.176), (10**6, 0.056)])
def test_margin_bound_figures(examples: int, expected: float) -> None:
    assert margin_bound(0.0, 0.15, 4096, examples, 0.05).value == pytest.approx(expected, abs=0.0005)


@pytest.mark.parametrize(("examples", "expected"), [(10**5, 1.96), (10**6, 0.25)])
def test_breiman_figures(examples: int, expected: float) -> None:
    found = breiman_bound(0.15, 4096, examples, 0.05)
    assert found.value == pytest.approx(expected, abs=0.005)
    assert ("vacuous" in str(found)) == (expected > 1)


def test_breiman_preconditions_are_checked_first() -> None:
    """|H| = 40 needs a least margin above 0.894; and R at most 2n."""
    assert breiman_bound(0.89, 40, 10**6, 0.05).value is None
    assert "0.894" in str(breiman_bound(0.5, 40, 10**6, 0.05))
    assert breiman_bound(0.9, 40, 10**6, 0.05).value is not None
    few = breiman_bound(0.9, 10**6, 10, 0.05)
    assert few.value is None
    assert "2n" in few.reason
    assert breiman_bound(-0.1, 4096, 10**6, 0.05).value is None


def test_the_bound_holds_where_the_true_error_is_known() -> None:
    """Votes of 3 noisy coins: the true error by enumeration; the bound fails in no more samples than it says."""
    accuracy, n, failure = 0.9, 200, 0.2
    weights = np.array([0.5, 0.3, 0.2])
    true_error = 0.0
    for signs in itertools.product((-1, 1), repeat=3):
        chance = math.prod(accuracy if s > 0 else 1 - accuracy for s in signs)
        true_error += chance * (float(np.dot(weights, signs)) <= 0)
    generator = np.random.default_rng(3)
    failures = 0
    for _ in range(300):
        margins = np.where(generator.random((n, 3)) < accuracy, 1, -1) @ weights
        bound = margin_bound(float((margins <= 0.3).mean()), 0.3, 6, n, failure).value
        assert bound is not None
        failures += true_error > bound
    assert failures / 300 <= failure


def test_it_falls_with_examples_and_rises_with_hypotheses() -> None:
    values = [margin_bound(0.1, 0.2, 50, n, 0.05).value for n in (10**3, 10**4, 10**5)]
    assert values == sorted(values, reverse=True)
    assert margin_bound(0.1, 0.2, 500, 10**4, 0.05).value > values[1]  # type: ignore[operator]
    assert margin_bound(0.1, 0.0, 50, 100, 0.05).value is None


@pytest.mark.parametrize("bad", [(1, 10, 0.1), (4, 0, 0.1), (4, 10, 0.0), (4, 10, 1.0)])
def test_bad_input_is_refused(bad: tuple[int, int, float]) -> None:
    with pytest.raises(UsageError):
        margin_bound(0.1, 0.1, *bad)
    with pytest.raises(UsageError):
        breiman_bound(0.99, *bad)


def test_a_share_outside_zero_and_one_is_refused() -> None:
    with pytest.raises(UsageError, match="share"):
        margin_bound(1.1, 0.1, 4, 10, 0.1)


def test_a_distribution_has_the_shares_and_the_bounds_of_its_sample() -> None:
    margins = np.random.default_rng(1).uniform(-0.4, 1.0, size=5000)
    counts, edges = np.histogram(margins, bins=40, range=(-1, 1))
    found = MarginDistribution(counts.astype(float), 5000)
    assert np.allclose(found.edges, edges)
    assert np.allclose(found.shares, [(margins < edge).mean() for edge in edges], atol=1e-12)
    assert found.error == pytest.approx((margins < 0).mean())
    thetas = (0.1, 0.32, 1.0)  # on an edge, inside a bin, at the end
    above = [0.15, 0.35, 2.0]  # the first edge above each, beyond the last one for 1
    bounds = [
        (margins < edge).mean()
        + 2 / theta * math.sqrt(2 * math.log(60) / 5000)
        + math.sqrt(math.log(3 / 0.05) / 10_000)
        for theta, edge in zip(thetas, above, strict=True)
    ]
    bound, theta = found.best_margin_bound(thetas, 60, 0.05)
    assert bound.value == pytest.approx(min(bounds))
    assert theta == thetas[int(np.argmin(bounds))]
    alone = [found.best_margin_bound((theta,), 60, 0.05 / 3)[0].value for theta in thetas]
    assert alone == pytest.approx(bounds)


def test_noise_on_the_counts_is_made_monotone_and_paid_for_with_half_of_the_failure() -> None:
    counts = np.array([-3.0, 5.0, -2.0, 100.0, 900.0, 4.0])
    found = MarginDistribution(counts, 1000, std=2.0)
    assert found.shares.tolist() == [0.0, 0.0, 0.002, 0.002, 0.1, 1.0, 1.0]
    # theta 0.3 lies in the fourth bin, whose right edge is 1/3: four noisy counts, and all six in the total
    share = 0.1 + float(ndtri(1 - 0.05)) * 2.0 * math.sqrt(4 + 6) / 1000
    bound, _ = found.best_margin_bound((0.3,), 8, 0.1)
    assert bound.value == pytest.approx(margin_bound(share, 0.3, 8, 1000, 0.05).value)
    assert found.breiman_bound(8, 0.1).value is None
    assert "private" in found.breiman_bound(8, 0.1).reason
    exact = MarginDistribution(np.array([0.0, 0.0, 0.0, 0.0, 0.0, 10**6]), 10**6)
    assert exact.breiman_bound(200, 0.1).value == pytest.approx(breiman_bound(2 / 3, 200, 10**6, 0.1).value)
