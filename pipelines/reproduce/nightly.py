"""A lake that gets a new day every night, and a model of the last days every night, under a bounded loss of each day.

Every night a CSV file is appended as a new block, and one pipeline asks for more days than can pay: a day's budget
covers ``limit / epsilon`` nights, so the days that have spent theirs are left out. At the end each day's loss is read
from the ledger and counted again from the manifests' own lists of days.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from datetime import date, timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import daskrado
from daskrado.lake.ingest import Layout, ingest
from daskrado.ledger.ledger import EACH, Ledger
from daskrado.privacy.relations import Relation

DOMAIN = {
    "label": {"column": "readmitted", "positive": 1, "negative": 0},
    "norm_bound": 1.5,
    "columns": {
        "age": {"kind": "numeric", "lower": 0, "upper": 100},
        "stay": {"kind": "numeric", "lower": 0, "upper": 30},
    },
}


def visits(day: str, rows: int, seed: int) -> pd.DataFrame:
    """One day's synthetic visits."""
    draw = np.random.default_rng(seed)
    age, stay = draw.uniform(0, 100, rows), draw.uniform(0, 30, rows)
    ill = draw.random(rows) < 1 / (1 + np.exp(-(age - 50) / 20 - (stay - 15) / 10))
    return pd.DataFrame({"age": age, "stay": stay, "readmitted": ill.astype(int), "day": day})


def nights(folder: Path, days: int, rows: int, epsilon: str, limit: str, last: int) -> dict[str, Any]:
    """Append a day and fit the last days, every night; how much each day has lost at the end."""
    lake, ledger = str(folder / "lake"), Ledger.open(folder / "ledger.sqlite")
    ledger.set_limit("visits", Relation.ADD_REMOVE, limit, 0, block=EACH)
    pipeline = {
        "dataset": "visits",
        "lake": lake,
        "domain": DOMAIN,
        "output": "unused",
        "protect": {"relation": "add_remove", "unit": "one visit"},
        "budget": {"epsilon": float(epsilon)},
        "blocks": {"column": "day", "last": last},
        "ledger": {"path": str(folder / "ledger.sqlite")},
    }
    reads: Counter[str] = Counter()
    left_out = 0
    for number in range(days):
        day = str(date(2026, 1, 1) + timedelta(days=number))
        visits(day, rows, number).to_csv(folder / "new.csv", index=False)
        ingest([str(folder / "new.csv")], lake, layout=Layout(by="day"), append=number > 0)
        facts = daskrado.run(pipeline, write=False).facts["blocks"]
        reads.update(facts["read"])
        left_out += len(facts["left_out"])
    found = ledger.block_balances("visits")
    lost = {day: b.total.epsilon for day, own in found.items() for b in own if b.relation is Relation.ADD_REMOVE}
    counted = {day: number * Fraction(epsilon) for day, number in reads.items()}
    return {
        "nights": days,
        "days_that_paid": len(lost),
        "days_at_their_limit": sum(loss == Fraction(limit) for loss in lost.values()),
        "days_above_it": sum(loss > Fraction(limit) for loss in lost.values()),
        "ledger_agrees_with_manifests": lost == counted,
        "days_left_out_in_all": left_out,
        "largest_loss": float(max(lost.values())),
    }


def main() -> None:
    """Run the nights and print what each day has lost."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--days", type=int, default=400)
    parser.add_argument("--rows", type=int, default=200, help="visits a day")
    parser.add_argument("--epsilon", default="0.1", help="of one night's run")
    parser.add_argument("--limit", default="3", help="epsilon of one day")
    parser.add_argument("--last", type=int, default=35, help="days that a run asks for")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        given = (options.days, options.rows, options.epsilon, options.limit, options.last)
        result = nights(Path(folder), *given)
    print(json.dumps(result) if options.json else "\n".join(f"{key:30} {value}" for key, value in result.items()))


if __name__ == "__main__":
    main()
