"""One patient instead of one row, on diabetes130: AUC of noisy moments for held-out patients.

71,518 patients own 101,766 visits, up to 40 each. ``rows`` protects a visit only; ``declared`` protects a patient by
declaring 40 rows for each, which multiplies the noise; ``spread`` and ``sample`` bound what a patient counts for.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.metrics import roc_auc_score

import daskrado

DATA = Path(__file__).parents[2].parent / "shared/data/diabetes130/dataset_diabetes.zip"
COUNTS = {
    "time_in_hospital": [2, 3, 4, 6, 8, 11],
    "num_lab_procedures": [20, 35, 45, 55, 70],
    "num_procedures": [1, 2, 4],
    "num_medications": [8, 12, 16, 20, 28],
    "number_outpatient": [1, 2, 4],
    "number_emergency": [1, 2, 4],
    "number_inpatient": [1, 2, 3, 5],
    "number_diagnoses": [5, 7, 9],
}
CATEGORIES = {
    "age": [f"[{low}-{low + 10})" for low in range(0, 100, 10)],
    "gender": ["Female", "Male"],
    "race": ["Caucasian", "AfricanAmerican", "Hispanic", "Asian"],
    "admission_type_id": [1, 2, 3],
    "discharge_disposition_id": [1, 2, 3, 5, 6, 11, 18, 22],
    "admission_source_id": [1, 2, 4, 7, 17],
    "max_glu_serum": [">200", ">300", "Norm"],
    "A1Cresult": [">7", ">8", "Norm"],
    "insulin": ["No", "Steady", "Up", "Down"],
    "change": ["Ch", "No"],
    "diabetesMed": ["Yes", "No"],
}
UNIT = {"column": "patient_nbr", "name": "one patient"}
WAYS: dict[str, dict[str, Any]] = {
    "rows": {"unit": "one visit"},
    "declared": {"unit": "one patient", "rows_per_unit": 40},
    "spread": {"unit": UNIT},
    "sample": {"unit": {**UNIT, "how": "sample"}},
}


def domain() -> dict[str, Any]:
    numbers = {name: {"kind": "numeric", "lower": 0, "upper": 150, "bins": edges} for name, edges in COUNTS.items()}
    texts = {
        name: {"kind": "categorical", "values": values, "nulls": {"fill": "none"}}
        if isinstance(values[0], str)
        else {"kind": "categorical", "values": values}
        for name, values in CATEGORIES.items()
    }
    columns = {**numbers, **texts}
    return {
        "id": "encounter_id",
        "label": {"column": "readmitted", "positive": True, "negative": False},
        "norm_bound": 4.6,
        "columns": columns,
    }


def visits(label: str) -> pd.DataFrame:
    with zipfile.ZipFile(DATA) as archive:
        name = next(name for name in archive.namelist() if name.endswith("diabetic_data.csv"))
        frame = pd.read_csv(archive.open(name), na_values="?", low_memory=False)
    early = frame["readmitted"] == "<30" if label == "early" else frame["readmitted"] != "NO"
    return frame.assign(readmitted=early)[["encounter_id", "patient_nbr", "readmitted", *COUNTS, *CATEGORIES]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--learner", default="moments")
    parser.add_argument("--label", choices=["any", "early"], default="any")
    parser.add_argument("--ways", nargs="+", default=list(WAYS))
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    frame = visits(given.label)
    held_out = frame["patient_nbr"] % 5 == 0
    train, test = frame[~held_out], frame[held_out]
    found: dict[str, dict[str, float]] = {}
    for way in given.ways:
        scores = []
        with tempfile.TemporaryDirectory() as folder:
            for draw in range(given.draws):
                result = daskrado.fit(
                    train,
                    domain(),
                    dataset="diabetes",
                    epsilon=given.epsilon,
                    delta=1e-6,
                    learner=given.learner,
                    rows=None if given.learner == "moments" else 57_000,
                    ledger=Path(folder) / f"{draw}.sqlite",
                    first_limit=(50.0, 1e-4),
                    workers=0,
                    **WAYS[way],
                )
                scores.append(roc_auc_score(test["readmitted"], result.model.margins(test)))
        spread = float(np.std(scores) / np.sqrt(max(1, len(scores) - 1)))
        found[way] = {"auc": round(float(np.mean(scores)), 4), "se": round(spread, 4)}
        if not given.json:
            print(f"{way:>9}  AUC {found[way]['auc']:.4f} ± {spread:.4f}   {result.statement.sentence()}")
    if given.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
