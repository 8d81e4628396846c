"""A study: what several sites agree to compute together, as a YAML file that the coordinator writes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import Field, field_validator, model_validator

from daskrado.cluster import ClusterConfig
from daskrado.errors import DataError
from daskrado.jobs.chosen_blocks import with_exact_blocks
from daskrado.jobs.learn import ROLE, AnyLearner, AnyStatistic, LearnJob
from daskrado.jobs.outcome import Charge, calibrated
from daskrado.lake.blocks import Blocks
from daskrado.learners.base import ReleaseLearner
from daskrado.learners.on_passes.gradient import PrivateGradient
from daskrado.learners.on_passes.iterative import worthwhile_guarantee
from daskrado.parties.mailbox import check_name
from daskrado.parties.rounds import Round
from daskrado.privacy.mechanisms import DiscreteGaussian, Mechanism
from daskrado.privacy.perturbation import PublicFacts
from daskrado.privacy.protect import Budget, Private, Protect
from daskrado.privacy.relations import Relation
from daskrado.privacy.shares import SUMMED, GaussianShares
from daskrado.privacy.statement import PrivacyStatement
from daskrado.statistics.base import Statistic
from daskrado.statistics.bounded import bounded, target_of
from daskrado.table.domain import Domain
from daskrado.table.yaml_file import Frozen, parse, read_yaml

NOWHERE = "-"  # a plan needs the name of a lake; the coordinator has none


class DistributedNoise(Frozen):
    """Every site adds a share; ``honest`` of them are enough, in any roster of at least ``minimum`` sites."""

    kind: Literal["distributed"]
    honest: int = Field(ge=1)


class CentralNoise(Frozen):
    """The coordinator is trusted with the exact total and adds noise once."""

    kind: Literal["central"]


class RoundJob(LearnJob):
    """A round of a study as a job: at a site on its lake, at the coordinator on none."""

    name: ClassVar[str] = "study round"  # the space keeps it out of pipeline files

    @property
    def summed(self) -> Statistic:
        """The one statistic that is summed over the sites; each site bounds its own units."""
        assert self.chosen_statistic is not None  # Terms refuses learners without one
        bound = None if self.protect is None else self.protect.bound
        return bounded(self.chosen_statistic, bound, self.lattice)


@dataclass(frozen=True)
class RoundPlan:
    """What a round asks of every site: all of it public."""

    job: RoundJob
    mechanism: Mechanism | None = None
    charge: Charge | None = None
    facts: PublicFacts | None = None  # of a learner that takes many steps, each of them a pass over all sites

    @property
    def statement(self) -> PrivacyStatement:
        """What is guaranteed."""
        return PrivacyStatement.none() if self.charge is None else self.charge.statement

    @property
    def descent(self) -> PrivateGradient:
        """The learner that takes many steps."""
        assert isinstance(self.job.learner, PrivateGradient)
        return self.job.learner

    @property
    def size(self) -> int:
        """How many integers a site gives, where it gives them once."""
        return 0 if self.facts is not None else self.job.summed.size

    @property
    def shares(self) -> GaussianShares | None:
        """The mechanism, where every site adds a share of the noise."""
        return self.mechanism if isinstance(self.mechanism, GaussianShares) else None


class Terms(Frozen):
    """What every site agrees to: all of it public. ``private: false`` is a baseline that protects nobody."""

    study: str
    domain: Domain
    private: bool = True
    protect: Protect | None = None
    budget: Budget | None = None
    noise: Annotated[DistributedNoise | CentralNoise, Field(discriminator="kind")] | None = None
    learner: AnyLearner = Field(default="moments", validate_default=True)
    statistic: AnyStatistic | None = None
    mechanism: str | None = None
    lattice_bits: int | None = Field(default=None, ge=4, le=26)
    rows: int | None = Field(default=None, ge=1, le=10**15)
    minimum: int = Field(ge=2)

    @field_validator("domain", mode="before")
    @classmethod
    def _read_domain(cls, value: Any) -> Any:
        return Domain.load(value) if isinstance(value, str | Path) else value

    @model_validator(mode="after")
    def _check(self) -> Terms:
        if self.private and self.noise is None:
            raise ValueError(
                "noise is missing: {kind: distributed, honest: N}, or {kind: central} where the "
                "coordinator is trusted with the exact total"
            )
        if not isinstance(self.learner, ReleaseLearner):
            self._check_descent()
        if not self.private and self.noise is not None:
            raise ValueError("private: false adds no noise: drop noise, or drop private: false")
        if isinstance(self.noise, DistributedNoise):
            if self.noise.honest > self.minimum:
                raise ValueError(
                    f"noise.honest {self.noise.honest} is above minimum {self.minimum}: a round may close "
                    "with fewer sites than are promised to be honest"
                )
            if self.mechanism not in (None, DiscreteGaussian.name):
                raise ValueError(f"mechanism {self.mechanism} cannot be shared out: distributed noise is gaussian")
        if getattr(self.statistic, "seed", None) is not None and self.domain.id is None:
            raise ValueError(
                "rados with a public seed need an id column in the domain: partitions of different sites "
                "would share signatures"
            )
        return self

    def _check_descent(self) -> None:
        """Of the learners on passes a study has the one whose every step is a release of sums."""
        if not isinstance(self.learner, PrivateGradient):
            raise ValueError(
                f"learner {self.learner.name} needs exact sums of every pass, which a study does not give: use "
                "gradient, or a learner on one release"
            )
        if self.domain.label.target != "sides":
            raise ValueError("learner gradient of a study needs a label of two sides; else take moments")
        if self.rows is None:
            raise ValueError("rows is missing: learner gradient needs the number of rows of all sites, or a guess")
        if self.protect is not None and self.protect.relation is not Relation.ADD_REMOVE:
            raise ValueError(f"learner gradient of a study protects under add_remove, not {self.protect.relation}")

    @property
    def descends(self) -> bool:
        """Whether the study takes many steps, each a pass over all sites."""
        return isinstance(self.learner, PrivateGradient)

    @property
    def central(self) -> bool:
        """Whether the coordinator adds the noise."""
        return isinstance(self.noise, CentralNoise)

    def plan(
        self,
        sites: int,
        *,
        lake: Any = NOWHERE,
        dataset: str | None = None,
        cluster: ClusterConfig | None = None,
        blocks: Blocks | None = None,
        reads: Mapping[str, str] | None = None,
    ) -> RoundPlan:
        """The plan of a round among ``sites`` sites: at a site on its lake, or on blocks of it; else on none.

        ``reads`` is what sites said that they read, which the statement repeats.
        """
        content: dict[str, Any] = self.model_dump(exclude={"study", "noise", "minimum", "domain"}, exclude_none=True)
        content |= {"domain": self.domain, "dataset": dataset or self.study, "lake": lake, "output": "."}
        if cluster is not None:
            content["cluster"] = cluster
        if blocks is not None:
            content["blocks"] = blocks
        job = with_exact_blocks(parse(RoundJob, content, "study"))
        if not isinstance(job.privacy, Private):
            return RoundPlan(job)
        assumptions = self._assumptions(job, job.privacy.protect)
        if reads:
            said = "; ".join(f"{site} {text}" for site, text in reads.items())
            assumptions.append(f"sites read, as they say: {said}; a row that is replaced keeps its block")
        if self.descends:
            return self._descent(job, job.privacy, sites, assumptions)
        chosen = self._noise_of(job, job.privacy, sites)
        room = 16 * job.summed.size
        charge = Charge.of(ROLE, chosen.event, job.privacy, chosen.name, chosen.theorem, assumptions, room=room)
        return RoundPlan(job, chosen, charge)

    def _descent(self, job: RoundJob, private: Private, sites: int, assumptions: list[str]) -> RoundPlan:
        """All steps together, as one charge; the schedule is public."""
        facts = job.facts
        if isinstance(self.noise, DistributedNoise):
            facts = replace(facts, sites=sites, honest=self.noise.honest)
        found = worthwhile_guarantee(cast(PrivateGradient, job.learner), facts)
        theorem = found.theorem if self.central else f"{SUMMED}; {found.theorem}"
        charge = Charge.of(ROLE, found.event, private, found.mechanism, theorem, assumptions)
        return RoundPlan(job, charge=charge, facts=facts)

    def _noise_of(self, job: RoundJob, private: Private, sites: int) -> Mechanism:
        """Noise that a trusted coordinator adds once, or shares of it that every site adds."""
        if not isinstance(self.noise, DistributedNoise):
            return calibrated(private, job.summed, job.lattice, job.mechanism)
        budget, target = private.budget, target_of(job.summed, job.lattice, private.protect)
        return GaussianShares(target, budget.epsilon, budget.delta, honest=self.noise.honest, sites=sites)

    def _assumptions(self, job: RoundJob, protect: Protect) -> list[str]:
        owned = f"{protect.owned.removesuffix(' in the lake')} at all sites together"
        if protect.column is not None:
            owned = f"{protect.owned}, at each site: {protect.unit} known to several sites is a unit of each"
        assumed = [owned, *job.assumptions[1:]]
        if isinstance(self.noise, DistributedNoise):
            trusted = (
                f"in any roster of at least {self.minimum} sites, {self.noise.honest} or more add their share of "
                "noise and keep their keys secret"
            )
        else:
            what = "the exact sums of every pass" if self.descends else "the exact total"
            trusted = (
                f"the coordinator is trusted with {what} of this study, and with those of other studies of these "
                f"rows, adds noise once{' to each' if self.descends else ''} and releases one round"
            )
        return [*assumed, trusted, "the sites compared the roster's fingerprint with each other"]

    @property
    def content(self) -> dict[str, Any]:
        """As plain JSON for a signed document, whose keys are sorted: the domain is text, to keep its order."""
        domain = json.dumps(self.domain.model_dump(mode="json"), separators=(",", ":"))
        return {**self.model_dump(mode="json"), "domain": domain}

    @property
    def noise_in_words(self) -> str:
        """Who adds noise, for manifests and people."""
        if isinstance(self.noise, DistributedNoise):
            return f"distributed: every site adds a share, {self.noise.honest} honest site(s) are enough"
        return "central: added once by a trusted coordinator" if self.private else "none: NOT PRIVATE"


class StudyFile(Frozen):
    """The coordinator's file: the terms, and the roster. A key left out is taken from the card that its site put
    into the folder when it joined."""

    terms: Terms
    sites: dict[str, str | None]


def load_study(source: str | Path | Mapping[str, Any]) -> StudyFile:
    """Read and check a study file, or the same content as Python values."""
    where = str(source) if isinstance(source, str | Path) else "study"
    content = read_yaml(source) if isinstance(source, str | Path) else source
    terms = dict(content) if isinstance(content, Mapping) else content
    sites = terms.pop("sites", None) if isinstance(terms, dict) else None
    found = StudyFile(terms=parse(Terms, terms, where), sites=parse(_Sites, {"sites": sites}, where).sites)
    check_name(found.terms.study, f"{where}: study")
    for name in found.sites:
        check_name(name, f"{where}: site")
    found.terms.plan(max(len(found.sites), found.terms.minimum))  # whatever cannot be calibrated is refused now
    return found


class _Sites(Frozen):
    sites: dict[str, str | None] = Field(min_length=2)


def terms_of(round_: Round, where: str) -> Terms:
    """The terms that a round's document carries."""
    try:
        domain = json.loads(round_.terms["domain"])
    except (KeyError, TypeError, ValueError):
        raise DataError(f"{where}: round {round_.number} has no domain") from None
    terms = parse(Terms, {**round_.terms, "domain": parse(Domain, domain, f"{where}: domain")}, where)
    check_name(terms.study, f"{where}: study")
    for name in round_.roster:
        check_name(name, f"{where}: site")
    return terms
