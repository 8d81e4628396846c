"""Lists and arrays given to estimators: one odd value refuses nothing, shows nowhere, and moves its own row alone."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import daskrado
import daskrado.sklearn as estimators
from daskrado.errors import UsageError
from daskrado.lake.collect import collect
from daskrado.lake.joined import key_words
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
        weights.append(weights_of(read[-1]))
    assert weights[0][:4] == weights[1]
    assert [max(weights[1]) // own for own in weights[1]] == [2, 2, 1, 1]  # a person's rows share what one row counts


def weights_of(job: dict[str, Any]) -> list[int]:
    """What each row counts, of those that an estimator gave to its job."""
    lake, protect = open_lake(job["lake"], job["domain"]), Protect.model_validate(job["protect"])
    units = units_of(lake, protect, bytes(32), None)
    assert units is not None
    return [int(own) for _, part in units.of_lake(lake) for own in part]


COLUMNS: dict[str, Callable[[list[Any]], Any]] = {
    "arrow": pa.array,
    "chunked": lambda ids: pa.chunked_array([ids[:2], ids[2:]], pa.int64()),
    "table": lambda ids: pa.table({"who": pa.array(ids, pa.int64())}),
    "polars": pl.Series,
    "polars frame": lambda ids: pl.DataFrame({"who": ids}),
    "Int64": lambda ids: pd.Series(ids, dtype="Int64"),
    "Int64 frame": lambda ids: pd.DataFrame({"who": pd.Series(ids, dtype="Int64")}),
    "Int64 index": lambda ids: pd.Index(ids, dtype="Int64"),
    "int64[pyarrow]": lambda ids: pd.Series(ids, dtype="int64[pyarrow]"),
    "category": lambda ids: pd.Series(pd.Categorical.from_codes([0, 0, 1, 2, -1][: len(ids)], sorted({*ids[:4]}))),
}


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("kind", ["array", "polars"])
def test_a_null_among_large_ids_is_nobody_and_merges_no_people(
    kind: str, column: str, read: list[dict[str, Any]]
) -> None:
    """As floats, whole numbers from 2^53 on agree with their neighbours: one null would make one person of three."""
    rows = np.array([*ROWS, [0.0, 1.0]])
    given = rows if kind == "array" else pl.DataFrame(rows, schema=["x0", "x1"])
    ids = [2**60, 2**60, 2**60 + 1, 2**60 + 2]
    KINDS["domain"]().set_params(unit="who").fit(given, [*LABELS, 1], units=COLUMNS[column]([*ids, None]))
    found = weights_of(read[-1])
    assert found[4] == 0
    assert [max(found) // own for own in found[:4]] == [2, 2, 1, 1]


def no_text(values: list[str], place: int) -> pa.Array:
    """Texts of which one is bytes that are no text, as a file may hold them."""
    raw = [value.encode() for value in values]
    raw[place] = b"\xff\xfe"
    return pa.array(raw, pa.binary()).view(pa.string())


def test_an_id_that_is_no_text_is_somebody(read: list[dict[str, Any]]) -> None:
    KINDS["domain"]().set_params(unit="who").fit(np.array(ROWS), LABELS, units=no_text(IDS, 3))
    found = weights_of(read[-1])
    assert [max(found) // own for own in found] == [2, 2, 1, 1]


def test_a_key_that_is_no_text_matches_itself_alone() -> None:
    found = key_words(pa.chunked_array([no_text(["a", "b"], 1), no_text(["c", "d"], 1)]), "id").tolist()
    assert found[1] == found[3]
    assert len(set(found)) == 3
    assert found[0] == key_words(pa.chunked_array([pa.array(["a"]).dictionary_encode()]), "id")[0]


WARDS: dict[str, Any] = {
    "label": {"column": "y", "positive": "yes", "negative": "no"},
    "columns": {
        "ward": {"kind": "categorical", "values": ["a", "b"]},
        "x": {"kind": "numeric", "lower": 0, "upper": 1},
    },
}
TEXTS: dict[str, Any] = {"ward": ["a", "b", "a", "b"], "x": [0.1, 0.2, 0.3, 0.4], "y": ["yes", "no", "no", "yes"]}


@pytest.mark.parametrize("name", ["ward", "y"])
@pytest.mark.parametrize("form", ["arrow", "dictionary", "string[pyarrow]", "surrogate", "surrogate category"])
def test_a_fit_ends_and_knows_its_rows_whatever_text_a_cell_holds(name: str, form: str) -> None:
    """What is done after the charge may fail at no cell; the rows stay refused, in any order."""
    odd = no_text(TEXTS[name], 3)
    table = pa.table({**TEXTS, name: odd.dictionary_encode() if form == "dictionary" else odd})
    frame: Any = table
    if form == "string[pyarrow]":
        frame = pd.DataFrame(TEXTS).assign(**{name: pd.arrays.ArrowExtensionArray(pa.chunked_array([odd]))})
    elif form.startswith("surrogate"):
        values = [*sorted(set(TEXTS[name])), "\ud800"]
        coded = pd.Categorical.from_codes([0, 1, 0, 2], pd.Index(values, dtype=object))
        cells = coded if "category" in form else pd.Series(coded.astype(object), dtype=object)
        frame = pd.DataFrame(TEXTS).assign(**{name: cells})
    model = estimators.PrivateClassifier(WARDS, learner="moments", **FACTS).fit(frame)
    back = frame.take([3, 1, 0, 2])
    for rows in (frame, back):
        with pytest.raises(UsageError, match="these rows are private"):
            model.score(rows)


@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("s")], ids=str)
def test_a_day_that_no_calendar_has_ends_no_fit_either(kind: pa.DataType) -> None:
    domain = {**WARDS, "columns": {"day": {"kind": "date", "lower": "2020-01-01", "upper": "2026-01-01"}}}
    days = pa.array([1, 2, 3, 2**31 - 1 if kind == pa.date32() else 2**60], getattr(pa, f"int{kind.bit_width}")())
    table = pa.table({"day": days.view(kind), "y": TEXTS["y"]})
    model = estimators.PrivateClassifier(domain, learner="moments", **FACTS).fit(table)
    with pytest.raises(UsageError, match="these rows are private"):
        model.score(table)


JOBS: dict[str, dict[str, Any]] = {
    "rados": {
        "kind": "rados",
        "sets": [
            {
                "name": "h",
                "kind": "hadamard",
                "count": 16,
                "protect": {"relation": "replace_one", "unit": "r"},
                "budget": {"epsilon": 1.0, "delta": 1e-6},
            }
        ],
    },
    "tuning": {
        "learner": {"kind": "tuning", "grid": [{"kind": "gradient", "steps": steps} for steps in (1, 2)]},
        "rows": 400,
        "protect": {"relation": "add_remove", "unit": "r"},
        "budget": {"epsilon": 1.0, "delta": 1e-6},
    },
    "teachers": {
        "kind": "teachers",
        "teachers": {"count": 40, "learner": {"kind": "logistic", "ridge": 0.01}},
        "answers": {"mechanism": "gaussian", "queries": 10},
        "protect": {"relation": "add_remove", "unit": "r"},
        "budget": {"epsilon": 3.0, "delta": 1e-5},
    },
}


@pytest.mark.parametrize("kind", JOBS)
def test_an_id_of_a_record_that_is_no_text_stops_no_job(kind: str, tmp_path: Path, own_ledger: Path) -> None:
    texts = {"id": [f"i{at}" for at in range(400)], **{name: cells * 100 for name, cells in TEXTS.items()}}
    (tmp_path / "lake").mkdir()
    pq.write_table(pa.table({**texts, "id": no_text(texts["id"], 3)}), tmp_path / "lake" / "p.parquet")
    pq.write_table(pa.table({name: texts[name] for name in ("ward", "x")}), tmp_path / "q.parquet")
    job = {"dataset": "d", "lake": str(tmp_path / "lake"), "output": str(tmp_path / "out"), **JOBS[kind]}
    job |= {"queries": str(tmp_path / "q.parquet")} if kind == "teachers" else {}
    limit = {"path": str(own_ledger), "first_limit": {"epsilon": 20.0, "delta": 1e-3}}
    daskrado.run({**job, "domain": {**WARDS, "id": "id"}, "ledger": limit}, write=kind == "teachers")
    with Ledger.open(own_ledger) as ledger:
        assert {entry.state.used for entry in ledger.entries()} == {True}


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
