"""RadoBoost: Lemma 4's invariants in every round, for every option, and a step worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import logsumexp

from daskrado.errors import UsageError
from daskrado.learners import RadoBoost
from daskrado.privacy.release import Release
from daskrado.privacy.statement import PrivacyStatement
from daskrado.statistics import HadamardRados, MeanOperator, UniformRados
from daskrado.statistics.rados import walsh_hadamard
from daskrado.table.lattice import Lattice


def some_rados(seed: int = 0, n: int = 60, d: int = 7) -> np.ndarray:
    draw = np.random.default_rng(seed)
    return draw.normal(size=(n, d)) * draw.uniform(0.1, 9, size=d) + draw.normal(size=d)


@pytest.mark.parametrize("update", ["linear", "exponential"])
@pytest.mark.parametrize("clamps", [(0.0, 1 - 1e-12), (0.0, 0.1), (0.05, 0.8)])
@pytest.mark.parametrize("kappa", [1.0, 1.2, 3.0])
@pytest.mark.parametrize("oracle", ["strongest", "median", "prudential"])
def test_invariants_hold_in_every_round(kappa: float, oracle: str, clamps: tuple[float, float], update: str) -> None:
    rados = some_rados()
    learner = RadoBoost(150, kappa, oracle, 0.3, clamp=clamps[1], clamp_low=clamps[0], update=update, keep="last")
    seen = []

    def watch(r) -> None:
        assert r.weights.sum() == pytest.approx(1, abs=1e-12)
        assert (r.weights >= 0).all()
        assert r.log_risk <= r.log_bound + 1e-9
        assert clamps[0] <= abs(r.edge) <= clamps[1]
        if oracle == "prudential":
            assert abs(r.edge) <= 0.3
        if update == "exponential":
            expected = np.exp(-rados @ r.theta - logsumexp(-rados @ r.theta))
            assert r.weights == pytest.approx(expected, abs=1e-9)
        seen.append(r)

    theta, details = learner.learn(rados, watch)
    assert details["rounds"] == len(seen) >= 100
    direct = logsumexp(-rados @ theta) - math.log(len(rados))
    assert direct == pytest.approx(seen[-1].log_risk, abs=1e-9)


def test_one_round_by_hand() -> None:
    rados = np.array([[4.0, 1.0], [2.0, -1.0]])
    theta, _ = RadoBoost(rounds=1).learn(rados)
    r = (4 + 2) / 2 / 4  # the first feature: edge 0.75
    assert theta == pytest.approx([math.log((1 + r) / (1 - r)) / (2 * 4), 0.0])
    theta, _ = RadoBoost(rounds=1, kappa=2.0).learn(rados)
    assert theta[0] == pytest.approx(math.log((1 + r) / (1 - r)) / (2 * 2 * 4))
    theta, _ = RadoBoost(rounds=1, clamp=0.5).learn(rados)
    assert theta[0] == pytest.approx(math.log(1.5 / 0.5) / 8)


def test_a_separable_coordinate_does_not_overflow() -> None:
    theta, details = RadoBoost(rounds=20).learn(np.ones((5, 2)))
    assert np.isfinite(theta).all()
    assert details["log_rado_risk"] < 0


def test_zero_features_are_dropped_and_counted() -> None:
    rados = some_rados()
    rados[:, 3] = 0
    theta, details = RadoBoost(rounds=10).learn(rados)
    assert theta[3] == 0
    assert details["dropped_features"] == 1
    theta, details = RadoBoost(rounds=10).learn(np.zeros((4, 3)))
    assert not theta.any()


def test_keeping_by_risk_never_keeps_a_worse_one() -> None:
    rados = some_rados(3)
    risks = []
    kept, _ = RadoBoost(rounds=200, oracle="median").learn(rados, lambda r: risks.append(r.log_risk))
    assert logsumexp(-rados @ kept) - math.log(60) == pytest.approx(min(0.0, *risks), abs=1e-9)


def test_the_strongest_oracle_decreases_the_risk_it_bounds() -> None:
    rados = some_rados(5)
    risks: list[float] = []
    RadoBoost(rounds=300).learn(rados, lambda r: risks.append(r.log_risk))
    assert risks[-1] < risks[0] < 0


def test_a_sketch_and_its_rados_learn_the_same() -> None:
    draw = np.random.default_rng(0)
    sketch = draw.normal(size=(3, 16)) * 10
    quiet = PrivacyStatement.none()
    lattice = Lattice(1.0)
    from_sketch = Release(HadamardRados(3, 16), lattice, {"sketch": sketch}, {"sketch": 0.0}, quiet)
    rados = 0.5 * walsh_hadamard(sketch.T)
    from_rados = Release(UniformRados(3, 16), lattice, {"rados": rados}, {"rados": 0.0}, quiet)
    assert np.array_equal(RadoBoost(50).fit(from_sketch)[0], RadoBoost(50).fit(from_rados)[0])
    other = Release(MeanOperator(3), lattice, {"mean": sketch[:, 0]}, {"mean": 0.0}, quiet)
    with pytest.raises(UsageError, match="need rados, got the statistic mean_operator"):
        RadoBoost(5).fit(other)


@pytest.mark.parametrize(
    "options", [{"rounds": 0}, {"kappa": 0.5}, {"kappa": math.nan}, {"clamp": 1.0}, {"clamp": 0}, {"prudence": 0}]
)
def test_bad_options_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        RadoBoost(**options)


def test_without_clamps_the_bound_is_lemma_four() -> None:
    """log F_exp <= (1 / (2 kappa)) sum log(1 - r^2), which is at most -T gamma^2 / (2 kappa)."""
    seen: list = []
    RadoBoost(rounds=80, kappa=2.0).learn(some_rados(), seen.append)
    for t, last in enumerate(seen, start=1):
        assert last.log_bound == pytest.approx(sum(math.log(1 - r.edge**2) for r in seen[:t]) / 4, abs=1e-9)
        gamma = min(abs(r.edge) for r in seen[:t])
        assert last.log_risk <= -t * gamma**2 / 4 + 1e-12


def test_the_median_oracle_takes_the_median_edge() -> None:
    rados = some_rados(d=7)
    scaled = rados / np.abs(rados).max(axis=0)
    first: list = []
    RadoBoost(rounds=1, oracle="median").learn(rados, first.append)
    edges = np.abs(scaled.mean(axis=0))
    assert edges[first[0].feature] == pytest.approx(np.median(edges))


def test_the_path_ends_where_the_learner_ends_and_stops_when_one_weight_holds_everything() -> None:
    rados = some_rados(2)
    learner = RadoBoost(rounds=25, keep="last")
    assert np.array_equal(learner.path(rados)[-1], learner.learn(rados)[0])
    # The rado without this feature gains weight as the others halve theirs: 2^-30 is left after 30 rounds.
    details = RadoBoost(rounds=1000, clamp_low=0.5).learn(np.array([[1.0], [1.0], [0.0]]))[1]
    assert 28 <= details["rounds"] <= 32


@pytest.mark.parametrize("options", [{"clamp_low": 0.9, "clamp": 0.8}, {"clamp_low": -0.1}])
def test_clamps_in_the_wrong_order_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="clamp_low must be between 0 and clamp"):
        RadoBoost(**options)
