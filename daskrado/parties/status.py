"""How a study stands, from its folder alone: for the coordinator and for every site."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from daskrado.ledger.words import amount
from daskrado.parties.coordinator import Standing
from daskrado.parties.rounds import Round
from daskrado.parties.study import RoundPlan, terms_of
from daskrado.parties.study_folder import StudyFolder


def asked(plan: RoundPlan) -> str:
    """What a study asks of every site."""
    if plan.facts is not None:
        return f"sums of {plan.descent.steps} steps of descent, and those before them"
    return f"{plan.job.summed.name}, {plan.size:,} integers"


def status_lines(folder: str | Path) -> Iterator[str]:
    """How a study stands, from its folder alone: for the coordinator and for every site."""
    where = StudyFolder(folder)
    latest = where.latest()
    terms = terms_of(latest, str(folder))
    plan = terms.plan(len(latest.roster))
    yield f"study       {latest.study}, coordinator {latest.coordinator.fingerprint}"
    yield f"asks for    {asked(plan)}; learner {plan.job.learner.name}"
    yield f"guarantee   {plan.statement.sentence()}"
    yield f"noise       {terms.noise_in_words}"
    if plan.charge is not None:
        price = amount(plan.statement.epsilon or 0, plan.statement.delta or 0)
        yield f"price       {price} for every site, {'once' if terms.central else 'each round'}"
    yield f"minimum     {latest.minimum} sites"
    for number in range(1, latest.number + 1):
        round_ = latest if number == latest.number else where.round(number)
        if terms.descends:
            yield f"round {number}     open; roster fingerprint {round_.roster_fingerprint}"
            yield from step_lines(where, round_)
            continue
        this = Standing.of(where, round_, terms)
        state, tally = "open" if this.closing is None else this.closing.outcome, this.tally
        yield f"round {number}     {state}; roster fingerprint {round_.roster_fingerprint}"
        for site, keys in round_.roster.items():
            yield f"  {'contributed' if site in tally.accepted else 'missing':<12} {site} ({keys.fingerprint})"
        for text in (*tally.refused, *tally.repeated):
            yield f"  refused      {text}" if text in tally.refused else f"  repeated     {text}"


def step_lines(where: StudyFolder, round_: Round) -> Iterator[str]:
    """How many steps are published, and who answered the one that is open."""
    done = 0
    while where.mailbox.get(f"sums/{round_.at(done + 1).place}.json") is not None:
        done += 1
    yield f"  steps        {done} published"
    names = [name for name, _ in where.bundles(round_.at(done + 1))]
    for site, keys in round_.roster.items():
        there = any(name.startswith(f"{site}-") for name in names)
        yield f"  {'answered' if there else 'not yet':<12} {site} ({keys.fingerprint}), step {done + 1}"
