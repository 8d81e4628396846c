"""The data sets of the label experiments, encoded by public Domains: no bound or category is read from the rows."""

from __future__ import annotations

import sys
import zipfile
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from rado_data import data_folder

from daskrado.table.domain import Domain
from daskrado.table.encoding import encode_table
from daskrado.table.lattice import Lattice

BITS = 20


@dataclass(frozen=True)
class DataSet:
    """Whole-number rows on the grid, labels +-1, and the natural bag of each row where there is one."""

    name: str
    steps: np.ndarray
    y: np.ndarray
    bags: np.ndarray | None

    @property
    def rows(self) -> np.ndarray:
        """Rows as shares of the norm bound."""
        return np.ldexp(self.steps, -BITS)

    def split(self, seed: int, most: int) -> tuple[DataSet, DataSet]:
        """Seven tenths to train (at most ``most`` rows), the rest to test."""
        order = np.random.default_rng(seed).permutation(len(self.y))
        cut = int(0.7 * len(order))
        return self.take(order[:cut][:most]), self.take(order[cut:])

    def take(self, index: np.ndarray) -> DataSet:
        return DataSet(self.name, self.steps[index], self.y[index], None if self.bags is None else self.bags[index])


def number(low: float, high: float, fill: float | None = None, **more: Any) -> dict[str, Any]:
    nulls = {} if fill is None else {"nulls": {"fill": fill}}
    return {"kind": "numeric", "lower": low, "upper": high, **nulls, **more}


def choice(*values: str) -> dict[str, Any]:
    return {"kind": "categorical", "values": list(values)}


def _encode(name: str, frame: pd.DataFrame, label: np.ndarray, columns: dict[str, Any], bags: Any = None) -> DataSet:
    domain = Domain.model_validate(
        {
            "label": {"column": "label", "positive": "+", "negative": "-"},
            "norm_bound": float(np.sqrt(len(columns) + 1)),
            "columns": columns,
        }
    )
    table = pa.Table.from_pandas(frame[list(columns)], preserve_index=False)
    encoded = encode_table(domain, table, label=False)
    rows = encoded.block(0, len(frame), np.empty((len(frame), domain.width), order="F"))
    if encoded.problems:
        sys.exit(f"{name}: {'; '.join(map(str, encoded.problems))}")
    steps = Lattice(domain.norm_bound, BITS).quantise(rows)
    return DataSet(name, np.ascontiguousarray(steps), np.where(label, 1.0, -1.0), bags)


def adult() -> DataSet:
    names = [
        "age", "workclass", "weight", "education", "years", "marital", "occupation", "relationship", "race", "sex",
        "gain", "loss", "hours", "country", "income",
    ]  # fmt: skip
    folder = data_folder() / "adult"
    options: dict[str, Any] = {"names": names, "skipinitialspace": True, "na_values": "?"}
    parts = [pd.read_csv(folder / "adult.data", **options), pd.read_csv(folder / "adult.test", skiprows=1, **options)]
    frame = pd.concat(parts).dropna().reset_index(drop=True)
    columns = {
        "age": number(17, 90, bins=[25, 30, 35, 40, 45, 50, 55, 60, 65]),
        "workclass": choice("Federal-gov", "Local-gov", "Private", "Self-emp-inc", "Self-emp-not-inc", "State-gov"),
        "years": number(1, 16, bins=[9, 10, 11, 12, 13, 14, 15]),
        "marital": choice("Divorced", "Married-civ-spouse", "Never-married", "Separated", "Widowed"),
        "occupation": choice(
            "Adm-clerical", "Craft-repair", "Exec-managerial", "Farming-fishing", "Handlers-cleaners",
            "Machine-op-inspct", "Other-service", "Prof-specialty", "Protective-serv", "Sales", "Tech-support",
            "Transport-moving",
        ),
        "relationship": choice("Husband", "Not-in-family", "Other-relative", "Own-child", "Unmarried", "Wife"),
        "sex": choice("Female", "Male"),
        "gain": number(0, 99999, bins=[1, 3000, 5000, 7000, 10000]),
        "loss": number(0, 5000, bins=[1, 1500, 2000]),
        "hours": number(1, 99, bins=[20, 35, 40, 45, 50, 60]),
    }  # fmt: skip
    return _encode(
        "adult", frame, frame["income"].str.startswith(">").to_numpy(), columns, frame["education"].to_numpy()
    )


def magic() -> DataSet:
    frame = pd.read_csv(data_folder() / "magic/magic04.data", header=None)
    frame.columns = [*(f"f{i}" for i in range(10)), "class"]
    bounds = [
        (0, 350),
        (0, 260),
        (1.9, 5.4),
        (0, 0.9),
        (0, 0.7),
        (-460, 580),
        (-335, 240),
        (-210, 180),
        (0, 90),
        (0, 500),
    ]
    columns = {f"f{i}": number(*pair) for i, pair in enumerate(bounds)}
    return _encode("magic", frame, (frame["class"] == "g").to_numpy(), columns)


def heart() -> DataSet:
    names = [
        "age", "sex", "cp", "pressure", "chol", "sugar", "ecg", "rate", "angina", "peak", "slope", "vessels", "thal",
        "disease",
    ]  # fmt: skip
    parts = []
    for site in ("cleveland", "hungarian", "switzerland", "va"):
        part = pd.read_csv(data_folder() / f"heart_disease/processed.{site}.data", names=names, na_values="?")
        parts.append(part.assign(site=site))
    frame = pd.concat(parts).reset_index(drop=True)
    for name in names:
        frame[name] = frame[name].astype(float)
    columns = {
        "age": number(20, 80),
        "sex": number(0, 1),
        "cp": number(1, 5, bins=[2, 3, 4]),
        "pressure": number(80, 200, 130),
        "rate": number(60, 210, 140),
        "angina": number(0, 1, 0),
        "peak": number(-3, 7, 0),
    }
    return _encode("heart", frame, (frame["disease"] > 0).to_numpy(), columns, frame["site"].to_numpy())


def diabetes130() -> DataSet:
    """Positive: readmitted at all. (Within 30 days is so rare that no linear classifier beats saying no.)"""
    path, inside = data_folder() / "diabetes130/dataset_diabetes.zip", "dataset_diabetes/diabetic_data.csv"
    with zipfile.ZipFile(path) as archive, archive.open(inside) as file:
        frame = pd.read_csv(file, keep_default_na=False, na_values="?", low_memory=False)
    frame = frame.drop_duplicates("patient_nbr").reset_index(drop=True)  # the patient is the unit: one row each
    columns = {
        "time_in_hospital": number(1, 14),
        "num_lab_procedures": number(1, 132),
        "num_procedures": number(0, 6),
        "num_medications": number(1, 81),
        "number_outpatient": number(0, 42, transform="log1p"),
        "number_emergency": number(0, 76, transform="log1p"),
        "number_inpatient": number(0, 21, transform="log1p"),
        "number_diagnoses": number(1, 16),
        "age": choice(
            "[0-10)", "[10-20)", "[20-30)", "[30-40)", "[40-50)", "[50-60)", "[60-70)", "[70-80)", "[80-90)"
        ),
        "insulin": choice("Down", "No", "Steady", "Up"),
        "change": choice("Ch", "No"),
        "diabetesMed": choice("Yes", "No"),
    }
    source = frame["admission_source_id"].to_numpy()
    bags = np.where(np.isin(source, [1, 7, 17, 4, 6, 2, 5]), source, 0).astype(str)
    return _encode("diabetes130", frame, (frame["readmitted"] != "NO").to_numpy(), columns, bags)


DATA = {"adult": adult, "heart": heart, "magic": magic, "diabetes130": diabetes130}
