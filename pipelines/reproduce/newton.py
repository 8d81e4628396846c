"""Noisy Newton beside the noisy gradient: is a private Hessian worth its budget?

python pipelines/reproduce/newton.py --json [--tables magic,covertype,...]

Each Newton step releases the gradient (sensitivity 1) and the upper triangle of the Hessian (sensitivity c, the
curvature constant of the loss, for rows of norm 1) under add/remove, as Gaussian sums within one zCDP budget.
Negative eigenvalues are set to 0 and ``damping`` times the spectral noise is added. Every setting is tried and Newton
is given its best in hindsight; the gradient runs once by its public rule. Draws are seeded: a study, not a release.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import pandas as pd
from dp_erm import errors, folds, say
from gradient_rule import load
from peers import rows_of
from public_bins import COARSE, by_rule
from tables import LOADERS, public_domain

from daskrado.learners.on_passes.gradient import PrivateGradient
from daskrado.learners.on_passes.iterative import Session
from daskrado.losses.margin import Huber, Logistic, Loss
from daskrado.privacy.accountant import zcdp_rho
from daskrado.privacy.perturbation import PublicFacts
from daskrado.privacy.relations import Relation
from daskrado.statistics.slopes import SECRET_ROW_BITS
from daskrado.table.domain import Domain

DELTA = 1e-6
LOSSES: dict[str, Loss] = {"logistic": Logistic(), "huber": Huber(0.5)}
STEPS, SHARES, DAMPING = (1, 2, 4, 8), (0.3, 0.6), (0.1, 0.3, 1.0)


def newton(
    x: np.ndarray, rho: float, loss: Loss, steps: int, share: float, damping: float, draw: np.random.Generator
) -> np.ndarray:
    """Weights after ``steps`` noisy Newton steps from 0, on rows already times their labels."""
    width = x.shape[1]
    assert loss.smoothness is not None
    first = 1 / math.sqrt(2 * rho * (1 - share) / steps)
    second = loss.smoothness / math.sqrt(2 * rho * share / steps)
    weights = np.zeros(width)
    for _ in range(steps):
        _, slopes, curvatures = loss.derivatives(x @ weights)
        gradient = slopes @ x + first * draw.normal(size=width)
        upper = np.triu(second * draw.normal(size=(width, width)))
        hessian = (x * curvatures[:, None]).T @ x + upper + np.triu(upper, 1).T
        values, basis = np.linalg.eigh(hessian)
        weights = weights - basis @ (
            (basis.T @ gradient) / (np.maximum(values, 0) + damping * second * math.sqrt(width))
        )
    return weights


def table_of(name: str, rows: int) -> tuple[pd.DataFrame, Domain]:
    """As for the rule; Adult only here, where nothing is chosen."""
    if name.startswith("adult"):
        table, categories = LOADERS["adult"]()
        edges = by_rule("adult", *COARSE) if name == "adult_bins" else None
        return table, public_domain("adult", table, categories, edges=edges)
    return load(name, rows)


def run(name: str, epsilons: list[float], options: argparse.Namespace) -> dict[str, Any]:
    table, domain = table_of(name, options.rows)
    parts = np.array_split(np.random.default_rng(0).permutation(len(table)), 10)
    x, y = rows_of(table.iloc[np.concatenate(parts[1:])], domain)
    x = x * np.where(y > 0, 1.0, -1.0)[:, None]
    train, test, rows = next(folds(table, domain, 1, bits=SECRET_ROW_BITS))
    found: dict[str, Any] = {"rows": rows, "features": domain.width}
    for epsilon in epsilons:
        facts = PublicFacts(rows, domain.width, 1.0, Relation.ADD_REMOVE, epsilon, DELTA)
        session = Session(train, lambda: None)
        plain = errors(test, [PrivateGradient().learn(session, facts).weights for _ in range(options.runs)]).mean()
        tried = {}
        for key in itertools.product(LOSSES, STEPS, SHARES, DAMPING):
            draw = np.random.default_rng(7)
            made = [newton(x, zcdp_rho(epsilon, DELTA), LOSSES[key[0]], *key[1:], draw) for _ in range(options.runs)]
            tried[key] = float(errors(test, made).mean())
        best = min(tried, key=lambda key: tried[key])
        one = min(value for key, value in tried.items() if key[1] == 1)
        found[f"{epsilon:g}"] = {
            "gradient": round(float(plain), 4),
            "newton_best": round(tried[best], 4),
            "newton_one_step": round(one, 4),
            "best_setting": dict(zip(("loss", "steps", "share", "damping"), best, strict=True)),
        }
        say(f"{name} epsilon {epsilon:g}: {found[f'{epsilon:g}']}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--tables", default="magic,covertype,diabetes130_long,adult_bins")
    parser.add_argument("--epsilons", default="0.1,1")
    parser.add_argument("--rows", type=int, default=25_000)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    epsilons = [float(text) for text in options.epsilons.split(",")]
    result = {name: run(name, epsilons, options) for name in options.tables.split(",")}
    print(json.dumps(result) if options.json else json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
