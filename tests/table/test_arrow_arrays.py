"""Conversions by buffers are the same as Arrow's own, which import pandas."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daskrado.table.arrow_arrays import as_text, as_texts, to_numpy, value_set, with_minus_one

TEXT = [pa.string(), pa.large_string(), pa.string_view()]
NUMBERS = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float16(), pa.float32(), pa.float64(), pa.decimal128(20, 2), pa.date32(), pa.timestamp("us")),
]


def by_arrow(items: list, kind: pa.DataType) -> pa.Array | None:
    try:
        return pa.array(items, type=kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return None


def same(found: pa.Array | None, wanted: pa.Array | None) -> bool:
    return found is None if wanted is None else found is not None and found.equals(wanted)


@given(st.lists(st.text(), min_size=1), st.sampled_from(TEXT))
def test_texts(items, kind) -> None:
    assert same(value_set(items, kind), by_arrow(items, kind))
    assert same(value_set(items, pa.dictionary(pa.int32(), kind)), by_arrow(items, kind))


@given(
    st.lists(
        st.one_of(
            st.integers(-3, 300),
            st.sampled_from(
                [s * 2**k + d for k in (7, 8, 15, 16, 24, 31, 32, 53, 63, 64) for s in (-1, 1) for d in (-1, 0, 1)]
            ),
        ),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from(NUMBERS),
)
def test_whole_numbers_at_the_ends_of_every_type(items, kind) -> None:
    assert same(value_set(items, kind), by_arrow(items, kind))


@given(st.lists(st.booleans(), min_size=1, max_size=20))
def test_truths(items) -> None:
    assert same(value_set(items, pa.bool_()), by_arrow(items, pa.bool_()))


@pytest.mark.parametrize(
    ("items", "kind"),
    [(["a"], pa.int64()), ([1], pa.string()), ([True], pa.int8()), ([1], pa.bool_()), (["a", 1], pa.string())],
)
def test_values_of_another_kind_are_none(items, kind) -> None:
    assert value_set(items, kind) is None


@given(st.lists(st.floats(), min_size=1), st.sampled_from([pa.float32(), pa.float64(), pa.int64()]))
def test_fractions(items, kind) -> None:
    found, wanted = value_set(items, kind), by_arrow(items, kind)
    assert (found is None) == (wanted is None)
    assert found is None or str(found) == str(wanted)


COLUMNS = [
    pa.array([True, False, None, True]),
    pa.array([1.5, None, float("nan"), -0.0, float("inf")]),
    *(pa.array([3, None, 0, 7], type=kind) for kind in NUMBERS[:8]),
    *(pa.array([3, None, 0, 7], type=kind) for kind in (pa.float16(), pa.float32(), pa.decimal128(20, 2))),
    pa.array(["a", None, "b"]),
    pa.nulls(3),
]


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: str(column.type))
def test_numpy_arrays_of_whole_and_cut_columns(column) -> None:
    """With nulls and without, from any place on: an offset must not be lost."""
    for data in (column, column.drop_null(), column.slice(1), column.drop_null().slice(1), column.slice(0, 0)):
        found, wanted = to_numpy(data), np.asarray(data.to_numpy(zero_copy_only=False))
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(found, wanted)


def test_a_place_that_is_null_is_minus_one() -> None:
    index = pa.array([2, None, 0], type=pa.int32())
    assert with_minus_one(index).to_pylist() == [2, -1, 0]
    assert with_minus_one(index).type == pa.int32()


def test_no_cell_stops_what_reads_texts() -> None:
    odd = pa.array([b"a", b"\xff", None, b"a"], pa.binary()).view(pa.string())
    assert as_texts(pa.chunked_array([odd])).to_pylist() == ["a", "\\xff", None, "a"]
    assert as_text(pd.Timestamp(np.datetime64("20000-01-01", "s"))) == ""
