"""Against peers: a logistic fit against scikit-learn (``bench erm``), RadoBoost against NumPy (``bench boost``)."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskrado.cli.bench.collect import (
    bench_lake,
    local_workers,
    median_seconds,
    timed,
    wall_and_cpu,
    worker_peak_mb,
)
from daskrado.errors import UsageError
from daskrado.lake.collect import open_passes
from daskrado.lake.scan import Lake, open_lake
from daskrado.learners import RadoBoost
from daskrado.learners.on_passes.erm import FINE_BITS
from daskrado.learners.on_passes.solver import Objective, Solution, minimise
from daskrado.losses.margin import Logistic
from daskrado.table.domain import Domain
from daskrado.table.encoding import encode_table, needed_columns
from daskrado.table.lattice import Lattice

Matrix = NDArray[np.float64]
GRADIENT = 1e-8


def erm_figures(rows: int, features: int) -> dict[str, float | int]:
    """Our fit with reading, scikit-learn's on the same rows in memory, and the memory of a fit that keeps no rows.

    Seconds are of two workers; CPU seconds of a fit in this process, which other people's work changes less.
    """
    try:
        from sklearn.linear_model import LogisticRegression
    except ImportError as error:
        raise UsageError("bench erm compares with scikit-learn: install scikit-learn") from error
    with bench_lake(rows, features) as (path, domain):
        lake = open_lake(path, domain)
        with local_workers(2) as client:
            _fit(lake, domain, client, None)  # workers import what they need
            seconds, found = timed(partial(_fit, lake, domain, client, None))
        _fit(lake, domain, None, None)
        _, ours = wall_and_cpu(partial(_fit, lake, domain, None, None))
        with local_workers(2) as client:
            capped, peak = _fit(lake, domain, client, 0), worker_peak_mb(client)
        peer = LogisticRegression(C=1.0, fit_intercept=False, tol=GRADIENT, max_iter=1000)
        theirs, theirs_cpu = wall_and_cpu(partial(peer.fit, *_rows(lake, domain)))
        return {
            "rows": rows,
            "features": features,
            "seconds": round(seconds, 3),
            "passes": found.passes,
            "gradient": found.gradient,
            "sklearn_seconds": round(theirs, 3),
            "ratio_to_sklearn": round(seconds / theirs, 3),
            "cpu_seconds": round(ours, 3),
            "sklearn_cpu_seconds": round(theirs_cpu, 3),
            "cpu_ratio_to_sklearn": round(ours / theirs_cpu, 3),
            "largest_gap_to_sklearn": float(np.abs(found.weights - peer.coef_[0]).max()),
            "capped_passes": capped.passes,
            "capped_peak_mb": peak,
            "ratio_to_memory": round(peak * 1e6 / lake.size, 3),
        }


def _fit(lake: Lake, domain: Domain, client: Any, memory: int | None) -> Solution:
    """Minimise mean logistic loss + 1/(2 n) |w|^2, which is scikit-learn's objective at C = 1."""
    with open_passes(lake, domain, Lattice(domain.norm_bound, FINE_BITS), client=client, memory=memory) as passes:
        return minimise(Objective(Logistic(), 1.0 / lake.rows, lake.rows), passes, GRADIENT)


def _rows(lake: Lake, domain: Domain) -> tuple[np.ndarray, np.ndarray]:
    """The whole lake in memory, on the same grid, for the peer."""
    parts, lattice = [], Lattice(domain.norm_bound, FINE_BITS)
    for partition in lake.partitions:
        for _, table in partition.tables(needed_columns(domain)):
            encoded = encode_table(domain, table)
            assert encoded.labels is not None
            block = encoded.block(0, encoded.length, np.empty((encoded.length, domain.width), order="F"))
            parts.append((np.ascontiguousarray(lattice.quantise(block)) * lattice.step, encoded.labels))
    return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])


def boost_figures(rounds: int, rados: int, features: int) -> dict[str, float | int]:
    """Seconds of the product's boosting, and how many times longer the plain NumPy text of the algorithm takes."""
    draw = np.random.default_rng(5)
    matrix = draw.normal(size=(rados, features)) * draw.uniform(0.1, 10, features) + draw.normal(size=features)
    learner = RadoBoost(rounds=rounds, keep="last")
    seconds = median_seconds(lambda: learner.learn(matrix))
    naive_seconds, naive = timed(partial(naive_radoboost, matrix, rounds))
    fast, _ = learner.learn(matrix)
    return {
        "rounds": rounds,
        "rados": rados,
        "features": features,
        "seconds": round(seconds, 4),
        "naive_seconds": round(naive_seconds, 4),
        "ratio_to_numpy_naive": round(naive_seconds / seconds, 2),
        "largest_difference": float(np.abs(fast - naive).max() / np.abs(naive).max()),
    }


def naive_radoboost(rados: Matrix, rounds: int) -> Matrix:
    """Algorithm 1 as it is written, one statement for each of its steps, and weights renormalised against drift."""
    count, width = rados.shape
    weights, theta = np.full(count, 1.0 / count), np.zeros(width)
    for _ in range(rounds):
        edges = np.array([np.sum(weights * rados[:, k]) / np.max(np.abs(rados[:, k])) for k in range(width)])
        k = int(np.argmax(np.abs(edges)))
        largest, edge = np.max(np.abs(rados[:, k])), float(edges[k])
        theta[k] += math.log((1 + edge) / (1 - edge)) / (2 * largest)
        weights = weights * (1 - edge * rados[:, k] / largest) / (1 - edge**2)
        weights = weights / np.sum(weights)
    return theta
