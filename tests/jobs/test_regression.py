"""Labels that are numbers: least squares against scikit-learn, the same bits anywhere, SQL, ONNX, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import HuberRegressor, LinearRegression

import daskrado
from daskrado.errors import UsageError
from daskrado.models.linear import LinearModel
from daskrado.models.onnx_graph import write_onnx
from daskrado.table.domain import Domain
from daskrado.table.yaml_file import parse

KEYS: dict[str, Any] = {
    "label": {"column": "days", "kind": "number", "bounds": [0, 20]},
    "columns": {
        "age": {"kind": "numeric", "lower": 0, "upper": 100},
        "dose": {"kind": "numeric", "lower": 0, "upper": 10},
        "sex": {"kind": "categorical", "values": ["f", "m"], "other": False},
        "smoker": {"kind": "boolean"},
    },
    "norm_bound": 2.3,  # no row is clipped
}
DOMAIN = parse(Domain, KEYS, "here")
PRIVATE: dict[str, Any] = {"dataset": "ward", "epsilon": 1.0, "delta": 1e-6, "unit": "one stay", "rows": 20_000}


def stays(rows: int = 20_000, seed: int = 1) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    frame = pd.DataFrame({"age": draw.uniform(0, 100, rows), "dose": draw.uniform(0, 10, rows)})
    frame["sex"], frame["smoker"] = draw.choice(["f", "m"], rows), draw.random(rows) < 0.3
    frame["patient"] = np.arange(rows) // 2
    mean = 4 + 0.06 * frame["age"] + 0.4 * frame["dose"] + 1.5 * (frame["sex"] == "m") + 0.8 * frame["smoker"]
    return frame.assign(days=np.clip(mean + draw.normal(0, 1.5, rows), 0, 20))


def plain(frame: pd.DataFrame) -> np.ndarray:
    """The columns as scikit-learn takes them."""
    return np.column_stack([frame["age"], frame["dose"], frame["sex"] == "m", frame["smoker"]]).astype(float)


def fitted(frame: Any, **changes: Any) -> LinearModel:
    found = daskrado.fit(frame, DOMAIN, **PRIVATE | {"first_limit": (20, 1e-4)} | changes)
    assert found.model is not None
    return found.model


@pytest.mark.parametrize("learner", [{"kind": "moments", "regularisation": 0.0}, "erm"])
def test_without_noise_it_is_least_squares_as_scikit_learn_has_it(learner: Any) -> None:
    frame, new = stays(), stays(200, 2)
    if learner == "erm":
        learner = {"kind": "erm", "regularisation": 1e-9}
    model = daskrado.fit(frame, DOMAIN, dataset="ward", private=False, learner=learner).model
    assert model is not None
    expected = LinearRegression().fit(plain(frame), frame["days"]).predict(plain(new))
    np.testing.assert_allclose(model.predict(new), expected, atol=2e-3)  # labels have 2,048 steps


def test_huber_without_noise_is_that_of_scikit_learn() -> None:
    """Its epsilon counts in deviations, which it estimates; ours in half the bounds: the same corner for both."""
    frame, new = stays(4000), stays(200, 2)
    theirs = HuberRegressor(epsilon=1.35, alpha=0.0, tol=1e-8, max_iter=1000).fit(plain(frame), frame["days"])
    corner = {"kind": "residual_huber", "h": 1.35 * theirs.scale_ / DOMAIN.label.span[1]}
    learner = {"kind": "erm", "regularisation": 1e-9, "loss": corner}
    model = daskrado.fit(frame, DOMAIN, dataset="ward", private=False, learner=learner).model
    assert model is not None
    np.testing.assert_allclose(model.predict(new), theirs.predict(plain(new)), atol=5e-3)


@pytest.mark.parametrize("learner", ["moments", "gradient", "objective_perturbation", "output_perturbation", "auto"])
def test_private_fits_find_what_there_is(learner: str, fixed_noise: None) -> None:
    frame, new = stays(), stays(4000, 2)
    model = fitted(frame, learner=learner)
    predicted, truth = model.predict(new), new["days"].to_numpy()
    left = float(((truth - predicted) ** 2).mean() / truth.var())
    assert left < {"moments": 0.4, "gradient": 0.4}.get(learner, 0.7)  # 0.37 without noise
    assert predicted.between(0, 20).all()
    assert model.statement.private
    with pytest.raises(UsageError, match="'days' is a number: a model of it gives no probabilities"):
        model.predict_proba(new)


def test_rows_are_counted_in_private_where_nobody_gives_their_number(fixed_noise: None) -> None:
    frame = stays()
    model = fitted(frame, learner="gradient", rows=None)
    assert model.predict(frame).corr(frame["days"]) > 0.7


def test_weights_and_intervals_are_in_the_units_of_the_label(fixed_noise: None) -> None:
    """By construction: dose, scaled to [-1, 1], moves days by 0.4 * 5; m against f by 1.5; smoker by 0.4 each way."""
    table = fitted(stays(100_000), rows=100_000).coefficients
    truth = {"age": 3.0, "dose": 2.0, "smoker": 0.4}
    for name, value in truth.items():
        assert table.loc[name, "low"] < value < table.loc[name, "high"]
    assert table.loc["sex=m", "weight"] - table.loc["sex=f", "weight"] == pytest.approx(1.5, abs=0.1)


def test_the_same_bits_in_any_partitioning_and_on_two_workers(tmp_path: Path, two_workers: Any) -> None:
    frame = stays(3000)
    weights = []
    for parts in (1, 2, 7):
        folder = tmp_path / str(parts)
        folder.mkdir()
        for number, rows in enumerate(np.array_split(np.arange(len(frame)), parts)):
            frame.iloc[rows].to_parquet(folder / f"{number}.parquet")
        for learner in ("moments", "erm"):
            for cluster in (None, two_workers):
                where = {"workers": 0} if cluster is None else {"cluster": cluster}
                found = daskrado.fit(folder, DOMAIN, dataset="ward", private=False, learner=learner, **where)
                assert found.model is not None
                weights.append((learner, found.model.weights.tobytes()))
    assert len(set(weights)) == 2


def test_people_count_once(fixed_noise: None) -> None:
    frame = stays()
    model = fitted(frame, unit={"column": "patient", "name": "one patient"}, rows=10_000)
    assert "one patient" in model.statement.sentence()
    assert model.predict(frame).corr(frame["days"]) > 0.7


def test_sql_onnx_and_json_predict_the_same(tmp_path: Path, fixed_noise: None) -> None:
    new = stays(500, 3)
    new.loc[0, ["age", "dose"]] = [1e9, 1e9]  # beyond their bounds
    model = fitted(stays())
    model.save(tmp_path / "model.json")
    again = LinearModel.load(tmp_path / "model.json")
    expected = again.predict(new)
    pd.testing.assert_series_equal(expected, model.predict(new))
    with duckdb.connect() as connection:
        connection.register("ward", new)
        found = connection.execute(again.sql("ward", keep=("patient",))).df()
    np.testing.assert_allclose(found["predicted"], expected, atol=1e-12)
    runtime = pytest.importorskip("onnxruntime")
    write_onnx(again, tmp_path / "model.onnx")
    session = runtime.InferenceSession(str(tmp_path / "model.onnx"))
    given = {"age": new["age"], "dose": new["dose"], "smoker": new["smoker"]}
    inputs = {name: column.to_numpy() for name, column in given.items()} | {"sex": new["sex"].to_numpy(object)}
    np.testing.assert_allclose(session.run(["label"], inputs)[0], expected, atol=1e-9)


def test_predictions_stay_within_the_bounds_everywhere(tmp_path: Path) -> None:
    model = LinearModel(DOMAIN, np.full(DOMAIN.width, 40.0), daskrado.fit(
        stays(100), DOMAIN, dataset="ward", private=False
    ).statement, "by hand")  # fmt: skip
    new = stays(300, 4)
    expected = model.predict(new)
    assert {0.0, 20.0} <= set(expected)
    with duckdb.connect() as connection:
        connection.register("lake", new)
        np.testing.assert_allclose(connection.execute(model.sql()).df()["predicted"], expected, atol=1e-12)


def test_values_that_are_no_numbers_count_as_nothing_and_are_refused_without_privacy() -> None:
    frame = stays(2000)
    worse = pd.concat([frame, frame.head(50).assign(days=np.nan)], ignore_index=True)
    exact = daskrado.fit(frame, DOMAIN, dataset="ward", private=False).model
    dropping = parse(Domain, {**KEYS, "label": KEYS["label"] | {"nulls": "drop"}}, "here")
    dropped = daskrado.fit(worse, dropping, dataset="ward", private=False).model
    assert exact is not None
    assert dropped is not None
    np.testing.assert_array_equal(exact.weights, dropped.weights)
    with pytest.raises(daskrado.errors.DataError, match="column 'days' holds nulls, and its null policy is error"):
        daskrado.fit(worse, DOMAIN, dataset="ward", private=False)
    assert fitted(worse).statement.private  # no value of a row stops a private run


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"relation": "label_flip"}, "label_flip is for labels of two sides"),
        ({"learner": "mean"}, "learner mean needs a label of two sides"),
        ({"learner": {"kind": "gradient", "loss": "logistic"}}, "loss logistic is not meant for a label"),
        ({"statistic": "moments"}, "statistic moments is not meant for a label that is a number"),
        ({"learner": "radoboost"}, "learner radoboost needs a label of two sides"),
        ({"learner": "softmax"}, "softmax is for several classes: for this label take gradient"),
        ({"learner": {"kind": "one_vs_rest", "learner": "objective_perturbation"}}, "one_vs_rest is for several"),
        ({"learner": {"kind": "tuning", "grid": ["gradient", "erm"]}}, "kind erm cannot be in a grid"),
    ],
)
def test_what_is_not_meant_for_numbers_is_refused_before_anything_is_charged(
    changes: dict[str, Any], said: str, own_ledger: Any
) -> None:
    with pytest.raises(UsageError, match=said):
        fitted(stays(100), **changes)


def test_other_kinds_say_that_they_need_two_sides() -> None:
    job = {"kind": "margins", "dataset": "ward", "lake": stays(100), "domain": DOMAIN, "output": "."}
    with pytest.raises(UsageError, match="label 'days' is a number; kind margins needs two sides"):
        daskrado.run(job, write=False)
    sides = parse(Domain, {**KEYS, "label": {"column": "smoker", "positive": True, "negative": False},
                           "columns": {"age": KEYS["columns"]["age"]}}, "here")  # fmt: skip
    with pytest.raises(UsageError, match="loss residual_huber is not meant for a label that is one of two sides"):
        daskrado.fit(stays(100), sides, **PRIVATE, learner={"kind": "gradient", "loss": "residual_huber"})


@pytest.mark.parametrize(
    ("label", "cells"),
    [
        ({"column": "days", "bounds": [2, 20]}, {"inside": 1990, "beyond the bounds": 10, "null": 0}),
        ({"column": "ward", "classes": ["a", "b", "c"]}, {"declared": 2000 * 3 // 4, "other": 500, "null": 0}),
    ],
)
def test_describe_counts_labels_of_every_kind(label: dict[str, Any], cells: dict[str, int]) -> None:
    frame = stays(2000).assign(ward=np.array(["a", "b", "c", "d"])[np.arange(2000) % 4])
    frame["days"] = np.where(np.arange(2000) < 10, 1.0, np.clip(frame["days"], 2, 20))
    job = {"kind": "describe", "dataset": "ward", "lake": frame, "domain": {**KEYS, "label": label}, "output": "."}
    found = daskrado.run(job | {"private": False}, write=False).value.by_column()[label["column"]]
    assert [round(2000 * share.value) for share in found] == list(cells.values())


def test_bounds_of_features_are_found_beside_a_number(tmp_path: Path, fixed_noise: None) -> None:
    """The draft that init writes, its label made a number: discover fills in the rest, and a model is learned."""
    frame = stays(20_000)
    draft = {"label": KEYS["label"], "columns": {"age": {"kind": "numeric", "lower": "...", "upper": "..."}}}
    job = {
        "kind": "discover", "dataset": "ward", "lake": frame, "domain": draft, "output": str(tmp_path / "out"),
        "protect": {"relation": "add_remove", "unit": "one stay"}, "budget": {"epsilon": 1.0, "delta": 1e-6},
        "ledger": {"first_limit": {"epsilon": 10, "delta": 1e-5}},
    }  # fmt: skip
    daskrado.run(job)
    domain = Domain.load(tmp_path / "out" / "domain.yaml")
    assert domain.label == DOMAIN.label
    model = daskrado.fit(frame, domain, **PRIVATE).model
    assert model is not None
    assert model.predict(frame).corr(frame["days"]) > 0.5
