"""R^2 of private regressions on abalone, wine and diabetes130 against AdaSSP and exact least squares.

    python pipelines/reproduce/regression.py --epsilon 1 --draws 20

AdaSSP is Wang (2018), algorithm 2, written anew here on the same encoded rows: a third of the budget on the least
eigenvalue, on X'X and on X'y each. R^2 is on a fifth of the rows, by a fixed shuffle, mean and standard error over
draws of the noise.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from tables import data_folder

import daskrado
from daskrado.models.linear import LinearModel
from daskrado.privacy.statement import PrivacyStatement
from daskrado.table.domain import Domain

DELTA = 1e-6


def numbers(**bounds: tuple[float, float]) -> dict[str, Any]:
    """Columns of numbers between public bounds."""
    return {name: {"kind": "numeric", "lower": low, "upper": high} for name, (low, high) in bounds.items()}


def abalone() -> tuple[pd.DataFrame, Domain]:
    """Rings by size and weight; bounds are round numbers for an animal of at most 20 cm and 3 kg (units of 200)."""
    names = ["sex", "length", "diameter", "height", "whole", "shucked", "viscera", "shell", "rings"]
    table = pd.read_csv(data_folder() / "abalone" / "abalone.csv", names=names)
    columns = numbers(
        length=(0, 1), diameter=(0, 1), height=(0, 0.5), whole=(0, 3), shucked=(0, 1.5), viscera=(0, 1), shell=(0, 1)
    )
    sex = {"kind": "categorical", "values": ["M", "F", "I"], "other": False}
    return table, Domain(label={"column": "rings", "bounds": (0, 30)}, columns={"sex": sex, **columns})


def wine() -> tuple[pd.DataFrame, Domain]:
    """Quality of 4,898 white wines, from 0 to 10."""
    bounds = {
        "acidity": (3, 15), "volatile": (0, 1.5), "citric": (0, 1.5), "sugar": (0, 30), "chlorides": (0, 0.3),
        "free": (0, 120), "sulfur": (0, 350), "density": (0.985, 1.01), "pH": (2.5, 4), "sulphates": (0, 1.2),
        "alcohol": (8, 15),
    }  # fmt: skip
    table = pd.read_csv(data_folder() / "wine" / "winequality-white.csv", names=[*bounds, "quality"])
    return table, Domain(label={"column": "quality", "bounds": (0, 10)}, columns=numbers(**bounds))


def diabetes130() -> tuple[pd.DataFrame, Domain]:
    """Days in hospital, 1 to 14, of 101,766 stays."""
    file = zipfile.ZipFile(data_folder() / "diabetes130" / "dataset_diabetes.zip")
    with file.open("dataset_diabetes/diabetic_data.csv") as stream:
        table = pd.read_csv(stream, keep_default_na=False, na_values="?", low_memory=False)
    columns = numbers(
        num_lab_procedures=(0, 100), num_procedures=(0, 6), num_medications=(0, 60), number_outpatient=(0, 10),
        number_emergency=(0, 10), number_inpatient=(0, 10), number_diagnoses=(1, 16),
    )  # fmt: skip
    ages = tuple(f"[{low}-{low + 10})" for low in range(0, 100, 10))
    texts = {"age": ages, "gender": ("Female", "Male"), "change": ("Ch", "No"), "diabetesMed": ("Yes", "No")}
    texts |= {"insulin": ("Down", "No", "Steady", "Up"), "A1Cresult": (">7", ">8", "None", "Norm")}
    columns |= {name: {"kind": "categorical", "values": values} for name, values in texts.items()}
    ids = {"admission_type_id": 8, "discharge_disposition_id": 28, "admission_source_id": 25}
    columns |= {name: {"kind": "categorical", "values": tuple(range(1, top + 1))} for name, top in ids.items()}
    return table, Domain(label={"column": "time_in_hospital", "bounds": (1, 14)}, columns=columns)


TABLES = {"abalone": abalone, "wine": wine, "diabetes130": diabetes130}


def encoded(table: pd.DataFrame, domain: Domain) -> tuple[np.ndarray, np.ndarray]:
    """Rows of norm at most 1 and labels in [-1, 1], by the models' own encoding: one margin for each feature."""
    none = PrivacyStatement.none()
    eye = np.eye(domain.width)
    x = np.column_stack([LinearModel(domain, one, none, "one feature").margins(table) for one in eye])
    middle, half = domain.label.span
    return x / domain.norm_bound, np.clip((table[domain.label.column].to_numpy(float) - middle) / half, -1, 1)


def adassp(x: np.ndarray, y: np.ndarray, epsilon: float, draw: np.random.Generator) -> np.ndarray:
    """Wang (2018), algorithm 2, with |x| <= 1 and |y| <= 1."""
    d, third = x.shape[1], epsilon / 3
    lever = math.sqrt(math.log(6 / DELTA)) / third
    values = np.linalg.eigvalsh(x.T @ x)
    least = max(0.0, values[0] + lever * draw.normal() - math.log(6 / DELTA) / third)
    ridge = max(0.0, math.sqrt(d * math.log(6 / DELTA) * math.log(2 * d**2 / 0.05)) / third - least)
    noise = np.triu(draw.normal(size=(d, d)))
    noise += np.triu(noise, 1).T
    return np.linalg.solve(x.T @ x + lever * noise + ridge * np.eye(d), x.T @ y + lever * draw.normal(size=d))


def r_square(y: np.ndarray, predicted: np.ndarray) -> float:
    """1 less the share of the variance that is left."""
    return 1 - float(((y - predicted) ** 2).mean() / y.var())


def ours(table: pd.DataFrame, domain: Domain, epsilon: float, learner: Any) -> LinearModel:
    """One private fit under add/remove, on a ledger of its own."""
    with tempfile.TemporaryDirectory() as folder:
        found = daskrado.fit(
            table, domain, dataset="regression", epsilon=epsilon, delta=DELTA, unit="one row", learner=learner,
            rows=len(table), ledger=Path(folder) / "ledger.sqlite", first_limit=(50, 1e-4),
        )  # fmt: skip
    assert found.model is not None
    return found.model


def measured(name: str, epsilon: float, draws: int, learners: list[str]) -> dict[str, Any]:
    """R^2 of each way on one table."""
    table, domain = TABLES[name]()
    mixed = table.iloc[np.random.default_rng(0).permutation(len(table))].reset_index(drop=True)
    test, train = mixed[: len(mixed) // 5], mixed[len(mixed) // 5 :]
    truth = test[domain.label.column].to_numpy(float)
    (x, y), (new, _) = encoded(train, domain), encoded(test, domain)
    middle, half = domain.label.span

    def score(theta: np.ndarray) -> float:
        return r_square(truth, np.clip(middle + half * (new @ theta), *domain.label.bounds))

    draw = np.random.default_rng(1)
    found = {"exact": [score(np.linalg.lstsq(x, y, rcond=None)[0])]}
    found["adassp"] = [score(adassp(x, y, epsilon, draw)) for _ in range(draws)]
    for learner in learners:
        models = [ours(train, domain, epsilon, learner) for _ in range(draws)]
        found[learner] = [r_square(truth, model.predict(test).to_numpy()) for model in models]
    return {
        key: {"r2": float(np.mean(values)), "se": float(np.std(values) / math.sqrt(len(values)))}
        for key, values in found.items()
    }


def main() -> None:
    """Print a table, or JSON."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--epsilon", type=float, default=1.0)
    options.add_argument("--draws", type=int, default=20)
    options.add_argument("--learners", default="moments,gradient")
    options.add_argument("--tables", default=",".join(TABLES))
    options.add_argument("--json", action="store_true")
    asked = options.parse_args()
    learners = asked.learners.split(",")
    found = {name: measured(name, asked.epsilon, asked.draws, learners) for name in asked.tables.split(",")}
    if asked.json:
        print(json.dumps(found, indent=2))
        return
    for name, ways in found.items():
        for way, one in ways.items():
            print(f"{name:12} {way:24} R^2 {one['r2']:.4f} +- {one['se']:.4f}")


if __name__ == "__main__":
    main()
