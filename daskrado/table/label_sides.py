"""Which side of the label each item of its column is on, or which number it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from daskrado.table.arrow_arrays import null_mask, places_or_none, to_numpy, trimmed, value_set
from daskrado.table.label import Label
from daskrado.table.type_hints import is_number, values_hint
from daskrado.table.yaml_file import shown

MISSING, OUTSIDE = np.int8(0), np.int8(2)  # no value; a value on neither side
LABEL_BITS = 11  # a number has so many bits between its bounds: sums of 2^40 of them, times rows, fit in 64
_SIDES = {"positive": np.int8(1), "negative": np.int8(-1)}


def label_problem(label: Label, kind: pa.DataType) -> str | None:
    """Why a label column of this Arrow type does not fit the Domain; None if it does."""
    if label.threshold is not None or label.bounds is not None:
        what = "a threshold on numbers" if label.bounds is None else "a number"
        said = f"is {kind}, but the Domain's label is {what}; give positive and negative values"
        return None if is_number(kind) else said
    fits = value_set(label.values, kind) is not None
    said = f"is {kind}, but the Domain's label values are {shown(label.values)}"
    return None if fits else said + values_hint(label.values, kind)


def label_numbers(label: Label, data: pa.Array) -> NDArray[np.int16]:
    """Numbers in steps of 2^-LABEL_BITS of half their bounds: the middle of the cell, always odd; MISSING is 0.

    >>> label = Label(column="rings", kind="number", bounds=(0, 2))
    >>> (label_numbers(label, pa.array([-5.0, 0.0, 1.0, 2.0, 9.0, None])) / 2**LABEL_BITS).round(3).tolist()
    [-1.0, -1.0, 0.0, 1.0, 1.0, 0.0]
    """
    assert label.bounds is not None
    low, high = label.bounds
    there, numbers = _numbers(data)
    cells = np.floor((np.clip(numbers, low, high) - low) / (high - low) * (1 << LABEL_BITS))
    steps = 2 * np.clip(np.nan_to_num(cells), 0, (1 << LABEL_BITS) - 1) + 1 - (1 << LABEL_BITS)
    found = np.zeros(len(data), dtype=np.int16)
    found[there] = np.where(np.isfinite(numbers), steps, MISSING).astype(np.int16)
    return found


def label_classes(label: Label, data: pa.Array) -> NDArray[np.int8] | None:
    """The number of each item's class, from 1; 0 for what is none. None where the type cannot hold the classes."""
    index = places_or_none(trimmed(data) if label.trim else data, label.values)
    return None if index is None else (index + 1).astype(np.int8)


def against_rest(classes: NDArray[Any], one: int) -> NDArray[np.int8]:
    """+1 for the class of this number, -1 for all others, 0 for what is none.

    >>> against_rest(np.array([2, 1, 0, 3], dtype=np.int8), 2).tolist()
    [1, -1, 0, -1]
    """
    return np.where(classes == one, 1, -1 * (classes != 0)).astype(np.int8)


def label_sides(label: Label, data: pa.Array) -> NDArray[np.int8] | None:
    """+1 or -1 for each item, MISSING or OUTSIDE; None where the column's type cannot hold the label's values.

    A null is what the label's ``nulls`` says; of a threshold's numbers, one that is not finite is a null.
    """
    if label.threshold is not None:
        found = _beyond(label, data)
    else:
        index = places_or_none(trimmed(data) if label.trim else data, label.values)
        if index is None:
            return None
        rest = np.int8(label.rest) if label.rest else OUTSIDE
        sides = [1] * len(label.positives or ()) + [-1] * len(label.negatives or ())
        found = np.array([*sides, rest], dtype=np.int8)[index]  # -1 is the last
        found[null_mask(data)] = MISSING
    if (side := _SIDES.get(label.nulls)) is not None:
        found[found == MISSING] = side
    return found


def _beyond(label: Label, data: pa.Array) -> NDArray[np.int8]:
    """The sides of numbers, by the threshold."""
    found = np.zeros(len(data), dtype=np.int8)
    there, numbers = _numbers(data)
    hit = numbers > label.above if label.above is not None else numbers < float(label.below or 0.0)
    found[there] = np.where(np.isfinite(numbers), 2 * hit.astype(np.int8) - np.int8(1), MISSING)
    return found


def _numbers(data: pa.Array) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Where a column has values, and those."""
    there = ~null_mask(data)
    if not there.any():
        return there, np.zeros(0)
    known = data.drop_null()
    return there, to_numpy(known.cast(pa.float64()) if pa.types.is_decimal(known.type) else known).astype(np.float64)
