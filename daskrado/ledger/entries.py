"""Debits and what became of them, read from the records of the chain."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

from daskrado.errors import DaskradoError, LedgerError, UsageError
from daskrado.ledger.chain import Kind, Record, canonical
from daskrado.ledger.records import Debit, LedgerEntry, State
from daskrado.ledger.store import Rows
from daskrado.privacy.accountant import Event, event_from_json
from daskrado.privacy.filter import Filter, following
from daskrado.privacy.groups import ProtectedUnit, steps
from daskrado.privacy.relations import Relation

_SETTLED = {Kind.SPEND: State.SPENT, Kind.PUBLISH: State.PUBLISHED, Kind.VOID: State.VOID}


def whose(relation: Relation | str | ProtectedUnit) -> ProtectedUnit:
    """Whom a relation alone protects: one row. All features that may be flipped count as one."""
    if isinstance(relation, ProtectedUnit):
        return relation
    try:
        kind = Relation(relation)
    except ValueError:
        raise UsageError(f"unknown relation {relation!r}; known: {', '.join(Relation)}") from None
    return ProtectedUnit(kind, feature="" if kind is Relation.FEATURE_FLIP else None)


def people(
    relation: str | None, column: str | None, unit: str | None, owns: int | None, within: str | None = None
) -> ProtectedUnit:
    """Whom a limit is for: rows, or those whose ids a column holds, with all rows or those ``within`` a value."""
    kind = whose(relation or Relation.ADD_REMOVE)
    if column is None:
        if (unit, owns, within) != (None, None, None):
            raise UsageError(
                "a limit for people names the column of their ids: give --column, or drop --unit, --owns and --within"
            )
        return kind
    called = f"one {column}" + ("" if within is None else f" and {within}")
    return replace(kind, column=column, unit=unit or called, owns=owns, within=within)


def following_limits(relation: Relation | str | ProtectedUnit, rule: Filter) -> list[tuple[ProtectedUnit, Filter]]:
    """A limit under one relation, and one under every other: what follows from it, or the same where nothing does.

    So a first limit locks nobody out, and a release takes no larger share of a limit that follows than of its own.
    Where what follows is above epsilon 50, there is none.
    """
    stated, found = whose(relation), []
    for kind in Relation:
        other = replace(stated, relation=kind, feature="" if kind is Relation.FEATURE_FLIP else None)
        often = steps(stated, other) or 1
        limit = rule if often == 1 else following(rule, often)
        if limit is not None:
            found.append((stated if kind is stated.relation else other, limit))
    return found


def without_limit(limits: Sequence[tuple[ProtectedUnit, Filter]]) -> str:
    """A line on relations for which no limit follows, or nothing."""
    given = {one.relation for one, _ in limits}
    none = [str(kind) for kind in Relation if kind not in given]
    if not none:
        return ""
    return (
        f"none under {' and '.join(none)}, where more than epsilon 50 would follow: set one with --relation {none[0]}"
    )


def debit_of(rows: Rows, record: Record) -> Debit:
    """The debit that a record holds; what this version cannot read is never a free release."""
    facts = record.facts
    try:
        event, protected = _event(canonical(facts["event"])), ProtectedUnit(**facts["whose"])
    except (DaskradoError, ValueError, KeyError, TypeError) as error:
        raise LedgerError(f"the ledger {rows.address} holds something unreadable: {error}") from error
    role, part = (facts.get(key, "") for key in ("role", "part"))
    return Debit(protected, event, facts["theorem"], tuple(facts["blocks"]), role, part=part)


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
        role=debit.role,
        who=first.who,
        whose=debit.whose,
        blocks=debit.blocks,
        fingerprint=first.fingerprint,
        state=_SETTLED[settled[-1].kind] if settled else State.RESERVED,
        draws=sum(record.kind is Kind.DRAW for record in later),
        table=first.facts.get("table"),
        published=published,
        reserved_at=first.at,
        part=debit.part,
    )


@lru_cache(maxsize=4096)
def _event(text: str) -> Event:
    return event_from_json(json.loads(text))
