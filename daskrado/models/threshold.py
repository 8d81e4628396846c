"""Where to say yes: a threshold on margins, chosen from released counts."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from daskrado.models.evaluation import Cells
from daskrado.table.yaml_file import Frozen, shown

_ALLOWED = "is one of f1, youden, {cost: 5} (of a missed positive, in false alarms) and {rate: 0.1}"


class Rule(Frozen):
    """One of: ``cost`` of a positive that is missed, in false alarms; ``rate`` of yes; ``f1`` or ``youden``."""

    cost: float | None = Field(default=None, gt=0, le=1e6)
    rate: float | None = Field(default=None, gt=0, lt=1)
    largest: Literal["f1", "youden"] | None = None

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, content: object) -> object:
        if isinstance(content, str):
            key, equals, value = content.partition("=")
            if not equals and content not in ("f1", "youden"):
                raise ValueError(f"{_ALLOWED}, got {shown(content)}")
            return {key: value} if equals else {"largest": content}
        return content

    @model_validator(mode="after")
    def _one(self) -> Rule:
        if sum(part is not None for part in (self.cost, self.rate, self.largest)) != 1:
            raise ValueError(_ALLOWED)
        return self

    def __str__(self) -> str:
        if self.cost is not None:
            return f"a missed positive costs as much as {self.cost:g} false alarms"
        if self.rate is not None:
            return f"{100 * self.rate:g} % are called positive"
        return {"f1": "the largest F1", "youden": "the largest true minus false positive rate"}[str(self.largest)]

    def place(self, cells: Cells) -> int:
        """The best edge, as the number of bins below it: every figure is post-processing of the counts."""
        edges = range(1, len(cells.edges) + 1)
        missed = np.array([cells.positive[:at].sum() for at in edges])
        hit = np.array([cells.positive[at:].sum() for at in edges])
        alarms = np.array([cells.negative[at:].sum() for at in edges])
        if self.cost is not None:
            return int(np.argmin(self.cost * missed + alarms)) + 1
        if self.rate is not None:
            total = max(1.0, float(cells.positive.sum() + cells.negative.sum()))
            return int(np.argmin(np.abs((hit + alarms) / total - self.rate))) + 1
        if self.largest == "f1":
            return int(np.argmax(2 * hit / np.maximum(2 * hit + alarms + missed, 1.0))) + 1
        p, q = max(1.0, float(cells.positive.sum())), max(1.0, float(cells.negative.sum()))
        return int(np.argmax(hit / p - alarms / q)) + 1
