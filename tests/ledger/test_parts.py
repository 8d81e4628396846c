"""Parts without a common unit: every unit's own loss is within the limit, and nothing payable is refused."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from daskrado.errors import BudgetError
from daskrado.ledger.history import check_all
from daskrado.ledger.ledger import Ledger
from daskrado.ledger.parts import ALL, charged, lost, part_name, together
from daskrado.ledger.records import Balance, Grant
from daskrado.privacy.accountant import GaussianEvent, PureEvent
from daskrado.privacy.filter import Cost, filter_for
from daskrado.privacy.groups import ProtectedUnit
from daskrado.privacy.relations import Relation

FIRST = [part_name("0.2 held out by id", name) for name in ("training", "held out")]
OTHER = [part_name("0.5 held out by id", name) for name in ("training", "held out")]


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    opened = Ledger.open(tmp_path / "ledger.sqlite", create=True)
    opened.set_limit("d", "add_remove", 1, 0)
    return opened


def debit(ledger: Ledger, epsilon: float, part: str = ALL) -> Grant:
    return ledger.reserve("d", "add_remove", PureEvent(epsilon), theorem="t", run="r" * 32, part=part)


def spent(ledger: Ledger) -> Fraction:
    own = ledger.balance("d", "add_remove")
    assert own is not None
    assert own.total.epsilon is not None
    return own.total.epsilon


def test_two_parts_spend_the_whole_limit_each_and_all_units_together_have_none_left(ledger: Ledger) -> None:
    for part in FIRST:
        debit(ledger, 0.7, part)
    assert spent(ledger) == Fraction(7, 10)
    debit(ledger, 0.3, FIRST[0])
    assert spent(ledger) == 1
    for part in (FIRST[0], ALL, OTHER[1]):
        with pytest.raises(BudgetError, match="does not cover this"):
            debit(ledger, 0.01, part)
    debit(ledger, 0.3, FIRST[1])


def test_another_partition_pays_in_every_part(ledger: Ledger) -> None:
    """Its parts have units in common with the first one's."""
    debit(ledger, 0.6, FIRST[0])
    debit(ledger, 0.3, OTHER[0])
    debit(ledger, 0.1, OTHER[1])
    assert spent(ledger) == 1
    with pytest.raises(BudgetError):
        debit(ledger, 0.7, FIRST[1])
    debit(ledger, 0.6, FIRST[1])


def test_a_void_charge_is_given_back_to_its_part_and_a_new_limit_counts_the_same(ledger: Ledger) -> None:
    grants = [debit(ledger, 0.5, part) for part in (*FIRST, ALL)]
    assert spent(ledger) == 1
    ledger.void(grants[0])
    assert spent(ledger) == 1  # the other part has 0.5, and all have 0.5
    debit(ledger, 0.5, FIRST[0])
    ledger.void(grants[1])
    ledger.void(grants[2])
    assert spent(ledger) == Fraction(1, 2)
    ledger.set_limit("d", "add_remove", 2, 0)
    assert spent(ledger) == Fraction(1, 2)
    debit(ledger, 1.5, FIRST[0])
    debit(ledger, 2, FIRST[1])
    assert check_all(ledger).head.record > 5


@pytest.mark.parametrize("folds", [2, 3, 5])
def test_of_k_fits_on_all_folds_but_one_a_unit_pays_k_less_one_and_of_k_scores_one(
    ledger: Ledger, folds: int
) -> None:
    """Enumerated: what each fold lost, and that the limit is full to the last hundredth and not beyond."""
    names = [f"fold {number}" for number in range(folds)]
    fit, score = Fraction(1, 10), Fraction(3, 100)
    for held in names:
        debit(ledger, float(fit), part_name("k folds by id", *(name for name in names if name != held)))
        debit(ledger, float(score), part_name("k folds by id", held))
    assert spent(ledger) == (folds - 1) * fit + score
    own = ledger.balance("d", "add_remove")
    assert own is not None
    assert {cost.epsilon for name, cost in own.parts if name != ALL} == {(folds - 1) * fit + score}
    left = 1 - spent(ledger)
    debit(ledger, float(left), part_name("k folds by id", *names[1:]))
    with pytest.raises(BudgetError, match="does not cover this"):
        debit(ledger, 0.01, part_name("k folds by id", *names[:2]))  # one of the two has nothing left
    debit(ledger, float(left), part_name("k folds by id", names[0]))
    with pytest.raises(BudgetError, match="does not cover this"):
        debit(ledger, 0.001, part_name("k folds by id", names[0]))
    check_all(ledger)


def test_every_units_loss_is_the_filters_sum_in_random_histories() -> None:
    """By hand: three kinds of units, and what each lost; the balance shows the largest, part by part no less."""
    draw, rule = np.random.default_rng(1), filter_for(3, 1e-5)
    for _ in range(60):
        balance = Balance("d", ProtectedUnit(Relation.ADD_REMOVE), "", rule, Cost(), 0)
        history: list[tuple[str, Cost]] = []
        for _ in range(int(draw.integers(1, 12))):
            part = str(draw.choice([*FIRST, ALL]))
            event = PureEvent(0.1) if draw.random() < 0.5 else GaussianEvent(float(draw.choice([0.05, 0.1])))
            history.append((part, rule.cost(event)))
            balance = charged(balance, history[-1][1], part)
        for part in FIRST:
            own = sum((cost for name, cost in history if name in (part, ALL)), Cost())
            assert lost(balance, part) == own
            assert balance.total.mu2 >= own.mu2
            assert balance.total.delta >= own.delta
            assert balance.total.draws >= own.draws
        assert balance.total == together(history, balance)
        for part, cost in draw.permutation(np.array(history, dtype=object)):
            balance = charged(balance, cost, part, back=True)
        assert (balance.total, balance.entries) == (Cost(None if balance.total.epsilon is None else Fraction(0)), 0)
