"""Figures from counts: against scipy, scikit-learn and closed forms, and how often their intervals hold the truth."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest, norm

from daskrado.models.evaluation import Cells, Evaluation, equal_bins, share
from daskrado.privacy.accountant import gaussian_mu


def test_without_noise_a_share_has_wilsons_interval() -> None:
    for part, total in ((0, 20), (3, 40), (50, 100), (999, 1000), (7, 7)):
        found, known = share(part, total - part, (0.0, 0.0)), binomtest(part, total).proportion_ci(method="wilson")
        assert found.value == part / total
        assert (found.low, found.high) == pytest.approx((known.low, known.high), abs=1e-9)


def test_noise_widens_a_share_and_a_total_lost_in_it_says_nothing() -> None:
    """With noise alone, Fieller's limits solve (part - p total)^2 = z^2 ((1 - p)^2 a + p^2 b) + sampling."""
    found, exact = share(300, 700, (400.0, 900.0)), share(300, 700, (0.0, 0.0))
    assert found.low < exact.low < 0.3 < exact.high < found.high
    for limit in (found.low, found.high):
        spread = 1000 * limit * (1 - limit) + (1 - limit) ** 2 * 400 + limit**2 * 900
        assert (300 - limit * 1000) ** 2 == pytest.approx(norm.ppf(0.975) ** 2 * spread, rel=1e-9)
    for part, rest in ((-5.0, 2.0), (10.0, 20.0)):
        lost = share(part, rest, (400.0, 400.0))
        assert (lost.low, lost.high) == (0.0, 1.0)


def scores(rows: int, rate: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    positive = draw.random(rows) < rate
    return draw.normal(size=rows) + 1.5 * positive, positive


def counted(margins: np.ndarray, positive: np.ndarray, edges: np.ndarray, std: float = 0.0) -> Cells:
    code = np.searchsorted(edges, margins, side="right")
    sides = [np.bincount(code[positive == side], minlength=len(edges) + 1).astype(float) for side in (False, True)]
    return Cells(edges, sides[0], sides[1], std)


@pytest.mark.parametrize("rate", [0.5, 0.1])
def test_area_of_twenty_bins_is_scikit_learns_area_of_all_scores(rate: float) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    margins, positive = scores(200_000, rate, 1)
    truth = metrics.roc_auc_score(positive, margins)
    found = counted(margins, positive, np.quantile(margins, np.arange(1, 20) / 20)).auc
    assert found.value == pytest.approx(truth, abs=5e-4)
    assert found.value == pytest.approx(norm.cdf(1.5 / np.sqrt(2)), abs=0.005)


def test_figures_at_a_threshold_are_those_of_the_rows() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    margins, positive = scores(5_000, 0.3, 2)
    cells = counted(margins, positive, np.linspace(-1, 2, 13))
    at = cells.place(0.73)
    called = margins >= cells.edges[at - 1]
    assert cells.edges[at - 1] == 0.75
    assert cells.error(at).value == pytest.approx(1 - metrics.accuracy_score(positive, called))
    assert cells.true_positives(at).value == pytest.approx(metrics.recall_score(positive, called))
    assert cells.precision(at).value == pytest.approx(metrics.precision_score(positive, called))
    assert cells.false_positives(at).value == pytest.approx(called[~positive].mean())
    assert cells.called(at).value == pytest.approx(called.mean())
    assert cells.base_rate.value == pytest.approx(positive.mean())
    assert cells.constant_error.value == pytest.approx(min(positive.mean(), 1 - positive.mean()))
    false, true = cells.roc()
    assert (false[0], true[0], false[-1], true[-1]) == (1, 1, 0, 0)
    assert (false[at], true[at]) == pytest.approx((cells.false_positives(at).value, cells.true_positives(at).value))


def test_groups_of_several_columns_are_averaged_with_the_least_noise() -> None:
    """Columns of 2 and 3 groups: sums have variances 2 s^2 and 3 s^2, their best mean 1 / (1/2 + 1/3) s^2."""
    counts = np.arange(5 * 2 * 4, dtype=float).reshape(5, 2, 4)
    found = Evaluation.of(counts, np.arange(3.0), 2.0, {"a": ("x", "y"), "b": ("u", "v", "w")}, units=2)
    halves = counts / 2
    expected = (halves[:2].sum(axis=0) / 2 + halves[2:].sum(axis=0) / 3) / (1 / 2 + 1 / 3)
    assert np.allclose([found.cells.negative, found.cells.positive], expected)
    assert found.cells.std == pytest.approx(1.0 / np.sqrt(1 / 2 + 1 / 3))
    assert found.groups["b"]["w"].std == 1.0
    assert np.array_equal(found.groups["a"]["y"].positive, halves[1, 1])


def test_bins_hold_equally_many_and_one_edge_is_the_middle() -> None:
    draw = np.random.default_rng(3)
    for noise in (0.0, 40.0):
        margins = draw.normal(-0.4, 0.1, 50_000)
        fine = np.histogram(margins, np.linspace(-2, 2, 1025))[0] + draw.normal(0, noise, 1024)
        places = equal_bins(fine, 20)
        assert len(places) == len(set(places)) == 19
        assert 512 in places
        held = np.histogram(margins, [-2, *np.linspace(-2, 2, 1025)[places], 2])[0]
        assert sum(held > 1_500) >= 15
    assert len(equal_bins(np.zeros(1024), 20)) == 19  # nobody, or one score for all
    assert len(equal_bins(np.eye(1, 1024, 700)[0] * 1e6, 20)) == 19


CASES = {"many": (60_000, 1.0, 0.3), "few positives": (60_000, 0.2, 0.02), "few": (5_000, 0.5, 0.4)}


@pytest.mark.parametrize("case", CASES)
def test_intervals_hold_the_truth_as_often_as_they_say(case: str) -> None:
    """Truth by closed form: scores are normal with means 0 and 1.5. 400 samples, each with noise of its own.

    At a coverage of 95 % fewer than 365 of 400 come by chance once in 300; intervals two thirds as wide cover 81 %.
    """
    rows, epsilon, rate = CASES[case]
    draw = np.random.default_rng(5)
    mu = gaussian_mu(epsilon, 1e-6)
    std = 1 / (mu * np.sqrt(0.8))
    edges = norm.ppf(np.arange(1, 20) / 20) + 1.5 * rate
    below = np.array([norm.cdf(np.concatenate([edges - shift, [np.inf]])) for shift in (0.0, 1.5)])
    cells_of = np.diff(below, axis=1, prepend=0.0) * [[1 - rate], [rate]]
    at = 14
    truth = {
        "error": (1 - rate) * (1 - below[0, at - 1]) + rate * below[1, at - 1],
        "auc": norm.cdf(1.5 / np.sqrt(2)),
        "base": rate,
        "found": 1 - below[1, at - 1],
        "seen": cells_of[1, 15:].sum() / cells_of[:, 15:].sum(),
    }
    held, narrow = dict.fromkeys(truth, 0), 0
    for _ in range(400):
        counts = draw.multinomial(rows, cells_of.ravel()).reshape(2, 20) + draw.normal(0, std, (2, 20))
        cells = Cells(edges, counts[0], counts[1], std)
        found = {
            "error": cells.error(at),
            "auc": cells.auc,
            "base": cells.base_rate,
            "found": cells.true_positives(at),
            "seen": cells.observed(15, 20),
        }
        for name, figure in found.items():
            held[name] += truth[name] in figure
        narrow += abs(cells.auc.value - truth["auc"]) <= (cells.auc.high - cells.auc.low) / 3
    assert min(held.values()) >= 365, held
    assert narrow < 350
