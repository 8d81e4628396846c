"""A way of one's own to answer from teachers' votes: twice the Gaussian noise that the budget asks for."""

from __future__ import annotations

from typing import ClassVar

from daskrado.engines.answers import GaussianVotes, Terms
from daskrado.ledger.journal import Journal


class WideVotes(GaussianVotes):
    """Gaussian noise of twice the scale, charged as if it were not."""

    name: ClassVar[str] = "wide"

    def __init__(self, terms: Terms, journal: Journal | None = None) -> None:
        super().__init__(terms, journal)
        self.scale *= 2
