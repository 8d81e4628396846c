"""What a combined round says of itself: the model, its sites, who added the noise and what that costs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

from daskrado.jobs.base import Outcome
from daskrado.jobs.learn import learn_outcome
from daskrado.jobs.report import Section
from daskrado.learners.base import ReleaseLearner
from daskrado.models.linear import LinearModel
from daskrado.parties.rounds import Round
from daskrado.parties.study import RoundPlan, Terms
from daskrado.privacy.release import Release
from daskrado.privacy.shares import GaussianShares


def combined_outcome(
    terms: Terms, plan: RoundPlan, round_: Round, released: Release, notes: tuple[str, ...]
) -> Outcome:
    """Learn from the combined release, and say what a study adds to a learned model."""
    learner = cast(ReleaseLearner, plan.job.learner)
    weights, details = learner.fit(released)
    model = LinearModel(terms.domain, weights, plan.statement, learner.name, details)
    outcome, noise = learn_outcome(plan.job, model, released), noise_price(terms, plan, round_, released)
    facts = {
        "study": round_.study,
        "round": round_.number,
        "round_sha256": round_.digest.hex(),
        "sites": {name: keys.fingerprint for name, keys in round_.roster.items()},
        "roster_fingerprint": round_.roster_fingerprint,
        "minimum": round_.minimum,
        "noise": noise,
    }
    lines = [f"study {round_.study}, round {round_.number}: one model of {len(round_.roster)} sites"]
    lines.append(f"noise: {noise['added_by']}")
    return replace(
        outcome,
        title=f"{round_.study}: one model of {len(round_.roster)} sites",
        facts={**outcome.facts, **facts},
        lines=[*lines, *outcome.lines],
        sections=lambda: [*_sections(round_, noise), *outcome.sections()],
        notes=tuple(f"refused or repeated: {note}" for note in notes),
    )


def noise_price(terms: Terms, plan: RoundPlan, round_: Round, released: Release) -> dict[str, Any]:
    """Who added the noise, what is guaranteed to be in it, and what it costs beside one trusted curator."""
    mechanism, std = plan.mechanism, released.noise_std
    facts: dict[str, Any] = {"added_by": terms.noise_in_words, "std_of_total": std}
    if isinstance(mechanism, GaussianShares):
        part = math.sqrt(mechanism.honest / mechanism.sites)
        facts |= {
            "sites": mechanism.sites,
            "rounds_charged": round_.number,
            "honest_sites_needed": mechanism.honest,
            "std_guaranteed": {name: value * part for name, value in std.items()},
            "std_beside_central": 1 / part,
            "charged": "every site's own ledger, for every round that it contributed to",
        }
    elif mechanism is not None:
        facts["charged"] = "every site's own ledger, once for the study, and the coordinator's"
    return facts


def _sections(round_: Round, noise: dict[str, Any]) -> Iterator[Section]:
    """For the data protection officers of all sites."""
    yield Section(
        "Sites",
        text=f"Round {round_.number}. The coordinator saw one masked vector of each site and learned their sum; "
        f"roster fingerprint {round_.roster_fingerprint}.",
        header=("site", "key"),
        rows=[(name, keys.fingerprint) for name, keys in round_.roster.items()],
    )
    rows = [("noise", str(noise["added_by"]))]
    rows += [(f"on {name}", f"standard deviation {v:.4g} on the total") for name, v in noise["std_of_total"].items()]
    if "std_beside_central" in noise:
        rows.append(("beside one trusted curator", f"{noise['std_beside_central']:.3g} times the noise"))
    if "charged" in noise:
        rows.append(("charged to", str(noise["charged"])))
    yield Section("Noise", rows=rows)
