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

from daskrado.errors import DataError, UsageError
from daskrado.jobs.local_columns import AnyColumn, ReportedColumn
from daskrado.lake.collect import Progress, collect
from daskrado.lake.scan import open_lake
from daskrado.lake.tally import tally
from daskrado.privacy.accountant import Event
from daskrado.privacy.events import MIN_EPSILON
from daskrado.privacy.local import BinaryResponse, Estimate
from daskrado.privacy.local_numbers import LocalEdges
from daskrado.privacy.relations import Relation
from daskrado.privacy.statement import PrivacyStatement
from daskrado.statistics.base import Rows
from daskrado.statistics.moments import Moments
from daskrado.table.domain import Domain
from daskrado.table.lattice import Lattice
from daskrado.table.yaml_file import Frozen, parse, write_text

FACTS = "_local.json"  # the underscore hides it from readers of Parquet folders
EDGE_BITS = 10  # of the grid of edge vectors: far finer than any noise that protects a row
_SCHEMA = "daskrado.local/1"
Estimates = Mapping[str, tuple[tuple[str, ...], Estimate]]  # by column: the names of what is estimated, and how much


@dataclass(frozen=True)
class LocalMoments:
    """Moments of the rows behind some reports, without bias, in grid steps; the noise is in units of the features."""

    reports: int
    lattice: Lattice
    steps: Mapping[str, NDArray[np.float64]]
    noise_std: Mapping[str, float]


class Reports(Frozen):
    """What the rows report, each by itself. Reports are public: all that is read from them is post-processing."""

    relation: ClassVar[Relation] = Relation.REPLACE_ONE  # under which they protect
    gives_model: ClassVar[bool] = True  # else they give estimates
    kind: str

    @model_validator(mode="after")
    def _check_keys(self) -> Reports:
        try:
            self.check()
        except UsageError as error:
            raise ValueError(str(error)) from error
        return self

    def check(self) -> None:
        """Refuse keys that contradict each other or that no mechanism takes."""

    @abstractmethod
    def events(self, domain: Domain) -> list[Event]:
        """What the reports of one row cost the person whose row it is."""

    @abstractmethod
    def randomised(self, domain: Domain, table: pa.Table, x: NDArray[np.float64], y: NDArray[np.int8]) -> pa.Table:
        """The reports of some rows, given as stored and as encoded: what runs at the source."""

    def estimates(
        self, domain: Domain, folder: Path, confidence: float, client: Any, progress: Progress | None
    ) -> tuple[int, Estimates]:
        """The number of reports, and fractions of categories and means of numbers."""
        del domain, confidence, client, progress
        raise UsageError(f"{folder}: these are reports of {self.kind}; estimates need reports of columns")

    def moments(self, domain: Domain, folder: Path, client: Any, progress: Progress | None) -> LocalMoments:
        """What a least-squares model is learned from."""
        del domain, client, progress
        raise UsageError(f"{folder}: reports of {self.kind} give estimates, not a model; encode labels or edges")


class LabelReports(Reports):
    """The label goes through randomised response; all features are published as they are."""

    relation: ClassVar[Relation] = Relation.LABEL_FLIP
    kind: Literal["labels"]
    epsilon: float | None = Field(default=None, ge=float(MIN_EPSILON))
    keep: float | None = None

    def check(self) -> None:
        """Either key decides the mechanism."""
        if (self.epsilon is None) == (self.keep is None):
            raise UsageError("give epsilon or keep (the probability of the truth), one of them")
        self.mechanism()

    def mechanism(self) -> BinaryResponse:
        """The randomiser of one label."""
        return BinaryResponse(self.keep) if self.keep is not None else BinaryResponse.from_epsilon(self.epsilon or 0)

    def events(self, domain: Domain) -> list[Event]:
        """One answer."""
        del domain
        return [self.mechanism().event]

    def randomised(self, domain: Domain, table: pa.Table, x: NDArray[np.float64], y: NDArray[np.int8]) -> pa.Table:
        """The rows with another label, perhaps."""
        del x
        drawn = self.mechanism().randomise((y > 0).astype(np.int64))
        labels = pa.array([domain.label.negative, domain.label.positive]).take(pa.array(drawn))
        column = domain.label.column
        return table.set_column(table.column_names.index(column), column, labels)

    def moments(self, domain: Domain, folder: Path, client: Any, progress: Progress | None) -> LocalMoments:
        """E[reported y] = (2p - 1) y, so the mean operator is divided by 2p - 1."""
        statistic = Moments(domain.width)
        lattice = Lattice(domain.norm_bound, statistic.default_bits)
        lake = open_lake(str(folder), domain)
        summary = collect(statistic, lake, domain, lattice, client=client, progress=progress)
        parts = {name: part.astype(np.float64) for name, part in statistic.split(summary.vector).items()}
        mechanism = self.mechanism()
        p, q = mechanism.p, mechanism.q
        spread = 2 * math.sqrt(p * q * float(parts["second"].max())) / (p - q)
        parts["mean"] = parts["mean"] / (p - q)
        return LocalMoments(summary.rows, lattice, parts, {"mean": spread * lattice.step, "second": 0.0})


class EdgeReports(Reports):
    """The whole encoded row times its label, with Gaussian noise on every coordinate."""

    kind: Literal["edges"]
    epsilon: float = Field(ge=float(MIN_EPSILON))
    delta: float = Field(gt=0)

    def check(self) -> None:
        """Epsilon and delta must be in reach."""
        self.mechanism()

    def mechanism(self) -> LocalEdges:
        """The randomiser of one edge vector."""
        return LocalEdges(self.epsilon, self.delta, EDGE_BITS)

    def events(self, domain: Domain) -> list[Event]:
        """One noisy vector."""
        del domain
        return [self.mechanism().event]

    def randomised(self, domain: Domain, table: pa.Table, x: NDArray[np.float64], y: NDArray[np.int8]) -> pa.Table:
        """Noisy edge vectors, one column for each feature."""
        del table
        edges = Lattice(domain.norm_bound, EDGE_BITS).quantise(x.copy(order="F")) * y[:, None]
        noisy = self.mechanism().randomise(edges.astype(np.int64))
        return pa.table({name: noisy[:, k] for k, name in enumerate(domain.feature_names)})

    def moments(self, domain: Domain, folder: Path, client: Any, progress: Progress | None) -> LocalMoments:
        """The noise adds m zeta^2 I to the second moments, which is taken off again."""
        names, scale = domain.feature_names, self.mechanism().scale
        lattice = Lattice(domain.norm_bound, EDGE_BITS)
        total = tally(str(folder), names, EdgeSums(names), client=client, progress=progress)
        rows, split = int(total[0]), Moments(domain.width).split(total[1:])
        parts = {name: part.astype(np.float64) for name, part in split.items()}
        parts["second"] = parts["second"] - rows * scale**2 * np.equal(*np.triu_indices(domain.width))
        std = math.sqrt(rows) * scale
        noise = {"mean": std * lattice.step, "second": std * scale * lattice.step**2}
        return LocalMoments(rows, lattice, parts, noise)


class ColumnReports(Reports):
    """Some columns, each with its own mechanism; all others are left out of the reports."""

    gives_model: ClassVar[bool] = False
    kind: Literal["columns"]
    columns: dict[str, AnyColumn] = Field(min_length=1)

    def reported(self, domain: Domain) -> tuple[ReportedColumn, ...]:
        """The columns, for a Domain."""
        return tuple(key.reported(domain, name) for name, key in self.columns.items())

    def events(self, domain: Domain) -> list[Event]:
        """One for each column."""
        return [column.event for column in self.reported(domain)]

    def randomised(self, domain: Domain, table: pa.Table, x: NDArray[np.float64], y: NDArray[np.int8]) -> pa.Table:
        """The named columns."""
        del table
        drawn: dict[str, Any] = {}
        for column in self.reported(domain):
            drawn |= column.randomised(x, y)
        return pa.table(drawn)

    def estimates(
        self, domain: Domain, folder: Path, confidence: float, client: Any, progress: Progress | None
    ) -> tuple[int, Estimates]:
        """Exact sums over partitions, then each column's own estimate."""
        sums = ColumnSums(self.reported(domain))
        total = tally(str(folder), sums.names, sums, client=client, progress=progress)
        reports, at = int(total[0]), 1
        found: dict[str, tuple[tuple[str, ...], Estimate]] = {}
        for column in sums.columns:
            counts = total[at : at + len(column.values)]
            at += len(column.values)
            if not column.fits(counts, reports):
                raise DataError(f"{folder}: column {column.name!r} holds reports outside {list(column.values)}")
            found[column.name] = (column.values, column.estimate(counts, reports, confidence))
        return reports, found


AnyReports = Annotated[LabelReports | EdgeReports | ColumnReports, Field(discriminator="kind")]


@dataclass(frozen=True)
class EdgeSums:
    """Rows, then the moments of a table of edge vectors in grid steps; exact integers."""

    names: tuple[str, ...]

    def __call__(self, table: pa.Table) -> NDArray[np.int64]:
        """Sum one table."""
        edges = np.column_stack([table.column(name).to_numpy().astype(np.float64) for name in self.names])
        rows = Rows(np.asfortranarray(edges), np.ones(len(edges), dtype=np.int8))
        return np.append(np.int64(len(edges)), Moments(len(self.names)).partial(rows))


@dataclass(frozen=True)
class ColumnSums:
    """Rows, then the sums of each column of a table of reports."""

    columns: tuple[ReportedColumn, ...]

    def __call__(self, table: pa.Table) -> NDArray[np.int64]:
        """Sum one table."""
        parts = [count for column in self.columns for count in column.counts(table)]
        return np.array([table.num_rows, *parts], dtype=np.int64)

    @property
    def names(self) -> list[str]:
        """The columns that are read."""
        return [name for column in self.columns for name in column.columns]


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
