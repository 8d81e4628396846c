"""Random Fourier features: norm 1, the right kernels, the same bits however rows are cut, published whole."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import daskrado
from daskrado.errors import UsageError
from daskrado.lake.collect import open_passes
from daskrado.lake.scan import open_lake
from daskrado.losses.margin import Huber
from daskrado.models.linear import LinearModel
from daskrado.statistics.slopes import SlopeSum
from daskrado.table.domain import Domain, Kernel
from daskrado.table.encoding import encode_table
from daskrado.table.fourier_features import fourier_features, frequencies
from daskrado.table.lattice import Lattice

KINDS = ("gaussian", "laplacian", "cauchy")


def kernel_value(kind: str, gamma: float, gap: np.ndarray) -> float:
    if kind == "gaussian":
        return math.exp(-gamma * float(gap @ gap))
    if kind == "laplacian":
        return math.exp(-gamma * float(np.abs(gap).sum()))
    return float(np.prod(1 / (1 + (gamma * gap) ** 2)))


@pytest.mark.parametrize("kind", KINDS)
def test_inner_products_approach_the_kernel(kind: str) -> None:
    kernel = Kernel(kind=kind, gamma=0.3, features=8192, seed=5)  # type: ignore[arg-type]
    rows = np.random.default_rng(0).uniform(-1, 1, size=(12, 4))
    out = np.empty((12, 8192))
    fourier_features(kernel, rows, out)
    for i in range(12):
        for j in range(i):
            wanted = kernel_value(kind, 0.3, rows[i] - rows[j])
            assert float(out[i] @ out[j]) == pytest.approx(wanted, abs=5 / math.sqrt(4096))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("features", [2, 10, 500])
def test_every_row_has_norm_one_also_the_worst(kind: str, features: int) -> None:
    kernel = Kernel(kind=kind, gamma=2.0, features=features)  # type: ignore[arg-type]
    rows = np.random.default_rng(1).uniform(-1, 1, size=(500, 6))
    out = np.empty((500, features))
    fourier_features(kernel, rows, out)
    np.testing.assert_allclose(np.linalg.norm(out, axis=1), 1.0, atol=1e-12)


def test_projections_are_exact_in_any_order() -> None:
    kernel = Kernel(kind="laplacian", gamma=3.0, features=64, seed=2)
    whole, _ = frequencies(kernel, 40)
    assert np.array_equal(whole, np.rint(whole))
    assert 40 * np.abs(whole).max() * 2**20 < 2**53
    rows = np.random.default_rng(3).uniform(-1, 1, size=(64, 40))
    at_once, one_by_one = np.empty((64, 64)), np.empty((64, 64))
    fourier_features(kernel, rows, at_once)
    for i in range(64):
        fourier_features(kernel, rows[i : i + 1], one_by_one[i : i + 1])
    assert np.array_equal(at_once, one_by_one)


def content(kernel: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "label": {"column": "y", "positive": 1, "negative": 0},
        "norm_bound": 1.0 if kernel else 1.5,
        "intercept": 0,
        "columns": {
            "a": {"kind": "numeric", "lower": -1, "upper": 1},
            "b": {"kind": "numeric", "lower": -1, "upper": 1},
        },
        "kernel": kernel,
    }


def rings(rows: int = 4000) -> pd.DataFrame:
    """A disc inside a ring: no line tells them apart."""
    x = np.random.default_rng(4).uniform(-1, 1, size=(rows, 2))
    return pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": (x**2).sum(axis=1) < 0.5})


def test_a_kernel_learns_a_circle_and_publishes_its_frequencies(tmp_path: Path) -> None:
    table = rings()
    table["y"] = table["y"].astype(int)
    kernel = {"kind": "gaussian", "gamma": 2.0, "features": 60, "seed": 1}
    errors = []
    for used in (None, kernel):
        result = daskrado.fit(
            table,
            content(used),
            dataset="rings",
            learner={"kind": "gradient", "steps": 60},
            epsilon=2.0,
            delta=1e-6,
            relation="replace_one",
            first_limit=(20, 1e-5),
            output=tmp_path / str(used is None),
        )
        errors.append(float((result.model.predict(table) != table["y"]).mean()))
    assert errors[0] > 0.3
    assert errors[1] < 0.15
    loaded = LinearModel.load(tmp_path / "False" / "model.json")
    assert loaded.predict(table).equals(result.model.predict(table))
    text = (tmp_path / "False" / "model.json").read_text()
    assert '"frequencies"' in text
    with pytest.raises(UsageError, match="frequencies are not those"):
        LinearModel.from_json(text.replace('"seed": 1', '"seed": 2'))
    with pytest.raises(UsageError, match="no short SQL"):
        loaded.sql()


def test_sums_of_mapped_rows_have_the_same_bits_in_any_partitioning(tmp_path: Path) -> None:
    table = rings(3000)
    table["y"] = table["y"].astype(int)
    domain = Domain.model_validate(content({"kind": "cauchy", "gamma": 1.0, "features": 30}))
    lattice = Lattice(1.0)
    statistic = SlopeSum.at(np.random.default_rng(6).normal(size=30), Huber(0.5), lattice)
    found = []
    for parts in (1, 2, 7):
        folder = tmp_path / str(parts)
        folder.mkdir()
        for i, piece in enumerate(np.array_split(np.arange(3000), parts)):
            table.iloc[piece].to_parquet(folder / f"{i}.parquet")
        with open_passes(open_lake(str(folder), domain), domain, lattice) as passes:
            found.append(passes.sum(statistic).vector)
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])


def test_the_map_is_the_domains_and_bounded() -> None:
    domain = Domain.model_validate(content({"kind": "gaussian", "gamma": 1.0, "features": 4}) | {"intercept": 0.5})
    assert domain.feature_names == ("cos 0", "cos 1", "sin 0", "sin 1", "intercept")
    assert domain.largest_norm == pytest.approx(math.sqrt(1.25))
    table = rings(10)
    table["y"] = table["y"].astype(int)
    made = encode_table(domain, pa.Table.from_pandas(table, preserve_index=False))
    rows = made.block(0, 10, np.empty((10, 5), order="F"))
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), math.sqrt(1.25), atol=1e-12)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"kind": "gaussian", "gamma": 0, "features": 4}, "gamma"),
        ({"kind": "rbf", "gamma": 1, "features": 4}, "kind"),
    ],
)
def test_bad_kernels_are_named(bad: dict[str, Any], said: str) -> None:
    from daskrado.table.yaml_file import parse

    with pytest.raises(UsageError, match=f"kernel.{said}"):
        parse(Domain, content(bad), "domain.yaml")
