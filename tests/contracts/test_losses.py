"""Every loss keeps its contract: derivatives by finite differences, declared constants, the odd coefficient."""

from __future__ import annotations

import numpy as np
import pytest

from daskrado.losses.linear_odd import AbsoluteOdd
from daskrado.losses.margin import Huber, HuberLogistic, Logistic, Loss, SmoothHinge, Square
from daskrado.losses.proper import GENERATORS, SymmetricProper
from daskrado.losses.residual import ResidualHuber
from daskrado.registry import kinds, make, options

PACKAGE = "daskrado.losses"
KINDS = {  # every class of the package, also one that nothing imports
    name: kind for name, kind in kinds(Loss, PACKAGE).items() if kind.__module__.startswith(PACKAGE)
}
WITH_OPTIONS: dict[str, list[Loss]] = {
    "huber": [Huber(h) for h in (0.05, 0.25, 2.0)],
    "smooth_hinge": [SmoothHinge(h) for h in (0.05, 0.25, 2.0)],
    "huber_logistic": [HuberLogistic(share, h) for share, h in ((0.1, 1.0), (0.3, 0.5), (0.05, 0.2), (1.0, 2.0))],
    "residual_huber": [ResidualHuber(h) for h in (0.05, 2.0)],
    "absolute": [AbsoluteOdd(1.5, 0.1), AbsoluteOdd(0.5, 0.5)],
    "proper": [SymmetricProper(generator) for generator in GENERATORS.values()],
}


def instances(name: str, kind: type[Loss]) -> list[Loss]:
    """A loss with its defaults, where it has them all, and with options."""
    known = WITH_OPTIONS.get(name, [])
    return known if name == "proper" else [kind(), *known]


INSTANCES: list[Loss] = [loss for name, kind in KINDS.items() for loss in instances(name, kind)]
GRID = np.linspace(-6.0, 6.0, 4001)
by_name = pytest.mark.parametrize("loss", INSTANCES, ids=lambda loss: str(options(loss)))


def kinks(loss: Loss) -> list[float]:
    """Margins at which the slope has one-sided derivatives only."""
    if isinstance(loss, Huber | HuberLogistic):
        return [1 - loss.h, 1 + loss.h]
    if isinstance(loss, ResidualHuber):
        return [-loss.h, loss.h]
    return [0.0] if isinstance(loss, AbsoluteOdd) and not loss.rounding else []


@by_name
def test_slope_is_the_derivative_of_the_value(loss: Loss) -> None:
    step = 1e-6
    numeric = (loss.value(GRID + step) - loss.value(GRID - step)) / (2 * step)
    np.testing.assert_allclose(loss.slope(GRID), numeric, atol=2e-5)


@by_name
def test_curvature_is_the_derivative_of_the_slope(loss: Loss) -> None:
    step = 1e-7
    numeric = (loss.slope(GRID + step) - loss.slope(GRID - step)) / (2 * step)
    smooth = np.all([np.abs(GRID - kink) > 1e-3 for kink in kinks(loss)], axis=0) | np.zeros_like(GRID, dtype=bool)
    np.testing.assert_allclose(loss.curvature(GRID)[smooth], numeric[smooth], atol=2e-5)


@by_name
def test_declared_constants_hold_and_are_reached(loss: Loss) -> None:
    if isinstance(loss, SymmetricProper):  # they depend on the generator and are not derived: learners refuse it
        assert (loss.lipschitz, loss.smoothness) == (None, None)
        return
    fine = np.linspace(-60.0, 60.0, 1_200_001)
    slopes = loss.slope(fine)
    quotient = np.abs(np.diff(slopes)) / np.diff(fine)
    if loss.smoothness is None:
        ends = np.array([-1e-12, 1e-12])
        assert np.diff(loss.slope(ends)) / np.diff(ends) > 1e11  # really a corner
    else:
        assert quotient.max() <= loss.smoothness * (1 + 1e-9)
        assert quotient.max() >= loss.smoothness * (1 - 1e-3)
        assert (loss.curvature(fine) <= loss.smoothness * (1 + 1e-12)).all()
    slopes = np.append(slopes, loss.slope(np.array([-1e6])))
    if loss.lipschitz is None:
        assert np.abs(loss.slope(np.array([-1e12]))) > 1e12  # really unbounded
    else:
        assert np.abs(slopes).max() <= loss.lipschitz
        assert np.abs(slopes).max() >= loss.lipschitz * (1 - 1e-6)


@by_name
def test_derivatives_together_are_those_one_by_one(loss: Loss) -> None:
    together = loss.derivatives(GRID)
    for got, wanted in zip(together, (loss.value(GRID), loss.slope(GRID), loss.curvature(GRID)), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-14, atol=1e-300)


@by_name
def test_bounded_losses_fall(loss: Loss) -> None:
    """A loss of margins never rises; one of residuals does, on both sides of 0."""
    if loss.target == "number":
        assert (np.sign(loss.slope(GRID)) == np.sign(GRID)).all()
    elif loss.lipschitz is not None:
        assert (loss.slope(np.linspace(-60, 60, 100_001)) <= 0).all()


@by_name
def test_convex(loss: Loss) -> None:
    assert (np.diff(loss.slope(GRID)) >= -1e-12).all()
    assert (loss.curvature(GRID) >= 0).all()


@by_name
def test_odd_coefficient(loss: Loss) -> None:
    odd_part = loss.value(GRID) - loss.value(-GRID)
    if loss.target == "number":
        np.testing.assert_array_equal(odd_part, 0.0)
    elif loss.odd is not None:
        np.testing.assert_allclose(odd_part, -loss.odd * GRID, atol=1e-10)
    else:
        ratio = odd_part[GRID > 0.5] / GRID[GRID > 0.5]
        assert np.ptp(ratio) > 0.01  # no coefficient would do


def test_huber_constant_is_not_a_quarter() -> None:
    """With the usual h = 1/2 the constant is 1, four times what the paper's corollary says."""
    assert Huber(0.5).smoothness == 1.0
    assert Huber(0.5).curvature(np.array([1.0]))[0] == 1.0


@pytest.mark.parametrize(
    ("loss", "z", "value"),
    [
        (Logistic(), 0.0, np.log(2.0)),
        (Square(), -1.0, 4.0),
        (Huber(0.5), 0.0, 1.0),  # the hinge outside the corner
        (Huber(0.5), 1.0, 0.125),  # h / 4
        (SmoothHinge(0.5), -2.0, 3.0),
        (SmoothHinge(0.5), 1.0, 0.09375),  # 3 h / 16
        (SmoothHinge(0.5), 1.5, 0.0),
    ],
)
def test_known_values(loss: Loss, z: float, value: float) -> None:
    assert loss.value(np.array([z]))[0] == pytest.approx(value, abs=1e-15)


def test_extreme_margins_stay_finite() -> None:
    z = np.array([-1e8, 1e8])
    for loss in INSTANCES:
        for part in (loss.value(z), loss.slope(z), loss.curvature(z)):
            assert np.isfinite(part).all()


@by_name
def test_a_loss_that_is_written_down_is_read_back(loss: Loss) -> None:
    assert make(Loss, (PACKAGE,), options(loss)) == loss


@pytest.mark.parametrize("h", [0.0, -1.0, float("nan"), float("inf")])
def test_bad_corner_is_refused(h: float) -> None:
    with pytest.raises(ValueError, match="h must be between 1e-6"):
        make(Loss, (PACKAGE,), {"kind": "huber", "h": h})


def test_unknown_loss_lists_what_is_allowed() -> None:
    with pytest.raises(ValueError, match=r"'huber', 'huber_logistic', 'logistic'.*'zero_one'"):
        make(Loss, (PACKAGE,), "zero_one")
    with pytest.raises(ValueError, match="h: unknown key; logistic takes none"):
        make(Loss, (PACKAGE,), {"kind": "logistic", "h": 0.5})
