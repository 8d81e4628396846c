"""A pipeline: one job as a YAML file, validated key by key before anything is read or spent."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool, field_validator, model_validator

from daskrado.cluster import ClusterConfig
from daskrado.errors import UsageError
from daskrado.jobs.iterative import IterativeChoice, TuningChoice, is_iterative
from daskrado.learners import MeanLearner, MomentsLearner, RadoBoost, RadoMoments, RadoNewton
from daskrado.ledger.config import LedgerConfig
from daskrado.privacy.protect import Budget, Protect
from daskrado.privacy.relations import Relation
from daskrado.statistics import BalancedRados, HadamardRados, MeanOperator, Moments, Statistic, UniformRados
from daskrado.table.domain import BooleanColumn, Domain
from daskrado.table.yaml_file import Frozen, parse

Learner = MomentsLearner | MeanLearner | RadoBoost | RadoMoments | RadoNewton


class MomentsStatistic(Frozen):
    """First and second moments."""

    kind: Literal["moments"]

    def build(self, width: int) -> Statistic:
        """The statistic for a Domain of this width."""
        return Moments(width)


class MeanStatistic(Frozen):
    """The mean operator with the count."""

    kind: Literal["mean_operator"]

    def build(self, width: int) -> Statistic:
        """The statistic for a Domain of this width."""
        return MeanOperator(width)


class RadoStatistic(Frozen):
    """Rados of some kind; ``seed`` makes their signatures public and repeatable, else the key is secret and fresh."""

    kind: Literal["hadamard_rados", "balanced_rados", "uniform_rados"]
    count: int = Field(default=256, ge=2, le=1 << 16)
    bucket_zero: bool = False
    seed: int | None = Field(default=None, ge=0)

    @model_validator(mode="after")
    def _check(self) -> RadoStatistic:
        try:
            self.build(1)
        except UsageError as error:  # a count that this kind cannot have
            raise ValueError(str(error)) from error
        return self

    def build(self, width: int) -> Statistic:
        """The statistic for a Domain of this width."""
        if self.kind == "hadamard_rados":
            return HadamardRados(width, self.count, self.bucket_zero)
        return (BalancedRados if self.kind == "balanced_rados" else UniformRados)(width, self.count)


class MomentsChoice(Frozen):
    """Least squares from moments."""

    kind: Literal["moments"]
    ridge: float | None = Field(default=None, ge=0)

    def build(self) -> Learner:
        """The learner."""
        return MomentsLearner(self.ridge)


class MeanChoice(Frozen):
    """The direction of the mean operator."""

    kind: Literal["mean"]

    def build(self) -> Learner:
        """The learner."""
        return MeanLearner()


class RadoBoostChoice(Frozen):
    """RadoBoost and its options."""

    kind: Literal["radoboost"]
    rounds: int = Field(default=1000, ge=1, le=10_000_000)
    kappa: float = Field(default=1.0, ge=1)
    oracle: Literal["strongest", "median", "prudential"] = "strongest"
    prudence: float = Field(default=0.5, gt=0, le=1)
    clamp: float = Field(default=0.999999, gt=0, lt=1)
    clamp_low: float = Field(default=0.0, ge=0, lt=1)
    update: Literal["linear", "exponential"] = "linear"
    keep: Literal["risk", "last"] = "risk"

    def build(self) -> RadoBoost:
        """The learner."""
        options = self.model_dump(exclude={"kind"})
        return RadoBoost(**options)


class RadoMomentsChoice(Frozen):
    """The first two cumulants of the rado risk, solved."""

    kind: Literal["rado_moments"]
    ridge: float | None = Field(default=None, ge=0)

    def build(self) -> RadoMoments:
        """The learner."""
        return RadoMoments(self.ridge)


class RadoNewtonChoice(Frozen):
    """Ridge logistic rado risk by Newton steps."""

    kind: Literal["rado_newton"]
    ridge: float = Field(default=1.0, gt=0)

    def build(self) -> RadoNewton:
        """The learner."""
        return RadoNewton(self.ridge)


StatisticChoice = Annotated[MomentsStatistic | MeanStatistic | RadoStatistic, Field(discriminator="kind")]
OneShotChoice = MomentsChoice | MeanChoice | RadoBoostChoice | RadoMomentsChoice | RadoNewtonChoice
LearnerChoice = Annotated[OneShotChoice | IterativeChoice, Field(discriminator="kind")]
_RADOS = ("hadamard_rados", "balanced_rados", "uniform_rados")
_FITS = {
    "moments": ("moments",),
    "mean": ("mean_operator", "moments"),
    "radoboost": _RADOS,
    "rado_moments": _RADOS,
    "rado_newton": _RADOS,
}


def loaded_domain(value: Any) -> Any:
    """A Domain from the path of its file, or as it is."""
    return Domain.load(value) if isinstance(value, str | Path) else value


def checked_lake(value: Any) -> Any:
    """Refuse what cannot be a lake's address, list of addresses or frame."""
    address = isinstance(value, str | Path) and str(value)
    listed = isinstance(value, list | tuple) and value and all(isinstance(v, str | Path) and str(v) for v in value)
    frame = hasattr(value, "columns")
    if not (address or listed or frame):
        # Never what it holds: that may be rows.
        items = sorted({type(v).__name__ for v in value}) if isinstance(value, list | tuple) else []
        given = f"{type(value).__name__} of {', '.join(items)}" if items else type(value).__name__
        empty = value is None or (isinstance(value, str | list | tuple | dict) and not value)
        raise ValueError(f"must be an address or a list of addresses, got {'no address' if empty else given}")
    return value


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


class LakePipeline(Frozen):
    """What every kind of job says: which lake, as what data set, where to, on which workers."""

    dataset: str = Field(pattern=r"^[A-Za-z0-9._-]{1,100}$")
    lake: Any
    domain: Domain
    output: str
    cluster: ClusterConfig = ClusterConfig()

    _read_domain = field_validator("domain", mode="before")(loaded_domain)
    _check_lake = field_validator("lake")(checked_lake)

    @model_validator(mode="after")
    def _check_protected_feature(self) -> LakePipeline:
        """For every kind of job that says whom it protects."""
        protect = getattr(self, "protect", None)
        if isinstance(protect, Protect) and protect.feature is not None:
            check_protected_feature(self.domain, protect.feature, "protect.feature")
        return self


def check_protected(private: bool, protect: Any, budget: Budget | None, exact: str) -> None:
    """Protection is given whole, or ``private: false`` is written out; ``exact`` is what that gives."""
    if not private and (protect is not None or budget is not None):
        raise ValueError("private: false protects nobody: drop protect and budget, or drop private: false")
    if private and (protect is None or budget is None):
        raise ValueError(f"protect and budget are missing; for {exact} without protection say private: false")


class Pipeline(LakePipeline):
    """One job. ``private: false`` must be written out to get a baseline without protection."""

    private: StrictBool = True
    protect: Protect | None = None
    budget: Budget | None = None
    ledger: LedgerConfig = LedgerConfig()
    learner: LearnerChoice = MomentsChoice(kind="moments")
    statistic: StatisticChoice | None = None
    rows: int | None = Field(
        default=None, ge=1, le=10**15, description="public number of rows; a guess under add_remove"
    )
    mechanism: Literal["gaussian", "laplace"] | None = None
    lattice_bits: int | None = Field(default=None, ge=4, le=26)

    @model_validator(mode="before")
    @classmethod
    def _default_statistic(cls, content: Any) -> Any:
        """The statistic that the learner needs, where the pipeline leaves it out."""
        if isinstance(content, dict) and "statistic" not in content:
            learner = content.get("learner", {"kind": "moments"})
            kind = learner.get("kind") if isinstance(learner, dict) else getattr(learner, "kind", None)
            if isinstance(kind, str) and kind in _FITS:
                return {**content, "statistic": {"kind": _FITS[kind][0]}}
        return content

    @model_validator(mode="after")
    def _check_learner(self) -> Pipeline:
        try:
            self.learner.build()
        except UsageError as error:  # options that contradict each other
            raise ValueError(f"learner: {error}") from error
        return self

    @model_validator(mode="after")
    def _check(self) -> Pipeline:
        if self.iterative:
            return self._check_iterative()
        if self.statistic is None:
            raise ValueError(
                f"statistic: missing; learner {self.learner.kind} takes {', '.join(_FITS[self.learner.kind])}"
            )
        if self.statistic.kind not in _FITS[self.learner.kind]:
            fits = ", ".join(_FITS[self.learner.kind])
            raise ValueError(
                f"learner {self.learner.kind} needs one of the statistics {fits}, got {self.statistic.kind}"
            )
        self._check_protection()
        if self.protect is not None and isinstance(self.statistic, RadoStatistic):
            self._check_rados(self.statistic, self.protect)
        return self

    def _check_protection(self) -> None:
        check_protected(self.private, self.protect, self.budget, "a baseline")
        if self.protect is None or self.budget is None:
            return
        if self.mechanism == "gaussian" and self.budget.delta == 0:
            raise ValueError(
                "gaussian noise needs delta above 0: give budget.delta, or use laplace for a pure guarantee"
            )
        first = self.ledger.first_limit
        if first is not None and first.delta == 0 and self.budget.delta > 0 and self.mechanism != "laplace":
            raise ValueError("ledger.first_limit needs a delta above 0 to cover gaussian noise")

    @property
    def iterative(self) -> bool:
        """Whether the learner reads the lake several times instead of learning from one release."""
        return is_iterative(self.learner.kind)

    def _check_iterative(self) -> Pipeline:
        if self.statistic is not None or self.mechanism is not None:
            raise ValueError(
                f"learner {self.learner.kind} has statistics and noise of its own: drop statistic and mechanism"
            )
        self._check_protection()
        if self.private == (self.learner.kind == "erm"):
            raise ValueError(
                "learner erm adds no noise: it goes with private: false, and the other learners that read the lake "
                "several times do not"
            )
        if isinstance(self.learner, TuningChoice) and self.learner.public_lake is None and self.private:
            self._check_tuning()
        if self.protect is not None and not self.protect.relation.rows_public and self.rows is None:
            raise ValueError(
                f"learner {self.learner.kind} under add_remove needs rows: a public guess at their number, which is "
                "secret (only accuracy depends on it)"
            )
        return self

    def _check_tuning(self) -> None:
        assert self.protect is not None
        if self.protect.relation is Relation.ADD_REMOVE and self.domain.id is None:
            raise ValueError(
                "tuning deals rows out by position, which shifts when a row is added or removed: give the domain an "
                "id column, or protect under replace_one"
            )

    def _check_rados(self, rados: RadoStatistic, protect: Protect) -> None:
        if rados.bucket_zero:
            raise ValueError("bucket_zero is for baselines (private: false): it doubles the sensitivity")
        if rados.seed is not None and protect.relation is Relation.ADD_REMOVE and self.domain.id is None:
            raise ValueError(
                "public signatures by position shift when a row is added or removed: give the domain an id column, "
                "drop statistic.seed, or protect under replace_one"
            )

    @property
    def rows_public(self) -> bool:
        """Whether the relation leaves the number of rows public; it is of a baseline."""
        return not self.private or (self.protect is not None and self.protect.relation.rows_public)

    @property
    def noise(self) -> str:
        """The mechanism's name: as given, else gaussian with a delta and laplace without one."""
        assert self.budget is not None
        return self.mechanism or ("gaussian" if self.budget.delta > 0 else "laplace")


def make_pipeline(**content: Any) -> Pipeline:
    """A pipeline from Python values; the same checks as for a file."""
    if "lake" not in content:
        raise UsageError("a pipeline needs a lake")
    return parse(Pipeline, content, "pipeline")
