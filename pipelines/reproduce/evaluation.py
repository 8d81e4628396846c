"""How often the 95 % intervals of private evaluations hold the truth, over whole runs: lake, ledger, noise, figures.

Each run draws new rows whose scores are normal with means 0 and 1.5 for negatives and positives, so that the truth is
known in closed form, and measures a fixed model on them by ``daskrado.evaluate``.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import norm

import daskrado
from daskrado.models.linear import LinearModel
from daskrado.privacy.statement import PrivacyStatement
from daskrado.table.domain import Domain

SHIFT = 1.5
DOMAIN = Domain.model_validate(
    {
        "label": {"column": "sick", "positive": 1, "negative": 0},
        "columns": {
            "score": {"kind": "numeric", "lower": -8, "upper": 8},
            "sex": {"kind": "categorical", "values": ["f", "m"], "other": False},
        },
        "norm_bound": 2.0,
    }
)
MODEL = LinearModel(DOMAIN, np.array([8.0, 0.0, 0.0, -0.75]), PrivacyStatement.none(), "by hand")


def rows(count: int, rate: float, draw: np.random.Generator) -> pd.DataFrame:
    """Fresh rows."""
    sick = (draw.random(count) < rate).astype(int)
    score = draw.normal(size=count) + SHIFT * sick
    return pd.DataFrame({"score": score, "sex": draw.choice(["f", "m"], count), "sick": sick})


def truth(rate: float) -> dict[str, float]:
    """Of the population: a label is wrong where a score is on the other side of 0.75."""
    wrong = float(norm.cdf(-SHIFT / 2))
    return {"error": wrong, "auc": float(norm.cdf(SHIFT / np.sqrt(2))), "base_rate": rate, "error of sex f": wrong}


def main() -> None:
    """Run, count, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--rate", type=float, default=0.3)
    parser.add_argument("--epsilon", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=1, help="of the rows; noise is never seeded")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    draw, known = np.random.default_rng(options.seed), truth(options.rate)
    held, width = dict.fromkeys(known, 0), dict.fromkeys(known, 0.0)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.runs):
            found: Any = daskrado.evaluate(
                MODEL,
                rows(options.rows, options.rate, draw),
                dataset="simulated",
                by=["sex"],
                epsilon=options.epsilon,
                delta=1e-6,
                ledger=_ledger(Path(folder), number),
            ).value
            women = found.groups["sex"]["f"]
            figures = dict(zip(known, (found.error, found.auc, found.base_rate), strict=False))
            figures["error of sex f"] = women.error(women.place(0.0))
            for name, figure in figures.items():
                held[name] += known[name] in figure
                width[name] += (figure.high - figure.low) / options.runs
    print(_report(options, held, width))


def _ledger(folder: Path, number: int) -> Path:
    """A new one every hundred runs: each run has rows of its own, so nobody loses twice."""
    from daskrado.ledger.ledger import Ledger

    path = folder / f"{number // 100}.sqlite"
    if not path.exists():
        with Ledger.open(path, create=True) as opened:
            opened.set_limit("simulated", "add_remove", 50, 1e-2)
    return path


def _report(options: argparse.Namespace, held: dict[str, int], width: dict[str, float]) -> str:
    shares = {name: count / options.runs for name, count in held.items()}
    if options.json:
        return json.dumps({"runs": options.runs, "held": shares, "mean_width": width})
    head = f"{options.runs} runs of {options.rows:,} rows, {options.rate:g} positive, epsilon {options.epsilon:g}"
    return "\n".join([head, *(f"{name:16} held {shares[name]:.3f}, mean width {width[name]:.4f}" for name in held)])


if __name__ == "__main__":
    main()
