"""Labels of several classes: least squares and softmax against scikit-learn, the same bits anywhere, refusals."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

import daskrado
from daskrado.errors import DataError, UsageError
from daskrado.models.class_evaluation import ClassCounts
from daskrado.models.linear import LinearModel
from daskrado.privacy.relations import Relation
from daskrado.statistics.base import Rows
from daskrado.statistics.softmax_slopes import SoftmaxSlopes
from daskrado.table.domain import Domain
from daskrado.table.lattice import Lattice
from daskrado.table.yaml_file import parse

COLOURS = ["red", "green", "blue"]
KEYS: dict[str, Any] = {
    "label": {"column": "colour", "classes": COLOURS},
    "columns": {
        "a": {"kind": "numeric", "lower": 0, "upper": 10},
        "b": {"kind": "numeric", "lower": -1, "upper": 1},
        "s": {"kind": "categorical", "values": ["u", "v"], "other": False},
    },
    "norm_bound": 2.0,  # no row is clipped
}
DOMAIN = parse(Domain, KEYS, "here")
PRIVATE: dict[str, Any] = {"dataset": "paint", "epsilon": 1.0, "delta": 1e-6, "unit": "one pot", "rows": 20_000}


def pots(rows: int = 20_000, seed: int = 1) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    frame = pd.DataFrame({"a": draw.uniform(0, 10, rows), "b": draw.uniform(-1, 1, rows)})
    frame["s"], frame["owner"] = draw.choice(["u", "v"], rows), np.arange(rows) // 2
    scores = np.column_stack([frame["a"] / 2 - 1, 3 * frame["b"] + 1.5, (frame["s"] == "u") * 2.0])
    return frame.assign(colour=np.array(COLOURS)[(scores + draw.gumbel(size=(rows, 3))).argmax(axis=1)])


def plain(frame: pd.DataFrame) -> np.ndarray:
    return np.column_stack([frame["a"], frame["b"], frame["s"] == "u"]).astype(float)


def fitted(frame: Any, **changes: Any) -> LinearModel:
    found = daskrado.fit(frame, DOMAIN, **PRIVATE | {"first_limit": (20, 1e-4)} | changes)
    assert found.model is not None
    return found.model


def test_without_noise_it_is_least_squares_of_each_class() -> None:
    frame = pots()
    model = daskrado.fit(
        frame, DOMAIN, dataset="paint", private=False, learner={"kind": "moments", "regularisation": 0.0}
    ).model
    assert model is not None
    targets = np.column_stack([frame["colour"] == one for one in COLOURS]).astype(float)
    expected = LinearRegression().fit(plain(frame), targets).predict(plain(frame))
    np.testing.assert_allclose(model.margins(frame), expected, atol=1e-4)
    assert model.predict(frame).tolist() == np.array(COLOURS)[expected.argmax(axis=1)].tolist()
    assert list(model.predict_proba(frame).columns) == COLOURS


@pytest.mark.parametrize("learner", ["moments", "gradient", "auto"])
def test_private_fits_come_near_scikit_learn(learner: str, fixed_noise: None) -> None:
    frame, new = pots(), pots(8000, 2)
    theirs = LogisticRegression().fit(plain(frame), frame["colour"]).score(plain(new), new["colour"])
    model = fitted(frame, learner=learner)
    assert (model.predict(new) == new["colour"]).mean() > theirs - 0.02
    if learner != "moments":  # softmax gives probabilities that can be believed
        shares = model.predict_proba(new).to_numpy()
        for k, one in enumerate(COLOURS):
            sure = shares[:, k] > 0.6
            assert (new["colour"][sure] == one).mean() == pytest.approx(shares[sure, k].mean(), abs=0.08)


def test_people_count_once_and_rows_are_counted_where_nobody_gives_their_number(fixed_noise: None) -> None:
    frame = pots()
    model = fitted(frame, unit={"column": "owner", "name": "one owner"}, rows=None, learner="gradient")
    assert "one owner" in model.statement.sentence()
    assert (model.predict(frame) == frame["colour"]).mean() > 0.6


def test_a_model_is_read_as_it_was_written_and_scores_a_lake(tmp_path: Path, fixed_noise: None) -> None:
    frame = pots(3000)
    frame.to_parquet(tmp_path / "pots.parquet")
    model = fitted(frame)
    model.save(tmp_path / "model.json")
    again = LinearModel.load(tmp_path / "model.json")
    np.testing.assert_array_equal(again.weights, model.weights)
    assert again.coefficients.index[0] == "red: a"
    from daskrado.lake.score import score

    score(again, str(tmp_path / "pots.parquet"), tmp_path / "out", also=("probability",))
    scored = pd.read_parquet(tmp_path / "out")
    assert scored["predicted"].tolist() == model.predict(frame).tolist()
    np.testing.assert_allclose(scored["probability"], model.predict_proba(frame).max(axis=1), atol=1e-12)


def test_the_same_bits_in_any_partitioning_and_on_two_workers(
    tmp_path: Path, two_workers: Any, fixed_noise: None
) -> None:
    """Also of softmax slopes, whose shares are computed row by row: drawn noise is the same, so weights must be."""
    frame, weights = pots(3000), set()
    for parts in (1, 2, 7):
        folder = tmp_path / str(parts)
        folder.mkdir()
        for number, rows in enumerate(np.array_split(np.arange(len(frame)), parts)):
            frame.iloc[rows].to_parquet(folder / f"{number}.parquet")
        for where in ({"workers": 0}, {"cluster": two_workers}):
            found = daskrado.fit(folder, DOMAIN, dataset="paint", private=False, **where)
            assert found.model is not None
            weights.add(found.model.weights.tobytes())
    assert len(weights) == 1
    lattice, x = Lattice(1.0, 12), np.random.default_rng(2).normal(size=(500, 4))
    rows = Rows(lattice.quantise(np.asfortranarray(x)), np.random.default_rng(3).integers(0, 4, 500).astype(np.int8))
    statistic = SoftmaxSlopes.at(np.random.default_rng(4).normal(size=(3, 4)) * 5, lattice)
    whole = statistic.partial(rows)
    for parts in (2, 7):
        pieces = [rows.take(index) for index in np.array_split(np.random.default_rng(5).permutation(500), parts)]
        assert np.array_equal(sum((statistic.partial(piece) for piece in pieces), statistic.zero()), whole)


def test_softmax_slopes_are_the_gradient_of_the_softmax_loss() -> None:
    """Against finite differences of sum over rows of log sum exp(u_k.x) - u_y.x."""
    draw, lattice = np.random.default_rng(7), Lattice(1.0, 20)
    x = lattice.quantise(np.asfortranarray(draw.normal(size=(200, 3)))) * 2.0**-20
    y, u = draw.integers(0, 3, 200), draw.normal(size=(3, 3))

    def loss(weights: np.ndarray) -> float:
        scores = x @ weights.T
        return float((np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(200), y]).sum())

    statistic = SoftmaxSlopes.at(u, lattice)
    rows = Rows(np.asfortranarray(x * 2.0**20), (y + 1).astype(np.int8))
    found = statistic.partial(rows).reshape(3, 3) * 2.0 ** -(20 + statistic.slope_bits)
    for k, j in itertools.product(range(3), range(3)):
        step = np.zeros((3, 3))
        step[k, j] = 1e-5
        assert found[k, j] == pytest.approx((loss(u + step) - loss(u - step)) / 2e-5, abs=200 * 2.0**-15)


def test_two_rows_far_on_the_wrong_side_nearly_attain_the_declared_sensitivity() -> None:
    """Opposite rows that both are taken for class 2 and belong to class 1, in the limit of long weights."""
    lattice = Lattice(1.0, 16)
    angle = 1.5
    pair = np.array([[math.sin(angle), math.cos(angle)], [-math.sin(angle), math.cos(angle)]])
    statistic = SoftmaxSlopes.at(np.array([[0.0, -400.0], [0.0, 400.0], [0.0, -400.0]]), lattice)
    rows = lattice.quantise(np.asfortranarray(pair))
    ends = [statistic.partial(Rows(np.asfortranarray(rows[[i]]), np.array([1], dtype=np.int8))) for i in (0, 1)]
    moved = np.linalg.norm(ends[0] - ends[1]) * 2.0 ** -(16 + statistic.slope_bits)
    declared = statistic.sensitivity(Relation.REPLACE_ONE).l2
    assert 0.99 * declared < moved <= declared
    with pytest.raises(UsageError, match="label_flip"):
        statistic.sensitivity(Relation.LABEL_FLIP)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"classes": ["a", "b"]}, "3 to 100 values, got 2; for two say positive and negative"),
        ({"classes": ["a", "b", "a"]}, "classes repeat a"),
        ({"classes": ["a", "b", 3]}, "classes mix types"),
        ({"classes": list(range(101))}, "3 to 100 values, got 101"),
        ({"kind": "classes"}, "classes is a list of 3 to 100 values"),
        ({"classes": ["a", "b", "c"], "above": 3}, "no sides: drop above"),
    ],
)
def test_wrong_classes_are_refused_in_one_line(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse(Domain, {**KEYS, "label": {"column": "colour", **keys}}, "here")


def test_values_that_are_no_class_count_as_nothing_and_are_refused_without_privacy() -> None:
    frame = pots(2000)
    worse = pd.concat([frame, frame.head(50).assign(colour="SECRET")], ignore_index=True)
    with pytest.raises(DataError, match=r"label outside \['red', 'green', 'blue'\]") as caught:
        daskrado.fit(worse, DOMAIN, dataset="paint", private=False)
    assert "SECRET" not in str(caught.value)
    assert fitted(worse).statement.private
    dropping = parse(Domain, {**KEYS, "label": KEYS["label"] | {"nulls": "drop"}}, "here")
    null = pd.concat([frame, frame.head(50).assign(colour=None)], ignore_index=True)
    both = [daskrado.fit(one, dropping, dataset="paint", private=False).model for one in (frame, null)]
    np.testing.assert_array_equal(both[0].weights, both[1].weights)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"relation": "label_flip"}, "label_flip is for labels of two sides"),
        (
            {"learner": {"kind": "erm", "loss": "residual_huber"}, "private": False},
            "loss residual_huber is not meant",
        ),
        ({"learner": {"kind": "one_vs_rest", "learner": "gradient"}}, "gradient has all classes in every step"),
        ({"learner": {"kind": "gradient", "loss": "logistic"}}, "drop loss"),
        ({"learner": "mean"}, "learner mean needs a label of two sides"),
        ({"statistic": "moments"}, "not meant for a label that is one of several classes"),
    ],
)
def test_what_is_not_meant_for_classes_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        fitted(pots(100), **changes)


def test_an_exact_evaluation_is_the_confusion_matrix_of_scikit_learn() -> None:
    frame, new = pots(), pots(5000, 2)
    result = daskrado.fit(frame, DOMAIN, dataset="paint", private=False)
    assert result.model is not None
    found = daskrado.evaluate(result, new, dataset="paint", private=False, by=["s"]).value
    predicted = result.model.predict(new)
    expected = confusion_matrix(new["colour"], predicted, labels=COLOURS)
    np.testing.assert_array_equal(found.cells.counts, expected)
    for s, cells in found.groups["s"].items():
        mine = (new["s"] == s).to_numpy()
        np.testing.assert_array_equal(
            cells.counts, confusion_matrix(new["colour"][mine], predicted[mine], labels=COLOURS)
        )
    assert found.cells.error.value == pytest.approx((predicted != new["colour"]).mean())
    scores = precision_recall_fscore_support(new["colour"], predicted, labels=COLOURS)
    for k in range(3):
        assert found.cells.precision(k).value == pytest.approx(scores[0][k])
        assert found.cells.recall(k).value == pytest.approx(scores[1][k])


def test_a_private_evaluation_is_published_and_its_noise_is_known(tmp_path: Path, fixed_noise: None) -> None:
    frame, new = pots(), pots(20_000, 2)
    result = daskrado.fit(frame, DOMAIN, **PRIVATE, first_limit=(20, 1e-4))
    assert result.model is not None
    exact = daskrado.evaluate(result, new, dataset="paint", private=False).value.cells
    how = {
        "dataset": "paint",
        "epsilon": 0.5,
        "delta": 1e-6,
        "protect": {"relation": "add_remove", "unit": "one pot"},
    }
    found = daskrado.evaluate(result, new, **how, output=tmp_path / "out").value.cells
    assert np.abs(found.counts - exact.counts).max() < 6 * found.std
    assert np.abs(found.counts - exact.counts).max() > 0.1 * found.std
    assert abs(found.error.value - exact.error.value) < found.error.high - found.error.low < 0.05
    assert "Confusion matrix" in (tmp_path / "out" / "report.html").read_text()
    held = {
        "kind": "learn", "dataset": "paint", "lake": frame.assign(id=np.arange(len(frame))), "output": ".",
        "domain": {**KEYS, "id": "id"}, "holdout": 0.2, "protect": how["protect"], "learner": "moments",
        "budget": {"epsilon": 1.0, "delta": 1e-6},
    }  # fmt: skip
    assert 0.2 < daskrado.run(held, write=False).facts["evaluation"]["error"]["value"] < 0.5


def test_intervals_of_recall_hold_the_truth() -> None:
    """Counts drawn from a known matrix of chances, with noise: 300 matrices, the recall of each class."""
    draw, chance = np.random.default_rng(4), np.array([[0.4, 0.05, 0.05], [0.1, 0.2, 0.02], [0.03, 0.03, 0.12]])
    held = np.zeros(3)
    for _ in range(300):
        counts = draw.multinomial(5000, chance.ravel()).reshape(3, 3) + draw.normal(0, 12.0, (3, 3))
        cells = ClassCounts(tuple(COLOURS), counts, 12.0)
        held += [chance[k, k] / chance[k].sum() in cells.recall(k) for k in range(3)]
    assert (held >= 0.92 * 300).all()
    assert (held < 300).any()
