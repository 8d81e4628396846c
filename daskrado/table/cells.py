"""Cells of columns: where each value lies with regard to the Domain. Every row lies in one cell of every column."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskrado.table.compact import Compact
from daskrado.table.domain import BooleanColumn, CategoricalColumn, Column, Domain, Fill, NumericColumn
from daskrado.table.label import Label
from daskrado.table.products import Features

_FAR = 1e99  # beyond all edges
NULL, CLIPPED, OTHER, POSITIVE = "null", "clipped", "other", "positive"


@dataclass(frozen=True)
class CellColumn:
    """The cells of one column, and where rows of the describing Domain hold it.

    ``places`` gives the cell of each one-hot feature, or of false and true; a null has the last cell. ``allowed``
    says of each cell whether the Domain takes such a value or lets its row count as nothing.
    """

    name: str
    cells: tuple[str, ...]
    places: tuple[int, ...]
    allowed: tuple[bool, ...]
    start: int
    signed: bool = False

    @property
    def width(self) -> int:
        """Number of features, with the flag of nulls."""
        return 2 if self.signed else len(self.places) + 1

    def codes(self, x: Features) -> NDArray[np.int64]:
        """The cell of each encoded row."""
        if isinstance(x, Compact):
            found, null = np.maximum(x.codes(self.start), 0), x.codes(self.start + self.width - 1) > 0
        else:
            part = x[:, self.start : self.start + self.width]
            found, null = part[:, 0] > 0 if self.signed else part[:, :-1].argmax(axis=1), part[:, -1] > 0
        cells = np.array(self.places, dtype=np.int64)[found.astype(np.int64)]
        return np.where(null, len(self.cells) - 1, cells)


def describing(domain: Domain) -> tuple[Domain, tuple[CellColumn, ...]]:
    """A Domain that takes any value, its own label among its features, and the cells that its rows lie in.

    It has bounds as edges of bins, an "other" and a flag for nulls everywhere, so that no row counts as nothing.
    """
    return _together(domain, (*domain.columns, domain.label.column), {})


def counting(
    domain: Domain, edges: Mapping[str, tuple[float, ...]], known: Sequence[str]
) -> tuple[Domain, tuple[CellColumn, ...]]:
    """A Domain of some numbers, with a cell between any two edges, and of ``known`` columns as they are described.

    The label is among the known ones where it is named.
    """
    return _together(domain, (*edges, *known), edges)


def _together(
    domain: Domain, names: Sequence[str], edges: Mapping[str, tuple[float, ...]]
) -> tuple[Domain, tuple[CellColumn, ...]]:
    label = domain.label
    columns: dict[str, Any] = {}
    found: list[CellColumn] = []
    at = 0
    for name in names:
        if name in edges:
            open_column, cells = _cut(name, domain.columns[name], edges[name], at)
        else:
            is_label = name == label.column
            open_column, cells = _open_label(label, at) if is_label else _open(name, domain.columns[name], at)
        columns[name] = open_column
        found.append(cells)
        at += cells.width
    changes = {
        "columns": columns,
        "label": label.model_copy(update={"column": "\0none"}),  # never read
        "norm_bound": math.sqrt(2.0 * len(columns)) + 1.0,  # above that of any row: nothing is clipped
        "intercept": 0.0,
        "kernel": None,
    }
    return domain.model_copy(update=changes), tuple(found)


def _open_label(label: Label, at: int) -> tuple[Column, CellColumn]:
    """The label as one more column: the cells are its sides, what is on neither, and nulls, wherever those count."""
    if label.bounds is not None:
        low, high = label.bounds
        return _open(label.column, NumericColumn(kind="numeric", lower=low, upper=high), at)
    if label.classes is not None:
        known = CategoricalColumn(kind="categorical", values=label.classes, other=False, trim=label.trim)
        return _open(label.column, known, at)
    cells = POSITIVE, "negative", OTHER, NULL
    allowed = (True, True, False, label.nulls in (POSITIVE, "negative"))
    if label.threshold is not None:
        edge = label.threshold if label.above is None else math.nextafter(label.threshold, math.inf)
        far = 1.0 + 2.0 * abs(edge)
        number = NumericColumn(
            kind="numeric", lower=edge - far, upper=edge + far, bins=(edge,), nulls=Fill(fill=edge)
        )
        return number, CellColumn(label.column, cells, (1, 0) if label.above is not None else (0, 1), allowed, at)
    other = {1: 0, -1: 1, 0: 2}[label.rest]
    places = (0,) * len(label.positives or ()) + (1,) * len(label.negatives or ()) + (other,)
    column = CategoricalColumn(
        kind="categorical", values=label.values, trim=label.trim, nulls=Fill(fill=label.values[0])
    )
    return column, CellColumn(label.column, cells, places, allowed, at)


def _cut(name: str, column: Column, edges: tuple[float, ...], at: int) -> tuple[Column, CellColumn]:
    """Numbers between edges, and beyond them."""
    far = {"lower": -_FAR, "upper": _FAR, "bins": edges, "transform": "none", "nulls": Fill(fill=0.0)}
    count = len(edges) + 1
    cells = (*map(str, range(count)), NULL)
    return column.model_copy(update=far), CellColumn(name, cells, tuple(range(count)), (True,) * (count + 1), at)


def _open(name: str, column: Column, at: int) -> tuple[Column, CellColumn]:
    filled = column.fill is not None
    if isinstance(column, NumericColumn):
        changes = {
            "lower": column.lower - 1.0,
            "upper": column.upper + 1.0,
            "bins": (column.lower, math.nextafter(column.upper, math.inf)),
            "transform": "none",
            "nulls": Fill(fill=column.lower),
        }
        cells = CellColumn(name, ("inside", CLIPPED, NULL), (1, 0, 1), (True, True, filled), at)
        return column.model_copy(update=changes), cells
    if isinstance(column, BooleanColumn):
        cells = CellColumn(name, ("false", "true", NULL), (0, 1), (True, True, filled), at, signed=True)
        return column.model_copy(update={"nulls": Fill(fill=False)}), cells
    count = len(column.values)
    cells = CellColumn(name, ("declared", OTHER, NULL), (0,) * count + (1,), (True, column.other, filled), at)
    return column.model_copy(update={"other": True, "nulls": Fill(fill=column.values[0])}), cells
