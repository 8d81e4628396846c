"""Local reports: what each row says about itself, randomised at the source, and the public facts to read them by."""

from __future__ import annotations

import json
import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field, model_validator

from daskrado.errors import DataError, UsageError, about_the_key
from daskrado.lake.collect import Progress, collect
from daskrado.lake.report_columns import ColumnSums, ReportedBits, ReportedCategory, ReportedColumn, ReportedNumber
from daskrado.lake.report_rows import SourceRows
from daskrado.lake.scan import open_lake
from daskrado.lake.tally import tally
from daskrado.privacy.accountant import Event
from daskrado.privacy.events import MIN_EPSILON
from daskrado.privacy.local import BinaryResponse, Estimate, KaryResponse, UnaryEncoding
from daskrado.privacy.local_numbers import LocalEdges, LocalNumber
from daskrado.privacy.relations import Relation
from daskrado.privacy.release import Release
from daskrado.privacy.statement import PrivacyStatement
from daskrado.registry import one_of
from daskrado.statistics.base import Rows
from daskrado.statistics.moments import Moments
from daskrado.statistics.universe import Universe
from daskrado.table.domain import Domain, NumericColumn
from daskrado.table.lattice import Lattice
from daskrado.table.yaml_file import Frozen, parse, write_text

FACTS = "_local.json"  # the underscore hides it from readers of Parquet folders
EDGE_BITS = 10  # of the grid of edge vectors: far finer than any noise that protects a row
_SCHEMA = "daskrado.local/1"
Estimates = Mapping[str, tuple[tuple[str, ...], Estimate]]  # by column: the names of what is estimated, and how much


class Reports(Frozen):
    """What the rows report, each by itself. Reports are public: all that is read from them is post-processing."""

    relation: ClassVar[Relation] = Relation.REPLACE_ONE  # under which they protect
    kind: str

    @model_validator(mode="after")
    def _check_keys(self) -> Reports:
        with about_the_key():
            self.check()
        return self

    def check(self) -> None:
        """Refuse keys that contradict each other or that no mechanism takes."""

    @abstractmethod
    def events(self, domain: Domain) -> list[Event]:
        """What the reports of one row cost the person whose row it is."""

    @abstractmethod
    def randomised(self, domain: Domain, rows: SourceRows) -> pa.Table:
        """The reports of some rows: what runs at the source."""


class RowReports(Reports):
    """Reports of whole rows, or of all but the label: a least-squares model is learned from their moments."""

    @abstractmethod
    def moments(
        self, facts: ReportFacts, folder: Path, client: Any, progress: Progress | None
    ) -> tuple[int, Release]:
        """The number of reports in a folder, and the moments of the rows behind them, without bias."""

    def _release(
        self, facts: ReportFacts, lattice: Lattice, steps: Mapping[str, NDArray[Any]], noise_std: dict[str, float]
    ) -> Release:
        statistic = Moments(facts.domain.width)
        values = {block.name: steps[block.name] * block.step(lattice) for block in statistic.blocks}
        return Release(statistic, lattice, values, noise_std, facts.statement)


class LabelReports(RowReports):
    """The label goes through randomised response; all features are published as they are."""

    relation: ClassVar[Relation] = Relation.LABEL_FLIP
    kind: Literal["labels"]
    epsilon: float | None = Field(default=None, ge=float(MIN_EPSILON))
    keep: float | None = None

    def check(self) -> None:
        if (self.epsilon is None) == (self.keep is None):
            raise UsageError("give epsilon or keep (the probability of the truth), one of them")
        self.mechanism()

    def mechanism(self) -> BinaryResponse:
        """The randomiser of one label."""
        return BinaryResponse(self.keep) if self.keep is not None else BinaryResponse.from_epsilon(self.epsilon or 0)

    def events(self, domain: Domain) -> list[Event]:
        domain.label.two_values("a local report of labels")
        return [self.mechanism().event]

    def randomised(self, domain: Domain, rows: SourceRows) -> pa.Table:
        """The rows with another label, perhaps."""
        drawn = self.mechanism().randomise(np.where(rows.y == 0, -1, rows.y > 0).astype(np.int64))
        labels = pa.array(domain.label.two_values("a local report of labels")).take(pa.array(drawn))
        column = domain.label.column
        return rows.table.set_column(rows.table.column_names.index(column), column, labels)

    def moments(
        self, facts: ReportFacts, folder: Path, client: Any, progress: Progress | None
    ) -> tuple[int, Release]:
        """E[reported y] = (2p - 1) y, so the mean operator is divided by 2p - 1."""
        domain, statistic = facts.domain, Moments(facts.domain.width)
        lattice = Lattice(domain.norm_bound, statistic.default_bits)
        lake = open_lake(str(folder), domain)
        summary = collect(statistic, lake, domain, lattice, client=client, progress=progress)
        parts = {name: part.astype(np.float64) for name, part in statistic.split(summary.vector).items()}
        mechanism = self.mechanism()
        p, q = mechanism.p, mechanism.q
        spread = 2 * math.sqrt(p * q * float(parts["second"].max())) / (p - q)
        parts["mean"] = parts["mean"] / (p - q)
        return summary.rows, self._release(facts, lattice, parts, {"mean": spread * lattice.step, "second": 0.0})


class EdgeReports(RowReports):
    """The whole encoded row times its label, with Gaussian noise on every coordinate."""

    kind: Literal["edges"]
    epsilon: float = Field(ge=float(MIN_EPSILON))
    delta: float = Field(gt=0)

    def check(self) -> None:
        self.mechanism()

    def mechanism(self) -> LocalEdges:
        """The randomiser of one edge vector."""
        return LocalEdges(self.epsilon, self.delta, EDGE_BITS)

    def events(self, domain: Domain) -> list[Event]:
        del domain
        return [self.mechanism().event]

    def randomised(self, domain: Domain, rows: SourceRows) -> pa.Table:
        """Noisy edge vectors, one column for each feature."""
        edges = Lattice(domain.norm_bound, EDGE_BITS).quantise(rows.x.copy(order="F")) * rows.y[:, None]
        noisy = self.mechanism().randomise(edges.astype(np.int64))
        return pa.table({name: noisy[:, k] for k, name in enumerate(domain.feature_names)})

    def moments(
        self, facts: ReportFacts, folder: Path, client: Any, progress: Progress | None
    ) -> tuple[int, Release]:
        """The noise adds m zeta^2 I to the second moments, which is taken off again."""
        domain, names, scale = facts.domain, facts.domain.feature_names, self.mechanism().scale
        lattice = Lattice(domain.norm_bound, EDGE_BITS)
        total = tally(str(folder), names, EdgeSums(names), client=client, progress=progress)
        rows, split = int(total[0]), Moments(domain.width).split(total[1:])
        parts = {name: part.astype(np.float64) for name, part in split.items()}
        parts["second"] = parts["second"] - rows * scale**2 * np.equal(*np.triu_indices(domain.width))
        std = math.sqrt(rows) * scale
        noise = {"mean": std * lattice.step, "second": std * scale * lattice.step**2}
        return rows, self._release(facts, lattice, parts, noise)


class ResponseColumn(Frozen):
    """A category, a bin, a boolean or the label, by randomised response."""

    kind: Literal["binary", "kary", "unary", "optimised_unary"]
    epsilon: float = Field(ge=float(MIN_EPSILON))

    def reported(self, domain: Domain, name: str) -> ReportedColumn:
        """The column of a Domain, with its randomiser."""
        (axis,) = Universe.of(domain, [name]).axes
        values, count = axis.values, len(axis.values)
        if self.kind == "binary" and count != 2:
            raise UsageError(f"reports: {name!r} has {count} values; binary needs 2, take kary or unary")
        if self.kind == "binary":
            return ReportedCategory(name, values, BinaryResponse.from_epsilon(self.epsilon), axis)
        if self.kind == "kary":
            return ReportedCategory(name, values, KaryResponse(self.epsilon, count), axis)
        how: Literal["symmetric", "optimised"] = "symmetric" if self.kind == "unary" else "optimised"
        return ReportedBits(name, values, UnaryEncoding(self.epsilon, count, how), axis)


class NumberColumn(Frozen):
    """A number between the Domain's bounds, with Laplace noise, or Gaussian noise where there is a delta."""

    kind: Literal["number"]
    epsilon: float = Field(ge=float(MIN_EPSILON))
    delta: float = Field(default=0.0, ge=0)

    def reported(self, domain: Domain, name: str) -> ReportedColumn:
        """The column of a Domain, with its randomiser."""
        if name not in domain.columns:
            raise UsageError(f"reports: the domain has no column {name!r}")
        column = domain.columns[name]
        if not isinstance(column, NumericColumn):
            raise UsageError(f"reports: column {name!r} is not a number; take kary or unary")
        if column.bins is not None:
            raise UsageError(f"reports: column {name!r} is cut into bins; report it with kary or unary")
        if domain.kernel is not None:
            raise UsageError("reports: the domain's kernel mixes every column into every feature; drop the kernel")
        mechanism = LocalNumber(column.lower, column.upper, self.epsilon, self.delta)
        place = domain.feature_names.index(name)
        return ReportedNumber(name, ("mean",), mechanism, place, column)


class ColumnReports(Reports):
    """Some columns, each with its own mechanism; all others are left out of the reports."""

    kind: Literal["columns"]
    columns: dict[str, Annotated[ResponseColumn | NumberColumn, Field(discriminator="kind")]] = Field(min_length=1)

    def reported(self, domain: Domain) -> tuple[ReportedColumn, ...]:
        """The columns, for a Domain."""
        return tuple(key.reported(domain, name) for name, key in self.columns.items())

    def events(self, domain: Domain) -> list[Event]:
        return [column.mechanism.event for column in self.reported(domain)]

    def randomised(self, domain: Domain, rows: SourceRows) -> pa.Table:
        drawn: dict[str, Any] = {}
        for column in self.reported(domain):
            drawn |= column.randomised(rows)
        return pa.table(drawn)

    def estimates(
        self, domain: Domain, folder: Path, confidence: float, client: Any, progress: Progress | None
    ) -> tuple[int, Estimates]:
        """The number of reports in a folder; fractions of categories and means of numbers, from exact sums."""
        sums = ColumnSums(self.reported(domain))
        total = tally(str(folder), sums.names, sums, client=client, progress=progress)
        reports, found = int(total[0]), {}
        ends = 1 + np.cumsum([len(column.values) for column in sums.columns])
        for column, end in zip(sums.columns, ends, strict=True):
            part = total[end - len(column.values) : end]
            if not column.fits(part, reports):
                raise DataError(f"{folder}: column {column.name!r} holds reports outside {list(column.values)}")
            found[column.name] = (column.values, column.estimate(part, reports, confidence))
        return reports, found


AnyReports = Annotated[Reports, one_of()]  # all kinds are in this module, or in an installed extension


@dataclass(frozen=True)
class EdgeSums:
    """Rows, then the moments of a table of edge vectors in grid steps; exact integers."""

    names: tuple[str, ...]

    def __call__(self, table: pa.Table) -> NDArray[np.int64]:
        """Sum one table."""
        edges = np.column_stack([table.column(name).to_numpy().astype(np.float64) for name in self.names])
        rows = Rows(np.asfortranarray(edges), np.ones(len(edges), dtype=np.int8))
        return np.append(np.int64(len(edges)), Moments(len(self.names)).partial(rows))


class ReportFacts(Frozen):
    """What anybody needs to read reports: the mechanism, the Domain, and what they protect."""

    reports: AnyReports
    domain: Domain
    statement: PrivacyStatement

    def save(self, folder: Path) -> None:
        """Write the facts beside the reports."""
        content = {"schema": _SCHEMA, **self.model_dump(mode="json")}
        write_text(folder / FACTS, json.dumps(content, indent=2) + "\n")

    @classmethod
    def load(cls, folder: str | Path) -> ReportFacts:
        """Read the facts of a folder of reports."""
        path = Path(folder) / FACTS
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise UsageError(f"{path}: cannot be read ({error.strerror}); is this a folder of reports?") from error
        except ValueError as error:
            raise UsageError(f"{path}: is not JSON") from error
        if not isinstance(content, dict) or content.pop("schema", None) != _SCHEMA:
            raise UsageError(f"{path}: is not {_SCHEMA!r}")
        return parse(cls, content, str(path))
