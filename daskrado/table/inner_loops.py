"""The inner loops of a pass: compiled for large lakes, else in NumPy.

The NumPy forms say what is meant; the compiled ones make fewer trips through memory and give the same bits.
Compiling costs a worker some seconds, once per machine; :func:`compile_loops` is called where a lake is large enough
to repay it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

SCALED, ONE_HOT, FLAG, CONSTANT = range(4)  # what becomes of a column
REPAID_CELLS = 10_000_000  # rows times features of a lake from which on compiling pays

_log = logging.getLogger(__name__)
_compiled: dict[str, Callable[..., Any]] = {}


def compile_loops() -> None:
    """Use the compiled forms from now on in this process, if they can be compiled."""
    if _compiled:
        return
    import numba  # half a second: only where it is needed

    if numba.config.DISABLE_JIT:
        return
    try:
        from daskrado.table import compiled_loops as compiled
    except Exception as error:  # a compiler that does not work here costs speed, not the run
        _log.info("inner loops are not compiled: %s", type(error).__name__)
        return
    _compiled.update(encode=compiled.encode, signed_sums=compiled.signed_sums)


class Sources:
    """The columns of a table as the compiled encoder takes them: where each is in memory and what becomes of it."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._columns: list[tuple[int, int, float, float, int]] = []
        self._held: list[NDArray[Any]] = []  # what the addresses point to must stay

    def scaled(self, values: NDArray[Any], factor: float = 1.0, offset: float = 0.0) -> None:
        """One feature: ``values * factor - offset``, clipped to [-1, 1]."""
        held = self._hold(values, np.float64)
        self._columns.append((SCALED, held, factor, offset + 0.0, 1))  # an offset of -0.0 would turn zeros over

    def one_hot(self, index: NDArray[Any], width: int) -> None:
        """``width`` features, of which the one at ``index`` is 1."""
        self._columns.append((ONE_HOT, self._hold(index, np.int32), 0.0, 0.0, width))

    def flag(self, values: NDArray[np.bool_]) -> None:
        """One feature, 1 or 0."""
        self._columns.append((FLAG, self._hold(values, np.bool_), 0.0, 0.0, 1))

    def constant(self, value: float) -> None:
        """One feature that is the same in all rows."""
        self._columns.append((CONSTANT, 0, value, 0.0, 1))

    def _hold(self, values: NDArray[Any], kind: type[Any]) -> int:
        held = np.ascontiguousarray(values, dtype=kind)
        if held.shape != (self._rows,):
            raise ValueError(f"a column of shape {held.shape} in a table of {self._rows} rows")
        self._held.append(held)
        return int(held.ctypes.data)

    @cached_property
    def arrays(self) -> tuple[NDArray[Any], ...]:
        """Kinds, addresses, factors, offsets, widths: once all columns are told."""
        kinds = (np.int64, np.int64, np.float64, np.float64, np.int64)
        parts = zip(*self._columns, strict=True)
        return tuple(np.array(part, dtype=kind) for part, kind in zip(parts, kinds, strict=True))


def encoder() -> Callable[..., bool] | None:
    """The compiled encoder, where there is one; see ``EncodedTable.on_grid`` for its NumPy form."""
    return _compiled.get("encode")


def signed_sums(values: NDArray[np.float64], cells: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """For each column of ``values`` its sums over the rows of cells 0..count-1, less those over count..2 count-1."""
    if len(cells) != len(values) or (len(cells) and not 0 <= cells.min() <= cells.max() < 2 * count):
        raise ValueError(f"cells must be in 0..{2 * count - 1}, one for each row")
    sums = np.empty((values.shape[1], count), dtype=np.int64)
    loop = _compiled.get("signed_sums")
    if loop is not None and values.dtype == np.float64 and values.flags.writeable and cells.flags.carray:
        loop(values.T, cells, sums)
        return sums
    for feature, out in enumerate(sums):  # column by column: values are column-major
        both = np.bincount(cells, weights=values[:, feature], minlength=2 * count)
        np.subtract(both[:count], both[count:], out=out, casting="unsafe")
    return sums
