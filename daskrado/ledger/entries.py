"""Debits and what became of them, read from the records of the chain."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from daskrado.errors import DaskradoError, LedgerError, UsageError
from daskrado.ledger.chain import Kind, Record, canonical
from daskrado.ledger.records import LedgerEntry, State
from daskrado.ledger.store import Rows
from daskrado.privacy.accountant import Event, event_from_json, event_to_json
from daskrado.privacy.groups import Whose
from daskrado.privacy.relations import Relation

_SETTLED = {Kind.SPEND: State.SPENT, Kind.PUBLISH: State.PUBLISHED, Kind.VOID: State.VOID}


@dataclass(frozen=True, slots=True)
class Debit:
    """What is asked of a budget, and for whom. ``blocks`` are those that the release reads; none means all."""

    whose: Whose
    event: Event
    theorem: str
    blocks: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As a record keeps it."""
        return {
            "whose": self.whose.to_json(),
            "event": event_to_json(self.event),
            "theorem": self.theorem,
            "blocks": list(self.blocks),
        }


def whose(relation: Relation | str | Whose) -> Whose:
    """Whom a relation alone protects: one row. All features that may be flipped count as one."""
    if isinstance(relation, Whose):
        return relation
    try:
        kind = Relation(relation)
    except ValueError:
        raise UsageError(f"unknown relation {relation!r}; known: {', '.join(Relation)}") from None
    return Whose(kind, feature="" if kind is Relation.FEATURE_FLIP else None)


def debit_of(rows: Rows, record: Record) -> Debit:
    """The debit that a record holds; what this version cannot read is never a free release."""
    facts = record.facts
    try:
        event, protected = _event(canonical(facts["event"])), Whose(**facts["whose"])
    except (DaskradoError, ValueError, KeyError, TypeError) as error:
        raise LedgerError(f"the ledger {rows.address} holds something unreadable: {error}") from error
    return Debit(protected, event, facts["theorem"], tuple(facts["blocks"]))


def entries_from(rows: Rows, records: Iterable[Record]) -> list[LedgerEntry]:
    """Entries from all their records, oldest first."""
    told: dict[int, list[Record]] = {}
    for record in records:
        if record.entry is not None:
            told.setdefault(record.entry, []).append(record)
    return [_entry(rows, *own) for own in told.values()]


def _entry(rows: Rows, first: Record, *later: Record) -> LedgerEntry:
    debit = debit_of(rows, first)
    settled = [record for record in later if record.kind in _SETTLED]
    published = next((record.facts["digest"] for record in later if record.kind is Kind.PUBLISH), None)
    assert first.entry is not None
    return LedgerEntry(
        id=first.entry,
        dataset=first.dataset,
        relation=debit.whose.relation,
        event=debit.event,
        theorem=debit.theorem,
        run=first.run,
        who=first.who,
        whose=debit.whose,
        blocks=debit.blocks,
        fingerprint=first.fingerprint,
        state=_SETTLED[settled[-1].kind] if settled else State.RESERVED,
        draws=sum(record.kind is Kind.DRAW for record in later),
        published=published,
        reserved_at=first.at,
        settled_at=settled[-1].at if settled else None,
    )


@lru_cache(maxsize=4096)
def _event(text: str) -> Event:
    return event_from_json(json.loads(text))
