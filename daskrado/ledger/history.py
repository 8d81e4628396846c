"""A ledger's whole history: checked record by record, exported for others to check."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import Any

from daskrado.errors import DaskradoError, LedgerError, UsageError
from daskrado.lake.block_facts import EACH
from daskrado.ledger import balances, chain
from daskrado.ledger.balances import Budget
from daskrado.ledger.chain import BEGINNING, COLUMNS, Head, Kind, Record
from daskrado.ledger.charged import Charged
from daskrado.ledger.entries import debit_of
from daskrado.ledger.ledger import Ledger
from daskrado.ledger.records import Debit
from daskrado.privacy.filter import Cost, PureSums

SCHEMA = "daskrado.ledger_history/1"
_SAME = 1 - Fraction(1, 10**6)


@dataclass
class Replay:
    """The ledger as its records tell it, from the first one on; whatever does not follow is a LedgerError."""

    address: str
    head: Head = field(default_factory=lambda: Head(0, BEGINNING))
    budgets: dict[str, Budget] = field(default_factory=dict)
    charged: dict[int, tuple[Record, Debit]] = field(default_factory=dict)  # by entry, without void ones
    states: dict[int, Kind] = field(default_factory=dict)
    draws: set[tuple[int, str]] = field(default_factory=set)
    names: dict[tuple[str, str], list[str]] = field(
        default_factory=dict, repr=False
    )  # of budgets, by data set and block
    digests: list[str] = field(default_factory=list, repr=False)  # of all records, in their order

    def holds(self, known: Head) -> bool:
        """Whether the history goes through a place that somebody noted, such as a published run in its manifest."""
        return 0 < known.record <= len(self.digests) and self.digests[known.record - 1] == known.digest

    def follow(self, record: Record) -> None:
        """Take one more record."""
        columns = (record.id, str(record.kind), *(getattr(record, name) for name in COLUMNS[2:]))
        if record.id != self.head.record + 1 or record.digest != chain.digest_of(self.head.digest, *columns):
            raise self._wrong(record, "does not follow from the one before it")
        self.head = record.head
        self.digests.append(record.digest)
        changed = {budget.name: _counters(budget) for budget in self._changed(record)}
        after = record.facts.get("after", {})
        told = {n: _counters(self.budgets[n].holding(value)) for n, value in after.items() if n in self.budgets}
        if told != changed or len(told) != len(after):
            raise self._wrong(record, "holds a total that is not the sum of its charges")

    def _changed(self, record: Record) -> list[Budget]:
        """The budgets that a record changes, worked out anew."""
        match record.kind:
            case Kind.LIMIT:
                begun = balances.budget_from(self, record)
                debits = Charged(partial(self._debits, record.dataset))
                changed = balances.limited_by(begun, self._budgets(record.dataset), debits)
            case Kind.DEBIT:
                changed = self._debited(record)
            case Kind.VOID:
                changed = self._voided(record)
            case _:
                changed = []
        self._settled(record)
        for budget in changed:
            if budget.name not in self.budgets:
                self.names.setdefault((record.dataset, budget.balance.block), []).append(budget.name)
            self.budgets[budget.name] = budget
        return changed

    def _debited(self, record: Record) -> list[Budget]:
        assert record.entry is not None
        debit, changed, enough = debit_of(self, record), [], dict[tuple[int, bool, int], bool]()
        told = {name: balances.cost_from_json(cost) for name, cost in record.facts["costs"].items()}
        for budget in balances.with_begun(self._budgets(record.dataset, debit.blocks), debit.blocks):
            cost = told.pop(budget.name, None)
            block = budget.balance.block
            alike = budget.limit, not block or debit.reads(block), id(cost)  # blocks under one limit pay the same
            if alike not in enough:
                least = self._least(record, budget, debit)
                enough[alike] = cost is least or (not (cost is None or least is None) and _covers(cost, least))
            if not enough[alike]:
                raise self._wrong(record, "was charged less than its event costs")
            if cost is not None:
                if not budget.fits(cost, debit.part):
                    raise self._wrong(record, "was charged above its limit")
                changed.append(budget.plus(cost, debit.part))
        if told:
            raise self._wrong(record, "was charged to a limit that was not set")
        self.charged[record.entry] = (record, debit)
        return changed

    def _least(self, record: Record, budget: Budget, debit: Debit) -> Cost | None:
        """What a debit costs, worked out anew."""
        try:
            return budget.cost(debit, alone=True)
        except DaskradoError as error:
            raise self._wrong(record, f"cannot have been charged: {error}") from error

    def _voided(self, record: Record) -> list[Budget]:
        assert record.entry is not None
        own, debit = self.charged.pop(record.entry)
        return balances.without(self, own, self._budgets(own.dataset, debit.blocks))

    def _settled(self, record: Record) -> None:
        """Entries go from debit to spend to publish, or from debit to void; a draw has a name of its own."""
        if record.entry is None:
            return
        allowed = {
            Kind.DEBIT: (None,),
            Kind.SPEND: (Kind.DEBIT,),
            Kind.VOID: (Kind.DEBIT,),
            Kind.DRAW: (Kind.SPEND,),
            Kind.PUBLISH: (Kind.SPEND,),
        }
        drawn = (record.entry, record.name)
        if self.states.get(record.entry) not in allowed[record.kind] or (record.name and drawn in self.draws):
            raise self._wrong(record, f"is a {record.kind} that its entry does not allow")
        if record.kind is Kind.DRAW:
            self.draws.add(drawn)
        else:
            self.states[record.entry] = record.kind

    def _budgets(self, dataset: str, blocks: Collection[str] = ()) -> list[Budget]:
        """All budgets of a data set, or those that count what is read of some blocks."""
        if not blocks or EACH in blocks:
            return [budget for budget in self.budgets.values() if budget.balance.dataset == dataset]
        places = [(dataset, block) for block in {"", EACH, *blocks}]
        return [self.budgets[name] for place in places for name in self.names.get(place, ())]

    def _debits(self, dataset: str) -> Counter[Debit]:
        return Counter(balances.plain(debit) for own, debit in self.charged.values() if own.dataset == dataset)

    def execute(self, statement: str, values: object = ()) -> Any:
        """Nothing is read here but the records that are given."""
        raise UsageError(f"a replay runs no statement, got {statement!r} with {values!r}")

    def _wrong(self, record: Record, why: str) -> LedgerError:
        return LedgerError(f"{self.address}: record {record.id} {why}")


def _covers(cost: Cost, least: Cost) -> bool:
    """Whether a cost is as large as another one, but for what two machines may compute in different ways."""
    pairs = [(cost.mu2, least.mu2), (cost.delta, least.delta)]
    pairs += [] if least.epsilon is None or cost.epsilon is None else [(cost.epsilon, least.epsilon)]
    return cost.draws >= least.draws and all(told >= needed * _SAME for told, needed in pairs)


def _counters(budget: Budget) -> tuple[Any, ...]:
    """All of a budget that its records have to agree on: the Gaussian filter keeps no sum of epsilons."""
    own, total = budget.balance, budget.balance.total
    epsilon = total.epsilon if isinstance(own.rule, PureSums) else None
    counted = (budget.limit, own.entries, own.parts, total.mu2, total.delta, total.draws, epsilon)
    return (*counted, own.dataset, own.block, own.whose, own.rule)


def replayed(address: str, records: Iterable[Record]) -> Replay:
    """Check all records of a history."""
    replay = Replay(address)
    for record in records:
        replay.follow(record)
    return replay


def check_all(ledger: Ledger) -> Replay:
    """Check everything that a ledger holds: pages, chain, totals, states, and that its balances are the last ones."""
    ledger.store.check_pages()
    with ledger.store.reading() as rows:
        replay = replayed(ledger.address, chain.records(rows))
        names = [row["dataset"] for row in rows.execute("SELECT DISTINCT dataset FROM balances")]
        found = {budget.name: budget for name in names for budget in balances.budgets_of(rows, name)}
    if {name: _counters(b) for name, b in found.items()} != {n: _counters(b) for n, b in replay.budgets.items()}:
        raise LedgerError(f"the ledger {ledger.address} is damaged: its balances are not those of its records")
    return replay


def exported(ledger: Ledger) -> dict[str, Any]:
    """All records for somebody else to check; no fingerprint and no secret is among them."""
    with ledger.store.reading() as rows:
        told = [[getattr(r, name) for name in (*COLUMNS, "digest")] for r in chain.records(rows)]
    return {"records": told, "head": f"{told[-1][0]}:{told[-1][-1]}"}


def verified(where: str, body: Mapping[str, Any]) -> Replay:
    """Check what ``exported`` wrote."""
    try:
        records = [Record(number, Kind(kind), *own) for number, kind, *own in body["records"]]
        replay = replayed(where, records)
    except (KeyError, TypeError, ValueError) as error:
        raise LedgerError(f"{where}: is not the history of a ledger ({error})") from error
    if str(replay.head) != body["head"]:
        raise LedgerError(f"{where}: its head is not that of its records")
    return replay
