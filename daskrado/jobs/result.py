"""The one result type: what a run of any kind leaves behind. It holds no lake, no frame and no graph."""

from __future__ import annotations

import html
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from daskrado.models.linear import LinearModel
from daskrado.privacy.statement import PrivacyStatement

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, repr=False)
class Result:
    """What a run released, what it protects and what it cost; all of it publishable.

    ``value`` is what the kind is about (a model, sets of rados, answers); ``model`` and ``release`` are there where
    the kind has them; ``budget`` is the state of each budget that was charged; ``lines`` is the summary that the
    command line prints.
    """

    kind: str
    run: str
    dataset: str
    value: Any
    statement: PrivacyStatement
    budget: tuple[dict[str, Any], ...] = ()
    model: LinearModel | None = None
    release: Any = None
    facts: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    lines: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<daskrado {self.kind} run {self.run[:12]} of {self.dataset!r}: {self.statement.sentence()}>"

    def _repr_html_(self) -> str:
        """What a notebook shows: statement, budget, headline figures."""
        colour = "#2f855a" if self.statement.private else "#c53030"
        lines = "".join(f"<li>{html.escape(line.strip())}</li>" for line in self.lines[1:])
        return (
            f'<div style="border-left:6px solid {colour};padding:.4rem 1rem">'
            f"<b>{html.escape(self.kind)}</b> of {html.escape(self.dataset)}, run {html.escape(self.run[:12])}<br>"
            f"{html.escape(self.statement.sentence())}<ul>{lines}</ul></div>"
        )

    @property
    def rows(self) -> int | None:
        """The number of rows, where it is public."""
        return self.facts.get("rows")

    @property
    def coefficients(self) -> pd.DataFrame:
        """Weights by feature, largest first."""
        if self.model is None:
            raise AttributeError(f"a result of kind {self.kind} has no model")
        frame = self.model.coefficients.to_frame()
        return frame.reindex(frame["weight"].abs().sort_values(ascending=False).index)
