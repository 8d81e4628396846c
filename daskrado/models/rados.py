"""A published set of rados and its file: Parquet, one row per rado, what it protects in the schema's metadata."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from daskrado.errors import DataError, UsageError
from daskrado.privacy.release import Release
from daskrado.privacy.statement import PrivacyStatement
from daskrado.statistics.protected_rados import NoisyColumnRados, RandomisedRados
from daskrado.statistics.rados import HadamardRados, UniformRados, rados_from_sketch
from daskrado.table.domain import Domain
from daskrado.table.lattice import Lattice
from daskrado.table.yaml_file import canonical_digest, parse

SCHEMA = "daskrado.rados/1"
_KEY = b"daskrado"
BITS = 20  # of the grid of a file that does not say
SummedKind = Literal["uniform", "balanced", "hadamard"]
PlainKind = SummedKind | Literal["fixed_support"]  # rados as they are; the other kinds protect something of them


class RadoFacts(BaseModel):
    """What a set's pipeline said of it, as far as anything here depends on it."""

    model_config = ConfigDict(extra="allow", strict=True)

    support: int | None = Field(default=None, ge=1)
    base: PlainKind | None = None
    features: list[str] | None = None


class RadoHeader(BaseModel):
    """The metadata of a rado file. Keys that a later version may add are left alone."""

    model_config = ConfigDict(extra="ignore", strict=True)

    kind: PlainKind | Literal["dp_feat", "randomised_response", "noisy_column", "noisy_edges"]
    statement: dict[str, Any]
    domain_sha256: str
    domain: dict[str, Any]
    noise_std: list[Annotated[float, Field(ge=0, allow_inf_nan=False)]]
    rows: int | None = Field(ge=1)
    facts: dict[str, Any]
    lattice_bits: int = Field(default=BITS, ge=4, le=26)

    @model_validator(mode="after")
    def _check(self) -> RadoHeader:
        if self.kind == "fixed_support" and not isinstance(self.facts.get("support"), int):
            raise ValueError("facts of rados of a fixed support need the support")
        if self.statement.get("private") is True and self.kind not in _PARTLY and 0 in self.noise_std:
            raise ValueError(f"noise_std holds a 0, but the statement says that {self.kind} rados are private")
        return self


_PARTLY = ("randomised_response", "noisy_column")  # private for named columns; the others carry no noise

RADO_STATISTICS = ("hadamard_rados", "balanced_rados", "uniform_rados")  # those whose release is a set of rados


@dataclass(frozen=True)
class RadoSet:
    """Rados (one per row) in the units of the encoded features, the noise on each column, and what they protect.

    ``rows`` is the number of examples behind them where that is public. Whatever is learned from a RadoSet is
    post-processing and carries the same statement.

    >>> label = {"column": "sick", "positive": "yes", "negative": "no"}
    >>> flag = {"kind": "boolean"}
    >>> domain = Domain(label=label, columns={"smoker": flag, "diabetic": flag}, norm_bound=2.0, intercept=0.0)
    >>> rados = RadoSet("uniform", domain, np.array([[2.0, 0.0], [1.0, 0.0]]), (0.0, 0.0), PrivacyStatement.none())
    >>> rados.zero_columns  # nothing can be learned about it
    ('diabetic',)
    >>> rados.noisy
    False
    """

    kind: str
    domain: Domain
    rados: NDArray[np.float64]
    noise_std: tuple[float, ...]
    statement: PrivacyStatement
    rows: int | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    lattice_bits: int = BITS

    def __post_init__(self) -> None:
        if self.rados.ndim != 2 or self.rados.shape[1] != self.domain.width or len(self.rados) == 0:
            raise UsageError(f"rados of shape {self.rados.shape} for a Domain of {self.domain.width} features")
        if len(self.noise_std) != self.domain.width:
            raise UsageError(f"{len(self.noise_std)} noise levels for {self.domain.width} features")
        if not np.isfinite(self.rados).all():
            raise UsageError("rados must be finite numbers")

    @property
    def noisy(self) -> bool:
        """Whether every column carries noise."""
        return min(self.noise_std) > 0

    @property
    def exact_columns(self) -> NDArray[np.intp]:
        """Places of the features that are neither noisy nor randomised: sums of the rows as they are."""
        hidden = set(self.facts.get("features") or ()) if self.kind in _PARTLY else set()
        names, noise = self.domain.feature_names, self.noise_std
        return np.array([k for k, name in enumerate(names) if name not in hidden and not noise[k]], dtype=np.intp)

    @property
    def zero_columns(self) -> tuple[str, ...]:
        """Features that are 0 in every rado, from which nothing can be learned."""
        return tuple(np.array(self.domain.feature_names)[np.abs(self.rados).max(axis=0) == 0].tolist())

    def as_release(self) -> Release:
        """The rados as a learner takes them, whatever kind of set they are."""
        count, width = self.rados.shape
        lattice = Lattice(self.domain.norm_bound, self.lattice_bits)
        noise = {"rados": max(self.noise_std)}
        return Release(UniformRados(width, count), lattice, {"rados": self.rados}, noise, self.statement)

    def save(self, path: str | Path) -> None:
        """Write the file, whole or not at all."""
        header = {
            "schema": SCHEMA,
            "kind": self.kind,
            "statement": self.statement.model_dump(mode="json"),
            "statement_in_words": self.statement.sentence(),
            "domain_sha256": self.domain.digest(),
            "domain": self.domain.model_dump(mode="json"),
            "noise_std": list(self.noise_std),
            "rows": self.rows,
            "facts": self.facts,
            "lattice_bits": self.lattice_bits,
        }
        table = pa.table(dict(zip(self.domain.feature_names, self.rados.T, strict=True)))
        table = table.replace_schema_metadata({_KEY: json.dumps(header, allow_nan=False).encode()})
        target = Path(path)
        temporary = target.with_name(f".{target.name}.new")
        try:
            pq.write_table(table, temporary, compression="zstd", write_page_checksum=True)
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: str | Path, domain: Domain | None = None) -> RadoSet:
        """Read a file; with ``domain``, refuse rados of another one. Nothing but the file is needed."""
        if not Path(path).is_file():
            raise UsageError(f"{path}: {'is a folder, not a rado file' if Path(path).is_dir() else 'no such file'}")
        try:
            table = pq.ParquetFile(path, page_checksum_verification=True).read()
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{path}: is not a readable Parquet file ({str(error).splitlines()[0]})") from error
        header = _header(table, str(path))
        own = parse(Domain, header.domain, f"{path}: domain")
        # Over the stored text: a later version's Domain may have keys that this file's writer did not know.
        stated, found = header.domain_sha256, canonical_digest(header.domain)
        if found != stated:
            raise DataError(f"{path}: its domain has the hash {found[:16]}…, not {stated[:16]}… as it states")
        if domain is not None and domain.digest() != own.digest():
            raise UsageError(
                f"{path}: rados of another domain (sha256 {stated[:16]}…, wanted {domain.digest()[:16]}…)"
            )
        if tuple(table.column_names) != own.feature_names:
            raise DataError(f"{path}: columns are not its domain's features in order")
        for name, column in zip(table.column_names, table.columns, strict=True):
            if not pa.types.is_floating(column.type) or column.null_count:
                raise DataError(f"{path}: column {name!r} must hold numbers without nulls")
            if not np.isfinite(column.to_numpy()).all():
                raise DataError(f"{path}: column {name!r} must hold finite numbers")
        rados = np.column_stack([column.to_numpy() for column in table.columns])
        statement = parse(PrivacyStatement, header.statement, f"{path}: statement")
        try:
            return cls(
                header.kind,
                own,
                np.ascontiguousarray(rados, dtype=np.float64),
                tuple(header.noise_std),
                statement,
                header.rows,
                header.facts,
                header.lattice_bits,
            )
        except UsageError as error:
            raise DataError(f"{path}: {error}") from error


def _header(table: pa.Table, where: str) -> RadoHeader:
    raw = (table.schema.metadata or {}).get(_KEY)
    try:
        header = json.loads(raw) if raw is not None else None
    except ValueError:
        header = None
    if not isinstance(header, dict) or header.get("schema") != SCHEMA:
        raise UsageError(f"{where}: is not a rado file (its metadata has no {SCHEMA!r})")
    parse(RadoFacts, header.get("facts"), f"{where}: metadata key facts")
    return parse(RadoHeader, header, f"{where}: metadata")


def rados_of(release: Release) -> NDArray[np.float64]:
    """The rados that a release holds, or that follow from it: post-processing."""
    statistic = release.statistic
    if isinstance(statistic, NoisyColumnRados):
        return statistic.joined(release.values["protected"], release.values["public"])
    if isinstance(getattr(statistic, "base", statistic), HadamardRados):
        rados = rados_from_sketch(release.values["sketch"])
    elif "rados" in release.values:
        rados = release.values["rados"]
    else:
        raise UsageError(f"learners on rados need rados, got the statistic {statistic.name}")
    if isinstance(statistic, RandomisedRados):
        rados = rados.copy()
        rados[:, statistic.features] /= statistic.shrinkage
    return rados


def noise_of(release: Release) -> tuple[float, ...]:
    """Standard deviation of the noise that a mechanism put on each column of :func:`rados_of`."""
    statistic, width = release.statistic, release.statistic.width
    if isinstance(statistic, NoisyColumnRados):
        return tuple(release.noise_std["protected"] if k in statistic.features else 0.0 for k in range(width))
    if isinstance(statistic, HadamardRados):
        return (release.noise_std["sketch"] * math.sqrt(statistic.count) / 2,) * width
    return (next(iter(release.noise_std.values())),) * width
