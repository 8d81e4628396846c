"""A site's side of a study that takes many steps: it follows the learner by itself and gives its sums to each step.

The learner is a function of the noisy sums that are published. So a site needs no point from the coordinator: it
takes the published sums, does what the learner does, and knows what to sum next. One who publishes other sums than
those that he got moves the points, and no site's guarantee: each step has its noise wherever it is taken.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskrado.cluster import ClusterConfig, connect
from daskrado.lake.blocks import Blocks
from daskrado.lake.collect import Progress, open_passes
from daskrado.lake.units import check_units, units_of
from daskrado.learners.on_passes.iterative import Session
from daskrado.ledger.account import Account
from daskrado.ledger.ledger import Grant
from daskrado.parties.bundles import seal_bundle
from daskrado.parties.keys import PrivateKeys
from daskrado.parties.masks import mask
from daskrado.parties.rounds import Round
from daskrado.parties.site import (
    SHARE,
    Agreement,
    Contribution,
    check_open,
    contribute,
    count_exact,
    invited,
    reserved,
    site_account,
)
from daskrado.parties.study import RoundPlan, Terms
from daskrado.parties.study_folder import StudyFolder
from daskrado.parties.waiting import awaited

Gather = Callable[[], Any]
Perturb = Callable[[Any], NDArray[np.int64]]


def size_of(gather: Gather) -> int:
    """How many integers a pass sums: learners hand out ``partial(passes.sum, statistic, ...)``."""
    assert isinstance(gather, partial)
    return int(gather.args[0].size)


def serve(
    folder: str | Path,
    *,
    site: str,
    keys: str | Path,
    lake: Any,
    dataset: str,
    roster: str,
    ledger: str | Path | None = None,
    cluster: ClusterConfig | None = None,
    progress: Progress | None = None,
    pay_again: bool = False,
    blocks: Blocks | None = None,
    timeout: float | None = None,
) -> Contribution:
    """Answer every step of a study until it is over, on one charge; a study of one round is :func:`contribute`.

    A call after a crash goes on with the step that was open: published sums are read again, and a bundle that was
    made is sent again. ``timeout`` is how many seconds to wait for a step of the others; None waits for ever.
    """
    own, where, round_, terms = invited(folder, keys, pay_again=pay_again)
    how: dict[str, Any] = {"lake": lake, "dataset": dataset, "cluster": cluster, "blocks": blocks}
    if not terms.descends:
        with_ledger: dict[str, Any] = {
            "ledger": ledger,
            "progress": progress,
            "pay_again": pay_again,
            "roster": roster,
        }
        return contribute(folder, site=site, keys=keys, **how, **with_ledger)
    with Agreement(keys, round_.study) as agreement:
        agreement.agree(round_, site, own.public, roster, once=terms.central)
        plan = terms.plan(len(round_.roster), **how)
        if agreement.is_over(round_):
            return Contribution(round_, plan, site, again=True, charged=False)
        check_open(where, round_)
        job = plan.job
        found = job.scan(len(round_.roster))
        for protect in job.whose:
            check_units(found, protect, job.domain.id)
        shared = not terms.central
        with (
            connect(job.cluster, found.size) as client,
            site_account(round_, ledger, job.ledger, pay_again, shared=shared) as account,
        ):
            grant, charged = reserved(plan, round_, found, account, exact=terms.central)
            answers = _Answers(where, round_, terms, plan, site, own, agreement, account, grant, timeout)
            sampled = job.protect is not None and job.protect.how == "sample"
            # Which rows of a unit are sampled stays the same after a crash.
            key = account.row_key("units").key_bytes() if sampled else secrets.token_bytes(32)
            units = units_of(found, job.protect, key, job.domain.id, client=client)
            with open_passes(
                found, job.domain, job.lattice, client=client, secret_rows=not job.rows_public, units=units
            ) as passes:
                part = len(round_.roster) ** -0.5 if shared else 1.0
                session = Session(passes, lambda: None, progress=progress, journal=answers.draw, part=part)
                assert plan.facts is not None
                plan.descent.learn(session, plan.facts)
            account.done(f"bundles sha256 {answers.digest.hexdigest()}")
        agreement.end(round_)
    return Contribution(round_, plan, site, again=False, charged=charged)


@dataclass
class _Answers:
    """What a site gives to the steps of a study, and what it takes from them."""

    where: StudyFolder
    round: Round
    terms: Terms
    plan: RoundPlan
    site: str
    own: PrivateKeys
    agreement: Agreement
    account: Account
    grant: Grant
    timeout: float | None
    step: int = 0

    def __post_init__(self) -> None:
        self.digest = hashlib.sha256()

    def draw(self, paid: bool, gather: Gather, perturb: Perturb) -> NDArray[np.int64]:
        """The noisy sums of the next step, over all sites."""
        assert paid  # a choice by public randomness would differ from site to site
        self.step += 1
        here, size = self.round.at(self.step), size_of(gather)
        found = self.where.sums(here, size)
        if found is None:
            made = self.agreement.stored(here)
            if made is None:
                made = self._made(here, gather, perturb)
            check_open(self.where, self.round)  # a late bundle stays here
            self.where.put_bundle(here, self.site, hashlib.sha256(made).hexdigest()[:16], made)
            found = awaited(partial(self._look, here, size), lambda: self._missing(here), self.timeout)
        if (kept := self.agreement.stored(here)) is not None:
            self.digest.update(kept)
        return found

    def _made(self, here: Round, gather: Gather, perturb: Perturb) -> bytes:
        """This site's sums of a step with its share of noise, or exact ones, masked and stored."""
        if self.terms.central:
            vector = gather().vector
        else:
            drawn = self.account.draw(
                SHARE, self.grant, gather, lambda private: {"vector": perturb(private)}, number=here.step
            )
            vector = drawn["vector"]
        reads = None if self.plan.job.blocks is None else str(self.plan.job.blocks)
        words = mask(vector, self.own, self.site, here)
        made = seal_bundle(here, self.site, self.terms.domain.digest(), words, self.own, reads)
        if self.terms.central:
            count_exact(self.account, self.grant, here, made)
        self.agreement.store(here, made)
        return made

    def _look(self, here: Round, size: int) -> NDArray[np.int64] | None:
        found = self.where.sums(here, size)
        if found is None:
            check_open(self.where, self.round)
        return found

    def _missing(self, here: Round) -> str:
        return f"study {here.study!r}: step {here.step} waits for the coordinator or for other sites"
