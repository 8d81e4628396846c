"""The values that a ledger takes and gives: limits, grants, entries, balances and marks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fractions import Fraction
from pathlib import Path
from typing import Any

from daskrado.lake.block_facts import EACH
from daskrado.privacy.accountant import Event, SeveralEvents, decimal_text, event_to_json
from daskrado.privacy.filter import Cost, Filter
from daskrado.privacy.groups import ProtectedUnit, enough
from daskrado.privacy.relations import Relation

ALL_OF_IT = "all of it"  # the role of a debit for all that a run draws


class State(StrEnum):
    """Where an entry stands. All but void ones are charged; a published one is over."""

    RESERVED = "reserved"
    SPENT = "spent"
    PUBLISHED = "published"
    VOID = "void"

    @property
    def used(self) -> bool:
        """Whether noise may have been drawn for it."""
        return self in (State.SPENT, State.PUBLISHED)


class Mark(StrEnum):
    """What was published exactly, or without protection, of a data set: no limit counts it."""

    FEATURES = "exact features"
    COUNTS = "exact counts"
    MODEL = "exact model"
    NOT_PRIVATE = "a run without privacy"


TAKEN_AS_PUBLIC: dict[Relation, tuple[Mark, ...]] = {
    Relation.ADD_REMOVE: (),
    Relation.REPLACE_ONE: (Mark.COUNTS,),
    Relation.LABEL_FLIP: (Mark.FEATURES, Mark.COUNTS),
    Relation.FEATURE_FLIP: (Mark.FEATURES, Mark.COUNTS),
}
"""What a release under a relation takes as public, so that no limit under another one counts it."""


@dataclass(frozen=True, slots=True)
class Limit:
    """What one data set may spend in total under one relation."""

    epsilon: Fraction
    delta: Fraction

    def __str__(self) -> str:
        return f"epsilon {decimal_text(self.epsilon)}, delta {decimal_text(self.delta)}"


@dataclass(frozen=True, slots=True)
class Remaining:
    """What is left: ``epsilon`` for one more pure event (a lower bound), ``delta`` for approximate ones."""

    epsilon: Fraction
    delta: Fraction


@dataclass(frozen=True, slots=True)
class Grant:
    """The receipt of a debit. Whoever releases something must hold one, and it can be spent once."""

    entry: int
    dataset: str
    relation: Relation
    event: Event
    ledger: Path
    run: str
    head: str = field(default="", compare=False)  # of the ledger's chain, once the debit was in it


@dataclass(frozen=True, slots=True)
class Debit:
    """What is asked of a budget, for whom, in which role of a run. No ``blocks`` means that all of them are read.

    ``EACH`` among them stands for every block that there is or will be, and for no row that is in none.
    ``delta`` is the one that was asked for, which an event need not have: a refusal says what would fit at it.
    ``part`` names the units that are read, where the others of a fixed partition are not (:mod:`.parts`).
    """

    whose: ProtectedUnit
    event: Event
    theorem: str
    blocks: tuple[str, ...] = ()
    role: str = ""
    delta: float | None = field(default=None, compare=False)
    part: str = ""

    @property
    def for_limit(self) -> Relation | ProtectedUnit:
        """Whose limit a first debit like this sets: that of rows, or of the units that it bounds."""
        return self.whose.relation if self.whose.column is None else replace(self.whose, bound=None, rows=1)

    def reads(self, block: str) -> bool:
        """Whether it counts in the budget of a block, or of each block."""
        return not self.blocks or block in self.blocks or EACH in self.blocks

    def unpaid(self, charged: Iterable[Balance]) -> list[str]:
        """The blocks that it reads and that no budget in ``charged`` pays for; "" is the whole lake.

        A budget of the whole lake pays for each of its blocks. Budgets of blocks do not pay for the whole lake: it
        may have rows in none.
        """
        paid = {balance.block for balance in charged if enough(balance.relation, self.whose.relation)}
        return [] if "" in paid else [block for block in self.blocks or ("",) if block not in paid]

    @classmethod
    def together(cls, debits: Sequence[Debit]) -> Debit | None:
        """Debits of one run for the same people and blocks as one, which is granted and voided whole; or None."""
        if len(debits) < 2 or len({(debit.whose, debit.blocks, debit.part) for debit in debits}) > 1:
            return None
        theorems = "; ".join(dict.fromkeys(debit.theorem for debit in debits))
        event, delta = SeveralEvents.of(debit.event for debit in debits), max(debit.delta or 0 for debit in debits)
        return replace(debits[0], event=event, theorem=theorems, role=ALL_OF_IT, delta=delta)

    def to_json(self) -> dict[str, Any]:
        """As a record keeps it."""
        return {
            "whose": self.whose.to_json(),
            "event": event_to_json(self.event),
            "theorem": self.theorem,
            "blocks": list(self.blocks),
            "role": self.role,
            **({"part": self.part} if self.part else {}),
        }


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One debit and what became of it. ``fingerprint`` is keyed: compare it with ``Ledger.keyed``."""

    id: int
    dataset: str
    relation: Relation
    event: Event
    theorem: str
    run: str
    role: str
    who: str
    whose: ProtectedUnit
    blocks: tuple[str, ...]
    fingerprint: str | None
    state: State
    draws: int
    table: dict[str, Any] | None
    published: str | None
    reserved_at: str
    part: str = ""

    @property
    def debit(self) -> Debit:
        """What was asked."""
        return Debit(self.whose, self.event, self.theorem, self.blocks, self.role, part=self.part)


@dataclass(frozen=True, slots=True)
class Balance:
    """A limit of a data set, the rule that was fixed with it, and what is charged against it.

    ``total`` is the most that any unit lost; ``parts`` tells what was charged to all ("") and to each part alone.
    """

    dataset: str
    whose: ProtectedUnit
    block: str
    rule: Filter
    total: Cost
    entries: int
    parts: tuple[tuple[str, Cost], ...] = ()

    @property
    def relation(self) -> Relation:
        """Which lakes are neighbours under this limit."""
        return self.whose.relation

    @property
    def order(self) -> tuple[int, str, str]:
        """Where it stands in a list: by relation, rows before people, blocks by name."""
        return [*Relation].index(self.relation), self.whose.column or "", self.block

    @property
    def limit(self) -> Limit:
        """What may be spent in all."""
        return Limit(self.rule.epsilon, self.rule.delta)


@dataclass(frozen=True, slots=True)
class Marked:
    """A mark on a data set: what became public, when, by which run and whom."""

    dataset: str
    mark: Mark
    at: str
    run: str
    who: str


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """The budget of one data set under one relation, for ``ledger show``."""

    balance: Balance
    counts: dict[State, int]
