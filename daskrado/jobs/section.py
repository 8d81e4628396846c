"""One part of a report: what a kind of job, a statistic or an extension has to show."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Section:
    """``header`` names the columns of ``rows``; without it, rows are key and value. A plot has its numbers beside it.

    ``folded`` rows open on a click and are printed; a ``detail`` stands behind results, privacy and budget.
    """

    title: str
    text: str = ""
    rows: Sequence[Sequence[str]] = ()
    header: Sequence[str] = ()
    plot: str = ""
    folded: bool = False
    detail: bool = False

    @property
    def anchor(self) -> str:
        """Its place in the page.

        >>> Section("What it means, for one person?").anchor
        'what-it-means-for-one-person'
        """
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-") or "section"
