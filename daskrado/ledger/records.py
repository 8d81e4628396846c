"""The values that a ledger takes and gives: limits, grants, entries and balances."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from pathlib import Path

from daskrado.privacy.accountant import Composition, Event, decimal_text
from daskrado.privacy.relations import Relation


class State(StrEnum):
    """Where an entry stands. Reserved and spent entries are charged; void ones are not."""

    RESERVED = "reserved"
    SPENT = "spent"
    VOID = "void"


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


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One line of the ledger."""

    id: int
    dataset: str
    relation: Relation
    event: Event
    theorem: str
    run: str
    fingerprint: str | None
    state: State
    reserved_at: str
    settled_at: str | None


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """The budget of one data set under one relation, for ``ledger show``."""

    dataset: str
    relation: Relation
    limit: Limit
    charged: Composition
    left: Remaining
    counts: dict[State, int]
