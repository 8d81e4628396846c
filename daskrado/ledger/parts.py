"""Parts of a data set that have no unit in common: a budget counts what is charged to each, and the fullest refuses.

A partition is fixed by a public rule on ids (``lake.holdout``), so each unit is in one part for good. What is
released from one part alone costs the units of the others nothing. Every unit's own loss is then what was charged to
all, plus what was charged to its part, and the limit's rule holds for that sum at all times: each part has its own
filter, valid for whoever chooses the next budget after earlier answers. A data set has one partition, the first that
it is charged under; a charge under any other counts for all parts. A charge may be to several parts of its partition,
as that of a fit on all folds but one: each of them pays the whole of it, and the others nothing.

*Reference*: McSherry (2009), parallel composition; Lécuyer et al. (2019), a filter for each block.
"""

from __future__ import annotations

from collections.abc import Iterable

from daskrado.ledger.records import Balance
from daskrado.privacy.filter import Cost

ALL = ""  # the part of a charge that reads every unit
_MARK = "/"  # between the name of a partition and that of a part
_AND = " + "  # between the names of several parts


def part_name(partition: str, *parts: str) -> str:
    """The name of a part in the ledger, or of several together."""
    return f"{partition}{_MARK}{_AND.join(parts)}"


def _each(part: str) -> list[str]:
    """The single parts that a charge is to."""
    partition, mark, names = part.rpartition(_MARK)
    return [f"{partition}{mark}{name}" for name in names.split(_AND)]


def charged(balance: Balance, cost: Cost, part: str, *, back: bool = False, entries: int = 1) -> Balance:
    """A balance after a charge to a part, or to all, of so many entries; ``back`` takes it away again."""
    known = dict(balance.parts) or {ALL: balance.total}
    for name in _each(_own(balance, part)):
        before = known.get(name, Cost())
        known[name] = before - cost if back else before + cost
    entries = balance.entries + (-entries if back else entries)
    common, rest = known[ALL], [value for key, value in known.items() if key != ALL]
    parts = tuple(sorted(known.items())) if rest else ()
    own, total = (
        (balance.dataset, balance.whose, balance.block, balance.rule),
        common + _worst(rest) if rest else common,
    )
    return Balance(*own, total, entries, parts)


def lost(balance: Balance, part: str) -> Cost:
    """The most that any unit of a part has lost; of all units where the part is not of the balance's partition."""
    known, name = dict(balance.parts), _own(balance, part)
    if not known or name == ALL:
        return balance.total
    return known[ALL] + _worst(known.get(one, Cost()) for one in _each(name))


def taken_whole(balance: Balance) -> bool:
    """Whether one event took all that some units may lose: then no counter tells what it costs by another rule."""
    return balance.rule.whole in {balance.total, *(lost(balance, name) for name, _ in balance.parts)}


def together(costs: Iterable[tuple[str, Cost]], balance: Balance) -> Cost:
    """What charges to parts, or to all, cost any unit of a balance at most: parts of another partition are all."""
    common, parts = Cost(), dict[str, Cost]()
    for part, cost in costs:
        if _own(balance, part) == ALL:
            common += cost
        else:
            parts[part] = parts.get(part, Cost()) + cost
    if len({name.rpartition(_MARK)[0] for name in parts}) > 1:
        return sum(parts.values(), common)
    single = dict[str, Cost]()
    for part, cost in parts.items():
        for name in _each(part):
            single[name] = single.get(name, Cost()) + cost
    return common + _worst(single.values())


def _own(balance: Balance, part: str) -> str:
    """The part that a charge counts for: all, where the balance has another partition."""
    names = [name for name, _ in balance.parts if name != ALL]
    return ALL if names and names[0].rpartition(_MARK)[0] != part.rpartition(_MARK)[0] else part


def _worst(costs: Iterable[Cost]) -> Cost:
    """Number by number the largest."""
    found = Cost()
    for one in costs:
        epsilon = None if found.epsilon is None or one.epsilon is None else max(found.epsilon, one.epsilon)
        found = Cost(epsilon, max(found.mu2, one.mu2), max(found.delta, one.delta), max(found.draws, one.draws))
    return found
