"""The public data sets of the RadoBoost tables, as their author prepared them. Not private, on purpose.

Features are standardised by the data's own mean and standard deviation, which no private release could do: these
scripts reproduce published figures.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from daskrado.statistics import HadamardRados, Rows, Statistic
from daskrado.statistics.base import Place
from daskrado.statistics.rados import rados_from_sketch
from daskrado.table.lattice import Lattice

FOLDS = 10
BITS = 24


def data_folder() -> Path:
    path = Path(os.environ.get("DASKRADO_DATA", Path(__file__).parents[3] / "shared" / "data"))
    if not path.is_dir():
        sys.exit(f"no data sets at {path}: set DASKRADO_DATA to the folder that holds them")
    return path


@dataclass(frozen=True)
class DataSet:
    """Standardised features and labels +-1."""

    name: str
    x: np.ndarray
    y: np.ndarray

    def folds(self, seed: int = 0) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Ten stratified (train, test) index pairs."""
        draw = np.random.default_rng(seed)
        at = np.zeros(len(self.y), dtype=int)
        for label in (-1, 1):
            rows = draw.permutation(np.flatnonzero(self.y == label))
            at[rows] = np.arange(len(rows)) % FOLDS
        for fold in range(FOLDS):
            yield np.flatnonzero(at != fold), np.flatnonzero(at == fold)


def _frame(path: Path, **options: object) -> pd.DataFrame:
    return pd.read_csv(path, skipinitialspace=True, **options)


def load(name: str) -> DataSet:
    """One of NAMES."""
    base = data_folder()
    if name == "abalone":
        frame = _frame(base / "abalone" / "abalone.csv", header=None)
        frame[0] = frame[0].map({"M": 0.0, "F": 1.0, "I": 2.0})
        y = frame[8] > frame[8].mean()
        x = frame.iloc[:, :8]
    elif name == "wine white":
        frame = _frame(base / "wine" / "winequality-white.csv", header=None)
        y, x = frame[11] > frame[11].mean(), frame.iloc[:, :11]
    elif name == "magic":
        frame = _frame(base / "magic" / "magic04.data", header=None)
        y, x = frame[10] == "g", frame.iloc[:, :10]
    elif name == "EEG":
        text = (base / "eeg_eye_state" / "EEG_Eye_State.arff").read_text()
        frame = _frame(io.StringIO(text[text.upper().index("@DATA") + 5 :]), header=None)
        y, x = frame[14] == 1, frame.iloc[:, :14]
    elif name == "banknote":
        frame = _frame(base / "banknote" / "banknote_authentication.csv", header=None)
        y, x = frame[4] == 1, frame.iloc[:, :4]
    elif name == "ionosphere":
        frame = _frame(base / "ionosphere" / "ionosphere.csv", header=None)
        y, x = frame[34] == "g", frame.iloc[:, :34]
    elif name == "sonar":
        frame = _frame(base / "sonar" / "sonar.csv", header=None)
        y, x = frame[60] == "M", frame.iloc[:, :60]
    elif name == "breast":
        path = base / "breast_cancer_wisconsin" / "breast-cancer-wisconsin.data"
        frame = _frame(path, header=None, na_values="?").dropna()
        y, x = frame[10] == 4, frame.iloc[:, 1:10]
    elif name == "transfusion":
        frame = _frame(base / "transfusion" / "transfusion.data")
        y, x = frame["target"] == 1, frame.iloc[:, :4]
    elif name == "haberman":
        frame = _frame(base / "haberman" / "haberman.csv", header=None)
        y, x = frame[3] == 2, frame.iloc[:, :3]
    elif name == "fertility":
        frame = _frame(base / "fertility" / "fertility_Diagnosis.txt")
        y, x = frame.iloc[:, -1].str.strip() == "O", frame.iloc[:, :-1]
    else:
        sys.exit(f"data set {name!r} is unknown; known: {', '.join(NAMES)}")
    values = x.to_numpy(dtype=float)
    spread = values.std(axis=0)
    values = (values - values.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    return DataSet(name, values, np.where(y.to_numpy(), 1, -1).astype(np.int8))


NAMES = (
    "abalone",
    "wine white",
    "magic",
    "EEG",
    "banknote",
    "ionosphere",
    "sonar",
    "breast",
    "transfusion",
    "haberman",
    "fertility",
)


def rados(statistic: Statistic, x: np.ndarray, y: np.ndarray, seed: int) -> np.ndarray:
    """The product's own rados of rows in memory: quantised far below the data's resolution, nothing clipped."""
    lattice = Lattice(float(np.linalg.norm(x, axis=1).max()) * 1.001, BITS)
    draw = np.random.default_rng(seed)
    place = Place(draw.bytes(32), 0, len(y))
    rows = Rows(
        lattice.quantise(np.asfortranarray(x)), y, draw.integers(0, 2**64, len(y), dtype=np.uint64), place=place
    )
    parts = statistic.split(statistic.partial(rows))
    inner = getattr(statistic, "base", statistic)
    if isinstance(inner, HadamardRados):
        return rados_from_sketch(parts["sketch"] * lattice.step)
    return parts["rados"] * lattice.step


def error(theta: np.ndarray, x: np.ndarray, y: np.ndarray) -> float:
    """Percent of rows with the wrong sign; a margin of 0 counts as positive."""
    return 100.0 * float(((x @ theta >= 0) != (y > 0)).mean())


def errors(thetas: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The same for one theta per row."""
    wrong = np.zeros(len(thetas))
    for start in range(0, len(y), 4096):
        piece = slice(start, start + 4096)
        wrong += ((x[piece] @ thetas.T >= 0) != (y[piece, None] > 0)).sum(axis=0)
    return 100.0 * wrong / len(y)


def p_value(a: list[float], b: list[float]) -> float | None:
    """Two-tailed paired t-test; None where the two never differ."""
    difference = np.subtract(a, b)
    if np.ptp(difference) < 1e-12:
        return None if abs(difference[0]) < 1e-12 else 0.0
    return float(stats.ttest_rel(a, b).pvalue)


def say(text: str) -> None:
    """Progress, beside the one JSON object on stdout."""
    print(text, file=sys.stderr, flush=True)
