"""The measurement behind ``daskrado bench boost``: RadoBoost's rounds against the same rounds written naively."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
from numpy.typing import NDArray

from daskrado.cli.bench.collect import median_seconds, timed
from daskrado.learners import RadoBoost

Matrix = NDArray[np.float64]


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
