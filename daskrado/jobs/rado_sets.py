"""What every set of rados has: its keys, whom it protects, its plan and its charges, from public facts alone."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from pydantic import Field, model_validator

from daskrado.errors import UsageError
from daskrado.jobs.base import Charge, calibrated
from daskrado.jobs.rado_file import RadoLearner
from daskrado.learners import RadoBoost
from daskrado.learners.choose_round import THEOREM
from daskrado.models.rados import noise_of
from daskrado.privacy.accountant import MAX_DELTA, MAX_EPSILON, Event, PureEvent
from daskrado.privacy.mechanisms import OneShot
from daskrado.privacy.protect import Budget, Private, Protect, check_protected_feature
from daskrado.privacy.release import Release
from daskrado.privacy.statement import DOMAIN_IS_PUBLIC, NOT_PRIVATE, PrivacyStatement
from daskrado.statistics.base import Statistic
from daskrado.table.domain import Domain
from daskrado.table.lattice import Lattice
from daskrado.table.yaml_file import Frozen


@dataclass(frozen=True)
class SetPlan:
    """What one set will do. ``charge`` is None where it is not private; ``mechanism`` adds noise to its sums."""

    item: RadoSetKeys
    statistic: Statistic
    lattice: Lattice
    charge: Charge | None = None
    mechanism: OneShot | None = None
    edge_noise: float = 0.0  # standard deviation on one coordinate of one edge vector, in the units of the features

    @property
    def charges(self) -> tuple[Charge, ...]:
        """That of the set, and that of the choice among its learner's rounds."""
        return () if self.charge is None else (self.charge, *self.item.choice())


def knowing(plan: SetPlan, domain: Domain) -> SetPlan:
    """The plan, with a statement that says where the Domain was found."""
    if plan.charge is None or domain.described is None:
        return plan
    return replace(plan, charge=replace(plan.charge, statement=plan.charge.statement.knowing(domain)))


class RadoSetKeys(Frozen):
    """The keys that every set has. A kind adds its own, says whom it protects, and plans itself."""

    without_privacy: ClassVar[str] = NOT_PRIVATE  # what a plan says of a set that is not private

    name: str = Field(pattern=r"^[A-Za-z0-9._-]{1,60}$")
    count: int = Field(default=256, ge=2, le=1 << 16)
    learn: RadoLearner | None = None
    keep_epsilon: float | None = Field(
        default=None,
        ge=1e-9,
        le=50,
        description="budget of a charged choice among RadoBoost's rounds by training error",
    )
    kind: str

    @model_validator(mode="after")
    def _check_keep(self) -> RadoSetKeys:
        if self._protect is not None:
            self._check_units(self._protect)
        if self.keep_epsilon is not None and not isinstance(self.learn, RadoBoost):
            raise ValueError("keep_epsilon chooses among the rounds of radoboost: it needs learn: {kind: radoboost}")
        if self.keep_epsilon is not None and self.protects is None:
            raise ValueError("keep_epsilon is charged on top of a private set: this set protects nobody")
        return self

    def _check_units(self, protect: Protect) -> None:
        """Refuse units where the set cannot bound what they contribute."""
        protect.refuse_units(f"set {self.name!r}")

    @abstractmethod
    def planned(self, domain: Domain, bits: int | None) -> SetPlan:
        """The set with its noise calibrated; a mechanism is used once, so each run plans anew."""

    @property
    def protects(self) -> Protect | None:
        """Who is protected, as a statement says it; None for a set that is not private as a whole."""
        protect = self._protect
        if protect is None or protect.feature is None:
            return protect
        return protect.model_copy(update={"unit": f"{protect.feature} of {protect.unit}"})

    @property
    def _protect(self) -> Protect | None:
        """The key of that name, in the kinds that have it."""
        return getattr(self, "protect", None)

    @property
    def rows_public(self) -> bool:
        """Whether the set says how many rows the lake has."""
        return self.protects is None or self.protects.rows_public

    @property
    def protected_columns(self) -> tuple[str, ...]:
        """The columns that are protected by name."""
        feature = None if self.protects is None else self.protects.feature
        return () if feature is None else (feature,)

    @property
    def exact_kind(self) -> str | None:
        """The kind of rados of which some columns or all are published without noise; None if none are."""
        return None if self.protects is not None else self.kind

    @property
    def public_seed(self) -> int | None:
        """The seed of public signatures; None where their key is secret and fresh."""
        return getattr(self, "seed", None)

    def check_columns(self, domain: Domain) -> None:
        """Refuse columns whose change would reach further than the set protects."""
        for feature in self.protected_columns:
            check_protected_feature(domain, feature, f"set {self.name!r}: feature")

    def unprotected(self, rows: int) -> PrivacyStatement:
        """What the set says where it is not private, which may depend on the number of rows."""
        del rows
        return PrivacyStatement.none()

    def noise_std(self, plan: SetPlan, released: Release, rows: int) -> tuple[float, ...]:
        """Standard deviation of the noise on each column of the rados."""
        del plan, rows
        return noise_of(released)

    def role(self, what: str = "set") -> str:
        """Under which name a charge and its draw are remembered."""
        return f"{what}~{self.name}"

    def choice(self) -> Iterator[Charge]:
        """The charge of the choice among the rounds, where there is one."""
        if self.keep_epsilon is not None:
            budget, how = Budget(epsilon=self.keep_epsilon), "a charged choice of the round"
            yield self._charge("choice", PureEvent(self.keep_epsilon), budget, how, THEOREM, 8)

    def _assumptions(self) -> tuple[str, ...]:
        protect = self._protect
        assert protect is not None
        named = f"only {protect.feature} is protected; all other columns are taken as public, and are published"
        return (protect.owned, DOMAIN_IS_PUBLIC, *([named] if protect.feature is not None else []))

    def _charge(self, what: str, event: Event, budget: Budget, how: str, theorem: str, room: int) -> Charge:
        assert self.protects is not None
        private = Private(self.protects, budget)
        return Charge.of(self.role(what), event, private, how, theorem, self._assumptions(), room=room)

    def _noisy_sums(self, statistic: Statistic, lattice: Lattice, budget: Budget, name: str | None = None) -> SetPlan:
        """A set whose sums get noise."""
        protect = self.protects
        assert protect is not None
        chosen = calibrated(Private(protect, budget), statistic, lattice, name)
        asked = budget if chosen.needs_delta else Budget(epsilon=budget.epsilon)  # what is pure is stated so
        charge = Charge.of_mechanism(self.role(), chosen, Private(protect, asked), self._assumptions())
        return SetPlan(self, statistic, lattice, charge, chosen)


def together(protect: Protect, charges: Sequence[Charge]) -> PrivacyStatement:
    """What several charges for the same protected unit say together."""
    parts = [charge.statement for charge in charges]
    asked = Budget(
        epsilon=min(math.fsum(part.epsilon or 0.0 for part in parts), float(MAX_EPSILON)),
        delta=min(math.fsum(part.delta or 0.0 for part in parts), float(MAX_DELTA)),
    )
    try:
        return PrivacyStatement.of(
            [charge.event for charge in charges],
            protect,
            asked,
            mechanism=", then ".join(dict.fromkeys(part.mechanism for part in parts)),
            theorem="; ".join(dict.fromkeys(part.theorem for part in parts)),
            assumptions=tuple(dict.fromkeys(text for part in parts for text in part.assumptions)),
        )
    except ValueError as error:
        roles = ", ".join(charge.role.replace("~", " ") for charge in charges)
        raise UsageError(f"{roles} together: {error}; lower an epsilon") from error
