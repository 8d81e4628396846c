"""Continual release: matrices enumerated exactly, the privacy of all nights together, noise of the stated size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from scipy.stats import chi2

from daskrado.errors import UsageError
from daskrado.privacy import continual as module
from daskrado.privacy.accountant import GaussianEvent
from daskrado.privacy.continual import FINE, MOST, ContinualGaussian, Night, PrefixSums
from daskrado.privacy.mechanisms import Target
from daskrado.privacy.relations import Relation
from daskrado.statistics import Histogram, MeanOperator, Moments, Rows
from daskrado.statistics.universe import Axis, Universe
from daskrado.table.lattice import Lattice

KEY = bytes(range(32))
HORIZONS = (2, 3, 7, 30, 365)


def matrix(sums: PrefixSums) -> np.ndarray:
    """R of the rounded coefficients, as whole numbers."""
    r, n = sums.coefficients, sums.horizon
    return np.array([[r[t - j] if t >= j else 0 for j in range(n)] for t in range(n)], dtype=object)


def solved(lower: np.ndarray, right: Sequence[int]) -> list[Fraction]:
    """a with a' lower = right', exactly."""
    n = len(right)
    found = [Fraction(0)] * n
    for j in reversed(range(n)):
        rest = sum((found[t] * int(lower[t, j]) for t in range(j + 1, n)), Fraction(0))
        found[j] = (right[j] - rest) / int(lower[j, j])
    return found


def test_the_square_of_the_unrounded_matrix_is_that_of_prefix_sums() -> None:
    exact = [Fraction(math.comb(2 * k, k), 4**k) for k in range(40)]
    assert [sum(exact[i] * exact[k - i] for i in range(k + 1)) for k in range(40)] == [1] * 40
    assert PrefixSums(40).coefficients == tuple(round(value * 2**FINE) for value in exact)


@pytest.mark.parametrize("horizon", HORIZONS)
def test_the_norm_of_the_longest_column_is_that_of_the_rounded_matrix(horizon: int) -> None:
    sums = PrefixSums(horizon)
    r = matrix(sums)
    longest = max(sum(int(v) ** 2 for v in r[:, j]) for j in range(horizon))
    norm = Fraction(sums.column_norm) * 2**FINE
    assert norm**2 >= longest  # never too short
    assert norm**2 <= longest * (1 + Fraction(1, 10**14))


@pytest.mark.parametrize("nights", [[0], [0, 1], list(range(12)), [0, 1, 4, 5, 9], [2, 3, 7]])
def test_weights_give_the_sum_of_the_nights_that_are_kept(nights: list[int]) -> None:
    """1' R^-1 in fractions, with the rows and columns of lost nights left out."""
    sums = PrefixSums(12)
    r = matrix(sums)[np.ix_(nights, nights)]
    assert sums.weights(nights) == pytest.approx([float(w) for w in solved(r, [1] * len(nights))], rel=1e-12)


@pytest.mark.parametrize("horizon", [2, 3, 7, 30])
def test_errors_are_those_of_the_enumerated_matrices(horizon: int) -> None:
    sums = PrefixSums(horizon)
    r = matrix(sums)
    column = math.sqrt(max(sum(int(v) ** 2 for v in r[:, j]) for j in range(horizon)))
    for night in range(1, horizon + 1):
        row = solved(r[:night, :night], [1] * night)
        assert sums.error(night) == pytest.approx(column * math.sqrt(sum(float(w) ** 2 for w in row)), rel=1e-12)
    nodes = [
        range(start, start + size)
        for size in (1 << level for level in range(horizon.bit_length()))
        for start in range(0, horizon - size + 1, size)
    ]
    most = max(sum(night in node for node in nodes) for night in range(horizon))
    for night in range(1, horizon + 1):
        ends = [0]
        while ends[-1] < night:  # the largest node that begins here and fits
            ends.append(max(node.stop for node in nodes if node.start == ends[-1] and node.stop <= night))
        assert sums.tree_error(night) == pytest.approx(math.sqrt(most * len([*pairwise(ends)])))
    assert sums.fresh_error == math.sqrt(horizon)


def test_the_figures_of_a_year() -> None:
    """Sum of (binom(2k, k) / 4^k)^2 over 365 terms: 2.9441, with rounded coefficients one part in a thousand more."""
    exact = math.fsum(float(Fraction(math.comb(2 * k, k), 4**k)) ** 2 for k in range(365))
    assert exact < PrefixSums(365).error(365) < exact * 1.001
    assert exact == pytest.approx(2.9441, abs=1e-4)


def mechanism(
    horizon: int, epsilon: float = 1.0, relation: Relation = Relation.ADD_REMOVE, rows: int = 1
) -> ContinualGaussian:
    target = Target(Moments(3), Lattice(2.0, 11), relation, rows)
    return ContinualGaussian(target, epsilon, 1e-6, PrefixSums(horizon))


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "keyed_gaussian", lambda key, name, scale, count: np.zeros(count, np.int64))


def all_nights(nights: Sequence[np.ndarray], horizon: int, lost: frozenset[int] = frozenset()) -> dict[int, Night]:
    kept: dict[int, Night] = {}
    for night, x in enumerate(nights):
        made = mechanism(horizon)
        drawn = made.release(KEY, f"night {night}", night, x, made.exact(KEY, kept))
        if night not in lost:
            kept[night] = drawn
    return kept


@pytest.mark.parametrize("lost", [frozenset(), frozenset({2}), frozenset({0, 3})])
def test_without_noise_the_estimate_is_the_sum_of_the_nights_that_are_kept(quiet: None, lost: frozenset[int]) -> None:
    rng = np.random.default_rng(5)
    size, lattice = Moments(3).size, Lattice(2.0, 11)
    nights = [rng.integers(-(2**40), 2**40, size) for _ in range(6)]
    kept = all_nights(nights, 6, lost)
    values, _ = mechanism(6).estimate(kept)
    truth = Moments(3).split(sum((x for n, x in enumerate(nights) if n not in lost), np.zeros(size, np.int64)))
    for block in Moments(3).blocks:
        expected = truth[block.name] * block.step(lattice)
        assert values[block.name] == pytest.approx(expected, rel=1e-9, abs=1e-6 * abs(expected).max())


def test_earlier_sums_are_known_exactly_from_noise_and_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also sums that were cut at the most, and noise that makes releases leave 64 bits."""
    rng = np.random.default_rng(3)
    wide: dict[str, np.ndarray] = {}

    def keyed(key: bytes, name: str, scale: float, count: int) -> np.ndarray:
        return wide.setdefault(name, rng.integers(-(2**62), 2**62, count))

    monkeypatch.setattr(module, "keyed_gaussian", keyed)
    size = Moments(3).size
    nights = [
        rng.integers(-(2**62), 2**62, size),
        np.full(size, 2**62),
        np.full(size, -(2**63)),
        np.ones(size, np.int64),
    ]
    kept = all_nights(nights, 4)
    for night, found in mechanism(4).exact(KEY, kept).items():
        assert np.array_equal(found, np.clip(nights[night], -MOST, MOST))


@pytest.mark.parametrize("relation", [Relation.ADD_REMOVE, Relation.REPLACE_ONE, Relation.LABEL_FLIP])
@pytest.mark.parametrize("night", [0, 2, 4])
def test_one_row_moves_all_nights_by_no_more_than_is_paid_for(quiet: None, relation: Relation, night: int) -> None:
    """All releases of neighbouring lakes, in units of the noise: the norm is within mu, the first night's is mu."""
    rng = np.random.default_rng(11)
    statistic, lattice = Moments(3), Lattice(2.0, 11)
    made = mechanism(5, relation=relation)
    event = made.event
    mu = event.mu if isinstance(event, GaussianEvent) else math.sqrt(2 * float(event.rho))
    scales = np.concatenate([np.full(block.size, made.grid_scale(block)) for block in statistic.blocks])
    noisy = np.concatenate([np.full(b.size, b.name not in made.target.sensitivity.public) for b in statistic.blocks])
    reached = 0.0
    for _ in range(60):
        nights = [rng.integers(-(2**30), 2**30, statistic.size) for _ in range(5)]
        direction = np.eye(3)[rng.integers(3)] if rng.random() < 0.5 else rng.normal(size=3)
        row, other = (v / np.linalg.norm(v) for v in (direction, rng.normal(size=3)))
        change = vector(statistic, lattice, row, 1)
        if relation is Relation.REPLACE_ONE:
            change = change - vector(statistic, lattice, other if rng.random() < 0.5 else row, -1)
        elif relation is Relation.LABEL_FLIP:
            change = change - vector(statistic, lattice, row, -1)
        moved = [x + change if n == night else x for n, x in enumerate(nights)]
        one, two = all_releases(nights, made, relation), all_releases(moved, made, relation)
        apart = np.stack([(a - b)[noisy] / scales[noisy] for a, b in zip(one, two, strict=True)])
        assert all(np.array_equal(a[~noisy], b[~noisy]) for a, b in zip(one, two, strict=True))
        reached = max(reached, float(np.linalg.norm(apart)))
    assert reached <= mu * (1 + 1e-12)
    if night == 0 and relation is not Relation.REPLACE_ONE:
        assert reached >= mu * 0.98


def all_releases(nights: Sequence[np.ndarray], like: ContinualGaussian, relation: Relation) -> list[np.ndarray]:
    kept: dict[int, Night] = {}
    for night, x in enumerate(nights):
        made = mechanism(5, relation=relation)
        kept[night] = made.release(KEY, f"night {night}", night, x, made.exact(KEY, kept))
    assert like.sums.horizon == 5
    return [kept[night].released for night in range(5)]


def vector(statistic: Moments, lattice: Lattice, row: np.ndarray, label: int) -> np.ndarray:
    """The integers of one row of full norm."""
    whole = lattice.quantise(np.asfortranarray(row[None, :] * lattice.norm_bound))
    return statistic.partial(Rows(whole, np.array([label], dtype=np.int8), np.zeros(1, dtype=np.uint64)))


def test_k_rows_on_any_nights_move_all_nights_by_no_more_than_k_times() -> None:
    one, three = mechanism(5), mechanism(5, rows=3)
    assert three.scale == pytest.approx(3 * one.scale, rel=1e-9)


def test_the_noise_on_an_estimate_is_as_large_as_it_says() -> None:
    """Over independent entries, night by night; two thirds and three halves of it are rejected."""
    statistic, horizon = MeanOperator(4000), 6
    target = Target(statistic, Lattice(1.0, 11), Relation.ADD_REMOVE)
    kept: dict[int, Night] = {}
    zero = np.zeros(statistic.size, dtype=np.int64)
    for night in range(horizon):
        made = ContinualGaussian(target, 1.0, 1e-6, PrefixSums(horizon))
        kept[night] = made.release(KEY, f"night {night}", night, zero, made.exact(KEY, kept))
        values, std = made.estimate(kept)
        name = next(block.name for block in statistic.blocks if block.size == statistic.width)
        square = float((values[name] ** 2).sum()) / std[name] ** 2

        def chance(ratio: float, seen: float = square) -> float:
            return 2 * min(chi2.cdf(seen * ratio, statistic.width), chi2.sf(seen * ratio, statistic.width))

        assert chance(1.0) > 1e-6
        assert chance(4 / 9) < 1e-12
        assert chance(9 / 4) < 1e-12


@pytest.mark.parametrize("epsilon", [6.0, 4.0])
def test_the_delta_of_two_nights_together_enumerated(epsilon: float) -> None:
    """All pairs of releases of a lake with and without the worst row, from the discrete Gaussian's own weights."""
    statistic = Histogram(4, Universe((Axis("b", ("false", "true"), 3, signed=True),)))  # a row moves one count, by 1
    target = Target(statistic, Lattice(1.0, 4), Relation.ADD_REMOVE)
    made = ContinualGaussian(target, epsilon, 1e-3, PrefixSums(2))
    (block,) = statistic.blocks
    moves = [r * round(1 / block.normalised_step(target.lattice)) for r in made.sums.coefficients]
    for less, within in ((1.0, True), (2 / 3, False)):  # two thirds of the noise would not be enough
        scale = made.grid_scale(block) * less
        without, with_row = ([discrete(scale, move) for move in own] for own in ([0, 0], moves))
        found = max(delta(without, with_row, epsilon), delta(with_row, without, epsilon))
        assert (found <= 1e-3) is within


def discrete(scale: float, move: int) -> np.ndarray:
    """The discrete Gaussian around a place, on a grid that holds all but 1e-18 of it."""
    grid = np.arange(-3000, 3000)
    weights = np.exp(-0.5 * ((grid - move) / scale) ** 2)
    assert weights[0] < 1e-18
    assert weights[-1] < 1e-18
    return weights / weights.sum()


def delta(one: list[np.ndarray], two: list[np.ndarray], epsilon: float) -> float:
    """The hockey-stick divergence of two pairs of independent draws."""
    factor = math.exp(epsilon)
    return sum(
        float(np.maximum(a * one[1] - factor * b * two[1], 0).sum()) for a, b in zip(one[0], two[0], strict=True)
    )


def test_pure_budgets_are_refused() -> None:
    target = Target(Moments(3), Lattice(2.0, 11), Relation.ADD_REMOVE)
    with pytest.raises(UsageError, match="needs delta above 0"):
        ContinualGaussian(target, 1.0, 0.0, PrefixSums(3))
