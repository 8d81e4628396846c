"""Probabilities, ranks and thresholds from released counts: closed forms, scikit-learn, DuckDB and onnxruntime."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from scipy.special import expit, logit
from scipy.stats import norm

import daskrado
from daskrado.cli.main import cli
from daskrado.errors import UsageError
from daskrado.models.decision import Decision
from daskrado.models.evaluation import Cells
from daskrado.models.linear import LinearModel
from daskrado.models.link import Link, Logistic, Pieces, fitted, link_from_json, own_link
from daskrado.models.onnx_graph import write_onnx
from daskrado.models.threshold import Rule
from daskrado.privacy.accountant import gaussian_mu
from daskrado.privacy.statement import PrivacyStatement
from daskrado.table.domain import Domain

DOMAIN = Domain.model_validate(
    {
        "label": {"column": "sick", "positive": "yes", "negative": "no"},
        "norm_bound": 1.9,
        "columns": {
            "age": {"kind": "numeric", "lower": 0, "upper": 100},
            "dose": {"kind": "numeric", "lower": 0, "upper": 50, "transform": "log1p", "nulls": {"fill": 3}},
            "visits": {"kind": "numeric", "lower": 0, "upper": 30, "bins": [1, 5, 12], "nulls": {"fill": 2}},
            "day": {"kind": "date", "lower": "2026-01-01", "upper": "2026-12-31"},
            "ward": {"kind": "categorical", "values": ["a", "b"], "other": True},
            "town": {"kind": "categorical", "values": ["x", "y"], "other": False, "nulls": {"fill": "y"}},
            "grade": {"kind": "categorical", "values": [1, 2, 3], "other": True},
            "smoker": {"kind": "boolean"},
            "drinks": {"kind": "boolean", "values": ["N", "Y"], "nulls": {"fill": True}},
        },
    }
)


def made(**decision: Any) -> LinearModel:
    weights = np.random.default_rng(4).normal(size=DOMAIN.width)
    details = {"loss": "logistic"}
    return LinearModel(DOMAIN, weights, PrivacyStatement.none(), "by hand", details, decision=Decision(**decision))


def rows(count: int, seed: int = 1) -> pd.DataFrame:
    draw = np.random.default_rng(seed)

    def perhaps(values: Any) -> list[Any]:
        return [None if draw.random() < 0.2 else value for value in values]

    return pd.DataFrame(
        {
            "age": draw.uniform(-20, 130, count),
            "dose": perhaps(draw.exponential(9, count)),
            "visits": perhaps(draw.integers(0, 40, count).astype(float)),
            "day": pd.to_datetime("2025-12-20") + pd.to_timedelta(draw.integers(0, 400, count), "D"),
            "ward": draw.choice(["a", "b", "zz", ""], count),
            "town": perhaps(draw.choice(["x", "y"], count)),
            "grade": draw.integers(0, 6, count),
            "smoker": draw.random(count) < 0.5,
            "drinks": perhaps(draw.choice(["N", "Y"], count)),
        }
    )


LINKS: list[Link] = [Logistic(2.5, -0.4, "here"), Pieces((-1.5, -0.2, 0.3, 2.0), (0.05, 0.1, 0.6, 0.9), "here")]


@pytest.mark.parametrize("link", [*LINKS, Logistic(), Pieces()], ids=repr)
def test_links_rise_and_their_margin_is_where_a_probability_is_reached(link: Link) -> None:
    at = np.linspace(-5, 5, 1001)
    assert (np.diff(link(at)) >= 0).all()
    for probability in (0.11, 0.3, 0.5, 0.85):
        margin = link.margin(probability)
        assert link(np.array([margin]))[0] == pytest.approx(probability, abs=1e-9)
        assert link(np.array([margin - 1e-6]))[0] < probability
    assert link_from_json(json.loads(json.dumps(link.to_json())), "here") == link
    assert Pieces((0.0, 1.0), (0.2, 0.6)).margin(0.7) == np.inf
    assert Pieces((0.0, 1.0), (0.2, 0.6)).margin(0.1) == -np.inf


def test_a_loss_has_its_own_link_or_none() -> None:
    margins = np.array([-2.0, -0.5, 0.0, 1.0])
    assert own_link("gradient", {"loss": "logistic"}) == Logistic()
    assert np.allclose(Logistic()(margins), 1 / (1 + np.exp(-margins)))
    assert own_link("moments", {}) == Pieces()
    assert Pieces()(margins).tolist() == [0.0, 0.25, 0.5, 1.0]
    assert own_link("gradient", {"loss": "huber"}) is None
    assert own_link("gradient", {"loss": "huber_logistic", "huber_share": 0.5}) == Logistic()
    assert own_link("gradient", {"loss": "huber_logistic", "huber_share": 0.51}) is None
    assert own_link("gradient", {"loss": "huber_logistic"}) is None
    with pytest.raises(UsageError, match="gives margins, not probabilities: daskrado evaluate"):
        LinearModel(DOMAIN, np.zeros(DOMAIN.width), PrivacyStatement.none(), "huber").probabilities(rows(3))


def counted(margins: np.ndarray, p: np.ndarray, std: float, bins: int = 20, seed: int = 2) -> Cells:
    draw = np.random.default_rng(seed)
    positive = draw.random(len(p)) < p
    edges = np.quantile(margins, np.arange(1, bins) / bins)
    code = np.searchsorted(edges, margins, side="right")
    sides = [
        np.bincount(code[positive == side], minlength=bins) + draw.normal(0, std, bins) for side in (False, True)
    ]
    return Cells(edges, sides[0], sides[1], std)


NOISE = 1 / (gaussian_mu(1.0, 1e-6) * np.sqrt(0.8))


def test_log_odds_on_a_line_are_found_and_others_get_a_curve() -> None:
    """Expected calibration error, against the probabilities that made the labels, at 10,000 units and epsilon 1."""
    margins = np.random.default_rng(1).normal(-0.6, 0.4, 10_000)
    for truth, kind in ((expit(3 * margins - 0.5), Logistic), (norm.cdf(9 * (margins + 0.5)) * 0.5 + 0.05, Pieces)):
        found = fitted(counted(margins, truth, NOISE), "counts")
        assert isinstance(found, kind)
        assert np.abs(found(margins) - truth).mean() < 0.03
        assert found.about == "counts"
    line = fitted(counted(margins, expit(3 * margins - 0.5), NOISE), "counts")
    assert isinstance(line, Logistic)
    assert line.slope == pytest.approx(3, abs=0.5)
    assert line.offset == pytest.approx(-0.5, abs=0.35)


def test_the_line_is_that_of_logistic_regression_without_noise() -> None:
    """On the middles of bins, scikit-learn's fit without penalty: weighted least squares agrees to 0.03."""
    linear_model = pytest.importorskip("sklearn.linear_model")
    margins = np.random.default_rng(5).normal(0, 1, 40_000)
    cells = counted(margins, expit(1.5 * margins + 0.3), 0.0, bins=40)
    middles = np.concatenate(
        [
            [2 * cells.edges[0] - cells.edges[1]],
            (cells.edges[1:] + cells.edges[:-1]) / 2,
            [2 * cells.edges[-1] - cells.edges[-2]],
        ]
    )
    x = np.tile(middles, 2)[:, None]
    y = np.repeat([0, 1], 40)
    known = linear_model.LogisticRegression(C=1e9).fit(
        x, y, sample_weight=np.concatenate([cells.negative, cells.positive])
    )
    found = fitted(cells, "")
    assert isinstance(found, Logistic)
    assert (found.slope, found.offset) == pytest.approx((known.coef_[0, 0], known.intercept_[0]), abs=0.03)


def test_counts_lost_in_noise_give_a_link_all_the_same() -> None:
    draw = np.random.default_rng(1)
    for _ in range(20):
        found = fitted(Cells(np.linspace(-1, 1, 19), draw.normal(0, 50, 20), draw.normal(0, 50, 20), 50.0), "")
        at = found(np.linspace(-3, 3, 50))
        assert ((at >= 0) & (at <= 1)).all()
        assert (np.diff(at) >= 0).all()


def test_thresholds_are_the_best_of_all_edges() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    draw = np.random.default_rng(3)
    positive = draw.random(20_000) < 0.15
    margins = draw.normal(size=20_000) + 1.2 * positive
    edges = np.linspace(-2, 3, 41)
    code = np.searchsorted(edges, margins, side="right")
    sides = [np.bincount(code[positive == side], minlength=42).astype(float) for side in (False, True)]
    cells = Cells(edges, sides[0], sides[1], 0.0)
    called = [margins >= edge for edge in edges]
    f1 = int(np.argmax([metrics.f1_score(positive, one) for one in called]))
    youden = int(np.argmax([one[positive].mean() - one[~positive].mean() for one in called]))
    cost = int(np.argmin([5 * (~one & positive).sum() + (one & ~positive).sum() for one in called]))
    rate = int(np.argmin([abs(one.mean() - 0.1) for one in called]))
    rules = {"f1": f1, "youden": youden, "cost=5": cost, "rate=0.1": rate}
    for rule, place in rules.items():
        assert Rule.model_validate(rule).place(cells) == place + 1, rule
    for wrong in ("f2", {"cost": 1, "rate": 0.5}, "rate=2", {}):
        with pytest.raises(ValueError):
            Rule.model_validate(wrong)
    decision = Decision.of(cells, Rule.model_validate("cost=5"), "here")
    assert decision.threshold == edges[cost]
    assert decision.ranks is not None
    assert np.allclose(decision.ranks(edges), [(margins < edge).mean() for edge in edges])


@pytest.mark.parametrize("link", LINKS, ids=repr)
def test_a_model_file_keeps_its_decision_and_form_1_has_none(link: Link, tmp_path: Path) -> None:
    model = made(link=link, threshold=-0.25, chosen="the largest F1", ranks=Pieces((0.0, 1.0), (0.1, 0.9), "r"))
    model.save(tmp_path / "model.json")
    again = LinearModel.load(tmp_path / "model.json")
    assert again.decision == model.decision
    frame = rows(200)
    margins = model.margins(frame)
    assert np.array_equal(again.probabilities(frame), link(margins))
    assert (again.predict(frame) == np.where(margins >= -0.25, "yes", "no")).all()
    both = again.predict_proba(frame)
    assert list(both.columns) == ["no", "yes"]
    assert np.allclose(both.sum(axis=1), 1)
    assert np.allclose(again.ranks(frame), np.interp(margins, [0, 1], [0.1, 0.9]))
    assert (again.saying_yes_from(0.3).predict(frame) == np.where(link(margins) >= 0.3, "yes", "no")).all()
    content = json.loads((tmp_path / "model.json").read_text())
    for key in ("decision", "error_bars"):
        content.pop(key)
    first = LinearModel.from_json(json.dumps(content | {"schema": "daskrado.model/1"}))
    assert first.decision == Decision()
    assert np.allclose(first.probabilities(frame), expit(margins))  # its loss's own
    for damage in (
        {"threshold": None},
        {"link": {"kind": "logistic"}},
        {"ranks": Logistic().to_json()},
        {"chosen": 3},
    ):
        broken = json.loads((tmp_path / "model.json").read_text())
        broken["decision"] |= damage
        with pytest.raises(UsageError, match=r"model: (decision|link)"):
            LinearModel.from_json(json.dumps(broken))


@pytest.mark.parametrize("link", LINKS, ids=repr)
def test_sql_gives_probabilities_and_labels(link: Link) -> None:
    duckdb = pytest.importorskip("duckdb")
    model = made(link=link, threshold=0.4, chosen="by hand")
    lake = rows(300)
    lake.loc[5, "age"] = np.nan  # predict refuses this row; SQL has nulls
    found = duckdb.sql(model.sql("lake", keep=("grade",), probability=True)).df()
    keep = lake.index != 5
    margins = model.margins(lake[keep])
    assert np.allclose(found["probability"][keep], link(margins), atol=1e-9)
    assert (found["predicted"][keep] == np.where(margins >= 0.4, "yes", "no")).all()
    assert found.loc[5, ["margin", "probability", "predicted"]].isna().all()
    with pytest.raises(UsageError, match="--keep probability"):
        model.sql("lake", keep=("probability",), probability=True)


def onnx_inputs(frame: pd.DataFrame) -> dict[str, np.ndarray]:
    """As the module says: doubles, texts, whole numbers, truths, and whether a category or truth is null."""
    found = {name: frame[name].astype(float).to_numpy() for name in ("age", "dose", "visits")}
    found["day"] = (frame["day"] - pd.Timestamp(0)).dt.days.astype(float).to_numpy()
    found["ward"] = frame["ward"].to_numpy(dtype=object)
    found["grade"] = frame["grade"].to_numpy(dtype=np.int64)
    found["smoker"] = frame["smoker"].to_numpy()
    for name in ("town", "drinks"):
        found[name] = frame[name].fillna("").to_numpy(dtype=object)
        found[f"{name} is null"] = frame[name].isna().to_numpy()
    return found


@pytest.mark.parametrize("link", LINKS, ids=repr)
def test_onnxruntime_agrees_with_predict(link: Link, tmp_path: Path) -> None:
    """All kinds of columns, with nulls, unknown values and values beyond their bounds."""
    runtime = pytest.importorskip("onnxruntime")
    model = made(link=link, threshold=0.2, chosen="by hand")
    assert set(write_onnx(model, tmp_path / "m.onnx")) == set(onnx_inputs(rows(1)))
    session = runtime.InferenceSession(str(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"])
    frame = rows(2000)
    margin, probability, label = session.run(None, onnx_inputs(frame))
    margins = model.margins(frame)
    assert np.abs(margin - margins).max() < 1e-9
    assert np.abs(probability - link(margins)).max() < 1e-9
    assert (label == np.where(margins >= 0.2, "yes", "no")).all()
    assert session.get_modelmeta().custom_metadata_map["privacy_in_words"].startswith("NOT PRIVATE")
    for column, bad in (("age", np.nan), ("town", "nowhere"), ("day", np.inf)):
        odd = onnx_inputs(rows(2)) | {column: np.array([bad, bad], dtype=object if isinstance(bad, str) else float)}
        odd |= {f"{column} is null": np.zeros(2, dtype=bool)} if column == "town" else {}
        assert np.isnan(session.run(["margin"], odd)[0]).all()


def test_what_onnx_cannot_say_is_refused_by_name(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    label = {"column": "y", "positive": 1, "negative": 0}
    for column, said in (
        ({"kind": "categorical", "values": ["a"], "trim": True}, "column 'c': ONNX cannot trim texts"),
        ({"kind": "categorical", "values": [0.5, 1.5]}, "column 'c': categories that are numbers with a fraction"),
    ):
        domain = Domain.model_validate({"label": label, "columns": {"c": column}})
        with pytest.raises(UsageError, match=said):
            write_onnx(LinearModel(domain, np.zeros(domain.width), PrivacyStatement.none(), "m"), tmp_path / "m.onnx")
    kernel = {"kind": "gaussian", "gamma": 1.0, "features": 4}
    domain = Domain.model_validate({"label": label, "columns": {"c": {"kind": "boolean"}}, "kernel": kernel})
    with pytest.raises(UsageError, match="a kernel model has no short ONNX graph"):
        write_onnx(LinearModel(domain, np.zeros(domain.width), PrivacyStatement.none(), "m"), tmp_path / "m.onnx")


def visits(count: int, seed: int) -> pd.DataFrame:
    """Bank-like: one in nine is positive, and the score says how likely, far from where a hinge would cut."""
    draw = np.random.default_rng(seed)
    age, calls = draw.uniform(0, 1, count), draw.poisson(2, count).clip(0, 9)
    p = expit(logit(0.07) + 2.2 * (age - 0.5) + 0.3 * (calls - 2))
    return pd.DataFrame({"id": np.arange(count), "age": age, "calls": calls, "sick": draw.random(count) < p, "p": p})


BANK = {
    "label": {"column": "sick", "positive": True, "negative": False},
    "columns": {
        "age": {"kind": "numeric", "lower": 0, "upper": 1},
        "calls": {"kind": "numeric", "lower": 0, "upper": 9, "bins": [1, 2, 3, 4, 6]},
    },
    "id": "id",
}


@pytest.mark.parametrize("learner", ["moments", "gradient"])
def test_probabilities_of_unbalanced_rows_are_calibrated(learner: str, tmp_path: Path) -> None:
    """Expected calibration error at 50,000 rows, epsilon 1, against the probabilities that made the labels."""
    metrics = pytest.importorskip("sklearn.metrics")
    keys = {
        "dataset": "bank",
        "lake": visits(50_000, 1),
        "domain": BANK,
        "output": str(tmp_path / "run"),
        "protect": {"relation": "add_remove", "unit": "one client"},
        "budget": {"epsilon": 1.0, "delta": 1e-6},
        "learner": {"kind": learner},
        "rows": 50_000,
        "holdout": 0.2,
        "evaluate": {"threshold": {"cost": 8}},
        "ledger": {"first_limit": {"epsilon": 10, "delta": 1e-5}},
    }
    found = daskrado.run(keys)
    new = visits(50_000, 2)
    assert found.model is not None
    probability = found.model.probabilities(new)
    groups = np.array_split(np.argsort(probability), 15)
    error = sum(abs(probability[g].mean() - new["sick"][g].mean()) * len(g) for g in groups) / len(new)
    assert error <= 0.03
    assert np.abs(probability - new["p"]).mean() <= 0.03
    area = metrics.roc_auc_score(new["sick"], probability)
    assert found.facts["evaluation"]["area under the ROC curve"]["low"] - 0.02 < area
    assert area > 0.65
    said = found.model.predict(new)
    assert 0.1 < (said == True).mean() < 0.7  # noqa: E712 - labels; without a threshold it says no to everybody
    new.to_parquet(tmp_path / "lake.parquet")
    words = ["predict", str(tmp_path / "run"), str(tmp_path / "lake.parquet"), "--out", str(tmp_path / "scored")]
    done = CliRunner().invoke(cli, [*words, "--probability", "--rank", "--threshold", "0.1"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    scored = pd.read_parquet(tmp_path / "scored")
    assert list(scored.columns) == ["id", "probability", "rank", "margin", "predicted"]
    assert ((scored["probability"] >= 0.1) == scored["predicted"]).all()
    assert scored["rank"].corr(scored["margin"].rank()) > 0.99
    again = CliRunner().invoke(cli, [*words, "--overwrite"], catch_exceptions=False)
    assert again.exit_code == 0, again.output
