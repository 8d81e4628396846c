"""The nights of a continual release: which blocks each of them read, what is kept of it, and what was lost.

A night's draw is named after its number and its blocks, is counted in the ledger before it is made, and what it
released is kept in the journal. Its noise is not: it comes from the journal's secret key and its name. A journal that
lacks a counted draw is an older copy and draws nothing: the noise of one name would be on two sums. A night that was
cut off between counting and keeping is lost: its blocks are never read again, so no row is in two nights.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Sequence

from daskrado.errors import LedgerError
from daskrado.ledger.endings import outdated
from daskrado.ledger.journal import Journal
from daskrado.privacy.continual import Night

AGAIN = "begin a new horizon, charged anew, by removing the journal of this one"


class Nights:
    """What a journal knows of the nights that the ledger ``counted``."""

    def __init__(self, journal: Journal, counted: Collection[str]) -> None:
        self._journal = journal
        planned = {int(night): tuple(blocks) for night, blocks in journal.content.get("nights", {}).items()}
        self.blocks = {night: own for night, own in planned.items() if _name(night, own) in counted}
        names = {_name(night, own) for night, own in self.blocks.items()}
        self.kept: dict[int, Night] = {}
        for night, own in sorted(self.blocks.items()):
            stored = journal.kept(_name(night, own))
            if stored is not None:
                self.kept[night] = Night(_name(night, own), stored["released"])
            elif not journal.begun(_name(night, own)):
                names.remove(_name(night, own))
        if missing := {*counted} - names:
            raise LedgerError(
                outdated("the journal of the continual release", missing, f"{AGAIN} ({journal.folder})")
            )

    def key(self) -> bytes:
        """The secret that all noise of this horizon comes from."""
        return self._journal.secret("noise")

    @property
    def last(self) -> int:
        """The number of the last night; 0 before the first."""
        return max(self.blocks, default=0)

    @property
    def lost(self) -> dict[int, tuple[str, ...]]:
        """Nights that were cut off as their noise was drawn, with their blocks."""
        return {night: own for night, own in sorted(self.blocks.items()) if night not in self.kept}

    def new(self, blocks: Sequence[str]) -> list[str]:
        """Those blocks that no night has read."""
        read = {block for own in self.blocks.values() for block in own}
        return [block for block in blocks if block not in read]

    def draw(
        self,
        blocks: Sequence[str],
        size: int,
        count: Callable[[str, str], None],
        release: Callable[[int, str], Night],
    ) -> None:
        """The next night: its blocks are on disk before its draw is counted, and that before it is made."""
        night, journal, own = self.last + 1, self._journal, tuple(blocks)
        name = _name(night, own)
        journal.set_aside(name, 8 * size)
        journal.remember(nights={str(n): list(b) for n, b in {**self.blocks, night: own}.items()})
        try:
            journal.begin(name)
            count(name, _place(night))  # two copies of a journal may have other blocks for it
            drawn = release(night, name)
            journal.keep(name, {"released": drawn.released})
        except OSError as error:
            raise LedgerError(
                f"{journal.folder}: cannot be written ({error.strerror}); night {night} may be lost, run again"
            ) from error
        self.blocks[night], self.kept[night] = own, drawn


def _place(night: int) -> str:
    return f"night@{night:05d}-"


def _name(night: int, blocks: Sequence[str]) -> str:
    digest = hashlib.sha256(json.dumps([*blocks]).encode()).hexdigest()
    return f"{_place(night)}{digest[:16]}"
