"""Reconstruction attacks find what they must, and nothing where there is nothing to find."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from daskrado.audit.reconstruction import (
    expected_alone,
    invert_hadamard,
    matched,
    recoverable,
    solve_signatures,
    span_test,
    spannable,
)
from daskrado.errors import UsageError
from daskrado.statistics import HadamardRados, Rows
from daskrado.statistics.rados import rados_from_sketch
from daskrado.table.domain import Domain
from daskrado.table.encoding import encode_table
from daskrado.table.lattice import Lattice
from daskrado.table.yaml_file import parse


def edges_of(m: int, d: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(m, d))


def test_lemma_nine_recovers_every_edge_from_as_many_rados_as_examples() -> None:
    edges = edges_of(30, 5)
    members = (np.random.default_rng(1).random((40, 30)) < 0.5).astype(float)
    found = solve_signatures(members @ edges, members)
    assert found.indices.tolist() == list(range(30))
    assert np.abs(found.edges - edges).max() < 1e-10


def test_fewer_rados_determine_only_the_edges_in_their_row_space() -> None:
    edges = edges_of(30, 5)
    members = (np.random.default_rng(2).random((20, 30)) < 0.5).astype(float)
    assert len(solve_signatures(members @ edges, members).indices) == 0
    members[0], members[1] = members[2], members[2]
    members[0, 7] = 1 - members[2, 7]  # two rados that differ in one example give it away
    found = solve_signatures(members @ edges, members)
    assert found.indices.tolist() == [7]
    assert np.abs(found.edges[0] - edges[7]).max() < 1e-10
    with pytest.raises(UsageError, match="signatures for"):
        solve_signatures(edges[:3], members)


def test_the_span_test_tells_members_from_strangers_without_any_signature() -> None:
    edges, strangers = edges_of(20, 50), edges_of(20, 50, 9)
    members = (np.random.default_rng(3).random((25, 20)) < 0.5).astype(float)
    test = span_test(members @ edges, np.concatenate([edges, strangers]))
    assert test.applies
    assert test.rank == 20
    assert test.inside.tolist() == [True] * 20 + [False] * 20
    assert test.residuals[:20].max() < 1e-12
    assert test.residuals[20:].min() > 0.3
    full = span_test(edges_of(60, 5), strangers[:, :5])
    assert not full.applies


ONE_HOT = {
    "ward": {"kind": "categorical", "values": ["a", "b", "c"]},
    "visits": {"kind": "numeric", "lower": 0, "upper": 30, "bins": [1, 5], "nulls": {"fill": 2}},
    "sex": {"kind": "categorical", "values": ["f", "m"], "other": False},
    "dose": {"kind": "numeric", "lower": 0, "upper": 7},
    "flag": {"kind": "boolean"},
}


@pytest.mark.parametrize("intercept", [0.0, 1.0])
@pytest.mark.parametrize("wards", ["abz", "ab", "a"])
@pytest.mark.parametrize("flags", [(True, False), (True,), (False,)])
def test_rows_of_a_domain_span_what_is_said_and_no_more(
    intercept: float, wards: str, flags: tuple[bool, ...]
) -> None:
    """Against the rank of 400 random rows, clipped and on the grid, and of 60 of their rados."""
    label = {"column": "y", "positive": 1, "negative": 0}
    content = {"label": label, "columns": ONE_HOT, "norm_bound": 1.5, "intercept": intercept}
    domain, draw = parse(Domain, content, "here"), np.random.default_rng(5)
    columns = {
        "ward": draw.choice(list(wards), 400),
        "visits": pa.array(draw.integers(0, 31, 400), mask=draw.random(400) < 0.2),
        "sex": draw.choice(["f", "m"], 400),
        "dose": draw.uniform(0, 7, 400),
        "flag": draw.choice(flags, 400).astype(bool),
    }
    table = encode_table(domain, pa.table(columns), label=False)
    rows = Lattice(1.5, 20).quantise(table.block(0, 400, np.empty((400, domain.width), order="F")))
    edges = rows * draw.choice([-1.0, 1.0], 400)[:, None]
    rados = (draw.random((60, 400)) < 0.5).astype(float) @ edges
    rank = int(np.linalg.matrix_rank(edges))
    assert span_test(rados, edges).rank == rank
    assert spannable(domain, rados) == rank


def test_hadamard_rados_invert_and_lone_examples_are_read_off() -> None:
    """The worked case of 400 rows in 1,024 buckets: about 260 of them stand alone."""
    draw = np.random.default_rng(4)
    x = np.asfortranarray(draw.integers(-1000, 1000, (400, 6)).astype(float))
    y = draw.choice(np.array([-1, 1], dtype=np.int8), 400)
    seeds = draw.integers(0, 2**64, 400, dtype=np.uint64)
    statistic = HadamardRados(6, 1024)
    sketch = statistic.partial(Rows(x, y, seeds)).reshape(6, 1024)
    mean, buckets = invert_hadamard(rados_from_sketch(sketch.astype(float)))
    assert mean == pytest.approx(y.astype(float) @ x)
    assert buckets == pytest.approx(sketch[:, 1:].T)
    held = np.bincount(statistic.cells(seeds), minlength=1024)
    alone = int((held == 1).sum())
    assert matched(buckets, x * y[:, None]) == alone
    assert expected_alone(1024, 400) == pytest.approx(271, abs=1)
    assert abs(alone - 271) < 60
    with pytest.raises(UsageError, match="powers of two"):
        invert_hadamard(np.zeros((3, 2)))


@pytest.mark.parametrize(
    ("kind", "count", "rows", "support", "broken"),
    [
        ("uniform", 100, 100, None, True),
        ("uniform", 99, 100, None, False),
        ("balanced", 128, 100, None, True),
        ("dp_feat", 200, 100, None, True),
        ("fixed_support", 10, 100, 1, True),
        ("fixed_support", 10, 100, 99, True),
        ("fixed_support", 10, 100, 50, False),
        ("fixed_support", 10, 100, 100, False),
        ("hadamard", 1024, 400, None, True),
        ("hadamard", 64, 100_000, None, False),
    ],
)
def test_sizes_alone_tell_which_sets_are_recoverable(
    kind: str, count: int, rows: int, support: int | None, broken: bool
) -> None:
    assert (recoverable(kind, count, rows, support) is not None) == broken


def test_a_match_is_up_to_sign_and_nothing_else() -> None:
    edges = edges_of(5, 3)
    assert matched(np.concatenate([-edges[:2], edges[3:4] * 1.01]), edges) == 2
    assert matched(np.zeros((0, 3)), edges) == 0
