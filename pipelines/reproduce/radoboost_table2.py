"""The privacy experiments of Nock, Patrini and Friedman (2015), section 6: their table 2 and its three panels.

Left: RadoBoost on DP-FEAT rados for one boolean feature, epsilon 0.25 to 15, against plain rados and AdaBoost; beside
it the sound route, randomised response on that feature at the same epsilon. Centre: test error of RadoBoost minus
AdaBoost's where every edge vector carries Gaussian noise, for rados of fixed support and for plain ones. Right: fixed
support with the median-prudential oracle minus plain rados with the strongest one, on the same noisy edges.

DP-FEAT protects the marginal of one coordinate only, so the left panel's epsilon is not a guarantee for its rados;
the exact numbers of that marginal are in the JSON. Features are standardised by the data: nothing here is private.

python pipelines/reproduce/radoboost_table2.py [--json] [--out FILE.svg] [--folds K] [--rounds T] [--data NAME ...]
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import numpy as np
from rado_data import DataSet, error, errors, load, rados, say

from daskrado.bounds.dp_feat import Marginal
from daskrado.errors import UsageError
from daskrado.learners import RadoBoost
from daskrado.privacy.accountant import gaussian_delta
from daskrado.statistics import FeatureRados, FixedSupportRados, RandomisedRados, UniformRados
from daskrado.statistics.window import Window

CLAMP = 0.8
DELTA = 1e-6
EPSILONS = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0)
BOOLEAN = {"abalone": 0, "ionosphere": 0, "fertility": 4}  # male or not; a radar switch; surgery or not
NOISY = ("transfusion", "magic")
NOISES = (0.0, 0.1, 0.3, 1.0, 3.0)
SUPPORTS = (0.01, 0.1, 0.5)  # of the training fold


def with_boolean(data: DataSet, column: int) -> DataSet:
    """The same data with one column as +-1: above its mean, or not."""
    x = data.x.copy()
    x[:, column] = np.where(x[:, column] > 0, 1.0, -1.0)
    return DataSet(data.name, x, data.y)


def kept(learner: RadoBoost, matrix: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """The round with the fewest mistakes on the edges the learner was given, as the author kept it."""
    path = learner.path(matrix)
    return path[int(errors(path, edges, np.ones(len(edges), dtype=np.int8)).argmin())]


def feature_panel(name: str, folds: int, rounds: int) -> dict[str, object]:
    """Test errors by epsilon, and what the marginal really guarantees."""
    column = BOOLEAN[name]
    data = with_boolean(load(name), column)
    learner = RadoBoost(rounds=rounds, clamp=CLAMP)
    ada = RadoBoost(rounds=rounds, clamp=CLAMP, update="exponential")
    rows: dict[str, list[list[float]]] = {"AdaBoost": [], "plain": [], "DP-FEAT": [], "randomised response": []}
    sizes = []
    for fold, (train, test) in enumerate(list(data.folds())[:folds]):
        x, y, tx, ty = data.x[train], data.y[train], data.x[test], data.y[test]
        edges, width = x * y[:, None], x.shape[1]
        count = min(1000, len(train) // 2)
        sizes.append(len(train))
        plain = rados(UniformRados(width, count), x, y, fold)
        rows["AdaBoost"].append([error(kept(ada, edges, edges), tx, ty)] * len(EPSILONS))
        rows["plain"].append([error(kept(learner, plain, edges), tx, ty)] * len(EPSILONS))
        truncated, answered = [], []
        for epsilon in EPSILONS:
            try:
                made = rados(FeatureRados(width, count, column, epsilon), x, y, fold)
                truncated.append(error(kept(learner, made, edges), tx, ty))
            except UsageError as problem:
                say(f"  {name}: {problem}")
                truncated.append(math.nan)
            statistic = RandomisedRados(width, UniformRados(width, count), (column,), epsilon)
            sound = rados(statistic, x, y, fold)
            sound[:, column] /= statistic.shrinkage
            answered.append(error(learner.learn(sound)[0], tx, ty))
        rows["DP-FEAT"].append(truncated)
        rows["randomised response"].append(answered)
        say(f"  {name} fold {fold + 1}: DP-FEAT {np.round(truncated, 2).tolist()}, plain {rows['plain'][-1][0]:.2f}")
    size = min(sizes)
    count = min(1000, size // 2)
    facts = []
    for epsilon in EPSILONS:
        try:
            facts.append(Marginal(Window(epsilon, size), count).facts(str(column)).model_dump())
        except UsageError as problem:
            facts.append({"refused": str(problem)})
    return {
        "data": name,
        "epsilon": list(EPSILONS),
        "error": {key: _mean(values) for key, values in rows.items()},
        "std": {key: _std(values) for key, values in rows.items()},
        "marginal_of_one_coordinate_only": facts,
    }


def noise_panel(name: str, folds: int, rounds: int) -> dict[str, object]:
    """Differences of test errors by the noise on edges, and the epsilon that this noise is worth."""
    data = load(name)
    strong, median = RadoBoost(rounds=rounds, clamp=CLAMP), RadoBoost(rounds=rounds, clamp=CLAMP, oracle="median")
    ada = RadoBoost(rounds=rounds, clamp=CLAMP, update="exponential")
    keys = ["AdaBoost", "plain", *(f"{kind} s={s:g}m" for s in SUPPORTS for kind in ("strongest", "median"))]
    rows: dict[str, list[list[float]]] = {key: [] for key in keys}
    for fold, (train, test) in enumerate(list(data.folds())[:folds]):
        found: dict[str, list[float]] = {key: [] for key in keys}
        for level in NOISES:
            draw = np.random.default_rng([fold, round(level * 1000)])
            y, tx, ty = data.y[train], data.x[test], data.y[test]
            x = data.x[train] + level * draw.normal(size=(len(train), data.x.shape[1]))
            edges, width, count = x * y[:, None], x.shape[1], min(1000, len(train) // 2)
            found["AdaBoost"].append(error(kept(ada, edges, edges), tx, ty))
            found["plain"].append(error(kept(strong, rados(UniformRados(width, count), x, y, fold), edges), tx, ty))
            for share in SUPPORTS:
                support = max(2, round(share * len(train)))
                made = rados(FixedSupportRados(width, count, support), x, y, fold)
                found[f"strongest s={share:g}m"].append(error(kept(strong, made, edges), tx, ty))
                found[f"median s={share:g}m"].append(error(kept(median, made, edges), tx, ty))
        for key in keys:
            rows[key].append(found[key])
        say(f"  {name} fold {fold + 1}: AdaBoost {np.round(found['AdaBoost'], 2).tolist()}")
    bound = float(np.linalg.norm(data.x, axis=1).max())
    return {
        "data": name,
        "noise_std": list(NOISES),
        "epsilon_at_delta_1e-6": [None if level == 0 else _epsilon(2 * bound / level) for level in NOISES],
        "error": {key: _mean(values) for key, values in rows.items()},
        "centre": {
            key: _mean(np.subtract(rows[key], rows["AdaBoost"]))
            for key in ["plain", *(f"strongest s={s:g}m" for s in SUPPORTS)]
        },
        "right": {f"s={s:g}m": _mean(np.subtract(rows[f"median s={s:g}m"], rows["plain"])) for s in SUPPORTS},
    }


def _epsilon(shift: float) -> float:
    """The epsilon of Gaussian noise at delta 1e-6, exactly: usually far from what "private" means."""
    low, high = 0.0, 1.0
    while gaussian_delta(high, shift) > DELTA:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (low, middle) if gaussian_delta(middle, shift) <= DELTA else (middle, high)
    return round(high, 2)


def _mean(values: object) -> list[float | None]:
    return [None if math.isnan(v) else round(float(v), 2) for v in np.mean(np.array(values, dtype=float), axis=0)]


def _std(values: object) -> list[float | None]:
    array = np.array(values, dtype=float)
    spread = array.std(axis=0, ddof=1) if len(array) > 1 else np.zeros(array.shape[1])
    return [None if math.isnan(v) else round(float(v), 2) for v in spread]


def draw_panels(features: list[dict], noises: list[dict], path: Path) -> None:
    """The three panels, one line of plots for each data set."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 3.6 * max(len(features), len(noises))), layout="constrained")
    axes = figure.subplots(max(len(features), len(noises)), 3, squeeze=False)
    for at in axes.ravel():
        at.set_visible(False)
    for at, panel in zip(axes[:, 0], features, strict=False):
        at.set_visible(True)
        for key, values in panel["error"].items():
            at.plot(panel["epsilon"], [math.nan if v is None else v for v in values], marker="o", label=key)
        at.set(title=f"{panel['data']}: one boolean feature", xlabel="epsilon", ylabel="test error, %", xscale="log")
        at.legend(fontsize=7)
    for column, key, title in ((1, "centre", "minus AdaBoost"), (2, "right", "median oracle, minus plain")):
        for at, panel in zip(axes[:, column], noises, strict=False):
            at.set_visible(True)
            for name, values in panel[key].items():
                at.plot(panel["noise_std"], values, marker="o", label=name, ls=":" if name == "plain" else "-")
            at.axhline(0, color="black", lw=0.6)
            at.set(title=f"{panel['data']}: {title}", xlabel="noise on edges", ylabel="difference of test errors")
            at.legend(fontsize=7)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--out", type=Path, default=Path("runs/reproduce/radoboost_table2.svg"))
    parser.add_argument("--folds", type=int, default=10, choices=range(1, 11))
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--data", nargs="*", default=[*BOOLEAN, *NOISY], choices=[*BOOLEAN, *NOISY])
    options = parser.parse_args()
    features = [feature_panel(name, options.folds, options.rounds) for name in BOOLEAN if name in options.data]
    noises = [noise_panel(name, options.folds, options.rounds) for name in NOISY if name in options.data]
    draw_panels(features, noises, options.out)
    say(f"panels drawn to {options.out}")
    if options.json:
        print(json.dumps({"not_private": "see the script's text", "left": features, "centre_right": noises}))


if __name__ == "__main__":
    main()
