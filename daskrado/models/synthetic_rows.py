"""Synthetic rows drawn from a released histogram: post-processing, with public, seeded randomness."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from daskrado.statistics.universe import Axis, Universe
from daskrado.table.domain import BooleanColumn, CategoricalColumn, DateColumn, Domain, NumericColumn


def synthetic_rows(domain: Domain, universe: Universe, histogram: Any, rows: int, seed: int) -> pa.Table:
    """So many rows of the universe's columns, in the types and units of the Domain.

    A binned number is drawn uniformly within its bin; a category outside the declared ones becomes "other", or the
    first whole number that was not declared.
    """
    chances = np.asarray(histogram, dtype=np.float64).ravel()
    generator = np.random.default_rng(seed)
    cells = generator.choice(len(chances), size=rows, p=chances / chances.sum())
    codes = np.unravel_index(cells, universe.shape)
    return pa.table(
        {axis.name: _column(domain, axis, code, generator) for axis, code in zip(universe.axes, codes, strict=True)}
    )


def _column(domain: Domain, axis: Axis, code: Any, generator: np.random.Generator) -> pa.Array:
    if axis.start is None:
        return pa.array(domain.label.pair).take(pa.array(code))
    column = domain.columns[axis.name]
    if isinstance(column, BooleanColumn):
        return pa.array(code.astype(bool))
    if isinstance(column, CategoricalColumn):
        values: list[Any] = list(column.values)
        if column.other:
            values.append("other" if isinstance(values[0], str) else _unused(values))
        return pa.array(values).take(pa.array(code))
    assert isinstance(column, NumericColumn)
    assert column.bins is not None
    edges = np.array([column.lower, *column.bins, column.upper])
    drawn = generator.uniform(edges[code], edges[code + 1])
    return pa.array(np.floor(drawn).astype("datetime64[D]")) if isinstance(column, DateColumn) else pa.array(drawn)


def _unused(values: list[Any]) -> Any:
    return max(int(value) for value in values) + 1 if not isinstance(values[0], bool) else None
