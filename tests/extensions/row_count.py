"""A kind of job of one's own: how many rows the lake has, privately."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from daskrado.jobs.base import Charge, Line, Outcome, PrivateJob, Run
from daskrado.jobs.report import Section
from daskrado.privacy.accountant import PureEvent
from daskrado.privacy.noise import discrete_laplace
from daskrado.privacy.protect import Private
from daskrado.privacy.statement import PrivacyStatement

ROLE = "count"


class RowCountJob(PrivateJob):
    """The number of rows, with discrete Laplace noise."""

    name: ClassVar[str] = "row_count"
    without_privacy: ClassVar[str] = "the exact count"

    def charges(self) -> tuple[Charge, ...]:
        """Pure epsilon."""
        if not isinstance(self.privacy, Private):
            return ()
        event = PureEvent(self.privacy.budget.epsilon)
        statement = PrivacyStatement.of(
            event,
            self.privacy.protect,
            self.privacy.budget,
            mechanism="laplace",
            theorem="discrete Laplace mechanism",
            assumptions=self.assumptions,
        )
        return (Charge(ROLE, event, statement, room=64),)

    def plan(self) -> Iterator[Line]:
        """The noise."""
        yield "counts", "the rows of the lake, from its footers"

    def work(self, run: Run) -> Outcome:
        """Count, spend, draw."""
        if not run.charges:
            return self._outcome(run.lake.rows, PrivacyStatement.none())
        units, epsilon = run.charges[ROLE].statement.rows_per_unit, float(run.charges[ROLE].event.epsilon)
        drawn = run.draw(
            ROLE,
            lambda: np.array([run.lake.rows], dtype=np.int64),
            lambda exact: {"count": discrete_laplace(exact, units / epsilon)},
        )
        return self._outcome(int(drawn["count"][0]), run.charges[ROLE].statement)

    def _outcome(self, count: int, statement: PrivacyStatement) -> Outcome:
        return Outcome(
            count,
            statement,
            facts={"count": count},
            lines=[f"about {count:,} rows"],
            sections=lambda: [Section("Rows", rows=[("about", f"{count:,}")])],
        )
