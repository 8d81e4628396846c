"""Error bars of a noisy descent on the softmax loss: one Newton step for all classes together, as for two.

Adding one vector to the weights of all classes moves no probability, so what rows can tell apart are weights against
their mean over the classes: those are published, and those have intervals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.special import ndtri

from daskrado.learners.cell_margins import CellMargins, Matrix, Vector
from daskrado.learners.on_passes.descent_errors import Trace, identified, kept_by, moments_of, step_noise
from daskrado.learners.on_release.identified import Identified
from daskrado.learners.on_release.moment_errors import ABOUT, left_out, row_count, share_spread
from daskrado.models.error_bars import LEVEL, ErrorBars
from daskrado.table.domain import Domain

MOST_WEIGHTS = 2000  # of all classes together: their curvature is a matrix of so many rows
_NODES = 64  # at which probabilities are taken in each pair of categories


def softmax_bars(domain: Domain, traces: Sequence[Trace]) -> ErrorBars:
    """Intervals of the weights of all classes, against their mean over the classes, or why there are none.

    The curvature of classes k and l is the sum over rows of p_k ([k = l] - p_l) x x', which is also the spread of
    gradients for labels that softmax takes for likely. It follows from S and the margins of each pair of categories,
    taken as normal with the correlation that classes have over all rows.

    *Reference*: as ``descent_errors.descent_bars``.
    """
    kept = np.concatenate([kept_by(domain, trace) for trace in traces])
    none = replace(ErrorBars.none(kept.size, "no intervals: "), seen=kept)
    if kept.size > MOST_WEIGHTS:
        return replace(none, about=f"{none.about}there are more than {MOST_WEIGHTS:,} weights of all classes")
    first, classes = traces[0], len(traces)
    seen = np.any([trace.seen for trace in traces], axis=0)
    space = identified(domain, first, seen)
    if isinstance(space, str):
        return replace(none, about=none.about + space)
    rows = row_count(domain, first.second, space)
    curvature = _curvature(domain, traces, rows, space)
    apart = np.linalg.qr(np.column_stack([np.ones(classes), np.eye(classes)[:, 1:]]))[0][:, 1:]
    basis = np.kron(apart, space.basis)
    values, vectors = np.linalg.eigh(basis.T @ curvature @ basis)
    if not values.min() > 0:
        return replace(none, about=f"{none.about}noise hides the curvature of the loss")
    inverse = basis @ ((vectors / values) @ vectors.T) @ basis.T
    steps = (inverse @ np.concatenate([trace.gradient for trace in traces])).reshape(classes, -1)
    best = np.where(space.seen, [trace.point for trace in traces], 0.0) - steps
    best -= best.mean(axis=0)
    scale = float(values.sum() / ((classes - 1) * np.trace(space.basis.T @ first.second @ space.basis)))
    inside = first.clusters * curvature
    for k, step in enumerate(steps):
        own = slice(k * domain.width, (k + 1) * domain.width)
        inside[own, own] += step_noise(first, scale, step)
    map_ = np.kron(np.eye(classes), space.centre) @ inverse
    variance = np.einsum("ij,ij->i", map_ @ inside, map_)
    moments = moments_of(first)
    shares = [share_spread(domain, moments, one, rows, space) for one in best]
    reach = -float(ndtri((1 - LEVEL) / 2)) * np.sqrt(
        np.maximum(variance + first.clusters * np.concatenate(shares), 0)
    )
    centre, known = (
        (best @ space.centre.T).ravel(),
        np.tile(space.seen & ~left_out(domain, first.second, space), classes),
    )
    ends = [np.where(known, (centre + side * reach) / domain.norm_bound, math.nan) for side in (-1, 1)]
    return ErrorBars(ends[0], ends[1], kept, f"{ABOUT}; weights of a class stand against their mean over the classes")


def _curvature(domain: Domain, traces: Sequence[Trace], rows: float, space: Identified) -> Matrix:
    """Of all weights, class by class."""
    second, points = traces[0].second, np.array([trace.point for trace in traces])
    cells = [CellMargins.of(domain, second, point, rows, space.one) for point in points]
    pairs = [one.pairs() for one in cells]
    means, deviations = np.array([mean for mean, _ in pairs]), np.sqrt([variance for _, variance in pairs])
    classes, nodes = len(points), _nodes(points, second, rows, np.array([one.average for one in cells]))
    found = np.zeros((classes, classes, *second.shape))
    for node in nodes:
        scores = means + node[:, None, None] * deviations
        shares = np.exp(scores - scores.max(axis=0))
        shares /= shares.sum(axis=0)
        for k in range(classes):
            found[k] -= shares[k] * shares / len(nodes)
            found[k, k] += shares[k] / len(nodes)
    back = cells[0].back
    blocks = [[back @ (cells[0].second * one) @ back.T for one in row] for row in found]
    return np.block(blocks)


def _nodes(points: Matrix, second: Matrix, rows: float, averages: Vector) -> Matrix:
    """Normal margins of all classes in units of their deviations, in pairs of opposite ones; public and fixed."""
    joint = points @ second @ points.T / rows - np.outer(averages, averages)
    size = np.sqrt(np.maximum(np.diag(joint), 1e-300))
    values, vectors = np.linalg.eigh(np.clip(joint / np.outer(size, size), -1.0, 1.0))
    half = np.random.default_rng(0).normal(size=(max(_NODES, 4 * len(points)) // 2, len(points)))
    half /= np.sqrt(np.mean(half**2, axis=0))
    drawn = half @ (vectors * np.sqrt(np.maximum(values, 0.0))).T
    return np.concatenate([drawn, -drawn])
