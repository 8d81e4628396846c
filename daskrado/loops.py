"""The inner loops of a pass: compiled for large lakes, else in NumPy.

The NumPy forms say what is meant; the compiled ones make fewer trips through memory and give the same bits.
Compiling costs a worker some seconds, once per machine; :func:`compile_loops` is called where a lake is large enough
to repay it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

REPAID_CELLS = 10_000_000  # rows times features of a lake from which on compiling pays

_compiled: dict[str, Callable[..., Any]] = {}


def compile_loops() -> None:
    """Use the compiled forms from now on in this process."""
    if not _compiled:
        from daskrado import compiled

        _compiled.update(encode=compiled.encode, signed_sums=compiled.signed_sums)


class Sources:
    """The columns of a table as the compiled encoder takes them: where each is in memory and what becomes of it."""

    def __init__(self) -> None:
        self._columns: list[tuple[int, int, float, float, int]] = []
        self._held: list[NDArray[Any]] = []  # what the addresses point to must stay

    def scaled(self, values: NDArray[Any], factor: float = 1.0, offset: float = 0.0) -> None:
        """One feature: ``values * factor - offset``, clipped to [-1, 1]."""
        held = self._hold(values, np.float64)
        self._columns.append((0, held, factor, offset + 0.0, 1))  # an offset of -0.0 would turn zeros over

    def one_hot(self, index: NDArray[Any], width: int) -> None:
        """``width`` features, of which the one at ``index`` is 1."""
        self._columns.append((1, self._hold(index, np.int32), 0.0, 0.0, width))

    def constant(self, value: float) -> None:
        """One feature that is the same in all rows."""
        self._columns.append((2, 0, value, 0.0, 1))

    def _hold(self, values: NDArray[Any], kind: type[Any]) -> int:
        held = np.ascontiguousarray(values, dtype=kind)
        self._held.append(held)
        return int(held.ctypes.data)

    @cached_property
    def arrays(self) -> tuple[NDArray[Any], ...]:
        """Kinds, addresses, factors, offsets, widths: once all columns are told."""
        kinds = (np.int64, np.int64, np.float64, np.float64, np.int64)
        parts = zip(*self._columns, strict=True)
        return tuple(np.array(part, dtype=kind) for part, kind in zip(parts, kinds, strict=True))


def encoder() -> Callable[..., bool] | None:
    """The compiled encoder, where there is one; its NumPy form is ``Lattice.quantise(EncodedTable.block(...))``."""
    return _compiled.get("encode")


def signed_sums(values: NDArray[np.float64], cells: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """For each column of ``values`` its sums over the rows of cells 0..count-1, less those over count..2 count-1."""
    sums = np.empty((values.shape[1], count), dtype=np.int64)
    if (loop := _compiled.get("signed_sums")) is not None:
        loop(values.T, cells, sums)
        return sums
    for feature, out in enumerate(sums):  # column by column: values are column-major
        both = np.bincount(cells, weights=values[:, feature], minlength=2 * count)
        np.subtract(both[:count], both[count:], out=out, casting="unsafe")
    return sums
