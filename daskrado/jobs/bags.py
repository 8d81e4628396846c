"""kind: bags. Rows have no labels, only bags: the share of positive labels in each, given or released with noise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator, model_validator

from daskrado.errors import DataError, UsageError
from daskrado.jobs.base import Address, Line, Outcome, Run
from daskrado.jobs.label_learning import LabelLearningJob, MeanOperatorFit, label_outcome
from daskrado.jobs.report import Section, draw
from daskrado.lake.scan import Lake
from daskrado.learners.bags import Bags, check_sizes
from daskrado.learners.on_passes.bag_estimators import BagEstimator, lake_bags
from daskrado.learners.on_passes.public_features import measure, open_features
from daskrado.privacy.release import Release
from daskrado.privacy.statement import PrivacyStatement
from daskrado.registry import one_of, options
from daskrado.statistics.base import Groups
from daskrado.statistics.label_means import BagCounts
from daskrado.table.label import Scalar
from daskrado.table.yaml_file import Frozen, parse

MAX_BAGS = 2000  # the Laplacian's system is dense, of twice this size


class Shares(Frozen):
    """The share of positive labels of one bag, and of negative ones where it is given too."""

    positive: float = Field(ge=0, le=1)
    negative: float | None = Field(default=None, ge=0, le=1)

    @model_validator(mode="before")
    @classmethod
    def _short(cls, content: Any) -> Any:
        if not isinstance(content, int | float | Mapping | Shares):
            raise ValueError(f"must be a share between 0 and 1, or positive and negative, got {content!r}")
        return {"positive": content} if isinstance(content, int | float) else content

    @model_validator(mode="after")
    def _sum(self) -> Shares:
        if self.negative is not None and abs(self.positive + self.negative - 1) > 1e-6:
            raise ValueError(f"positive {self.positive:g} + negative {self.negative:g} do not sum to 1")
        return self


class BagsJob(LabelLearningJob):
    """Learn from bags: proportions are given, or counted from the lake's labels and released with noise."""

    name: ClassVar[str] = "bags"
    title: ClassVar[str] = "{job.dataset}: learned from bags"
    addresses: ClassVar[tuple[Address, ...]] = (("proportions",),)

    bags: str = Field(min_length=1, description="the column that names a row's bag")
    proportions: dict[Scalar, Shares] | str | None = None
    values: tuple[Scalar, ...] | None = None
    estimator: Annotated[BagEstimator, one_of()] = Field(default="laplacian", validate_default=True)

    @field_validator("estimator", mode="before")
    @classmethod
    def _default_estimator(cls, content: Any) -> Any:
        return {"kind": "laplacian", **content} if isinstance(content, Mapping) else content

    @model_validator(mode="after")
    def _check_bags(self) -> BagsJob:
        if (self.proportions is None) == (self.values is None):
            raise ValueError(
                "give proportions (of each bag, or a file), or values: the bags whose proportions are to be counted "
                "from the labels and released"
            )
        if isinstance(self.proportions, dict) and not self.proportions:
            raise ValueError("proportions names no bag")
        return self

    @property
    def spends(self) -> bool:
        return self.values is not None or self.proportions is None

    @property
    def loosest(self) -> BagCounts:
        return BagCounts(self.domain.width, self.groups)  # of the same sensitivity in every lake

    @cached_property
    def given(self) -> dict[Scalar, float] | None:
        """The proportions that the pipeline gives, by bag; None where they are to be counted."""
        if isinstance(self.proportions, dict):
            return {name: shares.positive for name, shares in self.proportions.items()}
        return None if self.proportions is None else read_proportions(self.proportions)

    @cached_property
    def groups(self) -> Groups:
        """The bags."""
        names = tuple(self.given) if self.given is not None else self.values or ()
        if not 2 <= len(names) <= MAX_BAGS:
            raise UsageError(f"between 2 and {MAX_BAGS} bags are needed, got {len(names)}")
        return Groups(self.bags, names)

    def plan(self) -> Iterator[Line]:
        yield from super().plan()
        yield "bags", f"{len(self.groups.values)} values of {self.bags!r}; estimator {self.estimator.name}"

    def scan(self) -> Lake:
        counted = [self.domain.label.column] if self.given is None else []
        return open_features(self.source, self.domain, self.groups.column, *counted, strict=not self.protects)

    def work(self, run: Run) -> Outcome:
        """Bags and proportions become a mean operator, and that a model."""
        with run.passes(self.lattice) as passes:
            with run.clock("features"):  # what is public is found out, and refused, before the grant is spent
                squares = self.estimator.needs_squares
                measured = measure(passes, self.groups, squares=squares, progress=run.progress)
            check_sizes(measured.rows, self.groups.values)
            proportions, released = self._proportions(run)
            bags = Bags(measured.sums, measured.rows, measured.squares, proportions)
            notes = self._check_rank(bags, paid=bool(run.charges))
            with run.clock("learn"):
                totals = bags.sums.sum(axis=0)
                features = lake_bags(passes, self.groups, totals, measured.total_rows, run.progress)
                found = self.estimator.learn(features, bags, self.loss, self.regularisation)
        names = [str(name) for name in self.groups.values]
        return label_outcome(
            self.domain,
            MeanOperatorFit(found.mean, found.fit),
            self.loss,
            self.regularisation,
            PrivacyStatement.none() if released is None else released.statement,
            rows=measured.total_rows,
            facts={
                "proportions": dict(zip(names, proportions.tolist(), strict=True)),
                "estimator": options(self.estimator),
            },
            release=released,
            sections=partial(_sections, names, bags, found.objectives, given=self.given is not None),
            notes=notes,
        )

    def _proportions(self, run: Run) -> tuple[NDArray[np.float64], Release | None]:
        """As given, or from one release of counts."""
        if self.given is not None:
            return np.array(list(self.given.values())), None
        counts = self.loosest
        with run.clock("labels"):
            released, _ = self.release(run, counts, lambda: run.collect(counts, self.lattice))
        rows = released.values["count"]  # above 0, as the bags' sizes are
        return np.clip(released.values["positives"] / rows, 0.0, 1.0), released

    def _check_rank(self, bags: Bags, *, paid: bool) -> tuple[str, ...]:
        """Refuse proportions that are too alike; noise may have made them so, and what was paid for is published."""
        if not paid:
            bags.check_rank(self.domain.feature_names)
            return ()
        trouble = bags.indistinct(self.domain.feature_names)
        return () if trouble is None else (f"take no advice from this model: as released, {trouble}",)


def read_proportions(path: str) -> dict[Scalar, float]:
    """From a CSV or Parquet file with the columns bag and positive, and negative if it has it."""
    import pyarrow as pa
    import pyarrow.csv as csv
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path) if path.endswith((".parquet", ".pq")) else csv.read_csv(path)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path}: cannot be read as a table of proportions ({str(error).splitlines()[0]})") from error
    for column in ("bag", "positive"):
        if column not in table.column_names:
            raise DataError(f"{path}: column {column!r} is missing; it has {', '.join(table.column_names)}")
    found: dict[Scalar, float] = {}
    for row in table.to_pylist():
        where = f"{path}: bag {row['bag']!r}"
        if row["bag"] in found or row["bag"] is None:
            raise DataError(f"{where} is {'named twice' if row['bag'] is not None else 'null'}")
        content = {key: row[key] for key in ("positive", "negative") if row.get(key) is not None}
        found[row["bag"]] = parse(Shares, content, where).positive
    return found


def _sections(names: Sequence[str], bags: Bags, objectives: Sequence[float], *, given: bool) -> Iterator[Section]:
    """The bags, and the objective over the rounds of alternation."""
    values, rows = bags.proportions, bags.rows

    def points(axes: Any) -> None:
        order = np.argsort(values)
        size = np.clip(rows[order] / rows.max() * 120, 6, 120)
        axes.scatter(np.arange(len(values)), values[order], s=size, color="#2b6cb0")
        axes.set_ylim(-0.03, 1.03)

    def descent(axes: Any) -> None:
        axes.plot(np.arange(1, len(objectives) + 1), objectives, marker="o", color="#2b6cb0")

    yield Section(
        "Bags",
        text="The proportions were given as public facts." if given else "",
        header=("bag", "positive", "rows"),
        rows=[(name, f"{p:.4f}", f"{int(m):,}") for name, p, m in zip(names, values, rows, strict=True)],
        plot=draw(points, f"{len(values)} bags, by proportion (area: rows)", "share of positive labels"),
        folded=len(names) > 12,
    )
    if objectives:
        plot = draw(descent, "round", "objective", height=2.6)
        rounds = [(str(place), f"{value:.6g}") for place, value in enumerate(objectives, 1)]
        header = ("round", "objective")
        yield Section("Alternation", header=header, rows=rounds, plot=plot, folded=True, detail=True)
