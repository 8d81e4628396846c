"""The privacy statement that travels with everything daskrado publishes."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_CEILING, Context
from fractions import Fraction
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from daskrado.privacy.accountant import Event, compose, exact
from daskrado.privacy.events import own_delta
from daskrado.privacy.protect import Budget, Protect
from daskrado.privacy.relations import Relation
from daskrado.table.domain import Domain

DOMAIN_IS_PUBLIC = "the Domain (bounds, categories, norm bound) was not chosen by looking at this lake's rows"
DOMAIN_WAS_FOUND = (
    "bounds and categories of the Domain were found by run {run} on data set {dataset}, which was charged "
    "epsilon {epsilon:g}, delta {delta:g}; the rest of it was not chosen by looking at this lake's rows"
)
NOT_PRIVATE = "NOT PRIVATE: no noise was added; this object is not differentially private"


def about_domain(domain: Domain) -> str:
    """What a statement assumes of the Domain: that it is public, or which charged run found it."""
    found = domain.described
    return DOMAIN_IS_PUBLIC if found is None else DOMAIN_WAS_FOUND.format(**found.model_dump())


def rounded_up(value: float) -> str:
    """Six significant digits, never below the value: a sentence must not promise more than its numbers.

    >>> rounded_up(1.0000004), rounded_up(0.9999999996), rounded_up(1e-06)
    ('1.00001', '1', '1e-06')
    """
    return f"{float(Context(prec=6, rounding=ROUND_CEILING).create_decimal(repr(value))):g}"


class MarginalFacts(BaseModel):
    """What is known of one coordinate of rados made by DP-FEAT, in exact numbers for this many rows.

    The guarantee is about the law of one coordinate taken alone: (epsilon, delta) for one rado, (composed_epsilon,
    composed_delta) for all of them (None: no finite epsilon at that delta). It says nothing of the other coordinates
    or of the joint release, which tell which records a rado sums.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    feature: str
    rows: int = Field(ge=1)
    rados: int = Field(ge=1)
    beta: float = Field(gt=0, lt=0.5)
    window_low: int = Field(ge=0)
    window_high: int = Field(ge=0)
    acceptance: float = Field(ge=0, le=1)
    epsilon: float = Field(ge=0)
    delta: float = Field(ge=0, le=1)
    untruncated_delta: float = Field(ge=0, le=1)
    composed_epsilon: float | None = Field(default=None, ge=0)
    composed_delta: float = Field(gt=0, lt=1)

    def sentence(self) -> str:
        """The facts as one sentence for people."""
        together = (
            f"epsilon {self.composed_epsilon:.4g} at delta {self.composed_delta:g}"
            if self.composed_epsilon is not None
            else f"no finite epsilon at delta {self.composed_delta:g}"
        )
        delta = f"delta {self.delta:.3g}" if self.delta else "delta below 1e-300"
        return (
            "NOT PRIVATE as a whole: a guarantee for the marginal of one coordinate only. The coordinate "
            f"{self.feature!r} of one rado, seen without the others: epsilon {self.epsilon:.4g}, "
            f"{delta}; of all {self.rados} rados: {together}. "
            "The rados themselves are not differentially private"
        )


class PrivacyStatement(BaseModel):
    """What is protected, for whom, by how much, and which theorem says so.

    A statement is either differentially private, with every field filled in, or says plainly that it is not.
    ``marginal`` is the third case: not private as a whole, with numbers for the marginal of one coordinate.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    private: bool
    relation: Relation | None = None
    unit: str = Field(default="", description="who is protected, in words")
    rows_per_unit: int = Field(default=1, ge=1)
    column: str | None = Field(default=None, description="the column that names the unit, where that is enforced")
    within: str | None = Field(default=None, description="a column of which the unit's rows have one value")
    epsilon: float | None = Field(default=None, gt=0)
    delta: float | None = Field(default=None, ge=0, lt=1)
    mechanism: str = ""
    theorem: str = ""
    accountant: str = ""
    assumptions: tuple[str, ...] = ()
    marginal: MarginalFacts | None = None
    schema_version: Literal[1] = 1

    @model_validator(mode="after")
    def _complete(self) -> PrivacyStatement:
        if self.private and self.marginal is not None:
            raise ValueError("a guarantee for one coordinate's marginal does not make a release private")
        if self.private:
            missing = [
                name
                for name in ("relation", "unit", "epsilon", "delta", "mechanism", "theorem", "accountant")
                if getattr(self, name) in (None, "")
            ]
            if missing:
                raise ValueError(f"a private statement needs {', '.join(missing)}")
        return self

    def sentence(self) -> str:
        """The statement as one sentence for people."""
        if not self.private:
            return self.marginal.sentence() if self.marginal is not None else NOT_PRIVATE
        assert self.relation is not None
        assert self.epsilon is not None
        guarantee = f"epsilon = {rounded_up(self.epsilon)}"
        guarantee += f", delta = {rounded_up(self.delta)}" if self.delta else ""
        return f"Differentially private for {self.whom} ({self.meaning}): {guarantee}."

    @property
    def whom(self) -> str:
        """Whom the guarantee is for: a unit only where its rows are bounded by its column, else rows."""
        if self.column is not None:
            return self.unit
        return "one row" if self.rows_per_unit == 1 else f"any {self.rows_per_unit} rows"

    @property
    def whose(self) -> tuple[Relation | None, str, int, str | None]:
        """Between which neighbours, for which unit, of how many rows, named by which column."""
        return self.relation, self.unit, self.rows_per_unit, self.column

    @property
    def meaning(self) -> str:
        """Which lakes are neighbours."""
        assert self.relation is not None
        both = self.column if self.within is None else f"{self.column} and one {self.within}"
        return self.relation.meaning(self.rows_per_unit, both)

    @classmethod
    def of(
        cls,
        events: Event | Sequence[Event],
        protect: Protect,
        asked: Budget,
        *,
        mechanism: str,
        theorem: str,
        assumptions: Sequence[str] = (),
        accountant: str | None = None,
    ) -> PrivacyStatement:
        """The only way to a private statement: what the charged events cost together, and whom they protect.

        Epsilon and delta are computed from the events: at delta 0 where that stays within what was ``asked`` for,
        else at the delta asked for. ``accountant`` may say more on how, never how much. Raises where the events cost
        more than was asked for, so that nothing is published with less than its cost.
        """
        charged = [*events] if isinstance(events, Sequence) else [events]
        limit = exact(asked.epsilon, "epsilon")
        total = compose(charged, 0)
        if not total.epsilon <= limit:
            total = compose(charged, asked.delta)
        rounding = 0 if isinstance(total.epsilon, Fraction) else Fraction(1, 10**9)  # of a calibration: far less
        if not total.epsilon <= limit * (1 + rounding):
            cost = " and ".join(dict.fromkeys(map(str, charged)))
            raise ValueError(
                f"{cost} costs epsilon {float(total.epsilon):g} at delta {asked.delta:g}, which is more than the "
                f"epsilon {asked.epsilon:g} that was asked for"
            )
        own = own_delta(charged)
        return cls(
            private=True,
            relation=protect.relation,
            unit=protect.unit,
            rows_per_unit=protect.rows_per_unit,
            column=protect.column,
            within=protect.within,
            epsilon=float(min(total.epsilon, limit)),
            delta=float(own if total.method == "basic" else total.delta),
            mechanism=mechanism,
            theorem=theorem,
            accountant=accountant or total.method,
            assumptions=tuple(assumptions),
        )

    def knowing(self, domain: Domain) -> PrivacyStatement:
        """The same guarantee, with what is assumed of the Domain."""
        known = about_domain(domain)
        assumed = tuple(known if text == DOMAIN_IS_PUBLIC else text for text in self.assumptions)
        return self.model_copy(update={"assumptions": assumed})

    def assuming(self, *more: str) -> PrivacyStatement:
        """The same guarantee, with more that it takes for granted."""
        return self.model_copy(update={"assumptions": (*self.assumptions, *more)})

    @classmethod
    def marginal_only(cls, facts: MarginalFacts) -> PrivacyStatement:
        """Not private; one coordinate's marginal has a guarantee of its own."""
        return cls(private=False, marginal=facts)

    @classmethod
    def none(cls) -> PrivacyStatement:
        """The statement of a baseline without any protection."""
        return cls(private=False)
