"""Real tables for the reproductions: frames, and Domains by the paper's preprocessing or by public bounds."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from public_bins import DROPPED, RANGES

from daskrado.table.domain import Domain

ADULT = [
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education_num",
    "marital",
    "occupation",
    "relationship",
    "race",
    "sex",
    "capital_gain",
    "capital_loss",
    "hours",
    "country",
    "income",
]
DENIAL = ("back.", "land.", "neptune.", "pod.", "smurf.", "teardrop.")


def data_folder() -> Path:
    """DASKRADO_DATA, or the folder beside the project."""
    folder = Path(os.environ.get("DASKRADO_DATA", Path(__file__).parents[3] / "shared" / "data"))
    if not folder.is_dir():
        raise SystemExit(f"no data sets at {folder}: set DASKRADO_DATA")
    return folder


def _read(path: Path, **options: Any) -> pd.DataFrame:
    return pd.read_csv(path, header=None, skipinitialspace=True, **options)


def adult() -> tuple[pd.DataFrame, dict[str, list[str]]]:
    """The 45,222 complete rows, and the categories of the whole file."""
    folder = data_folder() / "adult"
    parts = [
        _read(folder / "adult.data", names=ADULT, na_values="?"),
        _read(folder / "adult.test", names=ADULT, na_values="?", skiprows=1),
    ]
    table = pd.concat(parts, ignore_index=True)
    table["income"] = table["income"].str.rstrip(".")
    texts = [name for name in ADULT if name not in RANGES["adult"] and name != "income"]
    categories = {name: sorted(table[name].dropna().unique()) for name in texts}
    return table.dropna().reset_index(drop=True), categories


def kdd() -> tuple[pd.DataFrame, dict[str, list[str]]]:
    """The 10 % file; positive: not a denial of service (a fifth of the rows, as in the paper)."""
    table = _read(data_folder() / "kddcup99" / "kddcup.data_10_percent.gz", names=[f"c{i:02d}" for i in range(42)])
    table["attack"] = np.where(table.pop("c41").isin(DENIAL), "denial", "other")
    texts = [name for name in table if not pd.api.types.is_numeric_dtype(table[name]) and name != "attack"]
    return table, {name: sorted(table[name].unique()) for name in texts}


def covertype() -> tuple[pd.DataFrame, dict[str, list[str]]]:
    """Class 2 against the rest."""
    table = pd.read_csv(next((data_folder() / "covertype").glob("*.gz")))
    table["label"] = np.where(table.pop("Cover_Type") == 2, "two", "other")
    return table, {}


def magic() -> tuple[pd.DataFrame, dict[str, list[str]]]:
    """Gamma against hadron showers."""
    table = _read(next((data_folder() / "magic").glob("*.data")))
    table.columns = [f"c{i:02d}" for i in range(10)] + ["label"]
    return table, {}


def diabetes130() -> tuple[pd.DataFrame, dict[str, list[str]]]:
    """Readmitted within 30 days; the first visit of each patient, so that a row is a patient."""
    path = next((data_folder() / "diabetes130").glob("*.zip"))
    with zipfile.ZipFile(path) as packed, packed.open("dataset_diabetes/diabetic_data.csv") as file:
        table = pd.read_csv(file, keep_default_na=False, na_values="?", low_memory=False)
    table = table.drop_duplicates("patient_nbr").reset_index(drop=True)
    table["label"] = np.where(table.pop("readmitted") == "<30", "soon", "not")
    dropped = [
        "encounter_id",
        "patient_nbr",
        "weight",
        "payer_code",
        "medical_specialty",
        "diag_1",
        "diag_2",
        "diag_3",
    ]
    table = table.drop(columns=dropped)
    texts = [name for name in table if not pd.api.types.is_numeric_dtype(table[name]) and name != "label"]
    table[texts] = table[texts].fillna("missing")
    return table, {name: sorted(table[name].unique()) for name in texts}


def eeg() -> tuple[pd.DataFrame, dict[str, list[str]]]:
    """Eyes closed against open."""
    path = next((data_folder() / "eeg_eye_state").glob("*.arff"))
    table = _read(path, comment="@", names=[f"c{i:02d}" for i in range(14)] + ["label"], skip_blank_lines=True)
    table["label"] = table["label"].astype(str)
    return table, {}


LABELS = {
    "eeg": ("label", "1", "0"),
    "adult": ("income", ">50K", "<=50K"),
    "kdd": ("attack", "other", "denial"),
    "covertype": ("label", "two", "other"),
    "magic": ("label", "g", "h"),
    "diabetes130": ("label", "soon", "not"),
}
LOADERS = {"adult": adult, "kdd": kdd, "covertype": covertype, "magic": magic, "diabetes130": diabetes130, "eeg": eeg}


def paper_domain(name: str, table: pd.DataFrame, categories: dict[str, list[str]]) -> Domain:
    """Chaudhuri et al.'s preprocessing: columns over their largest value, one-hot, rows to norm 1.

    It reads private data (the columns' maxima): a reproduction, not a practice.
    """
    label, positive, negative = LABELS[name]
    columns: dict[str, Any] = {}
    for column in table:
        if column == label:
            continue
        if column in categories:
            columns[column] = {"kind": "categorical", "values": categories[column], "other": False}
        else:
            largest = max(float(table[column].abs().max()), 1e-9)
            columns[column] = {"kind": "numeric", "lower": -largest, "upper": largest}
    return _domain(label, positive, negative, columns, 1.0, 0.0)


def public_domain(
    name: str,
    table: pd.DataFrame,
    categories: dict[str, list[str]],
    *,
    edges: dict[str, list[float]] | None = None,
) -> Domain:
    """Public bounds and categories; ``edges``, from ``public_bins``, cuts numbers in bins.

    Where nothing is declared there, the next power of 10 above a column's values stands in for its owner's bound.
    """
    label, positive, negative = LABELS[name]
    columns: dict[str, Any] = {}
    for column in table:
        if column == label or (edges is not None and column in DROPPED.get(name, ())):
            continue
        known = RANGES[name].get(column)
        if column in categories:
            columns[column] = {"kind": "categorical", "values": categories[column], "other": False}
        elif edges is not None and known is not None:
            # bins are half open: a bound of their own lets the lowest value in
            columns[column] = {"kind": "numeric", "lower": known.lower - 1, "upper": known.upper + 1}
            columns[column]["bins"] = edges[column]
        else:
            largest = 10.0 ** np.ceil(np.log10(max(float(table[column].abs().max()), 1e-6)))
            if name == "adult" and known is not None:
                largest = known.upper
            # symmetric bounds keep zero at zero, as in the paper
            columns[column] = {"kind": "numeric", "lower": -largest, "upper": largest}
            if name == "eeg" and known is not None:
                columns[column] |= {"lower": known.lower, "upper": known.upper}
    return _domain(label, positive, negative, columns, 1.0, 0.25 if name == "eeg" else 0.0)


def wide_domain(name: str, table: pd.DataFrame, categories: dict[str, list[str]]) -> Domain:
    """What an owner writes down: plain numbers from 0, or minus the power of 10, an intercept, the usual norm."""
    known = public_domain(name, table, categories)
    columns = {column: known.columns[column].model_dump() for column in known.columns}
    for column, keys in columns.items():
        if keys["kind"] == "numeric" and name != "eeg" and table[column].min() >= 0:
            keys["lower"] = 0.0
    return Domain.model_validate({"label": known.label.model_dump(), "columns": columns})


def _domain(label: str, positive: str, negative: str, columns: dict[str, Any], bound: float, one: float) -> Domain:
    return Domain.model_validate(
        {
            "label": {"column": label, "positive": positive, "negative": negative},
            "norm_bound": bound,
            "intercept": one,
            "columns": columns,
        }
    )
