"""What releases cost together, theorem by theorem: the table and the plot of ``daskrado compose``."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from daskrado.errors import UsageError
from daskrado.ledger.ledger import Ledger, LedgerEntry, State
from daskrado.privacy.accountant import (
    Amount,
    ApproximateEvent,
    Composition,
    Event,
    GaussianEvent,
    PureEvent,
    ZcdpEvent,
    compose,
    compose_all,
    group_event,
)
from daskrado.privacy.relations import Relation

_RELEASE = re.compile(r"\s*(?:(rho=|mu=)?([^,x]+)(?:,([^,x]+))?)(?:x(\d+))?\s*")
MAX_RELEASES = 1_000_000


@dataclass(frozen=True)
class Odometer:
    """The cost of 1, 2, 5, ... rounds of some releases, by every theorem and by the best of them."""

    counts: tuple[int, ...]
    delta: float
    theorems: dict[str, list[float]]
    best: list[Composition]


def read_release(text: str) -> list[Event]:
    """``0.1`` is pure, ``0.1,1e-8`` has a delta, ``rho=0.01`` is zCDP, ``mu=0.1`` Gaussian; ``x20`` repeats it."""
    found = _RELEASE.fullmatch(text)
    if found is None:
        raise UsageError(
            f"a release is written 0.1, 0.1,1e-8, rho=0.01 or mu=0.1, with x20 to repeat it; got {text!r}"
        )
    kind, amount, delta, times = found.groups()
    repeat = int(times or 1)
    if not 1 <= repeat <= MAX_RELEASES:
        raise UsageError(f"a release is repeated between 1 and {MAX_RELEASES:,} times, got {text!r}")
    event: Event
    if kind:
        if delta:
            raise UsageError(f"{kind[:-1]} has no delta of its own, got {text!r}")
        event = ZcdpEvent(amount) if kind == "rho=" else GaussianEvent(amount)
    else:
        event = ApproximateEvent(amount, delta) if delta else PureEvent(amount)
    return [event] * repeat


def odometer(events: Sequence[Event], rounds: int, delta: Amount, rows_per_person: int = 1) -> Odometer:
    """Costs at 1, 2, 5, 10, ... rounds of all ``events``, for a person with some rows."""
    if not events:
        raise UsageError("no release was given")
    if not (rounds >= 1 and rounds * len(events) <= MAX_RELEASES):
        raise UsageError(
            f"between 1 and {MAX_RELEASES:,} releases in all can be composed, got {rounds * len(events):,}"
        )
    grown = [group_event(event, rows_per_person) for event in events]
    ladder = (m * 10**power for power in range(7) for m in (1, 2, 5))
    counts = tuple(sorted({count for count in ladder if count < rounds} | {rounds}))
    theorems: dict[str, list[float]] = {}
    for column in zip(*(compose_all(grown * count, delta) for count in counts), strict=True):
        name = " or ".join(dict.fromkeys(found.method for found in column))
        # Rhos that add up are zCDP by the plain sum, too: one column of that name is enough.
        theorems.setdefault(name, [float(found.epsilon) for found in column])
    best = [compose(grown * count, delta) for count in counts]
    if best[0].epsilon == math.inf:
        raise UsageError(f"these releases have no finite epsilon at delta {delta!s}; give a larger --delta")
    return Odometer(counts, float(best[0].delta), theorems, best)


def charged_events(ledger: Ledger, dataset: str, relation: Relation | str | None) -> list[Event]:
    """The events that a data set has been charged, under one relation: different relations are never added."""
    allowed = [str(known) for known in Relation]
    if relation is not None and str(relation) not in allowed:
        raise UsageError(f"relation {relation!s} is unknown; allowed: {', '.join(allowed)}")
    return one_relation(
        entry
        for entry in ledger.entries(dataset)
        if entry.state is not State.VOID and (relation is None or entry.relation == Relation(relation))
    )


def one_relation(entries: Iterable[LedgerEntry]) -> list[Event]:
    """The events of ledger entries, if all protect the same thing; else a UsageError."""
    known = list(entries)
    relations = sorted({str(entry.relation) for entry in known})
    if len(relations) > 1:
        raise UsageError(
            f"charges under {' and '.join(relations)} protect different things and are never added: choose a relation"
        )
    return [entry.event for entry in known]


def odometer_lines(found: Odometer) -> Iterator[str]:
    """A table: one line for each number of rounds, one column for each theorem."""
    names = [name for name, values in found.theorems.items() if any(value < math.inf for value in values)]
    widths = [max(len(name), 9) for name in names]
    yield f"epsilon at delta {found.delta:g}"
    yield f"{'rounds':>9}  " + "  ".join(f"{name:>{w}}" for name, w in zip(names, widths, strict=True)) + "  best"
    for row, count in enumerate(found.counts):
        cells = (f"{found.theorems[n][row]:>{w}.4f}" for n, w in zip(names, widths, strict=True))
        best = found.best[row]
        yield f"{count:>9,}  " + "  ".join(cells) + f"  {float(best.epsilon):.4f} ({best.method})"
