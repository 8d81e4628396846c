"""A finite universe: the product of declared categories and bins, and counting queries over its cells. All public."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskrado.errors import UsageError
from daskrado.table.compact import Compact
from daskrado.table.domain import BooleanColumn, CategoricalColumn, Domain, NumericColumn
from daskrado.table.encoded_table import Labels
from daskrado.table.products import Features

MAX_CELLS = 2_000_000


@dataclass(frozen=True)
class Axis:
    """One column of a universe: the names of its values, and where the encoded rows hold it (None for the label).

    ``signed``: a boolean column, one feature of +1 and -1; else one feature for each value.
    """

    name: str
    values: tuple[str, ...]
    start: int | None
    signed: bool = False

    def codes(self, x: Features, y: Labels) -> NDArray[np.int64]:
        """The value of each encoded row, as a position: where a one-hot part is largest, or a sign.

        -1 in a row that counts as nothing, all of whose parts are 0.
        """
        if self.start is None:
            return np.where(y == 0, -1, y > 0).astype(np.int64)
        if isinstance(x, Compact):
            return x.codes(self.start)
        if self.signed:
            sign = x[:, self.start]
            return np.where(sign == 0, -1, sign > 0).astype(np.int64)
        part = x[:, self.start : self.start + len(self.values)]
        found = part.argmax(axis=1)
        return np.where(part[np.arange(len(part)), found] > 0, found, -1).astype(np.int64)

    def positions(self, wanted: Any) -> list[int]:
        """Where some values are, by name; a value that was not declared is refused."""
        items = wanted if isinstance(wanted, list | tuple | set | frozenset) else [wanted]
        if not items:
            raise UsageError(f"query: column {self.name!r} lists no value")
        found = []
        for item in items:
            text = str(item).lower() if isinstance(item, bool) else str(item)
            if text not in self.values:
                shown = ", ".join(self.values[:12]) + (", ..." if len(self.values) > 12 else "")
                raise UsageError(f"query: {self.name} = {item!r} is outside the universe; allowed: {shown}")
            found.append(self.values.index(text))
        return found


@dataclass(frozen=True)
class Universe:
    """Cells are numbered in row-major order of the axes."""

    axes: tuple[Axis, ...]

    @classmethod
    def of(cls, domain: Domain, columns: Sequence[str]) -> Universe:
        """The universe of some columns of a Domain; the label column may be one of them."""
        if not columns or len(set(columns)) < len(columns):
            raise UsageError(f"a universe names at least one column, each once, got {list(columns)}")
        if domain.kernel is not None:
            raise UsageError("universe: the domain's kernel mixes every column into every feature; drop the kernel")
        starts, at = {}, 0
        for name, column in domain.columns.items():
            starts[name] = at
            at += column.size + column.flags
        axes = []
        for name in columns:
            if name == domain.label.column:
                no, yes = domain.label.pair
                axes.append(Axis(name, (_text(no), _text(yes)), None))
                continue
            if name not in domain.columns:
                raise UsageError(f"universe: the domain has no column {name!r}; it has {', '.join(domain.columns)}")
            column = domain.columns[name]
            axes.append(Axis(name, _values(name, column), starts[name], signed=isinstance(column, BooleanColumn)))
        universe = cls(tuple(axes))
        if universe.size > MAX_CELLS:
            shape = " x ".join(str(len(axis.values)) for axis in axes)
            raise UsageError(
                f"the universe has {universe.size:,} cells ({shape}); at most {MAX_CELLS:,} fit in memory: "
                "take fewer columns or coarser bins"
            )
        return universe

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of values of each axis."""
        return tuple(len(axis.values) for axis in self.axes)

    @property
    def size(self) -> int:
        """Number of cells."""
        return math.prod(self.shape)

    def cells(self, where: Mapping[str, Any]) -> tuple[NDArray[np.intp], ...]:
        """The cells that a conjunction selects, as an open mesh that indexes an array of the universe's shape.

        ``where`` gives for each column one value, or a list of them; an empty one selects everything.
        """
        names = [axis.name for axis in self.axes]
        for name in where:
            if name not in names:
                raise UsageError(f"query: column {name!r} is outside the universe; it has {', '.join(names)}")
        chosen = [
            sorted(set(axis.positions(where[axis.name]))) if axis.name in where else range(len(axis.values))
            for axis in self.axes
        ]
        return np.ix_(*chosen)


def _values(name: str, column: Any) -> tuple[str, ...]:
    if isinstance(column, BooleanColumn):
        return ("false", "true")
    if isinstance(column, CategoricalColumn):
        return (*(_text(value) for value in column.values), *(("other",) if column.other else ()))
    assert isinstance(column, NumericColumn)
    if column.bins is None:
        raise UsageError(f"universe: column {name!r} is a number without bins; give it bins in the domain")
    return tuple(feature[len(name) :] for feature in column.feature_names(name))


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
