"""kind: adaboost. The baseline on the rows themselves, one pass a round; it protects nobody, and says so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field

from daskrado.jobs.base import Job, Line, Outcome, Run
from daskrado.lake.seeds import SignatureKey
from daskrado.learners.on_passes.adaboost import AdaBoost
from daskrado.models.linear import LinearModel
from daskrado.table.lattice import Lattice


class AdaBoostJob(Job, AdaBoost):
    """AdaBoost on all rows of a lake, or on a sample of exactly ``sample`` of them; its options are the keys."""

    name: ClassVar[str] = "adaboost"
    title: ClassVar[str] = "{job.dataset}: AdaBoost on the rows"

    private: Literal[False] = Field(description="must be written out: this baseline protects nobody")
    seed: int = Field(default=0, ge=0)
    clamp: float = Field(default=0.999999, gt=0, lt=1)

    def plan(self) -> Iterator[Line]:
        yield "learner", f"adaboost, {self.rounds} rounds, one pass each"

    def work(self, run: Run) -> Outcome:
        """Boost over the lake; rows stay in memory where they fit."""
        lattice, key = Lattice(self.domain.norm_bound), SignatureKey.from_seed(self.seed)
        with run.passes(lattice, placed=True, key=key) as passes, run.clock("boost"):
            weights, details = self.fit(passes.sum, self.domain.width, run.progress)
        model = LinearModel(self.domain, weights, self.statement, self.name, details)
        return Outcome(
            model,
            model.statement,
            model,
            facts={"details": details},
            lines=[f"adaboost: {details['rounds']} rounds on {details['examples']:,} rows"],
            made=[("learner", f"adaboost, {self.rounds} rounds at most")],
        )
