"""How a model's margins are used: as probabilities, as ranks, and from which margin on the answer is yes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from daskrado.errors import UsageError
from daskrado.models.evaluation import Cells
from daskrado.models.link import Link, Pieces, fitted, link_from_json
from daskrado.models.threshold import Rule


@dataclass(frozen=True)
class Decision:
    """A link that was fitted to released counts, ``ranks`` of margins among those counted, a threshold on margins.

    ``chosen`` says how the threshold was chosen; without that it is 0, the loss's own.
    """

    link: Link | None = None
    threshold: float = 0.0
    chosen: str = ""
    ranks: Pieces | None = None

    @classmethod
    def of(cls, cells: Cells, rule: Rule | None, about: str) -> Decision:
        """What released counts say: post-processing, which costs nothing more."""
        link = fitted(cells, about)
        if rule is None:
            return cls(link, ranks=_ranks(cells, about))
        return cls(link, float(cells.edges[rule.place(cells) - 1]), str(rule), _ranks(cells, about))

    def to_json(self) -> dict[str, Any]:
        """As it stands in a model's file."""
        return {
            "link": None if self.link is None else self.link.to_json(),
            "threshold": self.threshold,
            "chosen": self.chosen,
            "ranks": None if self.ranks is None else self.ranks.to_json(),
        }

    @classmethod
    def from_json(cls, content: Any, where: str) -> Decision:
        """Read what :meth:`to_json` wrote; anything else is refused in one line."""
        if content is None:
            return cls()
        try:
            threshold, chosen, ranks = float(content["threshold"]), content["chosen"], content["ranks"]
            link = None if content["link"] is None else link_from_json(content["link"], where)
            known = None if ranks is None else link_from_json(ranks, where)
            if math.isnan(threshold) or not isinstance(chosen, str) or not isinstance(known, Pieces | None):
                raise ValueError
        except (KeyError, TypeError, ValueError):
            raise UsageError(f"{where}: decision does not say link, threshold, chosen and ranks") from None
        return cls(link, threshold, chosen, known)


def _ranks(cells: Cells, about: str) -> Pieces:
    """The share of units with a smaller margin, at each edge; noisy sums are made to rise."""
    from scipy.optimize import isotonic_regression

    total = np.cumsum(cells.negative + cells.positive)
    rising = np.asarray(isotonic_regression(np.clip(total[:-1] / max(1.0, float(total[-1])), 0.0, 1.0)).x)
    width = float(cells.edges[-1] - cells.edges[0]) / max(1, len(cells.edges) - 1) or 1.0
    edges = [float(cells.edges[0]) - width, *cells.edges.tolist(), float(cells.edges[-1]) + width]
    return Pieces(tuple(edges), (0.0, *rising.tolist(), 1.0), about)
