"""A published set of rados and its file: Parquet, one row per rado, what it protects in the schema's metadata."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from daskrado.domain import Domain, canonical_digest, parse
from daskrado.errors import DataError, UsageError
from daskrado.release import Release
from daskrado.statement import PrivacyStatement
from daskrado.statistics.protected_rados import NoisyColumnRados, RandomisedRados
from daskrado.statistics.rados import HadamardRados, rados_from_sketch

SCHEMA = "daskrado.rados/1"
_KEY = b"daskrado"
_KEYS = ("kind", "statement", "domain_sha256", "domain", "noise_std", "rows", "facts")


@dataclass(frozen=True)
class RadoSet:
    """Rados (one per row) in the units of the encoded features, the noise on each column, and what they protect.

    ``rows`` is the number of examples behind them where that is public. Whatever is learned from a RadoSet is
    post-processing and carries the same statement.
    """

    kind: str
    domain: Domain
    rados: NDArray[np.float64]
    noise_std: tuple[float, ...]
    statement: PrivacyStatement
    rows: int | None = None
    facts: dict[str, Any] = field(default_factory=dict)

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
    def zero_columns(self) -> tuple[str, ...]:
        """Features that are 0 in every rado, from which nothing can be learned."""
        return tuple(np.array(self.domain.feature_names)[np.abs(self.rados).max(axis=0) == 0].tolist())

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
        }
        table = pa.table(dict(zip(self.domain.feature_names, self.rados.T, strict=True)))
        table = table.replace_schema_metadata({_KEY: json.dumps(header, allow_nan=False).encode()})
        target = Path(path)
        temporary = target.with_name(f".{target.name}.new")
        try:
            pq.write_table(table, temporary, compression="zstd")
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: str | Path, domain: Domain | None = None) -> RadoSet:
        """Read a file; with ``domain``, refuse rados of another one. Nothing but the file is needed."""
        try:
            table = pq.read_table(path)
        except FileNotFoundError as error:
            raise UsageError(f"{path}: no such file") from error
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{path}: is not a readable Parquet file ({str(error).splitlines()[0]})") from error
        header = _header(table, str(path))
        own = parse(Domain, header["domain"], f"{path}: domain")
        # Over the stored text: a later version's Domain may have keys that this file's writer did not know.
        stated, found = header["domain_sha256"], canonical_digest(header["domain"])
        if found != stated:
            raise DataError(f"{path}: its domain has the hash {found[:16]}…, not {str(stated)[:16]}… as it states")
        if domain is not None and domain.digest() != own.digest():
            raise UsageError(
                f"{path}: rados of another domain (sha256 {stated[:16]}…, wanted {domain.digest()[:16]}…)"
            )
        if tuple(table.column_names) != own.feature_names:
            raise DataError(f"{path}: columns are not its domain's features in order")
        wrong = [f.name for f in table.schema if not pa.types.is_floating(f.type)]
        if wrong or any(column.null_count for column in table.columns):
            raise DataError(f"{path}: column {(wrong or ['?'])[0]!r} must hold numbers without nulls")
        rados = np.column_stack([column.to_numpy() for column in table.columns])
        return cls(
            str(header["kind"]),
            own,
            np.ascontiguousarray(rados, dtype=np.float64),
            tuple(float(std) for std in header["noise_std"]),
            parse(PrivacyStatement, header["statement"], f"{path}: statement"),
            header["rows"],
            dict(header["facts"]),
        )


def _header(table: pa.Table, where: str) -> dict[str, Any]:
    raw = (table.schema.metadata or {}).get(_KEY)
    try:
        header = json.loads(raw) if raw is not None else None
    except ValueError:
        header = None
    if not isinstance(header, dict) or header.get("schema") != SCHEMA:
        raise UsageError(f"{where}: is not a rado file (its metadata has no {SCHEMA!r})")
    missing = [key for key in _KEYS if key not in header]
    if missing:
        raise UsageError(f"{where}: metadata key {missing[0]!r} is missing")
    return header


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
