"""kind: rados. Sets of rados made from a lake, each with its own statement, and models learned from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, cast

import numpy as np
from pydantic import Field, model_validator

from daskrado.audit.reconstruction import recoverable
from daskrado.errors import UsageError
from daskrado.jobs.base import Charge, Job, Line, Outcome, Run
from daskrado.jobs.rado_file import diagnose, learned
from daskrado.jobs.rado_set_kinds import AnyRadoSet
from daskrado.jobs.rado_sets import SetPlan, knowing, together
from daskrado.jobs.report import Section, bars, model_sections, statement_rows
from daskrado.lake.scan import Lake, open_lake
from daskrado.lake.seeds import SignatureKey
from daskrado.lake.shards import check_signatures
from daskrado.learners import RadoBoost
from daskrado.learners.choose_round import choose_by_mistakes, mistakes
from daskrado.models.linear import LinearModel
from daskrado.models.rados import RadoSet, rados_of
from daskrado.privacy.accountant import event_to_json
from daskrado.privacy.protect import Protect
from daskrado.privacy.release import Release, release_noised_rows, release_without_privacy
from daskrado.privacy.statement import PrivacyStatement
from daskrado.statistics.base import Summary


@dataclass(frozen=True)
class MadeSet:
    """One set after the run: rados, the model if one was asked for, and notes from released values only."""

    name: str
    rados: RadoSet
    model: LinearModel | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class MadeRados:
    """What a run of kind ``rados`` makes: all of it publishable, as far as each statement goes."""

    sets: tuple[MadeSet, ...]


class RadosJob(Job):
    """One job that makes several sets of rados from a lake, each with a statement of its own.

    All charges are reserved before a row is read, and all rows are read before anything is spent, so that an unusable
    row costs nothing. Noise on rows is a function of a secret key and is part of the sums that workers return;
    nothing of them leaves this process before the charge is spent.
    """

    name: ClassVar[str] = "rados"
    title: ClassVar[str] = "{job.dataset}: sets of rados"

    sets: tuple[AnyRadoSet, ...]
    accept_no_privacy: bool = False
    lattice_bits: int | None = Field(default=None, ge=4, le=26)

    @model_validator(mode="after")
    def _check(self) -> RadosJob:
        if not self.sets:
            raise ValueError("sets: the list is empty; name at least one set")
        names = [item.name for item in self.sets]
        if len(set(names)) < len(names):
            raise ValueError(f"sets: the name {next(n for n in names if names.count(n) > 1)!r} is given twice")
        for item in self.sets:
            item.check_columns(self.domain)
        secret = next((item.name for item in self.sets if not item.rows_public), None)
        public = next((item.name for item in self.sets if item.rows_public), None)
        if secret is not None and public is not None:
            raise ValueError(
                f"sets: {secret!r} keeps the number of rows secret (add_remove), and {public!r} publishes it: "
                "protect under replace_one, or make them in two runs"
            )
        return self

    @property
    def whose(self) -> tuple[Protect, ...]:
        return tuple(item.protects for item in self.sets if item.protects is not None)

    @property
    def protects(self) -> bool:
        """Whether one of its sets protects anybody."""
        return any(item.protects is not None for item in self.sets)

    @property
    def exposes(self) -> bool:
        return any(item.protects is None for item in self.sets)

    @property
    def rows_public(self) -> bool:
        """A run either keeps its lake's number of rows secret or publishes it."""
        return all(item.rows_public for item in self.sets)

    def plans(self) -> list[SetPlan]:
        """Every set with its noise calibrated, anew for each run."""
        return [knowing(item.planned(self.domain, self.lattice_bits), self.domain) for item in self.sets]

    def charges(self) -> tuple[Charge, ...]:
        """Of each private set, and of the choices among rounds; what cannot be stated together is refused."""
        plans = self.plans()
        _statements_together(plans)
        return tuple(charge for plan in plans for charge in plan.charges)

    def plan(self) -> Iterator[Line]:
        for plan in self.plans():
            item = plan.item
            yield "set", f"{item.name}: {item.count} rados of kind {item.kind}"
            if plan.charge is None:
                yield "guarantee", item.without_privacy
            noise = {} if plan.mechanism is None else plan.mechanism.noise_std()
            for name, std in noise.items():
                yield "noise", f"{name}: standard deviation {std:.4g}" if std else f"{name}: none, public"
            if plan.edge_noise:
                where = "every coordinate of every edge vector"
                grid = f"on a grid of {plan.lattice.bits} bits"
                yield "noise", f"{where}: standard deviation {plan.edge_noise:.4g}, {grid}"

    def scan(self) -> Lake:
        """The lake; refused is what its number of rows or its folders rule out, and what would give examples away."""
        by_record, plans = self.domain.id is not None, self.plans()
        lake = open_lake(
            self.source, self.domain, ids=by_record, strict=not self.protects, empty=not self.rows_public
        )
        for plan in plans:
            plan.statistic.check_rows(lake.rows)
            plan.lattice.guard(lake.rows if self.rows_public else None, plan.statistic.largest_per_row(plan.lattice))
        if not self.accept_no_privacy:
            refuse_recoverable(plans, lake.rows)
        if any(plan.charge is not None and plan.item.public_seed is not None for plan in plans):
            check_signatures(lake, self.domain)
        return lake

    def work(self, run: Run) -> Outcome:
        """Sum all sets, then release all, then learn."""
        plans = self.plans()
        sums = [_summed(run, plan) for plan in plans]
        released = [_released(run, plan, summary) for plan, summary in zip(plans, sums, strict=True)]
        made = [_made(run, plan, release) for plan, release in zip(plans, released, strict=True)]
        return Outcome(
            MadeRados(tuple(made)),
            _weakest([*(one.rados.statement for one in made), *_statements_together(plans)]),
            facts={"sets": [_set_facts(plan, one) for plan, one in zip(plans, made, strict=True)]},
            lines=[line for one in made for line in _set_lines(one)],
            sections=lambda: [_summary(made), *(section for one in made for section in _set_sections(one))],
            parts=_parts(made, _statements_together(plans)) if len(made) > 1 else {},
            files={name: write for one in made for name, write in _set_files(one).items()},
        )


def refuse_recoverable(plans: Sequence[SetPlan], rows: int) -> None:
    """Refuse sets whose exact columns give examples away, each by itself or all of a run together.

    The columns that a set leaves public are published, but that is no consent to hand out the records they are in.
    """
    exact = [(plan.item, kind) for plan in plans if (kind := plan.item.exact_kind) is not None]
    flag = "accept_no_privacy: true would publish"
    for item, kind in exact:
        reason = recoverable(kind, item.count, rows, getattr(item, "support", None))
        if reason is not None:
            raise UsageError(f"set {item.name!r} is refused: {reason}; {flag} it all the same")
    total = sum(item.count for item, _ in exact)
    if (reason := recoverable("all", total, rows)) is not None:
        names = ", ".join(repr(item.name) for item, _ in exact)
        raise UsageError(f"sets {names} together are refused: {reason}; {flag} them all the same")


def _statements_together(plans: Sequence[SetPlan]) -> list[PrivacyStatement]:
    """What all charges for the same protected unit say together, for each of the units."""
    units: dict[Protect, list[Charge]] = {}
    for plan in plans:
        if plan.item.protects is not None:
            units.setdefault(plan.item.protects, []).extend(plan.charges)
    return [together(protect, charges) for protect, charges in units.items()]


def _weakest(statements: Sequence[PrivacyStatement]) -> PrivacyStatement:
    """The headline of a run: nothing, the marginal of one coordinate, or the largest epsilon."""
    return min(statements, key=lambda one: (one.private, one.marginal is not None, -(one.epsilon or 0.0)))


def _summed(run: Run, plan: SetPlan) -> Summary | None:
    """The sums of a set, unless its release is kept. A resumed run repeats the noise on its rows."""
    item, role = plan.item, plan.item.role()
    if run.account.has(role):
        return None
    if plan.statistic.noises_rows:
        key = run.account.row_key(role)
    else:
        key = SignatureKey.secret() if item.public_seed is None else SignatureKey.from_seed(item.public_seed)
    if not cast(RadosJob, run.job).accept_no_privacy:
        refuse_recoverable([plan], run.counted(item.protects))
    with run.clock(f"collect {item.name}"):
        return run.collect(plan.statistic, plan.lattice, key=key, protect=item.protects)


def _released(run: Run, plan: SetPlan, summary: Summary | None) -> Release:
    role, kept = plan.item.role(), cast(Summary, summary)  # it is None only where the account has the release
    with run.clock(f"release {plan.item.name}"):
        if plan.charge is None:
            return release_without_privacy(kept, plan.item.unprotected(run.lake.rows))
        if plan.mechanism is not None:
            return run.release(role, plan.mechanism, lambda: kept)
        run.account.count_repeatable(role, run.grants[role], kept.vector)
        return release_noised_rows(kept, plan.charge.statement)


def _made(run: Run, plan: SetPlan, released: Release) -> MadeSet:
    item, rows = plan.item, run.counted(plan.item.protects)
    rados = RadoSet(
        item.kind,
        run.job.domain,
        rados_of(released),
        item.noise_std(plan, released, rows),
        released.statement,
        rows if run.job.rows_public else None,
        item.model_dump(mode="json", exclude={"protect", "budget", "learn"}, exclude_none=True),
        plan.lattice.bits,
    )
    notes = diagnose(rados)
    if item.learn is None:
        return MadeSet(item.name, rados, None, notes)
    with run.clock(f"learn {item.name}"):
        model = learned(rados, item.learn) if item.keep_epsilon is None else _chosen(run, plan, rados)
    return MadeSet(item.name, rados, model, notes)


def _chosen(run: Run, plan: SetPlan, rados: RadoSet) -> LinearModel:
    """The round with few mistakes on the rows, by a charged choice; the model's statement has both charges."""
    learner, protect, epsilon = plan.item.learn, plan.item.protects, plan.item.keep_epsilon
    assert isinstance(learner, RadoBoost)
    assert protect is not None
    assert epsilon is not None
    path = learner.path(rados.rados)
    thetas = np.vstack([np.zeros_like(rados.rados[:1]), path])  # round 0 is there even if no round was made
    role, statistic = plan.item.role("choice"), mistakes(thetas, plan.lattice)
    grant = run.grants[role]
    spend = partial(run.account.spend, grant)
    drawn = run.account.draw(
        role,
        grant,
        lambda: run.collect(statistic, plan.lattice, protect=protect),
        lambda counts: {"round": np.array(choose_by_mistakes(counts, spend, epsilon, protect.rows_per_unit))},
    )
    at = int(drawn["round"])
    details = {"rados": len(rados.rados), "rounds": len(path), "kept_round": at}
    return LinearModel(rados.domain, thetas[at], together(protect, plan.charges), learner.name, details)


def _set_facts(plan: SetPlan, made: MadeSet) -> dict[str, Any]:
    """Everything public about a set beside its keys."""
    return {
        "name": made.name,
        "kind": made.rados.kind,
        "privacy": made.rados.statement.model_dump(mode="json"),
        "privacy_in_words": made.rados.statement.sentence(),
        "event": event_to_json(plan.charge.event) if plan.charge is not None else None,
        "rados": len(made.rados.rados),
        "rows": made.rados.rows,
        "noise_std": list(made.rados.noise_std),
        "lattice_bits": made.rados.lattice_bits,
        "learner": made.model.learner if made.model is not None else None,
        "notes": list(made.notes),
    }


def _set_files(made: MadeSet) -> dict[str, Any]:
    model = {} if made.model is None else {f"{made.name}.model.json": made.model.save}
    return {f"{made.name}.rados.parquet": made.rados.save, **model}


def _set_lines(made: MadeSet) -> Iterator[str]:
    yield f"{made.name}: {len(made.rados.rados)} rados of kind {made.rados.kind}"
    yield f"  {made.rados.statement.sentence()}"
    yield from (f"  note: {note}" for note in made.notes)
    if made.model is not None:
        yield f"  learned by {made.model.learner}: {made.model.statement.sentence()}"


def _parts(made: Sequence[MadeSet], all_of: Sequence[PrivacyStatement]) -> dict[str, PrivacyStatement]:
    """The statement of each set, and of all private sets together where that says more."""
    found = {one.name: one.rados.statement for one in made}
    more = [statement for statement in all_of if statement not in found.values()]
    return found | {f"all sets together ({one.relation})": one for one in more}


def _summary(made: Sequence[MadeSet]) -> Section:
    """All sets in one table."""
    rows = []
    for one in made:
        rados, said = one.rados, one.rados.statement
        guarantee = (
            f"epsilon {said.epsilon:g}, delta {said.delta:g}, {said.relation}" if said.private else "NOT PRIVATE"
        )
        noise = f"{float(np.mean(rados.noise_std)):.4g}" if said.private else "none"
        learner = "" if one.model is None else one.model.learner
        rows.append((one.name, f"{len(rados.rados)} {rados.kind}", guarantee, noise, learner))
    return Section("Sets", header=("set", "rados", "guarantee", "noise, mean deviation", "model by"), rows=rows)


def _set_sections(made: MadeSet) -> Iterator[Section]:
    rados, statement = made.rados, made.rados.statement
    facts = [
        ("rados", f"{len(rados.rados)} of kind {rados.kind}, {rados.domain.width} features"),
        ("rows", f"{rados.rows:,}" if rados.rows is not None else "secret under this relation"),
        ("grid", f"{rados.lattice_bits} bits: one step is 2^-{rados.lattice_bits} of the norm bound"),
        *_protection_rows(statement),
        *(("note", note) for note in made.notes),
    ]
    means = dict(zip(rados.domain.feature_names, rados.rados.mean(axis=0).tolist(), strict=True))
    noise = float(np.mean(rados.noise_std)) / np.sqrt(len(rados.rados))
    plot = bars(means, "mean of the rados", noise=noise)
    yield from model_sections(made.model, f"Model from {made.name}")
    yield Section(f"Set {made.name}", text=statement.sentence(), rows=facts, plot=plot, detail=True)


def _protection_rows(statement: PrivacyStatement) -> list[tuple[str, str]]:
    facts = statement.marginal
    if facts is None and not statement.private:
        return [("protected", "nobody: an un-noised sum can be attacked, see `daskrado audit rados`")]
    if facts is None:
        return statement_rows(statement)
    composed = "none" if facts.composed_epsilon is None else f"{facts.composed_epsilon:.4g}"
    return [
        ("coordinate", facts.feature),
        ("window", f"{facts.window_low} to {facts.window_high} of {facts.rows}, beta {facts.beta:.6g}"),
        ("rejection sampling would accept", f"{facts.acceptance:.6g} of all rados"),
        ("one rado, this coordinate alone", f"epsilon {facts.epsilon:.4g}, delta {facts.delta:.3g}"),
        ("the same without any window", f"delta {facts.untruncated_delta:.3g}: the window does not help"),
        (f"all {facts.rados} rados, this coordinate alone", f"epsilon {composed} at delta {facts.composed_delta:g}"),
        ("the rados as published", "nobody is protected: the other coordinates tell which records were summed"),
    ]
