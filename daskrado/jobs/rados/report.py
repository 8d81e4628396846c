"""Plans, runs and the report of pipelines of kind ``rados``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from daskrado.jobs.rados.pipeline import DpFeatSet, RadosPipeline
from daskrado.jobs.rados.plan import SetPlan
from daskrado.jobs.report import Section, bars, render_page
from daskrado.ledger.ledger import Ledger
from daskrado.privacy.statement import MarginalFacts, PrivacyStatement

if TYPE_CHECKING:
    from daskrado.jobs.rados.job import MadeSet, RadosResult

_UNKNOWN_ROWS = "NOT PRIVATE as a whole: a guarantee for the marginal of one coordinate only (numbers at the run)"


def plan_lines(pipeline: RadosPipeline, plans: list[SetPlan], ledger: Ledger | None) -> Iterator[str]:
    """Cost and noise of every set, from public facts."""
    yield f"data set    {pipeline.dataset}"
    yield f"features    {pipeline.domain.width}, norm bound {pipeline.domain.norm_bound:g}"
    for plan in plans:
        item = plan.item
        yield f"set         {item.name}: {item.count} rados of kind {item.kind}"
        yield f"  guarantee {_UNKNOWN_ROWS if isinstance(item, DpFeatSet) else plan.statement.sentence()}"
        if plan.event is not None:
            yield f"  cost      {plan.event} ({plan.statement.theorem})"
        if plan.mechanism is not None:
            for name, std in plan.mechanism.noise_std().items():
                yield (
                    f"  noise     {name}: standard deviation {std:.4g}"
                    if std
                    else f"  noise     {name}: none, public"
                )
        if plan.edge_noise:
            yield (
                f"  noise     every coordinate of every edge vector: standard deviation {plan.edge_noise:.4g}, on a "
                f"grid of {plan.lattice.bits} bits"
            )
        if item.keep_epsilon is not None:
            yield f"  choice    epsilon {item.keep_epsilon:g} more for the round with few training mistakes"
        relation = plan.statement.relation
        if ledger is not None and relation is not None and ledger.limit(pipeline.dataset, relation) is not None:
            left = ledger.remaining(pipeline.dataset, relation)
            yield f"  left      epsilon {float(left.epsilon):.4g} for a pure release under {relation}, so far"


def run_lines(result: RadosResult) -> Iterator[str]:
    """The summary of a run."""
    for made in result.sets:
        yield f"{made.plan.item.name}: {len(made.rados.rados)} rados of kind {made.plan.item.kind}"
        yield f"  {made.plan.statement.sentence()}"
        for note in made.notes:
            yield f"  note: {note}"
        if made.model is not None:
            yield f"  learned by {made.model.learner}: {made.model.statement.sentence()}"
    for budget in result.budgets:
        yield (
            f"budget of {budget['dataset']} under {budget['relation']}: epsilon {budget['spent_epsilon']:.4g} of "
            f"{budget['limit_epsilon']:g} spent, {budget['left_epsilon']:.4g} left"
        )
    yield from result.notes
    seconds = ", ".join(f"{stage} {value:g} s" for stage, value in result.seconds.items())
    yield f"{seconds}; written to {result.pipeline.output}: one Parquet file per set, manifest.json, report.html"


def report(result: RadosResult) -> str:
    """A page with one part for each set; its headline is the weakest of their statements."""
    statements = [made.plan.statement for made in result.sets]
    weakest = min(statements, key=lambda s: (s.private, -(s.epsilon or 0.0)))
    sections = [section for made in result.sets for section in _set_sections(made)]
    return render_page(f"{result.pipeline.dataset}: sets of rados", result.run, weakest, sections)


def _set_sections(made: MadeSet) -> list[Section]:
    statement, item = made.plan.statement, made.plan.item
    facts = [
        ("rados", f"{len(made.rados.rados)} of kind {item.kind}, {made.rados.domain.width} features"),
        ("rows", f"{made.rados.rows:,}" if made.rados.rows is not None else "secret under this relation"),
        ("grid", f"{made.rados.lattice_bits} bits: one step is 2^-{made.rados.lattice_bits} of the norm bound"),
        *_statement_rows(statement),
        *(("note", note) for note in made.notes),
    ]
    noise = float(np.mean(made.rados.noise_std))
    means = dict(zip(made.rados.domain.feature_names, made.rados.rados.mean(axis=0).tolist(), strict=True))
    plot = bars(means, "mean of the rados", noise=noise / np.sqrt(len(made.rados.rados)))
    sections = [Section(f"Set {item.name}", text=statement.sentence(), rows=facts, plot=plot)]
    if made.model is not None:
        weights = {str(name): float(weight) for name, weight in made.model.coefficients.items()}
        text = f"Learned by {made.model.learner}. {made.model.statement.sentence()}"
        sections.append(Section(f"Model from {item.name}", text=text, plot=bars(weights, "weight")))
    return sections


def _statement_rows(statement: PrivacyStatement) -> list[tuple[str, str]]:
    if statement.marginal is not None:
        return _marginal_rows(statement.marginal)
    if not statement.private or statement.relation is None:
        return [("protected", "nobody: an un-noised sum can be attacked, see `daskrado audit rados`")]
    return [
        ("protected", f"{statement.unit}, with up to {statement.rows_per_unit} row(s)"),
        ("neighbouring lakes", statement.relation.meaning(statement.rows_per_unit)),
        ("mechanism", f"{statement.mechanism}: {statement.theorem}"),
        ("it assumes", "; ".join(statement.assumptions)),
    ]


def _marginal_rows(facts: MarginalFacts) -> list[tuple[str, str]]:
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
