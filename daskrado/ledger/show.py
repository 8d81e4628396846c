"""How a ledger stands, in lines for a terminal."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from itertools import groupby

from daskrado.errors import in_one_line, single_lines
from daskrado.lake.block_facts import EACH
from daskrado.ledger.journal import unfinished
from daskrado.ledger.ledger import Ledger
from daskrado.ledger.records import Balance, LedgerEntry, LedgerRow
from daskrado.ledger.words import amount, budget_name, mark_lines, percent, room
from daskrado.privacy.groups import ProtectedUnit, steps
from daskrado.privacy.relations import Relation

LATEST = 10  # debits of a data set that are listed
_ROUNDING = Fraction(1, 1000)  # what ten shares of one decimal can be off by, together
_BAR = 20  # characters of a full bar


@single_lines
def ledger_lines(ledger: Ledger, dataset: str | None = None, *, totals: bool = False) -> Iterator[str]:
    """What is spent and left of each budget, who spent it, and what one person can have lost in all."""
    rows = [row for row in ledger.summary() if dataset in (None, row.balance.dataset)]
    yield f"{ledger.address}"
    if not rows:
        yield "no limit set and nothing spent"
    for name, known in groupby(rows, key=lambda row: row.balance.dataset):
        yield from _dataset_lines(ledger, name, list(known), totals=totals)
    for run, what in unfinished(ledger):
        yield f"run {run} is {what}"


def _dataset_lines(ledger: Ledger, dataset: str, rows: list[LedgerRow], *, totals: bool) -> Iterator[str]:
    counts = ", ".join(f"{count} {state}" for state, count in rows[0].counts.items() if count)
    yield f"{dataset}: {counts or 'no entry'}"
    named = [row.balance for row in rows if row.balance.block not in ("", EACH)]
    shown = [row.balance for row in rows if row.balance.block in ("", EACH)]
    whole = [balance for balance in shown if not balance.block] if totals else []
    known_totals = dict(zip(whole, ledger.totals(dataset, whole), strict=True)) if whole else {}
    for balance in shown:
        yield f"  {balance_line(balance)}"
        if (total := known_totals.get(balance)) is not None:
            fixed = f"{amount(round(float(total.epsilon), 6), total.delta)} ({total.method})"
            yield f"    if all of it had been planned beforehand: {fixed}"
    if named:
        count, fullest = len({balance.block for balance in named}), max(named, key=_spent)
        yield (
            f"  {count} block{'' if count == 1 else 's'} with a budget, the fullest {fullest.block}: "
            f"{percent(_spent(fullest))} spent; each with: daskrado ledger show {dataset} --blocks"
        )
    history = ledger.history(dataset, LATEST)
    known = sorted((row.balance for row in rows), key=lambda balance: balance.whose.column or "")
    relations = ledger.relations(dataset)
    for _, own in groupby(known, key=lambda balance: balance.whose.column):
        yield f"  in all: {_in_all([*own], relations)}"
    yield from (f"  {line}" for line in mark_lines(ledger.marks(dataset)))
    yield from (f"  {history_line(entry, share)}" for entry, share in history)
    if sum(share or 0 for _, share in history) > max(map(_spent, (row.balance for row in rows))) + _ROUNDING:
        yield "  (these add up to more than is spent: each is the largest of its run, over all counters and limits)"


@single_lines
def block_lines(ledger: Ledger, dataset: str) -> Iterator[str]:
    """A line for each block: what is spent of the budget that has least left, by how many runs."""
    blocks = ledger.block_balances(dataset)
    yield f"{ledger.address}"
    if not blocks:
        yield f"no block of {dataset} was charged, or has a limit of its own"
        if any(balance.whose.column for balance in ledger.balances(dataset)):
            yield "  who owns rows of several blocks pays from the whole data set's budget; see protect.unit.within"
    for block, own in blocks.items():
        fullest = max(own, key=_spent)
        spent, runs = _spent(fullest), max(balance.entries for balance in own)
        bar = "#" * min(_BAR, math.floor(_BAR * spent))
        left = percent(max(1 - spent, Fraction(0)))
        yield (
            f"  {block:<12} [{bar:<{_BAR}}] {percent(spent)} spent, {left} left, "
            f"{runs} run{'' if runs == 1 else 's'}, under {fullest.relation}"
        )


def _spent(balance: Balance) -> Fraction:
    return balance.rule.share(balance.total)


def balance_line(balance: Balance) -> str:
    """A budget: what is spent, what is left and what fits there, and of which counters."""
    shares, (binding, fits) = balance.rule.shares(balance.total), room(balance)
    words = {"loss": "loss", "delta": "deltas", "draws": "Gaussian releases"}
    spent = max(shares.values())
    counters = ", ".join(f"{words[name]} {percent(share)}" for name, share in shares.items())
    block = ", each block" if balance.block == EACH else f", block {balance.block}" if balance.block else ""
    detail = f" ({counters})" if len(shares) > 1 else ""
    left = f"{percent(max(1 - spent, Fraction(0)))} left"
    if shares[binding] < spent:  # another counter is fuller than the one that such runs need
        left += f"; {percent(1 - shares[binding])} of {words[binding]} left"
    said = f"{percent(spent)} spent, {left}, {fits}{detail}"
    return in_one_line(f"{budget_name(balance)} under {balance.whose}{block}: {said}")


def history_line(entry: LedgerEntry, share: Fraction | None) -> str:
    """Who spent what, when."""
    took = "nothing" if share is None else percent(share)
    return f"{entry.reserved_at[:16].replace('T', ' ')} {entry.who}, run {entry.run[:12]}: {took} ({entry.state})"


def _in_all(balances: list[Balance], relations: Counter[Relation]) -> str:
    """What one row, or one person, can have lost over all relations: by the widest limit, and beside it."""
    whole = [balance for balance in balances if not balance.block]
    named = [balance for balance in balances if balance.block not in ("", EACH)]
    order = (Relation.REPLACE_ONE, Relation.ADD_REMOVE, Relation.LABEL_FLIP, Relation.FEATURE_FLIP)
    widest = min(whole or named or balances, key=lambda balance: (order.index(balance.relation), -_spent(balance)))
    spent = percent(widest.rule.share(widest.total))
    of = f" of block {widest.block}" if widest in named else ""
    text = f"{widest.whose.unit}{of} has lost at most {spent} of {budget_name(widest)} under {widest.relation}"
    beside = {kind: number for kind, number in relations.items() if steps(_row(kind), _row(widest.relation)) is None}
    if beside:
        told = ", ".join(
            f"{number} release{'' if number == 1 else 's'} under {kind}" for kind, number in sorted(beside.items())
        )
        text += f"; beside that {told}, where {_PUBLIC[min(beside, key=order.index)]}"
    return text


def _row(relation: Relation) -> ProtectedUnit:
    return ProtectedUnit(relation, feature="" if relation is Relation.FEATURE_FLIP else None)


_PUBLIC = {
    Relation.ADD_REMOVE: "nothing is public",
    Relation.REPLACE_ONE: "the number of rows is public",
    Relation.LABEL_FLIP: "all features are public",
    Relation.FEATURE_FLIP: "all other columns are public",
}
