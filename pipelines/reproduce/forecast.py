"""The forecast of a plan against what is measured: error and AUC that noise costs, on tables of many kinds.

python pipelines/reproduce/forecast.py --json                              from forecast.csv, which was measured
python pipelines/reproduce/forecast.py --json --measure points.csv [--tables wages,stops] [--draws 2]

Every point is a table, a number of rows and an epsilon: noise over signal, from which `daskrado plan` forecasts, and
the error above, and the AUC below, those of scikit-learn's logistic regression on the same columns without noise. The
constants (``learners/on_passes/outlook.py``) are those of CHOSEN alone and are computed here; JUDGED tables, and
Adult, took no part: their coverage is what the forecast is worth. Package tables: see package_tables.py.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import package_tables
import pandas as pd
from centring import MADE, learn, real, reference
from dp_erm import say

from daskrado.learners.on_passes.gradient import PrivateGradient
from daskrado.learners.on_passes.outlook import FLOOR, Outlook, feature
from daskrado.privacy.perturbation import PublicFacts
from daskrado.privacy.relations import Relation
from daskrado.table.columns import plain_numbers
from daskrado.table.domain import Domain

CHOSEN = ("magic", "covertype", "mails", "eeg", "kdd", "frauds", "wages", "flights_bins", "visits", "diamonds_bins")
JUDGED = ("diabetes130", "fertility", "labour", "labour_bins", "loans", "spam", "stops", "stops_bins", "wages_bins")
ONLY_TOLD = ("adult",)
EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0)
SIZES = (40_000, 5_000)
POINTS = Path(__file__).with_suffix(".csv")
Point = dict[str, Any]


def table_of(name: str, rows: int) -> tuple[pd.DataFrame, Domain]:
    if name.removesuffix("_bins") in package_tables.LOADERS:
        return package_tables.load(name, rows)
    return MADE[name](rows) if name in MADE else real(name, rows)


def read(path: Path) -> list[Point]:
    """Points that were measured."""
    return [{str(key): value for key, value in row.items()} for row in pd.read_csv(path).to_dict("records")]


def measure(name: str, draws: int) -> Iterator[Point]:
    """Points of one table: a fifth of its rows is held out."""
    whole, domain = table_of(name, 50_000)
    whole = whole.sample(frac=1.0, random_state=1)
    most = min(SIZES[0], 4 * len(whole) // 5)
    for rows in (most, *(size for size in SIZES[1:] if size < most // 2)):
        train, test = whole.iloc[:rows], whole.iloc[-(len(whole) // 5) :]
        best = reference(train, test, domain)
        for epsilon in EPSILONS:
            known = (rows, domain.width, domain.norm_bound, Relation.ADD_REMOVE, epsilon, 1e-6)
            facts = PublicFacts(*known, numbers=len(plain_numbers(domain)))
            each = np.array([learn(train, test, domain, PrivateGradient(), facts) for _ in range(draws)])
            error, auc, *_ = each.mean(axis=0)
            ratio = PrivateGradient().schedule(facts).ratio
            yield {"table": name, "rows": rows, "features": domain.width, "epsilon": epsilon, "ratio": ratio} | {
                "error": error - best[0],
                "auc": best[1] - auc,
            }
        say(f"{name}, {rows:,} rows: done")


def fit(points: list[Point], key: str) -> dict[str, float]:
    """Least squares of log excess on the log of noise over signal; every table counts alike."""
    counts = pd.Series([point["table"] for point in points]).value_counts()
    weights = np.array([1 / math.sqrt(counts[point["table"]]) for point in points])
    x = np.array([[1.0, feature(point["ratio"])] for point in points])
    y = np.log([max(FLOOR, point[key]) for point in points])
    theta = np.linalg.lstsq(x * weights[:, None], y * weights, rcond=None)[0]
    spread = math.sqrt(float(((y - x @ theta) ** 2 * weights**2).sum() / (weights**2).sum()))
    return {"intercept": round(theta[0], 3), "slope": round(theta[1], 3), "spread": round(spread, 3)}


def judged(points: list[Point]) -> dict[str, Any]:
    """How often the interval holds what was measured, and how far off the middle is."""
    found: dict[str, Any] = {}
    for key in ("error", "auc"):
        told = [getattr(Outlook.of(point["ratio"]), key) for point in points]
        inside = [one.low <= max(FLOOR, point[key]) <= one.high for one, point in zip(told, points, strict=True)]
        off = [math.log(max(FLOOR, p[key]) / one.value) for one, p in zip(told, points, strict=True)]
        found[key] = {"points": len(points), "inside": round(float(np.mean(inside)), 3)}
        found[key] |= {"median_factor": round(math.exp(np.median(np.abs(off))), 2)}
        found[key] |= {"bias": round(math.exp(np.mean(off)), 2)}
    return found


def draw(points: list[Point], folder: Path) -> None:
    """Measured against forecast, with the interval; judged tables are filled."""
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    grid = np.logspace(-5, 0, 60)
    for axes, key, title in zip(figure.subplots(1, 2), ("error", "auc"), ("error above", "AUC below"), strict=True):
        told = [getattr(Outlook.of(ratio), key) for ratio in grid]
        line = [one.value for one in told]
        axes.fill_between(line, [one.low for one in told], [one.high for one in told], color="0.9", lw=0)
        axes.plot(line, line, color="0.5", lw=1)
        for tables, style in ((CHOSEN, {"facecolors": "none"}), (JUDGED, {}), (ONLY_TOLD, {"marker": "x"})):
            some = [point for point in points if point["table"] in tables]
            x = [getattr(Outlook.of(point["ratio"]), key).value for point in some]
            colour = {"c": "tab:red"} if "marker" in style else {"edgecolors": "tab:blue"}
            names = {CHOSEN: "constants chosen on", JUDGED: "judged on", ONLY_TOLD: "Adult"}
            y = [max(FLOOR, point[key]) for point in some]
            axes.scatter(x, y, s=12, label=names[tables], **colour, **style)
        axes.set(
            xscale="log", yscale="log", xlabel="forecast", ylabel="measured", xlim=(FLOOR, 0.5), ylim=(FLOOR, 0.6)
        )
        axes.set_title(f"{title} that without noise", fontsize=9)
        axes.legend(fontsize=7, frameon=False)
    figure.savefig(folder / "forecast.png", dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--measure", type=Path, help="measure anew, and write the points to this file")
    parser.add_argument("--tables", default=",".join((*CHOSEN, *JUDGED, *ONLY_TOLD)))
    parser.add_argument("--draws", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("runs/forecast"))
    options = parser.parse_args()
    if options.measure is not None:
        found = [point for name in options.tables.split(",") for point in measure(name, options.draws)]
        pd.DataFrame(found).round({"ratio": 9, "error": 5, "auc": 5}).to_csv(options.measure, index=False)
    points = read(options.measure or POINTS)
    parts = {"chosen": CHOSEN, "judged": JUDGED, "adult": ONLY_TOLD}
    some = {name: [point for point in points if point["table"] in tables] for name, tables in parts.items()}
    result: dict[str, Any] = {"constants": {key: fit(some["chosen"], key) for key in ("error", "auc")}}
    result |= {name: judged(found) for name, found in some.items() if found}
    draw(points, options.out)
    print(json.dumps(result) if options.json else json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
