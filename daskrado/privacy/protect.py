"""Who is protected, and by how much: the keys that every private job has."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field, field_validator, model_validator

from daskrado.privacy.events import MAX_DELTA, MAX_EPSILON, MIN_DELTA, MIN_EPSILON
from daskrado.privacy.relations import Relation
from daskrado.table.domain import BooleanColumn, Domain
from daskrado.table.yaml_file import Frozen


class Protect(Frozen):
    """Who is protected. ``rows_per_unit`` is the most rows that one unit (a patient, a client) owns in the lake."""

    relation: Relation
    unit: str = Field(min_length=1)
    rows_per_unit: int = Field(default=1, ge=1, le=10_000)
    feature: str | None = Field(default=None, description="the boolean column, under feature_flip")

    @model_validator(mode="after")
    def _check(self) -> Protect:
        if (self.relation is Relation.FEATURE_FLIP) != (self.feature is not None):
            raise ValueError("feature names the protected boolean column under feature_flip, and only then")
        return self

    @property
    def owned(self) -> str:
        """The assumption that nothing here enforces."""
        return f"a protected unit ({self.unit}) has at most {self.rows_per_unit} row(s) in the lake"


class Budget(Frozen):
    """The guarantee asked for; delta 0 asks for a pure one."""

    epsilon: float = Field(ge=float(MIN_EPSILON), le=float(MAX_EPSILON))
    delta: float = Field(default=0.0, ge=0, le=float(MAX_DELTA))

    @field_validator("delta")
    @classmethod
    def _in_reach(cls, delta: float) -> float:
        if 0 < delta < MIN_DELTA:
            raise ValueError(f"must be 0, or from {float(MIN_DELTA):g} to {float(MAX_DELTA):g}, got {delta}")
        return delta


@dataclass(frozen=True)
class Private:
    """A job that protects somebody, at a price."""

    protect: Protect
    budget: Budget

    @property
    def rows_public(self) -> bool:
        """Whether the relation leaves the number of rows public."""
        return self.protect.relation.rows_public


@dataclass(frozen=True)
class NotPrivate:
    """A job that protects nobody, and says so."""

    rows_public = True


Privacy = Private | NotPrivate


def check_protected_feature(domain: Domain, feature: str, where: str, *, numbers: bool = False) -> None:
    """Refuse a column whose change under feature_flip would reach further than one encoded feature.

    Sensitivities under feature_flip are derived for one +-1 feature, whose flip leaves the row's norm, and so its
    clipping, as it was. A column that may be null has a second feature, and a kernel mixes all columns. With
    ``numbers`` a single numeric column will do too, for a statistic that bounds its reach by itself.
    """
    column = domain.columns.get(feature)
    if column is None:
        raise ValueError(f"{where} {feature!r} is not a column of the domain")
    if domain.kernel is not None:
        raise ValueError(f"{where} {feature!r}: a kernel mixes every column into every feature; use replace_one")
    if column.feature_names(feature) != [feature]:
        raise ValueError(f"{where} {feature!r} is one-hot; only single columns can be protected by name")
    if not isinstance(column, BooleanColumn) and not numbers:
        raise ValueError(f"{where} {feature!r} is {column.kind}, not boolean")
    if column.fill is not None:
        raise ValueError(f"{where} {feature!r} may be null, which would show in a second column; use replace_one")
