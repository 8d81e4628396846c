"""kind: discover. Bounds, bins, categories and nulls of a draft domain, found in private and charged."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from pydantic import Field, model_validator

from daskrado.errors import DataError, UsageError, about_the_key
from daskrado.jobs.base import Address, Charge, Line, Outcome, PrivateJob, Run
from daskrado.jobs.found_domain import Discovery, discovered, write_draft
from daskrado.jobs.outcome import Result
from daskrado.lake.frame_columns import id_type, may_hold_anything
from daskrado.lake.scan import Lake, open_lake
from daskrado.lake.value_counts import ValueCounts, as_written, value_counts
from daskrado.privacy.accountant import Event, compose, exact, gaussian_mu
from daskrado.privacy.mechanisms import Target
from daskrado.privacy.mechanisms.gaussian import DiscreteGaussian
from daskrado.privacy.relations import Relation
from daskrado.privacy.release import Release
from daskrado.privacy.statement import PrivacyStatement
from daskrado.privacy.unknown_values import THEOREM, UnknownValues
from daskrado.statistics.base import Summary
from daskrado.statistics.bounded import target_of
from daskrado.statistics.column_cells import ColumnCells
from daskrado.table.cells import CellColumn, counting
from daskrado.table.domain import Domain
from daskrado.table.drafts import open_in, stand_in
from daskrado.table.lattice import Lattice
from daskrado.table.type_hints import is_number, is_text, kind_hint
from daskrado.table.value_grid import GRID
from daskrado.table.yaml_file import read_yaml

ROUGH, VALUES, FINE = "rough", "values", "fine"  # roles: the first grid, unknown categories, the second grid
_WORTH = {ROUGH: 1, VALUES: 2, FINE: 2}  # of a column in each: shares of the squares of mu
_OWN_DELTA = 0.01  # the part of delta that is the chance of telling a value of one unit alone
_SLACK = (0.0, 1e-5, 1e-4, 1e-3, 1e-2, 0.1)  # mu is lowered by as little as lets all releases fit the budget


class DiscoverJob(PrivateJob):
    """``domain`` is a draft; ``find``, the columns of it to look at, follows from it."""

    name: ClassVar[str] = "discover"
    targets = ("sides", "number", "classes")
    counts_units: ClassVar[bool] = True
    takes_drafts: ClassVar[bool] = True
    title: ClassVar[str] = "{job.dataset}: bounds and categories"
    addresses: ClassVar[tuple[Address, ...]] = (("fills",),)

    find: dict[str, dict[str, Any]]
    fills: str | None = Field(default=None, description="the draft that what is found is written into")

    @model_validator(mode="before")
    @classmethod
    def _of_draft(cls, content: Any) -> Any:
        if not isinstance(content, dict) or "find" in content or "domain" not in content:
            return content
        draft = content["domain"]
        with about_the_key():
            where = str(draft) if isinstance(draft, str | Path) else "domain"
            domain, find = stand_in(read_yaml(draft) if isinstance(draft, str | Path) else draft, where)
        return {**content, "domain": domain, "find": find}

    @model_validator(mode="after")
    def _check(self) -> DiscoverJob:
        if self.protect is None or self.budget is None:
            raise ValueError("discover protects somebody: drop private: false, and give protect and budget")
        if self.protect.relation not in (Relation.ADD_REMOVE, Relation.REPLACE_ONE):
            raise ValueError(f"discover protects whole rows: add_remove or replace_one, not {self.protect.relation}")
        if not self.budget.delta:
            raise ValueError("discover adds Gaussian noise: give budget.delta, such as 1e-6")
        if self.protect.how == "spread" and self.unknown:
            raise ValueError(
                f"protect.unit.how must be sample to find the values of {', '.join(self.unknown)}: a unit that is "
                "spread over its rows may hold any number of values"
            )
        if self.protect.column is not None and self.unknown and self.domain.id is None:
            raise ValueError(
                f"the values of {', '.join(self.unknown)} are found among records that are kept by their id, so that "
                f"{self.protect.unit} shows few, and the domain names no id: name a column that no two rows share "
                "(daskrado ingest --id row_id adds one), or write the values where they are public"
            )
        return self

    def _open(self, name: str) -> set[str]:
        return set(open_in(self.find[name]))

    @cached_property
    def unknown(self) -> tuple[str, ...]:
        """Columns whose values are to be found; the label where its sides are open."""
        return tuple(name for name in self.find if {"values", "positive", "negative"} & self._open(name))

    @cached_property
    def numbers(self) -> tuple[str, ...]:
        """Columns of numbers and dates whose bounds or bins are to be found."""
        return tuple(name for name in self.find if {"lower", "upper", "bins"} & self._open(name))

    @cached_property
    def known(self) -> tuple[str, ...]:
        """Columns that have few known cells: booleans, and the label where its sides are given."""
        label = self.domain.label.column
        own = tuple(name for name in self.find if name not in (*self.unknown, *self.numbers))
        return own if label in self.unknown else (*own, label)

    def grid(self, edges: Mapping[str, tuple[float, ...]], *, more: bool) -> tuple[Domain, tuple[CellColumn, ...]]:
        """The Domain that is read, and the cells of its columns; ``more`` counts the known ones, too."""
        return counting(self.domain, edges, self.known if more else ())

    @cached_property
    def rough(self) -> tuple[Domain, tuple[CellColumn, ...]]:
        """The first grid."""
        return self.grid(dict.fromkeys(self.numbers, GRID), more=True)

    def scan(self) -> Lake:
        """Only types are looked at: of a draft no value is wrong."""
        lake = open_lake(self.source, self.rough[0], label=False, empty=not self.rows_public)
        missing = [name for name in self.unknown if name not in lake.schema.names]
        if missing:
            raise UsageError(
                f"the lake has no column {', '.join(missing)}; it has {', '.join(lake.schema.names[:20])}"
            )
        for name in self.unknown:
            kind = lake.schema.field(name).type
            if not (is_text(kind) or is_number(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind)):
                raise DataError(f"column {name!r} is {kind}, which has no categories to find{kind_hint(kind)}")
        return lake

    @cached_property
    def mus(self) -> dict[str, float]:
        """What each release may cost, by role."""
        counts = {ROUGH: len(self.rough[1]), VALUES: len(self.unknown), FINE: len(self.numbers)}
        weights = {role: _WORTH[role] * count for role, count in counts.items() if count}
        budget, own = self.asked.budget, self.own_delta
        whole = gaussian_mu(budget.epsilon, budget.delta - own)
        for slack in _SLACK:
            mu = whole * (1 - slack)
            found = {role: mu * math.sqrt(one / sum(weights.values())) for role, one in weights.items()}
            events = [self.event(role, one) for role, one in found.items()]
            if compose(events, budget.delta).epsilon <= exact(budget.epsilon, "epsilon"):
                return found
        raise UsageError(f"epsilon {budget.epsilon:g} is too small for {len(weights)} releases")

    @property
    def own_delta(self) -> float:
        """The chance that a value of one unit alone is told."""
        return self.asked.budget.delta * _OWN_DELTA if self.unknown else 0.0

    def event(self, role: str, mu: float) -> Event:
        """What a release of a role costs."""
        return self.values_of(mu).event if role == VALUES else self.noise(role, mu).event

    def values_of(self, mu: float) -> UnknownValues:
        """The release of unknown values."""
        protect = self.asked.protect
        return UnknownValues(len(self.unknown), protect.rows_per_unit, protect.relation, mu, self.own_delta)

    def noise(self, role: str, mu: float, edges: Mapping[str, tuple[float, ...]] | None = None) -> DiscreteGaussian:
        """The mechanism of a grid; of the second one its size alone is known beforehand."""
        fine = role == FINE
        grid = self.grid(edges or dict.fromkeys(self.numbers, GRID), more=False) if fine else self.rough
        return DiscreteGaussian.of_mu(self.target(grid), mu)

    def target(self, grid: tuple[Domain, tuple[CellColumn, ...]]) -> Target:
        """Counts on a grid, for whoever is protected."""
        statistic = ColumnCells(grid[0].width, grid[1], whole=False)
        return target_of(statistic, Lattice(grid[0].norm_bound), self.asked.protect)

    def charges(self) -> tuple[Charge, ...]:
        """One for each release."""
        found = []
        for role, mu in self.mus.items():
            theorem = THEOREM if role == VALUES else self.noise(role, mu).theorem
            how = "gaussian above a threshold" if role == VALUES else "gaussian"
            found.append(
                Charge.of(role, self.event(role, mu), self.asked, how, theorem, self.assumptions, room=1 << 22)
            )
        return tuple(found)

    def plan(self) -> Iterator[Line]:
        """Columns, noise, and what is too rare to be told."""
        yield "finds", f"bounds of {len(self.numbers)} columns, values of {len(self.unknown)}"
        for role, mu in self.mus.items():
            if role == VALUES:
                told = self.values_of(mu)
                least = math.ceil(math.ldexp(told.threshold, -16))
                yield (
                    "noise",
                    f"values: standard deviation {told.std:.4g} rows; told are those of about {least:,} rows",
                )
            else:
                yield "noise", f"{role} grid: standard deviation {self.noise(role, mu).noise_std()['cells']:.4g} rows"

    def work(self, run: Run) -> Outcome:
        """Count on the first grid, find values, count on a grid inside what was found."""
        wholes = self._whole(run)
        rough = self._released(run, ROUGH, self.rough) if self.rough[1] else None
        told = self._told(run) if self.unknown else {}
        found = Discovery(self.domain, self.find, self.numbers, wholes)
        edges = found.look_at(rough, self.rough[1])
        fine = self._released(run, FINE, self.grid(edges, more=False)) if self.numbers else None
        statement = PrivacyStatement.of(
            [charge.event for charge in run.charges.values()],
            self.asked.protect,
            self.asked.budget,
            mechanism="gaussian",
            theorem=next(iter(run.charges.values())).statement.theorem,
            assumptions=self.assumptions,
        )
        return discovered(self, run, found, fine, told, statement)

    def after(self, result: Result) -> Result:
        """Fill the draft, also where the run was cut off and resumed."""
        if self.fills is None:
            return result
        return replace(result, lines=(*result.lines, *write_draft(Path(self.fills), result.value)))

    def _whole(self, run: Run) -> frozenset[str]:
        """The columns of whole numbers, by their types; of a pandas frame none, where one null makes them floats."""
        fields = [run.lake.schema.field(name) for name in self.numbers]
        whole = (pa.types.is_integer(id_type(field)) or pa.types.is_temporal(field.type) for field in fields)
        return frozenset(name for name, own in zip(self.numbers, whole, strict=True) if own)

    def _released(self, run: Run, role: str, grid: tuple[Domain, tuple[CellColumn, ...]]) -> Release:
        target = self.target(grid)

        def gather() -> Summary:
            with run.clock(f"{role} grid"):
                return run.collect(target.statistic.plain, target.lattice, domain=grid[0])

        return run.release(role, DiscreteGaussian.of_mu(target, self.mus[role]), gather)

    def _told(self, run: Run) -> dict[str, dict[Any, float]]:
        """Noisy counts of the values that may be told, by column and in their own order; of nulls in any case."""
        law = self.values_of(self.mus[VALUES])

        def gather() -> ValueCounts:
            with run.clock("values"):
                units = run.units(self.asked.protect)
                return value_counts(run.lake, self.unknown, units=units, client=run.client, progress=run.progress)

        def perturb(counts: ValueCounts) -> dict[str, np.ndarray]:
            for name in self.unknown:
                counts[name, None] += 0
            # In an order of their own, so that the same noise falls on them in any partitioning.
            pairs = sorted(counts, key=lambda pair: (self.unknown.index(pair[0]), pair[1] is not None, pair[1]))
            noisy, told = law.above_threshold(np.array([counts[pair] for pair in pairs], dtype=np.int64))
            kept = [
                (*pair, count)
                for pair, count, ok in zip(pairs, noisy.tolist(), told, strict=True)
                if ok or pair[1] is None
            ]
            return {"told": np.frombuffer(json.dumps(kept).encode(), dtype=np.uint8).copy()}

        kept = run.draw(VALUES, gather, perturb)
        found: dict[str, dict[Any, float]] = {name: {} for name in self.unknown}
        for name, value, count in json.loads(bytes(np.asarray(kept["told"], dtype=np.uint8))):
            found[name][value] = count
        frames = {name: may_hold_anything(run.lake.schema.field(name)) for name in self.unknown}
        return {name: as_written(told) if frames[name] else told for name, told in found.items()}
