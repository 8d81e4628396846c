"""The distributed solver: against scikit-learn, in any partitioning, on workers, with a certificate that holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.linear_model import LogisticRegression

from daskrado.lake.collect import open_passes
from daskrado.lake.scan import open_lake
from daskrado.learners.on_passes import solver
from daskrado.learners.on_passes.erm import Erm
from daskrado.learners.on_passes.iterative import Session
from daskrado.learners.on_passes.solver import Objective, Solution, certifiable, minimise, rounding
from daskrado.losses.margin import Huber, Logistic, Loss, SmoothHinge, Square
from daskrado.privacy.perturbation import PublicFacts
from daskrado.privacy.relations import Relation
from daskrado.table.compact import Layout
from daskrado.table.domain import Domain
from daskrado.table.encoding import encode_table
from daskrado.table.lattice import Lattice

WIDTH = 7


def frame(rows: int = 900, seed: int = 0) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(rows, WIDTH - 1))
    content = {f"x{i}": x[:, i] for i in range(WIDTH - 1)}
    content["y"] = x @ np.arange(1, WIDTH) / 4 + draw.normal(size=rows) > 0.3
    return pd.DataFrame(content)


def domain_of(width: int = WIDTH) -> Domain:
    return Domain.model_validate(
        {
            "label": {"column": "y", "positive": True, "negative": False},
            "norm_bound": 1.3,
            "intercept": 0.7,
            "columns": {f"x{i}": {"kind": "numeric", "lower": -3, "upper": 3} for i in range(width - 1)},
        }
    )


def encoded(table: pd.DataFrame, domain: Domain) -> tuple[np.ndarray, np.ndarray]:
    """The rows as the solver sees them: on the lattice."""
    made = encode_table(domain, pa.Table.from_pandas(table, preserve_index=False))
    assert made.labels is not None
    x = made.block(0, len(table), np.empty((len(table), domain.width), order="F"))
    lattice = Lattice(domain.norm_bound)
    return lattice.quantise(x) * lattice.step, made.labels.astype(float)


def solve(source: Any, loss: Loss, ridge: float, rows: int, client: Any = None, **options: Any) -> Solution:
    domain = domain_of()
    with open_passes(open_lake(source, domain), domain, Lattice(1.3), client=client, **options) as passes:
        return minimise(Objective(loss, ridge, rows), passes, 1e-10)


@pytest.mark.parametrize("ridge", [1.0, 1e-3, 1e-6])
@pytest.mark.parametrize("newton", [True, False])
def test_agrees_with_scikit_learn(ridge: float, newton: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not newton:
        monkeypatch.setattr(solver, "NEWTON_WIDTH", 1)
    table = frame()
    found = solve(table, Logistic(), ridge, len(table))
    x, y = encoded(table, domain_of())
    peer = LogisticRegression(C=1 / (len(table) * ridge), fit_intercept=False, tol=1e-14, solver="newton-cholesky")
    np.testing.assert_allclose(found.weights, peer.fit(x, y).coef_[0], atol=1e-6)
    assert found.certified


def test_a_first_guess_from_fewer_rows_changes_the_way_and_not_the_minimiser() -> None:
    table = frame(20_000)
    found = solve(table, Logistic(), 1e-5, len(table))
    x, y = encoded(table, domain_of())
    peer = LogisticRegression(C=1 / (len(table) * 1e-5), fit_intercept=False, tol=1e-14, solver="newton-cholesky")
    np.testing.assert_allclose(found.weights, peer.fit(x, y).coef_[0], atol=1e-6)
    assert found.certified
    assert found.rows == 20_000


@pytest.mark.parametrize("loss", [Logistic(), Huber(0.5), Huber(0.05), SmoothHinge(0.5), Square()], ids=repr)
@pytest.mark.parametrize("newton", [True, False])
def test_the_certificate_holds_in_higher_precision(loss: Loss, newton: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not newton:
        monkeypatch.setattr(solver, "NEWTON_WIDTH", 1)
    table, ridge = frame(), 1e-4
    found = solve(table, loss, ridge, len(table))
    assert found.certified
    x, y = encoded(table, domain_of())
    wide = x.astype(np.longdouble) * y[:, None]
    w = found.weights.astype(np.longdouble)
    margins = wide @ w
    if isinstance(loss, Logistic):
        slopes = -1 / (1 + np.exp(margins))
    elif isinstance(loss, Square):
        slopes = 2 * (margins - 1)
    else:
        u = np.clip((1 - margins) / np.longdouble(loss.h), -1, 1)  # type: ignore[attr-defined]
        slopes = -(1 + u) / 2 if isinstance(loss, Huber) else -(2 + u * (3 - u * u)) / 4
    gradient = wide.T @ slopes / len(table) + ridge * w
    assert float(np.sqrt((gradient**2).sum())) <= found.gradient


@pytest.mark.parametrize("separable", [True, False])
@pytest.mark.parametrize("ridge", [1e-4, 1e-6])
def test_the_baseline_agrees_with_scikit_learn_where_weights_are_long(separable: bool, ridge: float) -> None:
    """To 1e-6 in every coefficient, which a small gradient alone does not give at a small ridge."""
    table, domain = frame(), domain_of()
    table[["x1", "x2"]] *= [1e-2, 1e-4]
    if separable:
        table["y"] = table["x0"] > 0
    with open_passes(open_lake(table, domain), domain, Lattice(1.3)) as passes:
        facts = PublicFacts(len(table), domain.width, 1.3, Relation.REPLACE_ONE, 1.0)
        found = Erm(Logistic(), ridge).learn(Session(passes, lambda: None), facts)
    x, y = encoded(table, domain)
    peer = LogisticRegression(C=1 / (len(table) * ridge), fit_intercept=False, tol=1e-14, solver="newton-cholesky")
    np.testing.assert_allclose(found.weights, peer.fit(x, y).coef_[0], atol=1e-6, rtol=0)


@pytest.mark.parametrize("loss", [Logistic(), Huber(0.5), SmoothHinge(0.5)], ids=repr)
def test_the_last_resort_finds_the_same_minimiser(loss: Loss) -> None:
    """Nesterov's steps alone, where Newton's are not let past the first pass, on rows of which half count as many."""
    table, ridge, domain = frame(), 1e-2, domain_of()
    for rows in (len(table), len(table) // 2):
        objective = Objective(loss, ridge, rows)
        tolerance = certifiable(objective, domain.norm_bound, domain.width)
        with open_passes(open_lake(table, domain), domain, Lattice(1.3)) as passes:
            slow = minimise(objective, passes, tolerance, max_passes=1, certify=True)
            fast = minimise(objective, passes, tolerance)
        assert slow.certified
        assert slow.passes > 100 > fast.passes
        assert np.linalg.norm(slow.weights - fast.weights) <= 2 * tolerance / ridge


def test_what_can_always_be_certified_is_above_the_rounding_at_the_minimiser() -> None:
    table, domain = frame(), domain_of()
    table["y"] = table["x0"] > 0  # separable: the longest weights that a ridge allows
    for ridge in (1.0, 1e-3, 1e-6):
        objective = Objective(Logistic(), ridge, len(table))
        found = solve(table, Logistic(), ridge, len(table))
        error = rounding(objective, len(table), domain.norm_bound, domain.width)(found.weights)
        assert 4 * error <= certifiable(objective, domain.norm_bound, domain.width) < 1e-9


@pytest.mark.slow
def test_many_features_are_certified_where_gradients_alone_do_not_get_there() -> None:
    """L-BFGS is far from it after 200 passes here; a Hessian has room."""
    draw, rows, width = np.random.default_rng(2), 1500, 420
    table = pd.DataFrame({f"x{i}": np.where(draw.random(rows) < 0.01 + i / 500, 1.0, 0.0) for i in range(width - 1)})
    table["y"] = table["x1"] + table["x7"] + draw.normal(size=rows) > 0.5
    columns = {f"x{i}": {"kind": "numeric", "lower": -9 - i, "upper": 9 + i} for i in range(width - 1)}
    label = {"column": "y", "positive": True, "negative": False}
    made = Domain.model_validate({"label": label, "norm_bound": 1.3, "intercept": 0.7, "columns": columns})
    objective = Objective(Logistic(), 1e-6, rows)
    with open_passes(open_lake(table, made), made, Lattice(1.3)) as passes:
        found = minimise(objective, passes, certifiable(objective, 1.3, made.width))
    assert found.certified


def test_any_partitioning_gives_the_same_minimiser(tmp_path: Path) -> None:
    table = frame()
    weights = []
    for parts in (1, 2, 7, 64):
        folder = tmp_path / str(parts)
        folder.mkdir()
        for i, piece in enumerate(np.array_split(np.arange(len(table)), parts)):
            table.iloc[piece].to_parquet(folder / f"{i}.parquet")
        weights.append(solve(str(folder), Logistic(), 1e-4, len(table)).weights)
    for other in weights[1:]:
        assert np.array_equal(other, weights[0])


@pytest.mark.cluster
def test_workers_give_the_same_bits_with_and_without_kept_rows(
    two_workers: Any, clinic: Callable[..., tuple[Path, Domain]]
) -> None:
    path, domain = clinic(3000, 3)
    lake = open_lake(path, domain)
    found = []
    for client, memory in ((None, None), (None, 0), (two_workers, None), (two_workers, 0), (two_workers, 150_000)):
        with open_passes(lake, domain, Lattice(domain.norm_bound), client=client, memory=memory) as passes:
            found.append(minimise(Objective(Logistic(), 1e-3, 3000), passes, 1e-9).weights)
    for other in found[1:]:
        assert np.array_equal(other, found[0])


def test_kept_rows_never_exceed_their_limit_and_are_read_again(clinic: Callable[..., tuple[Path, Domain]]) -> None:
    from daskrado.statistics.risk import RiskSum

    path, domain = clinic(3000, 3)
    lake = open_lake(path, domain)
    columns = sum(2 if column.fill is not None else 1 for column in domain.columns.values())
    one = 1000 * (Layout.of(domain).row_bytes + 1)
    assert one < 1000 * (4 * (columns + 2) + 1)  # at most four bytes a column, not eight a feature
    with open_passes(lake, domain, Lattice(domain.norm_bound), memory=2 * one + 10) as passes:
        for _ in range(2):
            passes.sum(RiskSum(domain.width, Logistic(), np.zeros(domain.width), passes.lattice, lake.rows))
        assert passes._store.used == 2 * one
        assert sum(passes._store.get(form) is not None for form in passes._store._kept) == 2


def test_private_objects_show_nothing() -> None:
    found = solve(frame(50), Logistic(), 0.1, 50)
    assert repr(found) == "<Solution: private>"
    assert "private" in repr(solver._Point(found.weights, 1.0, found.weights, None, None))  # type: ignore[arg-type]


def test_without_a_minimiser_the_solver_stops_uncertified() -> None:
    """Separable rows and no ridge: the risk falls for ever."""
    table = frame(60)
    table["y"] = table["x0"] > 0
    domain = domain_of()
    with open_passes(open_lake(table, domain), domain, Lattice(1.3)) as passes:
        found = minimise(Objective(Logistic(), 0.0, 60), passes, 1e-300, max_passes=25)
    assert not found.certified
    assert np.isfinite(found.weights).all()


@pytest.mark.parametrize("loss", [Huber(0.5), Logistic()], ids=lambda loss: loss.name)
@pytest.mark.parametrize("length", [0.0, 1.2, 30.0])
def test_gradient_and_hessian_are_the_naive_sums_however_few_rows_are_bent(loss: Loss, length: float) -> None:
    """Row by row in plain Python; at length 0 no row of a hinge is bent, at 30 few are."""
    from daskrado.statistics.base import Rows, Summary
    from daskrado.statistics.risk import Risk, RiskSum

    draw, lattice = np.random.default_rng(2), Lattice(1.7)
    grid = lattice.quantise(np.asfortranarray(draw.normal(size=(5000, 3))))
    x, y = grid * lattice.step, np.where(draw.random(5000) < 0.5, 1, -1).astype(np.int8)
    weights = length * np.array([0.6, -0.8, 0.1])
    statistic = RiskSum(3, loss, weights, lattice, 5000)
    found = Risk.of(Summary(statistic, lattice, statistic.partial(Rows(grid, y)), 5000))
    margins = y * (x @ weights)
    values, slopes, bends = loss.value(margins), loss.slope(margins), loss.curvature(margins)
    assert found.value == pytest.approx(values.sum(), rel=1e-12)
    assert found.gradient == pytest.approx(
        sum(s * yi * row for s, yi, row in zip(slopes, y, x, strict=True)), abs=1e-9
    )
    hessian = sum(b * np.outer(row, row) for b, row in zip(bends, x, strict=True))
    assert found.hessian == pytest.approx(hessian, abs=5000 * 2.0**-19 * (loss.smoothness or 1.0) * 1.7**2)
    if loss.name == "huber" and length != 1.2:
        assert (bends > 0).mean() < 0.5
