"""The audit of answers to votes: it passes the corrected distance and finds the paper's."""

import math

import numpy as np
import pytest

from daskrado.audit.votes import PlantedStability, drawn_delta, hockey_stick, threshold_law, worst_delta
from daskrado.engines.answers import REFUSED, Stability, Terms
from daskrado.statistics.votes import distance, leaders, published_distance


@pytest.mark.parametrize(("epsilon", "delta", "broken"), [(1.0, 1e-3, 0.34), (0.5, 1e-6, 0.22)])
def test_the_exact_audit_finds_the_margin_distance(epsilon: float, delta: float, broken: float) -> None:
    planted = PlantedStability(epsilon, delta)
    threshold = math.log(1 / delta) / epsilon
    teachers = math.ceil(threshold) + 3  # the worst pair lies where the threshold cuts
    assert worst_delta(planted.law, teachers, epsilon) > 100 * delta

    def continuous(counts: np.ndarray) -> dict[int, float]:
        gap = threshold - int(published_distance(counts)[0])
        heard = 0.5 * math.exp(-epsilon * gap) if gap >= 0 else 1 - 0.5 * math.exp(epsilon * gap)
        return {int(leaders(counts)[0]): heard, REFUSED: 1 - heard}

    assert worst_delta(continuous, teachers, epsilon) == pytest.approx(broken, abs=0.005)


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 1e-3), (0.5, 1e-6)])
def test_the_exact_audit_passes_the_corrected_distance(epsilon: float, delta: float) -> None:
    mechanism = Stability(Terms(epsilon, delta, 1))

    def law(counts: np.ndarray) -> dict[int, float]:
        return dict(
            threshold_law(int(distance(counts)[0]), int(leaders(counts)[0]), mechanism.scale, mechanism.threshold)
        )

    teachers = min(4 * mechanism.threshold + 8, 60)
    assert worst_delta(law, teachers, epsilon) <= delta


def test_real_draws_find_the_planted_bug_and_pass_the_corrected_distance() -> None:
    epsilon, delta, runs = 1.0, 1e-3, 4000
    planted = PlantedStability(epsilon, delta)
    margin = planted.threshold + 2
    one = np.array([[0, margin]], dtype=np.int64)
    two = np.array([[1, margin - 1]], dtype=np.int64)
    assert drawn_delta(planted.release, one, two, epsilon, runs) > 10 * delta
    fair = Stability(Terms(epsilon, delta, 1))
    near = 2 * fair.threshold + 2
    pair = np.array([[0, near]], dtype=np.int64), np.array([[1, near - 1]], dtype=np.int64)
    assert drawn_delta(fair.release, *pair, epsilon, runs) <= delta


def test_hockey_stick_of_randomised_response() -> None:
    p = math.e / (1 + math.e)
    one, two = {0: p, 1: 1 - p}, {0: 1 - p, 1: p}
    assert hockey_stick(one, two, 1.0) == pytest.approx(0, abs=1e-15)
    assert hockey_stick(one, two, 0.0) == pytest.approx(2 * p - 1)
