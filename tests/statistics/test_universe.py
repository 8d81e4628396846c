"""Axes of a universe count what the rows hold, whatever the values are called."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from daskrado.lake.collect import collect
from daskrado.lake.scan import open_lake
from daskrado.statistics.counts import Histogram
from daskrado.statistics.universe import Universe
from daskrado.table.compact import Layout
from daskrado.table.domain import Domain
from daskrado.table.lattice import Lattice
from daskrado.table.yaml_file import parse


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ({"kind": "categorical", "values": ["false", "true"], "other": False}, ["false", "true"]),
        ({"kind": "categorical", "values": ["true", "false"], "other": False}, ["false", "true"]),
        ({"kind": "categorical", "values": ["false", "true"]}, ["false", "true", "neither"]),
        ({"kind": "boolean"}, [False, True]),
    ],
)
def test_values_called_true_and_false_are_counted_as_they_are(column: dict, values: list) -> None:
    drawn = np.minimum(np.random.default_rng(1).geometric(0.6, size=300), len(values)) - 1
    frame = pd.DataFrame({"flag": [values[i] for i in drawn], "y": np.arange(300) % 3 == 0})
    label = {"column": "y", "positive": True, "negative": False}
    domain = parse(Domain, {"label": label, "norm_bound": 2.0, "columns": {"flag": column}}, "test")
    universe = Universe.of(domain, ["flag", "y"])
    summary = collect(Histogram(domain.width, universe), open_lake(frame, domain), domain, Lattice(2.0))
    counts = summary.vector.reshape(universe.shape)
    for value in values:
        for truth in (False, True):
            name = "other" if value == "neither" else value
            expected = int(((frame.flag == value) & (frame.y == truth)).sum())
            assert counts[universe.cells({"flag": name, "y": truth})].sum() == expected


def test_a_row_that_counts_as_nothing_has_no_code() -> None:
    """Not 255, which -1 is in a byte."""
    domain = Domain.model_validate(
        {
            "label": {"column": "y", "positive": 1, "negative": 0},
            "columns": {"ward": {"kind": "categorical", "values": ["a", "b"]}},
        }
    )
    rows = Layout.of(domain).empty(2)
    rows.one[:], rows.parts[0][:] = [700, 0], [[1, 0]]
    assert rows.codes(0).tolist() == [1, -1]
