"""Who is protected, and by how much: the keys that every private job has."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import ROUND_DOWN, Decimal, localcontext
from fractions import Fraction
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from daskrado.privacy.events import MAX_DELTA, MAX_EPSILON, MIN_DELTA, MIN_EPSILON, exact
from daskrado.privacy.relations import Relation
from daskrado.table.domain import BooleanColumn, Domain
from daskrado.table.yaml_file import Frozen, NestedMistakes


class Unit(Frozen):
    """A unit (a patient, a client) that owns all rows with one id, and what it may count for.

    With ``within`` it owns those that also have one value of that column: a patient's rows of one day.

    ``spread`` weights each of its n rows by min(1, bound / n), so that all are used; ``sample`` keeps ``bound`` of
    them.
    """

    column: str = Field(min_length=1)
    within: str | None = Field(default=None, min_length=1)
    name: str = Field(default="", description="in words; one COLUMN where it is left out")
    bound: int = Field(default=1, ge=1, le=10_000)
    how: Literal["spread", "sample"] = "spread"


class Protect(Frozen):
    """Who is protected: a unit whose rows a column names, which is enforced, or plain rows.

    Where ``unit`` is a mapping, ``column``, ``how`` and ``rows_per_unit`` follow from it. Where it is a text it is a
    name only, and ``rows_per_unit`` declares, without enforcing it, how many rows may belong together.
    """

    relation: Relation
    unit: str = Field(min_length=1)
    rows_per_unit: int = Field(default=1, ge=1, le=10_000)
    feature: str | None = Field(default=None, description="the boolean column, under feature_flip")
    column: str | None = Field(default=None, description="the column that names the unit")
    within: str | None = Field(default=None, description="a column of which the unit's rows have one value")
    how: Literal["spread", "sample"] | None = None

    @model_validator(mode="before")
    @classmethod
    def _of_unit(cls, content: Any) -> Any:
        """The mapping ``unit: {column, name, bound, how}`` in this model's own fields."""
        if not isinstance(content, dict) or not isinstance(content.get("unit"), dict | Unit):
            return content
        if "rows_per_unit" in content:
            raise ValueError("rows_per_unit declares what unit.bound enforces: drop one of them")
        try:
            unit = Unit.model_validate(content["unit"])
        except ValidationError as error:
            raise NestedMistakes([*NestedMistakes.of(error, content["unit"]).under("unit")]) from error
        own = {
            "unit": unit.name or f"one {unit.column}",
            "rows_per_unit": unit.bound,
            "column": unit.column,
            "how": unit.how,
        }
        return {**content, **own, **({} if unit.within is None else {"within": unit.within})}

    @model_validator(mode="after")
    def _check(self) -> Protect:
        if (self.column is None) != (self.how is None) or (self.column is None and self.within is not None):
            raise ValueError("give unit as {column, name, bound, how}, or as a text")
        if self.within is not None and self.within == self.column:
            raise ValueError(f"unit.within is unit.column, {self.column}; name another column, such as the day's")
        if (self.relation is Relation.FEATURE_FLIP) != (self.feature is not None):
            raise ValueError("feature names the protected boolean column under feature_flip, and only then")
        return self

    @property
    def rows_public(self) -> bool:
        """Whether the number of rows is public: not where a unit's rows may be replaced by more or fewer."""
        return self.relation.rows_public and (self.column is None or self.relation is not Relation.REPLACE_ONE)

    @property
    def bound(self) -> int | None:
        """What one unit counts for, where that is enforced by weights."""
        return self.rows_per_unit if self.column is not None else None

    def refuse_units(self, what: str) -> None:
        """Refuse a bound on units where nothing would enforce it."""
        if self.column is not None:
            raise ValueError(
                f"{what} does not bound what a unit contributes: give protect.unit as a text, which protects rows, "
                "and rows_per_unit where some belong together"
            )

    def sampled_only(self, what: str) -> None:
        """Refuse weights where rows are randomised one by one, and a number of them that would tell of a unit."""
        if self.how == "spread":
            raise ValueError(f"{what} has no weights that bound a unit: protect.unit.how: sample")
        if self.column is not None and self.rows_per_unit > 1 and not self.rows_public:
            raise ValueError(
                f"{what} would tell by their number how many rows a unit has: under {self.relation} "
                f"protect.unit.bound: 1, got {self.rows_per_unit}"
            )

    @property
    def owned(self) -> str:
        """What is enforced, or the assumption that nothing here enforces."""
        if self.column is not None:
            counted = "each weighted by" if self.how == "spread" else "of which are kept at most"
            share = f"min(1, {self.rows_per_unit} / their number)" if self.how == "spread" else self.rows_per_unit
            both = "" if self.within is None else f" and one {self.within}"
            return f"all rows with one {self.column}{both} belong to {self.unit}, {counted} {share}"
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

    def shared(self, share: float) -> tuple[Budget, Budget]:
        """A share of it and the rest, whose decimals add up to no more than it is.

        >>> first, rest = Budget(epsilon=0.1).shared(0.05)
        >>> first.epsilon, rest.epsilon
        (0.005, 0.095)
        """
        whole = self.model_dump()
        first = {name: down(exact(value) * exact(share)) for name, value in whole.items()}
        rest = {name: down(exact(value) - exact(first[name])) for name, value in whole.items()}
        return Budget(**first), Budget(**rest)


def together(budgets: Iterable[Budget]) -> Budget:
    """What several ask for, one after another: the sum of their decimals, which sums of doubles may miss.

    >>> together([Budget(epsilon=0.3), Budget(epsilon=0.6)]).epsilon, 0.3 + 0.6
    (0.9, 0.8999999999999999)
    """
    each = [budget.model_dump() for budget in budgets]
    return Budget(**{name: up(sum((exact(one[name]) for one in each), Fraction(0))) for name in each[0]})


def up(value: Fraction) -> float:
    """The nearest number whose decimals are not below it."""
    found = float(value)
    return found if exact(found) >= value else math.nextafter(found, math.inf)


def down(value: Fraction) -> float:
    """Twelve digits, rounded down."""
    with localcontext(prec=12, rounding=ROUND_DOWN):
        return float(Decimal(value.numerator) / Decimal(value.denominator))


@dataclass(frozen=True)
class Private:
    """A job that protects somebody, at a price."""

    protect: Protect
    budget: Budget

    @property
    def rows_public(self) -> bool:
        """Whether the number of rows is public."""
        return self.protect.rows_public


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
