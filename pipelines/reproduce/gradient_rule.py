"""How the constants of the public rules were chosen, on every table but Adult: norms, bin edges, smoothing.

python pipelines/reproduce/gradient_rule.py --json [--descent | --bins | --smooth | --heaps] [--tables kdd_bins,...]

For each table, epsilon and value of the constant: mean test error, and how far that is above the best value's.
GOOD_NORM is the value with the least mean excess over learners that minimise. Adult is left out.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import pandas as pd
from dp_erm import errors, folds, say
from public_bins import COARSE, FINE, amount, by_rule, equal
from tables import LOADERS, public_domain

from daskrado.learners.on_passes import erm, preconditioner, schedule
from daskrado.learners.on_passes.erm import ObjectivePerturbation, OutputPerturbation
from daskrado.learners.on_passes.gradient import PrivateGradient
from daskrado.learners.on_passes.iterative import IterativeLearner, Session
from daskrado.losses.margin import Huber
from daskrado.privacy.perturbation import PublicFacts
from daskrado.privacy.relations import Relation
from daskrado.statistics.slopes import SECRET_ROW_BITS
from daskrado.table.domain import Domain

NORMS = (8.0, 16.0, 32.0, 64.0)
DESCENTS: dict[str, dict[str, float]] = {
    "as it is": {},
    "a tenth for moments": {"MOMENTS_SHARE": 0.1},
    "a fiftieth for moments": {"MOMENTS_SHARE": 0.02},
    "huber from 0.001 on": {"HUBER_NOISE": 0.001},
    "huber from 0.005 on": {"HUBER_NOISE": 0.005},
    "corner 1/2": {"CORNER": 0.5},
    "indicators half as large": {"USUAL_INDICATORS": 2.0, "LEAST_WEIGHT": 1.0},
    "indicators twice as large": {"USUAL_INDICATORS": 8.0, "LEAST_WEIGHT": 4.0},
    "numbers half as large": {"USUAL_NUMBERS": 2.2},
    "numbers twice as large": {"USUAL_NUMBERS": 8.8},
}
EPSILONS = (0.1, 0.3, 1.0, 3.0)
TABLES = ("magic", "magic_bins", "covertype", "covertype_bins", "kdd", "diabetes130_long", "synthetic")
GRADIENT = PrivateGradient()
LEARNERS: dict[str, tuple[IterativeLearner, float]] = {
    "objective": (ObjectivePerturbation(Huber(0.5)), 0.0),
    "output": (OutputPerturbation(Huber(0.5)), 0.0),
}
FOLLOWED = {"shared only": (1.0, np.inf)} | {
    f"{shared:g} shared, alone from {alone:g} on": (shared, alone)
    for shared, alone in ((0.5, 1.5), (0.7, 1.0), (0.7, 1.5), (0.7, 2.0), (1.0, 1.5))
}
SHARES = {"not smoothed": None, "5": 5, "10": 10, "20": 20}
HEAPED = ("magic_bins", "covertype_bins", "diabetes130_long", "kdd_bins", "heaps")
BINNED = ("magic_bins", "covertype_bins", "diabetes130_long", "kdd_bins")
BINS = {
    "10, R5": (10, COARSE[1][::2]),
    "20, 1-2-5": (20, (1.0, 2.0, 5.0)),
    "20, R10": COARSE,
    "40, R20": FINE,
}


def synthetic(rows: int) -> tuple[pd.DataFrame, Domain]:
    """Twelve columns of nine categories of uneven frequency, and labels of a logistic model in them."""
    draw = np.random.default_rng(1)
    table, margin = pd.DataFrame(), np.full(rows, -1.5)
    for column in range(12):
        chosen = draw.choice(9, rows, p=draw.dirichlet(np.full(9, 0.7)))
        margin += 0.6 * draw.normal(size=9)[chosen]
        table[f"c{column:02d}"] = chosen
    table["label"] = np.where(draw.random(rows) < 1 / (1 + np.exp(-margin)), "yes", "no")
    columns = {name: {"kind": "categorical", "values": list(range(9)), "other": False} for name in table.columns[:-1]}
    label = {"column": "label", "positive": "yes", "negative": "no"}
    return table, Domain.model_validate({"label": label, "norm_bound": 1.0, "intercept": 0.0, "columns": columns})


def heaps(rows: int) -> tuple[pd.DataFrame, Domain]:
    """Three amounts, most of them 0 and the others at one of 60 values of uneven frequency; five smooth columns."""
    draw = np.random.default_rng(5)
    table, margin = pd.DataFrame(), np.full(rows, -1.0)
    columns = {}
    for number in range(3):
        values, effects, often = 10 ** draw.uniform(2.5, 4.9, 60), 2.5 * draw.normal(size=60), 1 / np.arange(1, 61)
        some, which = draw.random(rows) < 0.12, draw.choice(60, rows, p=often / often.sum())
        margin += np.where(some, effects[which], 0)
        table[f"amount{number}"] = np.where(some, values[which], 0)
        columns[f"amount{number}"] = amount(100_000)
    for number in range(5):
        value = draw.random(rows)
        margin += 2 * draw.normal() * (value - 0.5) + draw.normal() * np.sin(5 * value)
        table[f"smooth{number}"] = value
        columns[f"smooth{number}"] = equal(0, 1)
    table["label"] = np.where(draw.random(rows) < 1 / (1 + np.exp(-margin)), "yes", "no")
    label = {"column": "label", "positive": "yes", "negative": "no"}
    known = {
        name: {"kind": "numeric", "lower": 0, "upper": column.upper, "bins": column.edges(*FINE)}
        for name, column in columns.items()
    }
    return table, Domain.model_validate({"label": label, "norm_bound": 1.0, "intercept": 0.0, "columns": known})


def load(name: str, rows: int, bins: tuple[int, tuple[float, ...]] = COARSE) -> tuple[pd.DataFrame, Domain]:
    """A table of at most so many rows, sampled in public, and its Domain."""
    if name in ("synthetic", "heaps"):
        return synthetic(rows) if name == "synthetic" else heaps(rows)
    base = name.split("_")[0]
    table, categories = LOADERS[base]()
    if name.endswith("_long"):
        # Almost nobody is readmitted soon, whatever is known: a stay above four days can be told.
        table["label"] = np.where(table.pop("time_in_hospital") > 4, "soon", "not")
    domain = public_domain(base, table, categories, edges=None if base == name else by_rule(base, *bins))
    return table.sample(min(rows, len(table)), random_state=0).reset_index(drop=True), domain


def measure(
    table: pd.DataFrame, domain: Domain, who: tuple[IterativeLearner, float], norm: float, runs: int
) -> list[float]:
    """Mean test error at each epsilon."""
    learner, delta = who
    erm.GOOD_NORM = norm
    train, test, rows = next(folds(table, domain, 1, of=5, bits=SECRET_ROW_BITS))
    found = []
    for epsilon in EPSILONS:
        facts = PublicFacts(rows, domain.width, domain.norm_bound, Relation.ADD_REMOVE, epsilon, delta)
        models = [learner.learn(Session(train, lambda: None), facts).weights for _ in range(runs)]
        found.append(round(float(errors(test, models).mean()), 4))
    return found


def excess(tables: dict[str, dict[str, list[float]]]) -> dict[str, float]:
    """For each choice, the mean over tables and epsilons of its error above the best choice's."""
    above = {
        name: np.array(list(rows.values())) - np.min(list(rows.values()), axis=0) for name, rows in tables.items()
    }
    choices = list(next(iter(tables.values())))
    return {choice: round(float(np.mean([a[i] for a in above.values()])), 5) for i, choice in enumerate(choices)}


Measured = Iterator[tuple[str, str, str, list[float]]]  # comparison or learner, table, choice, errors


def names(options: argparse.Namespace, usual: tuple[str, ...]) -> tuple[str, ...]:
    """The tables that were asked for, or those that a comparison was made on."""
    return usual if options.tables is None else tuple(options.tables.split(","))


def by_gradient(
    made: tuple[pd.DataFrame, Domain], options: argparse.Namespace, learner: PrivateGradient = GRADIENT
) -> list[float]:
    """The noisy gradient."""
    return measure(*made, (learner, 1e-6), erm.GOOD_NORM, options.runs)


def descents(options: argparse.Namespace) -> Measured:
    """The constants of the schedule, one at a time."""
    usual = {key: getattr(schedule, key) for changed in DESCENTS.values() for key in changed}
    for name in names(options, TABLES):
        made = load(name, options.rows)
        for text, changed in DESCENTS.items():
            for key, value in (usual | changed).items():
                setattr(schedule, key, value)
            yield "descent", name, text, by_gradient(made, options)


def bins(options: argparse.Namespace) -> Measured:
    """Edges of bins."""
    for name in names(options, BINNED[:3]):
        for rule, edges in BINS.items():
            yield "bins", name, rule, by_gradient(load(name, options.rows, edges), options)


def smooth(options: argparse.Namespace) -> Measured:
    """How far bins learn from each other."""
    for name in names(options, BINNED):
        made = load(name, options.rows)
        for text, share in SHARES.items():
            preconditioner.SHARE = share or 1
            learner = PrivateGradient(smooth=share is not None)
            yield "smooth", name, text, by_gradient(made, options, learner)


def heaped(options: argparse.Namespace) -> Measured:
    """When bins go their own way."""
    for name in names(options, HEAPED):
        made = load(name, options.rows, FINE)
        for text, (preconditioner.NEIGHBOUR_SHARE, preconditioner.OWN_DEVIATIONS) in FOLLOWED.items():
            yield "heaps", name, text, by_gradient(made, options)


def norms(options: argparse.Namespace) -> Measured:
    """Norms, for every learner."""
    for name in names(options, TABLES):
        made = load(name, options.rows)
        for who in options.learners.split(","):
            for norm in NORMS:
                yield who, name, f"{norm:g}", measure(*made, LEARNERS[who], norm, options.runs)


COMPARISONS = {"descent": descents, "bins": bins, "smooth": smooth, "heaps": heaped}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--descent", action="store_true", help="compare constants of the schedule")
    parser.add_argument("--bins", action="store_true", help="compare bin edges in place of norms")
    parser.add_argument("--smooth", action="store_true", help="compare how far bins learn from each other")
    parser.add_argument("--heaps", action="store_true", help="compare when bins go their own way")
    parser.add_argument("--tables", help="names with commas; else those that each comparison was made on")
    parser.add_argument("--learners", default=",".join(LEARNERS))
    parser.add_argument("--rows", type=int, default=25_000)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    kept: dict[str, dict[str, dict[str, list[float]]]] = {}
    compared = next((measured for flag, measured in COMPARISONS.items() if getattr(options, flag)), norms)
    for group, name, choice, row in compared(options):
        kept.setdefault(group, {}).setdefault(name, {})[choice] = row
        say(f"{name} {group} {choice}: {row}")
    result = {
        "epsilons": EPSILONS,
        "mean_excess": {who: excess(tables) for who, tables in kept.items()},
        "mean_test_error": kept,
    }
    print(json.dumps(result) if options.json else json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
