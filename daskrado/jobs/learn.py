"""kind: learn. A model from one release of a statistic, or from a learner that reads the lake several times."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import Annotated, Any, ClassVar, cast

from pydantic import Field, ValidationInfo, field_validator, model_validator

from daskrado.errors import about_the_key
from daskrado.jobs import class_weight as weighting
from daskrado.jobs import goal as goals
from daskrado.jobs import holdout as held
from daskrado.jobs import row_count
from daskrado.jobs.base import Address, Charge, Line, Outcome, PrivateJob, Run, calibrated
from daskrado.jobs.learn_forecast import forecast_lines
from daskrado.jobs.learn_outcome import learn_outcome, loose_norm
from daskrado.jobs.measure import ROLE as EVALUATION
from daskrado.lake.holdout import TRAINING, check_column
from daskrado.lake.scan import Lake, open_lake
from daskrado.lake.seeds import SignatureKey
from daskrado.lake.shards import check_places, check_signatures
from daskrado.learners.base import Learned, Learner, ReleaseLearner
from daskrado.learners.on_passes.iterative import IterativeLearner, Session, worthwhile_guarantee
from daskrado.ledger.account import Account
from daskrado.models.linear import LinearModel
from daskrado.privacy.mechanisms import OneShot, default_mechanism, mechanism_kind
from daskrado.privacy.perturbation import PublicFacts
from daskrado.privacy.protect import Private
from daskrado.privacy.relations import Relation
from daskrado.privacy.release import Release, release_without_privacy
from daskrado.registry import one_of
from daskrado.statistics.base import Statistic, Summary
from daskrado.statistics.bounded import bounded
from daskrado.table.label import TARGETS, Target
from daskrado.table.lattice import MOST_ROWS, Lattice


def _width(info: ValidationInfo) -> dict[str, Any]:
    domain = info.data.get("domain")  # missing where the domain itself is refused
    return {"width": 1 if domain is None else domain.width}


AnyLearner = Annotated[Learner, one_of("daskrado.learners")]
AnyStatistic = Annotated[Statistic, one_of("daskrado.statistics", given=_width)]
ROLE = "release"
TUNING_KEY = SignatureKey.from_seed(0)  # deals rows out to the parts of a tuning grid: public, and not by content


class LearnJob(PrivateJob):
    """One model. ``private: false`` must be written out to get a baseline without protection."""

    name: ClassVar[str] = "learn"
    counts_units: ClassVar[bool] = True
    without_privacy: ClassVar[str] = "a baseline"
    targets: ClassVar[tuple[Target, ...]] = ("sides", "number", "classes")
    title: ClassVar[str] = "{job.dataset}: a linear model"
    addresses: ClassVar[tuple[Address, ...]] = (("learner", "public_lake"),)

    learner: AnyLearner = Field(default="moments", validate_default=True)
    statistic: AnyStatistic | None = None
    rows: int | None = Field(
        default=None,
        ge=1,
        le=10**15,
        description="public number of rows; under add_remove a guess, or a private count",
    )
    holdout: held.Holdout | None = Field(default=None, description="share of the ids to evaluate on, or {fold, of}")
    evaluate: held.Evaluating | None = None
    class_weight: weighting.ClassWeight | None = None
    goal: goals.Goal | None = None
    mechanism: str | None = None
    lattice_bits: int | None = Field(default=None, ge=4, le=26)

    @model_validator(mode="before")
    @classmethod
    def _default_learner(cls, content: Any) -> Any:
        """auto where there is a goal, else moments."""
        if not isinstance(content, dict):
            return content
        learner = content.get("learner")
        if learner is None:
            learner = "moments" if content.get("goal") is None else "auto"
        if isinstance(learner, dict) and learner.get("kind") == "moments" and learner.get("centre") is True:
            learner = {**learner, "kind": "placed_moments"}
        if isinstance(learner, dict) and learner.get("kind") == "tuning" and learner.get("public_lake") is not None:
            learner = {**learner, "kind": "public_tuning"}
        elif isinstance(learner, dict) and learner.get("kind") == "tuning":
            learner = {key: value for key, value in learner.items() if key != "public_lake"}
        return {**content, "learner": learner}

    @field_validator("mechanism")
    @classmethod
    def _known_mechanism(cls, name: str | None) -> str | None:
        with about_the_key():
            return None if name is None else mechanism_kind(name).name

    @model_validator(mode="after")
    def _check(self) -> LearnJob:
        if isinstance(self.learner, IterativeLearner):
            with about_the_key("learner: "):  # before anybody sees the frozen value
                self.__dict__["learner"] = self.learner.for_label(self.domain.label)
            self._check_iterative(self.learner)
        else:
            self._check_statistic(cast(ReleaseLearner, self.learner))
        self._check_noise()
        held.check(self)
        weighting.check(self)
        goals.check(self)
        return self

    def _check_statistic(self, learner: ReleaseLearner) -> None:
        if self.statistic is not None and self.statistic.name not in learner.statistics:
            raise ValueError(
                f"learner {learner.name} needs one of the statistics {', '.join(learner.statistics)}, "
                f"got {self.statistic.name}"
            )
        if (classes := self.domain.label.classes) is not None and hasattr(self.statistic, "classes"):
            self.__dict__["statistic"] = replace(self.statistic, classes=len(classes))  # type: ignore[type-var]
        with about_the_key("learner: "):
            taken = self.chosen_statistic
        if taken is not None and (target := self.domain.label.target) not in taken.targets:
            raise ValueError(f"statistic {taken.name} is not meant for a label that is {TARGETS[target]}")
        seeded = getattr(self.chosen_statistic, "seed", None) is not None
        if self.private and getattr(self.chosen_statistic, "bucket_zero", False):
            raise ValueError("bucket_zero is for baselines (private: false): it doubles the sensitivity")
        if self.private and seeded and self.counts_rows and self.domain.id is None:
            raise ValueError(
                "public signatures by position shift when a row is added or removed: give the domain an id column, "
                "drop statistic.seed, or protect under replace_one"
            )

    def _check_iterative(self, learner: IterativeLearner) -> None:
        if self.statistic is not None or self.mechanism is not None:
            raise ValueError(
                f"learner {learner.name} has statistics and noise of its own: drop statistic and mechanism"
            )
        if self.private != learner.private:
            raise ValueError(
                "learner erm adds no noise: it goes with private: false, and the other learners that read the lake "
                "several times do not"
            )
        units = self.protect is not None and self.protect.column is not None
        if self.private and learner.seeded and self.counts_rows and self.domain.id is None and not units:
            raise ValueError(
                f"{learner.name} deals rows out by position, which shifts when a row is added or removed: give the "
                "domain an id column, or protect under replace_one"
            )
        if units and self.asked.protect.relation is Relation.REPLACE_ONE:
            raise ValueError(f"{learner.name} bounds units under add_remove, which also covers their replacement")

    def _check_noise(self) -> None:
        if self.budget is None or isinstance(self.learner, IterativeLearner):
            return
        kind = mechanism_kind(self.mechanism or default_mechanism(self.budget.delta))
        if kind.needs_delta and self.budget.delta == 0:
            raise ValueError(
                f"{kind.name} noise needs delta above 0: give budget.delta, or use laplace for a pure guarantee"
            )
        first = self.ledger.first_limit
        if first is not None and first.delta == 0 and kind.needs_delta:
            raise ValueError(f"ledger.first_limit needs a delta above 0 to cover {kind.name} noise")

    @property
    def guessed_rows(self) -> int | None:
        """The public number of rows, or a guess at a secret one: as given, else as it was described."""
        found = self.domain.described
        return self.rows if self.rows is not None or found is None or not self.counts_rows else found.rows

    @property
    def counts_rows(self) -> bool:
        """Whether the number of rows is secret."""
        return self.protect is not None and not self.protect.rows_public

    @cached_property
    def chosen_statistic(self) -> Statistic | None:
        """The statistic that is released: as given, else the learner's default; None for a learner on passes."""
        if self.statistic is not None or isinstance(self.learner, IterativeLearner):
            return self.statistic
        return cast(ReleaseLearner, self.learner).statistic_for(self.domain)

    @cached_property
    def lattice(self) -> Lattice:
        """The grid of the rows."""
        return Lattice(self.domain.norm_bound, self.lattice_bits or self._default_bits())

    def _default_bits(self) -> int:
        """The grid where none is given: coarser where sums must have room for any secret number of rows."""
        if isinstance(self.learner, IterativeLearner):
            return self.learner.default_bits if self.rows_public else self.learner.secret_bits
        assert self.chosen_statistic is not None
        return self.chosen_statistic.default_bits if self.rows_public else self.chosen_statistic.bits_for(MOST_ROWS)

    @cached_property
    def facts(self) -> PublicFacts:
        """What a learner that reads the lake several times may know before it reads a row."""
        if row_count.counted(self):
            return self.facts_of(row_count.STAND_IN, self.split.training)
        rows = self.guessed_rows or open_lake(self.source, self.domain, strict=not self.protects).rows
        rows = max(1, round(rows * (1 - held.share_of(self))))
        if not self.private:
            return PublicFacts(rows, self.domain.width, self.domain.norm_bound, Relation.REPLACE_ONE, 1.0)
        return self.facts_of(rows, weighting.learning(self))

    @cached_property
    def split(self) -> row_count.Split:
        """The budget's parts for the count of rows and for training, where rows are counted."""
        return row_count.split(self)

    @property
    def trainer(self) -> IterativeLearner:
        """The learner on passes, with those choices made that must not depend on a count."""
        return self.split.learner if row_count.counted(self) else cast(IterativeLearner, self.learner)

    def facts_of(self, rows: int, private: Private) -> PublicFacts:
        """What a learner may know if it trains on so many rows with such a budget."""
        width, bound = self.domain.width, self.domain.norm_bound
        protect, budget = private.protect, private.budget
        asked = (protect.relation, budget.epsilon, budget.delta, protect.rows_per_unit)
        units = protect.how == "spread", protect.column is not None
        counted = self.class_weight is not None, cast(IterativeLearner, self.learner).numbers(self.domain)
        return PublicFacts(rows, width, bound, *asked, self.lattice.bits, *units, *counted)

    def calibrated(self) -> OneShot | None:
        """The mechanism of a one-shot release, calibrated anew: each is used once."""
        if not self.private or self.chosen_statistic is None:
            return None
        statistic = weighting.counted(self, self.chosen_statistic)
        return calibrated(weighting.learning(self), statistic, self.lattice, self.mechanism)

    @property
    def evaluation(self) -> held.Evaluating | None:
        """How the model is evaluated: as given, else on the share that is held out."""
        found = held.Evaluating() if self.evaluate is None and isinstance(self.holdout, float) else self.evaluate
        return goals.evaluating(self, found)

    def charges(self) -> tuple[Charge, ...]:
        if not self.private:
            return ()
        return held.all_charges(self, (*weighting.charges(self), *row_count.charges(self), *self._training_charges()))

    def _training_charges(self) -> tuple[Charge, ...]:
        chosen = self.calibrated()
        if chosen is not None:
            return (Charge.of_mechanism(ROLE, chosen, weighting.learning(self), self.assumptions),)
        if row_count.counted(self):
            found, private = self.split.guarantee, self.split.training
        else:
            found = worthwhile_guarantee(cast(IterativeLearner, self.learner), self.facts)
            private = weighting.learning(self)
        assumed = (*self.assumptions, *found.assumptions)
        return (Charge.of(ROLE, found.event, private, found.mechanism, found.theorem, assumed),)

    def plan(self) -> Iterator[Line]:
        statistic = self.chosen_statistic
        if statistic is not None:
            yield "statistic", f"{statistic.name}, {statistic.size:,} integers on a 2^-{self.lattice.bits} grid"
        yield from loose_norm(self.domain)
        yield "learner", self.learner.name
        yield from goals.plan(self)
        yield from self.forecast()
        if (measured := held.planned(self)) is not None:
            yield from measured.plan()
            on = "the training rows, which flatter it" if self.holdout is None else f"{held.in_words(self)} held out"
            yield "evaluates", f"on {on}"
        chosen = self.calibrated()
        for block, _, std, rows in () if chosen is None else self.noise_rows(chosen.noise_std()):
            yield (
                "noise",
                f"{block}: standard deviation {std:.4g}, {rows}" if std else f"{block}: public, none needed",
            )

    def forecast(self) -> Iterator[Line]:
        """What the learner will do, and the excess risk to expect of its noise."""
        return forecast_lines(self)

    def noise_rows(self, std: Mapping[str, float]) -> Iterator[tuple[str, int, float, str]]:
        """For each block: name, entries, the noise on each, and how many rows of full norm would move it as far."""
        assert self.chosen_statistic is not None
        for block in self.chosen_statistic.blocks:
            count = std[block.name] / self.lattice.norm_bound**block.power
            rows = f"{count:,.1f}" if count < 1000 else f"{math.ceil(count):,}"
            yield block.name, block.size, std[block.name], f"as much as {rows} rows"

    @property
    def by_record(self) -> bool:
        """Whether rows get their seeds from the record id, where there is one."""
        if self.domain.id is None:
            return False
        if self.chosen_statistic is not None:
            return self.chosen_statistic.needs_seeds
        # A replaced record may bring another id and move to another part of a grid; its position stays, if no folder
        # is named after what it holds.
        return cast(IterativeLearner, self.learner).seeded and self.counts_rows and not self._by_unit

    @property
    def _by_unit(self) -> bool:
        """Whether all rows of a unit get one seed, from its id."""
        dealt = isinstance(self.learner, IterativeLearner) and self.learner.seeded
        return dealt and self.protect is not None and self.protect.column is not None

    def scan(self, sites: int = 1) -> Lake:
        """The lake; sums of it, and of ``sites`` lakes like it, must fit in 64 bits.

        Refused are lakes whose rows a tuning grid, or public signatures, would tell by positions that depend on them.
        """
        strict, empty = not self.protects, not self.rows_public
        ids = held.column_of(self) if self.holdout is not None else None
        lake = open_lake(self.source, self.domain, ids=self.by_record, strict=strict, empty=empty)
        if ids is not None:
            check_column(lake, ids)
        if (measured := held.planned(self)) is not None:
            measured.check_lake(lake)
        statistic = self.chosen_statistic
        if statistic is not None:
            if self.private and getattr(statistic, "seed", None) is not None:
                check_signatures(lake, self.domain)
            rows = lake.rows * sites if self.rows_public else None
            summed = bounded(statistic, None if self.protect is None else self.protect.bound, self.lattice)
            self.lattice.guard(rows, summed.largest_per_row(self.lattice))
        elif self.private and cast(IterativeLearner, self.learner).seeded and not (self.by_record or self._by_unit):
            dealt = f"{self.learner.name} deals rows out"
            check_places(lake, dealt, "protect under add_remove with an id column, or tune on a public_lake")
        return lake

    @property
    def key(self) -> SignatureKey:
        """The public key of a declared seed, else a secret and fresh one."""
        seed = getattr(self.chosen_statistic, "seed", None)
        return SignatureKey.secret() if seed is None else SignatureKey.from_seed(seed)

    def public_lakes(self) -> Mapping[str, Any]:
        found = getattr(self.learner, "public_lake", None)
        return {} if found is None else {"learner.public_lake": found}

    def needs_rows(self, account: Account) -> bool:
        plan = held.planned(self)
        kept = account.has(ROLE) and (plan is None or account.has(f"{EVALUATION}#{len(plan.steps):05d}"))
        return self.chosen_statistic is None or not kept

    def work(self, run: Run) -> Outcome:
        """Release once and learn from that, or let the learner read, draw and learn."""
        part = held.part_of(self, TRAINING)
        weights = weighting.weights(self, run, part)
        how = {"part": part, "class_weights": weights}
        if self.chosen_statistic is not None:
            return self._learnt(run, weights, self._released(run, how))
        facts = row_count.facts(self, run, part)
        return row_count.with_count(self, facts, self._learnt(run, weights, self._learned(run, facts, how)))

    def _learnt(self, run: Run, weights: tuple[int, int] | None, released: Release | Learned) -> Outcome:
        statement = held.statement_of(self, [*run.charges.values()])
        learned = released
        if not isinstance(learned, Learned):
            with run.clock("learn"):
                learned = cast(ReleaseLearner, self.learner).fit_columns(learned, self.domain)
        learned = learned.in_units(self.domain)
        details, bars = learned.details | weighting.as_details(weights), None if weights else learned.bars
        model = LinearModel(
            learned.domain or self.domain, learned.weights, statement, self.learner.name, details, bars
        )
        model = goals.decided(self, model)
        return held.measured(self, run, model, learn_outcome(self, model, released))

    def _released(self, run: Run, how: Mapping[str, Any]) -> Release:
        statistic, chosen = self.chosen_statistic, self.calibrated()
        assert statistic is not None

        def gather() -> Summary:
            with run.clock("collect"):
                return run.collect(statistic, self.lattice, key=self.key, **how)

        return release_without_privacy(gather()) if chosen is None else run.release(ROLE, chosen, gather)

    def _learned(self, run: Run, facts: PublicFacts, how: Mapping[str, Any]) -> Learned:
        """In a private run the bar shows no gradient norm and the manifest no seconds: both depend on the rows."""
        learner = self.trainer
        seeds = {"seeded": learner.seeded, "by_record": self.by_record, "by_unit": self._by_unit}
        with run.passes(self.lattice, **seeds, key=TUNING_KEY, **how) as passes:
            if not run.charges:
                watch = getattr(run.progress, "note", None)
                with run.clock("learn"):
                    free = Session(passes, lambda: None, progress=run.progress, watch=watch)
                    return learner.learn(free, facts)
            grant = run.grants[ROLE]
            draws, spend = run.account.numbered(ROLE, grant), partial(run.account.spend, grant)
            found = learner.learn(Session(passes, spend, progress=run.progress, journal=draws), facts)
            return found if learner.name == self.learner.name else found.chosen_as(learner.name)
