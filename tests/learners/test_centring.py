"""Numbers that are centred and scaled in private: what that costs, what it finds, and what is published."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pytest
from seeded_noise import reseed
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, roc_auc_score

from daskrado import fit
from daskrado.jobs.load import load_job
from daskrado.lake.collect import open_passes
from daskrado.lake.scan import open_lake
from daskrado.learners.on_passes import centring, gradient, residuals
from daskrado.learners.on_passes.centring import CELLS, DEVIATIONS, ENOUGH, ROUNDS, Centring, refined
from daskrado.learners.on_passes.erm import ObjectivePerturbation, OutputPerturbation
from daskrado.learners.on_passes.gradient import PrivateGradient
from daskrado.learners.on_passes.iterative import Session
from daskrado.learners.on_passes.placed_moments import PlacedMoments
from daskrado.learners.on_passes.tuning import Tuning
from daskrado.losses.margin import Huber
from daskrado.losses.residual import ResidualHuber
from daskrado.models.linear import LinearModel
from daskrado.models.onnx_graph import write_onnx
from daskrado.privacy.accountant import ApproximateEvent, PureEvent, gaussian_mu
from daskrado.privacy.perturbation import PublicFacts
from daskrado.privacy.relations import Relation
from daskrado.table.domain import Domain, NumericColumn
from daskrado.table.lattice import Lattice

LABEL = {"column": "sick", "positive": 1, "negative": 0}


def domain_of(frame: pd.DataFrame, low: float = -1000.0, high: float = 1000.0, **more: Any) -> Domain:
    columns = {
        name: {"kind": "numeric", "lower": low, "upper": high, **more} for name in frame.columns if name != "sick"
    }
    return Domain.model_validate({"label": LABEL, "columns": columns})


def off_centre(rows: int, count: int = 6, seed: int = 1) -> pd.DataFrame:
    """Numbers that fill a hundredth of their bounds, far from the middle."""
    draw = np.random.default_rng(seed)
    frame = pd.DataFrame({f"x{i}": draw.normal(300 + 50 * i, 4 + i, rows) for i in range(count)})
    margin = sum((frame[f"x{i}"] - 300 - 50 * i) / (4 + i) * (1 if i % 2 else -1) for i in range(count))
    frame["sick"] = (draw.random(rows) < 1 / (1 + np.exp(-margin))).astype(int)
    return frame


def fitted(
    lake: Any, domain: Domain, relation: str = "add_remove", rows: int | None = None, dataset: str = "d", **keys: Any
) -> LinearModel:
    how: dict[str, Any] = {"dataset": dataset, "epsilon": 1.0, "delta": 1e-6, "first_limit": (50.0, 1e-3)}
    how |= {"relation": relation, "rows": rows if relation == "add_remove" else None}
    model = fit(lake, domain, learner={"kind": "gradient", **keys}, **how).model
    assert model is not None
    return model


def learned(frame: pd.DataFrame, domain: Domain, relation: str = "add_remove", **keys: Any) -> LinearModel:
    return fitted(frame, domain, relation, len(frame), **keys)


def facts(relation: Relation = Relation.ADD_REMOVE, **changes: Any) -> PublicFacts:
    known = {"rows": 20_000, "width": 8, "norm_bound": 1.7, "epsilon": 1.0, "delta": 1e-6, "lattice_bits": 11}
    return PublicFacts(**{**known, "relation": relation, "numbers": 7, **changes})


@pytest.mark.parametrize("relation", [Relation.ADD_REMOVE, Relation.REPLACE_ONE])
@pytest.mark.parametrize("rows", [1_000, 20_000, 10_000_000])
def test_all_draws_together_cost_mu(relation: Relation, rows: int) -> None:
    """The sum of (change / noise)^2 over counts, moments and gradients; moments under replace_one cost nothing."""
    known, learner = facts(relation, rows=rows), PrivateGradient()
    mu = learner.calibration(known).mu
    places, plan = learner.centring(known, mu), learner.schedule(known)
    assert places is not None
    moved = (1 if relation is Relation.ADD_REMOVE else 2) * known.numbers
    spent = ROUNDS * moved / places.noise**2
    assert spent == pytest.approx(places.share * mu**2)
    far = 1.0 if relation is Relation.ADD_REMOVE else 2.0
    spent += plan.count * far**2 / plan.noise**2 + (plan.moments_noise**-2 if far == 1 else 0.0)
    assert spent == pytest.approx(mu**2, rel=1e-9)
    assert mu == pytest.approx(gaussian_mu(1.0, 1e-6), rel=1e-6)


def test_shares_of_counts_and_residuals_add_up() -> None:
    """Both are shares of the whole: a descent that takes them one after the other would spend a product too much."""
    known, learner = facts(), PrivateGradient(ResidualHuber())
    mu = learner.calibration(known).mu
    places, plan = learner.centring(known, mu), learner.schedule(known)
    assert places is not None
    spent = (places.share + residuals.SHARE) * mu**2 + plan.count / plan.noise**2 + plan.moments_noise**-2
    assert spent == pytest.approx(mu**2, rel=1e-9)


def test_a_run_draws_the_noise_that_its_rule_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scales as they reach the sampler, in their integer steps: a planted smaller one would be seen here."""
    scales: dict[str, list[float]] = {"centring": [], "gradient": []}
    for module, name in ((centring, "centring"), (gradient, "gradient")):
        true = module.discrete_gaussian

        def drawn(vector: Any, scale: float, name: str = name, true: Any = true) -> Any:
            scales[name].append(scale)
            return true(vector, scale)

        monkeypatch.setattr(module, "discrete_gaussian", drawn)
    frame = off_centre(4_000)
    model = learned(frame, domain_of(frame))
    assert model.details["share_of_centring"] == pytest.approx(centring.LEAST_SHARE, rel=1.0)
    counts = [scale / 2**16 for scale in scales["centring"]]
    squares, products, *steps = (np.array(scale) / 2**22 for scale in scales["gradient"])
    assert len(counts) == 2
    assert len(steps) == model.details["steps"]
    spent = sum(6 / scale**2 for scale in counts) + 1 / squares**2 + sum(1 / scale**2 for scale in steps)
    assert spent == pytest.approx(gaussian_mu(1.0, 1e-6) ** 2, rel=1e-6)
    assert products == pytest.approx(squares / math.sqrt(2))


def test_the_rule_spends_more_on_fewer_rows_and_nothing_where_it_cannot_pay() -> None:
    rule = [Centring.planned(facts(rows=rows), 0.2) for rows in (60, 300, 1_000, 3_000, 10**6)]
    assert rule[0] is None
    shares = [one.share for one in rule if one is not None]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] == centring.MOST_SHARE
    assert shares[-1] == centring.LEAST_SHARE
    assert all(one is None or one.noise * ENOUGH <= rows for one, rows in zip(rule, (60, 300, 1_000), strict=False))
    assert PrivateGradient(centre=False).centring(facts(), 0.2) is None
    assert PrivateGradient().centring(facts(numbers=0), 0.2) is None
    assert PrivateGradient().centring(facts(Relation.LABEL_FLIP), 0.2) == Centring(0.0, 0.0)


PURE = (
    OutputPerturbation(centre=True),
    ObjectivePerturbation(centre=True),
    ObjectivePerturbation(Huber(0.5), noise="gamma", centre=True),
)
MOMENTS = PlacedMoments()
GRID = Tuning((ObjectivePerturbation(), ObjectivePerturbation(Huber(0.5))), centre=True)


@pytest.mark.parametrize("relation", [Relation.ADD_REMOVE, Relation.REPLACE_ONE])
@pytest.mark.parametrize("changes", [{}, {"delta": 0.0}, {"rows_per_unit": 3, "by_unit": True, "spread": True}])
@pytest.mark.parametrize("learner", [*PURE, MOMENTS, GRID], ids=lambda one: one.name)
def test_counts_and_what_follows_cost_epsilon(learner: Any, changes: dict[str, Any], relation: Relation) -> None:
    """Two rounds of Laplace noise in which a unit moves k c or 2 k c counts, and the learner with what is left."""
    known = facts(relation, rows=60_000, lattice_bits=learner.default_bits, **changes)
    plan, left = learner.places(known), learner.left(known)
    assert plan is not None
    assert plan.pure
    moves = known.numbers * known.rows_per_unit * (1 if relation is Relation.ADD_REMOVE else 2)
    scale = plan.noise / math.sqrt(2)
    total = left.epsilon + ROUNDS * moves / scale
    assert total <= 1.0
    assert total == pytest.approx(1.0, rel=1e-4)  # a little more is counted for weights that are rounded
    assert left.delta == known.delta
    found = learner.guarantee(known)
    assert found.event in (PureEvent(1.0), ApproximateEvent(1.0, 1e-6))
    assert isinstance(found.event, PureEvent) or known.delta > 0


@pytest.mark.parametrize("learner", ["output_perturbation", "objective_perturbation"])
def test_what_is_drawn_is_what_was_planned(learner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Laplace scales as they reach the sampler, and the facts with which the learner itself was calibrated."""
    scales: list[float] = []
    true = centring.discrete_laplace

    def drawn(vector: Any, scale: float) -> Any:
        scales.append(scale / 2**16)
        return true(vector, scale)

    monkeypatch.setattr(centring, "discrete_laplace", drawn)
    known: list[PublicFacts] = []
    kind = {"output_perturbation": OutputPerturbation, "objective_perturbation": ObjectivePerturbation}[learner]
    inner = kind._learn

    def spied(self: Any, session: Session, facts: PublicFacts) -> Any:
        known.append(facts)
        return inner(self, session, facts)

    monkeypatch.setattr(kind, "_learn", spied)
    frame = off_centre(20_000)
    how = {"dataset": "d", "epsilon": 1.0, "first_limit": (50.0, 1e-3), "rows": len(frame)}
    model = fit(frame, domain_of(frame), learner={"kind": learner, "centre": True}, **how).model
    assert model is not None
    assert len(scales) == ROUNDS
    assert len(known) == 1
    assert sum(6 / scale for scale in scales) + known[0].epsilon == pytest.approx(1.0, rel=1e-6)
    assert known[0].norm_bound == model.domain.norm_bound
    assert model.details["share_of_centring"] == pytest.approx(1 - known[0].epsilon)


def test_minimisers_do_not_place_numbers_where_it_cannot_pay() -> None:
    few = facts(rows=250, delta=0.0)
    assert ObjectivePerturbation(centre=True).places(few) is None
    assert ObjectivePerturbation(centre=True).left(few).epsilon == 1.0
    assert (
        ObjectivePerturbation(regularisation=0.01, centre=True).places(facts(rows=60_000)) is None
    )  # of weights on a scale
    assert ObjectivePerturbation().places(facts(rows=60_000)) is None
    assert ObjectivePerturbation(centre=True).places(facts(rows=60_000, numbers=0)) is None
    assert ObjectivePerturbation(centre=True).places(facts(Relation.LABEL_FLIP, rows=60_000)) == Centring(0.0, 0.0)


@pytest.mark.parametrize("learner", ["moments", "objective_perturbation", "output_perturbation", "tuning"])
def test_off_centre_numbers_are_learned_under_a_pure_budget(learner: str) -> None:
    """A model that places them ranks fresh rows far better."""
    frame, fresh = off_centre(20_000), off_centre(5_000, seed=2)
    frame["id"] = np.arange(len(frame))
    domain = domain_of(frame.drop(columns="id")).model_copy(update={"id": "id"})
    grid = [{"kind": "objective_perturbation"}, {"kind": "objective_perturbation", "loss": "huber"}]
    how = {"dataset": "d", "epsilon": 2.0, "first_limit": (50.0, 1e-3), "rows": len(frame)}
    areas = []
    for centre in (True, False):
        keys: dict[str, Any] = {"kind": learner} | (
            {} if (learner, centre) == ("moments", False) else {"centre": centre}
        )
        model = fit(frame, domain, learner=keys | ({"grid": grid} if learner == "tuning" else {}), **how).model
        assert model is not None
        assert domain.encodes_like(model.domain) != centre
        areas.append(roc_auc_score(fresh["sick"], model.margins(fresh)))
    assert areas[0] > 0.85
    assert areas[0] > areas[1] + 0.02


def test_counts_become_a_scale() -> None:
    """By hand: cells are 1/16 wide on [-1, 1], which the bounds -1000 and 1000 are."""
    domain = domain_of(pd.DataFrame(columns=["a", "b", "c"]))
    counts = np.zeros((3, CELLS))
    counts[0, [20, 21]] = 50.0  # 250 to 375
    counts[1, [4, 28]] = 10.0  # middles -718.75 and 781.25
    first, last = (refined(domain, counts, last=last) for last in (False, True))
    scales = [column.scale for column in first.columns.values() if isinstance(column, NumericColumn)]
    assert scales[0] == pytest.approx((312.5, 62.5 + 31.25))
    assert scales[1] == pytest.approx((31.25, 750 + 31.25 + 31.25))
    assert first.columns["c"] == last.columns["c"] == domain.columns["c"]
    scales = [column.scale for column in last.columns.values() if isinstance(column, NumericColumn)]
    assert scales[0] == pytest.approx((312.5, DEVIATIONS * 62.5))
    assert scales[1] == pytest.approx((31.25, DEVIATIONS * 750))
    squares = (31.25 / 62.5 / DEVIATIONS) ** 2 + 1 / DEVIATIONS**2 + 1 / 3 + 1
    assert last.norm_bound == pytest.approx(math.sqrt(squares), abs=1e-5)
    assert first.norm_bound == domain.norm_bound


def test_models_of_off_centre_numbers_predict_alike_everywhere(tmp_path: Path) -> None:
    """In predict, from a file, in SQL and in ONNX, with no word by the user."""
    frame, fresh = off_centre(6_000), off_centre(3_000, seed=2)
    for more in ({}, {"low": 0.0, "transform": "log1p"}):
        domain = domain_of(frame, **more)
        model, plain = learned(frame, domain), learned(frame, domain, centre=False)
        assert domain.encodes_like(plain.domain)
        assert not domain.encodes_like(model.domain)
        centre, reach = model.domain.columns["x0"].scale
        assert (math.expm1(centre) if more else centre) == pytest.approx(300, abs=5)
        assert reach < (0.1 if more else 20)
        margins = model.margins(fresh)
        assert roc_auc_score(fresh["sick"], margins) > 0.85
        assert roc_auc_score(fresh["sick"], margins) > roc_auc_score(fresh["sick"], plain.margins(fresh))
        model.save(tmp_path / "m.json")
        assert np.array_equal(LinearModel.load(tmp_path / "m.json").margins(fresh), margins)
        with duckdb.connect() as connection:
            connection.register("lake", fresh)
            found = connection.sql(model.sql("lake")).fetchnumpy()["margin"]
        assert np.abs(found - margins).max() < 1e-9
        runtime = pytest.importorskip("onnxruntime")
        write_onnx(model, tmp_path / "m.onnx")
        session = runtime.InferenceSession(str(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"])
        inputs = {name: fresh[name].to_numpy(dtype=np.float64) for name in fresh.columns if name != "sick"}
        assert np.abs(session.run(["margin"], inputs)[0] - margins).max() < 1e-9


@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
@pytest.mark.parametrize(
    "learner", [PrivateGradient(), ObjectivePerturbation(centre=True), PlacedMoments()], ids=lambda one: one.name
)
def test_any_partitioning_gives_the_same_model(learner: Any, relation: str, tmp_path: Path) -> None:
    frame, found = off_centre(3_001), []
    frame.loc[::50, "x1"] = np.nan  # rows that count as nothing
    domain = domain_of(frame)
    known = facts(Relation(relation), rows=3_000, width=7, numbers=6, norm_bound=domain.norm_bound)
    for parts in (1, 2, 7):
        folder = tmp_path / str(parts)
        folder.mkdir()
        for number, part in enumerate(np.array_split(np.arange(len(frame)), parts)):
            frame.iloc[part].to_parquet(folder / f"{number}.parquet")
        reseed()
        with open_passes(open_lake(str(folder), domain), domain, Lattice(domain.norm_bound, 11)) as passes:
            model = learner.learn(Session(passes, lambda: None), known)
        assert model.domain is not None
        found.append((model.weights.tobytes(), model.domain.digest()))
    assert len(set(found)) == 1


def test_two_workers_place_numbers_as_one_process_does(two_workers: Any, tmp_path: Path) -> None:
    frame, found = off_centre(2_001), []
    domain = domain_of(frame)
    for number, part in enumerate(np.array_split(np.arange(len(frame)), 4)):
        frame.iloc[part].to_parquet(tmp_path / f"{number}.parquet")
    known = facts(rows=2_000, width=7, numbers=6, norm_bound=domain.norm_bound)
    lake, lattice = open_lake(str(tmp_path), domain), Lattice(domain.norm_bound, 11)
    for client in (None, two_workers):
        reseed()
        with open_passes(lake, domain, lattice, client=client) as passes:
            model = PrivateGradient(steps=5).learn(Session(passes, lambda: None), known)
        assert model.domain is not None
        found.append((model.weights.tobytes(), model.domain.digest()))
    assert found[0] == found[1]


def test_nothing_is_centred_without_an_intercept_in_bins_or_by_public_rows() -> None:
    frame = off_centre(2_000)
    domain = domain_of(frame)

    def numbers(domain: Domain, learner: Any) -> int:
        keys = {"lake": frame, "domain": domain, "dataset": "d", "learner": learner, "rows": 2_000}
        keys |= {
            "output": "out",
            "protect": {"relation": "replace_one", "unit": "row"},
            "budget": {"epsilon": 1.0, "delta": 1e-6},
        }
        return load_job({"kind": "learn", **keys}).facts.numbers  # type: ignore[attr-defined]

    assert numbers(domain, "gradient") == numbers(domain, "auto") == 6
    grid = {"kind": "tuning", "grid": [{"kind": "gradient"}, {"kind": "gradient", "steps": 10}]}
    assert numbers(domain, grid) == 6
    assert numbers(domain, {**grid, "public_lake": frame}) == 0  # public rows are scored on the Domain's own scale
    assert numbers(domain.model_copy(update={"intercept": 0.0}), "gradient") == 0
    assert numbers(domain_of(frame, bins=[0.0]), "gradient") == 0


def test_public_numbers_are_placed_without_noise() -> None:
    frame = off_centre(2_000)
    model = learned(frame, domain_of(frame), relation="label_flip")
    assert model.details["noise_std_of_counts"] == 0
    assert model.domain.columns["x0"].scale[0] == pytest.approx(frame["x0"].mean(), abs=2)


def test_a_plan_says_what_is_centred_and_warns_of_a_norm_bound_that_no_row_reaches() -> None:
    frame = off_centre(100)
    keys = {
        "kind": "learn",
        "lake": frame,
        "dataset": "d",
        "learner": "gradient",
        "output": "out",
        "protect": {"relation": "add_remove", "unit": "row"},
    }
    keys |= {"budget": {"epsilon": 1.0, "delta": 1e-6}}
    for rows, said in ((20_000, "6 centred and scaled first by 3 %"), (110, "6 stay as the domain scales them")):
        lines = dict(load_job({**keys, "domain": domain_of(frame), "rows": rows}).plan())
        assert lines["numbers"].startswith(said)
        assert "warning" not in lines
    loose = domain_of(frame).model_copy(update={"norm_bound": 10.0})
    warned = dict(load_job({**keys, "domain": loose, "rows": 20_000}).plan())["warning"]
    assert "norm_bound 10 is above 2.646" in warned  # sqrt(7): six numbers of at most 1, and the intercept
    assert "3.8 times" in warned


def mails(rows: int) -> pd.DataFrame:
    """Frequencies of 54 words, most of them 0, and three lengths of runs."""
    draw = np.random.default_rng(3)
    spam, found = draw.random(rows) < 0.39, {}
    for word in range(54):
        often, effect, size = draw.uniform(0.04, 0.3), 0.5 * draw.normal(), draw.lognormal(-0.5, 0.6)
        there = draw.random(rows) < np.clip(often * np.exp(np.where(spam, effect, -effect)), 0, 0.95)
        found[f"w{word:02d}"] = np.where(there, draw.exponential(size, rows), 0.0)
    for run in range(3):
        found[f"run{run}"] = np.exp(draw.normal(1.5 + run, 1, rows) + np.where(spam, 0.5, -0.2))
    return pd.DataFrame({**found, "sick": spam.astype(int)})


@pytest.mark.slow
def test_mails_have_half_the_error() -> None:
    table = mails(6_600)
    train, test = table[:4_600], table[4_600:]
    domain = domain_of(table, 0.0, 1000.0, transform="log1p")

    def wrong(model: LinearModel) -> float:
        return float(((model.margins(test) > 0) != test["sick"]).mean())

    centred, plain = (np.mean([wrong(learned(train, domain, centre=one)) for _ in range(3)]) for one in (True, False))
    assert centred < 0.7 * plain
    assert centred < 0.12


def frauds(rows: int, rate: float = 0.0017) -> pd.DataFrame:
    """Twenty components with tails between bounds of a hundred, and one row in 600 that is off in most of them."""
    draw = np.random.default_rng(4)
    fraud, found = draw.random(rows) < rate, {}
    for place in range(20):
        spread, shift = 1.9 * 0.93**place, draw.normal() * (2.5 if place < 14 else 0.2)
        found[f"v{place:02d}"] = spread * (draw.standard_t(5, rows) + shift * draw.gamma(2.0, 0.5, rows) * fraud)
    return pd.DataFrame({**found, "sick": fraud.astype(int)})


@pytest.mark.slow
def test_frauds_are_ranked_nearly_as_without_noise() -> None:
    """scikit-learn on standardised columns is what could be had; without centring there is next to nothing."""
    table = frauds(80_000)
    train, test = table[:50_000], table[50_000:]
    x = (table.drop(columns="sick") - train.drop(columns="sick").mean()) / train.drop(columns="sick").std()
    best = LogisticRegression(C=10.0, max_iter=500).fit(x[:50_000], train["sick"]).decision_function(x[50_000:])
    domain = domain_of(table, -100.0, 100.0)
    found = [best, *(learned(train, domain, centre=one).margins(test) for one in (True, False))]
    ranked = [roc_auc_score(test["sick"], one) for one in found]
    precise = [average_precision_score(test["sick"], one) for one in found]
    assert ranked[1] > ranked[0] - 0.03
    assert ranked[2] < ranked[0] - 0.1
    assert precise[1] > 0.6 * precise[0]
    assert precise[2] < 0.3 * precise[0]


def test_zero_and_one_of_a_number() -> None:
    """log1p with zero: 0 keeps 0 at 0; what lies beyond is clipped; digests of older domains stay."""
    made = Domain.model_validate(
        {
            "label": LABEL,
            "columns": {
                "a": {"kind": "numeric", "lower": 0, "upper": 1000, "transform": "log1p", "zero": 0},
                "b": {"kind": "numeric", "lower": -10, "upper": 10, "zero": 4, "one": 6},
                "c": {"kind": "numeric", "lower": -10, "upper": 30, "zero": 0},
            },
        }
    )
    frame = pd.DataFrame(
        {"a": [0.0, 31.0, 1000.0, 5e4, -3.0], "b": [4.0, 5.0, 7.0, 1.0, 3.0], "c": [0.0, 30, -30, 3, -60]}
    )
    expected = np.array(
        [
            [0, math.log(32) / math.log(1001), 1, 1, 0],
            [0, 0.5, 1, -1, -0.5],
            [0, 1, -1, 0.1, -1],
        ]
    )
    for place, row in enumerate(expected):
        model = LinearModel(made.model_copy(update={"norm_bound": 100.0}), np.eye(4)[place], _nobody(), "by hand")
        assert model.margins(frame) == pytest.approx(row, abs=1e-12)
        with duckdb.connect() as connection:
            connection.register("lake", frame)
            assert connection.sql(model.sql("lake")).fetchnumpy()["margin"] == pytest.approx(row, abs=1e-12)
    plain = {"kind": "numeric", "lower": 0, "upper": 1}
    assert NumericColumn.model_validate(plain).model_dump().keys() == {*plain, "nulls", "transform", "bins"}
    refused = {"zero": -1, "one": 0.5, "bins": [0.5]}
    for keys, said in (
        ({"zero": 2}, "zero 2 must lie between"),
        ({"zero": 0.5, "one": 0.25}, "one 0.25 must be above"),
        ({"zero": 0.5, "one": 0.5}, "one 0.5 must be above"),
        (refused, "bins have no scale"),
    ):
        with pytest.raises(ValueError, match=said):
            NumericColumn.model_validate(plain | keys)
    assert Lattice(made.norm_bound).step > 0


def _nobody() -> Any:
    from daskrado.privacy.statement import PrivacyStatement

    return PrivacyStatement.none()
