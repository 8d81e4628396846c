"""Error bars of several classes and of a descent on a number: coverage, width, and what is planted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from intervals import CLASSES, DELTA, Population, coverage, learned_from

import daskrado
from daskrado.errors import UsageError
from daskrado.learners.on_passes import residuals, softmax_errors
from daskrado.learners.on_passes.gradient import PrivateGradient, lattice_of
from daskrado.learners.on_passes.softmax import SoftmaxGradient
from daskrado.learners.on_release.moment_errors import NoisyMoments
from daskrado.losses.residual import ResidualHuber
from daskrado.privacy.accountant import GaussianEvent, gaussian_mu
from daskrado.privacy.perturbation import PublicFacts
from daskrado.privacy.relations import Relation
from daskrado.statistics.base import Rows
from daskrado.statistics.residual_spread import FINE, ResidualSpread
from daskrado.table.label_sides import LABEL_BITS
from daskrado.table.lattice import Lattice


@pytest.mark.slow
@pytest.mark.parametrize("target", ["two classes", "a number", "three classes"])
@pytest.mark.parametrize("learner", ["moments", "gradient"])
def test_intervals_hold_the_truth_and_are_no_wider_than_need_be(target: str, learner: str) -> None:
    """Of 120 lakes with 7 weights or more: the mean is within 0.012 of 0.95, a weight's own within 0.08."""
    found = coverage(target, learner, 10_000, 2.0, 120, 1)
    assert found["with_intervals"] > 0.99
    assert found["mean"] > 0.93
    assert found["worst"] > 0.86
    assert found["width"] < 1.3


def test_intervals_of_classes_are_exactly_the_law_that_was_released(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the noise is seen: at so little budget noise is most of the error."""
    held = {}
    population, random = Population("three classes"), np.random.default_rng(2)
    for part in (1.0, 0.5):
        whole = NoisyMoments.of_class

        def of_class(self: NoisyMoments, number: int, part: float = part, whole: Any = whole) -> NoisyMoments:
            found: NoisyMoments = whole(self, number)
            return replace(found, mean_noise=part * found.mean_noise, second_noise=part * found.second_noise)

        with monkeypatch.context() as patched:
            patched.setattr(NoisyMoments, "of_class", of_class)
            inside = []
            for _ in range(40):
                learned = learned_from(population.lake(40_000, random), population.domain, "moments", 0.08)
                truth, bars = population.truth(population.domain, learned), learned.bars
                assert bars is not None
                inside.append((bars.low <= truth) & (truth <= bars.high))
        held[part] = np.mean(inside)
    assert held[1.0] > 0.93
    assert held[0.5] < 0.85


def test_weights_and_intervals_of_classes_are_in_one_frame_and_in_json(fixed_noise: None) -> None:
    population = Population("three classes")
    frame = population.lake(20_000, np.random.default_rng(3))
    for learner in ("moments", "gradient", "output_perturbation"):
        how: dict[str, Any] = {"learner": learner, "rows": 20_000, "first_limit": (4, 1e-5)}
        model = daskrado.fit(
            frame, population.domain, dataset=learner, epsilon=4, delta=DELTA, unit="one", **how
        ).model
        assert model is not None
        table = model.coefficients
        assert list(table.columns) == ["weight", "low", "high", "p", "mark"]
        assert table.index[0] == f"{CLASSES[0]}: age"
        assert np.isfinite(table[["low", "high", "p"]]).all(axis=None)
        again = type(model).from_json(model.to_json()).coefficients
        np.testing.assert_allclose(again[["low", "high", "p"]], table[["low", "high", "p"]])
        if learner == "gradient":  # against the mean over the classes
            assert model.weights.sum(axis=0) == pytest.approx(0.0, abs=1e-9)
            assert table.loc["severe: age", "p"] < 1e-6
            assert (table["low"] < table["high"]).all()


def test_very_many_weights_of_classes_have_no_intervals(monkeypatch: pytest.MonkeyPatch, fixed_noise: None) -> None:
    monkeypatch.setattr(softmax_errors, "MOST_WEIGHTS", 20)
    population = Population("three classes")
    learned = learned_from(population.lake(5000, np.random.default_rng(3)), population.domain, "gradient", 2.0)
    assert learned.bars is not None
    assert np.isnan(learned.bars.low).all()
    assert learned.bars.about == "no intervals: there are more than 20 weights of all classes"


def test_intervals_of_a_number_that_leave_out_the_spread_of_residuals_hold_too_little() -> None:
    population, random, inside = Population("a number"), np.random.default_rng(5), []
    real = residuals.released

    def quarter(*given: Any) -> residuals.Spread:
        found = real(*given)
        return residuals.Spread(found.squares / 16, found.beyond)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(residuals, "released", quarter)
        for _ in range(25):
            learned = learned_from(population.lake(10_000, random), population.domain, "gradient", 4.0)
            truth, bars = population.truth(population.domain, learned), learned.bars
            assert bars is not None
            inside.append((bars.low <= truth) & (truth <= bars.high))
    assert np.mean(inside) < 0.85


def test_the_spread_of_residuals_is_what_it_says() -> None:
    """Against a plain loop over rows in floating point; within 2^-FINE for each."""
    draw, lattice = np.random.default_rng(7), Lattice(1.0, 12)
    x = lattice.quantise(np.asfortranarray(draw.normal(size=(300, 3))))
    y = (2 * draw.integers(-1024, 1024, 300) + 1).astype(np.int16)
    y[:20] = 0
    weights, h = np.array([0.3, -0.2, 0.6]), 0.4
    found = ResidualSpread.at(weights, h, lattice).partial(Rows(x, y)) / 2**FINE
    off = (x @ weights) / 2**12 - y / 2**LABEL_BITS
    near = np.abs(off[20:]) <= h
    assert found[0] == pytest.approx(np.square(off[20:][near] / h).sum(), abs=300 * 2.0**-FINE)
    assert found[1] == np.count_nonzero(~near)
    with pytest.raises(UsageError, match="label_flip"):
        ResidualSpread.at(weights, h, lattice).sensitivity(Relation.LABEL_FLIP)


@pytest.mark.parametrize("relation", [Relation.ADD_REMOVE, Relation.REPLACE_ONE])
def test_all_draws_of_a_descent_on_a_number_cost_what_is_charged(relation: Relation) -> None:
    """mu^2 added up from the noise that is drawn: moments, 40 gradients, two sums of residuals."""
    facts = PublicFacts(50_000, 5, 1.5, relation, 1.0, 1e-6)
    learner = PrivateGradient(ResidualHuber(), centre=False)
    plan, mu = learner.schedule(facts), gaussian_mu(1.0, 1e-6)
    event = learner.guarantee(facts).event
    assert isinstance(event, GaussianEvent)
    assert event.mu == pytest.approx(mu)
    one = ResidualSpread.at(np.zeros(5), 0.25, lattice_of(facts)).sensitivity(relation).l2
    spread = (one / learner._spread_noise(facts, mu)) ** 2
    far = 1.0 if relation is Relation.ADD_REMOVE else 2.0
    gradients = plan.count * (far / plan.noise) ** 2
    moments = (1 / plan.moments_noise) ** 2 if relation is Relation.ADD_REMOVE else 0.0  # else proved to be free
    assert spread + gradients + moments == pytest.approx(mu**2, rel=1e-9)
    assert spread == pytest.approx(0.005 * mu**2)
    assert SoftmaxGradient(classes=3)._spread_noise(facts, mu) is None
