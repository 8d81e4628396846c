"""What a lake's schema proposes for a Domain: ids, dates, booleans, categories and numbers, by names and types alone.

No row is read, nor what footers say of rows (extremes, null counts): those are values.
Bounds and categories stay open.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from daskrado.errors import UsageError
from daskrado.table.nearest import no_column
from daskrado.table.type_hints import is_number, is_text
from daskrado.table.yaml_file import OPEN

_ID_WORDS = {"id", "ids", "nbr", "nr", "uuid", "guid", "key", "mrn", "ssn", "number"}
_WHO = {"customer", "client", "patient", "subject", "person", "member", "user", "account", "serial"}  # by themselves
_CODE_WORDS = {"type", "code", "class", "category", "group", "source", "status", "disposition", "kind", "level"}
_NUMBERING = {"index", "unnamed: 0", "rownames", "row"}  # as pandas and R call row numbers
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


@dataclass(frozen=True)
class Proposal:
    """The columns of a draft by name, those that are no features with the reason, and the column of record ids."""

    columns: dict[str, dict[str, Any]] = field(default_factory=dict)
    excluded: dict[str, str] = field(default_factory=dict)
    record: str | None = None


def propose(
    schema: pa.Schema,
    label: str,
    *,
    unit: str | None = None,
    record: str | None = None,
    drop: Collection[str] = (),
    known: Mapping[str, Mapping[str, Any]] | None = None,
    bins: bool = False,
) -> Proposal:
    """Columns of a draft; ``known`` are facts that another file gives, by column."""
    for option, name in (("--label", label), ("--unit", unit), ("--id", record), *(("--drop", one) for one in drop)):
        if name is not None and name not in schema.names:
            raise UsageError(f"{option} {name}: {no_column(name, schema.names)}")
    columns: dict[str, dict[str, Any]] = {}
    excluded: dict[str, str] = {}
    for one in schema:
        if one.name == label:
            continue
        facts = (known or {}).get(one.name)
        reason = "given with --drop" if one.name in drop else _reason(one, unit, record, facts)
        draft = None if reason else drafted(one.type, facts, codes=_is_code(one.name), bins=bins)
        if draft is None:
            excluded[one.name] = reason or f"its type is {one.type}"
        else:
            columns[one.name] = draft
    if not columns:
        raise UsageError(f"the lake has no column that could be a feature beside {label}")
    return Proposal(columns, excluded, record or _record(schema, excluded, unit))


def _reason(one: pa.Field, unit: str | None, record: str | None, facts: Mapping[str, Any] | None) -> str:
    """Why a column is no feature; nothing where it is."""
    if one.name == unit:
        return "it names the unit"
    if one.name == record:
        return "it names the record"
    if one.name.casefold() in _NUMBERING and facts is None and pa.types.is_integer(one.type):
        return "it numbers the rows"
    return "it names something" if facts is None and names_something(one) else ""


def names_something(one: pa.Field) -> bool:
    """Whether a column is an id, as far as its name and type say; a code such as admission_type_id is none."""
    if isinstance(one.type, pa.BaseExtensionType):
        return "uuid" in str(one.type)
    if not (is_text(one.type) or pa.types.is_integer(one.type)):
        return False
    words = _words(one.name)
    return bool(words) and (words[-1] in _ID_WORDS or {*words} <= _WHO) and not _is_code(one.name)


def _words(name: str) -> list[str]:
    return [word.lower() for word in _WORDS.findall(name)]


def _is_code(name: str) -> bool:
    """Whether numbers in a column stand for categories."""
    words = _words(name)
    return len(words) > 1 and words[-1] in {"id", "code", "nr", "nbr"} and bool(_CODE_WORDS & set(words))


def _record(schema: pa.Schema, excluded: Collection[str], unit: str | None) -> str | None:
    """The one id beside the unit's, where there is exactly one."""
    ids = [one.name for one in schema if one.name in excluded and one.name != unit and names_something(one)]
    ids = [name for name in ids if not {*_words(name)} <= _WHO]
    plain = [name for name in ids if not isinstance(schema.field(name).type, pa.BaseExtensionType)]
    return plain[0] if len(plain) == 1 else None


def drafted(
    kind: pa.DataType, facts: Mapping[str, Any] | None, *, codes: bool = False, bins: bool = False
) -> dict[str, Any] | None:
    """The draft of one column, with facts where they are known; None where its type can be no feature."""
    if pa.types.is_boolean(kind):
        draft: dict[str, Any] = {"kind": "boolean"}
    elif is_text(kind) or (facts and "values" in facts) or (codes and pa.types.is_integer(kind)):
        draft = {"kind": "categorical", "values": OPEN}
    elif is_number(kind):
        draft = {"kind": "numeric", "lower": OPEN, "upper": OPEN} | ({"bins": OPEN} if bins else {})
    elif pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        draft = {"kind": "date", "lower": OPEN, "upper": OPEN}
    else:
        return None
    same = not facts or facts.get("kind", draft["kind"]) == draft["kind"]
    return draft | {key: value for key, value in (facts or {}).items() if same and key != "kind"}
