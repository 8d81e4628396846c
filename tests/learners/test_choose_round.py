"""Keeping a round by training error: exact counts, the exponential mechanism's law, and a charge before the draw."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from daskrado.learners.choose_round import choose_by_mistakes, mistakes
from daskrado.ledger.ledger import Grant, Ledger, State
from daskrado.privacy.accountant import PureEvent
from daskrado.privacy.relations import Relation
from daskrado.statistics import Rows, Summary
from daskrado.statistics.boosting import MistakeCounts
from daskrado.table.lattice import Lattice

LATTICE = Lattice(2.0, 10)


def rows_and_thetas() -> tuple[Rows, np.ndarray]:
    draw = np.random.default_rng(0)
    x = LATTICE.quantise(np.asfortranarray(draw.normal(size=(12, 2))))
    y = draw.choice(np.array([-1, 1], dtype=np.int8), 12)
    return Rows(x, y), draw.normal(size=(4, 2))


def granted(path: Path) -> tuple[Ledger, Grant]:
    ledger = Ledger.open(path)
    ledger.set_limit("d", Relation.REPLACE_ONE, 50, 0)
    return ledger, ledger.reserve("d", Relation.REPLACE_ONE, PureEvent("0.001"), theorem="t", run="r")


def test_counts_are_the_mistakes_of_each_candidate() -> None:
    rows, thetas = rows_and_thetas()
    found = MistakeCounts(2, thetas.tobytes()).partial(rows)
    direct = [int(((rows.x @ theta >= 0) != (rows.y > 0)).sum()) for theta in thetas]
    assert found.tolist() == direct


@pytest.mark.parametrize("rows_per_unit", [1, 3])
def test_the_choice_has_the_exponential_law_and_is_charged_first(tmp_path: Path, rows_per_unit: int) -> None:
    rows, thetas = rows_and_thetas()
    ledger, grant = granted(tmp_path / "l.sqlite")
    epsilon, seen, statistic = 1.5, Counter(), mistakes(thetas, LATTICE)
    counts = statistic.partial(rows)
    summary = Summary(statistic, LATTICE, counts, len(rows.y))

    class Spent:
        """Spends once for real; the repeated draws of this test reuse the grant."""

        done = False

        def spend(self, given: Grant) -> None:
            if not self.done:
                ledger.spend(given)
            self.done = True

    spending = Spent()
    for _ in range(800):
        seen[choose_by_mistakes(summary, partial(spending.spend, grant), epsilon, rows_per_unit)] += 1
    weights = np.exp(-epsilon * counts / (2 * rows_per_unit))
    expected = weights / weights.sum() * 800
    assert stats.chisquare([seen[i] for i in range(4)], expected).pvalue > 1e-5
    assert ledger.entries()[0].state is State.SPENT


def test_a_grant_cannot_be_used_twice(tmp_path: Path) -> None:
    rows, thetas = rows_and_thetas()
    ledger, grant = granted(tmp_path / "l.sqlite")
    statistic = mistakes(thetas, LATTICE)
    summary = Summary(statistic, LATTICE, statistic.partial(rows), len(rows.y))
    choose_by_mistakes(summary, partial(ledger.spend, grant), 0.001, 1)
    with pytest.raises(Exception, match="already spent"):
        choose_by_mistakes(summary, partial(ledger.spend, grant), 0.001, 1)
