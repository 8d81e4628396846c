"""The kinds of sets of rados, one class each: plain ones, and those that protect rows, columns or edge vectors."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from daskrado.bounds.dp_feat import Marginal
from daskrado.errors import UsageError, about_the_key
from daskrado.jobs.rado_sets import RadoSetKeys, SetPlan
from daskrado.models.rados import BITS, PlainKind, SummedKind
from daskrado.privacy.accountant import PureEvent
from daskrado.privacy.protect import Budget, Protect, Unit, check_protected_feature
from daskrado.privacy.relations import Relation
from daskrado.privacy.release import Release
from daskrado.privacy.statement import PrivacyStatement
from daskrado.registry import one_of
from daskrado.statistics import (
    BalancedRados,
    FeatureRados,
    FixedSupportRados,
    HadamardRados,
    NoisyColumnRados,
    NoisyEdgeRados,
    RandomisedRados,
    Statistic,
    UniformRados,
)
from daskrado.statistics.edge_noise import EdgeNoise
from daskrado.statistics.protected_rados import REACH_ROUNDING
from daskrado.statistics.window import Window
from daskrado.table.domain import Domain, NumericColumn
from daskrado.table.lattice import Lattice

LEAST_RESPONSE = 1e-9
EDGE_THEOREM = "discrete Gaussian noise on every edge vector (Canonne, Kamath and Steinke 2020), then post-processing"
RESPONSE_THEOREM = "randomised response on the named columns (Warner 1965), then post-processing"
_SUMMED: dict[str, type[UniformRados | BalancedRados | HadamardRados]] = {
    "uniform": UniformRados,
    "balanced": BalancedRados,
    "hadamard": HadamardRados,
}


def _plain(kind: PlainKind, width: int, count: int, support: int | None = None) -> Statistic:
    if kind == "fixed_support":
        assert support is not None
        return FixedSupportRados(width, count, support)
    return _SUMMED[kind](width, count)


def _grid(domain: Domain, bits: int | None) -> Lattice:
    return Lattice(domain.norm_bound, bits or BITS)


class SummedSet(RadoSetKeys):
    """Uniform, balanced or Hadamard rados: with noise on the rados, or plain when ``private: false`` is written."""

    kind: SummedKind
    seed: int | None = Field(default=None, ge=0)
    private: bool = True
    protect: Protect | None = None
    budget: Budget | None = None

    @model_validator(mode="after")
    def _check(self) -> SummedSet:
        given = (self.protect is not None, self.budget is not None)
        if given != (self.private, self.private):
            raise ValueError("give protect and budget, or write private: false for plain rados that protect nobody")
        if self.protect is not None and self.seed is not None and not self.protect.rows_public:
            raise ValueError(
                f"public signatures by position shift when a row is added: drop seed under {self.protect.relation}"
            )
        with about_the_key(f"set {self.name!r}: "):
            _plain(self.kind, 1, self.count)
        return self

    def _check_units(self, protect: Protect) -> None:
        """All its rados are sums, whose sensitivity holds for any signatures, secret or not."""

    def planned(self, domain: Domain, bits: int | None) -> SetPlan:
        statistic, lattice = _plain(self.kind, domain.width, self.count), _grid(domain, bits)
        if self.budget is None:
            return SetPlan(self, statistic, lattice)
        return self._noisy_sums(statistic, lattice, self.budget)


class FixedSupportSet(RadoSetKeys):
    """Sums over uniform subsets of exactly ``support`` rows: not private."""

    kind: Literal["fixed_support"]
    support: int = Field(ge=1)
    seed: int | None = Field(default=None, ge=0)

    def planned(self, domain: Domain, bits: int | None) -> SetPlan:
        return SetPlan(self, _plain(self.kind, domain.width, self.count, self.support), _grid(domain, bits))


class DpFeatSet(RadoSetKeys):
    """DP-FEAT for one boolean feature: a guarantee for the marginal of its coordinate only."""

    without_privacy: ClassVar[str] = (
        "NOT PRIVATE as a whole: a guarantee for the marginal of one coordinate only (numbers at the run)"
    )

    kind: Literal["dp_feat"]
    feature: str
    epsilon: float = Field(ge=1e-9, le=50)

    @property
    def protected_columns(self) -> tuple[str, ...]:
        return (self.feature,)

    def unprotected(self, rows: int) -> PrivacyStatement:
        return PrivacyStatement.marginal_only(Marginal(Window(self.epsilon, rows), self.count).facts(self.feature))

    def planned(self, domain: Domain, bits: int | None) -> SetPlan:
        """No noise: the statistic keeps to its window."""
        at = domain.feature_names.index(self.feature)
        return SetPlan(self, FeatureRados(domain.width, self.count, at, self.epsilon), _grid(domain, bits))


class _ColumnSet(RadoSetKeys):
    """A set that protects the named features of one unit; everything else is public."""

    features: tuple[str, ...] = Field(min_length=1)
    unit: Annotated[str, Field(min_length=1)] | Unit
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
    def protect(self) -> Protect:
        """The named features of one unit."""
        declared = {"rows_per_unit": self.rows_per_unit} if "rows_per_unit" in self.model_fields_set else {}
        named = {"relation": Relation.FEATURE_FLIP, "feature": ", ".join(self.features)}
        return Protect.model_validate({**named, "unit": self.unit, **declared})

    @property
    def protected_columns(self) -> tuple[str, ...]:
        return self.features

    def _places(self, domain: Domain) -> tuple[int, ...]:
        return tuple(map(domain.feature_names.index, self.features))


class RandomisedSet(_ColumnSet):
    """Boolean features through randomised response, once, before any rado: pure epsilon for them together."""

    kind: Literal["randomised_response"]
    base: SummedKind = "balanced"

    @field_validator("budget")
    @classmethod
    def _pure(cls, budget: Budget) -> Budget:
        if budget.delta > 0:
            raise ValueError(f"randomised response is pure: leave delta out, got {budget.delta:g}")
        return budget

    def _check_units(self, protect: Protect) -> None:
        protect.sampled_only(f"set {self.name!r}, in which every row answers by itself,")

    @property
    def exact_kind(self) -> str | None:
        return self.base  # of the columns that are not named

    def planned(self, domain: Domain, bits: int | None) -> SetPlan:
        """Answers with an equal share of epsilon for each feature and row."""
        each = self.budget.epsilon / (len(self.features) * self.protect.rows_per_unit)
        if each < LEAST_RESPONSE:  # the columns are divided by about half of it, which must leave finite numbers
            small = f"epsilon {each:.3g} for each feature and row is too small for randomised response"
            raise UsageError(f"set {self.name!r}: {small}, at least {LEAST_RESPONSE:g}")
        base = _plain(self.base, domain.width, self.count)
        statistic = RandomisedRados(domain.width, base, self._places(domain), each)
        event, room = PureEvent(self.budget.epsilon), 16 * statistic.size
        charge = self._charge("set", event, self.budget, "randomised response", RESPONSE_THEOREM, room)
        return SetPlan(self, statistic, _grid(domain, bits), charge)


class NoisyColumnSet(_ColumnSet):
    """Noise on the columns of the named features, boolean or numeric; all other columns are public."""

    kind: Literal["noisy_column"]
    balanced: bool = True
    mechanism: Literal["gaussian", "laplace"] | None = None

    def _check_units(self, protect: Protect) -> None:
        """Weights depend on who owns rows, not on the named features: the columns of all others stay public."""

    @property
    def exact_kind(self) -> str | None:
        return "balanced" if self.balanced else "uniform"

    def check_columns(self, domain: Domain) -> None:
        """A numeric column will do too, where no row is clipped."""
        where = f"set {self.name!r}: feature"
        for feature in self.features:
            check_protected_feature(domain, feature, where, numbers=True)
            clipped = domain.norm_bound < domain.largest_norm * (1 + 1e-9)
            if isinstance(domain.columns[feature], NumericColumn) and clipped:
                raise ValueError(
                    f"{where} {feature!r} would reach other columns through clipping; noise on its column needs "
                    f"a domain with norm_bound at least {domain.largest_norm * (1 + 2e-8):.8g}"
                )

    def planned(self, domain: Domain, bits: int | None) -> SetPlan:
        reach = min(1.0, REACH_ROUNDING / domain.norm_bound)
        statistic = NoisyColumnRados(domain.width, self.count, self._places(domain), reach, self.balanced)
        return self._noisy_sums(statistic, _grid(domain, bits), self.budget, self.mechanism)


class NoisyEdgesSet(RadoSetKeys):
    """Rados of edge vectors that each carry Gaussian noise: private whatever is summed from them."""

    kind: Literal["noisy_edges"]
    protect: Protect
    budget: Budget
    base: PlainKind = "uniform"
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

    def _check_units(self, protect: Protect) -> None:
        protect.sampled_only(f"set {self.name!r}, in which every row has noise of its own,")
        if protect.column is not None and self.base == "fixed_support":
            raise ValueError(f"set {self.name!r}: fixed_support counts rows, not units: use base: uniform")

    def noise_std(self, plan: SetPlan, released: Release, rows: int) -> tuple[float, ...]:
        """Each rado sums the noise of its support, half of the rows unless it is fixed."""
        support = self.support if self.support is not None else rows / 2
        return (plan.edge_noise * math.sqrt(support),) * released.statistic.width

    def planned(self, domain: Domain, bits: int | None) -> SetPlan:
        """Noise on every row, before any sum."""
        budget, width = self.budget, domain.width
        try:
            noise = EdgeNoise.for_budget(budget.epsilon, budget.delta, width, self.protect.rows_per_unit, bits)
        except UsageError as error:
            raise UsageError(f"set {self.name!r}: {error}") from error
        lattice = Lattice(domain.norm_bound, noise.bits)
        statistic = NoisyEdgeRados(width, _plain(self.base, width, self.count, self.support), noise.scale)
        room = 16 * statistic.size
        charge = self._charge("set", noise.event, budget, "gaussian on edge vectors", EDGE_THEOREM, room)
        return SetPlan(self, statistic, lattice, charge, edge_noise=noise.scale * lattice.step)


AnyRadoSet = Annotated[RadoSetKeys, one_of()]  # all kinds are in this module, or in an installed extension
