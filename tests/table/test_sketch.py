"""The fused loop from columns to sums by bucket gives the bits of the definition, or steps aside."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from loop_forms import compiled_loops

from daskrado.statistics import HadamardRados, Rows
from daskrado.table.compact_encoding import CompactTable
from daskrado.table.domain import Domain
from daskrado.table.encoding import encode_table
from daskrado.table.lattice import Lattice


def domain_of(width: int, intercept: float = 0.0) -> Domain:
    columns = {f"x{i}": {"kind": "numeric", "lower": -3, "upper": 2 + i} for i in range(width)}
    label = {"column": "y", "positive": True, "negative": False}
    return Domain.model_validate({"label": label, "norm_bound": 1.2, "intercept": intercept, "columns": columns})


def table(rows: int, width: int, kind: Any = np.float64) -> pa.Table:
    draw = np.random.default_rng(rows)
    columns = {f"x{i}": draw.normal(size=rows).astype(kind) for i in range(width)}
    return pa.table({**columns, "y": draw.random(rows) < 0.4})


def sketches(
    domain: Domain, content: pa.Table, statistic: HadamardRados, bits: int, seeds: Any = None
) -> tuple[Any, np.ndarray]:
    """From the fused loop, and from the NumPy form on dense rows."""
    encoded, lattice = encode_table(domain, content), Lattice(domain.norm_bound, bits)
    assert encoded.labels is not None
    if seeds is None:
        seeds = np.random.default_rng(1).integers(0, 2**64, encoded.length, dtype=np.uint64)
    with compiled_loops(True):
        fused = statistic.of_table(CompactTable(encoded), encoded.labels, seeds, lattice)
    x = lattice.quantise(encoded.block(0, encoded.length, np.empty((encoded.length, domain.width), order="F")))
    with compiled_loops(False):
        return fused, statistic.partial(Rows(x, encoded.labels, seeds))


@pytest.mark.parametrize("kind", [np.float64, np.float32])
@pytest.mark.parametrize(("width", "intercept"), [(1, 0.0), (4, 0.0), (4, 0.3), (7, 1.0)])  # odd numbers, too
@pytest.mark.parametrize("zero", [True, False])
def test_the_same_bits(kind: Any, width: int, intercept: float, zero: bool) -> None:
    domain = domain_of(width, intercept)
    statistic = HadamardRados(domain.width, 64, bucket_zero=zero)
    fused, plain = sketches(domain, table(5000, width, kind), statistic, 20)
    assert fused.tobytes() == plain.tobytes()


@pytest.mark.parametrize("bits", [4, 20, 23])
def test_sums_that_share_a_word_are_emptied_in_time(bits: int) -> None:
    """On 23 bits a cell holds 255 rows: 40,000 rows in 128 cells pass that many times."""
    domain = domain_of(3)
    fused, plain = sketches(domain, table(40_000, 3), HadamardRados(3, 64), bits)
    assert fused.tobytes() == plain.tobytes()


def test_a_cell_that_is_too_full_for_one_tile_is_left_to_the_other_form() -> None:
    domain = domain_of(3)
    fused, _ = sketches(domain, table(3000, 3), HadamardRados(3, 64), 26, np.full(3000, 2**40, dtype=np.uint64))
    assert fused is None


@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_numbers_that_are_not_finite_are_left_to_the_other_form(odd: float) -> None:
    values = np.random.default_rng(2).normal(size=3000)
    values[2999] = odd
    content = table(3000, 2).set_column(0, "x0", pa.array(values))
    assert sketches(domain_of(2), content, HadamardRados(2, 16), 20)[0] is None


def test_other_columns_than_numbers_are_left_to_the_other_form() -> None:
    content = domain_of(1).model_dump(mode="json")
    content["columns"]["truth"] = {"kind": "boolean"}
    truth = pa.array(np.arange(50) % 3 == 0)
    domain = Domain.model_validate(content)
    assert sketches(domain, table(50, 1).append_column("truth", truth), HadamardRados(2, 16), 20)[0] is None
