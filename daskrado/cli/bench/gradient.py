"""The measurement behind ``daskrado bench gradient``: passes over compact rows, and a whole private fit."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from daskrado.cli.bench.collect import FILE_ROWS, cpu_seconds, peak_memory_mb, wall_and_cpu
from daskrado.errors import UsageError
from daskrado.lake.collect import CHUNK_ROWS, open_passes
from daskrado.lake.row_store import row_bytes
from daskrado.lake.scan import Lake, open_lake
from daskrado.learners.on_passes.gradient import PrivateGradient
from daskrado.learners.on_passes.iterative import Session
from daskrado.learners.on_passes.schedule import STEPS
from daskrado.losses.margin import Huber
from daskrado.privacy.perturbation import PublicFacts
from daskrado.privacy.relations import Relation
from daskrado.statistics import Rows
from daskrado.statistics.slopes import SlopeSum
from daskrado.table.compact_encoding import CompactTable
from daskrado.table.domain import Domain
from daskrado.table.encoding import encode_table, needed_columns
from daskrado.table.inner_loops import REPAID_CELLS, compile_loops
from daskrado.table.lattice import Lattice
from daskrado.table.yaml_file import parse

BINS = 25
EPSILON, DELTA = 1.0, 1e-6
_DENSE_ROWS = 4 * CHUNK_ROWS  # that are compared in both forms


def gradient_figures(rows: int, columns: int, steps: int | None = None) -> dict[str, float | int]:
    """A pass against the same one on dense rows; a fit from Parquet against scikit-learn on sparse rows in memory."""
    try:
        from sklearn.linear_model import LogisticRegression
    except ImportError as error:
        raise UsageError("bench gradient compares with scikit-learn: install scikit-learn") from error
    with binned_lake(rows, columns) as (path, domain):
        lake = open_lake(path, domain)
        learner, facts = PrivateGradient(steps=steps or STEPS), public_facts(lake, domain)
        compile_first(columns)
        seconds, ours = wall_and_cpu(partial(fit, lake, domain, learner, facts))
        count, peak = learner.schedule(facts).count, peak_memory_mb()
        peer = LogisticRegression(C=1.0, fit_intercept=False, max_iter=1000)
        sklearn_seconds, theirs = wall_and_cpu(partial(peer.fit, *_sparse(lake, domain)))
        dense = 8 * domain.width + 1
        return {
            "rows": rows,
            "columns": columns,
            "features": domain.width,
            "pass_ratio_to_dense": round(_pass_ratio(lake, domain), 4),
            "bytes_per_row": (kept := row_bytes(domain, seeded=False, grouped=False)),
            "bytes_ratio_to_dense": round(kept / dense, 5),
            "steps": count,
            "steps_per_second": round(count / seconds, 1),
            "steps_per_cpu_second": round(count / ours, 1),
            "seconds": round(seconds, 3),
            "cpu_seconds": round(ours, 3),
            "peak_mb": round(peak, 1),
            "sklearn_seconds": round(sklearn_seconds, 3),
            "sklearn_cpu_seconds": round(theirs, 3),
            "sklearn_iterations": int(peer.n_iter_[0]),
            "fit_ratio_to_sklearn": round(ours / theirs, 3),
        }


@contextmanager
def binned_lake(rows: int, columns: int) -> Iterator[tuple[Path, Domain]]:
    """A temporary lake of uniform numbers that the Domain cuts into bins; a few bins decide on the label."""
    edges = [float(edge) for edge in np.linspace(0, 1, BINS + 1)[1:-1]]
    content = {
        "label": {"column": "y", "positive": True, "negative": False},
        "norm_bound": float(np.sqrt(columns + 1)),
        "columns": {f"x{i:02d}": {"kind": "numeric", "lower": 0, "upper": 1, "bins": edges} for i in range(columns)},
    }
    with tempfile.TemporaryDirectory(prefix="daskrado-bench-") as folder:
        for number, start in enumerate(range(0, rows, FILE_ROWS)):
            draw = np.random.Generator(np.random.Philox(key=[13, number]))
            x = draw.random((columns, min(FILE_ROWS, rows - start)))
            score = np.sin(6 * x).sum(axis=0) + draw.logistic(size=x.shape[1])
            table = {f"x{i:02d}": column for i, column in enumerate(x)} | {"y": score > 0}
            pq.write_table(pa.table(table), Path(folder) / f"part-{number:05d}.parquet")
        yield Path(folder), parse(Domain, content, "bench")


def public_facts(lake: Lake, domain: Domain) -> PublicFacts:
    """What the learner's rule knows."""
    return PublicFacts(lake.rows, domain.width, domain.norm_bound, Relation.REPLACE_ONE, EPSILON, DELTA)


def fit(lake: Lake, domain: Domain, learner: PrivateGradient, facts: PublicFacts) -> Any:
    """All steps of the learner in this process, reading included."""
    with open_passes(lake, domain, Lattice(domain.norm_bound, learner.default_bits)) as passes:
        return learner.learn(Session(passes, lambda: None), facts).weights


def compile_first(columns: int) -> None:
    """One step on a small lake: what is imported, and compiled once per machine."""
    with binned_lake(2 * REPAID_CELLS // (BINS * columns), columns) as (path, domain):
        lake = open_lake(path, domain)
        fit(lake, domain, PrivateGradient(steps=1), public_facts(lake, domain))


def _pass_ratio(lake: Lake, domain: Domain) -> float:
    """CPU seconds of one pass of slopes over compact rows, over those of the same pass on dense rows by BLAS."""
    compile_loops()
    lattice = Lattice(domain.norm_bound)
    _, table = next(lake.partitions[0].tables(needed_columns(domain)))
    encoded = encode_table(domain, table)
    assert encoded.labels is not None
    size = min(encoded.length, _DENSE_ROWS)
    whole = Rows(CompactTable(encoded).block(0, size, lattice), encoded.labels[:size])
    starts = range(0, size, CHUNK_ROWS)
    weights = np.random.Generator(np.random.Philox(key=[17, 0])).normal(size=domain.width)
    statistic = SlopeSum.at(weights, Huber(), lattice)
    compact = cpu_seconds(statistic.partial, [whole.take(slice(i, i + CHUNK_ROWS)) for i in starts], 10)
    by_blas = partial(_dense_slopes, statistic)
    return compact / cpu_seconds(by_blas, [whole.dense(i, i + CHUNK_ROWS) for i in starts], 3)


def _dense_slopes(statistic: SlopeSum, rows: Rows) -> Any:
    """The same sums by two products of a dense matrix and a vector, as they were before rows were compact."""
    assert isinstance(rows.features, np.ndarray)
    y = rows.y.astype(np.float64)
    margins = y * (rows.features @ np.array(statistic.weights, dtype=np.float64))
    slopes = statistic.loss.slope(np.ldexp(margins, -statistic.weight_bits - statistic.row_bits))
    return (np.trunc(slopes * 2.0**16) * y) @ rows.features


def _sparse(lake: Lake, domain: Domain) -> tuple[Any, np.ndarray]:
    """The whole lake as one-hot rows of ones in a sparse matrix, for the peer."""
    from scipy.sparse import csr_matrix

    indices, labels = [], []
    for partition in lake.partitions:
        for _, table in partition.tables(needed_columns(domain)):
            encoded = encode_table(domain, table)
            assert encoded.labels is not None
            places = [BINS * i + encoded.values[name] for i, name in enumerate(domain.columns)]
            indices.append(np.stack([*places, np.full(encoded.length, domain.width - 1)], axis=1).astype(np.int32))
            labels.append(encoded.labels)
    flat = np.concatenate(indices)
    starts = np.arange(len(flat) + 1) * flat.shape[1]
    matrix = csr_matrix((np.ones(flat.size), flat.ravel(), starts), shape=(len(flat), domain.width))
    return matrix, np.concatenate(labels)
