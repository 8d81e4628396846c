"""Rados against their definition, by exact enumeration."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.special import logsumexp

from daskrado.errors import UsageError
from daskrado.statistics import BalancedRados, HadamardRados, Rows, UniformRados
from daskrado.statistics.rados import expand, rados_from_sketch, walsh_hadamard
from daskrado.table.lattice import Lattice


def some_rows(m: int, d: int, seed: int = 0) -> Rows:
    draw = np.random.default_rng(seed)
    x = Lattice(1.0, 12).quantise(np.asfortranarray(draw.normal(size=(m, d)) / 3))
    return Rows(x, draw.choice(np.array([-1, 1], dtype=np.int8), m), draw.integers(0, 2**64, m, dtype=np.uint64))


def definition(rows: Rows, signature: np.ndarray) -> np.ndarray:
    """1/2 sum (sigma_i + y_i) x_i."""
    return 0.5 * (signature + rows.y) @ rows.x


@pytest.mark.parametrize("m", [1, 5, 12])
def test_logistic_risk_is_the_log_of_the_exponential_risk_over_all_rados(m: int) -> None:
    rows = some_rows(m, 3)
    x = rows.x / 2.0**12
    theta = np.array([1.5, -2.0, 0.7])
    rados = np.array([definition(rows, np.array(s)) for s in itertools.product([-1, 1], repeat=m)]) / 2.0**12
    direct = np.logaddexp(0.0, -rows.y * (x @ theta)).mean()
    through_rados = np.log(2) + (logsumexp(-rados @ theta) - m * np.log(2)) / m
    assert through_rados == pytest.approx(direct, abs=1e-13)


@pytest.mark.parametrize("kind", [UniformRados, BalancedRados])
def test_dense_rados_are_the_definition_with_their_own_memberships(kind: type) -> None:
    rows = some_rows(40, 5)
    statistic = kind(5, 10)
    member = statistic.memberships(rows.seeds)
    signatures = np.where(member, rows.y[:, None], -rows.y[:, None])  # in the rado exactly where sigma = y
    expected = np.array([definition(rows, signatures[:, j]) for j in range(10)])
    assert np.array_equal(statistic.partial(rows).reshape(10, 5), expected)


@pytest.mark.parametrize("zero", [False, True])
def test_hadamard_rados_are_the_definition_with_their_own_signatures(zero: bool) -> None:
    rows = some_rows(60, 4)
    statistic = HadamardRados(4, 16, bucket_zero=zero)
    buckets, signs = statistic.cells(rows.seeds), statistic.signs(rows.seeds)
    assert set(signs.tolist()) == {-1, 1}
    hadamard = sylvester(16)
    assert buckets.min() >= (0 if zero else 1)
    expected = np.array([definition(rows, signs * hadamard[j, buckets]) for j in range(16)])
    sketch = statistic.partial(rows).reshape(4, 16).astype(float)
    assert np.array_equal(rados_from_sketch(sketch), expected)


def sylvester(n: int) -> np.ndarray:
    """H[j, h] = (-1)^(number of common bits of j and h)."""
    return np.array([[(-1) ** (j & h).bit_count() for h in range(n)] for j in range(n)])


@pytest.mark.parametrize("n", [1, 2, 8, 64])
def test_the_fast_transform_is_the_sylvester_matrix_and_its_own_inverse(n: int) -> None:
    assert np.array_equal(walsh_hadamard(np.eye(n)), sylvester(n))
    some = np.random.default_rng(0).integers(-99, 99, size=(n, 3)).astype(float)
    assert np.array_equal(walsh_hadamard(walsh_hadamard(some)), n * some)


@pytest.mark.parametrize("n", [4, 8])
def test_signatures_with_bucket_zero_are_three_wise_independent_and_fourth_order_is_known(n: int) -> None:
    hadamard = sylvester(n)
    columns = np.concatenate([hadamard, -hadamard], axis=1)  # all (bucket, sign), equally likely
    for order in (1, 2, 3):
        for which in itertools.combinations(range(n), order):
            assert columns[list(which)].prod(axis=0).sum() == 0
    broken = [w for w in itertools.combinations(range(n), 4) if columns[list(w)].prod(axis=0).sum() != 0]
    assert all(w[0] ^ w[1] ^ w[2] ^ w[3] == 0 for w in broken)
    assert len(broken) == n * (n - 1) * (n - 2) // 24


def test_without_bucket_zero_each_signature_is_uniform_and_pairs_have_the_stated_correlation() -> None:
    n = 8
    columns = np.concatenate([sylvester(n)[:, 1:], -sylvester(n)[:, 1:]], axis=1)
    assert (columns.sum(axis=1) == 0).all()
    for j, k in itertools.combinations(range(n), 2):
        assert (columns[j] * columns[k]).mean() == pytest.approx(-1 / (n - 1))


def test_balanced_rows_are_in_exactly_half_and_every_half_is_equally_likely() -> None:
    member = BalancedRados(1, 4).memberships(np.arange(60_000, dtype=np.uint64))
    assert (member.sum(axis=1) == 2).all()
    _, counts = np.unique(member, axis=0, return_counts=True)
    assert len(counts) == 6
    chi_square = ((counts - 10_000) ** 2 / 10_000).sum()
    assert chi_square < 30  # 5 degrees of freedom: probability 1.5e-5 of a false alarm


@pytest.mark.slow
def test_expanded_words_look_uniform_across_seeds_and_positions() -> None:
    words = expand(np.arange(20_000, dtype=np.uint64), 3)
    assert len(np.unique(words)) == words.size
    bits = np.unpackbits(words.view(np.uint8).reshape(20_000, -1), axis=1)
    assert np.abs(bits.mean(axis=0) - 0.5).max() < 6 * 0.5 / np.sqrt(20_000)
    pairs = np.corrcoef(bits[:, :128].T) - np.eye(128)
    assert np.abs(pairs).max() < 6.5 / np.sqrt(20_000)


@pytest.mark.parametrize("count", [0, 1, 3, 12, -4])
def test_the_number_of_hadamard_rados_must_be_a_power_of_two(count: int) -> None:
    with pytest.raises(UsageError, match="power of two"):
        HadamardRados(3, count)


def test_balanced_rados_need_an_even_count() -> None:
    with pytest.raises(UsageError, match="even count, got 5"):
        BalancedRados(3, 5)
