"""Bounds and categories found in private against hand-made public ones: test error of the same learner.

``public`` has the bounds that an owner could say without looking (``tables.public_domain``); with ``--bounds exact``
the true range and all categories of the whole table, which nobody may look at. ``private`` has those that ``kind:
discover`` finds for an epsilon of its own, on the training rows. All else is the same.
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

PROTECT = {"relation": "add_remove", "unit": "one row"}


def draft(name: str, table: pd.DataFrame, categories: dict[str, list[str]]) -> dict[str, Any]:
    """What ``daskrado init`` writes: kinds of columns, everything else open."""
    label, positive, negative = LABELS[name]
    number, text = {"kind": "numeric", "lower": "...", "upper": "..."}, {"kind": "categorical", "values": "..."}
    columns = {column: text if column in categories else number for column in table if column != label}
    return {"label": {"column": label, "positive": positive, "negative": negative}, "columns": columns}


def exact(name: str, table: pd.DataFrame, categories: dict[str, list[str]]) -> dict[str, Any]:
    """The true range of every column: a yardstick, not a practice."""
    found = draft(name, table, categories)
    for column in found["columns"]:
        if column in categories:
            found["columns"][column] = {"kind": "categorical", "values": categories[column]}
        else:
            lower, upper = float(table[column].min()), float(table[column].max())
            found["columns"][column] = {"kind": "numeric", "lower": lower, "upper": max(upper, lower + 1e-3)}
    return found


def common(name: str, rows: pd.DataFrame, epsilon: float) -> dict[str, Any]:
    """Keys of a job on the training rows."""
    budget = {"epsilon": epsilon, "delta": 1e-6}
    ledger = {"first_limit": {"epsilon": 50, "delta": 1e-4}}
    return {"dataset": name, "lake": rows, "output": "out", "protect": PROTECT, "budget": budget, "ledger": ledger}


def error(job: dict[str, Any], test: pd.DataFrame, name: str, ledger: Path) -> float:
    """Share of test rows that a model of the job gets wrong."""
    label, positive, _ = LABELS[name]
    result = daskrado.run(job, write=False, ledger=ledger)
    assert result.model is not None
    return float(np.mean((result.model.margins(test) > 0) != (test[label] == positive)))


def compare(name: str, given: argparse.Namespace) -> dict[str, Any]:
    """Mean errors of both over the repeats, and the standard error of their difference."""
    table, categories = LOADERS[name]()
    found: list[tuple[float, float]] = []
    for repeat in range(given.repeats):
        rows = table.sample(frac=1.0, random_state=repeat).reset_index(drop=True)
        train, test = rows[: min(given.rows, len(rows) * 4 // 5)], rows[-max(5000, len(rows) // 5) :][:20_000]
        keys = common(name, train, given.epsilon)
        learner = {"learner": given.learner, **({} if given.learner == "moments" else {"rows": len(train)})}
        public = public_domain(name, table, categories).model_dump(exclude={"norm_bound", "intercept"})
        public = exact(name, table, categories) if given.bounds == "exact" else public
        with tempfile.TemporaryDirectory() as folder:
            ledger = Path(folder) / "ledger.sqlite"
            job = {
                "kind": "discover",
                **common(name, train, given.describe),
                "domain": draft(name, table, categories),
            }
            private = daskrado.run(job, write=False, ledger=ledger).value.content()
            pair = [error({**keys, **learner, "domain": d}, test, name, ledger) for d in (public, private)]
        found.append((pair[0], pair[1]))
    errors = np.array(found)
    lost = errors[:, 1] - errors[:, 0]
    return {
        "rows": len(train),
        "public": round(float(errors[:, 0].mean()), 4),
        "private": round(float(errors[:, 1].mean()), 4),
        "lost": round(float(lost.mean()), 4),
        "se": round(float(lost.std() / np.sqrt(max(1, len(lost) - 1))), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", nargs="+", default=["adult", "magic", "covertype"], choices=list(LOADERS))
    parser.add_argument("--rows", type=int, default=50_000, help="training rows, at most")
    parser.add_argument("--describe", type=float, default=0.1, help="epsilon of the description")
    parser.add_argument("--epsilon", type=float, default=1.0, help="epsilon of the model")
    parser.add_argument("--bounds", choices=["public", "exact"], default="public")
    parser.add_argument("--learner", default="moments")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = {name: compare(name, given) for name in given.tables}
    if given.json:
        print(json.dumps(found))
        return
    for name, one in found.items():
        print(
            f"{name:>12}, {one['rows']:,} rows: public bounds {one['public']:.4f}, private {one['private']:.4f}, ",
            end="",
        )
        print(f"lost {one['lost']:+.4f} ± {one['se']:.4f}")


if __name__ == "__main__":
    main()
