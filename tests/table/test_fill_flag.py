"""nulls: {fill: VALUE, flag: false}: nulls are read as the value, and have no feature of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from daskrado.models.linear import LinearModel
from daskrado.privacy.statement import PrivacyStatement
from daskrado.table.domain import Domain

COLUMNS: dict[str, dict[str, Any]] = {
    "age": {"kind": "numeric", "lower": 0, "upper": 10},
    "dose": {"kind": "numeric", "lower": 0, "upper": 10, "bins": [2, 5]},
    "ward": {"kind": "categorical", "values": ["a", "b"]},
    "smoker": {"kind": "boolean"},
}
FILLS = {"age": 4, "dose": 3, "ward": "b", "smoker": False}
LABEL = {"column": "y", "positive": 1, "negative": 0}
ROWS = pd.DataFrame(
    {
        "age": [1.0, None, 9.0, np.inf],
        "dose": [None, 1.0, 9.0, 3.0],
        "ward": ["a", None, "c", "b"],
        "smoker": pd.array([True, None, False, None], dtype="boolean"),
    }
)
FILLED = pd.DataFrame(
    {
        "age": [1.0, 4.0, 9.0, 4.0],
        "dose": [3.0, 1.0, 9.0, 3.0],
        "ward": ["a", "b", "c", "b"],
        "smoker": pd.array([True, False, False, False], dtype="boolean"),
    }
)


def domain(**nulls: Any) -> Domain:
    columns = {n: {**column, "nulls": {"fill": FILLS[n], **nulls}} for n, column in COLUMNS.items()}
    return Domain.model_validate({"label": LABEL, "columns": columns})


def model(own: Domain) -> LinearModel:
    return LinearModel(own, np.linspace(-1, 1, own.width), PrivacyStatement.none(), "test", {})


def test_there_is_no_feature_for_nulls() -> None:
    quiet, flagged = domain(flag=False), domain()
    assert flagged.width == quiet.width + 4
    assert [name for name in flagged.feature_names if "is null" not in name] == list(quiet.feature_names)
    assert quiet.largest_norm == pytest.approx(5**0.5)
    assert quiet.digest() != flagged.digest() == domain(flag=True).digest()  # older files keep their digests


def test_a_null_is_its_fill_to_the_last_bit() -> None:
    own = model(domain(flag=False))
    assert own.margins(ROWS).tolist() == own.margins(FILLED).tolist()
    plain = model(Domain.model_validate({"label": LABEL, "columns": COLUMNS}))
    assert own.margins(FILLED).tolist() == plain.margins(FILLED).tolist()


def test_sql_says_the_same() -> None:
    duckdb = pytest.importorskip("duckdb")
    own = model(domain(flag=False))
    frame = ROWS.assign(smoker=ROWS["smoker"].astype(object).where(ROWS["smoker"].notna(), None))
    with duckdb.connect() as database:
        database.execute("CREATE TABLE lake (age DOUBLE, dose DOUBLE, ward VARCHAR, smoker BOOLEAN)")
        values = [[None if pd.isna(v) else v for v in row] for row in frame.itertuples(index=False)]
        database.executemany("INSERT INTO lake VALUES (?, ?, ?, ?)", values)
        found = [row[-1] for row in database.execute(own.sql("lake")).fetchall()]
    assert found == pytest.approx(own.margins(ROWS).tolist(), abs=1e-9)
