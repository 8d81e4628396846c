"""Moments of rows whose label is a number: the sensitivity by enumeration, and labels on their grid."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pyarrow as pa
import pytest

from daskrado.errors import UsageError
from daskrado.privacy.relations import Relation
from daskrado.statistics.base import Rows
from daskrado.statistics.number_moments import LABEL_WEIGHT, NumberMoments
from daskrado.table.domain import Domain
from daskrado.table.encoding import encode_table
from daskrado.table.label import Label
from daskrado.table.label_sides import LABEL_BITS, label_numbers
from daskrado.table.lattice import Lattice
from daskrado.table.yaml_file import parse


def _vector(x: np.ndarray, y: float) -> np.ndarray:
    """The normalised joint vector of one row, from its definition."""
    return np.concatenate([y * x, [LABEL_WEIGHT * y * y], np.outer(x, x)[np.triu_indices(len(x))]])


def test_no_two_rows_in_the_plane_are_farther_apart_than_declared() -> None:
    """All pairs on a grid of lengths, angles and labels; one row is along the first axis, for only angles count.

    The triangle is not turned with the plane, so both the triangle and the whole matrix are tried.
    """
    declared = NumberMoments(2).sensitivity(Relation.REPLACE_ONE).l2
    alone = NumberMoments(2).sensitivity(Relation.ADD_REMOVE).l2
    lengths, angles, labels = (0.0, 0.5, 1.0), np.linspace(0, math.pi, 61), np.linspace(-1, 1, 9)
    points = [
        _vector(length * np.array([math.cos(a), math.sin(a)]), y)
        for length, a, y in itertools.product(lengths, angles, labels)
    ]
    found = np.array(points)
    assert np.linalg.norm(found, axis=1).max() == pytest.approx(alone, rel=1e-12)
    squares = (found**2).sum(axis=1)
    worst = math.sqrt(float((squares[:, None] + squares[None] - 2 * found @ found.T).max()))
    assert worst <= declared + 1e-12
    assert worst >= 0.99 * declared  # p = q = 1 and x.x' = -1/2


def test_a_changed_label_is_no_flip() -> None:
    with pytest.raises(UsageError, match="no derived sensitivity under label_flip"):
        NumberMoments(3).sensitivity(Relation.LABEL_FLIP)


def test_sums_of_encoded_rows_are_those_of_exact_numbers() -> None:
    """Against the definition in floating point, up to half a step of the label and a step of the rows."""
    draw = np.random.default_rng(1)
    table = pa.table({"age": draw.uniform(0, 100, 500), "cost": draw.uniform(-20, 120, 500)})
    domain = parse(
        Domain,
        {
            "label": {"column": "cost", "kind": "number", "bounds": [0, 100]},
            "columns": {"age": {"kind": "numeric", "lower": 0, "upper": 100}},
            "norm_bound": 2.0,
        },
        "here",
    )
    encoded = encode_table(domain, table)
    rows = encoded.block(0, 500, np.empty((500, 2), order="F")).copy()
    lattice = Lattice(2.0, 16)
    assert encoded.labels is not None
    statistic = NumberMoments(2)
    found = statistic.split(statistic.partial(Rows(lattice.quantise(rows.copy(order="F")), encoded.labels)))
    y = np.clip(table["cost"].to_numpy(), 0, 100) / 50 - 1
    steps = {block.name: block.step(lattice) for block in statistic.blocks}
    np.testing.assert_allclose(found["mean"] * steps["mean"], rows.T @ y, atol=500 * 2.0**-LABEL_BITS * 1.1)
    assert found["label"][0] * steps["label"] == pytest.approx(float(y @ y), abs=500 * 2.0**-LABEL_BITS)
    second = (rows.T @ rows)[np.triu_indices(2)]
    np.testing.assert_allclose(found["second"] * steps["second"], second, atol=500 * 2 * 2 * lattice.step)


def test_a_number_is_in_the_middle_of_its_cell_and_never_0() -> None:
    label = Label(column="rings", bounds=(0, 30))
    numbers = np.concatenate([np.linspace(-5, 35, 5001), [0.0, 15.0, 30.0]])
    steps = label_numbers(label, pa.array(numbers))
    assert (steps % 2 == 1).all()
    assert np.abs(steps).max() == 2**LABEL_BITS - 1
    scaled = np.clip(numbers, 0, 30) / 15 - 1
    assert np.abs(steps * 2.0**-LABEL_BITS - scaled).max() <= 2.0**-LABEL_BITS + 1e-12
    odd = label_numbers(label, pa.array([None, math.nan, math.inf, -math.inf], pa.float64()))
    assert odd.tolist() == [0, 0, 0, 0]
    assert label_numbers(label, pa.array([None, 3], pa.decimal128(5, 1)))[1] == label_numbers(label, pa.array([3]))[0]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"kind": "number"}, "bounds is missing: the least and the largest number"),
        ({"bounds": [3, 1]}, "the smaller one first"),
        ({"bounds": [1, 1 + 1e-15]}, "not too close"),
        ({"bounds": [1]}, "two numbers, the least and the largest"),
        ({"bounds": [0, 1], "positive": 1, "negative": 2}, "no sides: drop negative"),
        ({"bounds": [0, 1], "nulls": "positive"}, "nulls: error or drop"),
        ({"bounds": [0, 1], "kind": "sides"}, "bounds are of kind: number"),
        ({"positive": 1}, "or to predict a number its bounds"),
    ],
)
def test_a_wrong_label_is_refused_in_one_line(keys: dict[str, object], said: str) -> None:
    columns = {"age": {"kind": "numeric", "lower": 0, "upper": 1}}
    with pytest.raises(UsageError, match=said):
        parse(Domain, {"label": {"column": "y", **keys}, "columns": columns}, "here")


def test_digests_of_older_domains_stay_as_they_are() -> None:
    """A label of two sides says nothing of numbers."""
    assert set(Label(column="y", positive=1, negative=0).model_dump()) == {"column", "positive", "negative"}
    assert Label(column="y", bounds=(0, 1)).model_dump() == {"column": "y", "kind": "number", "bounds": (0.0, 1.0)}
