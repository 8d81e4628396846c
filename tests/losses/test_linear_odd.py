"""Linear-odd losses: the factorisation as a contract over all of them, and refusals that say why."""

import math

import numpy as np
import pytest
from scipy import optimize

from daskrado.errors import UsageError
from daskrado.losses.linear_odd import (
    AbsoluteOdd,
    EvenPart,
    Matsushita,
    Unhinged,
    UserLoss,
    linear_odd_coefficient,
    make_odd_loss,
    odd_loss_names,
)
from daskrado.losses.margin import Huber, Logistic, Square
from daskrado.losses.proper import GENERATORS, LOGISTIC, MATSUSHITA, SQUARE, Generator, SymmetricProper
from daskrado.registry import options


def smooth_user(z):
    return np.logaddexp(0.0, -2 * z) + 0.1 * z * z


TSALLIS = Generator(  # a generator of nobody's paper: q^4 + (1-q)^4, strictly convex and symmetric
    "quartic",
    lambda q: q**4 + (1 - q) ** 4,
    lambda q: 4 * q**3 - 4 * (1 - q) ** 3,
    lambda q: 12 * q**2 + 12 * (1 - q) ** 2,
)
ODD = {  # the coefficient a of f(z) - f(-z) = -a z, from the papers or by hand
    "logistic": (Logistic(), 1.0),
    "square": (Square(), 4.0),
    "matsushita": (Matsushita(), 2.0),
    "unhinged": (Unhinged(), 2.0),
    "absolute": (AbsoluteOdd(1.5), 3.0),
    "absolute rounded": (AbsoluteOdd(1.5, 0.1), 3.0),
    "proper logistic": (SymmetricProper(LOGISTIC), 1 / math.log(2)),
    "proper square": (SymmetricProper(SQUARE), 4.0),
    "proper matsushita": (SymmetricProper(MATSUSHITA), 2.0),
    "proper quartic": (SymmetricProper(TSALLIS), 1 / (1 - 1 / 8)),
    "user": (UserLoss(smooth_user), 2.0),
}
odd_losses = pytest.mark.parametrize(("loss", "a"), ODD.values(), ids=ODD)


@odd_losses
def test_odd_part_is_linear(loss, a):
    z = np.linspace(-30, 30, 1201)
    assert loss.odd == pytest.approx(a, rel=1e-9)
    np.testing.assert_allclose(loss.value(z) - loss.value(-z), -a * z, atol=1e-9)


@odd_losses
def test_risk_is_even_part_plus_mean_operator(loss, a):
    """Theorem 3 of Patrini, Nielsen and Nock (2015) on random samples, risk computed label by label."""
    draw = np.random.default_rng(5)
    for scale in (0.1, 1.0, 10.0):
        x, y = draw.normal(size=(50, 4)), draw.choice([-1.0, 1.0], size=50)
        w = scale * draw.normal(size=4)
        risk = np.mean([float(loss.value(np.array([yi * (w @ xi)]))[0]) for xi, yi in zip(x, y, strict=True)])
        mu = (y[:, None] * x).mean(axis=0)
        even = EvenPart(loss)
        assert risk == pytest.approx(even.value(x @ w).mean() - a / 2 * (w @ mu), rel=1e-8, abs=1e-8)


@odd_losses
def test_derivatives_are_those_of_the_value(loss, a):
    z = np.concatenate([np.linspace(-6, -0.05, 60), np.linspace(0.05, 6, 60)])
    h = 1e-6
    np.testing.assert_allclose(loss.slope(z), (loss.value(z + h) - loss.value(z - h)) / (2 * h), atol=2e-5)
    h = 1e-4
    second = (loss.value(z + h) - 2 * loss.value(z) + loss.value(z - h)) / h**2
    np.testing.assert_allclose(loss.curvature(z), second, atol=2e-3 * (1 + np.abs(second).max()))
    even = EvenPart(loss)
    np.testing.assert_allclose(even.slope(-z), -even.slope(z), atol=1e-8)


@odd_losses
def test_declared_constants_hold(loss, a):
    z = np.linspace(-40, 40, 20001)
    if loss.lipschitz is not None:
        assert np.abs(loss.slope(z)).max() <= loss.lipschitz * (1 + 1e-12)
    if loss.smoothness is not None:
        assert np.abs(np.diff(loss.slope(z)) / np.diff(z)).max() <= loss.smoothness * (1 + 1e-9)


def test_generators_recover_the_losses_they_are_known_for():
    z = np.linspace(-25, 25, 501)
    np.testing.assert_allclose(SymmetricProper(LOGISTIC).value(z), np.logaddexp(0, -z) / math.log(2), atol=1e-12)
    np.testing.assert_allclose(SymmetricProper(SQUARE).value(z), (1 - z) ** 2, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(SymmetricProper(MATSUSHITA).value(z), np.sqrt(1 + z * z) - z, atol=1e-12)


def test_a_proper_loss_is_the_conjugate_found_by_another_optimiser():
    loss, b = SymmetricProper(TSALLIS), 1 - 1 / 8
    for z in (-9.0, -2.0, -0.3, 0.0, 0.7, 3.0, 9.0):
        found = optimize.minimize_scalar(
            lambda q, z=z: q * z + float(TSALLIS.value(np.array([q]))[0]),
            bounds=(0, 1),
            method="bounded",
            options={"xatol": 1e-12},
        )
        conjugate = max(-found.fun, -1.0, -z - 1.0)  # the ends, where the optimiser does not go
        assert float(loss.value(np.array([z]))[0]) == pytest.approx((conjugate + 1) / b, abs=1e-8)


@pytest.mark.parametrize(
    ("generator", "why"),
    [
        (Generator("skew", lambda q: q**3, lambda q: 3 * q**2, lambda q: 6 * q), "symmetric"),
        (Generator("concave", lambda q: q * (1 - q), lambda q: 1 - 2 * q, lambda q: -2 + 0 * q), "convex"),
        (Generator("infinite", lambda q: 1 / (q * (1 - q) + 0 * q), lambda q: q, lambda q: q), "finite"),
        (Generator("liar", lambda q: -q * (1 - q), lambda q: 3 * (2 * q - 1), lambda q: 2 + 0 * q), "derivative"),
    ],
)
def test_a_generator_that_is_not_permissible_is_refused(generator, why):
    with np.errstate(divide="ignore"), pytest.raises(UsageError, match=why):
        SymmetricProper(generator)


def hinge(z):
    return np.maximum(0.0, 1 - z)


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (hinge, "not linear-odd"),
        (np.exp, "not linear-odd"),
        (Huber(0.5).value, "not linear-odd"),
        (lambda z: z * z, "a > 0"),
        (lambda z: z, "a > 0"),
        (lambda z: np.log(z), "finite"),
        (lambda z: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_other_functions_are_refused(function, why):
    with np.errstate(all="ignore"), pytest.raises(UsageError, match=why):
        linear_odd_coefficient(function)


def test_a_loss_slightly_off_linear_odd_is_refused():
    with pytest.raises(UsageError, match="not linear-odd"):
        UserLoss(lambda z: np.logaddexp(0, -z) + 1e-4 * np.tanh(z))


def test_a_user_loss_with_a_dent_is_refused():
    with pytest.raises(UsageError, match="not convex"):
        UserLoss(lambda z: -z - np.exp(-z * z))


@pytest.mark.parametrize("name", ["hinge", "huber", "smooth_hinge"])
def test_hinges_are_refused_with_the_reason(name):
    with pytest.raises(UsageError, match="mean operator"):
        make_odd_loss(name)


def test_losses_by_name():
    assert make_odd_loss({"kind": "absolute", "rho": 2.0}).odd == 4.0
    assert make_odd_loss({"kind": "proper", "generator": "matsushita"}).odd == 2.0
    assert {make_odd_loss(n).name for n in ("logistic", "square", "matsushita", "unhinged")} == {
        "logistic", "square", "matsushita", "unhinged"
    }  # fmt: skip
    assert set(GENERATORS) == {"logistic", "square", "matsushita"}
    assert odd_loss_names() == ["absolute", "logistic", "matsushita", "proper", "square", "unhinged"]
    for bad in (
        "nothing",
        "proper",
        "user",
        {"kind": "proper", "generator": "nothing"},
        {"kind": "logistic", "rho": 1.0},
        {"kind": "absolute", "rho": -1},
        3,
    ):
        with pytest.raises(UsageError, match=r"^loss"):
            make_odd_loss(bad)
    with pytest.raises(UsageError, match="linear-odd"):
        EvenPart(Huber(0.5))


def test_a_loss_of_ones_own_is_named_in_files():
    assert options(UserLoss(smooth_user))["function"].endswith(".smooth_user")
    assert options(SymmetricProper(TSALLIS)) == {"kind": "proper", "generator": "quartic"}
