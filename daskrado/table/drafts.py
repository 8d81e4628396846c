"""Drafts of domains: what is still open (...) in one, and the same text with what was found written into it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from daskrado.errors import UsageError
from daskrado.table.domain import Domain
from daskrado.table.yaml_file import OPEN, parse

_STAND_INS: dict[str, Any] = {"lower": -1.0, "upper": 1.0, "values": ["\0"]}
_LATER = {"bins", "transform", "nulls"}  # keys that may not fit stand-ins
_SIDES = {"positive": ["\0"], "negative": "rest"}


def stand_in(draft: Any, where: str) -> tuple[Domain, dict[str, dict[str, Any]]]:
    """A Domain with stand-ins for what is open, and the columns to look at as the draft has them.

    Those are the ones with an open key, booleans without a word on nulls, and the label where its sides are open.
    """
    if not isinstance(draft, Mapping) or not isinstance(draft.get("columns"), Mapping):
        raise UsageError(f"{where}: is no domain; daskrado init writes a draft of one")
    content = dict(draft)
    find: dict[str, dict[str, Any]] = {}
    columns = content["columns"] = {**draft["columns"]}
    for name, column in draft["columns"].items():
        if not isinstance(column, Mapping):
            continue
        keys = open_in(column)
        if keys or (column.get("kind") == "boolean" and "nulls" not in column):
            find[str(name)] = dict(column)
        if keys:
            columns[name] = {key: _STAND_INS.get(key, column[key]) for key in column if key not in _LATER}
    label = draft.get("label")
    if isinstance(label, Mapping) and set(open_in(label)) & _SIDES.keys():
        find[str(label.get("column"))] = {key: label[key] for key in _SIDES if key in label}
        content["label"] = {**label, **_SIDES}
    if not any(map(open_in, find.values())):
        raise UsageError(f"{where}: nothing in it is open (...): there is nothing to find")
    return parse(Domain, content, where), find


def open_in(column: Mapping[str, Any]) -> tuple[str, ...]:
    """The open keys of a column."""
    return tuple(key for key, value in column.items() if isinstance(value, str) and value == OPEN)


def filled(text: str, found: Mapping[str, Mapping[str, Any] | str], notes: Iterable[str], more: str) -> str:
    """A draft's text with facts written where it is open, comments and order kept.

    ``found`` has the keys of each column, or why it is no feature: then its lines become a comment. ``notes`` stand
    at the top as comments, ``more`` at the end.
    """
    root: Any = yaml.compose(text, Loader=yaml.SafeLoader)
    columns = next(value for key, value in root.value if key.value == "columns")
    edits: list[tuple[int, int, str]] = []
    for key, value in columns.value:
        facts = found.get(key.value)
        if isinstance(facts, str):
            edits.append(_commented(text, key, value, facts))
        elif facts:
            edits += _written(value, dict(facts))
    for start, stop, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[stop:]
    head = "".join(f"# {note}\n" for note in notes)
    return f"{head}{text.rstrip()}\n{more}"


def _written(value: Any, facts: dict[str, Any]) -> Iterable[tuple[int, int, str]]:
    """Values in the place of the open ones; further keys after the last one."""
    for key, old in value.value:
        if key.value in facts:
            yield old.start_mark.index, old.end_mark.index, flow(facts.pop(key.value))
    if facts:
        last_key, last = value.value[-1]
        between = ", " if value.flow_style else "\n" + " " * last_key.start_mark.column
        rest = "".join(f"{between}{flow(key)}: {flow(item)}" for key, item in facts.items())
        yield last.end_mark.index, last.end_mark.index, rest


def _commented(text: str, key: Any, value: Any, why: str) -> tuple[int, int, str]:
    """A column's lines as a comment."""
    start = text.rindex("\n", 0, key.start_mark.index) + 1
    inner = text[start : value.end_mark.index].rstrip()
    stop = text.find("\n", start + len(inner))
    stop = len(text) if stop < 0 else stop
    lines = text[start:stop].rstrip().splitlines()
    return start, stop, "\n".join([f"# no feature: {key.value!r}, {why}", *(f"# {line}" for line in lines)])


def flow(value: Any) -> str:
    """A value in one line of YAML; what is open as plain dots."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{flow(key)}: {flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, str) and value == OPEN:
        return OPEN
    plain = list(value) if isinstance(value, tuple) else value
    text = yaml.safe_dump([plain], default_flow_style=True, allow_unicode=True, width=1 << 30)  # as it is in brackets
    return text.strip()[1:-1]
