"""The run of a learner that reads the lake several times inside one grant."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from daskrado.jobs.pipeline import RadoStatistic
from daskrado.jobs.plan import Plan
from daskrado.lake.collect import open_passes
from daskrado.lake.scan import Lake
from daskrado.lake.seeds import SignatureKey
from daskrado.lake.shards import check_places, check_signatures
from daskrado.learners.on_passes.iterative import Draws, IterativeLearner, Learned, Session
from daskrado.privacy.relations import Relation

if TYPE_CHECKING:
    from daskrado.lake.collect import Progress


def learn_iteratively(
    plan: Plan,
    lake: Lake,
    client: Any,
    progress: Progress | None,
    spend: Callable[[], None] | None = None,
    draws: Draws | None = None,
) -> Learned:
    """Learn; ``spend`` marks the grant, None is a run without privacy; ``draws`` keeps what is drawn.

    In a private run the progress bar shows no gradient norm and the manifest no seconds: both depend on the rows.
    """
    assert plan.facts is not None
    learner = cast(IterativeLearner, plan.learner)
    with open_passes(
        lake,
        plan.pipeline.domain,
        plan.lattice,
        seeded=learner.seeded,
        by_record=by_record(plan),
        key=SignatureKey.from_seed(0),  # deals rows out to the parts of a tuning grid: public, and not by content
        client=client,
    ) as passes:
        if spend is None:
            watch = getattr(progress, "note", None)
            return learner.learn(Session(passes, lambda: None, progress=progress, watch=watch), plan.facts)
        return learner.learn(Session(passes, spend, progress=progress, journal=draws), plan.facts)


def by_record(plan: Plan) -> bool:
    """Whether rows get their seeds from the record id, where there is one."""
    if plan.pipeline.domain.id is None:
        return False
    if plan.statistic is not None:
        return plan.statistic.needs_seeds
    # A replaced record may bring another id and move to another part of a grid; its position stays, if no folder is
    # named after what it holds.
    return cast(IterativeLearner, plan.learner).seeded and plan.statement.relation is Relation.ADD_REMOVE


def check_dealing(plan: Plan, lake: Lake) -> None:
    """Refuse a lake whose rows a tuning grid, or public signatures, would tell by positions that depend on them."""
    chosen = plan.pipeline.statistic
    if isinstance(chosen, RadoStatistic) and chosen.seed is not None and plan.statement.private:
        check_signatures(lake, plan.pipeline.domain)
    dealt = plan.statistic is None and cast(IterativeLearner, plan.learner).seeded
    if dealt and plan.statement.private and not by_record(plan):
        check_places(
            lake, "tuning deals rows out", "protect under add_remove with an id column, or tune on a public_lake"
        )
