"""Gradients on the lattice: exact margins, the same bits for every partitioning, sensitivities after rounding."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from daskrado.errors import UsageError
from daskrado.losses.margin import Huber, Logistic, Loss, SmoothHinge, Square
from daskrado.privacy.relations import Relation
from daskrado.statistics.base import Rows
from daskrado.statistics.slopes import SLOPE_BITS, SlopeSum
from daskrado.table.lattice import Lattice

LATTICE = Lattice(1.0)


def some_rows(count: int, width: int, seed: int = 0) -> Rows:
    draw = np.random.default_rng(seed)
    x = LATTICE.quantise(np.asfortranarray(draw.normal(size=(count, width))))
    return Rows(x, draw.choice(np.array([-1, 1], dtype=np.int8), size=count))


@pytest.mark.parametrize("length", [0.0, 1e-3, 1.0, 50.0, 1e5])
def test_margins_are_exact_whole_numbers(length: float) -> None:
    rows = some_rows(200, 30)
    direction = np.random.default_rng(1).normal(size=30)
    statistic = SlopeSum.at(length * direction / np.linalg.norm(direction), Logistic(), LATTICE)
    product = rows.x @ np.array(statistic.weights, dtype=np.float64)
    for row, got in zip(rows.x, product, strict=True):
        wanted = sum(Fraction(int(q)) * w for q, w in zip(row, statistic.weights, strict=True))
        assert Fraction(float(got)) == wanted
    assert np.abs(product).max() < 2.0**53


@pytest.mark.parametrize("loss", [Logistic(), Huber(0.5), SmoothHinge(0.2)], ids=repr)
def test_bits_do_not_depend_on_how_rows_are_cut(loss: Loss) -> None:
    rows = some_rows(5000, 23)
    statistic = SlopeSum.at(np.random.default_rng(2).normal(size=23), loss, LATTICE)
    whole = statistic.partial(rows)
    for pieces in (2, 7, 113):
        total = statistic.zero()
        for part in np.array_split(np.random.default_rng(pieces).permutation(5000), pieces):
            total = total + statistic.partial(Rows(np.asfortranarray(rows.x[part]), rows.y[part]))
        assert np.array_equal(total, whole)


def test_it_is_the_gradient_up_to_its_grid() -> None:
    rows = some_rows(400, 6)
    u = np.random.default_rng(3).normal(size=6)
    statistic = SlopeSum.at(u, Logistic(), LATTICE)
    x = rows.x * 2.0**-LATTICE.bits
    y = rows.y.astype(float)
    exact = x.T @ (y * -1.0 / (1.0 + np.exp(y * (x @ u))))
    got = statistic.partial(rows) * 2.0 ** -(LATTICE.bits + SLOPE_BITS)
    np.testing.assert_allclose(got, exact, atol=400 * 2.0**-SLOPE_BITS)


@pytest.mark.parametrize("relation", list(Relation))
@pytest.mark.parametrize("loss", [Logistic(), Huber(0.5), SmoothHinge(0.2)], ids=repr)
def test_no_row_moves_it_further_than_declared(loss: Loss, relation: Relation) -> None:
    """Every integer row here is at the bound; weights include ones that put margins at the corners."""
    draw = np.random.default_rng(5)
    unit = 2.0 ** -(LATTICE.bits + SLOPE_BITS)
    worst = 0.0
    for scale in (0.0, 0.5, 1.0, 4.0):
        u = draw.normal(size=3) * scale
        statistic = SlopeSum.at(u, loss, LATTICE)
        for _ in range(100):
            a, b = (LATTICE.quantise(np.asfortranarray(draw.normal(size=(1, 3)) * 9)) for _ in range(2))
            y = draw.choice(np.array([-1, 1], dtype=np.int8), size=1)
            before = statistic.partial(Rows(a, y))
            if relation is Relation.ADD_REMOVE:
                after = statistic.zero()
            elif relation is Relation.LABEL_FLIP:
                after = statistic.partial(Rows(a, -y))
            else:
                after = statistic.partial(Rows(b, draw.choice(np.array([-1, 1], dtype=np.int8), size=1)))
            worst = max(worst, float(np.linalg.norm((before - after) * unit)))
        assert worst <= statistic.sensitivity(relation).l2
    assert worst > 0.5


def test_a_label_flip_moves_a_logistic_gradient_half_as_far_as_a_replacement() -> None:
    statistic = SlopeSum.at(np.zeros(3), Logistic(), LATTICE)
    assert statistic.sensitivity(Relation.LABEL_FLIP).l2 == 1.0
    assert statistic.sensitivity(Relation.REPLACE_ONE).l2 == 2.0


def test_a_loss_without_a_bounded_slope_is_refused() -> None:
    with pytest.raises(UsageError, match="no bound on its slope"):
        SlopeSum.at(np.zeros(2), Square(), LATTICE)


def test_slopes_of_a_rare_class_are_not_lost() -> None:
    """On 11 bits of rows and 11 of products: slopes of 2^-13 sum to what they are, within 2^-22 for each row."""
    lattice, count, level = Lattice(1.0, 11), 4_000, np.log(2.0**13 - 1)
    draw = np.random.default_rng(6)
    x = np.column_stack([np.full(count, 0.7), draw.uniform(-0.7, 0.7, count)])
    rows = Rows(lattice.quantise(np.asfortranarray(x)), np.full(count, -1, dtype=np.int8))
    statistic = SlopeSum.at(np.array([-level / 0.7, 0.0]), Logistic(), lattice, 11)
    x = rows.x * 2.0**-11
    exact = x.T @ (1.0 / (1.0 + np.exp(x[:, 0] * level / 0.7)))  # y = -1: the slope of -1 times -x
    got = statistic.partial(rows) * 2.0**-22
    assert exact[0] == pytest.approx(count * 0.7 * 2.0**-13, rel=0.01)
    assert np.abs(got - exact).max() <= count * 2.0**-22 + count * 2.0**-20 * 0.7
    assert got[0] == pytest.approx(exact[0], rel=0.02)
