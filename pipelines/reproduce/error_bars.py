"""How often the error bars of learner moments hold the truth: lakes drawn from a population whose weights are known.

python pipelines/reproduce/error_bars.py --runs 1000
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from daskrado.lake.make import make_lake
from daskrado.learners.on_release.identified import Identified
from daskrado.learners.on_release.moment_errors import NoisyMoments, error_bars
from daskrado.privacy.accountant import gaussian_mu
from daskrado.table.domain import Domain
from daskrado.table.encoding import encode_table
from daskrado.table.lattice import row_norms


def population(rows: int, seed: int) -> tuple[Domain, np.ndarray]:
    """Encoded patients in the unit ball."""
    with tempfile.TemporaryDirectory() as folder:
        lake = Path(folder) / "clinic"
        domain = Domain.load(make_lake(lake, rows=rows, features=12, partitions=1, seed=seed))
        encoded = encode_table(domain, pq.read_table(lake), label=False)
        x = encoded.block(0, encoded.length, np.empty((encoded.length, domain.width), order="F"))
    x /= np.maximum(row_norms(x), domain.norm_bound)[:, None]
    return domain, np.ascontiguousarray(x)


def identified(domain: Domain, moments: NoisyMoments) -> Identified:
    return Identified.of(domain, np.diag(moments.second), moments.seen)


def truth(domain: Domain, x: np.ndarray, yes: np.ndarray) -> np.ndarray:
    """The weights of the population, one-hot columns against their mean."""
    moments = NoisyMoments(x.T @ (2 * yes - 1), x.T @ x, 0.0, 0.0)
    space = identified(domain, moments)
    inner = space.basis.T @ moments.second @ space.basis
    return space.centre @ space.basis @ np.linalg.solve(inner, space.basis.T @ moments.mean) / domain.norm_bound


def coverage(domain: Domain, x: np.ndarray, yes: np.ndarray, rows: int, epsilon: float, runs: int) -> dict[str, Any]:
    """Mean and worst coverage over the weights that had intervals in at least half of the runs."""
    random, target = np.random.default_rng(18), truth(domain, x, yes)
    sigma = math.sqrt(2) / gaussian_mu(epsilon, 1e-6)
    held = np.full((runs, domain.width), np.nan)
    for run in range(runs):
        chosen = random.integers(len(x), size=rows)
        part = x[chosen]
        labels = np.where(random.random(rows) < yes[chosen], 1.0, -1.0)
        noise = np.triu(random.normal(size=(domain.width, domain.width))) * sigma
        second = part.T @ part + noise + np.triu(noise, 1).T
        moments = NoisyMoments(part.T @ labels + sigma * random.normal(size=domain.width), second, sigma, sigma)
        bars = error_bars(domain, moments, identified(domain, moments))
        held[run] = np.where(np.isnan(bars.low), np.nan, (bars.low <= target) & (target <= bars.high))
    told = held[:, (~np.isnan(held)).mean(axis=0) >= 0.5]
    found = np.nanmean(told, axis=0) if told.size else np.array([math.nan])
    return {"weights": told.shape[1], "mean": float(found.mean()), "worst": float(found.min())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--patients", type=int, default=1_000_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    domain, x = population(options.patients, seed=3)
    lift = x @ np.random.default_rng(1).normal(size=domain.width) * 4
    lift -= lift.mean()
    results = []
    for shift in (0.0, -2.0):
        yes = 1 / (1 + np.exp(-(lift + shift)))
        for rows, epsilon in ((20_000, 10.0), (60_000, 1.0), (200_000, 0.3)):
            case = {"positive": float(yes.mean()), "rows": rows, "epsilon": epsilon}
            results.append(case | coverage(domain, x, yes, rows, epsilon, options.runs))
            if not options.json:
                row = "| {positive:.2f} | {rows:,} | {epsilon:g} | {weights} | {mean:.3f} | {worst:.3f} |"
                print(row.format(**results[-1]), flush=True)
    if options.json:
        print(json.dumps({"runs": options.runs, "features": domain.width, "results": results}))


if __name__ == "__main__":
    main()
