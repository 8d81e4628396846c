"""What a sparse vector has paid and answered, in the lines of a journal: public facts only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskrado.ledger.journal import Journal, lines_of
from daskrado.ledger.lines import Closable


class Instances(Closable):
    """Opened instances, their answers, and public values that a caller wants back after a restart, in order.

    ``open_instance`` is on disk before a threshold is drawn and ``answer`` before an answer is returned, so a crash
    can lose an answer that nobody saw but never a payment. Without a journal nothing is kept.
    """

    def __init__(self, journal: Journal | None, name: str, settings: Mapping[str, Any]) -> None:
        self.opened = 0
        self.notes: list[Any] = []
        self._parts: list[NDArray[np.bool_]] = []
        self._lines = lines_of(journal, name, settings)
        for line in self._lines.entries:
            self._replay(line)

    @property
    def answers(self) -> NDArray[np.bool_]:
        """All answers, in order."""
        self._parts = [np.concatenate([np.zeros(0, dtype=bool), *self._parts])]
        return self._parts[0].copy()

    def open_instance(self) -> None:
        """Pay for one more instance, before its threshold is drawn."""
        self._lines.append({"open": self.opened + 1})
        self.opened += 1

    def answer(self, above: NDArray[np.bool_]) -> None:
        """Keep answers, before they are returned."""
        if len(above):
            self._lines.append({"above": "".join("01"[int(a)] for a in above)})
            self._parts.append(np.array(above, dtype=bool))

    def note(self, value: Any) -> None:
        """Keep a public value."""
        self._lines.append({"note": value})
        self.notes.append(value)

    def close(self) -> None:
        """Release the file."""
        self._lines.close()

    def _replay(self, line: Any) -> None:
        match line:
            case {"open": number} if number == self.opened + 1:
                self.opened = number
            case {"above": str(flags)} if set(flags) <= {"0", "1"}:
                self._parts.append(np.array([flag == "1" for flag in flags], dtype=bool))
            case {"note": value}:
                self.notes.append(value)
            case _:
                raise self._lines.damaged()
