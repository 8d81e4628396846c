"""Pipelines of kind ``rados``: sets of rados made from a lake, who each protects, what is learned from it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from daskrado.errors import UsageError
from daskrado.jobs.pipeline import LakePipeline, RadoBoostChoice, check_protected_feature
from daskrado.jobs.pipeline import RadoMomentsChoice as MomentsChoice
from daskrado.jobs.pipeline import RadoNewtonChoice as NewtonChoice
from daskrado.ledger.config import LedgerConfig
from daskrado.privacy.protect import Budget, Protect
from daskrado.privacy.relations import Relation
from daskrado.statistics import BalancedRados, FixedSupportRados, HadamardRados, Statistic, UniformRados
from daskrado.table.domain import Domain, NumericColumn
from daskrado.table.yaml_file import Frozen

_COUNT = Field(default=256, ge=2, le=1 << 16)


class _Set(Frozen):
    name: str = Field(pattern=r"^[A-Za-z0-9._-]{1,60}$")
    count: int = _COUNT
    learn: Annotated[RadoBoostChoice | MomentsChoice | NewtonChoice, Field(discriminator="kind")] | None = None
    keep_epsilon: float | None = Field(
        default=None,
        ge=1e-9,
        le=50,
        description="budget of a charged choice among RadoBoost's rounds by training error",
    )

    @model_validator(mode="after")
    def _check_learner(self) -> _Set:
        if self.learn is not None:
            try:
                self.learn.build()
            except UsageError as error:  # options that contradict each other: found now, not after the draw
                raise ValueError(f"set {self.name!r}: learn: {error}") from error
        return self

    @model_validator(mode="after")
    def _check_keep(self) -> _Set:
        if self.keep_epsilon is not None and not isinstance(self.learn, RadoBoostChoice):
            raise ValueError("keep_epsilon chooses among the rounds of radoboost: it needs learn: {kind: radoboost}")
        if self.keep_epsilon is not None and self.private_protect is None:
            raise ValueError("keep_epsilon is charged on top of a private set: this set protects nobody")
        return self

    @property
    def private_protect(self) -> Protect | None:
        """Who is protected; None for a set that is not private as a whole."""
        return None


class SummedSet(_Set):
    """Uniform, balanced or Hadamard rados: with noise on the rados, or plain when ``private: false`` is written."""

    kind: Literal["uniform", "balanced", "hadamard"]
    seed: int | None = Field(default=None, ge=0)
    private: bool = True
    protect: Protect | None = None
    budget: Budget | None = None

    @model_validator(mode="after")
    def _check(self) -> SummedSet:
        given = (self.protect is not None, self.budget is not None)
        if given != (self.private, self.private):
            raise ValueError("give protect and budget, or write private: false for plain rados that protect nobody")
        if self.protect is not None and self.seed is not None and self.protect.relation is Relation.ADD_REMOVE:
            raise ValueError("public signatures by position shift when a row is added: drop seed under add_remove")
        try:
            self.build(1)
        except UsageError as error:
            raise ValueError(f"set {self.name!r}: {error}") from error
        return self

    @property
    def private_protect(self) -> Protect | None:
        """As the set says."""
        return self.protect

    def build(self, width: int) -> Statistic:
        """The statistic of the set."""
        if self.kind == "hadamard":
            return HadamardRados(width, self.count)
        return (BalancedRados if self.kind == "balanced" else UniformRados)(width, self.count)


class FixedSupportSet(_Set):
    """Sums over uniform subsets of exactly ``support`` rows: not private."""

    kind: Literal["fixed_support"]
    support: int = Field(ge=1)
    seed: int | None = Field(default=None, ge=0)

    def build(self, width: int) -> Statistic:
        """The statistic of the set."""
        return FixedSupportRados(width, self.count, self.support)


class DpFeatSet(_Set):
    """DP-FEAT for one boolean feature: a guarantee for the marginal of its coordinate only."""

    kind: Literal["dp_feat"]
    feature: str
    epsilon: float = Field(ge=1e-9, le=50)


class _Features(_Set):
    features: tuple[str, ...] = Field(min_length=1)
    unit: str = Field(min_length=1)
    rows_per_unit: int = Field(default=1, ge=1, le=10_000)
    budget: Budget

    @field_validator("features")
    @classmethod
    def _once(cls, features: tuple[str, ...]) -> tuple[str, ...]:
        repeated = sorted({name for name in features if features.count(name) > 1})
        if repeated:
            raise ValueError(f"name each feature once; {', '.join(repeated)} is repeated")
        return features

    @property
    def private_protect(self) -> Protect | None:
        """The named features of one unit, everything else being public."""
        return Protect(
            relation=Relation.FEATURE_FLIP,
            unit=self.unit,
            rows_per_unit=self.rows_per_unit,
            feature=", ".join(self.features),
        )


class RandomisedSet(_Features):
    """Boolean features through randomised response, once, before any rado: pure epsilon for them together."""

    kind: Literal["randomised_response"]
    base: Literal["uniform", "balanced", "hadamard"] = "balanced"

    @field_validator("budget")
    @classmethod
    def _pure(cls, budget: Budget) -> Budget:
        if budget.delta > 0:
            raise ValueError(f"randomised response is pure: leave delta out, got {budget.delta:g}")
        return budget


class NoisyColumnSet(_Features):
    """Noise on the columns of the named features, boolean or numeric; all other columns are public."""

    kind: Literal["noisy_column"]
    balanced: bool = True
    mechanism: Literal["gaussian", "laplace"] | None = None


class NoisyEdgesSet(_Set):
    """Rados of edge vectors that each carry Gaussian noise: private whatever is summed from them."""

    kind: Literal["noisy_edges"]
    protect: Protect
    budget: Budget
    base: Literal["uniform", "balanced", "hadamard", "fixed_support"] = "uniform"
    support: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _check(self) -> NoisyEdgesSet:
        if (self.support is None) == (self.base == "fixed_support"):
            raise ValueError("support goes with base: fixed_support, and only with it")
        if self.protect.relation is Relation.ADD_REMOVE:
            raise ValueError("noisy edges show how many rows there are: protect under replace_one or label_flip")
        if not self.budget.delta > 0:
            raise ValueError("gaussian noise on edge vectors needs budget.delta above 0")
        return self

    @property
    def private_protect(self) -> Protect | None:
        """As the set says."""
        return self.protect


RadoSetChoice = Annotated[
    SummedSet | FixedSupportSet | DpFeatSet | RandomisedSet | NoisyColumnSet | NoisyEdgesSet,
    Field(discriminator="kind"),
]


class RadosPipeline(LakePipeline):
    """One job that makes several sets of rados from a lake, each with a statement of its own."""

    sets: tuple[RadoSetChoice, ...]
    accept_no_privacy: bool = False
    ledger: LedgerConfig = LedgerConfig()
    lattice_bits: int | None = Field(default=None, ge=4, le=26)

    @model_validator(mode="after")
    def _check(self) -> RadosPipeline:
        if not self.sets:
            raise ValueError("sets: the list is empty; name at least one set")
        names = [item.name for item in self.sets]
        if len(set(names)) < len(names):
            raise ValueError(f"sets: the name {next(n for n in names if names.count(n) > 1)!r} is given twice")
        for item in self.sets:
            self._check_features(item)
        self._check_row_count()
        return self

    def _check_row_count(self) -> None:
        """A run either keeps its lake's number of rows secret or publishes it."""
        protects = {item.name: item.private_protect for item in self.sets}
        secret = [name for name, who in protects.items() if who is not None and not who.relation.rows_public]
        public = [name for name in protects if name not in secret]
        if secret and public:
            raise ValueError(
                f"sets: {secret[0]!r} keeps the number of rows secret (add_remove), and {public[0]!r} publishes it: "
                "protect under replace_one, or make them in two runs"
            )

    def _check_features(self, item: RadoSetChoice) -> None:
        where = f"set {item.name!r}: feature"
        for feature in features_of(item):
            check_protected_feature(self.domain, feature, where, numbers=isinstance(item, NoisyColumnSet))
            if isinstance(self.domain.columns[feature], NumericColumn) and (
                self.domain.norm_bound < _unclipped(self.domain)
            ):
                raise ValueError(
                    f"{where} {feature!r} would reach other columns through clipping; noise on its column needs "
                    f"a domain with norm_bound at least {self.domain.largest_norm * (1 + 2e-8):.8g}"
                )


def _unclipped(domain: Domain) -> float:
    """A norm bound that no encoded row can reach."""
    return domain.largest_norm * (1 + 1e-9)


def features_of(item: RadoSetChoice) -> tuple[str, ...]:
    """The columns that a set protects by name."""
    if isinstance(item, DpFeatSet):
        return (item.feature,)
    if isinstance(item, RandomisedSet | NoisyColumnSet):
        return item.features
    protect = item.private_protect
    return () if protect is None or protect.feature is None else (protect.feature,)
