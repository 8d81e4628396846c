"""kind: describe. Shares against counts by hand, and noise against the sensitivity."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import daskrado
from daskrado.errors import UsageError
from daskrado.ledger.ledger import Ledger
from daskrado.privacy.accountant import gaussian_mu
from daskrado.table.cells import describing
from daskrado.table.domain import Domain
from daskrado.table.yaml_file import parse

DOMAIN: dict[str, Any] = {
    "label": {"column": "sick", "positive": "yes", "negative": "no"},
    "norm_bound": 2.0,
    "columns": {
        "age": {"kind": "numeric", "lower": 20, "upper": 80, "nulls": {"fill": 50}},
        "dose": {"kind": "numeric", "lower": 0, "upper": 7, "transform": "log1p"},
        "visits": {"kind": "numeric", "lower": 0, "upper": 30, "bins": [1, 5]},
        "ward": {"kind": "categorical", "values": ["a", "b"], "other": False},
        "town": {"kind": "categorical", "values": ["x"], "nulls": {"fill": "x"}},
        "smoker": {"kind": "boolean"},
    },
}
ROWS = pd.DataFrame(
    {
        "age": [20.0, None, 95.0, 80.0, np.inf, 19.0, 50.0, 50.0],
        "dose": [0.0, 1.0, 9.0, np.nan, 7.0, -1.0, 1.0, 1.0],
        "visits": [0.0, 1.0, 31.0, 30.0, 2.0, 2.0, None, 3.0],
        "ward": ["a", "b", "c", None, "a", "a", "a", "b"],
        "town": ["x", "y", None, "x", "x", "x", "x", "x"],
        "smoker": [True, False, None, True, True, True, True, False],
        "sick": ["yes", "no", "yes", "yes", "perhaps", None, "no", "no"],
    }
)
COUNTS = {  # by hand
    "age": {"inside": 4, "clipped": 2, "null": 2},
    "dose": {"inside": 5, "clipped": 2, "null": 1},
    "visits": {"inside": 6, "clipped": 1, "null": 1},
    "ward": {"declared": 6, "other": 1, "null": 1},
    "town": {"declared": 6, "other": 1, "null": 1},
    "smoker": {"false": 2, "true": 5, "null": 1},
    "sick": {"positive": 3, "negative": 3, "other": 1, "null": 1},
    "the whole row": {"usable": 3, "unusable": 5},  # rows 0, 1 and 7
}


def content(**changes: Any) -> dict[str, Any]:
    keys = {"kind": "describe", "dataset": "d", "lake": ROWS, "domain": DOMAIN, "output": "out"}
    protect = {"relation": "replace_one", "unit": "one patient"}
    return (
        keys
        | {"protect": protect, "budget": {"epsilon": 1.0}, "ledger": {"first_limit": {"epsilon": 9, "delta": 1e-5}}}
        | changes
    )


def shares(result: Any) -> dict[str, dict[str, float]]:
    return {
        column: {share.cell: share.value for share in found} for column, found in result.value.by_column().items()
    }


def test_exact_shares_are_counts_over_rows() -> None:
    result = daskrado.run(content(private=False, protect=None, budget=None) | {"ledger": {}}, write=False)
    expected = {column: {cell: count / 8 for cell, count in cells.items()} for column, cells in COUNTS.items()}
    assert shares(result) == expected


@pytest.mark.parametrize(
    ("relation", "moved"), [("add_remove", 8), ("replace_one", 16)]
)  # seven columns and the row as a whole
def test_noise_is_that_of_one_row_in_every_column(relation: str, moved: int) -> None:
    protect = {"relation": relation, "unit": "one patient"}
    pure = daskrado.run(content(protect=protect), write=False)
    assert pure.release.noise_std["cells"] == pytest.approx(math.sqrt(2) * moved, rel=1e-6)  # Laplace of L1 / epsilon
    both = daskrado.run(content(protect=protect, budget={"epsilon": 1.0, "delta": 1e-6}), write=False)
    # The Gaussian mechanism of the L2 sensitivity, by the exact curve.
    assert both.release.noise_std["cells"] == pytest.approx(math.sqrt(moved) / gaussian_mu(1.0, 1e-6), rel=1e-6)


def test_a_secret_number_of_rows_is_estimated_from_the_release(tmp_path: Path) -> None:
    many = pd.concat([ROWS] * 4000, ignore_index=True)
    protect = {"relation": "add_remove", "unit": "one patient"}
    result = daskrado.run(content(lake=many, protect=protect, output=str(tmp_path / "out")))
    found = shares(result)
    for column, cells in COUNTS.items():
        for cell, count in cells.items():
            assert found[column][cell] == pytest.approx(count / 8, abs=0.01)
    saved = json.loads((tmp_path / "out" / "shares.json").read_text())
    assert saved["sick"]["positive"]["share"] == found["sick"]["positive"]
    assert "Shares of rows" in (tmp_path / "out" / "report.html").read_text()
    assert result.rows is None


def test_only_whole_rows_are_protected(own_ledger: Path) -> None:
    protect = {"relation": "label_flip", "unit": "one label"}
    with pytest.raises(UsageError, match="add_remove or replace_one, not label_flip"):
        daskrado.run(content(protect=protect), write=False)
    daskrado.run(content(), write=False)
    assert [entry.state for entry in Ledger.open(own_ledger).entries("d")] == ["published"]


def test_the_describing_domain_takes_every_value() -> None:
    domain, columns = describing(parse(Domain, DOMAIN, "here"))
    assert sum(column.width for column in columns) == domain.width
    assert all(column.fill is not None for column in domain.columns.values())
    assert domain.largest_norm < domain.norm_bound
