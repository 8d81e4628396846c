"""How models are measured on private rows: two releases, one to place score bins, one to count in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field, field_validator, model_validator

from daskrado.errors import DataError, UsageError, about_the_key
from daskrado.jobs.base import Charge, Line, Run, calibrated
from daskrado.jobs.evaluation_report import Measured
from daskrado.jobs.section import Section
from daskrado.lake.frame_columns import may_hold_anything
from daskrado.lake.scan import Lake
from daskrado.models.decision import Decision
from daskrado.models.evaluation import Evaluation, equal_bins
from daskrado.models.linear import LinearModel
from daskrado.models.threshold import Rule
from daskrado.privacy.accountant import Event, gaussian_epsilon, gaussian_mu, within
from daskrado.privacy.events import MIN_EPSILON, each
from daskrado.privacy.protect import Budget, Private
from daskrado.privacy.relations import Relation
from daskrado.privacy.release import Release, release, release_without_privacy
from daskrado.statistics.base import Groups, Statistic, Summary
from daskrado.statistics.score_cells import Score, ScoreCells, reach_of
from daskrado.statistics.universe import Axis, Universe
from daskrado.table.arrow_arrays import value_set
from daskrado.table.domain import Domain
from daskrado.table.label import Scalar
from daskrado.table.lattice import Lattice
from daskrado.table.nearest import did_you_mean, no_column
from daskrado.table.yaml_file import Frozen, shown

ROLE = "evaluation"
STEPS = ("place score bins", "count in score bins")  # both under one grant
PLACING = 0.2  # of the budget (of mu^2, or of a pure epsilon) that finds where scores lie
BITS = 20
ROUNDED = 2.5e-6  # of epsilon: what two draws of discrete noise may cost above two of normal noise
_BINS = {True: 20, False: 500}  # with and without noise: more bins would only add it
_GRID = {True: 1 << 10, False: 1 << 14}
Gather = Callable[[Statistic, Lattice], Summary]


class Outside(Frozen):
    """A group column that is no feature of the domain, with the values that are told apart; all others are one."""

    column: str = Field(min_length=1)
    values: tuple[Scalar, ...] = Field(min_length=1, max_length=1000)


class EvaluationKeys(Frozen):
    """``by`` names group columns: declared columns of the domain, and at most one other with its values."""

    by: tuple[str | Outside, ...] = Field(default=(), max_length=20)
    bins: int | None = Field(default=None, ge=2, le=500, description="of scores; 20 with noise")
    threshold: Rule | None = Field(default=None, description="f1, youden, {cost: 5} or {rate: 0.1}")

    @field_validator("by", mode="before")
    @classmethod
    def _one_or_more(cls, value: object) -> object:
        return (value,) if isinstance(value, str | dict) else value

    @model_validator(mode="after")
    def _check_by(self) -> EvaluationKeys:
        names = [one if isinstance(one, str) else one.column for one in self.by]
        if len(set(names)) < len(names):
            raise ValueError(f"by names a column twice: {', '.join(names)}")
        if sum(isinstance(one, Outside) for one in self.by) > 1:
            raise ValueError("by: at most one column may lie outside the domain")
        return self


def halves(budget: Budget, first: float) -> tuple[Budget, Budget]:
    """A budget in two parts for two releases, the first with a share of it: of mu^2 under a delta, else of epsilon.

    Two Gaussian releases of mu_1 and mu_2 are one of sqrt(mu_1^2 + mu_2^2), whichever follows from the other.

    Reference
        Dong, Roth and Su (2022), corollary 3.3; basic composition.
    """
    shares = first, 1 - first
    if budget.delta and budget.epsilon > 1000 * ROUNDED:
        mu = gaussian_mu(budget.epsilon - ROUNDED, budget.delta)
        parts = [gaussian_epsilon(mu * share**0.5, budget.delta) for share in shares]
        if min(parts) > MIN_EPSILON:
            one, two = (Budget(epsilon=float(part), delta=budget.delta) for part in parts)
            return one, two
    return budget.shared(first)


class Told(Protocol):
    """An evaluation as it is told: figures, files, sections; and how margins are used from now on."""

    @property
    def decision(self) -> Decision:
        """Link, threshold and ranks, where they were fitted."""

    def facts(self) -> dict[str, Any]:
        """For a manifest."""

    def to_json(self) -> dict[str, Any]:
        """For a file."""

    def lines(self) -> Iterator[str]:
        """For a terminal."""

    def sections(self) -> list[Section]:
        """For a report."""


@dataclass(frozen=True)
class Measurement:
    """The public plan of an evaluation of ``models`` models: what it counts, costs and releases."""

    domain: Domain
    keys: EvaluationKeys
    private: Private | None
    assumptions: tuple[str, ...] = ()
    models: int = 1

    target: ClassVar[str] = "sides"
    steps: ClassVar[tuple[str, ...]] = STEPS

    def __post_init__(self) -> None:
        assert self.domain.label.target == self.target
        relations = (Relation.ADD_REMOVE, Relation.REPLACE_ONE)
        if self.private is not None and self.private.protect.relation not in relations:
            raise UsageError(
                f"an evaluation protects whole rows: add_remove or replace_one, not {self.private.protect.relation}"
            )
        self.axes  # noqa: B018 - refuses columns that cannot group rows

    @property
    def lattice(self) -> Lattice:
        """The grid of the rows."""
        return Lattice(self.domain.norm_bound, BITS)

    @property
    def bins(self) -> int:
        """Score bins."""
        return self.keys.bins or _BINS[self.private is not None]

    @cached_property
    def axes(self) -> tuple[Axis, ...]:
        """The group columns that are features."""
        found: list[Axis] = []
        for name in (one for one in self.keys.by if isinstance(one, str)):
            if name == self.domain.label.column:
                raise UsageError(f"by: {name!r} is the label, which every figure is about already")
            if name not in self.domain.columns:
                raise UsageError(
                    f"by: {name!r} is no column of the domain; for another column of the lake say which values to "
                    f"tell apart: {{column: {name}, values: [...]}}{did_you_mean(name, self.domain.columns)}"
                )
            try:
                found += Universe.of(self.domain, [name]).axes
            except UsageError as error:
                raise UsageError(str(error).replace("universe:", "by:")) from error
        return tuple(found)

    @property
    def outside(self) -> Groups | None:
        """The group column that is no feature."""
        found = [one for one in self.keys.by if isinstance(one, Outside)]
        return Groups(found[0].column, found[0].values, optional=True) if found else None

    @property
    def columns(self) -> dict[str, tuple[str, ...]]:
        """The groups by column, in the order in which they are counted."""
        found = {axis.name: axis.values for axis in self.axes}
        if self.outside is not None:
            found[self.outside.column] = (*map(str, self.outside.values), "all others")
        return found

    def check_lake(self, lake: Lake) -> None:
        """Refuse a group column that the lake's schema shows to be unusable, before anything is charged."""
        group = self.outside
        for path, schema in () if group is None else lake.schemas or (("", lake.schema),):
            assert group is not None
            where = f"{path}: by {group.column!r}".removeprefix(": ")
            if group.column not in schema.names:
                raise DataError(f"{where}: {no_column(group.column, schema.names)}")
            field = schema.field(group.column)
            kind = field.type
            if not (pa.types.is_null(kind) or may_hold_anything(field)) and value_set(group.values, kind) is None:
                raise DataError(f"{where}: it is {kind}, but the groups are {shown(group.values)}")

    def _grid(self, reach: float, threshold: float) -> NDArray[np.float64]:
        """Fine bins of all margins; the model's own threshold is the middle."""
        span = reach + abs(threshold)
        return np.linspace(threshold - span, threshold + span, _GRID[self.private is not None] + 1)

    def _placing(
        self, weights: Sequence[NDArray[np.float64]], reaches: Sequence[float], grids: Sequence[NDArray[np.float64]]
    ) -> ScoreCells:
        """Counts on a fine grid, by which score bins are placed."""
        models = zip(weights, reaches, grids, strict=True)
        scores = [Score.of(one, self.lattice, reach, grid[1:-1]) for one, reach, grid in models]
        return ScoreCells(self.domain.width, tuple(scores), BITS, labels=False)

    def _counting(self, scores: Sequence[Score]) -> ScoreCells:
        return ScoreCells(self.domain.width, tuple(scores), BITS, self.axes, self.outside)

    def _shape(self) -> tuple[ScoreCells, ...]:
        """Both statistics, of models whose weights are 0: weights change neither noise nor cost."""
        zero = [np.zeros(self.domain.width)] * self.models
        edges = np.linspace(-1, 1, self.bins + 1)[1:-1]
        placing = self._placing(zero, [1.0] * self.models, [self._grid(1.0, 0.0)] * self.models)
        return placing, self._counting([Score.of(one, self.lattice, 1.0, edges) for one in zero])

    @cached_property
    def _parts(self) -> tuple[Private, ...]:
        """The budgets of placing and counting; plain shares where a noise too coarse for its grid costs more."""
        assert self.private is not None
        budget = self.private.budget
        for one, two in (halves(budget, PLACING), budget.shared(PLACING)):
            parts = Private(self.private.protect, one), Private(self.private.protect, two)
            pairs = zip(parts, self._shape(), strict=True)
            if within([calibrated(*pair, self.lattice).event for pair in pairs], budget.epsilon, budget.delta):
                break
        return parts

    def charges(self) -> tuple[Charge, ...]:
        """One, for placing score bins and for counting in them."""
        if self.private is None:
            return ()
        pairs = zip(self._parts, self._shape(), strict=True)
        chosen = [calibrated(part, shape, self.lattice) for part, shape in pairs]
        assumed, room = (*self.assumptions, *chosen[0].assumptions), sum(16 * one.size for one in self._shape())
        events = [one.event for one in chosen]
        return (Charge.of(ROLE, events, self.private, chosen[0].name, chosen[0].theorem, assumed, room=room),)

    @property
    def _counted(self) -> str:
        return f"units by label in {self.bins} score bins that hold about equally many"

    def plan(self) -> Iterator[Line]:
        """What is counted, and the noise on it."""
        yield "counts", self._counted + "".join(f", by {name}" for name in self.columns)
        if self.private is not None:
            chosen = calibrated(self._parts[-1], self._shape()[-1], self.lattice)
            yield "noise", f"standard deviation {chosen.noise_std()['cells']:.4g} rows on each count"

    def measure(self, run: Run, models: Sequence[LinearModel], gather: Gather) -> tuple[list[Any], Release]:
        """Place the bins, count, add noise to each once; an evaluation of each model, and what was released."""
        weights = [model.weights for model in models]
        reaches = [reach_of(self.domain, one) for one in weights]
        own = [one.decision.threshold if abs(one.decision.threshold) < 1e9 else 0.0 for one in models]
        grids = [self._grid(reach, threshold) for reach, threshold in zip(reaches, own, strict=True)]
        placed = self._released(run, 0, self._placing(weights, reaches, grids), gather)
        edges = [
            grid[equal_bins(counts[0, 0], self.bins)]
            for counts, grid in zip(placed.values.values(), grids, strict=True)
        ]
        scores = [
            Score.of(one, self.lattice, reach, edge) for one, reach, edge in zip(weights, reaches, edges, strict=True)
        ]
        counted = self._released(run, 1, self._counting(scores), gather)
        units = 1 if self.private is None else self.private.protect.rows_per_unit
        found = [
            Evaluation.of(counts, edge, std, self.columns, units, threshold)
            for counts, edge, std, threshold in zip(
                counted.values.values(), edges, counted.noise_std.values(), own, strict=True
            )
        ]
        return found, counted

    def measured(
        self, names: Sequence[str], found: Sequence[Any], where: str, about: str, model: LinearModel
    ) -> Told:
        """What is told of it: the model's own evaluation is the first."""
        decision = Decision.of(found[0].cells, self.keys.threshold, about)
        evaluations = dict(zip(names, found, strict=True))
        return Measured(evaluations, self.domain.label.pair, where, decision, model.link)

    def _released(self, run: Run, step: int, statistic: ScoreCells, gather: Gather) -> Release:
        def gathered() -> Summary:
            with run.clock(self.steps[step]):
                return gather(statistic, self.lattice)

        if self.private is None:
            return release_without_privacy(gathered())
        chosen = calibrated(self._parts[step], statistic, self.lattice)
        grant, statement = run.grants[ROLE], run.charges[ROLE].statement
        if chosen.event not in {event for event, _ in each(grant.event)}:
            raise ValueError(f"{chosen.event} is no part of what was granted: {grant.event}")

        def perturb(summary: Summary) -> dict[str, NDArray[Any]]:
            part = _Part(chosen.event, grant.relation)
            return {**release(summary, chosen, part, lambda: None, statement).values}  # counted by the account

        values = run.account.draw(ROLE, grant, gathered, perturb, number=step + 1)
        return Release(statistic, self.lattice, dict(values), chosen.noise_std(), statement)


class _Part(NamedTuple):
    """One of the events that a grant pays for."""

    event: Event
    relation: Relation


def measurement(
    domain: Domain, keys: EvaluationKeys, private: Private | None, assumptions: tuple[str, ...] = (), models: int = 1
) -> Measurement:
    """A plan inside a validator: what is wrong with it is said of the job's key."""
    from daskrado.jobs.measure_classes import ClassMeasurement
    from daskrado.jobs.measure_numbers import NumberMeasurement

    kinds = {"sides": Measurement, "number": NumberMeasurement, "classes": ClassMeasurement}
    with about_the_key():
        return kinds[domain.label.target](domain, keys, private, assumptions, models)
