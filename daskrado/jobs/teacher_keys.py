"""The keys of a teachers pipeline: the teachers, how queries are answered, the student."""

from __future__ import annotations

from typing import Literal, cast

from pydantic import Field, field_validator, model_validator

from daskrado.engines.answers import MAX_QUERIES, vote_mechanism
from daskrado.errors import about_the_key
from daskrado.jobs.teacher_places import ShardPlace
from daskrado.learners.black_box import AnyBlackBox, Logistic
from daskrado.table.yaml_file import Frozen


class TeachersConfig(Frozen):
    """The teachers. ``shard_by``: the id names a record, or the protected unit; or rows are dealt by position; or
    each folder, file or value of a public column has a teacher, and the lake says how many there are.
    """

    count: int | None = Field(default=None, ge=2, le=1_000_000)
    learner: AnyBlackBox = Logistic()
    shard_by: Literal["record", "unit", "position"] | ShardPlace | None = None
    seed: int = Field(default=0, ge=0, lt=2**31)

    @model_validator(mode="after")
    def _check(self) -> TeachersConfig:
        if self.count is None and self.place is None:
            raise ValueError("count is missing: so many shards, one teacher each")
        return self

    @property
    def place(self) -> ShardPlace | None:
        """What has a teacher each, where that is a place."""
        return None if self.shard_by in (None, "record", "unit", "position") else cast(ShardPlace, self.shard_by)


class EstimatedRefusals(Frozen):
    """Refusals by theorem 3.2 from the teachers' error, released with this share of epsilon."""

    share: float = Field(gt=0, lt=1)
    beta: float = Field(default=0.05, gt=0, lt=1)


class AnswersConfig(Frozen):
    """How queries are answered, and how many the engine will ever take. ``engine`` numbers those of a data set."""

    mechanism: str = "gaussian"
    queries: int = Field(ge=1, le=MAX_QUERIES)
    refusals: int | EstimatedRefusals | None = None
    constants: Literal["exact", "as_published"] = "exact"
    engine: int = Field(default=1, ge=1)
    agreement: float = Field(default=0.9, gt=0.5, le=1, description="assumed by the plan")

    @field_validator("mechanism")
    @classmethod
    def _known(cls, name: str) -> str:
        with about_the_key():
            return vote_mechanism(name).name

    @model_validator(mode="after")
    def _check(self) -> AnswersConfig:
        counts_refusals = vote_mechanism(self.mechanism).counts_refusals
        if counts_refusals != (self.refusals is not None):
            raise ValueError("refusals is needed by sparse_vector, and only by it")
        if isinstance(self.refusals, int) and not 1 <= self.refusals <= self.queries:
            raise ValueError(f"refusals must be between 1 and queries {self.queries}, got {self.refusals}")
        if self.constants == "as_published" and not counts_refusals:
            raise ValueError(f"constants: as_published exist for sparse_vector only, not for {self.mechanism}")
        return self

    @property
    def estimated(self) -> EstimatedRefusals | None:
        """How refusals are estimated, where they are."""
        return self.refusals if isinstance(self.refusals, EstimatedRefusals) else None


class StudentConfig(Frozen):
    """The published student; ``refused`` queries are dropped, or labelled by a public coin."""

    learner: AnyBlackBox = Logistic()
    refused: Literal["drop", "coin"] = "drop"


class Aside(Frozen):
    """Label-private learning: this share of the lake's rows loses its labels and becomes the queries."""

    aside: float = Field(gt=0, lt=1)
