"""Expected calibration error of published probabilities, on real tables: rows held out, noise and link as in any run.

Training rows are at most ``--rows``; a fifth of them is held out for the evaluation whose released counts the link is
fitted to. The error is counted on other rows, in 15 groups of equal size by probability.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from tables import LABELS, LOADERS, public_domain

import daskrado

GROUPS = 15


def calibration_error(probability: np.ndarray, truth: np.ndarray) -> float:
    """The mean distance of probability and share of positives, over groups of equal size."""
    groups = np.array_split(np.argsort(probability), GROUPS)
    return float(sum(abs(probability[g].mean() - truth[g].mean()) * len(g) for g in groups) / len(truth))


def published(name: str, train: pd.DataFrame, domain: dict[str, Any], learner: str, given: argparse.Namespace) -> Any:
    """One run: train on four fifths, evaluate on the rest."""
    keys = {
        "dataset": name,
        "lake": train.assign(row_id=np.arange(len(train))),
        "domain": {**domain, "id": "row_id"},
        "output": "out",
        "protect": {"relation": "add_remove", "unit": "one row"},
        "budget": {"epsilon": given.epsilon, "delta": 1e-6},
        "ledger": {"first_limit": {"epsilon": 50, "delta": 1e-4}},
        "learner": learner,
        "holdout": 0.2,
    }
    with tempfile.TemporaryDirectory() as folder:
        return daskrado.run(keys, write=False, ledger=Path(folder) / "ledger.sqlite").model


def measured(name: str, learner: str, given: argparse.Namespace) -> dict[str, Any]:
    """Errors of all repeats."""
    table, categories = LOADERS[name]()
    label, positive, _ = LABELS[name]
    domain = public_domain(name, table, categories).model_dump(exclude={"norm_bound", "intercept"})
    found = []
    for repeat in range(given.repeats):
        rows = table.sample(frac=1.0, random_state=repeat).reset_index(drop=True)
        train, test = rows[: min(given.rows, len(rows) * 4 // 5)], rows[-max(5000, len(rows) // 5) :][:50_000]
        model = published(name, train, domain, learner, given)
        found.append(calibration_error(model.probabilities(test), (test[label] == positive).to_numpy()))
    return {
        "rows": len(train),
        "positive": round(float((table[label] == positive).mean()), 3),
        "mean": round(float(np.mean(found)), 4),
        "largest": round(max(found), 4),
    }


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", nargs="+", default=["adult", "covertype", "diabetes130"], choices=list(LOADERS))
    parser.add_argument("--learners", nargs="+", default=["moments", "gradient"])
    parser.add_argument("--rows", type=int, default=50_000, help="training rows, at most")
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = {
        f"{name}, {learner}": measured(name, learner, given) for name in given.tables for learner in given.learners
    }
    print(json.dumps(found) if given.json else "\n".join(f"{name}: {one}" for name, one in found.items()))


if __name__ == "__main__":
    main()
