"""Table 1 of Nock, Patrini and Friedman (2015), with its protocol, on the data sets that are at hand.

Ten-fold stratified cross-validation, 1,000 rounds, n = min(1000, train / 2) rados, features standardised by the
data's own mean and standard deviation, no intercept, |r| clamped at 0.8, and the classifier with the fewest mistakes
on the training examples kept, as the author did. None of that is private: it reproduces published figures. Columns
that end in "by rado risk" keep by the rado risk instead, which is free.

python pipelines/reproduce/radoboost_table1.py [--json] [--data NAME ...] [--rounds T]
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np
from rado_data import NAMES, DataSet, error, errors, load, p_value, rados, say

from daskrado.learners import RadoBoost, RadoMoments
from daskrado.statistics import HadamardRados, UniformRados

CLAMP = 0.8
# (AdaBoost, RadoBoost) test error in percent and its standard deviation over folds: the paper's table where it has
# the set, the figures of the author's published program elsewhere.
TARGETS = {
    "abalone": ((22.96, 1.44), (25.14, 1.83)),
    "wine white": ((30.93, 3.42), (32.48, 3.55)),
    "magic": ((21.07, 0.98), (22.75, 1.51)),
    "EEG": ((46.04, 1.38), (44.23, 1.73)),
    "banknote": ((2.84, 1.06), (14.58, 2.12)),
    "ionosphere": ((11.36, 5.84), (19.07, 6.53)),
    "breast": ((2.78, 2.44), (3.37, 2.41)),
    "sonar": ((23.62, 7.54), (30.86, 15.06)),
    "haberman": ((25.47, 6.76), (25.47, 6.36)),
    "transfusion": ((39.04, 5.63), (37.83, 5.88)),
    "fertility": ((46.00, 10.75), (47.00, 11.60)),
}
FROM_PAPER = ("abalone", "wine white", "magic", "EEG")
ADABOOST, ADABOOST_N, IID, HADAMARD, MOMENTS = "AdaBoost", "AdaBoost(n)", "RadoBoost", "RadoBoost Hadamard", "moments"


def fewest_mistakes(learner: RadoBoost, matrix: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The author's choice among the rounds: an argmin over private counts, not to be used on private rows."""
    path = learner.path(matrix)
    return path[int(errors(path, x, y).argmin())]


def one_fold(data: DataSet, train: np.ndarray, test: np.ndarray, rounds: int, seed: int) -> dict[str, float]:
    x, y, tx, ty = data.x[train], data.y[train], data.x[test], data.y[test]
    count = min(1000, len(train) // 2)
    power = 1 << round(np.log2(count))
    edges = x * y[:, None]
    some = np.random.default_rng(seed).choice(len(train), count, replace=False)
    ada = RadoBoost(rounds=rounds, clamp=CLAMP, update="exponential")
    rado = RadoBoost(rounds=rounds, clamp=CLAMP)
    iid = rados(UniformRados(x.shape[1], count), x, y, seed)
    hadamard = rados(HadamardRados(x.shape[1], power, bucket_zero=True), x, y, seed)
    thetas = {
        ADABOOST: fewest_mistakes(ada, edges, x, y),
        ADABOOST_N: fewest_mistakes(ada, edges[some], x[some], y[some]),
        IID: fewest_mistakes(rado, iid, x, y),
        HADAMARD: fewest_mistakes(rado, hadamard, x, y),
        MOMENTS: RadoMoments().learn(iid)[0],
        f"{MOMENTS} Hadamard": RadoMoments().learn(hadamard)[0],
        f"{MOMENTS}, no ridge": RadoMoments(0.0).learn(iid)[0],
        f"{IID} by rado risk": rado.learn(iid)[0],
        f"{HADAMARD} by rado risk": rado.learn(hadamard)[0],
    }
    return {name: error(theta, tx, ty) for name, theta in thetas.items()}


def one_set(name: str, rounds: int) -> dict[str, object]:
    start, data = time.perf_counter(), load(name)
    folds = [one_fold(data, train, test, rounds, 100 + i) for i, (train, test) in enumerate(data.folds())]
    table = {key: [fold[key] for fold in folds] for key in folds[0]}
    (ada, ada_std), (rado, rado_std) = TARGETS[name]
    means = {key: float(np.mean(values)) for key, values in table.items()}
    result = {
        "data": name,
        "rows": len(data.y),
        "features": data.x.shape[1],
        "error": {key: round(value, 2) for key, value in means.items()},
        "std": {key: round(float(np.std(values, ddof=1)), 2) for key, values in table.items()},
        "p_adaboost_radoboost": p_value(table[ADABOOST], table[IID]),
        "p_adaboost_n_radoboost": p_value(table[ADABOOST_N], table[IID]),
        "p_hadamard_iid": p_value(table[HADAMARD], table[IID]),
        "p_moments_radoboost": p_value(table[MOMENTS], table[IID]),
        "target": {
            "from": "paper" if name in FROM_PAPER else "author's program",
            ADABOOST: [ada, ada_std],
            IID: [rado, rado_std],
        },
        "within_one_std": {
            ADABOOST: abs(means[ADABOOST] - ada) <= ada_std,
            IID: abs(means[IID] - rado) <= rado_std,
        },
        # One-sided: a lower error than the published one is no failure to reproduce the learner's promise.
        "better_or_within": {ADABOOST: means[ADABOOST] <= ada + ada_std, IID: means[IID] <= rado + rado_std},
        "seconds": round(time.perf_counter() - start, 1),
    }
    shown = ", ".join(f"{key} {value:.2f}" for key, value in means.items())
    say(f"{name} ({result['seconds']} s): {shown}; target {ada} / {rado}")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--data", nargs="*", default=list(NAMES), choices=NAMES)
    parser.add_argument("--rounds", type=int, default=1000)
    options = parser.parse_args()
    results = [one_set(name, options.rounds) for name in options.data]
    if options.json:
        print(
            json.dumps({"not_private": "features standardised by the data; kept by training error", "sets": results})
        )
        return
    for result in results:
        print(f"{result['data']:12s} " + "  ".join(f"{k} {v}" for k, v in result["error"].items()))


if __name__ == "__main__":
    main()
