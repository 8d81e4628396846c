"""Adult, KDD Cup 1999, covertype and two realisable synthetic problems as frames with public Domains."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from daskrado.table.domain import Domain
from daskrado.table.yaml_file import parse

DATA = Path(os.environ.get("DASKRADO_DATA", "../shared/data"))
NAMES = ("adult", "kdd", "covertype", "realisable", "separated")


@dataclass(frozen=True)
class Problem:
    """Private rows, public rows to ask about (their labels only score the answers), and rows to test on."""

    name: str
    domain: Domain
    private: pd.DataFrame
    public: pd.DataFrame
    test: pd.DataFrame

    def truth(self, frame: pd.DataFrame) -> np.ndarray:
        return (frame[self.domain.label.column] == self.domain.label.positive).to_numpy().astype(np.int64)


def load(name: str, queries: int, rows: int) -> Problem:
    """A problem by name, with at most ``rows`` private rows."""
    make = {
        "adult": _adult,
        "kdd": _kdd,
        "covertype": _covertype,
        "realisable": _realisable,
        "separated": partial(_realisable, gap=0.5),
    }
    frame, domain = make[name](rows + queries + 20_000)
    draw = np.random.default_rng(20180613)
    if name == "kdd":  # training and later traffic are separate files: a random split would leak repeated rows
        private, later = frame
        later = later.sample(n=queries + 20_000, random_state=1)
        private = private.sample(n=min(rows, len(private)), random_state=2).reset_index(drop=True)
        return Problem(name, domain, private, later.iloc[:queries], later.iloc[queries:])
    order = draw.permutation(len(frame))
    tested = min(20_000, len(frame) // 5)
    cut = np.split(order, [queries, queries + tested, min(len(frame), queries + tested + rows)])
    public, test, private = (frame.iloc[at].reset_index(drop=True) for at in cut[:3])
    return Problem(name, domain, private, public, test)


def _domain(label: tuple[str, Any, Any], columns: dict[str, Any], bound: float) -> Domain:
    column, positive, negative = label
    content = {
        "label": {"column": column, "positive": positive, "negative": negative},
        "norm_bound": bound,
        "columns": columns,
    }
    return parse(Domain, content, "domain")


def _numeric(lower: float, upper: float, **more: Any) -> dict[str, Any]:
    return {"kind": "numeric", "lower": lower, "upper": upper, **more}


ADULT = (
    "age workclass fnlwgt education education_num marital_status occupation relationship race sex capital_gain "
    "capital_loss hours_per_week native_country income"
)
CATEGORIES = {
    "workclass": "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov Without-pay Never-worked",
    "marital_status": "Married-civ-spouse Divorced Never-married Separated Widowed Married-spouse-absent "
    "Married-AF-spouse",
    "occupation": "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty Handlers-cleaners "
    "Machine-op-inspct Adm-clerical Farming-fishing Transport-moving Priv-house-serv Protective-serv Armed-Forces",
    "relationship": "Wife Own-child Husband Not-in-family Other-relative Unmarried",
    "race": "White Asian-Pac-Islander Amer-Indian-Eskimo Other Black",
    "sex": "Female Male",
}


def _adult(rows: int) -> tuple[pd.DataFrame, Domain]:
    del rows
    options: dict[str, Any] = {"names": ADULT.split(), "skipinitialspace": True, "na_values": "?"}
    parts = [pd.read_csv(DATA / "adult" / "adult.data", **options)]
    parts.append(pd.read_csv(DATA / "adult" / "adult.test", skiprows=1, **options))
    frame = pd.concat(parts).dropna().reset_index(drop=True)
    frame["income"] = frame["income"].str.rstrip(".")
    columns: dict[str, Any] = {
        "age": _numeric(17, 90, bins=[22, 26, 30, 35, 40, 45, 50, 60]),
        "education_num": _numeric(1, 16, bins=[6, 9, 10, 11, 13, 14, 15]),
        "hours_per_week": _numeric(1, 99, bins=[20, 35, 40, 41, 50, 60]),
        "capital_gain": _numeric(0, 99_999, bins=[1, 3000, 5000, 7000, 10_000]),
        "capital_loss": _numeric(0, 4356, bins=[1, 1500, 1800, 2000]),
    }
    for name, values in CATEGORIES.items():
        columns[name] = {"kind": "categorical", "values": values.split()}
    return frame, _domain(("income", ">50K", "<=50K"), columns, 3.5)


KDD = (
    "duration protocol_type service flag src_bytes dst_bytes land wrong_fragment urgent hot num_failed_logins "
    "logged_in num_compromised root_shell su_attempted num_root num_file_creations num_shells num_access_files "
    "num_outbound_cmds is_host_login is_guest_login count srv_count serror_rate srv_serror_rate rerror_rate "
    "srv_rerror_rate same_srv_rate diff_srv_rate srv_diff_host_rate dst_host_count dst_host_srv_count "
    "dst_host_same_srv_rate dst_host_diff_srv_rate dst_host_same_src_port_rate dst_host_srv_diff_host_rate "
    "dst_host_serror_rate dst_host_srv_serror_rate dst_host_rerror_rate dst_host_srv_rerror_rate kind"
)


def _kdd(rows: int) -> tuple[Any, Domain]:
    del rows
    names = KDD.split()
    frames = []
    for file in ("kddcup.data_10_percent.gz", "corrected.gz"):
        frame = pd.read_csv(DATA / "kddcup99" / file, names=names)
        frame["attack"] = np.where(frame["kind"] == "normal.", "no", "yes")
        frames.append(frame)
    columns: dict[str, Any] = {
        "protocol_type": {"kind": "categorical", "values": ["tcp", "udp", "icmp"]},
        "flag": {"kind": "categorical", "values": ["SF", "S0", "REJ", "RSTR", "RSTO"]},
        "duration": _numeric(0, 60_000, transform="log1p"),
        "src_bytes": _numeric(0, 1e9, transform="log1p"),
        "dst_bytes": _numeric(0, 1e9, transform="log1p"),
        "hot": _numeric(0, 100, transform="log1p"),
        "logged_in": _numeric(0, 1),
        "count": _numeric(0, 511),
        "srv_count": _numeric(0, 511),
        "dst_host_count": _numeric(0, 255),
        "dst_host_srv_count": _numeric(0, 255),
    }
    columns |= {name: _numeric(0, 1) for name in names if name.endswith("_rate")}
    return tuple(frames), _domain(("attack", "yes", "no"), columns, 4.0)


def _covertype(rows: int) -> tuple[pd.DataFrame, Domain]:
    frame = pd.read_csv(next((DATA / "covertype").glob("*.gz")))
    frame = frame.sample(n=min(rows, len(frame)), random_state=3).reset_index(drop=True)
    frame["class2"] = np.where(frame["Cover_Type"] == 2, "yes", "no")
    bounds = {
        "Elevation": (1800, 4000),
        "Aspect": (0, 360),
        "Slope": (0, 70),
        "Horizontal_Distance_To_Hydrology": (0, 1500),
        "Vertical_Distance_To_Hydrology": (-200, 700),
        "Horizontal_Distance_To_Roadways": (0, 7500),
        "Hillshade_9am": (0, 255),
        "Hillshade_Noon": (0, 255),
        "Hillshade_3pm": (0, 255),
        "Horizontal_Distance_To_Fire_Points": (0, 7500),
    }
    columns: dict[str, Any] = {name: _numeric(low, high) for name, (low, high) in bounds.items()}
    columns["Elevation"] = _numeric(1800, 4000, bins=[2300, 2500, 2600, 2700, 2800, 2900, 3000, 3100, 3200, 3300])
    columns |= {f"Wilderness_Area{i}": _numeric(0, 1) for i in range(1, 5)}
    return frame, _domain(("class2", "yes", "no"), columns, 3.5)


def _realisable(rows: int, gap: float = 0.0) -> tuple[pd.DataFrame, Domain]:
    """Labels are a halfspace of ten features, without noise; rows within ``gap`` deviations of it are left out."""
    draw = np.random.default_rng(7)
    direction = np.array([1.0, -1.0, 0.8, -0.8, 0.6, -0.6, 0.4, -0.4, 0.2, 0.2])
    x = np.clip(draw.normal(size=(2 * rows, 10)), -3, 3)
    x = x[np.abs(x @ direction) > gap * np.linalg.norm(direction)][:rows]
    frame = pd.DataFrame({f"x{i}": x[:, i] for i in range(10)})
    frame["y"] = np.where(x @ direction > 0, "yes", "no")
    return frame, _domain(("y", "yes", "no"), {f"x{i}": _numeric(-3, 3) for i in range(10)}, 4.0)
