"""Lists and arrays given to estimators: one odd value refuses nothing, shows nowhere, and moves its own row alone."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import daskrado
import daskrado.sklearn as estimators
from daskrado.errors import UsageError
from daskrado.lake.collect import collect
from daskrado.lake.scan import open_lake
from daskrado.lake.units import units_of
from daskrado.ledger.ledger import Ledger
from daskrado.privacy.protect import Protect
from daskrado.sklearn import base
from daskrado.statistics import MeanOperator
from daskrado.statistics.number_moments import NumberMoments
from daskrado.table.lattice import Lattice

ODD = ["abc", "", [1, 2], [], {"a": 1}, None, float("nan"), float("inf"), Decimal("sNaN"), np.datetime64("NaT"), 1j]
ODD += [b"c", "\ud800", 10**5000, np.array([1, 2]), True, Ellipsis]


def _named(one: Any) -> str:
    """In the name of a test: a kind, or the type of what is odd."""
    return one if isinstance(one, str) and one.isalpha() else type(one).__name__


ROWS = [[0.5, 1], [1, 0.0], [0.25, 2], [-1, 1]]
LABELS = [1, 0, 1, 0]
IDS = ["a", "a", "b", "c"]
DOMAIN = {
    "label": {"column": "y", "positive": 1, "negative": 0},
    "columns": {
        "x0": {"kind": "numeric", "lower": -3, "upper": 3},
        "x1": {"kind": "numeric", "lower": -3, "upper": 3},
    },
    "norm_bound": 2.0,
}
FACTS: dict[str, Any] = {"dataset": "d", "epsilon": 0.1, "first_limit": (50, 0)}
KINDS: dict[str, Callable[[], Any]] = {
    "bounds": lambda: estimators.PrivateClassifier(bounds=(-3, 3), classes=(0, 1), learner="moments", **FACTS),
    "domain": lambda: estimators.PrivateClassifier(DOMAIN, learner="moments", **FACTS),
    "labels": lambda: estimators.LabelPrivateClassifier(bounds=(-3, 3), classes=(0, 1), **FACTS),
    "numbers": lambda: estimators.PrivateRegressor(bounds=(-3, 3), label_bounds=(0, 1), learner="moments", **FACTS),
}


def _objects(rows: list[Any]) -> Any:
    found = np.empty((len(rows), 2), dtype=object)
    for at, row in enumerate(rows):
        for place in range(2):
            found[at, place] = row[place]
    return found


FORMS: dict[str, Callable[[list[Any]], Any]] = {"list": list, "objects": _objects, "tuple": tuple}


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The jobs that estimators ran."""
    jobs: list[dict[str, Any]] = []

    def run(job: dict[str, Any], **how: Any) -> Any:
        jobs.append(job)
        return daskrado.run(job, **how)

    monkeypatch.setattr(base, "run", run)
    return jobs


def total(job: dict[str, Any]) -> np.ndarray:
    """The exact sum over the rows that an estimator gave to its job."""
    domain = job["domain"]
    statistic = (MeanOperator if domain.label.target == "sides" else NumberMoments)(domain.width)
    return np.asarray(collect(statistic, open_lake(job["lake"], domain), domain, Lattice(2.0, 12)).vector)


def moved(jobs: list[dict[str, Any]]) -> np.ndarray:
    """What the first two rows add, to the sum of all five and to that of the other three."""
    whole, rest = (total(job) for job in jobs[-2:])
    return whole - rest


CASES = [("bounds", "list", odd) for odd in ODD]
CASES += [(kind, form, odd) for kind in KINDS for form in FORMS for odd in ("abc", [1, 2], Decimal("sNaN"))]


@pytest.mark.parametrize(("kind", "form", "odd"), CASES, ids=_named)
def test_an_odd_cell_moves_its_own_row_alone(
    kind: str, form: str, odd: Any, read: list[dict[str, Any]], own_ledger: Path
) -> None:
    for rows, labels in (([*ROWS, [odd, 1]], [*LABELS, 1]), ([*ROWS[2:], [odd, 1]], [*LABELS[2:], 1])):
        model = KINDS[kind]().fit(FORMS[form](rows), labels)
        assert model.n_features_in_ == 2
    KINDS[kind]().fit(np.array(ROWS[:2]), np.array(LABELS[:2]))
    assert np.array_equal(moved(read[:2]), total(read[2]))
    with Ledger.open(own_ledger) as ledger:
        assert [entry.state.used for entry in ledger.entries()] == [True] * 3


LABEL_CASES = [*(("bounds", odd) for odd in ODD), *((kind, "abc") for kind in KINDS)]


@pytest.mark.parametrize(("kind", "odd"), LABEL_CASES, ids=_named)
def test_so_do_an_odd_label_and_an_odd_row(kind: str, odd: Any, read: list[dict[str, Any]]) -> None:
    for extra, label in (([0, 1], odd), (odd, 1)):
        for start in (0, 2):
            KINDS[kind]().fit([*ROWS[start:], extra], [*LABELS[start:], label])
        KINDS[kind]().fit(ROWS[:2], LABELS[:2])
        assert np.array_equal(moved(read[-3:-1]), total(read[-1]))


@pytest.mark.parametrize("odd", ODD, ids=_named)
@pytest.mark.parametrize("kind", ["array", "polars"])
def test_so_does_an_odd_id_of_a_person(kind: str, odd: Any, read: list[dict[str, Any]]) -> None:
    rows = np.array([*ROWS, [0.0, 1.0]])
    given = rows if kind == "array" else pl.DataFrame(rows, schema=["x0", "x1"])
    model = KINDS["domain"]().set_params(unit="who")
    weights = []
    for labels, ids in (([*LABELS, 1], [*IDS, odd]), (LABELS, IDS)):
        model.fit(given[: len(ids)], labels, units=ids)
        job = read[-1]
        lake, protect = open_lake(job["lake"], job["domain"]), Protect.model_validate(job["protect"])
        units = units_of(lake, protect, bytes(32), None)
        assert units is not None
        weights.append([int(own) for _, part in units.of_lake(lake) for own in part])
    assert weights[0][:4] == weights[1]
    assert [max(weights[1]) // own for own in weights[1]] == [2, 2, 1, 1]  # a person's rows share what one row counts


def test_rows_that_a_list_gave_are_known_again_as_an_array() -> None:
    """``score`` of them would be exact, and free."""
    model = KINDS["bounds"]().fit(ROWS, LABELS)
    for rows in (ROWS, np.array(ROWS), _objects(ROWS), tuple(ROWS)):
        with pytest.raises(UsageError, match="these rows are private"):
            model.score(rows, LABELS)


def test_the_shape_of_a_list_is_that_of_most_of_its_rows() -> None:
    with pytest.raises(ValueError, match="Expected 2D array, got 1D array"):
        KINDS["bounds"]().fit([1, 2, 3], [0, 1, 0])
    with pytest.raises(ValueError, match="X has 3 features, but the domain has 2"):
        KINDS["domain"]().fit([[1, 2, 3]] * 3 + [[1, 2]], [0, 1, 0, 1])


def test_a_private_score_takes_odd_cells_too() -> None:
    model = KINDS["bounds"]().fit([*ROWS * 20, ["abc", 1]], [*LABELS * 20, "abc"])
    score = daskrado.private_scorer("accuracy", epsilon=1.0)
    assert 0 <= score(model, [*ROWS * 20, ["abc", [1]]], [*LABELS * 20, None]) <= 1
