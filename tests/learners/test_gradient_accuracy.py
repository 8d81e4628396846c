"""The noisy gradient as a whole: never worse with more budget, the best there is without noise, the same bits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.linear_model import LogisticRegression

from daskrado.lake.collect import Passes, open_passes
from daskrado.lake.scan import open_lake
from daskrado.learners.on_passes import gradient
from daskrado.learners.on_passes.gradient import PrivateGradient
from daskrado.learners.on_passes.iterative import Session
from daskrado.privacy.perturbation import PublicFacts
from daskrado.privacy.relations import Relation
from daskrado.table.domain import Domain
from daskrado.table.encoding import encode_table
from daskrado.table.lattice import Lattice, clip_rows

ROWS = 20_000
DOMAIN = Domain.model_validate(
    {
        "label": {"column": "label", "positive": 1, "negative": 0},
        "norm_bound": 2.0,
        "columns": {
            "age": {"kind": "numeric", "lower": 0, "upper": 100, "bins": list(range(5, 100, 5))},
            "amount": {"kind": "numeric", "lower": 0, "upper": 1000, "bins": list(range(50, 1000, 50))},
            "dose": {"kind": "numeric", "lower": -10, "upper": 10},
            "pressure": {"kind": "numeric", "lower": 0, "upper": 300},
            "ward": {"kind": "categorical", "values": ["a", "b", "c", "d"], "other": True},
            "smoker": {"kind": "boolean"},
        },
    }
)


def made(rows: int, seed: int) -> pd.DataFrame:
    """Smooth effects, one heap of an amount, numbers that fill a part of their bounds, a skewed category."""
    draw = np.random.default_rng(seed)
    heap = draw.random(rows) < 0.1
    table = pd.DataFrame(
        {
            "age": draw.normal(50, 15, rows).clip(1, 99),
            "amount": np.where(heap, 475.0, draw.uniform(0, 999, rows)),
            "dose": draw.normal(0, 1.5, rows),
            "pressure": draw.normal(120, 15, rows),
            "ward": draw.choice(["a", "b", "c", "z"], rows, p=[0.6, 0.25, 0.1, 0.05]),
            "smoker": draw.random(rows) < 0.3,
        }
    )
    margin = np.sin(table.age / 15) + 2.5 * heap + 0.7 * table.dose + 0.02 * (table.pressure - 120) - 1.2
    margin += table.ward.map({"a": 0.0, "b": 0.8, "c": -1.0, "z": 1.5}) + 0.6 * table.smoker
    return table.assign(label=(draw.random(rows) < 1 / (1 + np.exp(-margin))).astype(int))


class Split(NamedTuple):
    passes: Passes
    train: np.ndarray
    test: np.ndarray


def signed(table: pd.DataFrame, domain: Domain = DOMAIN) -> np.ndarray:
    """y x of every row as the learner sees it."""
    encoded = encode_table(domain, pa.Table.from_pandas(table, preserve_index=False))
    assert encoded.labels is not None
    x = encoded.block(0, len(table), np.empty((len(table), domain.width), order="F"))
    return np.asarray(clip_rows(x, domain.norm_bound) * encoded.labels[:, None])


@pytest.fixture(scope="module")
def split() -> Iterator[Split]:
    train = made(ROWS, 1)
    with open_passes(open_lake(train, DOMAIN), DOMAIN, Lattice(DOMAIN.norm_bound, 11)) as passes:
        yield Split(passes, signed(train), signed(made(ROWS, 2)))


def log_loss(rows: np.ndarray, weights: np.ndarray) -> float:
    return float(np.logaddexp(0, -rows @ weights).mean())


def fitted(split: Split, epsilon: float, relation: Relation = Relation.ADD_REMOVE) -> np.ndarray:
    facts = PublicFacts(ROWS, DOMAIN.width, DOMAIN.norm_bound, relation, epsilon, 1e-6)
    return PrivateGradient().learn(Session(split.passes, lambda: None), facts).weights


def losses(split: Split, epsilon: float, *, placed: bool) -> list[tuple[float, ...]]:
    """Log-loss on training and on fresh rows, of ten draws; ``placed``: dose and pressure are placed in private."""
    if not placed:
        weights = [fitted(split, epsilon) for _ in range(10)]
        return [(log_loss(split.train, one), log_loss(split.test, one)) for one in weights]
    facts = PublicFacts(ROWS, DOMAIN.width, DOMAIN.norm_bound, Relation.ADD_REMOVE, epsilon, 1e-6, numbers=2)
    found, tables = [], (made(ROWS, 1), made(ROWS, 2))
    for _ in range(10):
        model = PrivateGradient().learn(Session(split.passes, lambda: None), facts)
        domain = model.domain
        assert domain is not None
        found.append(tuple(log_loss(signed(table, domain), model.weights) for table in tables))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("placed", [False, True])
def test_more_budget_never_means_a_worse_model(split: Split, placed: bool) -> None:
    """Log-loss on training and on fresh rows, ten draws: no rise beyond three standard errors of the difference."""
    epsilons = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
    found = [np.transpose(losses(split, epsilon, placed=placed)) for epsilon in epsilons]
    for less, more in zip(np.array(found), np.array(found)[1:], strict=False):
        rise = more - less
        assert (rise.mean(axis=1) <= 3 * rise.std(axis=1, ddof=1) / np.sqrt(10)).all()
    assert (np.array(found)[0].mean(axis=1) > np.array(found)[-1].mean(axis=1) + 0.05).all()


@pytest.mark.slow
def test_with_little_noise_it_is_logistic_regression(split: Split) -> None:
    """Within 0.002 of error and 0.005 of log-loss of scikit-learn, on the same rows."""
    peer = LogisticRegression(C=100.0, fit_intercept=False, max_iter=2000)
    sides = np.where(np.arange(ROWS) % 2, 1, -1)  # it wants both labels; y x goes with any of them
    best = peer.fit(split.train * sides[:, None], sides).coef_[0]
    for relation in (Relation.ADD_REMOVE, Relation.REPLACE_ONE):
        weights = fitted(split, 50.0, relation)
        assert log_loss(split.test, weights) <= log_loss(split.test, best) + 0.005
        wrong = [(split.test @ w <= 0).mean() for w in (weights, best)]
        assert wrong[0] <= wrong[1] + 0.002


def test_weights_have_the_same_bits_in_any_partitioning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With noise that is the same, which is drawn once at the driver for sums that are the same."""

    def fixed(vector: np.ndarray, scale: float) -> np.ndarray:
        return vector + np.rint(scale * np.random.default_rng(len(vector)).normal(size=len(vector))).astype(np.int64)

    monkeypatch.setattr(gradient, "discrete_gaussian", fixed)
    table, found = made(700, 3), []
    for parts in (1, 2, 7):
        folder = tmp_path / str(parts)
        folder.mkdir()
        for number, piece in enumerate(np.array_split(np.arange(700), parts)):
            table.iloc[piece].to_parquet(folder / f"part-{number}.parquet")
        with open_passes(open_lake(folder, DOMAIN), DOMAIN, Lattice(2.0, 11)) as passes:
            facts = PublicFacts(700, DOMAIN.width, 2.0, Relation.ADD_REMOVE, 1.0, 1e-6)
            found.append(PrivateGradient(steps=5).learn(Session(passes, lambda: None), facts).weights.tobytes())
    assert len(set(found)) == 1
