"""The corrected theorem 10 and theorem 6: coverage by simulation, and the published bound's failure."""

import math

import numpy as np
import pytest

from daskrado.bounds.label_noise import label_noise_bounds, noise_length
from daskrado.errors import UsageError

DRAWS = 20_000


def lengths(kind, d, draw):
    if kind == "laplace":
        return np.linalg.norm(draw.laplace(size=(DRAWS, d)), axis=1)
    if kind == "gaussian":
        return np.linalg.norm(draw.normal(size=(DRAWS, d)), axis=1)
    return draw.gamma(d, size=DRAWS)


@pytest.mark.parametrize("d", [1, 5, 100])
@pytest.mark.parametrize("kind", ["laplace", "gaussian", "l2_gamma"])
def test_noise_is_shorter_than_the_bound_as_often_as_promised(kind, d):
    draw = np.random.default_rng(6)
    for failure in (0.5, 0.05):
        beyond = np.mean(lengths(kind, d, draw) > noise_length(kind, d, 1.0, failure))
        assert beyond <= failure + 4 * math.sqrt(failure / DRAWS)
        if kind != "laplace":  # these two are exact quantiles
            assert beyond >= failure - 4 * math.sqrt(failure / DRAWS)


def test_the_published_bound_fails():
    """Without sqrt(d) the bound fails about 10 %, 50 % and 100 % of the time at d = 5, 20, 100 for failure 5 %."""
    draw = np.random.default_rng(7)
    for d, share in ((5, 0.10), (20, 0.50), (100, 1.00)):
        published = math.log(d / 0.05)
        assert np.mean(lengths("laplace", d, draw) > published) == pytest.approx(share, abs=0.05)


def test_constants():
    bounds = label_noise_bounds("l2_gamma", 3, 0.1, coefficient=4.0, norm=2.0, strength=0.5, failure=0.1)
    length = noise_length("l2_gamma", 3, 0.1, 0.1)
    assert bounds.risk_gap == pytest.approx(4.0 / 2 * 2.0 * length)
    assert bounds.weight_gap == pytest.approx(4.0 * length / (4 * 0.5))
    assert noise_length("laplace", 3, 0.0, 0.1) == 0.0
    with pytest.raises(UsageError):
        noise_length("laplace", 3, 1.0, 0.0)
    with pytest.raises(UsageError):
        noise_length("uniform", 3, 1.0, 0.1)


def test_any_law_has_a_bound_from_its_variance():
    """A mechanism of somebody's own: uniform coordinates on [-1, 1], whose variance is 1/3."""
    draw, std = np.random.default_rng(8), math.sqrt(1 / 3)
    for d in (1, 5, 100):
        found = np.linalg.norm(draw.uniform(-1, 1, size=(DRAWS, d)), axis=1)
        for failure in (0.5, 0.05):
            length = noise_length("uniform", d, 1.0, failure, std)
            assert length == pytest.approx(math.sqrt(d / 3 / failure))  # E |b|^2 = d / 3, and Markov's inequality
            assert np.mean(found > length) <= failure
