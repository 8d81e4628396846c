"""Budgets and their running totals: a debit costs the same in a long history as in a short one.

A budget is a limit of a data set under one relation, for the whole lake or for one block of it. The record that last
changed it holds its total (``after``); the table ``balances`` points at that record.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

from daskrado.errors import BudgetError, DaskradoError, LedgerError
from daskrado.lake.block_facts import EACH
from daskrado.ledger import chain, parts
from daskrado.ledger.chain import Kind, Record, canonical
from daskrado.ledger.charged import Charged
from daskrado.ledger.checked import keyed
from daskrado.ledger.entries import debit_of
from daskrado.ledger.records import Balance, Debit
from daskrado.ledger.store import Rows
from daskrado.ledger.words import Price
from daskrado.privacy.events import Event, decimal_text, exact
from daskrado.privacy.filter import Cost, Filter, filter_from_json
from daskrado.privacy.groups import ProtectedUnit, charged_as, steps

_A_ROW: dict[str, Any] = {"column": None, "within": None, "bound": None, "owns": None, "rows": 1}


@dataclass(frozen=True, slots=True)
class Budget:
    """A balance as the ledger keeps it: its name, the record that set its limit, the record that changed it last."""

    name: str
    limit: int
    balance: Balance

    def cost(self, debit: Debit, *, alone: bool = False) -> Cost | None:
        """What a debit takes from this budget; None where it does not touch it.

        ``alone``: where it is too much for the rule, and by itself within the limit, it takes the whole budget.

        It does not touch it where it reads other blocks, or where its relation implies nothing about the limit's:
        then the data set is marked. A debit that implies something about rows, and nothing about the limit's unit, is
        refused.
        """
        balance, limit = self.balance, self.balance.whose
        if balance.block and not debit.reads(balance.block):
            return None
        cost = _cost(balance.rule, debit.event, debit.whose, limit, alone)
        if cost is not None:
            return cost
        if steps(replace(debit.whose, **_A_ROW), replace(limit, **_A_ROW)) is None:
            return None
        raise BudgetError(
            f"data set {balance.dataset!r}: a charge under {debit.whose} proves nothing about the limit under "
            f"{limit}; nothing was debited; protect.unit: {{column: {limit.column}, ...}} in a pipeline bounds what "
            "one of them contributes"
        )

    def costs(self, debits: Sequence[Debit]) -> list[tuple[str, Cost]]:
        """What the debits of one run take, each from its part, those that touch this budget."""
        found = ((debit.part, self.cost(debit, alone=len(debits) == 1)) for debit in debits)
        return [(part, cost) for part, cost in found if cost is not None]

    def for_block(self, block: str) -> Budget:
        """The budget of a block that was never charged by itself, by a limit for each: with what all blocks paid."""
        balance = replace(self.balance, block=block)
        return replace(self, name=budget_name(balance.dataset, balance.whose, block), balance=balance)

    def plus(self, cost: Cost, part: str = parts.ALL) -> Budget:
        """With one more entry."""
        return Budget(self.name, self.limit, parts.charged(self.balance, cost, part))

    def minus(self, cost: Cost, part: str = parts.ALL) -> Budget:
        """With one entry less."""
        return Budget(self.name, self.limit, parts.charged(self.balance, cost, part, back=True))

    def fits(self, cost: Cost, part: str) -> bool:
        """Whether the units of a part, or all, can pay."""
        return self.balance.rule.fits(parts.lost(self.balance, part), cost)

    def holding(self, told: Mapping[str, Any]) -> Budget:
        """With the total that a record keeps."""
        total, entries, own = cost_from_json(told["total"]), told["entries"], self.balance
        parts = tuple((part, cost_from_json(cost)) for part, cost in sorted(told.get("parts", {}).items()))
        balance = Balance(own.dataset, own.whose, own.block, own.rule, total, entries, parts)
        return Budget(self.name, told["limit"], balance)

    def to_json(self) -> dict[str, Any]:
        """As a record keeps it."""
        told = {name: cost_to_json(cost) for name, cost in self.balance.parts}
        known = {"limit": self.limit, "total": cost_to_json(self.balance.total), "entries": self.balance.entries}
        return {**known, **({"parts": told} if told else {})}


@lru_cache(maxsize=4096)
def _cost(rule: Filter, event: Event, entry: ProtectedUnit, limit: ProtectedUnit, alone: bool) -> Cost | None:
    """What an event costs by a rule; None where nothing is implied. All blocks of a data set ask for the same."""
    counts = charged_as(event, entry, limit)
    return None if counts is None else rule.charge(counts) if alone else rule.cost(counts)


def price_of(budgets: Iterable[Budget], debits: Sequence[Debit], *, charged: bool = False) -> list[Price]:
    """What debits take together from each budget that they touch; ``charged`` where they are in it already."""
    found = []
    for budget in with_begun(budgets, {block: None for debit in debits for block in debit.blocks}):
        costs = budget.costs(debits)
        if costs:
            after = budget
            for part, cost in () if charged else costs:
                after = after.plus(cost, part)
            found.append(Price(after.balance, parts.together(costs, after.balance)))
    return found


def with_begun(budgets: Iterable[Budget], blocks: Iterable[str]) -> list[Budget]:
    """Budgets, and those that a limit for each block begins for blocks that had none yet."""
    found, named = {budget.name: budget for budget in budgets}, list(blocks)
    for each in [budget for budget in found.values() if budget.balance.block == EACH]:
        for block in named:
            if budget_name(each.balance.dataset, each.balance.whose, block) not in found:
                own = each.for_block(block)
                found[own.name] = own
    return list(found.values())


def budgets_of(rows: Rows, dataset: str, blocks: Collection[str] = ()) -> list[Budget]:
    """All budgets of a data set, in their order, or those that count what is read of some blocks."""
    found = list(rows.execute("SELECT budget, record, digest FROM balances WHERE dataset = ?", (dataset,)))
    wanted, known = {"", EACH, *blocks}, _Known(rows)
    budgets = (
        _budget(known, row["budget"], dataset, row["record"], row["digest"])
        for row in found
        if not blocks or EACH in blocks or json.loads(row["budget"])[2] in wanted
    )
    return sorted(budgets, key=lambda budget: budget.balance.order)


class _Known:
    """Records that many budgets point at, each read and checked once."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self._after: dict[int, Any] = {}
        self._limits: dict[int, Budget] = {}

    def after(self, number: int, name: str) -> Any:
        """What a record says of a budget; None where it, or the record, is not there."""
        if number not in self._after:
            for record in chain.records(self.rows, "r.id = ?", (number,)):
                self._after[number] = record.facts.get("after", {})
        return self._after.get(number, {}).get(name)

    def limit(self, number: int) -> Budget | None:
        """The budget that a limit's record began, empty; None where there is no such record."""
        if number not in self._limits:
            for record in chain.records(self.rows, "r.id = ?", (number,)):
                self._limits[number] = budget_from(self.rows, record)
        return self._limits.get(number)


def _budget(known: _Known, name: str, dataset: str, record: int, digest: str) -> Budget:
    after = known.after(record, name) if digest == _digest(name, dataset, record) else None
    limit = after and known.limit(after["limit"])
    if not (after and limit):
        raise damaged(known.rows, f"the balance {name}")
    budget = limit.holding(after)
    return budget if budget.name == name else budget.for_block(json.loads(name)[2])


def budget_from(rows: Rows, limit: Record) -> Budget:
    """The budget that a limit's record began, empty."""
    facts = limit.facts
    try:
        whose, rule = ProtectedUnit(**facts["whose"]), _rule(canonical(facts["rule"]))
    except (DaskradoError, ValueError, KeyError, TypeError) as error:
        raise LedgerError(f"the ledger {rows.address} holds a limit that cannot be read: {error}") from error
    return empty(limit.id, limit.dataset, whose, facts["block"], rule)


def empty(limit: int, dataset: str, whose: ProtectedUnit, block: str, rule: Filter) -> Budget:
    """A budget that nothing is charged to, by the number of its limit's record."""
    return Budget(budget_name(dataset, whose, block), limit, Balance(dataset, whose, block, rule, Cost(), 0))


@lru_cache(maxsize=1 << 14)
def budget_name(dataset: str, whose: ProtectedUnit, block: str) -> str:
    """The key of a budget: a later limit of the same name replaces the earlier one.

    A limit for rows and one for people, or for several rows, have different names: neither replaces the other.
    """
    return canonical([dataset, str(whose.relation), block, *filter(None, [whose.whom])])


def counted(budget: Budget, debits: Charged) -> Budget:
    """A budget with the debits that count against it, whatever they add up to."""
    balance = replace(budget.balance, total=Cost(), entries=0, parts=())
    for debit, number in debits.reading(balance.block):
        cost = budget.cost(debit)
        if cost is not None:
            balance = parts.charged(balance, cost.times(number), debit.part, entries=number)
    return replace(budget, balance=balance)


def limited(
    rows: Rows,
    dataset: str,
    limits: Iterable[tuple[ProtectedUnit, Filter]],
    *,
    who: str,
    block: str = "",
    at: str | None = None,
) -> None:
    """Set limits: what was charged before counts against them from now on."""
    known, debits = budgets_of(rows, dataset), Charged(partial(charged_debits, rows, dataset))
    for whose, rule in limits:
        begun = empty(chain.head(rows).record + 1, dataset, whose, block, rule)
        budgets = limited_by(begun, known, debits)
        body = {"whose": whose.to_json(), "block": block, "rule": rule.to_json(), "after": after(budgets)}
        record = chain.append(rows, Kind.LIMIT, body, who=who, dataset=dataset, at=at)
        point(rows, budgets, record)


def limited_by(begun: Budget, known: Iterable[Budget], debits: Charged) -> list[Budget]:
    """The budget that a new limit begins; one for each block also begins those of the blocks that were charged.

    A block that has a limit of its own keeps it. One that is charged later for the first time begins with what was
    charged to all blocks, which is then all that it was charged with.
    """
    before = {budget.name: budget for budget in known}
    replaced = before.get(begun.name)
    new = [_renewed(begun, replaced, debits)]
    if begun.balance.block == EACH:
        following = {b.balance.block for b in before.values() if replaced and b.limit == replaced.limit} - {EACH}
        for own in map(begun.for_block, sorted(following.union(debits.blocks))):
            old = before.get(own.name)
            if old is None or old.balance.block in following:
                new.append(_renewed(own, old, debits))
    return new


def _renewed(new: Budget, old: Budget | None, debits: Charged) -> Budget:
    """A budget under its new limit; what it holds stays if it is for the same people and both rules count it."""
    if old is not None and old.balance.whose == new.balance.whose:
        total, rule = old.balance.total, old.balance.rule
        if rule == new.balance.rule or (not parts.taken_whole(old.balance) and new.balance.rule.can_hold(total)):
            entries, own = old.balance.entries, old.balance.parts
            return replace(new, balance=replace(new.balance, total=total, entries=entries, parts=own))
    return counted(new, debits)


def without(rows: Rows, record: Record, budgets: Iterable[Budget]) -> list[Budget]:
    """The budgets that an entry counts against, once it is void.

    What it took is in its own record, unless a limit was set since: then it is what that limit counted. A block that
    began since, by the limit for each, began with what the entry took from that.
    """
    facts, changed, debit = record.facts, [], debit_of(rows, record)
    for budget in budgets:
        if budget.balance.block and not debit.reads(budget.balance.block):
            continue
        if budget.limit < record.id:
            each = budget_name(budget.balance.dataset, budget.balance.whose, EACH)
            told = facts["costs"].get(budget.name, facts["costs"].get(each) if budget.balance.block else None)
            cost = None if told is None else cost_from_json(told)
        else:
            alone = parts.lost(budget.balance, debit.part) == budget.balance.rule.whole
            cost = budget.cost(debit, alone=alone)
        if cost is not None:
            changed.append(budget.minus(cost, debit.part))
    return changed


def charged_debits(rows: Rows, dataset: str) -> Counter[Debit]:
    """The debits of a data set that are not void, and how many there are of each kind; one of a kind is read."""
    void = {record.entry for record in chain.records(rows, "r.dataset = ? AND r.kind = ?", (dataset, str(Kind.VOID)))}
    kinds: dict[Any, tuple[int, int]] = {}
    for number, entry, body in chain.debits(rows, dataset):
        if entry not in void:
            kind = _kind(body)
            first, times = kinds.get(kind, (number, 0))
            kinds[kind] = min(first, number), times + 1
    found: Counter[Debit] = Counter()
    for first, times in sorted(kinds.values()):  # as they came: the first one may choose the partition
        (record,) = chain.records(rows, "r.id = ?", (first,))
        found[plain(debit_of(rows, record))] += times
    return found


def _kind(body: str) -> Any:
    """What tells apart debits that cost something else, without reading all of a canonical body.

    Its keys are in alphabetical order, and a text inside one has its quotes escaped. So the first place with a key's
    comma and quotes is the key's own, but where parts of a data set, which may have any name, come before it.
    """
    try:
        blocks = body.index(',"blocks":')
        costs = body.index(',"costs":', blocks)
        event = body.index(',"event":', costs)
        seal, whose = body.index(',"seal":', event), body.rindex(',"whose":')
    except ValueError:
        return body  # whoever reads it says what is wrong
    if '"parts":' in body:
        return canonical([json.loads(body).get(key) for key in ("blocks", "event", "part", "role", "whose")])
    return body[blocks:costs], body[event:seal], body[whose:]


def plain(debit: Debit) -> Debit:
    """What a debit costs depends on this much of it."""
    return replace(debit, theorem="", role="")


def point(rows: Rows, budgets: Iterable[Budget], record: Record) -> None:
    """Let balances point at the record that changed them."""
    for budget in budgets:
        dataset = budget.balance.dataset
        values = (record.id, _digest(budget.name, dataset, record.id), dataset, budget.name)
        if list(rows.execute("SELECT 1 FROM balances WHERE budget = ?", (budget.name,))):
            rows.execute("UPDATE balances SET record = ?, digest = ? WHERE dataset = ? AND budget = ?", values)
        else:
            rows.execute("INSERT INTO balances (record, digest, dataset, budget) VALUES (?, ?, ?, ?)", values)


def after(budgets: Iterable[Budget]) -> dict[str, Any]:
    """Budgets as the record that changes them keeps them."""
    return {budget.name: budget.to_json() for budget in budgets}


def cost_to_json(cost: Cost) -> dict[str, Any]:
    """A cost, exactly."""
    epsilon = None if cost.epsilon is None else decimal_text(cost.epsilon)
    return {"epsilon": epsilon, "mu2": decimal_text(cost.mu2), "delta": decimal_text(cost.delta), "draws": cost.draws}


def cost_from_json(value: Mapping[str, Any]) -> Cost:
    """The cost that ``cost_to_json`` wrote."""
    return _read_cost(value["epsilon"], value["mu2"], value["delta"], value["draws"])


@lru_cache(maxsize=1 << 14)
def _read_cost(epsilon: str | None, mu2: str, delta: str, draws: int) -> Cost:
    """Blocks and relations that were charged alike are read once."""
    return Cost(None if epsilon is None else exact(epsilon), exact(mu2), exact(delta), int(draws))


def damaged(rows: Rows, what: str) -> LedgerError:
    """What to raise where something beside the chain does not fit it."""
    return LedgerError(
        f"the ledger {rows.address} is damaged: {what} does not fit its records; restore it from a copy"
    )


@lru_cache(maxsize=256)
def _rule(text: str) -> Filter:
    return filter_from_json(json.loads(text))


def _digest(*columns: Any) -> str:
    return hashlib.sha256(canonical(columns).encode()).hexdigest()


def write_debit(
    rows: Rows,
    debit: Debit,
    fingerprint: str | None,
    charged: Sequence[tuple[Budget, Cost]],
    who: str,
    dataset: str,
    run: str,
    entry: int,
    at: str | None = None,
    table: Mapping[str, Any] | None = None,
) -> chain.Record:
    """Write a debit, the budgets that it changes, and its lake's fingerprint under a key and a salt."""
    salt = secrets.token_hex(16)
    hidden = None if fingerprint is None else keyed(rows, fingerprint)
    budgets = [budget.plus(cost, debit.part) for budget, cost in charged]
    body = {
        **debit.to_json(),
        "costs": {budget.name: cost_to_json(cost) for budget, cost in charged},
        "seal": chain.seal(hidden, salt),
        "after": after(budgets),
        **({} if table is None else {"table": dict(table)}),
    }
    record = chain.append(rows, Kind.DEBIT, body, who, dataset, run, entry, str(debit.whose.relation), at)
    if hidden is not None:
        rows.execute(
            "INSERT INTO lakes (record, dataset, fingerprint, salt) VALUES (?, ?, ?, ?)",
            (record.id, dataset, hidden, salt),
        )
    point(rows, budgets, record)
    return record
