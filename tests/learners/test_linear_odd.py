"""The learner from a mean operator, against scikit-learn, closed forms and another optimiser."""

from pathlib import Path

import numpy as np
import pytest
from scipy import optimize
from sklearn.linear_model import LogisticRegression

from daskrado.errors import UsageError
from daskrado.lake.collect import open_passes
from daskrado.lake.scan import open_lake
from daskrado.learners.on_passes.linear_odd import ArrayFeatures, LakeFeatures, fit_mean
from daskrado.losses.linear_odd import AbsoluteOdd, EvenPart, UserLoss, make_odd_loss
from daskrado.table.domain import Domain
from daskrado.table.lattice import Lattice

ROOT = Path(__file__).parents[2]
LOSSES = [make_odd_loss(name) for name in ("logistic", "square", "matsushita", "unhinged")]
LOSSES += [make_odd_loss({"kind": "proper", "generator": "logistic"}), UserLoss(lambda z: np.logaddexp(0, -z))]


def sample(n=400, d=6, seed=3):
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(n, d))
    x /= np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1.0)
    y = np.where(draw.random(n) < 1 / (1 + np.exp(-4 * x @ np.linspace(-1, 1, d))), 1.0, -1.0)
    return x, y, (y[:, None] * x).mean(axis=0)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
@pytest.mark.parametrize("strength", [1.0, 1e-3])
def test_minimum_of_the_labelled_risk(loss, strength):
    """With the exact mean operator the result minimises the ordinary labelled risk: found here by BFGS on labels."""
    x, y, mu = sample()
    fit = fit_mean(ArrayFeatures(x), loss, mu, strength)
    risk = lambda w: float(loss.value(y * (x @ w)).mean() + strength * w @ w)  # noqa: E731
    other = optimize.minimize(risk, np.zeros(6), method="BFGS", options={"gtol": 1e-7})
    assert risk(fit.weights) <= other.fun + 1e-9 * (1 + abs(other.fun))
    np.testing.assert_allclose(fit.weights, other.x, atol=2e-3 * max(1.0, np.abs(other.x).max()))


def test_agrees_with_scikit_learn():
    x, y, mu = sample()
    fit = fit_mean(ArrayFeatures(x), make_odd_loss("logistic"), mu, 1e-3)
    model = LogisticRegression(C=1 / (2 * 1e-3 * len(x)), fit_intercept=False, tol=1e-12, max_iter=10_000).fit(x, y)
    np.testing.assert_allclose(fit.weights, model.coef_[0], atol=1e-5)


def test_square_has_a_closed_form():
    x, _, mu = sample()
    fit = fit_mean(ArrayFeatures(x), make_odd_loss("square"), mu, 0.01)
    np.testing.assert_allclose(fit.weights, np.linalg.solve(x.T @ x / len(x) + 0.01 * np.eye(6), mu), atol=1e-7)


def test_absolute_reaches_the_minimum_of_the_sharp_loss():
    """The sharp objective by linear programming's cousin: subgradient check within the rounding's promise."""
    x, y, mu = sample()
    loss, strength = AbsoluteOdd(1.0), 0.05
    sharp = lambda w: float(loss.value(y * (x @ w)).mean() + strength * w @ w)  # noqa: E731
    fit = fit_mean(ArrayFeatures(x), loss, mu, strength)
    best = min(
        optimize.minimize(
            sharp, start, method="Nelder-Mead", options={"maxiter": 20_000, "xatol": 1e-9, "fatol": 1e-12}
        ).fun
        for start in (np.zeros(6), fit.weights)
    )
    assert sharp(fit.weights) <= best + 1e-3  # rho times the last rounding


def test_noise_cannot_make_the_objective_unbounded():
    """The noisy linear part may outgrow the even part: a regulariser keeps a minimum, none is refused."""
    x, _, mu = sample(50, 20)
    noisy = mu + 5.0
    fit = fit_mean(ArrayFeatures(x), make_odd_loss("logistic"), noisy, 1e-4)
    assert fit.gradient_norm < 1e-6
    assert np.isfinite(fit.weights).all()
    for bad in (0.0, -1.0, float("nan")):
        with pytest.raises(UsageError, match="above 0"):
            fit_mean(ArrayFeatures(x), make_odd_loss("logistic"), noisy, bad)


def test_stability_bound_holds_and_is_of_the_right_order():
    """|w - w'| <= a |mu - mu'| / (4 strength): tight for the unhinged loss, where it is an equality."""
    x, _, mu = sample()
    draw = np.random.default_rng(9)
    for loss in LOSSES:
        a = EvenPart(loss).coefficient
        for strength in (0.5, 0.02):
            base = fit_mean(ArrayFeatures(x), loss, mu, strength).weights
            for _ in range(3):
                step = draw.normal(size=6) * 0.2
                moved = fit_mean(ArrayFeatures(x), loss, mu + step, strength).weights
                bound = a * np.linalg.norm(step) / (4 * strength)
                assert np.linalg.norm(moved - base) <= bound * (1 + 1e-6) + 1e-5
                if loss.name == "unhinged":
                    assert np.linalg.norm(moved - base) == pytest.approx(bound)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["logistic", "matsushita"])
def test_lake_and_memory_agree_and_partitionings_give_the_same_bits(name, tmp_path):
    import pyarrow.parquet as pq

    domain = Domain.load(ROOT / "data/clinic_sample.yaml")
    table = pq.read_table(ROOT / "data/clinic_sample/part-00000.parquet").slice(0, 3000)
    lattice, mu, found = Lattice(domain.norm_bound, 20), np.linspace(-0.1, 0.1, domain.width), []
    for parts in (1, 2, 7):
        folder = tmp_path / str(parts)
        folder.mkdir()
        edges = np.linspace(0, 3000, parts + 1).astype(int)
        for i in range(parts):
            pq.write_table(table.slice(edges[i], edges[i + 1] - edges[i]), folder / f"{parts - i}.parquet")
        lake = open_lake(str(folder), domain, label=False)
        for memory in (0, 1 << 28):
            with open_passes(lake, domain, lattice, memory=memory) as passes:
                found.append(fit_mean(LakeFeatures(passes), make_odd_loss(name), mu, 1e-3))
    for other in found[1:]:
        np.testing.assert_array_equal(other.weights, found[0].weights)
    from daskrado.table.encoding import encode_table

    encoded = encode_table(domain, table)
    x = lattice.quantise(encoded.block(0, 3000, np.empty((3000, domain.width), order="F"))) * 2.0**-20
    plain = fit_mean(ArrayFeatures(x), make_odd_loss(name), mu, 1e-3)
    np.testing.assert_allclose(found[0].weights, plain.weights, atol=1e-5)
