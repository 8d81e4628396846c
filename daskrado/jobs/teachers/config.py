"""A teachers pipeline as a YAML file, validated key by key before anything is read or spent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from daskrado.engines.answers import MAX_QUERIES, Name, Terms
from daskrado.errors import UsageError
from daskrado.jobs.pipeline import LakePipeline
from daskrado.lake.shards import Sharding
from daskrado.learners.black_box import ObjectFactory, OwnFactory, SklearnFactory
from daskrado.ledger.config import LedgerConfig
from daskrado.privacy.events import exact
from daskrado.privacy.protect import Budget, Protect
from daskrado.privacy.relations import Relation
from daskrado.table.domain import Domain, Scalar
from daskrado.table.yaml_file import Frozen, parse, read_yaml

Factory = OwnFactory | SklearnFactory | ObjectFactory


class OwnChoice(Frozen):
    """A learner of this library, used as a black box."""

    kind: Literal["logistic", "moments", "mean", "radoboost"]
    ridge: float | None = Field(default=None, ge=0)
    rounds: int | None = Field(default=None, ge=1, le=100_000)

    @model_validator(mode="after")
    def _check(self) -> OwnChoice:
        if self.ridge is not None and self.kind not in ("logistic", "moments"):
            raise ValueError(f"ridge is for logistic and moments, not for {self.kind}")
        if self.rounds is not None and self.kind != "radoboost":
            raise ValueError(f"rounds is for radoboost, not for {self.kind}")
        return self

    def factory(self, domain: Domain) -> Factory:
        """Makes estimators for rows of the Domain."""
        options = {name: v for name, v in (("ridge", self.ridge), ("rounds", self.rounds)) if v is not None}
        return OwnFactory(self.kind, domain.width, domain.norm_bound, options)


class SklearnChoice(Frozen):
    """A scikit-learn estimator by its import path, from the allow-list, with plain parameters."""

    kind: Literal["sklearn"]
    estimator: str
    parameters: dict[str, Any] = Field(default_factory=dict)

    def factory(self, domain: Domain) -> Factory:
        """Makes estimators for rows of the Domain."""
        return SklearnFactory(self.estimator, dict(self.parameters), domain.intercept > 0).checked()


LearnerChoice = Annotated[OwnChoice | SklearnChoice, Field(discriminator="kind")]


class TeachersConfig(Frozen):
    """The teachers. ``shard_by``: the id names a record, or the protected unit; or rows are dealt by position."""

    count: int = Field(ge=2, le=1_000_000)
    learner: LearnerChoice = OwnChoice(kind="logistic")
    shard_by: Literal["record", "unit", "position"] | None = None
    seed: int = Field(default=0, ge=0, lt=2**31)


class EstimatedRefusals(Frozen):
    """Refusals by theorem 3.2 from the teachers' error, released with this share of epsilon."""

    share: float = Field(gt=0, lt=1)
    beta: float = Field(default=0.05, gt=0, lt=1)


class AnswersConfig(Frozen):
    """How queries are answered, and how many the engine will ever take. ``engine`` numbers those of a data set."""

    mechanism: Name = "gaussian"
    queries: int = Field(ge=1, le=MAX_QUERIES)
    refusals: int | EstimatedRefusals | None = None
    constants: Literal["exact", "as_published"] = "exact"
    engine: int = Field(default=1, ge=1)
    agreement: float = Field(default=0.9, gt=0.5, le=1, description="assumed by the plan")

    @model_validator(mode="after")
    def _check(self) -> AnswersConfig:
        if (self.mechanism == "sparse_vector") != (self.refusals is not None):
            raise ValueError("refusals is needed by sparse_vector, and only by it")
        if isinstance(self.refusals, int) and not 1 <= self.refusals <= self.queries:
            raise ValueError(f"refusals must be between 1 and queries {self.queries}, got {self.refusals}")
        if self.constants == "as_published" and self.mechanism != "sparse_vector":
            raise ValueError(f"constants: as_published exist for sparse_vector only, not for {self.mechanism}")
        return self


class StudentConfig(Frozen):
    """The published student; ``refused`` queries are dropped, or labelled by a public coin."""

    learner: LearnerChoice = OwnChoice(kind="logistic")
    refused: Literal["drop", "coin"] = "drop"


class Aside(Frozen):
    """Label-private learning: this share of the lake's rows loses its labels and becomes the queries."""

    aside: float = Field(gt=0, lt=1)


class TeachersPipeline(LakePipeline):
    """One job: train teachers, answer queries, publish the answers and a student."""

    output: str = "runs/teachers"
    queries: Aside | str | list[str] | None = None
    protect: Protect
    budget: Budget
    ledger: LedgerConfig = LedgerConfig()
    teachers: TeachersConfig
    answers: AnswersConfig
    student: StudentConfig = StudentConfig()
    classes: tuple[Scalar, ...] | None = None
    rows: int | None = Field(default=None, ge=1, description="rows that the owner expects, for the plan")

    @model_validator(mode="after")
    def _check(self) -> TeachersPipeline:
        if self.budget.delta == 0:
            raise ValueError("budget.delta must be above 0: answers to votes have no pure guarantee here")
        relation, by = self.protect.relation, self.shard_by
        if self.domain.id is None and (by != "position" or relation is Relation.ADD_REMOVE):
            raise ValueError("shards by record need the domain's id column; without one, use relation replace_one")
        if relation is Relation.ADD_REMOVE and by == "position":
            raise ValueError("shards by position shift when a row is added or removed: shard by the domain's id")
        if relation is Relation.REPLACE_ONE and by != "position":
            raise ValueError("a replaced record may bring another id and reach two shards: use shard_by: position")
        if isinstance(self.queries, Aside) and relation is not Relation.LABEL_FLIP:
            raise ValueError(f"queries.aside publishes features: only under relation label_flip, not {relation}")
        if self.classes is not None:
            pair = {self.domain.label.positive, self.domain.label.negative}
            if len(set(self.classes)) < len(self.classes) or len(self.classes) < 2 or not pair <= set(self.classes):
                raise ValueError("classes must be distinct label values and include the domain's two")
        return self

    @property
    def shard_by(self) -> str:
        """As given, else position under replace_one (or without an id) and the record's id elsewhere."""
        if self.teachers.shard_by is not None:
            return self.teachers.shard_by
        return "position" if self.protect.relation is Relation.REPLACE_ONE or self.domain.id is None else "record"

    @property
    def all_classes(self) -> tuple[Scalar, ...]:
        """The label values by class index: negative and positive unless more are declared."""
        return self.classes or (self.domain.label.negative, self.domain.label.positive)

    @property
    def changed(self) -> int:
        """How many teachers one protected unit reaches."""
        return 1 if self.shard_by == "unit" else self.protect.rows_per_unit

    @property
    def sharding(self) -> Sharding:
        """Which rows go where."""
        aside = self.queries.aside if isinstance(self.queries, Aside) else 0.0
        return Sharding(self.teachers.count, self.teachers.seed, self.shard_by != "position", aside)

    @property
    def estimate_epsilon(self) -> float | None:
        """What the private error estimate costs, where refusals are to be estimated."""
        if isinstance(self.answers.refusals, EstimatedRefusals):
            return float(exact(self.budget.epsilon, "epsilon") * exact(self.answers.refusals.share, "share"))
        return None

    @property
    def answer_epsilon(self) -> float:
        """What is left of epsilon for the answers: the largest that, as the ledger reads it, fits exactly."""
        if self.estimate_epsilon is None:
            return self.budget.epsilon
        rest = exact(self.budget.epsilon, "epsilon") - exact(self.estimate_epsilon, "epsilon")
        found = float(rest)
        while exact(found, "epsilon") > rest:
            found = math.nextafter(found, 0.0)
        return found

    def terms(self, refusals: int | None = None) -> Terms:
        """The terms of the answers; ``refusals`` where they are estimated."""
        chosen = self.answers.refusals
        return Terms(
            epsilon=self.answer_epsilon,
            delta=self.budget.delta,
            queries=self.answers.queries,
            refusals=refusals or (chosen if isinstance(chosen, int) else 1),
            changed=self.changed,
            published=self.answers.constants == "as_published",
        )

    def facts(self) -> dict[str, Any]:
        """Public settings by which an engine is known again."""
        return {
            "engine": self.answers.engine,
            "mechanism": self.answers.model_dump(mode="json", exclude={"agreement", "engine"}),
            "budget": self.budget.model_dump(mode="json"),
            "teachers": self.teachers.model_dump(mode="json"),
            "changed": self.changed,
            "classes": [str(c) for c in self.all_classes],
            "domain": self.domain.digest(),
        }


def load_teachers(source: TeachersPipeline | Mapping[str, Any] | str | Path) -> TeachersPipeline:
    """A teachers pipeline from its file, or from the same keys in a mapping."""
    if isinstance(source, TeachersPipeline):
        return source
    content = read_yaml(source) if isinstance(source, str | Path) else dict(source)
    where = str(source) if isinstance(source, str | Path) else "pipeline"
    kind = content.pop("kind", "teachers") if isinstance(content, dict) else None
    if kind != "teachers":
        raise UsageError(f"{where}: is not a pipeline of kind teachers")
    return parse(TeachersPipeline, content, where)
