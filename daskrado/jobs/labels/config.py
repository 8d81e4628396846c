"""What the label jobs' YAML files hold, validated key by key before anything is read or spent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from daskrado.jobs.pipeline import LakePipeline, check_protected
from daskrado.ledger.config import LedgerConfig
from daskrado.losses.linear_odd import make_odd_loss
from daskrado.losses.margin import Loss
from daskrado.privacy.events import MAX_EPSILON, MIN_EPSILON
from daskrado.privacy.protect import Budget
from daskrado.privacy.relations import Relation
from daskrado.statistics.base import Groups
from daskrado.statistics.even_risk import MAX_BITS
from daskrado.table.domain import Scalar
from daskrado.table.lattice import Lattice
from daskrado.table.yaml_file import Frozen

Noise = Literal["laplace", "l2_gamma", "gaussian"]
DEFAULT_STRENGTH = 1e-3


class LossChoice(Frozen):
    """A linear-odd loss; ``rho`` is for absolute, ``generator`` for proper."""

    kind: str = "logistic"
    rho: float | None = None
    generator: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _short(cls, content: Any) -> Any:
        return {"kind": content} if isinstance(content, str) else content

    @model_validator(mode="after")
    def _known(self) -> LossChoice:
        self.build()
        return self

    def build(self) -> Loss:
        """The loss, or the reason why it cannot be used."""
        from daskrado.errors import UsageError

        try:
            return make_odd_loss(self.kind, rho=self.rho, generator=self.generator)
        except UsageError as error:
            raise ValueError(str(error)) from error


class Whose(Frozen):
    """Whose label is protected, in words, and how many rows one such unit may own."""

    unit: str = Field(min_length=1)
    rows_per_unit: int = Field(default=1, ge=1, le=10_000)
    relation: Literal[Relation.LABEL_FLIP] = Relation.LABEL_FLIP


class GroupChoice(Frozen):
    """A public column and the values that it may hold."""

    column: str
    values: tuple[Scalar, ...] = Field(min_length=1)

    def build(self) -> Groups:
        """As statistics take it."""
        return Groups(self.column, self.values)


class FullLabels(Frozen):
    """Every row has its label."""

    kind: Literal["full"] = "full"


class MissingLabels(Frozen):
    """Some labels are null, at random within each stratum."""

    kind: Literal["missing"]
    strata: GroupChoice | None = None


class NoisyLabels(Frozen):
    """Labels were flipped at known rates, or at rates to be estimated from a column of audited true labels."""

    kind: Literal["noisy"]
    positive_flips: float | None = Field(default=None, ge=0, lt=1)
    negative_flips: float | None = Field(default=None, ge=0, lt=1)
    audit: str | None = None

    @model_validator(mode="after")
    def _check(self) -> NoisyLabels:
        given = [self.positive_flips is not None, self.negative_flips is not None]
        if any(given) == (self.audit is not None) or any(given) != all(given):
            raise ValueError("give positive_flips and negative_flips, or audit: the column of true labels")
        if self.positive_flips is not None and self.negative_flips is not None:
            total = self.positive_flips + self.negative_flips
            if total >= 1:
                raise ValueError(f"positive_flips + negative_flips = {total:g} must be below 1")
        return self


class RandomisedLabels(Frozen):
    """Each label was randomised at its source with this epsilon: nobody here has to be trusted with labels."""

    kind: Literal["randomised_response"]
    epsilon: float = Field(ge=float(MIN_EPSILON), le=float(MAX_EPSILON))


Supervision = Annotated[FullLabels | MissingLabels | NoisyLabels | RandomisedLabels, Field(discriminator="kind")]


class LabelBase(LakePipeline):
    """What all label jobs have in common."""

    private: bool = True
    protect: Whose | None = None
    budget: Budget | None = None
    noise: Noise | None = None
    ledger: LedgerConfig = LedgerConfig()
    loss: LossChoice = LossChoice()
    strength: float = Field(default=DEFAULT_STRENGTH, gt=0, description="of the regulariser strength |w|^2")
    lattice_bits: int = Field(default=20, ge=4, le=MAX_BITS)

    @property
    def lattice(self) -> Lattice:
        """The grid of the rows."""
        return Lattice(self.domain.norm_bound, self.lattice_bits)

    def mechanism_name(self) -> Noise:
        """As given, else gaussian with a delta and laplace without one."""
        assert self.budget is not None
        return self.noise or ("gaussian" if self.budget.delta > 0 else "laplace")

    def _check_budget(self, *, spends: bool) -> None:
        if not self.private or not spends:
            why = "private: false protects nobody" if not self.private else "nothing is released with noise here"
            for key in ("budget", "noise") if self.private else ("budget", "noise", "protect"):
                if getattr(self, key) is not None:
                    raise ValueError(f"{why}: drop {key}")
            return
        check_protected(self.private, self.protect, self.budget, "a baseline")
        assert self.budget is not None
        if self.mechanism_name() == "gaussian" and not self.budget.delta > 0:
            raise ValueError("noise: gaussian needs a budget with delta above 0")
        if self.mechanism_name() != "gaussian" and self.budget.delta > 0:
            raise ValueError(f"noise: {self.mechanism_name()} is pure: drop budget.delta, or use gaussian")


class LabelPipeline(LabelBase):
    """Learn from labels through their mean operator, which alone is released."""

    supervision: Supervision = FullLabels()

    @model_validator(mode="after")
    def _check(self) -> LabelPipeline:
        at_source = isinstance(self.supervision, RandomisedLabels)
        self._check_budget(spends=not at_source)
        if at_source and self.private and self.protect is None:
            raise ValueError("protect is missing: say whose labels were randomised")
        if self.private and isinstance(self.supervision, NoisyLabels) and self.supervision.audit is not None:
            raise ValueError("audit reads true labels outside the budget: give the flip rates, or say private: false")
        return self


class EstimatorChoice(Frozen):
    """How bags and proportions become a mean operator."""

    kind: Literal["mean_map", "laplacian", "alternating"] = "laplacian"
    similarity: Literal["gaussian", "association"] = "gaussian"
    sigma: float | None = Field(default=None, gt=0)
    gamma: float = Field(default=0.1, gt=0)
    weights: Literal["uniform", "rows"] = "uniform"
    start: Literal["mean_map", "laplacian"] = "laplacian"
    labels: Literal["best", "worst"] = "best"
    rounds: int = Field(default=20, ge=1, le=1000)

    @property
    def first(self) -> str:
        """The estimate that comes before any alternation."""
        return self.start if self.kind == "alternating" else self.kind


class Shares(Frozen):
    """The share of positive labels of one bag, and of negative ones where it is given too."""

    positive: float = Field(ge=0, le=1)
    negative: float | None = Field(default=None, ge=0, le=1)

    @model_validator(mode="before")
    @classmethod
    def _short(cls, content: Any) -> Any:
        if not isinstance(content, int | float | Mapping | Shares):
            raise ValueError(f"must be a share between 0 and 1, or positive and negative, got {content!r}")
        return {"positive": content} if isinstance(content, int | float) else content

    @model_validator(mode="after")
    def _sum(self) -> Shares:
        if self.negative is not None and abs(self.positive + self.negative - 1) > 1e-6:
            raise ValueError(f"positive {self.positive:g} + negative {self.negative:g} do not sum to 1")
        return self


class BagPipeline(LabelBase):
    """Learn from bags: proportions are given, or counted from the lake's labels and released with noise."""

    bags: str = Field(min_length=1, description="the column that names a row's bag")
    proportions: dict[Scalar, Shares] | str | None = None
    values: tuple[Scalar, ...] | None = None
    estimator: EstimatorChoice = EstimatorChoice()

    @model_validator(mode="after")
    def _check(self) -> BagPipeline:
        if (self.proportions is None) == (self.values is None):
            raise ValueError(
                "give proportions (of each bag, or a file), or values: the bags whose proportions are to be counted "
                "from the labels and released"
            )
        self._check_budget(spends=self.values is not None)
        if isinstance(self.proportions, dict) and not self.proportions:
            raise ValueError("proportions names no bag")
        return self
