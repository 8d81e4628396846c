"""A row's value never causes a message: private runs on two lakes of a pair look the same from outside.

One lake is usable throughout. The other holds, in one row, a value that the Domain does not allow. Both are run with
the same draws; exit code, messages, files, keys of the manifest and the ledger's entries must not differ.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import seeded_noise
import yaml
from click.testing import CliRunner
from contracts.test_jobs import EXAMPLES, PATIENT, REPLACED
from every_kind import OF_CLASSES, OF_NUMBERS, write_draft
from matplotlib.figure import Figure

from daskrado.cli.main import cli
from daskrado.lake.make import make_lake
from daskrado.ledger.ledger import Ledger
from daskrado.models.linear import LinearModel
from daskrado.privacy.statement import PrivacyStatement
from daskrado.table.domain import Domain

ROWS = 2000
AT = 1234
BOTH = {"epsilon": 1.0, "delta": 1e-6}
Spoil = Callable[[pd.DataFrame], None]


def put(column: str, value: Any) -> Spoil:
    def spoil(frame: pd.DataFrame) -> None:
        frame[column] = frame[column].astype(object)
        frame.loc[AT, column] = value

    return spoil


UNUSABLE: dict[str, Spoil] = {
    "NaN": put("bmi", float("nan")),
    "infinity": put("bmi", float("inf")),
    "null in bins": put("prior_visits", None),
    "null boolean": put("smoker", None),
    "unknown category": put("ward", "morgue"),
    "null category": put("ward", None),
    "unknown label": put("readmitted", "perhaps"),
    "null label": put("readmitted", None),
    "null id": put("patient_id", None),
}
NUMBERS = {"bmi": "float64", "prior_visits": "float64", "patient_id": "Int64", "smoker": "boolean"}
PRIVATE: dict[str, dict[str, Any]] = {
    **{kind: {"kind": kind, **keys} for kind, keys in EXAMPLES.items() if keys.get("private", True)},
    "learn gradient": {
        "kind": "learn",
        "protect": REPLACED,
        "budget": BOTH,
        "learner": {"kind": "gradient", "steps": 4},
    },
    "learn objective": {
        "kind": "learn",
        "protect": REPLACED,
        "budget": BOTH,
        "learner": {"kind": "objective_perturbation"},
    },
    **{
        f"learn classes by {learner}": {
            "kind": "learn",
            "domain": OF_CLASSES,
            "protect": REPLACED,
            "budget": {"epsilon": 6.0, "delta": 1e-6},
            "learner": {"kind": learner},
        }
        for learner in ("moments", "objective_perturbation", "rado_moments")
    },
    "learn a number": {
        "kind": "learn",
        "domain": OF_NUMBERS,
        "protect": REPLACED,
        "budget": BOTH,
        "learner": {"kind": "gradient", "steps": 4},
    },
    "learn output": {
        "kind": "learn",
        "protect": REPLACED,
        "budget": BOTH,
        "learner": {"kind": "output_perturbation"},
    },
    "learn tuning": {
        "kind": "learn",
        "protect": REPLACED,
        "budget": {"epsilon": 4.0},
        "learner": {
            "kind": "tuning",
            "grid": [{"kind": "output_perturbation", "regularisation": ridge} for ridge in (0.05, 0.5)],
        },
    },
    "rados on rows": {
        "kind": "rados",
        "sets": [
            {"name": "e", "kind": "noisy_edges", "count": 8, "protect": REPLACED, "budget": BOTH},
            {
                "name": "b",
                "kind": "balanced",
                "count": 8,
                "protect": REPLACED,
                "budget": BOTH,
                "learn": {"kind": "radoboost", "rounds": 4},
                "keep_epsilon": 0.2,
            },
        ],
    },
    "labels missing": {
        "kind": "labels",
        "protect": {"unit": "one label"},
        "budget": {"epsilon": 1.0},
        "supervision": {"kind": "missing"},
    },
    "local columns": {
        "kind": "local",
        "protect": REPLACED,
        "budget": {"epsilon": 3.0},
        "reports": {
            "kind": "columns",
            "columns": {
                "ward": {"kind": "kary", "epsilon": 1.0},
                "smoker": {"kind": "binary", "epsilon": 1.0},
                "bmi": {"kind": "number", "epsilon": 1.0},
            },
        },
    },
    "local edges": {
        "kind": "local",
        "protect": REPLACED,
        "budget": {"epsilon": 8.0, "delta": 1e-5},
        "reports": {"kind": "edges", "epsilon": 8.0, "delta": 1e-5},
    },
    "queries of labels": {
        "kind": "queries",
        "protect": PATIENT,
        "budget": {"epsilon": 2.0, "delta": 1e-6},
        "universe": ["ward", "readmitted"],
        "updates": 3,
        "queries": [{"ward": "surgery"}, {"readmitted": "yes"}],
    },
}


@pytest.fixture(scope="module")
def hospital(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a domain that allows nothing but its own values, a model and public queries."""
    folder = tmp_path_factory.mktemp("hospital")
    content = yaml.safe_load(make_lake(folder / "made", rows=ROWS, features=12, partitions=1, seed=7).read_text())
    content["columns"]["ward"] = {"kind": "categorical", "other": False, "values": WARDS}
    content["columns"]["prior_visits"]["bins"] = [1, 3]
    for column in content["columns"].values():
        column.pop("nulls", None)
        column.pop("transform", None)
    (folder / "lake.yaml").write_text(yaml.safe_dump(content))
    domain = Domain.load(folder / "lake.yaml")
    write_draft(folder / "lake.yaml")
    weights = np.linspace(-1, 1, domain.width)
    LinearModel(domain, weights, PrivacyStatement.none(), "test", {}).save(folder / "model.json")
    frame = usable(folder)
    save(frame, folder / "good")
    for name, spoil in UNUSABLE.items():
        spoilt = frame.copy()
        spoil(spoilt)
        save(spoilt, folder / name)
    save(frame.iloc[:30].drop(columns=["readmitted"]), folder / "queries")
    return folder


WARDS = ["cardiology", "maternity", "medicine", "oncology", "surgery"]


def usable(folder: Path) -> pd.DataFrame:
    """The rows of the made lake, every one of which fits the stricter domain."""
    frame = pd.read_parquet(folder / "made").reset_index(drop=True)
    frame["ward"] = [ward if ward in WARDS else "surgery" for ward in frame["ward"].astype(str)]
    for name in frame.columns[frame.isna().any()]:
        frame[name] = frame[name].fillna(frame[name].dropna().iloc[0])
    return frame


def save(frame: pd.DataFrame, folder: Path) -> None:
    folder.mkdir()
    kinds = {name: kind for name, kind in NUMBERS.items() if name in frame.columns}
    frame = frame.astype(kinds)
    frame.iloc[: len(frame) // 2].to_parquet(folder / "a.parquet")
    frame.iloc[len(frame) // 2 :].to_parquet(folder / "b.parquet")


def paths(content: Any, at: str = "") -> set[str]:
    """The keys of a manifest, with the lengths of its lists."""
    if isinstance(content, dict):
        return {at, *(path for key, value in content.items() for path in paths(value, f"{at}/{key}"))}
    if isinstance(content, list):
        return {f"{at}[{len(content)}]", *(path for item in content for path in paths(item, f"{at}[]"))}
    return {f"{at}: {type(content).__name__}"}


def without_numbers(line: str) -> str:
    """A line of a summary; one that begins with a released number names what the number chose: a feature, a query."""
    text = re.sub(r"[-+]?\d[\d,.e+-]*|[0-9a-f]{12,}", "#", " ".join(line.split()))
    return "#" if text.startswith("#") else text


def seen(hospital: Path, keys: dict[str, Any], lake: str, folder: Path) -> dict[str, Any]:
    """Everything that a stranger sees of a run, but for released numbers."""
    folder.mkdir()
    common = {
        "dataset": "ward",
        "lake": str(hospital / lake),
        "domain": "lake.yaml",
        "output": "out",
        "ledger": {"path": str(folder / "ledger.sqlite"), "first_limit": {"epsilon": 40, "delta": 1e-4}},
    }
    path = hospital / "job.yaml"
    content = common | keys
    if content["lake"] == "days":  # of a lake by day, the rows in question are one day's
        content["lake"] = str(folder.with_name(f"{folder.name}.days"))
        for day in ("2026-11-01", "2026-11-02", "2026-11-03"):
            shutil.copytree(hospital / (lake if day == "2026-11-02" else "good"), Path(content["lake"], f"day={day}"))
    path.write_text(yaml.safe_dump(content))
    seeded_noise.reseed()
    done = CliRunner().invoke(cli, ["run", str(path), "--out", str(folder / "out")])
    files = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    manifest = folder / "out" / "manifest.json"
    return {
        "code": done.exit_code,
        "error": str(done.exception or "").replace(str(folder), ""),
        "said": [without_numbers(line) for line in done.output.replace(str(folder), "").splitlines()],
        "files": files,
        "manifest": paths(json.loads(manifest.read_text())) if manifest.exists() else done.output,
        "ledger": [
            (str(entry.state), str(entry.relation), str(entry.event))
            for entry in Ledger.open(folder / "ledger.sqlite").entries("ward")
        ]
        if (folder / "ledger.sqlite").exists()
        else [],
    }


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(PRIVATE))
def test_a_row_that_cannot_be_used_shows_nowhere(
    kind: str, hospital: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Figure, "savefig", lambda self, to, **_: to.write("<svg></svg>"))
    good = seen(hospital, PRIVATE[kind], "good", tmp_path / "good")
    assert good["code"] == 0, good["said"]
    for name in UNUSABLE:
        assert seen(hospital, PRIVATE[kind], name, tmp_path / name) == good, name


SECRET = sorted(kind for kind, keys in PRIVATE.items() if keys.get("protect") == PATIENT)


@pytest.mark.slow
@pytest.mark.parametrize("kind", SECRET)
def test_a_lake_of_one_row_looks_like_an_empty_one(
    kind: str, hospital: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the number of rows is secret, so is whether there are any."""
    monkeypatch.setattr(Figure, "savefig", lambda self, to, **_: to.write("<svg></svg>"))
    frame, found = usable(hospital), []
    for rows in (0, 1):
        save(frame.iloc[:rows], tmp_path / f"lake{rows}")
        found.append(seen(hospital, PRIVATE[kind], str(tmp_path / f"lake{rows}"), tmp_path / str(rows)))
    assert found[0]["code"] == 0 or kind == "teachers", found[0]["error"]  # whose student needs two classes
    for what in ("code", "error", "files", "ledger"):
        assert found[0][what] == found[1][what]


@pytest.mark.parametrize(
    "keys",
    [
        {
            "kind": "learn",
            "protect": PATIENT,
            "budget": BOTH,
            "lattice_bits": 26,
        },  # 2^62 / 2^52 is room for 1,024 rows
        {**PRIVATE["teachers"], "teachers": {"count": 512, "learner": {"kind": "moments"}}},
    ],
    ids=["overflow guard", "teachers"],
)
def test_a_secret_number_of_rows_decides_nothing(
    keys: dict[str, Any], hospital: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attack: 1,024 and 1,025 rows (or 1,024 and 1,023) were told apart by a free refusal."""
    monkeypatch.setattr(Figure, "savefig", lambda self, to, **_: to.write("<svg></svg>"))
    frame = usable(hospital)
    found = []
    for rows in (1023, 1024, 1025):
        save(frame.iloc[:rows], tmp_path / f"lake{rows}")
        found.append(seen(hospital, keys, str(tmp_path / f"lake{rows}"), tmp_path / str(rows)))
    for what in ("code", "error", "said", "files", "ledger"):
        assert found[0][what] == found[1][what] == found[2][what]
