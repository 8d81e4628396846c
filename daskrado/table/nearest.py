"""What somebody may have meant: the nearest allowed word, and the keys that a file may have at a place."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, get_args

from pydantic import BaseModel

MOST_SHOWN = 12  # of allowed words in one line


def did_you_mean(word: str, allowed: Iterable[str]) -> str:
    """A question to add to an error where one allowed word is near; nothing where none is.

    >>> did_you_mean("budgt", ["budget", "lake"]), did_you_mean("Yes", ["yes", "no"]), did_you_mean("x", ["lake"])
    ('; did you mean budget?', '; did you mean yes?', '')
    """
    known = list(dict.fromkeys(allowed))
    folded = {name.casefold(): name for name in reversed(known)}
    near = difflib.get_close_matches(word[:80].casefold(), list(folded), 1, 0.7)
    return f"; did you mean {folded[near[0]]}?" if near else ""


def no_column(name: str, names: Sequence[str]) -> str:
    """That a lake lacks a column, what it has instead, and what may have been meant."""
    more = ", ..." if len(names) > 20 else ""
    return f"the lake has no such column; it has {', '.join(names[:20])}{more}{did_you_mean(name, names)}"


def meant_or_allowed(word: str, allowed: Iterable[str]) -> str:
    """The nearest allowed word, else the allowed ones, at most MOST_SHOWN of them."""
    known = list(allowed)
    more = f" and {len(known) - MOST_SHOWN} more" if len(known) > MOST_SHOWN else ""
    return did_you_mean(word, known) or (f"; allowed: {', '.join(known[:MOST_SHOWN])}{more}" if known else "")


def allowed_keys(model: type[BaseModel], place: Sequence[Any]) -> list[str]:
    """The keys that a file may have at a place of pydantic's, which also names branches of unions."""
    candidates = [model]
    for part in place:
        inner = [found for one in candidates for found in _below(one, part)]
        named = [one for one in candidates if part in _kinds(one)]
        candidates = inner or named or candidates
    return list(dict.fromkeys(name for one in candidates for name in one.model_fields))


def _below(model: type[BaseModel], part: Any) -> Iterator[type[BaseModel]]:
    """The models that a field may hold."""
    field = model.model_fields.get(part) if isinstance(part, str) else None
    hints = [] if field is None else [field.annotation]
    while hints:
        hint = hints.pop()
        hints += get_args(hint)
        if isinstance(hint, type) and issubclass(hint, BaseModel):
            yield hint


def _kinds(model: type[BaseModel]) -> tuple[Any, ...]:
    """What ``kind`` may say in a model of a union."""
    kind = model.model_fields.get("kind")
    return () if kind is None else get_args(kind.annotation)
