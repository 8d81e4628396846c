"""Estimators of the mean operator: exact identities by enumeration, and convergence to the oracle."""

import itertools

import numpy as np
import pytest

from daskrado.errors import DataError, UsageError
from daskrado.learners.bags import Bags, check_sizes, laplacian_mean_map, mean_map, similarity
from daskrado.learners.supervision import (
    FlipRates,
    LabelledSums,
    check_labelled,
    complete,
    estimated_rates,
    missing,
    noisy,
)


def sums(x, y, groups=None, count=1):
    groups = np.zeros(len(x), dtype=int) if groups is None else groups
    pick = [groups == g for g in range(count)]
    return LabelledSums(
        np.array([(y[p, None] * x[p]).sum(axis=0) for p in pick]),
        np.array([float(np.count_nonzero(y[p])) for p in pick]),
        np.array([x[p].sum(axis=0) for p in pick]),
        np.array([float(p.sum()) for p in pick]),
    )


def test_noisy_labels_are_unbiased_exactly():
    """The expectation over all 2^m flip patterns, by enumeration, is the true mean operator."""
    draw = np.random.default_rng(1)
    x, y = draw.normal(size=(7, 3)), np.array([1, -1, 1, 1, -1, -1, 1.0])
    rates = FlipRates(0.35, 0.1)
    total = np.zeros(3)
    for flips in itertools.product([False, True], repeat=7):
        chance = 1.0
        for yi, flip in zip(y, flips, strict=True):
            rate = rates.positive if yi > 0 else rates.negative
            chance *= rate if flip else 1 - rate
        total += chance * noisy(sums(x, np.where(flips, -y, y)), rates)
    np.testing.assert_allclose(total, (y[:, None] * x).mean(axis=0), atol=1e-12)


def test_randomised_response_rates():
    rates = FlipRates.of_randomised_response(np.log(3.0))
    assert rates.positive == rates.negative == pytest.approx(0.25)  # kept with probability 3/4
    x, y = np.eye(2), np.array([1.0, -1.0])
    np.testing.assert_allclose(noisy(sums(x, y), rates), (y[:, None] * x).mean(axis=0) / np.tanh(np.log(3.0) / 2))
    with pytest.raises(UsageError, match="epsilon"):
        FlipRates.of_randomised_response(0.0)


@pytest.mark.parametrize("rates", [(0.5, 0.5), (0.9, 0.2), (1.0, 0.0), (-0.1, 0.2)])
def test_flip_rates_that_say_nothing_are_refused(rates):
    with pytest.raises(UsageError, match="flip rate"):
        FlipRates(*rates)


def test_estimated_rates():
    assert estimated_rates(np.array([[90, 10], [30, 70]])) == FlipRates(0.3, 0.1)
    with pytest.raises(DataError, match="truly positive"):
        estimated_rates(np.array([[9, 1], [0, 0]]))
    with pytest.raises(UsageError, match="below 1"):
        estimated_rates(np.array([[1, 9], [9, 1]]))


def test_missing_labels_are_unbiased_exactly_within_strata():
    """Expectation over all choices of labelled subsets of fixed size within each stratum."""
    draw = np.random.default_rng(2)
    x, y = draw.normal(size=(7, 2)), draw.choice([-1.0, 1.0], size=7)
    groups = np.array([0, 0, 0, 0, 1, 1, 1])
    found = []
    for a in itertools.combinations(range(4), 3):
        for b in itertools.combinations(range(4, 7), 1):
            seen = np.isin(np.arange(7), [*a, *b])
            found.append(missing(sums(x, np.where(seen, y, 0.0), groups, 2)))
    np.testing.assert_allclose(np.mean(found, axis=0), (y[:, None] * x).mean(axis=0), atol=1e-12)
    lacking = sums(x, np.where(groups == 0, y, 0.0), groups, 2)
    with pytest.raises(DataError, match="1 of 2 groups"):  # where nobody is protected
        check_labelled(lacking.labelled, lacking.rows)
    first = (y[:4, None] * x[:4]).mean(axis=0)
    np.testing.assert_allclose(missing(lacking), first * 4 / 7, atol=1e-12)  # else the group counts as 0
    np.testing.assert_allclose(complete(sums(x, np.where(groups == 0, y, 0.0))), first, atol=1e-12)


def bags_of(x, y, bag, count):
    pick = [bag == j for j in range(count)]
    return Bags(
        np.array([x[p].sum(axis=0) for p in pick]),
        np.array([float(p.sum()) for p in pick]),
        np.array([(x[p] ** 2).sum() for p in pick]),
        np.array([(y[p] > 0).mean() for p in pick]),
    )


def homogeneous(n, count, seed=0):
    """Class means shared by all bags."""
    draw = np.random.default_rng(seed)
    bag = np.repeat(np.arange(count), n)
    share = np.linspace(0.1, 0.9, count)
    y = np.where(draw.random(n * count) < share[bag], 1.0, -1.0)
    x = 0.3 * draw.normal(size=(n * count, 3)) + y[:, None] * np.array([0.5, -0.2, 0.1])
    return x, y, bag


def test_mean_map_is_exact_where_bags_are_homogeneous():
    """Rows placed so that every bag has exactly the class means: then the estimate is the mean operator itself."""
    plus, minus = np.array([1.0, 0.5]), np.array([-0.2, 0.3])
    x, y, bag = [], [], []
    for j, positives in enumerate((1, 3, 4)):
        for i in range(5):
            y.append(1.0 if i < positives else -1.0)
            x.append(plus if i < positives else minus)
            bag.append(j)
    x, y, bag = np.array(x), np.array(y), np.array(bag)
    oracle = (y[:, None] * x).mean(axis=0)
    bags = bags_of(x, y, bag, 3)
    np.testing.assert_allclose(mean_map(bags), oracle, atol=1e-12)
    np.testing.assert_allclose(mean_map(bags, np.array([5.0, 1.0, 2.0])), oracle, atol=1e-12)
    for kind in ("gaussian", "association"):
        graph = similarity(bags, kind)
        np.testing.assert_allclose(laplacian_mean_map(bags, graph, gamma=0.7), oracle, atol=1e-10)


def test_pure_bags_are_full_labels():
    draw = np.random.default_rng(4)
    x, y = draw.normal(size=(40, 3)), np.repeat([1.0, -1.0], 20)
    oracle = (y[:, None] * x).mean(axis=0)
    bags = bags_of(x, y, np.repeat([0, 1], 20), 2)
    np.testing.assert_allclose(mean_map(bags), oracle, atol=1e-12)
    np.testing.assert_allclose(laplacian_mean_map(bags, np.zeros((2, 2)), gamma=1.0), oracle, atol=1e-10)


def test_estimates_converge_to_the_oracle():
    gaps = []
    for n in (30, 300, 3000, 30000):
        x, y, bag = homogeneous(n, 8)
        gaps.append(np.linalg.norm(mean_map(bags_of(x, y, bag, 8)) - (y[:, None] * x).mean(axis=0)))
    assert gaps[-1] < 0.01
    assert gaps[-1] < gaps[0] / 8  # 1/sqrt(n) would be a factor of 31


def regions(n, seed):
    """Four regions of five bags: class means differ by region, and so does the usual share of positives."""
    draw = np.random.default_rng(seed)
    x, y, bag = [], [], []
    for region in range(4):
        centre, split = draw.normal(size=3), 0.3 * draw.normal(size=3)
        for j in range(5):
            labels = np.where(draw.random(n) < 0.1 + 0.13 * region + 0.1 * j, 1.0, -1.0)
            x.append(centre + labels[:, None] * split + 0.3 * draw.normal(size=(n, 3)))
            y.append(labels)
            bag.append(np.full(n, 5 * region + j))
    return np.concatenate(x), np.concatenate(y), np.concatenate(bag)


def test_laplacian_beats_mean_map_where_homogeneity_fails():
    """Mean Map takes the regions' centres for class means; neighbouring bags tell Laplacian Mean Map otherwise."""
    ratios = []
    for seed in range(10):
        x, y, bag = regions(400, seed)
        oracle, bags = (y[:, None] * x).mean(axis=0), bags_of(x, y, bag, 20)
        graph = similarity(bags, "gaussian")
        laplacian = np.linalg.norm(laplacian_mean_map(bags, graph, gamma=0.1) - oracle)
        ratios.append(laplacian / np.linalg.norm(mean_map(bags) - oracle))
    assert max(ratios) < 0.5
    assert np.median(ratios) < 0.15


def test_association_falls_slowly_with_distance_and_stays_close_to_mean_map():
    """Bags of equal spread v (per row) at a distance D: 1 / (1 + D^2 / 4v), so that no bag is ever left out."""
    corners = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])  # spread 1 about their mean
    for distance in (0.0, 1.0, 4.0):
        x = np.concatenate([corners, corners + np.array([distance, 0.0])])
        bags = bags_of(x, np.tile([1.0, -1.0], 4), np.repeat([0, 1], 4), 2)
        assert similarity(bags, "association")[0, 1] == pytest.approx(1 / (1 + distance**2 / 4))
    ratios = []
    for seed in range(10):
        x, y, bag = regions(400, seed)
        oracle, bags = (y[:, None] * x).mean(axis=0), bags_of(x, y, bag, 20)
        found = laplacian_mean_map(bags, similarity(bags, "association"), gamma=0.1)
        ratios.append(np.linalg.norm(found - oracle) / np.linalg.norm(mean_map(bags) - oracle))
    assert 0.7 < np.median(ratios) < 1.1  # the README says so


def test_laplacian_solves_its_own_objective():
    """Against a generic optimiser on the objective of Patrini et al. (2014), equation 8."""
    from scipy import optimize

    x, y, bag = homogeneous(15, 4, 3)
    bags, weights, gamma = bags_of(x, y, bag, 4), np.array([1.0, 2.0, 0.5, 1.5]), 0.3
    graph = similarity(bags, "association")
    p = bags.proportions

    def objective(flat):
        plus, minus = flat.reshape(2, 4, 3)
        fit = (weights[:, None] * (bags.means - p[:, None] * plus - (1 - p)[:, None] * minus) ** 2).sum()
        smooth = sum(
            graph[j, k] * ((side[j] - side[k]) ** 2).sum() / 2
            for side in (plus, minus)
            for j in range(4)
            for k in range(4)
        )
        return fit + gamma * smooth

    found = optimize.minimize(objective, np.zeros(24), method="BFGS", options={"gtol": 1e-9, "maxiter": 5000}).x
    plus, minus = found.reshape(2, 4, 3)
    mu = (bags.shares * p) @ plus - (bags.shares * (1 - p)) @ minus
    np.testing.assert_allclose(laplacian_mean_map(bags, graph, gamma=gamma, weights=weights), mu, atol=1e-5)


def test_association_is_the_sum_of_squared_distances():
    draw = np.random.default_rng(8)
    x, bag = draw.normal(size=(11, 2)), np.array([0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2])
    bags = bags_of(x, np.tile([1.0, -1.0], 6)[:11], bag, 3)
    spread = np.array(
        [[sum(((a - b) ** 2).sum() for a in x[bag == j] for b in x[bag == k]) for k in range(3)] for j in range(3)]
    )
    for j, k in itertools.permutations(range(3), 2):
        expected = 1 / (1 + spread[j, k] / spread[j, j]) + 1 / (1 + spread[j, k] / spread[k, k])
        assert similarity(bags, "association")[j, k] == pytest.approx(expected)


def test_bad_bags():
    x = np.random.default_rng(1).normal(size=(6, 2))
    x[:, 1] = 1.0
    bag = np.array([0, 0, 0, 1, 1, 1])
    one_label = bags_of(x, np.ones(6), bag, 2)
    with pytest.raises(DataError, match=r"one label only \(positive\).*cannot be estimated: age$"):
        one_label.check_rank(["age", "intercept"])
    same = bags_of(x, np.array([1, -1, -1, 1, -1, -1.0]), bag, 2)
    with pytest.raises(DataError, match=r"proportion 0\.333333"):
        same.check_rank(["age", "intercept"])
    bags_of(x, np.array([1, -1, -1, 1, 1, -1.0]), bag, 2).check_rank(["age", "intercept"])
    for gap, refused in ((1e-2, False), (1e-3, False), (1e-5, True), (1e-8, True)):
        near = Bags(same.sums, same.rows, None, np.array([0.5, 0.5 + gap]))
        # two rows (p, 1 - p): singular values sqrt(1 + ...) and, to first order, the gap itself
        assert near.condition == pytest.approx(1 / gap, rel=0.02)
        assert (near.indistinct(["age", "intercept"]) is not None) is refused
    with pytest.raises(DataError, match=r"1 of 2 bags have no rows \(b\)"):
        check_sizes(np.array([3.0, 0.0]), ["a", "b"])
    with pytest.raises(UsageError, match="1 of 2 proportions"):
        Bags(one_label.sums, one_label.rows, None, np.array([0.5, 1.2]))
    with pytest.raises(UsageError, match="proportions"):
        Bags(one_label.sums, one_label.rows, None, np.array([0.5, np.nan]))
    with pytest.raises(DataError, match="no rows"):
        Bags(one_label.sums, np.array([3.0, 0.0]), None, np.array([0.5, 0.2]))
    with pytest.raises(UsageError, match="gamma"):
        laplacian_mean_map(same, np.zeros((2, 2)), gamma=0.0)
    with pytest.raises(UsageError, match="similarity"):
        similarity(same, "cosine")
    with pytest.raises(UsageError, match="weights"):
        mean_map(same, np.array([1.0, -1.0]))
