"""The coordinator's side of a study that takes many steps: a pass over a lake is a round over sites.

The learner runs here as on one lake. Where it would sum over rows, it waits for a masked bundle of every site; where
it would draw noise, it draws once for the total (central noise), or takes the total with the shares that are in it.
The noisy sums are signed and published, and every site goes on from them.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from daskrado.errors import UsageError
from daskrado.jobs.base import Outcome, Run
from daskrado.jobs.learn import ROLE
from daskrado.jobs.learn_outcome import learn_outcome
from daskrado.jobs.outcome import Result
from daskrado.jobs.publish import publish
from daskrado.lake.collect import Passes, Progress
from daskrado.lake.publish import check_free, claimed
from daskrado.learners.base import Learned
from daskrado.learners.on_passes.iterative import Session
from daskrado.ledger.account import Account
from daskrado.ledger.charging import opened_ledger
from daskrado.ledger.journal_folder import InUseError
from daskrado.ledger.ledger import Grant
from daskrado.ledger.opening import is_open, named_account
from daskrado.models.linear import LinearModel
from daskrado.parties.bundles import Tally, sort_bundles
from daskrado.parties.coordinator import combine, coordinated, of_study, run_of, set_first_limit
from daskrado.parties.keys import PrivateKeys
from daskrado.parties.masks import total
from daskrado.parties.rounds import Round
from daskrado.parties.serving import Gather, Perturb, size_of
from daskrado.parties.study import RoundPlan, Terms
from daskrado.parties.study_folder import StudyFolder
from daskrado.parties.waiting import awaited
from daskrado.statistics.base import Additive, Summary
from daskrado.table.domain import Domain
from daskrado.table.lattice import Lattice

_AGAIN = "this study can release no more; a new one would be a new charge at every site"


@dataclass
class _Sites:
    """All sites as one lake: a pass is a step that each of them answers."""

    asked: _Steps
    domain: Domain
    lattice: Lattice

    def sum(self, statistic: Additive, **how: Any) -> Summary:
        """The exact total of a step; where sites add shares of noise, with those in it."""
        del how
        return Summary(statistic, self.lattice, self.asked.total(int(statistic.size)), 0)

    def under(self, domain: Domain, lattice: Lattice, **how: Any) -> _Sites:
        """The same sites, which follow the learner to another Domain by themselves."""
        del how
        return _Sites(self.asked, domain, lattice)


@dataclass
class _Steps:
    """The steps of a study as they are asked for, one after another."""

    where: StudyFolder
    round: Round
    terms: Terms
    plan: RoundPlan
    own: PrivateKeys
    ledger: str | Path | None
    overwrite: bool
    timeout: float | None
    stack: contextlib.ExitStack
    step: int = 0
    sizes: list[int] = field(default_factory=list)
    grant: Grant | None = None
    account: Account | None = None

    def draw(self, paid: bool, gather: Gather, perturb: Perturb) -> NDArray[np.int64]:
        """The noisy sums of the next step: as they are published, else summed, drawn, kept and published once."""
        assert paid
        self.step += 1
        here, size = self.round.at(self.step), size_of(gather)
        self.sizes.append(size)
        found = self.where.sums(here, size)
        if found is None:
            noisy = self._drawn(here, gather, perturb) if self.terms.central else gather().vector
            self.where.put_sums(here, noisy, self.own)
            found = self.where.sums(here, size)  # another process may have been first
            assert found is not None
        return found

    def _drawn(self, here: Round, gather: Gather, perturb: Perturb) -> NDArray[np.int64]:
        account = self.paid()
        drawn = account.draw(ROLE, self.grant, gather, lambda private: {"drawn": perturb(private)}, number=here.step)
        return np.asarray(drawn["drawn"])

    def paid(self) -> Account:
        """The coordinator's account, which is opened for the first draw that is not published yet."""
        if self.account is None:
            ledger = self.stack.enter_context(opened_ledger(self.ledger, self.plan.job.ledger))
            finish, run = "daskrado study run, as before", run_of(self.round)
            opened = named_account(ledger, run, finish, overwrite=self.overwrite, again=_AGAIN, charged_once=True)
            try:
                self.account = self.stack.enter_context(opened)
            except InUseError:
                raise UsageError(f"study {self.round.study!r}: another process is running it") from None
            set_first_limit(self.account, self.round, self.plan)
            assert self.plan.charge is not None
            self.grant = self.plan.charge.reserve(self.account, self.round.study)
        return self.account

    def take_over(self) -> None:
        """Open the account of a run that was cut off, so that it ends, also where all of its steps are published."""
        if self.terms.central:
            with opened_ledger(self.ledger, self.plan.job.ledger) as ledger:
                there = is_open(ledger, run_of(self.round))
            if there:
                self.paid()

    def tally(self, here: Round, size: int) -> Tally:
        """What arrived for a step."""
        return sort_bundles(self.where.bundles(here), here, self.terms.domain.digest(), size)

    def total(self, size: int) -> NDArray[np.int64]:
        """The sum over all sites, once every one of them has answered."""
        found = self.complete(size)
        words = {site: bundle.words for site, bundle in found.accepted.items()}
        return total(words, self.own, self.round.at(self.step))

    def complete(self, size: int) -> Tally:
        """What arrived for the step that is open, or for a round without steps, once every site has answered."""
        here, last = self.round.at(self.step), Tally({}, (), (), ())

        def look() -> Tally | None:
            nonlocal last
            last = self.tally(here, size)
            return None if last.missing else last

        def missing() -> str:
            refused = f" (refused: {'; '.join(last.refused)})" if last.refused else ""
            what = f"step {here.step}" if here.step else f"round {here.number}"
            return f"study {here.study!r}: {what} lacks {', '.join(last.missing)}{refused}"

        return awaited(look, missing, self.timeout)

    def reads(self) -> dict[str, str]:
        """What sites said that they read, in the first step."""
        return self.tally(self.round.at(1), self.sizes[0]).reads


def run_study(
    folder: str | Path,
    *,
    keys: str | Path,
    output: str | Path | None = None,
    overwrite: bool = False,
    ledger: str | Path | None = None,
    timeout: float | None = None,
    progress: Progress | None = None,
) -> Result:
    """Wait for every site in every step, combine, publish; a call after a crash goes on with the step that was open.

    A study of one round waits for all sites and is combined. ``timeout`` is how many seconds to wait for one step;
    None waits for ever.
    """
    own, where, round_, terms = coordinated(folder, keys)
    if output is not None:
        check_free(output, overwrite=overwrite)
    plan = terms.plan(len(round_.roster))
    with contextlib.ExitStack() as stack:
        steps = _Steps(where, round_, terms, plan, own, ledger, overwrite, timeout, stack)
        if not terms.descends:
            if where.closing(round_) is None:
                steps.complete(plan.size)
            return cast(Result, combine(folder, keys=keys, output=output, overwrite=overwrite, ledger=ledger))
        place = (
            contextlib.nullcontext() if output is None else claimed(output, overwrite=overwrite, who=run_of(round_))
        )
        claim = stack.enter_context(place)
        steps.take_over()
        sites = cast(Passes, _Sites(steps, plan.job.domain, plan.job.lattice))
        session = Session(sites, lambda: None, progress=progress, journal=steps.draw)
        assert plan.facts is not None
        learned = plan.descent.learn(session, plan.facts)
        return _published(steps, learned, claim, output)


def _published(steps: _Steps, learned: Learned, claim: Any, output: str | Path | None) -> Result:
    """The model of a study, on the charge of its sites and, with central noise, of the coordinator."""
    round_, reads = steps.round, steps.reads()
    plan = steps.terms.plan(len(round_.roster), reads=reads) if reads else steps.plan
    account = steps.account or Account(run_of(round_), overwrite=steps.overwrite)
    account.claim = claim
    job = plan.job.model_copy(update={"output": "." if output is None else str(output)})
    assert plan.charge is not None
    run = Run(job, (plan.charge,), account, None)
    if steps.grant is None:
        run.charged_elsewhere = True  # every site's own ledger, or the coordinator's when the steps were drawn
    else:
        run.grants[ROLE] = steps.grant
    result = publish(run, _outcome(steps, plan, learned, reads), write=output is not None)
    if output is None:
        account.done(account.returned)
    return result


def _outcome(steps: _Steps, plan: RoundPlan, learned: Learned, reads: dict[str, str]) -> Outcome:
    model = LinearModel(
        learned.domain or steps.terms.domain,
        learned.weights,
        plan.statement,
        plan.descent.name,
        learned.details,
        learned.bars,
    )
    facts = plan.facts
    assert facts is not None
    details, shared = learned.details, facts.sites > 1
    noise: dict[str, Any] = {
        "added_by": steps.terms.noise_in_words,
        "std_of_total": {
            "each sum of gradients": details["noise_std_per_step"],
            "second moments": details["noise_std_of_moments"],
        },
        "steps": steps.step,
        "charged": "every site's own ledger, once for all steps" + ("" if shared else ", and the coordinator's"),
    }
    if shared:
        noise |= {"sites": facts.sites, "honest_sites_needed": facts.honest, "std_beside_central": facts.surplus}
    return of_study(steps.round, learn_outcome(plan.job, model, learned), noise, reads)
