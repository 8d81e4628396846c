"""What a combined round publishes: model.json, manifest.json, report.html, from released and public values only."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import daskrado
from daskrado.jobs.report import Section, bars, render_page
from daskrado.privacy.accountant import event_to_json
from daskrado.privacy.shares import GaussianShares
from daskrado.table.yaml_file import write_text

if TYPE_CHECKING:
    from daskrado.parties.coordinator import FederatedResult

MANIFEST_SCHEMA = "daskrado.federated/1"


def write_federated(result: FederatedResult, folder: Path) -> None:
    """Write the three files of a combined round."""
    result.model.save(folder / "model.json")
    write_text(folder / "manifest.json", json.dumps(federated_manifest(result), indent=2, allow_nan=False) + "\n")
    write_text(folder / "report.html", federated_report(result))


def noise_price(result: FederatedResult) -> dict[str, Any]:
    """Who added the noise, what is guaranteed to be in it, and what it costs beside one trusted curator."""
    mechanism, std = result.plan.mechanism, result.release.noise_std
    facts: dict[str, Any] = {"added_by": result.terms.noise_in_words, "std_of_total": std}
    if isinstance(mechanism, GaussianShares):
        part = math.sqrt(mechanism.honest / mechanism.sites)
        facts |= {
            "sites": mechanism.sites,
            "rounds_charged": result.round.number,
            "honest_sites_needed": mechanism.honest,
            "std_guaranteed": {name: value * part for name, value in std.items()},
            "std_beside_central": 1 / part,
            "charged": "every site's own ledger, for every round that it contributed to",
        }
    elif mechanism is not None:
        facts["charged"] = "every site's own ledger, once for the study, and the coordinator's"
    return facts


def federated_manifest(result: FederatedResult) -> dict[str, Any]:
    """Everything public about a combined round."""
    plan, round_ = result.plan, result.round
    return {
        "schema": MANIFEST_SCHEMA,
        "daskrado": daskrado.__version__,
        "study": round_.study,
        "round": round_.number,
        "round_sha256": round_.digest.hex(),
        "sites": {name: keys.fingerprint for name, keys in round_.roster.items()},
        "roster_fingerprint": round_.roster_fingerprint,
        "minimum": round_.minimum,
        "privacy": plan.statement.model_dump(mode="json"),
        "privacy_in_words": plan.statement.sentence(),
        "noise": noise_price(result),
        "event": event_to_json(plan.mechanism.event) if plan.mechanism is not None else None,
        "budget": result.budget,
        "statistic": plan.pipeline.statistic.model_dump(mode="json") if plan.pipeline.statistic is not None else None,
        "learner": plan.pipeline.learner.model_dump(mode="json"),
        "lattice": {"norm_bound": plan.lattice.norm_bound, "bits": plan.lattice.bits},
        "domain_sha256": plan.pipeline.domain.digest(),
        "features": plan.pipeline.domain.width,
        "notes": list(result.notes),
    }


def federated_report(result: FederatedResult) -> str:
    """A page that the data protection officers of all sites can read."""
    statement, round_ = result.plan.statement, result.round
    names = result.model.domain.feature_names
    weights = dict(zip(names, result.model.weights.tolist(), strict=True))
    noise = noise_price(result)
    protected: list[tuple[str, str]] = []
    if statement.private:
        assert statement.relation is not None
        protected = [
            ("protected", f"{statement.unit}, with up to {statement.rows_per_unit} row(s) at all sites together"),
            ("neighbouring lakes", statement.relation.meaning(statement.rows_per_unit)),
            ("guarantee", f"epsilon {statement.epsilon:g}, delta {statement.delta:g}"),
            ("mechanism", f"{statement.mechanism}: {statement.theorem}"),
            ("it assumes", "; ".join(statement.assumptions)),
            ("charged to", str(noise["charged"])),
        ]
    rows = [("noise", str(noise["added_by"]))]
    rows += [
        (f"on {name}", f"standard deviation {value:.4g} on the total")
        for name, value in noise["std_of_total"].items()
    ]
    if "std_beside_central" in noise:
        rows.append(("beside one trusted curator", f"{noise['std_beside_central']:.3g} times the noise"))
    members = [(name, keys.fingerprint) for name, keys in round_.roster.items()]
    sections = [
        Section(
            "What was protected, and for whom",
            text="" if statement.private else "Nobody. Exact sums: do not publish where the rows are private.",
            rows=protected,
        ),
        Section(
            "Sites",
            text=f"Round {round_.number}. The coordinator saw one masked vector of each site and learned their sum; "
            f"roster fingerprint {round_.roster_fingerprint}.",
            header=("site", "key"),
            rows=members,
        ),
        Section("Noise", rows=rows),
        Section("Coefficients", plot=bars(weights, "weight")),
        Section("All coefficients", rows=[(n, f"{w:+.6g}") for n, w in weights.items()], folded=True),
    ]
    if result.notes:
        sections.append(Section("Notes", text="; ".join(result.notes)))
    return render_page(
        f"{round_.study}: one model of {len(members)} sites", round_.digest.hex()[:32], statement, sections
    )
