"""Error of private classifiers of several classes, on covertype (7 classes) and wine (7 grades), beside scikit-learn.

    python pipelines/reproduce/several_classes.py --tables covertype --rows 500000 --epsilon 3

One-vs-rest logistic regression of scikit-learn learns from the same columns, scaled to [-1, 1], without privacy and
without clipping. Error is on the rows that training did not see.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from tables import data_folder

import daskrado
from daskrado.table.domain import Domain

DELTA = 1e-6
COVERTYPE = {
    "Elevation": (1800, 4000), "Aspect": (0, 360), "Slope": (0, 70),
    "Horizontal_Distance_To_Hydrology": (0, 1500), "Vertical_Distance_To_Hydrology": (-200, 700),
    "Horizontal_Distance_To_Roadways": (0, 7500), "Hillshade_9am": (0, 255), "Hillshade_Noon": (0, 255),
    "Hillshade_3pm": (0, 255), "Horizontal_Distance_To_Fire_Points": (0, 7500),
}  # fmt: skip


def covertype() -> tuple[pd.DataFrame, Domain]:
    """Ten numbers in public bounds, one of four areas, one of forty soils."""
    table = pd.read_csv(next((data_folder() / "covertype").glob("*.gz")))
    found = table[list(COVERTYPE)].astype(float)
    for name, prefix in (("area", "Wilderness_Area"), ("soil", "Soil_Type")):
        columns = [column for column in table if column.startswith(prefix)]
        found[name] = table[columns].to_numpy().argmax(axis=1)
    found["cover"] = table["Cover_Type"].to_numpy()
    columns: dict[str, Any] = {
        name: {"kind": "numeric", "lower": low, "upper": high} for name, (low, high) in COVERTYPE.items()
    }
    columns["area"] = {"kind": "categorical", "values": list(range(4)), "other": False}
    columns["soil"] = {"kind": "categorical", "values": list(range(40)), "other": False}
    return found, Domain(label={"column": "cover", "classes": list(range(1, 8))}, columns=columns)


def wine() -> tuple[pd.DataFrame, Domain]:
    """Grades 3 to 9 of white wines."""
    from regression import wine as numbers

    table, domain = numbers()
    return table, domain.model_copy(
        update={"label": type(domain.label)(column="quality", classes=tuple(range(3, 10)))}
    )


TABLES = {"covertype": covertype, "wine": wine}


def spread(table: pd.DataFrame, domain: Domain) -> np.ndarray:
    """Rows as scikit-learn takes them: numbers on [-1, 1], one-hot categories."""
    parts = []
    for name, column in domain.columns.items():
        if column.kind == "numeric":
            parts.append(np.clip(2 * (table[name] - column.lower) / (column.upper - column.lower) - 1, -1, 1))
        else:
            parts += [table[name] == value for value in column.values]
    return np.column_stack(parts).astype(np.float64)


def measured(name: str, rows: int, epsilon: float, draws: int, learners: list[str]) -> dict[str, Any]:
    """Errors of each way."""
    table, domain = TABLES[name]()
    mixed = table.iloc[np.random.default_rng(0).permutation(len(table))].reset_index(drop=True)
    rows = min(rows, len(mixed) * 4 // 5) if name != "covertype" else rows
    train, test = mixed[:rows], mixed[rows:]
    truth = test[domain.label.column]
    plain = OneVsRestClassifier(LogisticRegression(C=100.0, max_iter=300, tol=1e-3))
    plain.fit(spread(train, domain), train[domain.label.column])
    wrong = plain.predict(spread(test, domain)) != truth
    found: dict[str, Any] = {"scikit-learn, one-vs-rest": float(wrong.mean())}
    for learner in learners:
        errors = []
        for _ in range(draws):
            with tempfile.TemporaryDirectory() as folder:
                model = daskrado.fit(
                    train, domain, dataset=name, epsilon=epsilon, delta=DELTA, unit="one row", learner=learner,
                    rows=rows, ledger=Path(folder) / "ledger.sqlite", first_limit=(50, 1e-4),
                ).model  # fmt: skip
            assert model is not None
            errors.append(float((model.predict(test) != truth.to_numpy()).mean()))
        found[learner] = float(np.mean(errors))
    return found


def main() -> None:
    """Print a table, or JSON."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--epsilon", type=float, default=3.0)
    options.add_argument("--rows", type=int, default=500_000)
    options.add_argument("--draws", type=int, default=1)
    options.add_argument("--learners", default="moments,gradient")
    options.add_argument("--tables", default=",".join(TABLES))
    options.add_argument("--json", action="store_true")
    asked = options.parse_args()
    given = asked.rows, asked.epsilon, asked.draws, asked.learners.split(",")
    found = {name: measured(name, *given) for name in asked.tables.split(",")}
    if asked.json:
        print(json.dumps(found, indent=2))
        return
    for name, ways in found.items():
        for way, error in ways.items():
            print(f"{name:10} {way:28} error {error:.4f}")


if __name__ == "__main__":
    main()
