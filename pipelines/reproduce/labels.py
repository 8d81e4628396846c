"""Learning through the mean operator, measured: label noise against alpha, bags, flipped labels.

    python pipelines/reproduce/labels.py --json [--data adult ...] [--plots FOLDER]

One JSON on stdout; progress on stderr. Errors are test errors in per cent, means over repetitions. The oracle is the
same learner with the exact mean operator.
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import label_data
import numpy as np
from scipy.cluster.vq import kmeans2

from daskrado.learners.bags import Bags, laplacian_mean_map, mean_map, similarity
from daskrado.learners.on_passes.bag_estimators import alternate
from daskrado.learners.on_passes.linear_odd import ArrayFeatures, fit_mean
from daskrado.learners.supervision import FlipRates, LabelledSums, noisy
from daskrado.losses.margin import Logistic
from daskrado.privacy.gamma import l2_gamma
from daskrado.privacy.local import BinaryResponse
from daskrado.privacy.mechanisms import Target, mechanism
from daskrado.privacy.perturbation import PublicFacts, objective_gamma
from daskrado.privacy.relations import Relation
from daskrado.statistics.label_means import LabelMeans
from daskrado.table.lattice import Lattice

ALPHAS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 30.0)
STRENGTH = 1e-4
LOSS = Logistic()
NOISES = {"laplace": 0.0, "l2_gamma": 0.0, "gaussian": 1e-6}


def error(weights: np.ndarray, test: label_data.DataSet) -> float:
    return round(100 * float(np.mean(np.where(test.rows @ weights >= 0, 1.0, -1.0) != test.y)), 2)


def weights_of(train: label_data.DataSet, mean: np.ndarray, strength: float = STRENGTH) -> np.ndarray:
    return fit_mean(ArrayFeatures(train.rows), LOSS, mean, strength, tolerance=1e-5).weights


def exact_sum(train: label_data.DataSet) -> np.ndarray:
    return np.asarray((train.y @ train.steps).astype(np.int64))


def against_alpha(train: label_data.DataSet, test: label_data.DataSet, repeats: int) -> dict[str, Any]:
    """Three label noises, randomised response at the source, objective perturbation (which protects whole rows)."""
    m, d = train.steps.shape
    total, lattice = exact_sum(train), Lattice(1.0, label_data.BITS)
    oracle = np.ldexp(total.astype(float), -label_data.BITS) / m
    statistic = LabelMeans(
        d,
        int(np.abs(train.steps).sum(axis=1).max()),
        int((train.steps**2).sum(axis=1).max()),
        label_data.BITS,
    )
    out: dict[str, Any] = {"alpha": list(ALPHAS), "oracle": error(weights_of(train, oracle), test)}
    vector = np.append(total, m)
    for name, delta in NOISES.items():
        found, gaps = [], []
        for alpha in ALPHAS:
            errors, lengths = [], []
            for _ in range(repeats):
                chosen = mechanism(name, Target(statistic, lattice, Relation.LABEL_FLIP), alpha, delta)
                mean = np.ldexp(chosen.perturb(vector)[:-1].astype(float), -label_data.BITS) / m
                errors.append(error(weights_of(train, mean), test))
                lengths.append(float(np.linalg.norm(mean - oracle)))
            found.append(round(float(np.mean(errors)), 2))
            gaps.append(round(float(np.mean(lengths)), 6))
        out[name], out[f"{name}_distance_to_oracle"] = found, gaps
    out["randomised_response"] = [
        round(float(np.mean([error(weights_of(train, _randomised(train, alpha)), test) for _ in range(repeats)])), 2)
        for alpha in ALPHAS
    ]
    out["objective_perturbation"] = [
        round(float(np.mean([error(_tilted(train, oracle, alpha), test) for _ in range(repeats)])), 2)
        for alpha in ALPHAS
    ]
    return out


def _sums(train: label_data.DataSet, y: np.ndarray) -> LabelledSums:
    rows, ones = train.rows, np.array([float(len(y))])
    return LabelledSums((y @ rows)[None, :], ones, rows.sum(axis=0)[None, :], ones)


def _randomised(train: label_data.DataSet, epsilon: float) -> np.ndarray:
    reports = BinaryResponse.from_epsilon(epsilon).randomise((train.y > 0).astype(np.int64))
    return noisy(_sums(train, 2.0 * reports - 1), FlipRates.of_randomised_response(epsilon))


def _tilted(train: label_data.DataSet, oracle: np.ndarray, epsilon: float) -> np.ndarray:
    """Chaudhuri et al.'s algorithm 2: b.w/m in the objective is a tilt of the mean operator by -2 b / m."""
    m, d = train.steps.shape
    facts = PublicFacts(m, d, 1.0, Relation.REPLACE_ONE, epsilon)
    noise = objective_gamma(LOSS, 2 * STRENGTH, facts, epsilon)
    tilt = oracle - 2 * l2_gamma(d, noise.scale) / m
    return weights_of(train, tilt, STRENGTH + noise.extra / 2)


class BagArray(ArrayFeatures):
    """Bags in memory."""

    def __init__(self, rows: np.ndarray, bag: np.ndarray) -> None:
        super().__init__(rows)
        object.__setattr__(self, "bag", bag)

    def best_labels(self, weights: np.ndarray, positives: np.ndarray, *, largest: bool) -> np.ndarray:
        y = -np.ones(len(self.rows))
        margins = (self.rows @ weights) * (1 if largest else -1)
        for j, count in enumerate(positives):
            mine = np.flatnonzero(self.bag == j)  # type: ignore[attr-defined]
            y[mine[np.argsort(-margins[mine], kind="stable")[: round(count)]]] = 1.0
        return np.asarray((y @ self.rows) / len(y))


def bagged(train: label_data.DataSet, bag: np.ndarray) -> tuple[Bags, np.ndarray]:
    names, bag = np.unique(bag, return_inverse=True)
    pick = [bag == j for j in range(len(names))]
    rows = train.rows
    return (
        Bags(
            np.array([rows[p].sum(axis=0) for p in pick]),
            np.array([float(p.sum()) for p in pick]),
            np.array([(rows[p] ** 2).sum() for p in pick]),
            np.array([(train.y[p] > 0).mean() for p in pick]),
        ),
        bag,
    )


def bag_errors(train: label_data.DataSet, test: label_data.DataSet, bag: np.ndarray) -> dict[str, Any]:
    """Mean Map, Laplacian Mean Map with both similarities, Alternating Mean Map, and the oracle."""
    bags, bag = bagged(train, bag)
    oracle = (train.y @ train.rows) / len(train.y)
    laplacian = {
        kind: laplacian_mean_map(bags, similarity(bags, kind), gamma=0.1) for kind in ("gaussian", "association")
    }  # type: ignore[arg-type]
    means = {"mean_map": mean_map(bags), **{f"laplacian_{kind}": mean for kind, mean in laplacian.items()}}
    out: dict[str, Any] = {"bags": len(bags.rows), "rows": len(train.y)}
    for name, mean in means.items():
        out[name] = error(weights_of(train, mean), test)
        out[f"{name}_distance_to_oracle"] = round(float(np.linalg.norm(mean - oracle)), 5)
    found = alternate(
        BagArray(train.rows, bag), LOSS, laplacian["gaussian"], STRENGTH, bags.proportions * bags.rows, rounds=10
    )
    out["alternating"] = error(found.fit.weights, test)
    out["oracle"] = error(weights_of(train, oracle), test)
    return out


def against_bags(train: label_data.DataSet, test: label_data.DataSet) -> dict[str, Any]:
    out: dict[str, Any] = {}
    if train.bags is not None:
        out["natural"] = bag_errors(train, test, train.bags)
    draw = np.random.default_rng(1)
    out["count"], out["size"] = [], []
    if len(train.y) < 1000:
        return out
    for count in (4, 16, 64, 256):
        # Neighbouring rows share a bag, as in a district: k-means on the rows.
        _, bag = kmeans2(train.rows, count, minit="++", seed=2)
        out["count"].append(bag_errors(train, test, bag))
    for size in (20, 80, 320):
        keep = draw.permutation(len(train.y))[: 16 * size]
        part = train.take(keep)
        _, bag = kmeans2(part.rows, 16, minit="++", seed=2)
        out["size"].append(bag_errors(part, test, bag))
    return out


def against_flips(train: label_data.DataSet, test: label_data.DataSet, repeats: int) -> dict[str, Any]:
    """Positive labels flipped at the rate given, negative ones at a third of it."""
    draw = np.random.default_rng(3)
    out: dict[str, Any] = {"rate": [0.0, 0.1, 0.2, 0.3, 0.4, 0.5], "as_seen": [], "unbiased": [], "audited": []}
    for rate in out["rate"]:
        rates, found = FlipRates(rate, rate / 3), {key: [] for key in ("as_seen", "unbiased", "audited")}
        for _ in range(repeats):
            flips = draw.random(len(train.y)) < np.where(train.y > 0, rates.positive, rates.negative)
            seen = np.where(flips, -train.y, train.y)
            audit = draw.random(len(train.y)) < 0.05
            guessed = FlipRates(*(float(flips[audit & (train.y == side)].mean()) for side in (1, -1)))
            sums = _sums(train, seen)
            found["as_seen"].append(error(weights_of(train, (seen @ train.rows) / len(seen)), test))
            found["unbiased"].append(error(weights_of(train, noisy(sums, rates)), test))
            found["audited"].append(error(weights_of(train, noisy(sums, guessed)), test))
        for key, values in found.items():
            out[key].append(round(float(np.mean(values)), 2))
    return out


def failing_homogeneity(repeats: int) -> dict[str, Any]:
    """Four regions of five bags: rows and shares of positives differ by region; Mean Map takes that for classes."""
    found: dict[str, list[float]] = {}
    for seed in range(repeats):
        draw = np.random.default_rng(seed)
        centre, split = draw.normal(size=(4, 3)), 0.5 * draw.normal(size=3)
        bag = np.repeat(np.arange(20), 400)
        share = 0.1 + 0.13 * (bag // 5) + 0.1 * (bag % 5)
        y = np.where(draw.random(len(bag)) < share, 1.0, -1.0)
        x = centre[bag // 5] + y[:, None] * split + 0.3 * draw.normal(size=(len(bag), 3))
        x = np.column_stack([x, np.ones(len(x))])
        x /= np.linalg.norm(x, axis=1).max()
        data = label_data.DataSet("regions", np.trunc(np.ldexp(x, label_data.BITS)), y, bag)
        for key, value in bag_errors(data, data, bag).items():
            found.setdefault(key, []).append(value)
    return {key: round(float(np.mean(values)), 4) for key, values in found.items()}


def plots(results: dict[str, Any], folder: Path) -> None:
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    for name, result in results["data"].items():
        figure = Figure(figsize=(11, 3.6), layout="constrained")
        left, middle, right = figure.subplots(1, 3)
        alpha = result["alpha"]
        for key in (*NOISES, "randomised_response", "objective_perturbation"):
            left.plot(alpha["alpha"], alpha[key], marker="o", markersize=3, label=key.replace("_", " "))
        left.axhline(alpha["oracle"], color="black", linewidth=0.8, label="oracle")
        left.set(xscale="log", xlabel="alpha", ylabel="test error, %", title=name)
        left.legend(fontsize=7)
        rows = result["bags"]["count"] or [result["bags"]["natural"]]
        for key in ("mean_map", "laplacian_gaussian", "alternating", "oracle"):
            middle.plot([r["bags"] for r in rows], [r[key] for r in rows], marker="o", markersize=3, label=key)
        middle.set(xscale="log", xlabel="bags")
        middle.legend(fontsize=7)
        for key in ("as_seen", "unbiased", "audited"):
            right.plot(
                result["flips"]["rate"], result["flips"][key], marker="o", markersize=3, label=key.replace("_", " ")
            )
        right.set(xlabel="flip rate of positive labels")
        right.legend(fontsize=7)
        for ending in ("svg", "png"):
            figure.savefig(folder / f"labels_{name}.{ending}", dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the JSON (it always is)")
    parser.add_argument("--data", nargs="*", choices=list(label_data.DATA), default=list(label_data.DATA))
    parser.add_argument("--rows", type=int, default=8000, help="most training rows")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--plots", type=Path, default=None)
    chosen = parser.parse_args()
    results: dict[str, Any] = {"strength": STRENGTH, "repeats": chosen.repeats, "data": {}}
    results["homogeneity_fails"] = failing_homogeneity(chosen.repeats)
    for name in chosen.data:
        print(f"{name}: loading", file=sys.stderr, flush=True)
        train, test = label_data.DATA[name]().split(0, chosen.rows)
        part: dict[str, Any] = {"train": len(train.y), "test": len(test.y), "features": train.steps.shape[1]}
        part["majority"] = round(100 * float(min(np.mean(test.y > 0), np.mean(test.y < 0))), 2)
        work = {
            "alpha": partial(against_alpha, train, test, chosen.repeats),
            "bags": partial(against_bags, train, test),
            "flips": partial(against_flips, train, test, chosen.repeats),
        }
        for key, measure in work.items():
            print(f"{name}: error against {key}", file=sys.stderr, flush=True)
            part[key] = measure()
        results["data"][name] = part
    if chosen.plots is not None:
        plots(results, chosen.plots)
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
