"""Local reports: what each row says about itself, randomised at the source, and the public facts to read them by."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import Field, model_validator

from daskrado.errors import DataError, UsageError
from daskrado.lake.scan import Lake
from daskrado.privacy.accountant import Event
from daskrado.privacy.events import MIN_EPSILON
from daskrado.privacy.local import BinaryResponse, KaryResponse, Response, UnaryEncoding
from daskrado.privacy.local_numbers import LocalEdges, LocalNumber
from daskrado.privacy.statement import PrivacyStatement
from daskrado.statistics.universe import Axis, Universe
from daskrado.table.domain import Domain, NumericColumn
from daskrado.table.encoding import EncodedTable, encode_table, needed_columns
from daskrado.table.lattice import Lattice
from daskrado.table.yaml_file import Frozen, parse, write_text

FACTS = "_local.json"  # the underscore hides it from readers of Parquet folders
_SCHEMA = "daskrado.local/1"
_CHUNK = 16_384
EDGE_BITS = 10  # of the grid of edge vectors: far finer than any noise that protects a row


class LabelReports(Frozen):
    """The label goes through randomised response; all features are published as they are."""

    kind: Literal["labels"]
    epsilon: float | None = Field(default=None, ge=float(MIN_EPSILON))
    keep: float | None = None

    @model_validator(mode="after")
    def _check(self) -> LabelReports:
        if (self.epsilon is None) == (self.keep is None):
            raise ValueError("give epsilon or keep (the probability of the truth), one of them")
        _tried(self.mechanism)
        return self

    def mechanism(self) -> BinaryResponse:
        """The randomiser of one label."""
        return BinaryResponse(self.keep) if self.keep is not None else BinaryResponse.from_epsilon(self.epsilon or 0)


class EdgeReports(Frozen):
    """The whole encoded row times its label, with Gaussian noise on every coordinate."""

    kind: Literal["edges"]
    epsilon: float = Field(ge=float(MIN_EPSILON))
    delta: float = Field(gt=0)

    @model_validator(mode="after")
    def _check(self) -> EdgeReports:
        _tried(self.mechanism)
        return self

    def mechanism(self) -> LocalEdges:
        """The randomiser of one edge vector."""
        return LocalEdges(self.epsilon, self.delta, EDGE_BITS)


class ResponseColumn(Frozen):
    """A category, a bin, a boolean or the label, by randomised response."""

    kind: Literal["binary", "kary", "unary", "optimised_unary"]
    epsilon: float = Field(ge=float(MIN_EPSILON))

    def mechanism(self, axis: Axis) -> Response:
        """The randomiser of one value."""
        count = len(axis.values)
        if self.kind == "binary":
            if count != 2:
                raise UsageError(f"reports: {axis.name!r} has {count} values; binary needs 2, take kary or unary")
            return BinaryResponse.from_epsilon(self.epsilon)
        if self.kind == "kary":
            return KaryResponse(self.epsilon, count)
        return UnaryEncoding(self.epsilon, count, "symmetric" if self.kind == "unary" else "optimised")


class NumberColumn(Frozen):
    """A number between the Domain's bounds, with Laplace noise, or Gaussian noise where there is a delta."""

    kind: Literal["number"]
    epsilon: float = Field(ge=float(MIN_EPSILON))
    delta: float = Field(default=0.0, ge=0)

    def mechanism(self, name: str, column: Any) -> LocalNumber:
        """The randomiser of one value."""
        if not isinstance(column, NumericColumn):
            raise UsageError(f"reports: column {name!r} is not a number; take kary or unary")
        if column.bins is not None:
            raise UsageError(f"reports: column {name!r} is cut into bins; report it with kary or unary")
        return LocalNumber(column.lower, column.upper, self.epsilon, self.delta)


class ColumnReports(Frozen):
    """Some columns, each with its own mechanism; all others are left out of the reports."""

    kind: Literal["columns"]
    columns: dict[str, Annotated[ResponseColumn | NumberColumn, Field(discriminator="kind")]] = Field(min_length=1)

    def mechanisms(self, domain: Domain) -> dict[str, tuple[Axis | None, Response | LocalNumber]]:
        """The randomiser of each column, with its axis where it has categories."""
        found: dict[str, tuple[Axis | None, Response | LocalNumber]] = {}
        for name, choice in self.columns.items():
            if isinstance(choice, NumberColumn):
                if name not in domain.columns:
                    raise UsageError(f"reports: the domain has no column {name!r}")
                found[name] = (None, choice.mechanism(name, domain.columns[name]))
            else:
                axis = Universe.of(domain, [name]).axes[0]
                found[name] = (axis, choice.mechanism(axis))
        return found


Reports = Annotated[LabelReports | EdgeReports | ColumnReports, Field(discriminator="kind")]


def _tried(make: Any) -> None:
    try:
        make()
    except UsageError as error:
        raise ValueError(str(error)) from error


def report_events(reports: LabelReports | EdgeReports | ColumnReports, domain: Domain) -> list[Event]:
    """What the reports of one row cost the person whose row it is."""
    if isinstance(reports, ColumnReports):
        return [mechanism.event for _, mechanism in reports.mechanisms(domain).values()]
    return [reports.mechanism().event]


class _Content(Frozen):
    reports: Reports
    domain: Domain
    statement: PrivacyStatement


@dataclass(frozen=True)
class ReportFacts:
    """What anybody needs to read reports: the mechanism, the Domain, and what they protect."""

    reports: LabelReports | EdgeReports | ColumnReports
    domain: Domain
    statement: PrivacyStatement

    def save(self, folder: Path) -> None:
        """Beside the reports."""
        content = {
            "schema": _SCHEMA,
            "reports": self.reports.model_dump(mode="json"),
            "domain": self.domain.model_dump(mode="json"),
            "statement": self.statement.model_dump(mode="json"),
        }
        write_text(folder / FACTS, json.dumps(content, indent=2) + "\n")

    @classmethod
    def load(cls, folder: str | Path) -> ReportFacts:
        """From a folder of reports."""
        path = Path(folder) / FACTS
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise UsageError(f"{path}: cannot be read ({error.strerror}); is this a folder of reports?") from error
        except ValueError as error:
            raise UsageError(f"{path}: is not JSON") from error
        if not isinstance(content, dict) or content.pop("schema", None) != _SCHEMA:
            raise UsageError(f"{path}: is not {_SCHEMA!r}")
        read = parse(_Content, content, str(path))
        return cls(read.reports, read.domain, read.statement)

    @property
    def lattice(self) -> Lattice:
        """The grid of edge vectors."""
        return Lattice(self.domain.norm_bound, EDGE_BITS)


def check_rows(domain: Domain, lake: Lake) -> None:
    """Read every row once and refuse what cannot be encoded, before anything is spent or drawn."""
    buffer = np.empty((_CHUNK, domain.width), order="F")
    for partition in lake.partitions:
        for _, table in partition.tables(needed_columns(domain)):
            encoded = encode_table(domain, table)
            _refuse(encoded, partition)
            for start in range(0, encoded.length, _CHUNK):
                encoded.block(start, min(start + _CHUNK, encoded.length), buffer)
                _refuse(encoded, partition)


def write_reports(facts: ReportFacts, lake: Lake, folder: Path, progress: Any = None) -> int:
    """Randomise every row of a lake, once, in this process, into one file for each partition; returns the rows.

    Not a task of a cluster: a task may run twice, and two reports of one row cost twice.
    """
    rows = 0
    for number, partition in enumerate(lake.partitions):
        writer: pq.ParquetWriter | None = None
        try:
            for _, table in partition.tables(needed_columns(facts.domain)):
                for part in report_tables(facts, table):
                    if writer is None:
                        writer = pq.ParquetWriter(
                            folder / f"part-{number:05d}.parquet", part.schema, compression="zstd"
                        )
                    writer.write_table(part)
                    rows += part.num_rows
        finally:
            if writer is not None:
                writer.close()
        if progress is not None:
            progress(number + 1, len(lake.partitions))
    return rows


def report_tables(facts: ReportFacts, table: pa.Table) -> Iterator[pa.Table]:
    """Reports for the rows of a table: the function that runs at the source."""
    domain = facts.domain
    encoded = encode_table(domain, table)
    _refuse(encoded)
    assert encoded.labels is not None
    buffer = np.empty((min(_CHUNK, max(1, encoded.length)), domain.width), order="F")
    for start in range(0, encoded.length, _CHUNK):
        stop = min(start + _CHUNK, encoded.length)
        x, y = encoded.block(start, stop, buffer), encoded.labels[start:stop]
        _refuse(encoded)
        if isinstance(facts.reports, LabelReports):
            drawn = facts.reports.mechanism().randomise((y > 0).astype(np.int64))
            pair = pa.array([domain.label.negative, domain.label.positive])
            at = table.column_names.index(domain.label.column)
            yield table.slice(start, stop - start).set_column(at, domain.label.column, pair.take(pa.array(drawn)))
        elif isinstance(facts.reports, EdgeReports):
            edges = facts.lattice.quantise(x.copy(order="F")) * y[:, None]
            noisy = facts.reports.mechanism().randomise(edges.astype(np.int64))
            yield pa.table({name: noisy[:, k] for k, name in enumerate(domain.feature_names)})
        else:
            yield pa.table(_columns(facts.reports, domain, x, y))


def _columns(reports: ColumnReports, domain: Domain, x: NDArray[np.float64], y: NDArray[np.int8]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, (axis, mechanism) in reports.mechanisms(domain).items():
        if isinstance(mechanism, LocalNumber):
            out[name] = mechanism.randomise(_number(domain, name, x))
            continue
        assert axis is not None
        drawn = mechanism.randomise(axis.codes(x, y))
        if drawn.ndim == 1:
            out[name] = pa.array(axis.values).take(pa.array(drawn))
        else:
            out |= {bit_name(axis, k): drawn[:, k].astype(bool) for k in range(len(axis.values))}
    return out


def bit_name(axis: Axis, position: int) -> str:
    """The column of one bit of a unary report."""
    return f"{axis.name}={axis.values[position]}"


def _number(domain: Domain, name: str, x: NDArray[np.float64]) -> NDArray[np.float64]:
    """The clipped number behind an encoded feature, in its own unit."""
    column = domain.columns[name]
    assert isinstance(column, NumericColumn)
    scaled = x[:, domain.feature_names.index(name)]
    low, high = column.lower, column.upper
    if column.transform == "log1p":
        low, high = float(np.log1p(low)), float(np.log1p(high))
        return np.expm1(low + (scaled + 1) / 2 * (high - low))
    return np.asarray(low + (scaled + 1) / 2 * (high - low))


def _refuse(encoded: EncodedTable, partition: Any = None) -> None:
    if encoded.problems:
        where = f"{getattr(partition, 'path', partition.name)}: " if partition is not None else ""
        raise DataError(where + "; ".join(map(str, encoded.problems[:3])))


@dataclass(frozen=True)
class ReportCounts:
    """Sums of a table of column reports: rows, then counts of each category or the sum of each number."""

    axes: tuple[tuple[str, tuple[str, ...], bool], ...]  # name, values (none for a number), whether bits

    def __call__(self, table: pa.Table) -> NDArray[np.int64]:
        """Count one table."""
        parts: list[int] = [table.num_rows]
        for name, values, bits in self.axes:
            if bits:
                parts += [int(table.column(f"{name}={value}").to_numpy().sum()) for value in values]
            elif values:
                found = table.column(name).to_pandas().value_counts()
                parts += [int(found.get(value, 0)) for value in values]
            else:
                parts.append(int(table.column(name).to_numpy().astype(np.int64).sum()))
        return np.array(parts, dtype=np.int64)

    def columns(self) -> Sequence[str]:
        """The columns that are read."""
        names: list[str] = []
        for name, values, bits in self.axes:
            names += [f"{name}={value}" for value in values] if bits else [name]
        return names
