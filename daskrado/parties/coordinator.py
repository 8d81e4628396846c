"""The coordinator's side of a study: open it, see how a round stands, combine it or close it without the missing."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from daskrado.errors import DataError, LedgerError, UsageError
from daskrado.jobs.base import Outcome, Run
from daskrado.jobs.learn import ROLE
from daskrado.jobs.learn_outcome import learn_outcome
from daskrado.jobs.outcome import Result
from daskrado.jobs.publish import publish
from daskrado.jobs.report import Section
from daskrado.lake.publish import check_free, claimed
from daskrado.learners.base import ReleaseLearner
from daskrado.ledger.account import Account
from daskrado.ledger.charging import opened_ledger
from daskrado.ledger.journal import Arrays, Journal, entries_of
from daskrado.ledger.journal_folder import InUseError
from daskrado.ledger.opening import is_open, named_account
from daskrado.models.linear import LinearModel
from daskrado.models.rados import RADO_STATISTICS, RadoSet, noise_of, rados_of
from daskrado.parties.bundles import Tally, sort_bundles
from daskrado.parties.keys import PrivateKeys, PublicKeys
from daskrado.parties.masks import total
from daskrado.parties.rounds import Round
from daskrado.parties.study import RoundPlan, Terms, load_study, terms_of
from daskrado.parties.study_folder import Closing, StudyFolder
from daskrado.privacy.release import Release, release_of_shares, release_without_privacy
from daskrado.registry import options
from daskrado.statistics.base import Summary

_AGAIN = "this study's total can be released no more; a study with a new budget would be a new charge at every site"


def open_study(source: str | Path | Mapping[str, Any], folder: str | Path, *, keys: str | Path) -> Round:
    """Open round 1 of a study: keys that the file leaves out are taken from the cards of the sites that joined."""
    study = load_study(source)
    where = StudyFolder(folder)
    roster: dict[str, PublicKeys] = {}
    for name, text in study.sites.items():
        card = where.card(name)
        given = PublicKeys.from_text(text, name) if text is not None else card
        if given is None:
            raise DataError(f"site {name!r} has not joined: no key in the study file and no card in {folder}")
        if card is not None and card != given:
            raise DataError(f"site {name!r}: the key in the study file is not the one on its card in {folder}")
        roster[name] = given
    own = PrivateKeys.open(keys, create=True)
    terms = study.terms
    round_ = Round(terms.study, 1, terms.content, roster, terms.minimum, own.public)
    where.put_round(round_, own)
    return round_


@dataclass(frozen=True)
class Standing:
    """How a round stands in its folder: what it asks for, what arrived, and how it was closed, if it was."""

    where: StudyFolder
    round: Round
    terms: Terms
    plan: RoundPlan
    tally: Tally
    closing: Closing | None

    @classmethod
    def of(cls, where: StudyFolder, round_: Round, terms: Terms) -> Standing:
        """Sort what lies in a round's folder; once it is closed, by what was there when it closed."""
        plan, arrived, closing = terms.plan(len(round_.roster)), where.bundles(round_), where.closing(round_)
        counted = None if closing is None else {*closing.counted.values()}
        tally = sort_bundles(arrived, round_, terms.domain.digest(), plan.job.summed.size, counted)
        plan = terms.plan(len(round_.roster), reads=tally.reads) if tally.reads else plan
        return cls(where, round_, terms, plan, tally, closing)

    def close(self, outcome: str, own: PrivateKeys) -> Closing:
        """From here on every further bundle is late. A round that is closed already stays as it is."""
        if self.closing is not None:
            return self.closing
        closing = Closing(outcome, self.tally.counted)
        self.where.put_closing(self.round, closing, own)
        return closing

    def next_round(self, own: PrivateKeys, *, close: bool) -> Round | None:
        """The round among those present, if sites are missing; None if all are there."""
        round_, gone, present = self.round, ", ".join(self.tally.missing), len(self.tally.accepted)
        if self.closing is None or self.closing.outcome != "remasked":  # else stopped between closing and opening
            if not gone:
                return None
            if self.closing is not None:
                raise DataError(
                    f"study {round_.study!r}: bundles of the closed round {round_.number} are gone: {gone}"
                )
            facts = f"round {round_.number} of study {round_.study!r} lacks {gone}"
            if self.tally.refused:
                facts += f" (refused: {'; '.join(self.tally.refused)})"
            if present < round_.minimum:
                raise DataError(
                    f"{facts}: {present} of {len(round_.roster)} sites are there, the minimum is {round_.minimum}"
                )
            if self.terms.central:
                raise DataError(
                    f"{facts}; wait for it: noise is central, and no round follows without a site, for the "
                    "difference of two totals is its exact vector; a new study is a new charge at every site"
                )
            if not close:
                raise DataError(f"{facts}; wait, or open a new round among the {present} present with --close")
        following = round_.among(self.close("remasked", own).counted)
        self.where.put_round(following, own)
        return following

    def release(self, run: Run, own: PrivateKeys) -> Release:
        """The total as it may be published; a round is closed before noise is drawn for it: it is released once."""
        job, plan, account = self.plan.job, self.plan, run.account
        vector = total({site: bundle.words for site, bundle in self.tally.accepted.items()}, own, self.round)

        def gather() -> Summary:
            self.close("combined", own)
            return Summary(job.summed, job.lattice, vector, 0)

        if plan.mechanism is None:
            return release_without_privacy(gather())
        if plan.shares is not None:
            return release_of_shares(plan.shares, gather().vector, plan.statement)
        set_first_limit(account, self.round, plan)
        assert plan.charge is not None
        run.grants[ROLE] = plan.charge.reserve(account, self.round.study)
        return run.release(ROLE, plan.mechanism, gather)

    def kept(self, values: Arrays) -> Release:
        """What was drawn for the total, once more."""
        mechanism = self.plan.mechanism
        assert mechanism is not None
        target = mechanism.target
        return Release(target.statistic.plain, target.lattice, values, mechanism.noise_std(), self.plan.statement)

    def outcome(self, released: Release) -> Outcome:
        """Learn from the combined release, and say what a study adds to a learned model."""
        round_, job, noise = self.round, self.plan.job, self.noise_price(released)
        learner = cast(ReleaseLearner, job.learner)
        learned = learner.fit_columns(released, self.terms.domain).in_units(self.terms.domain)
        model = LinearModel(
            self.terms.domain, learned.weights, self.plan.statement, learner.name, learned.details, learned.bars
        )
        return replace(
            of_study(round_, learn_outcome(job, model, released), noise, self.tally.reads),
            files=self.rado_file(released),
            notes=tuple(f"refused or repeated: {note}" for note in (*self.tally.refused, *self.tally.repeated)),
        )

    def rado_file(self, released: Release) -> dict[str, Callable[[Path], None]]:
        """The rados as a file for ``daskrado learn``, where the sites summed some; not without noise.

        Exact rados give examples away, which a baseline's model does not do by itself.
        """
        summed, job = self.plan.job.chosen_statistic, self.plan.job
        if summed is None or summed.name not in RADO_STATISTICS or not released.statement.private:
            return {}
        kind, facts = summed.name.removesuffix("_rados"), {**options(summed), "study": self.round.study}
        made = (self.terms.domain, rados_of(released), noise_of(released), released.statement, None, facts)
        return {f"{self.round.study}.rados.parquet": RadoSet(kind, *made, job.lattice.bits).save}

    def noise_price(self, released: Release) -> dict[str, Any]:
        """Who added the noise, what is guaranteed to be in it, and what it costs beside one trusted curator."""
        shares, std = self.plan.shares, released.noise_std
        facts: dict[str, Any] = {"added_by": self.terms.noise_in_words, "std_of_total": std}
        if shares is not None:
            part = math.sqrt(shares.honest / shares.sites)
            facts |= {
                "sites": shares.sites,
                "rounds_charged": self.round.number,
                "honest_sites_needed": shares.honest,
                "std_guaranteed": {name: value * part for name, value in std.items()},
                "std_beside_central": 1 / part,
                "charged": "every site's own ledger, for every round that it contributed to",
            }
        elif self.plan.mechanism is not None:
            facts["charged"] = "every site's own ledger, once for the study, and the coordinator's"
        return facts


def of_study(round_: Round, outcome: Outcome, noise: dict[str, Any], reads: dict[str, str]) -> Outcome:
    """What a study adds to what is said of a learned model."""
    title = f"one model of {len(round_.roster)} sites"
    facts = {
        "study": round_.study,
        "round": round_.number,
        "round_sha256": round_.digest.hex(),
        "sites": {name: keys.fingerprint for name, keys in round_.roster.items()},
        "roster_fingerprint": round_.roster_fingerprint,
        "minimum": round_.minimum,
        "noise": noise,
        **({"sites_read": reads} if reads else {}),
    }
    lines = (f"study {round_.study}, round {round_.number}: {title}", f"noise: {noise['added_by']}")
    return replace(
        outcome,
        title=f"{round_.study}: {title}",
        facts={**outcome.facts, **facts},
        lines=[*lines, *outcome.lines],
        sections=lambda: [*_sections(round_, noise, reads), *outcome.sections()],
    )


def _sections(round_: Round, noise: dict[str, Any], reads: dict[str, str]) -> Iterator[Section]:
    """For the data protection officers of all sites."""
    yield Section(
        "Sites",
        text=f"Round {round_.number}. The coordinator saw one masked vector of each site and learned their sum; "
        f"roster fingerprint {round_.roster_fingerprint}.",
        header=("site", "key", "read"),
        rows=[(name, keys.fingerprint, reads.get(name, "all rows")) for name, keys in round_.roster.items()],
    )
    rows = [("noise", str(noise["added_by"]))]
    rows += [(f"on {name}", f"standard deviation {v:.4g} on the total") for name, v in noise["std_of_total"].items()]
    if "std_beside_central" in noise:
        rows.append(("beside one trusted curator", f"{noise['std_beside_central']:.3g} times the noise"))
    if "charged" in noise:
        rows.append(("charged to", str(noise["charged"])))
    yield Section("Noise", rows=rows)


def combine(
    folder: str | Path,
    *,
    keys: str | Path,
    output: str | Path | None = None,
    close: bool = False,
    overwrite: bool = False,
    ledger: str | Path | None = None,
) -> Result | Round:
    """Combine the round that is open, if every site of it is there: total, noise (if central), learner, artefacts.

    If sites are missing, ``close`` opens a new round among those present, who then contribute again under new masks;
    what they contributed to this round stays masked. Returns the new Round in that case.
    """
    own, where, round_, terms = coordinated(folder, keys)
    if terms.descends:
        raise UsageError(f"study {round_.study!r} takes many steps: combine them with daskrado study run")
    if output is not None:
        check_free(output, overwrite=overwrite)
    this = Standing.of(where, round_, terms)
    if (following := this.next_round(own, close=close)) is not None:
        return following
    who = f"round {round_.number} of study {round_.study}"
    place = contextlib.nullcontext() if output is None else claimed(output, overwrite=overwrite, who=who)
    job = this.plan.job.model_copy(update={"output": "." if output is None else str(output)})
    charges = () if this.plan.charge is None else (this.plan.charge,)
    with _accounts(this, Path(keys), ledger, overwrite) as (account, memory), place as account.claim:
        run = Run(job, charges, account, None)
        drawn = None if memory is None else memory.kept(ROLE)
        # The charges of shares are in every site's own ledger; those of a kept release where it was drawn.
        run.charged_elsewhere = this.plan.shares is not None or drawn is not None
        released = this.release(run, own) if drawn is None else this.kept(drawn)
        if memory is not None and drawn is None:
            memory.begin(ROLE)
            memory.keep(ROLE, released.values)
        result = publish(run, this.outcome(released), write=output is not None)
        if output is None:
            account.done()
    return result


def coordinated(folder: str | Path, keys: str | Path) -> tuple[PrivateKeys, StudyFolder, Round, Terms]:
    """The coordinator's keys, and the round that is open, with its terms."""
    own, where = PrivateKeys.open(keys, create=False), StudyFolder(folder)
    round_ = where.latest()
    if round_.coordinator != own.public:
        raise UsageError(f"{folder}: the study {round_.study!r} belongs to another coordinator than these keys'")
    return own, where, round_, terms_of(round_, str(folder))


def run_of(round_: Round) -> str:
    """The name of a round in the coordinator's ledger."""
    return f"study {round_.study} round {round_.number} {round_.mark}"


def set_first_limit(account: Account, round_: Round, plan: RoundPlan) -> None:
    """A limit for the coordinator's own draws, as large as the study, where there is none."""
    charge, budget = plan.charge, plan.job.budget
    assert charge is not None
    assert budget is not None
    if not account.ledger.has_limits(round_.study):
        account.ledger.set_limit(round_.study, charge.debit.for_limit, budget.epsilon, budget.delta)


@contextlib.contextmanager
def _accounts(
    this: Standing, keys: Path, path: str | Path | None, overwrite: bool
) -> Iterator[tuple[Account, Journal | None]]:
    """The account of this round, and, where the coordinator draws, what it remembers beside its keys.

    What is remembered outlasts the run: a round is released again only from there, whichever ledger is given. A round
    that was closed as combined, and whose release is not there, is finished by the ledger that paid for it alone.
    """
    round_, plan = this.round, this.plan
    run = run_of(round_)
    if plan.mechanism is None or plan.shares is not None:
        yield Account(run, overwrite=overwrite), None
        return
    folder = keys / "combined" / f"{round_.study}-{round_.mark}"
    try:
        memory = Journal.open(folder, {"run": run})
    except InUseError:
        raise UsageError(f"{folder}: another process is combining this round") from None
    with memory, opened_ledger(path, plan.job.ledger) as ledger:
        if memory.kept(ROLE) is not None and not is_open(ledger, run):
            again = Account(run, overwrite=overwrite)
            again.notes += (f"round {round_.number} was combined before: this is its one release, nothing was drawn",)
            yield again, memory
            return
        if this.closing is not None and not entries_of(ledger, run):
            raise LedgerError(
                f"study {round_.study!r}: round {round_.number} was combined before, its release is not kept in "
                f"{folder}, and the ledger {ledger.address} did not pay for it: a total is released once; put the "
                "newest copy back, or name the ledger that paid"
            )
        finish = "daskrado study combine, as before"
        with named_account(ledger, run, finish, overwrite=overwrite, again=_AGAIN) as account:
            yield account, memory
