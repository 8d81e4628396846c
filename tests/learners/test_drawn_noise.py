"""What whole private fits draw, against the laws of the theorems, which are written out here once more.

A fit hands each draw to the journal of its Session. Here the journal repeats the draw, so that one fit shows its law.
Bounds are fixed: each fails by chance about once in 10^8 runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit
from scipy.stats import chi2, kstest, norm

import daskrado
from daskrado.lake.collect import Passes, open_passes
from daskrado.lake.scan import open_lake
from daskrado.learners.on_passes import gradient
from daskrado.learners.on_passes.erm import ObjectivePerturbation, OutputPerturbation
from daskrado.learners.on_passes.gradient import PrivateGradient
from daskrado.learners.on_passes.iterative import IterativeLearner, Learned, Session
from daskrado.losses.margin import Logistic
from daskrado.privacy import gamma
from daskrado.privacy.perturbation import PublicFacts
from daskrado.privacy.relations import Relation
from daskrado.statistics.base import Rows
from daskrado.statistics.slopes import SlopeSum
from daskrado.table.domain import Domain
from daskrado.table.lattice import Lattice

pytestmark = pytest.mark.slow

Vector = NDArray[np.float64]
Drawn = list[tuple[Any, NDArray[Any]]]

TRUE, GUESS = 400, 520  # rows of the lake; the public number under add/remove, where the true one is secret
WIDTH = 4
RARE = 1e-8
REPEATS = 3000
BOUNDS = (0.5, 4.0)
CASES = [
    (bound, relation, unit)
    for bound in BOUNDS
    for relation in (Relation.ADD_REMOVE, Relation.REPLACE_ONE)
    for unit in (1, 3)
]


def table() -> pd.DataFrame:
    draw = np.random.default_rng(0)
    x = draw.uniform(-1, 1, (TRUE, WIDTH - 1))
    label = (x[:, 0] + draw.normal(size=TRUE) > 0).astype(int)
    return pd.DataFrame({f"x{i}": x[:, i] for i in range(WIDTH - 1)} | {"y": label})


def domain_of(bound: float) -> Domain:
    columns = {f"x{i}": {"kind": "numeric", "lower": -1, "upper": 1} for i in range(WIDTH - 1)}
    label = {"column": "y", "positive": 1, "negative": 0}
    return Domain.model_validate({"label": label, "norm_bound": bound, "intercept": 1.0, "columns": columns})


def signed_rows(bound: float) -> Vector:
    """y x of every row, clipped to the norm bound."""
    frame = table()
    x = np.column_stack([frame.drop(columns="y").to_numpy(), np.ones(TRUE)])
    x *= np.minimum(1.0, bound / np.linalg.norm(x, axis=1))[:, None]
    return np.asarray(x * np.where(frame["y"] == 1, 1.0, -1.0)[:, None])


def slope_of_logistic(w: Vector, bound: float, rows: int) -> Vector:
    """The gradient of (1/rows) sum log(1 + exp(-y w.x))."""
    signed = signed_rows(bound)
    return np.asarray(-(signed.T @ expit(-signed @ w)) / rows)


@pytest.fixture(scope="module")
def opened() -> Iterator[dict[float, Passes]]:
    lakes = {bound: domain_of(bound) for bound in BOUNDS}
    managers = {b: open_passes(open_lake(table(), domain), domain, Lattice(b)) for b, domain in lakes.items()}
    yield {bound: manager.__enter__() for bound, manager in managers.items()}
    for manager in managers.values():
        manager.__exit__(None, None, None)


def facts_of(bound: float, relation: Relation, unit: int, epsilon: float = 2.0, delta: float = 0.0) -> PublicFacts:
    rows = GUESS if relation is Relation.ADD_REMOVE else TRUE
    return PublicFacts(rows, WIDTH, bound, relation, epsilon, delta, unit)


def far(facts: PublicFacts) -> float:
    """How far a unit moves the sum of gradients, slopes at most 1: R, 2 R where rows are replaced; k times."""
    return (1 if facts.relation is Relation.ADD_REMOVE else 2) * facts.norm_bound * facts.rows_per_unit


def draws(learner: IterativeLearner, passes: Passes, facts: PublicFacts, repeats: int) -> tuple[Drawn, Learned]:
    """One whole fit; each of its draws as (what was gathered, that many draws around it)."""
    seen: Drawn = []

    def journal(_: bool, gather: Callable[[], Any], perturb: Callable[[Any], Any]) -> Any:
        private = gather()
        seen.append((private, np.array([perturb(private) for _ in range(repeats)])))
        return seen[-1][1][-1]

    return seen, learner.learn(Session(passes, lambda: None, journal=journal), facts)


def assert_l2_gamma(noise: Vector, scale: float) -> None:
    """Density prop. to exp(-|b| / scale): lengths are Gamma(d, scale); the direction is uniform."""
    lengths = np.linalg.norm(noise, axis=1)
    assert lengths.mean() == pytest.approx(WIDTH * scale, rel=6 / math.sqrt(WIDTH * len(noise)))
    assert kstest(lengths, "gamma", args=(WIDTH, 0, scale)).pvalue > RARE
    # One coordinate of a uniform direction, moved to (0, 1), is Beta((d - 1)/2, (d - 1)/2).
    half = (WIDTH - 1) / 2
    for coordinate in (noise / lengths[:, None]).T:
        assert kstest((coordinate + 1) / 2, "beta", args=(half, half)).pvalue > RARE


@pytest.mark.parametrize(("bound", "relation", "unit"), CASES)
def test_output_perturbation_draws_s15(
    opened: dict[float, Passes], bound: float, relation: Relation, unit: int
) -> None:
    """Scale (far / n + 2 g) / (ridge epsilon), g the certified gradient norm: here the two terms are alike."""
    facts, ridge, tolerance = facts_of(bound, relation, unit), 0.3, 9e-4
    [(found, weights)], learned = draws(
        OutputPerturbation(Logistic(), ridge, tolerance), opened[bound], facts, REPEATS
    )
    left = slope_of_logistic(found.weights, bound, facts.rows) + ridge * found.weights
    assert np.linalg.norm(left) <= tolerance * bound + 1e-5 * bound
    assert_l2_gamma(weights - found.weights, (far(facts) / facts.rows + 2 * tolerance * bound) / (ridge * 2.0))
    assert set(learned.details) == {"loss", "regularisation", "noise_length"}


def gaussian_delta(epsilon: float, mu: float) -> float:
    """Balle and Wang (2018), theorem 8."""
    return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu))


def slack_and_extra(ridge: float, facts: PublicFacts, epsilon: float) -> tuple[float, float]:
    """S16's rule: what the change of volume takes off epsilon, and the ridge that is added where that is too much."""
    times = facts.rows_per_unit * (1 if facts.relation is Relation.ADD_REMOVE else 2)
    curve = 0.25 * facts.norm_bound**2 / facts.rows
    slack = times * math.log(1 + curve / ridge)
    if slack <= epsilon / 2:
        return slack, 0.0
    return epsilon / 2, curve / (math.exp(epsilon / (2 * times)) - 1) - ridge


def assert_s17(drawn: Drawn, ridge: float, tolerance: float, facts: PublicFacts, share: float) -> None:
    """The second draw: scale 2 r / e2, r = g / ridge and the half step by which a weight is rounded."""
    (_, tilts), (found, weights) = drawn
    left = slope_of_logistic(found.weights, facts.norm_bound, facts.rows) + ridge * found.weights + tilts[-1]
    assert np.linalg.norm(left) <= tolerance * facts.norm_bound + 1e-5 * facts.norm_bound
    radius = tolerance * facts.norm_bound / ridge
    step = 2.0 ** math.floor(math.log2(radius / math.sqrt(WIDTH)))
    assert (weights / step == np.rint(weights / step)).all()
    noise = weights - np.rint(found.weights / step) * step
    assert_l2_gamma(noise, 2 * (radius + step * math.sqrt(WIDTH) / 2) / (share * facts.epsilon))


@pytest.mark.parametrize("ridge", [0.3, 1e-5], ids=["ridge as given", "raised"])
@pytest.mark.parametrize(("bound", "relation", "unit"), CASES)
def test_objective_perturbation_draws_s16_and_s17(
    opened: dict[float, Passes], bound: float, relation: Relation, unit: int, ridge: float
) -> None:
    facts, tolerance = facts_of(bound, relation, unit), 1e-6
    learner = ObjectivePerturbation(Logistic(), ridge, "gamma", tolerance=tolerance)
    share = learner.planned(facts).share
    assert 0 < share < 0.5
    left = facts.epsilon * (1 - share)  # the rest of epsilon is S17's
    slack, extra = slack_and_extra(ridge, facts, left)
    scale = far(facts) / (left - slack)
    assert learner.planned(facts).noise.scale == pytest.approx(scale, rel=1e-9)  # no sample shows one per cent
    seen, learned = draws(learner, opened[bound], facts, REPEATS)
    assert_l2_gamma(seen[0][1] * facts.rows, scale)
    assert_s17(seen, ridge + extra, tolerance, facts, share)
    assert (extra > 0) == (ridge < 1e-3)
    public = {"loss", "regularisation", "noise", "added_regularisation", "tilt_length_expected"}
    assert set(learned.details) == public | {"cover_share", "cover_std_of_margins"}


@pytest.mark.parametrize("ridge", [0.3, 1e-5], ids=["ridge as given", "raised"])
@pytest.mark.parametrize(("bound", "relation", "unit"), [case for case in CASES if case[2] == 1])
def test_gaussian_objective_perturbation_draws_its_law(
    opened: dict[float, Passes], bound: float, relation: Relation, unit: int, ridge: float
) -> None:
    """Sigma at which the corners' deltas add up to delta exp(-e2 / 2), which S17's noise brings up to delta."""
    facts, tolerance = facts_of(bound, relation, unit, delta=1e-3), 1e-6
    learner = ObjectivePerturbation(Logistic(), ridge, "gaussian", tolerance=tolerance)
    share = learner.planned(facts).share
    left = facts.epsilon * (1 - share)
    slack, extra = slack_and_extra(ridge, facts, left)
    corners = (1.0,) if relation is Relation.ADD_REMOVE else (1.0, 1.0, 2.0)
    level = facts.delta * math.exp(-share * facts.epsilon / 2)
    sigma = brentq(
        lambda s: sum(gaussian_delta(left - slack, c * bound / s) for c in corners) - level, bound / 9, bound * 99
    )
    assert learner.planned(facts).noise.scale == pytest.approx(sigma, rel=1e-7)
    seen, _ = draws(learner, opened[bound], facts, REPEATS)
    tilts = seen[0][1] * facts.rows
    assert kstest(tilts.ravel(), "norm", args=(0, sigma)).pvalue > RARE
    # Lengths tell the normal law from any spherical one with coordinates nearly alike.
    assert kstest((tilts**2).sum(axis=1) / sigma**2, "chi2", args=(WIDTH,)).pvalue > RARE
    assert_s17(seen, ridge + extra, tolerance, facts, share)


@pytest.fixture(scope="module")
def coarse() -> Iterator[dict[float, Passes]]:
    """On the grid of a gradient whose number of rows is secret."""
    lakes = {bound: domain_of(bound) for bound in BOUNDS}
    managers = {b: open_passes(open_lake(table(), domain), domain, Lattice(b, 11)) for b, domain in lakes.items()}
    yield {bound: manager.__enter__() for bound, manager in managers.items()}
    for manager in managers.values():
        manager.__exit__(None, None, None)


def assert_normal(noise: Vector) -> None:
    """Standard normal; 0.9 of the noise, and 1.1 of it, would be seen."""
    low, high = chi2.ppf([RARE, 1 - RARE], noise.size) / noise.size
    assert low < (noise**2).mean() < high
    assert high < 1.1
    assert kstest(noise.ravel(), "norm").pvalue > RARE


@pytest.mark.parametrize(("bound", "relation", "unit"), CASES)
def test_the_gradient_draws_gaussians_that_compose_to_the_budget(
    coarse: dict[float, Passes], bound: float, relation: Relation, unit: int
) -> None:
    """Moments first, then T sums of gradients; rows have norm 1 there. Then the descent, with the public rows.

    Under add/remove moments have a twentieth of mu^2: 1 / (0.05 mu^2) and T / (0.95 mu^2). Where a row is replaced
    they are free up to half of the gradients' precision: 8 / mu^2 and 4 T / mu^2.
    """
    facts, steps = facts_of(bound, relation, unit, delta=1e-6), 5
    seen, learned = draws(PrivateGradient(steps=steps), coarse[bound], facts, 800)
    mu = brentq(lambda value: gaussian_delta(facts.epsilon, value) - facts.delta, 1e-2, 9)
    secret = relation is Relation.ADD_REMOVE
    variances = (1 / 0.05, steps / 0.95) if secret else (8.0, 4.0 * steps)
    on_moments, on_slopes = (unit * math.sqrt(v) / mu for v in variances)
    step = 2.0**-22 if secret else 2.0**-27  # 11 bits of a row, and 11 or 16 of a slope
    summary, drawn = seen.pop(0)
    spread = np.r_[np.full(WIDTH, on_moments), np.full(WIDTH * (WIDTH - 1) // 2, on_moments / math.sqrt(2))]
    assert_normal((drawn - summary.vector) * 2.0**-22 / spread)
    assert_normal(np.array([drawn - summary.vector for summary, drawn in seen]) * step / on_slopes)

    unit_rows = signed_rows(bound) / bound
    found = summary.vector * 2.0**-22
    assert found[:WIDTH] == pytest.approx((unit_rows**2).sum(axis=0), abs=TRUE * 2.0**-9)
    assert found[WIDTH:] == pytest.approx((unit_rows.T @ unit_rows)[np.triu_indices(WIDTH, 1)], abs=TRUE * 2.0**-9)
    assert learned.details["noise_std_per_step"] == pytest.approx(on_slopes, rel=1e-5)
    assert learned.details["noise_std_of_moments"] == pytest.approx(on_moments, rel=1e-5)
    on_moments = learned.details["noise_std_of_moments"]
    each = learned.details["noise_std_per_step"] / math.sqrt(steps) / facts.rows
    share = min(1.0, math.sqrt(each * math.sqrt(WIDTH) / 0.002))
    upper = np.zeros((WIDTH, WIDTH))
    upper[np.triu_indices(WIDTH, 1)] = drawn[-1][WIDTH:] * 2.0**-22
    values, basis = np.linalg.eigh(upper + upper.T + np.diag(drawn[-1][:WIDTH] * 2.0**-22))
    curvature = share / 2 + (1 - share) / 4
    numbers = 4.4 * math.sqrt(WIDTH) * (1.4e-4 / each) ** 0.6
    precision = each * steps * 4 / np.array([max(2.0, numbers)] * 3 + [2.0])
    floor = 0.25 * curvature * math.sqrt(2 * WIDTH) * on_moments / facts.rows
    whole = curvature * (basis * np.maximum(values, 0)) @ basis.T / facts.rows + np.diag(np.maximum(precision, floor))
    place, before, mean = np.zeros(WIDTH), np.zeros(WIDTH), np.zeros(WIDTH)
    for number, (summary, drawn) in enumerate(seen):
        ahead = place + 0.75 * (place - before)
        margins = unit_rows @ np.linalg.solve(whole, ahead)
        slopes = share * np.clip(2 - margins, 0, 2) / 2 + (1 - share) * expit(-margins)
        assert summary.vector * step == pytest.approx(-(unit_rows.T @ slopes), abs=TRUE * 2.0**-9)
        before, place = place, ahead - drawn[-1] * step / facts.rows
        mean += np.linalg.solve(whole, place) / 2 if number >= steps - 2 else 0.0
    assert learned.weights == pytest.approx(mean / bound, rel=1e-9)
    public = {"loss", "h", "huber_share", "steps", "momentum", "noise_std_per_step", "noise_std_of_moments"}
    assert set(learned.details) == public | {"pairs", "size_of_numbers", "size_of_indicators", "smooth"}


def test_slopes_are_truncated_so_that_no_row_is_longer_than_its_bound() -> None:
    """Slopes in whole steps of 2^-25, then products in whole steps of 2^-36, both toward zero: half of them would be
    longer if they were rounded to nearest."""
    for weight in np.linspace(-3, 3, 101):
        slope = math.floor(2**25 * expit(-weight) + 1e-6)
        for steps, y in ((2**20, 1), (2**20, -1), (777, 1), (777, -1)):
            one = Rows(np.array([[float(steps)]]), np.array([y], dtype=np.int8))
            at = y * weight * 2.0**20 / steps
            total = SlopeSum.at(np.array([at]), Logistic(), Lattice(1.0)).partial(one)
            if steps == 2**20:
                assert -y * total[0] == slope * 2**20 // 2**9
            assert -y * total[0] * 2**9 <= 2**25 * steps * expit(-weight) * (1 + 1e-6)
            assert -y * total[0] == pytest.approx(2**16 * steps * expit(-weight), rel=1e-3)


PRIVATE: list[tuple[str, IterativeLearner]] = [
    ("output_perturbation", OutputPerturbation(Logistic(), 0.3)),
    ("objective_perturbation", ObjectivePerturbation(Logistic(), 0.3)),
    ("gradient", PrivateGradient(steps=2)),
]


@pytest.mark.parametrize(("kind", "learner"), PRIVATE)
def test_nothing_is_drawn_where_the_grant_is_not_spent(
    opened: dict[float, Passes], monkeypatch: pytest.MonkeyPatch, kind: str, learner: IterativeLearner
) -> None:
    """A process that dies between a draw and its grant would have drawn for free."""
    order: list[str] = []
    normal = gradient.discrete_gaussian
    for source in ("_uniform", "_uniforms"):
        draw = getattr(gamma, source)
        monkeypatch.setattr(gamma, source, lambda count, draw=draw: order.append("draw") or draw(count))
    monkeypatch.setattr(gradient, "discrete_gaussian", lambda v, s: order.append("draw") or normal(v, s))
    facts = facts_of(4.0, Relation.REPLACE_ONE, 1, delta=1e-6)
    learner.learn(Session(opened[4.0], lambda: order.append("spend")), facts)
    assert order[0] == "spend"
    assert order.count("spend") == 1
    assert len(order) > 1
    order.clear()

    def refused() -> None:
        raise PermissionError(kind)

    with pytest.raises(PermissionError):
        learner.learn(Session(opened[4.0], refused), facts)
    assert not order


@pytest.mark.parametrize("kind", [kind for kind, _ in PRIVATE])
def test_a_private_run_shows_neither_gradient_norms_nor_the_number_of_passes(tmp_path: Path, kind: str) -> None:
    """The command line's progress has a ``note`` for a solver without privacy; both depend on the rows."""
    noted: list[Any] = []

    class Progress:
        def __call__(self, done: int, total: int) -> None: ...

        def note(self, *shown: Any) -> None:
            noted.append(shown)

    common = {"dataset": "c", "progress": Progress(), "output": tmp_path / "out"}
    protected = {"relation": "replace_one", "epsilon": 2.0, "delta": 1e-6, "first_limit": (30, 1e-3)}
    daskrado.fit(table(), domain_of(1.0), learner={"kind": kind}, **protected, **common)
    assert not noted
    assert list((tmp_path / "out").rglob("*.json"))
    for leak in ("passes", "gradient_norm", "risk", "certified", "positives"):
        for path in (tmp_path / "out").rglob("*.json"):
            assert f'"{leak}"' not in path.read_text(encoding="utf-8"), path
    daskrado.fit(table(), domain_of(1.0), learner={"kind": "erm"}, private=False, **common, overwrite=True)
    assert noted  # without privacy they are shown


def test_a_pipeline_hands_its_public_number_of_rows_to_the_learner() -> None:
    content = {"dataset": "c", "relation": "add_remove", "epsilon": 2.0, "first_limit": (30, 1e-3), "rows": GUESS}
    with pytest.MonkeyPatch.context() as patched:
        given: list[int] = []
        genuine = OutputPerturbation.learn
        patched.setattr(
            OutputPerturbation, "learn", lambda self, s, facts: (given.append(facts.rows), genuine(self, s, facts))[1]
        )
        daskrado.fit(table(), domain_of(1.0), learner="output_perturbation", **content)
    assert given == [GUESS]
