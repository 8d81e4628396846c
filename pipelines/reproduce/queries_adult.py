"""Counting queries on Adult: private multiplicative weights beside plain noise on each answer, at the same budget.

Random marginals of three columns of a declared universe; errors in rows against the true counts, 45,222 rows, one
record replaced, delta = 1e-6, mean over several engines, each with its own questions. Plain noise is composed
optimally over the number of queries (Laplace) or in zCDP (Gaussian); "cells" is Laplace noise on every cell of the
universe once, summed for each query.

python pipelines/reproduce/queries_adult.py [--epsilon E] [--updates T] [--counts 1000,10000] [--runs 5] [--large]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from daskrado.engines.queries import PrivateQueries
from daskrado.engines.sparse_vector import largest_fraction
from daskrado.jobs.queries import QueriesJob, open_queries
from daskrado.privacy.accountant import PureEvent, affordable, exact_epsilon, zcdp_rho
from daskrado.privacy.noise import discrete_gaussian, discrete_laplace
from daskrado.statistics.universe import Universe
from daskrado.table.domain import Domain
from daskrado.table.yaml_file import parse

DELTA = 1e-6
ROOM = 5  # of a limit for one release: its rule keeps parts for events of other kinds and under other relations
NAMES = ["age", "workclass", "fnlwgt", "education", "education_num", "marital", "occupation", "relationship", "race"]
NAMES += ["sex", "gain", "loss", "hours", "country", "income"]
SMALL = ("age", "workclass", "education", "relationship", "sex", "income")  # 16,128 cells
LARGE = ("age", "hours", "workclass", "education", "relationship", "marital", "race", "sex", "income")  # 1,128,960
BINS = {"age": [25, 35, 45, 55, 65], "hours": [40]}


def adult(folder: Path) -> pd.DataFrame:
    parts = [
        pd.read_csv(
            folder / name, names=NAMES, skipinitialspace=True, na_values="?", skiprows=int(name.endswith("test"))
        )
        for name in ("adult.data", "adult.test")
    ]
    frame = pd.concat(parts).dropna()
    frame["income"] = frame["income"].str.rstrip(".")
    return frame[list(LARGE)].reset_index(drop=True)


def domain_of(frame: pd.DataFrame) -> Domain:
    """The published codebook of Adult: its categories are public."""
    columns: dict[str, object] = {
        "age": {"kind": "numeric", "lower": 17, "upper": 90, "bins": BINS["age"]},
        "hours": {"kind": "numeric", "lower": 1, "upper": 99, "bins": BINS["hours"]},
    }
    for name in LARGE[2:-1]:
        columns[name] = {"kind": "categorical", "values": sorted(frame[name].unique()), "other": False}
    label = {"column": "income", "positive": ">50K", "negative": "<=50K"}
    return parse(Domain, {"label": label, "columns": columns, "norm_bound": 4.0}, "adult")


def random_queries(engine: PrivateQueries, count: int, seed: int) -> list[dict[str, list[str]]]:
    generator = np.random.default_rng(seed)
    axes = engine.calibration.plan.universe.axes
    found = []
    for _ in range(count):
        chosen = [axes[i] for i in generator.choice(len(axes), 3, replace=False)]
        found.append({axis.name: [axis.values[generator.integers(len(axis.values))]] for axis in chosen})
    return found


def summary(errors: np.ndarray) -> dict[str, float]:
    return {
        "mean": round(float(errors.mean()), 1),
        "median": round(float(np.median(errors)), 1),
        "max": round(float(errors.max()), 1),
    }


def measure(
    frame: pd.DataFrame, columns: tuple[str, ...], epsilon: float, updates: int, count: int, seed: int
) -> dict[str, Any]:
    domain = domain_of(frame)
    with tempfile.TemporaryDirectory() as folder:
        job = parse(
            QueriesJob,
            {
                "dataset": "adult",
                "lake": frame,
                "domain": domain,
                "output": folder,
                "protect": {"relation": "replace_one", "unit": "one person"},
                "budget": {"epsilon": epsilon, "delta": DELTA},
                "ledger": {
                    "path": f"{folder}/ledger.sqlite",
                    "first_limit": {"epsilon": ROOM * epsilon, "delta": DELTA},
                },
                "universe": columns,
                "updates": updates,
                "expected": count,
            },
            "adult",
        )
        start = time.perf_counter()
        with open_queries(job) as engine:
            queries = random_queries(engine, count, seed)
            universe = engine.calibration.plan.universe
            cells = np.ravel_multi_index(codes(frame, universe), universe.shape)
            true = np.bincount(cells, minlength=universe.size).reshape(universe.shape)
            chosen = [universe.cells(query) for query in queries]
            truth = np.array([int(true[at].sum()) for at in chosen], dtype=np.int64)
            answers = np.array([(engine.estimate if engine.halted else engine.ask)(query).count for query in queries])
            seconds = time.perf_counter() - start
            facts = {
                "updates_used": engine.updates,
                "threshold": engine.calibration.threshold,
                "cells": universe.size,
            }
    one = largest_fraction(lambda e: affordable([PureEvent(e)] * count, epsilon, DELTA), exact_epsilon(epsilon))
    sigma = float(np.sqrt(count / (2 * zcdp_rho(epsilon, DELTA))))
    noisy_cells = discrete_laplace(true.astype(np.int64), 2 / epsilon)
    plain = {
        "laplace each": discrete_laplace(truth, float(1 / one)),
        "gaussian each": discrete_gaussian(truth, sigma),
        "cells": np.array([noisy_cells[at].sum() for at in chosen]),
    }
    errors = {name: summary(np.abs(np.clip(v, 0, len(frame)) - truth)) for name, v in plain.items()}
    errors["multiplicative weights"] = summary(np.abs(answers - truth))
    errors["answer 0"] = summary(truth.astype(float))
    return {"queries": count, "epsilon": epsilon, "errors": errors, "seconds": round(seconds, 1), **facts}


def codes(frame: pd.DataFrame, universe: Universe) -> list[np.ndarray]:
    return [
        np.digitize(frame[axis.name], BINS[axis.name])
        if axis.name in BINS
        else pd.Categorical(frame[axis.name], list(axis.values)).codes.astype(int)
        for axis in universe.axes
    ]


def averaged(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean of every figure over the runs, and the standard deviation of the mean errors."""
    names = runs[0]["errors"]
    errors = {
        name: {
            **{key: round(float(np.mean([run["errors"][name][key] for run in runs])), 1) for key in names[name]},
            "std_of_mean": round(float(np.std([run["errors"][name]["mean"] for run in runs], ddof=1)), 1),
        }
        for name in names
    }
    used = [run["updates_used"] for run in runs]
    return {**runs[0], "errors": errors, "updates_used": used, "seconds": sum(run["seconds"] for run in runs)}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--json", action="store_true", help="the default: one JSON object on stdout")
    options.add_argument("--epsilon", type=float, default=1.0)
    options.add_argument("--updates", type=int, default=100)
    options.add_argument("--counts", default="1000,10000")
    options.add_argument("--large", action="store_true", help="nine columns instead of six")
    options.add_argument("--runs", type=int, default=5, help="engines for each setting, at least 2")
    chosen = options.parse_args()
    data = Path(os.environ.get("DASKRADO_DATA", Path(__file__).parents[3] / "shared" / "data"))
    frame = adult(data / "adult")
    found = []
    for count in map(int, chosen.counts.split(",")):
        columns = LARGE if chosen.large else SMALL
        runs = [measure(frame, columns, chosen.epsilon, chosen.updates, count, seed) for seed in range(chosen.runs)]
        found.append(averaged(runs))
        print(json.dumps(found[-1]), file=sys.stderr)
    print(json.dumps({"rows": len(frame), "results": found}))


if __name__ == "__main__":
    main()
