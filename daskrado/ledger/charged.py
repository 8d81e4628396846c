"""The debits of a data set that a new limit counts, by the blocks that they read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property

from daskrado.lake.block_facts import EACH
from daskrado.ledger.records import Debit


class Charged:
    """Debits that are not void, in the order in which their kinds came first; read once, and only if asked for."""

    def __init__(self, debits: Callable[[], Counter[Debit]]) -> None:
        self._debits = debits

    @cached_property
    def blocks(self) -> list[str]:
        """The blocks that a debit named."""
        return sorted(self._places.keys() - {EACH})

    def reading(self, block: str) -> Iterator[tuple[Debit, int]]:
        """The debits that read a block, or every block, or ("") anything, and the number of each."""
        if block:
            wanted = sorted({*self._places.get(EACH, ()), *self._places.get(block, ())})
        else:
            wanted = [*range(len(self._known))]
        found: Counter[Debit] = Counter()
        for debit, number in map(self._known.__getitem__, wanted):
            found[debit] += number
        yield from found.items()

    @cached_property
    def _counted(self) -> list[tuple[Debit, int]]:
        return list(self._debits().items())

    @cached_property
    def _known(self) -> list[tuple[Debit, int]]:
        """Without their blocks: those that cost alike are added up together."""
        return [(replace(debit, blocks=()), number) for debit, number in self._counted]

    @cached_property
    def _places(self) -> dict[str, list[int]]:
        """Where the debits stand that read a block, and, under EACH, those that read all of them."""
        found: dict[str, list[int]] = {}
        for place, (debit, _) in enumerate(self._counted):
            for block in (EACH,) if debit.reads(EACH) else set(debit.blocks):
                found.setdefault(block, []).append(place)
        return found
