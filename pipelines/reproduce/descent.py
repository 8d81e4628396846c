"""The noisy gradient over budgets: error and log-loss on held-out rows, beside scikit-learn on the same encoding.

python pipelines/reproduce/descent.py --json [--tables magic,magic_bins,...] [--draws 5] [--relation replace_one]

For each table and epsilon: means over draws with their standard errors, seconds of one fit, the rise of log-loss from
the epsilon before with the standard error of that difference, and how far the largest epsilon (50, the largest that
is taken) is from scikit-learn on the rows as they were encoded in the last draw. A rise of more than three standard
errors, on held-out or on training rows, is listed under ``rises``. With --placed, Domains have an intercept and
bounds that an owner can write down, so that plain numbers are placed in private; package_tables.py has more tables
for it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import pandas as pd
from dp_erm import folds, say
from forecast import table_of as placed_table
from newton import table_of
from peers import rows_of

from daskrado.learners.on_passes.gradient import PrivateGradient
from daskrado.learners.on_passes.iterative import Session
from daskrado.privacy.perturbation import PublicFacts
from daskrado.privacy.relations import Relation
from daskrado.statistics.slopes import SECRET_ROW_BITS
from daskrado.table.columns import plain_numbers
from daskrado.table.domain import Domain

EPSILONS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 50.0)
TABLES = (
    *("magic", "magic_bins", "eeg", "eeg_bins", "covertype", "covertype_bins", "kdd", "diabetes130"),
    *("diabetes130_long", "synthetic", "heaps", "adult", "adult_bins"),
)


class Rows:
    """Rows times their labels, as a Domain scales them: encoded once for each Domain."""

    def __init__(self, table: pd.DataFrame) -> None:
        self.table, self._of, self._rows = table, "", np.empty((0, 0))

    def under(self, domain: Domain) -> np.ndarray:
        if self._of != domain.digest():
            x, y = rows_of(self.table, domain)
            self._of, self._rows = domain.digest(), x * np.where(y > 0, 1.0, -1.0)[:, None]
        return self._rows


def scores(rows: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
    """Error and log-loss, of rows times their labels."""
    margins = rows @ weights
    return float((margins <= 0).mean()), float(np.logaddexp(0, -margins).mean())


def reference(rows: np.ndarray, held: np.ndarray) -> tuple[float, float]:
    """scikit-learn's logistic regression with next to no penalty."""
    from sklearn.linear_model import LogisticRegression

    sides = np.where(np.arange(len(rows)) % 2, 1.0, -1.0)  # it wants both labels; y x goes with any of them
    model = LogisticRegression(C=100.0, fit_intercept=False, max_iter=2000).fit(rows * sides[:, None], sides)
    return scores(held, model.coef_[0])


def run(name: str, options: argparse.Namespace) -> dict[str, Any]:
    table, domain = placed_table(name, options.rows) if options.placed else table_of(name, options.rows)
    parts = np.array_split(np.random.default_rng(0).permutation(len(table)), 5)  # as folds cuts them
    train, _, rows = next(folds(table, domain, 1, of=5, bits=SECRET_ROW_BITS))
    inside, held = Rows(table.iloc[np.concatenate(parts[1:])]), Rows(table.iloc[parts[0]])
    numbers = len(plain_numbers(domain)) if domain.intercept else 0
    found: dict[str, Any] = {"rows": rows, "features": domain.width, "numbers": numbers}
    before: np.ndarray | None = None
    for epsilon in EPSILONS:
        known = (rows, domain.width, domain.norm_bound, Relation(options.relation), epsilon, 1e-6)
        facts, session = PublicFacts(*known, numbers=numbers), Session(train, lambda: None)
        start = time.process_time()
        models = [PrivateGradient().learn(session, facts) for _ in range(options.draws)]
        seconds = (time.process_time() - start) / options.draws
        each = [(one.weights, one.domain or domain) for one in models]
        now = np.array([(*scores(held.under(d), w), scores(inside.under(d), w)[1]) for w, d in each])
        spread = now.std(axis=0, ddof=1) / np.sqrt(len(now))
        cell = {"error": now[:, 0].mean(), "log_loss": now[:, 1].mean(), "se": spread[0], "se_log_loss": spread[1]}
        cell["training_log_loss"] = now[:, 2].mean()
        if before is not None:
            rise = now[:, 1:] - before[:, 1:]
            error = rise.std(axis=0, ddof=1) / np.sqrt(len(rise))
            cell |= {"rise": rise[:, 0].mean(), "se_rise": error[0]}
            if (rise.mean(axis=0) > 3 * error).any():
                found.setdefault("rises", []).append(epsilon)
        found[f"{epsilon:g}"] = {key: round(float(value), 4) for key, value in cell.items()} | {
            "cpu_seconds": round(seconds, 2)
        }
        before = now
        say(f"{name} epsilon {epsilon:g}: {found[f'{epsilon:g}']}")
    assert before is not None
    best = reference(inside.under(each[-1][1]), held.under(each[-1][1]))
    found["scikit_learn"] = np.round(best, 4).tolist()
    found["from_scikit_learn"] = np.round(before.mean(axis=0)[:2] - best, 4).tolist()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--placed", action="store_true", help="with an intercept, so that numbers are placed")
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--relation", choices=["add_remove", "replace_one"], default="add_remove")
    options = parser.parse_args()
    result = {name: run(name, options) for name in options.tables.split(",")}
    print(json.dumps(result) if options.json else json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
