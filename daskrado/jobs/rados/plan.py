"""The plan of a set of rados: its statistic, its charge and its statement, from public facts alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from daskrado.audit.reconstruction import recoverable
from daskrado.bounds.dp_feat import Marginal
from daskrado.errors import UsageError
from daskrado.jobs.rados.pipeline import (
    DpFeatSet,
    FixedSupportSet,
    NoisyColumnSet,
    NoisyEdgesSet,
    RadoSetChoice,
    RadosPipeline,
    RandomisedSet,
    SummedSet,
)
from daskrado.privacy.accountant import MAX_DELTA, ApproximateEvent, Event, PureEvent, compose, zcdp_rho
from daskrado.privacy.mechanisms import Mechanism, Target, mechanism
from daskrado.privacy.protect import Budget, Protect
from daskrado.privacy.statement import PrivacyStatement
from daskrado.statistics import (
    BalancedRados,
    FeatureRados,
    FixedSupportRados,
    HadamardRados,
    NoisyColumnRados,
    NoisyEdgeRados,
    RandomisedRados,
    Statistic,
    UniformRados,
)
from daskrado.statistics.protected_rados import REACH_ROUNDING
from daskrado.statistics.row_noise import MOST_SCALE, TABLE_ERROR
from daskrado.statistics.window import Window
from daskrado.table.lattice import Lattice

FINEST_EDGES = 20  # bits of the grid of noisy edges, where the sampler would allow more: as for other sets
LEAST_RESPONSE = 1e-9
EDGE_THEOREM = "discrete Gaussian noise on every edge vector (Canonne, Kamath and Steinke 2020), then post-processing"
RESPONSE_THEOREM = "randomised response on the named columns (Warner 1965), then post-processing"


@dataclass(frozen=True)
class SetPlan:
    """What one set will do. ``event`` is None for a set that is not private; ``mechanism`` adds noise to its sums."""

    item: RadoSetChoice
    statistic: Statistic
    lattice: Lattice
    statement: PrivacyStatement
    event: Event | None = None
    mechanism: Mechanism | None = None
    edge_noise: float = 0.0  # standard deviation on one coordinate of one edge vector, in the units of the features

    @property
    def exact_as(self) -> str | None:
        """The kind of rados of which some columns or all are published without noise; None if none are."""
        item = self.item
        if isinstance(item, RandomisedSet):
            return item.base
        if isinstance(item, NoisyColumnSet):
            return "balanced" if item.balanced else "uniform"
        return item.kind if self.event is None else None

    def at(self, rows: int) -> SetPlan:
        """The plan for a lake of this many rows: refusals, and the numbers that depend on them."""
        item = self.item
        self.statistic.check_rows(rows)
        if isinstance(item, DpFeatSet):
            facts = Marginal(Window(item.epsilon, rows), item.count).facts(item.feature)
            return replace(self, statement=PrivacyStatement.marginal_only(facts))
        return self


def refuse_recoverable(plans: list[SetPlan], rows: int) -> None:
    """Refuse sets whose exact columns give examples away, each by itself or all of a run together.

    The columns that a set leaves public are published, but that is no consent to hand out the records they are in.
    """
    exact = [(plan.item, kind) for plan in plans if (kind := plan.exact_as) is not None]
    flag = "accept_no_privacy: true would publish"
    for item, kind in exact:
        support = item.support if isinstance(item, FixedSupportSet) else None
        reason = recoverable(kind, item.count, rows, support)
        if reason is not None:
            raise UsageError(f"set {item.name!r} is refused: {reason}; {flag} it all the same")
    total = sum(item.count for item, _ in exact)
    if (reason := recoverable("all", total, rows)) is not None:
        names = ", ".join(repr(item.name) for item, _ in exact)
        raise UsageError(f"sets {names} together are refused: {reason}; {flag} them all the same")


def plan_set(pipeline: RadosPipeline, item: RadoSetChoice) -> SetPlan:
    """Calibrate one set."""
    width, names = pipeline.domain.width, pipeline.domain.feature_names
    lattice = Lattice(pipeline.domain.norm_bound, pipeline.lattice_bits or 20)
    if isinstance(item, SummedSet):
        statistic = item.build(width)
        if item.protect is None or item.budget is None:
            return SetPlan(item, statistic, lattice, PrivacyStatement.none())
        return _noisy_sums(item, statistic, lattice, item.protect, item.budget, None)
    if isinstance(item, FixedSupportSet):
        return SetPlan(item, item.build(width), lattice, PrivacyStatement.none())
    if isinstance(item, DpFeatSet):
        statistic = FeatureRados(width, item.count, names.index(item.feature), item.epsilon)
        return SetPlan(item, statistic, lattice, PrivacyStatement.none())
    if isinstance(item, NoisyEdgesSet):
        return _noisy_edges(item, width, pipeline.domain.norm_bound, pipeline.lattice_bits)
    columns = tuple(names.index(feature) for feature in item.features)
    protect = item.private_protect
    assert protect is not None
    if isinstance(item, RandomisedSet):
        return _randomised(item, _base(item.base, width, item.count, None), columns, lattice, protect)
    reach = min(1.0, REACH_ROUNDING / pipeline.domain.norm_bound)
    statistic = NoisyColumnRados(width, item.count, columns, reach, item.balanced)
    return _noisy_sums(item, statistic, lattice, protect, item.budget, item.mechanism)


def _noisy_sums(
    item: SummedSet | NoisyColumnSet,
    statistic: Statistic,
    lattice: Lattice,
    protect: Protect,
    budget: Budget,
    name: str | None,
) -> SetPlan:
    target = Target(statistic, lattice, protect.relation, protect.rows_per_unit)
    chosen = mechanism(name or ("gaussian" if budget.delta > 0 else "laplace"), target, budget.epsilon, budget.delta)
    told = _statement(protect, budget, [chosen.event], chosen.name, chosen.theorem, chosen.name == "gaussian")
    return SetPlan(item, statistic, lattice, told, chosen.event, chosen)


def _noisy_edges(item: NoisyEdgesSet, width: int, norm_bound: float, wanted: int | None) -> SetPlan:
    """Noise on rows: zCDP of the changed rows at a delta that leaves room for the sampler's own error.

    *Sensitivity*: a unit with k rows moves k edge vectors by at most 2 each, 2 sqrt(k) together in L2. Their noise is
    within k d TABLE_ERROR of the exact law, which costs (1 + exp(epsilon)) times that in delta.

    The grid is as fine as the sampler's largest scale allows, unless the pipeline says ``lattice_bits``.
    """
    budget, units = item.budget, item.protect.rows_per_unit
    lost = (1 + math.exp(budget.epsilon)) * width * units * TABLE_ERROR
    if lost > float(MAX_DELTA) / 2:
        raise UsageError(f"set {item.name!r}: epsilon {budget.epsilon:g} is too large for noise on rows; lower it")
    if lost > budget.delta / 2:
        raise UsageError(
            f"set {item.name!r}: the row noise is exact to {lost:.2g} in delta at this epsilon and width; "
            f"budget.delta must be at least {2 * lost:.2g}, got {budget.delta:g}"
        )
    unit_scale = 2 * math.sqrt(units) / math.sqrt(2 * zcdp_rho(budget.epsilon, budget.delta - lost)) * (1 + 1e-12)
    finest = max((b for b in range(4, FINEST_EDGES + 1) if unit_scale * 2**b <= MOST_SCALE), default=None)
    if finest is None:
        raise UsageError(
            f"set {item.name!r}: epsilon {budget.epsilon:g} needs more noise on rows than the sampler gives "
            f"({unit_scale * 2**4:.3g} grid steps, at most {MOST_SCALE:g}); raise epsilon or delta"
        )
    if wanted is not None and wanted > finest:
        raise UsageError(
            f"set {item.name!r}: lattice_bits {wanted} is finer than noise on rows can be drawn at this budget: at "
            f"most {finest}, which it has where lattice_bits is left out"
        )
    lattice = Lattice(norm_bound, wanted or finest)
    scale = unit_scale * 2**lattice.bits
    statistic = NoisyEdgeRados(width, _base(item.base, width, item.count, item.support), scale)
    event = ApproximateEvent(budget.epsilon, budget.delta)
    told = _statement(item.protect, budget, [event], "gaussian on edge vectors", EDGE_THEOREM, True)
    return SetPlan(item, statistic, lattice, told, event, edge_noise=scale * lattice.step)


def _randomised(
    item: RandomisedSet, base: Statistic, columns: tuple[int, ...], lattice: Lattice, protect: Protect
) -> SetPlan:
    each = item.budget.epsilon / (len(columns) * protect.rows_per_unit)
    if each < LEAST_RESPONSE:  # the columns are divided by about half of it, which must leave finite numbers
        raise UsageError(
            f"set {item.name!r}: epsilon {each:.3g} for each feature and row is too small for randomised response, "
            f"at least {LEAST_RESPONSE:g}"
        )
    statistic = RandomisedRados(base.width, base, columns, each)
    event = PureEvent(item.budget.epsilon)
    told = _statement(protect, item.budget, [event], "randomised response", RESPONSE_THEOREM, False)
    return SetPlan(item, statistic, lattice, told, event)


def _base(kind: str, width: int, count: int, support: int | None) -> Statistic:
    match kind:
        case "hadamard":
            return HadamardRados(width, count)
        case "balanced":
            return BalancedRados(width, count)
        case "fixed_support":
            assert support is not None
            return FixedSupportRados(width, count, support)
        case _:
            return UniformRados(width, count)


def _statement(
    protect: Protect, budget: Budget, events: list[Event], name: str, theorem: str, approximate: bool
) -> PrivacyStatement:
    total = compose(events, budget.delta if approximate else 0)
    said = [
        f"a protected unit ({protect.unit}) has at most {protect.rows_per_unit} row(s) in the lake",
        "the Domain (bounds, categories, norm bound) was not chosen by looking at this lake's rows",
    ]
    unit = protect.unit
    if protect.feature is not None:
        unit = f"{protect.feature} of {unit}"
        said.append(f"only {protect.feature} is protected; all other columns are taken as public, and are published")
    return PrivacyStatement(
        private=True,
        relation=protect.relation,
        unit=unit,
        rows_per_unit=protect.rows_per_unit,
        epsilon=min(float(total.epsilon), budget.epsilon),
        delta=budget.delta if approximate else 0.0,
        mechanism=name,
        theorem=theorem,
        accountant=total.method,
        assumptions=tuple(said),
    )


def with_choice(statement: PrivacyStatement, event: Event, epsilon: float, theorem: str) -> PrivacyStatement:
    """The statement of a model whose round was chosen by a charged mechanism: both charges together."""
    assert statement.delta is not None
    total = compose([event, PureEvent(epsilon)], statement.delta)
    return statement.model_copy(
        update={
            "epsilon": float(total.epsilon),
            "mechanism": f"{statement.mechanism}, then a charged choice of the round",
            "theorem": f"{statement.theorem}; {theorem}",
            "accountant": total.method,
        }
    )
