"""PrivateClassifier and PrivateRegressor beside diffprivlib's, on the same encoded rows, folds and relation.

    python pipelines/reproduce/estimators_peers.py --json --draws 5

diffprivlib does not work with current versions of scikit-learn: this script makes a virtual environment for
it (``--environment``, once; needs the package index) and runs itself there. Both protect the replacement of one
row and get rows of norm 1 by public bounds; ours has delta 1e-6, diffprivlib none. Error of the classifiers and R^2
of the regressions are on a fifth of the rows, by a fixed shuffle, mean over draws of the noise.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

EPSILONS = (0.1, 0.3, 1.0, 3.0)
DELTA = 1e-6
PINS = ("diffprivlib==0.6.6", "scikit-learn==1.5.2")
CLASSES, NUMBERS = ("adult", "magic"), ("abalone", "wine")
MOST_ROWS = 50_000


def r_squared(y: np.ndarray, told: np.ndarray) -> float:
    """1 less the share of the variance that is left, of predictions within the bounds."""
    return 1 - float(((y - np.clip(told, -1, 1)) ** 2).mean() / y.var())


def peer(folder: Path, draws: int) -> dict[str, dict[str, list[float]]]:
    """diffprivlib's figures on every table in a folder; runs in its own environment."""
    import warnings

    from diffprivlib.models import LinearRegression, LogisticRegression

    warnings.simplefilter("ignore")  # of its own old calls
    found: dict[str, dict[str, list[float]]] = {}
    for path in sorted(folder.glob("*.npz")):
        with np.load(path) as rows:
            x, y, x_test, y_test = (rows[name] for name in ("x", "y", "x_test", "y_test"))
        found[path.stem] = {}
        for epsilon in EPSILONS:
            scores = []
            for draw in range(draws):
                if path.stem in CLASSES:
                    model = LogisticRegression(
                        epsilon=epsilon, data_norm=1.0, C=0.01, max_iter=500, random_state=draw
                    )
                    scores.append(float((model.fit(x, y).predict(x_test) != y_test).mean()))
                else:
                    model = LinearRegression(
                        epsilon=epsilon, bounds_X=(-1.0, 1.0), bounds_y=(-1.0, 1.0), random_state=draw
                    )
                    scores.append(r_squared(y_test, model.fit(x, y).predict(x_test)))
            found[path.stem][f"{epsilon:g}"] = scores
    return found


def split(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Places of training and of test rows."""
    mixed = np.random.default_rng(0).permutation(rows)
    return mixed[rows // 5 :], mixed[: rows // 5]


def ours(name: str, draws: int, folder: Path) -> dict[str, list[float]]:
    """Our figures on one table; leaves its encoded rows in the folder for the peer."""
    from peers import load, rows_of
    from regression import TABLES, encoded

    from daskrado.sklearn import PrivateClassifier, PrivateRegressor

    classes = name in CLASSES
    if classes:
        table, at = load(name, MOST_ROWS)
        domain = at(1.0)
        x, y = rows_of(table, domain)
        x = x / domain.norm_bound
    else:
        table, domain = TABLES[name]()
        x, y = encoded(table, domain)
        x = x[:, : domain.width - 1] * domain.norm_bound  # features between -1 and 1: it fits a constant by itself
    train, test = split(len(table))
    np.savez(folder / f"{name}.npz", x=x[train], y=y[train], x_test=x[test], y_test=y[test])
    found: dict[str, list[float]] = {}
    for epsilon in EPSILONS:
        scores = []
        for draw in range(draws):
            ledger = folder / f"{name}-{epsilon:g}-{draw}.sqlite"
            facts: dict[str, Any] = {"dataset": name, "epsilon": epsilon, "delta": DELTA, "relation": "replace_one"}
            kind = PrivateClassifier if classes else PrivateRegressor
            model = kind(domain, **facts, ledger=ledger, first_limit=(50, 1e-4)).fit(table.iloc[train])
            score = model.score(table.iloc[test])
            scores.append(1 - score if classes else score)
        found[f"{epsilon:g}"] = scores
    return found


def interpreter(environment: Path) -> Path:
    """The Python of the peer's environment, which is made where it is missing."""
    python = environment / "bin" / "python"
    if not python.exists():
        venv.create(environment, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *PINS], check=True)
    return python


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--tables", default=",".join((*CLASSES, *NUMBERS)))
    parser.add_argument("--environment", type=Path, default=Path("runs/diffprivlib"))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--peer", type=Path, help=argparse.SUPPRESS)  # the folder of encoded rows, in its environment
    asked = parser.parse_args()
    if asked.peer is not None:
        print(json.dumps(peer(asked.peer, asked.draws)))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = {"ours": {table: ours(table, asked.draws, folder) for table in asked.tables.split(",")}}
        command = [interpreter(asked.environment), __file__, "--peer", name, "--draws", str(asked.draws)]
        told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        found["diffprivlib"] = json.loads(told.splitlines()[-1])
    if asked.json:
        print(json.dumps(found))
        return
    for table in found["ours"]:
        for side, scores in found.items():
            means = " / ".join(f"{np.mean(scores[table][f'{epsilon:g}']):.3f}" for epsilon in EPSILONS)
            print(f"{table}, {'error' if table in CLASSES else 'R2'}, {side}: {means}")


if __name__ == "__main__":
    main()
