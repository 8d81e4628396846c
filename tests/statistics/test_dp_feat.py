"""DP-FEAT: the rejection-free sampler has the law of rejection, by enumeration; its exact numbers; its failure."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from daskrado.bounds.dp_feat import Marginal
from daskrado.errors import UsageError
from daskrado.privacy.accountant import gaussian_delta
from daskrado.privacy.statement import PrivacyStatement
from daskrado.statistics import FeatureRados, Rows
from daskrado.statistics.base import Place
from daskrado.statistics.window import Window, smallest_epsilon
from daskrado.table.lattice import Lattice

STEP = 16


def rows_of(x: np.ndarray, y: np.ndarray) -> Rows:
    return Rows(np.asfortranarray(x * STEP), y.astype(np.int8))


def by_rejection(x: np.ndarray, y: np.ndarray, feature: int, epsilon: float) -> dict[tuple[float, ...], Fraction]:
    """The exact law of one DP-FEAT rado, as algorithm 2 defines it: uniform over the signatures inside the window."""
    m = len(y)
    edges = x * y[:, None]
    plus = int((edges[:, feature] > 0).sum()) - m / 2
    reach = m / 2 - (m + 1) / (1 + math.exp(epsilon / 2))
    rados = np.array(list(itertools.product((0.0, 1.0), repeat=m))) @ edges
    kept = rados[np.abs(rados[:, feature] - plus) <= reach + 1e-9]
    return {rado: Fraction(times, len(kept)) for rado, times in Counter(map(tuple, kept.tolist())).items()}


@pytest.mark.parametrize(("m", "epsilon"), [(7, 1.5), (8, 3.0), (6, 0.8)])
def test_the_sampler_has_the_law_of_rejection(m: int, epsilon: float) -> None:
    draw = np.random.default_rng(m)
    x = np.column_stack([draw.choice([-1.0, 1.0], m), draw.integers(-2, 3, m)])
    y = draw.choice([-1, 1], m)
    law = by_rejection(x, y, 0, epsilon)
    rows, seen, count = rows_of(x, y), Counter(), 4000
    statistic = FeatureRados(2, count, 0, epsilon)
    for _ in range(3):
        place = Place(draw.bytes(32), 0, m)
        rados = statistic.partial(Rows(rows.x, rows.y, place=place)).reshape(count, 2) / STEP
        seen.update(map(tuple, rados.tolist()))
    assert set(seen) <= set(law)
    observed = np.array([seen[rado] for rado in law], dtype=float)
    expected = np.array([float(p) * 3 * count for p in law.values()])
    assert stats.chisquare(observed, expected).pvalue > 1e-4


@pytest.mark.parametrize("m", [5, 8, 11, 12])
@pytest.mark.parametrize("epsilon", [1.5, 2.0, 5.0])
def test_marginal_numbers_against_enumeration_of_all_signatures(m: int, epsilon: float) -> None:
    """Neighbours differ in the first record's feature; the coordinate's two laws, exactly, at every epsilon."""
    draw = np.random.default_rng(m)
    x = draw.choice([-1.0, 1.0], (m, 1))
    x[0] = 1.0
    other = x.copy()
    other[0] = -1.0
    y = draw.choice([-1, 1], m)
    laws = [by_rejection(x, y, 0, epsilon), by_rejection(other, y, 0, epsilon)]
    marginal = Marginal(Window(epsilon, m))
    everything = [sum(math.comb(m, z) for z in range(marginal.window.low, marginal.window.high + 1)), 2**m]
    assert marginal.acceptance() == pytest.approx(everything[0] / everything[1], rel=1e-12)
    for law, neighbour in (laws, laws[::-1]):
        both = [float(p / neighbour[v]) for v, p in law.items() if v in neighbour]
        alone = float(sum(p for v, p in law.items() if v not in neighbour))
        assert alone == pytest.approx(marginal.delta(), rel=1e-9)
        if both:
            assert max(map(math.log, both)) <= marginal.epsilon() + 1e-12 <= epsilon / 2 + 1e-9
    ratios = [math.log(p / b[v]) for a, b in (laws, laws[::-1]) for v, p in a.items() if v in b]
    if ratios:
        assert max(ratios) == pytest.approx(marginal.epsilon(), abs=1e-12)


@pytest.mark.parametrize(
    ("rows", "epsilon", "delta"),
    [(1000, 0.1, 3.3e-2), (1000, 0.5, 1.5e-5), (1000, 1.0, 2.3e-15), (10**4, 0.1, 3.7e-4), (10**5, 0.1, 7.1e-17)],
)
def test_delta_one_at_the_sizes_worked_out_by_hand(rows: int, epsilon: float, delta: float) -> None:
    assert Marginal(Window(epsilon, rows)).delta() == pytest.approx(delta, rel=0.03)


def test_the_window_hurts() -> None:
    found = Marginal(Window(0.5, 1000))
    assert found.untruncated_delta() == pytest.approx(6.7e-7, rel=0.01)
    assert found.untruncated_delta() < found.delta() / 20
    law, bound = stats.binom(12, 0.5), math.exp(1.0)
    direct = sum(max(law.pmf(z) - bound * law.pmf(z - 1), 0.0) for z in range(13))
    assert Marginal(Window(2.0, 12)).untruncated_delta() == pytest.approx(direct, rel=1e-12)


def test_composition_over_rados_against_a_direct_convolution() -> None:
    """Three rados of eleven rows: the loss of every triple of values, summed exactly."""
    window = Window(6.0, 11)
    masses = dict(zip(window.support().tolist(), np.exp(window.log_masses()).tolist(), strict=True))

    def delta(epsilon: float) -> float:
        total = 0.0
        for triple in itertools.product(masses, repeat=3):
            p, q = math.prod(masses[z] for z in triple), math.prod(masses.get(z - 1, 0.0) for z in triple)
            total += max(p - math.exp(epsilon) * q, 0.0)
        return total

    level = 0.2
    composed = Marginal(window, 3).composed_epsilon(level)
    assert delta(composed) <= level
    assert delta(composed - 0.05) > level  # no slack beyond the grid
    assert math.isinf(Marginal(Window(0.1, 1000), 256).composed_epsilon(1e-6))


def test_composition_is_near_the_gaussian_limit_for_many_rows() -> None:
    composed = Marginal(Window(0.5, 10_000), 1000).composed_epsilon(1e-6)
    shift = math.sqrt(1000) / (math.sqrt(10_000) / 2)  # one step of a binomial, a thousand times
    assert gaussian_delta(composed, shift) == pytest.approx(1e-6, rel=0.3)
    assert composed == pytest.approx(3.0, abs=0.1)


def test_an_empty_window_says_which_epsilon_would_work() -> None:
    with pytest.raises(
        UsageError, match=r"epsilon 0.001 and 1000 rows leaves no rado .* works is 0.00399601"
    ) as raised:
        FeatureRados(2, 4, 0, 0.001).check_rows(1000)
    least = float(str(raised.value).rsplit(" ", 1)[1])
    for rows in (2, 3, 10, 11, 1000):
        Window(smallest_epsilon(rows), rows)
        with pytest.raises(UsageError):
            Window(smallest_epsilon(rows) * 0.999, rows)
    assert least == pytest.approx(smallest_epsilon(1000), rel=1e-5)
    with pytest.raises(UsageError, match="no epsilon would help"):
        Window(1.0, 1)


def test_the_epsilon_that_is_printed_works() -> None:
    """Rounded to nearest it would fail for about half of all row counts; its facts exist for one value as for two."""
    alone = 0
    for rows in range(2, 301):
        with pytest.raises(UsageError, match="the smallest that works is") as raised:
            Window(1e-9, rows)
        printed = float(str(raised.value).rsplit(" ", 1)[1])
        assert printed == pytest.approx(smallest_epsilon(rows), rel=1e-5)
        window = Window(printed, rows)
        if rows > 40 and rows % 20 > 1:
            continue
        facts = Marginal(window, 2).facts("smoker")
        assert facts.window_high - facts.window_low == rows % 2  # one value, or the two in the middle
        if rows % 2 == 0:
            alone += 1
            assert (facts.epsilon, facts.delta, facts.composed_epsilon) == (0.0, 1.0, None)
            assert facts.acceptance == pytest.approx(stats.binom.pmf(rows // 2, rows, 0.5))
            assert "no finite epsilon" in facts.sentence()
    assert alone > 20


def test_the_joint_release_protects_nobody() -> None:
    """One real-valued feature beside the protected one tells which records a rado sums: delta > 1/2 at epsilon 100.

    This must be found: it is why DP-FEAT rados carry the statement "marginal of one coordinate only".
    """
    draw = np.random.default_rng(0)
    m, nominal = 11, 6.0
    x = np.column_stack([draw.choice([-1.0, 1.0], m), draw.normal(size=m)])
    other = x.copy()
    other[0, 0] = -x[0, 0]
    y = draw.choice([-1, 1], m)
    law, neighbour = by_rejection(x, y, 0, nominal), by_rejection(other, y, 0, nominal)
    delta = sum(max(float(p) - math.exp(100.0) * float(neighbour.get(rado, 0)), 0.0) for rado, p in law.items())
    assert delta > 0.5


@pytest.mark.slow
def test_integer_features_do_not_save_the_joint_release() -> None:
    draw = np.random.default_rng(1)
    m = 16
    x = np.column_stack([draw.choice([-1.0, 1.0], m), draw.integers(20, 90, m), draw.integers(0, 1000, m)])
    other = x.copy()
    other[0, 0] = -x[0, 0]
    y = draw.choice([-1, 1], m)
    law, neighbour = by_rejection(x, y, 0, 2.0), by_rejection(other, y, 0, 2.0)
    delta = sum(max(float(p) - math.exp(20.0) * float(neighbour.get(rado, 0)), 0.0) for rado, p in law.items())
    assert delta > 0.5


def test_the_statement_says_marginal_only_and_carries_the_numbers() -> None:
    facts = Marginal(Window(1.0, 1000), 16).facts("smoker")
    statement = PrivacyStatement.marginal_only(facts)
    assert not statement.private
    assert "marginal of one coordinate only" in statement.sentence()
    assert "not differentially private" in statement.sentence()
    assert "not differentially private" in PrivacyStatement.none().sentence()
    assert PrivacyStatement.model_validate_json(statement.model_dump_json()) == statement
    private = {"relation": "feature_flip", "unit": "u", "epsilon": 1, "delta": 0}
    words = {"mechanism": "m", "theorem": "t", "accountant": "a"}
    with pytest.raises(ValueError, match="does not make a release private"):
        PrivacyStatement(private=True, marginal=facts, **private, **words)


def test_a_lattice_row_keeps_the_sign_that_the_sampler_needs() -> None:
    x = Lattice(1.5, 20).quantise(np.asfortranarray([[1.0, 0.3], [-1.0, 2.0]]))
    assert (np.sign(x[:, 0]) == [1, -1]).all()
