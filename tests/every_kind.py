"""A small job of every kind that draws noise, on one lake: for contracts that no kind may escape."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from daskrado.lake.make import make_lake
from daskrado.models.linear import LinearModel
from daskrado.privacy.statement import PrivacyStatement
from daskrado.table.domain import Domain
from daskrado.table.yaml_file import read_yaml, write_text

BOTH = {"epsilon": 1.0, "delta": 1e-6}
PATIENT = {"relation": "replace_one", "unit": "one patient"}
LABEL = {"relation": "label_flip", "unit": "one label"}

WARDS = ["cardiology", "maternity", "medicine", "oncology", "surgery"]
OF_CLASSES = {
    "label": {"column": "ward", "classes": WARDS},
    "id": "patient_id",
    "columns": {
        "bmi": {"kind": "numeric", "lower": 12, "upper": 60},
        "smoker": {"kind": "boolean"},
        "prior_visits": {"kind": "numeric", "lower": 0, "upper": 30, "bins": [1, 3]},
    },
}
OF_NUMBERS = OF_CLASSES | {"label": {"column": "length_of_stay", "kind": "number", "bounds": [0, 30]}}

KINDS: dict[str, dict[str, Any]] = {
    "learn": {"protect": PATIENT, "budget": BOTH},
    "gradient": {"kind": "learn", "protect": PATIENT, "budget": BOTH, "learner": {"kind": "gradient", "steps": 4}},
    "counted gradient": {
        "kind": "learn",
        "protect": {"relation": "add_remove", "unit": "one patient"},
        "budget": {"epsilon": 8.0, "delta": 1e-6},
        "learner": {"kind": "gradient", "steps": 4},
    },
    "objective": {"kind": "learn", "protect": PATIENT, "budget": BOTH, "learner": {"kind": "objective_perturbation"}},
    "output": {"kind": "learn", "protect": PATIENT, "budget": BOTH, "learner": {"kind": "output_perturbation"}},
    "one against the rest": {
        "kind": "learn",
        "domain": OF_CLASSES,
        "protect": PATIENT,
        "budget": {"epsilon": 6.0, "delta": 1e-6},
        "learner": {"kind": "objective_perturbation"},
    },
    "descent on a number": {
        "kind": "learn",
        "domain": OF_NUMBERS,
        "protect": PATIENT,
        "budget": BOTH,
        "learner": {"kind": "gradient", "steps": 4},
    },
    "tuning": {
        "kind": "learn",
        "protect": PATIENT,
        "budget": {"epsilon": 4.0},
        "learner": {
            "kind": "tuning",
            "grid": [{"kind": "output_perturbation", "regularisation": ridge} for ridge in (0.05, 0.5)],
        },
    },
    "rados": {
        "sets": [
            {"name": "h", "kind": "hadamard", "count": 16, "protect": PATIENT, "budget": BOTH},
            {
                "name": "b",
                "kind": "balanced",
                "count": 8,
                "protect": PATIENT,
                "budget": BOTH,
                "learn": {"kind": "radoboost", "rounds": 4},
                "keep_epsilon": 0.2,
            },
        ]
    },
    "labels": {"protect": {"unit": "one label"}, "budget": {"epsilon": 1.0}},
    "bags": {
        "protect": {"unit": "one label"},
        "budget": {"epsilon": 1.0},
        "bags": "ward",
        "values": WARDS,
    },
    "margins": {"protect": PATIENT, "budget": BOTH, "models": ["model.json"], "bins": 20},
    "describe": {"protect": PATIENT, "budget": BOTH},
    "discover": {"protect": PATIENT, "budget": BOTH, "domain": "draft.yaml"},
    "holdout": {"kind": "learn", "protect": PATIENT, "budget": BOTH, "holdout": 0.3},
    "evaluate": {"protect": PATIENT, "budget": BOTH, "model": "model.json", "by": ["sex"]},
    "local": {"protect": LABEL, "budget": {"epsilon": 1.0}, "reports": {"kind": "labels", "epsilon": 1.0}},
}
ENGINES: dict[str, dict[str, Any]] = {
    "queries": {
        "protect": {"relation": "add_remove", "unit": "one patient"},
        "budget": {"epsilon": 2.0, "delta": 1e-6},
        "universe": ["sex", "smoker", "diabetic"],
        "updates": 5,
        "threshold": 1,
        "queries": [{"sex": "F"}, {"smoker": True}, {"diabetic": True}, {"sex": "M", "smoker": True}],
    },
    "teachers": {
        "protect": {"relation": "add_remove", "unit": "one patient"},
        "budget": {"epsilon": 12.0, "delta": 1e-6},
        "teachers": {"count": 20, "learner": {"kind": "moments"}},
        "answers": {"queries": 30},
        "student": {"learner": {"kind": "moments"}},
    },
    "sparse vector": {
        "kind": "teachers",
        "protect": {"relation": "add_remove", "unit": "one patient"},
        "budget": {"epsilon": 40.0, "delta": 1e-6},
        "teachers": {"count": 40, "learner": {"kind": "moments"}},
        "answers": {"mechanism": "sparse_vector", "queries": 30, "refusals": 3},
    },
    "continual": {
        "protect": {"relation": "add_remove", "unit": "one patient"},
        "budget": BOTH,
        "blocks": {"column": "day"},
        "continual": {"horizon": 5},
        "lake": "days",
    },
}

# What a contract over all kinds needs beside them: noise on rows, a description, and a secret number of fits.
OTHERS: dict[str, dict[str, Any]] = {
    "rows": {
        "kind": "rados",
        "sets": [
            {
                "name": "e",
                "kind": "noisy_edges",
                "count": 8,
                "protect": PATIENT,
                "budget": {"epsilon": 2.0, "delta": 1e-6},
            },
            {
                "name": "r",
                "kind": "randomised_response",
                "features": ["smoker"],
                "unit": "u",
                "budget": {"epsilon": 1.0},
            },
        ],
    },
    "describe": {"protect": PATIENT, "budget": BOTH},
    "random stopping": {
        "kind": "learn",
        "protect": PATIENT,
        "budget": {"epsilon": 12.0},
        "learner": {
            "kind": "random_stopping",
            "runs": 3,
            "grid": [{"kind": "output_perturbation", "regularisation": ridge} for ridge in (0.05, 0.5)],
        },
    },
}


def write_draft(domain: Path) -> None:
    """draft.yaml beside a domain file: bounds and categories are open."""
    content = read_yaml(domain)
    for column in content["columns"].values():
        column.update({key: "..." for key in ("lower", "upper", "values") if key in column})
    write_text(domain.parent / "draft.yaml", yaml.safe_dump(content, sort_keys=False))


def make_ward(folder: Path) -> tuple[Path, Path]:
    """A lake, its domain file, a model, queries, and the lake's files by day beside it."""
    domain = make_lake(folder / "lake", rows=2000, features=12, partitions=2, seed=7)
    loaded = Domain.load(domain)
    write_draft(Path(domain))
    weights = np.linspace(-1, 1, loaded.width)
    LinearModel(loaded, weights, PrivacyStatement.none(), "test", {}).save(folder / "model.json")
    make_lake(folder / "queries", rows=30, features=12, partitions=1, seed=9)
    make_days(folder)
    return folder / "lake", Path(domain)


def make_days(folder: Path) -> None:
    """Beside a lake: its files again, each in the folder of a day."""
    for day, file in enumerate(sorted((folder / "lake").glob("*.parquet"))):
        (folder / f"days/day={day}").mkdir(parents=True)
        shutil.copy(file, folder / f"days/day={day}")


def pipeline(name: str, ward: tuple[Path, Path], output: Path) -> dict[str, Any]:
    """The content of a kind's pipeline file, whose addresses are relative to the ward's folder."""
    own = (KINDS | ENGINES | OTHERS)[name]
    content = {"kind": name, "domain": str(ward[1]), "lake": "lake", **own, "dataset": "ward"}
    content |= {"output": str(output), "ledger": {"first_limit": {"epsilon": 40, "delta": 1e-5}}}
    return content | ({"queries": "queries"} if content["kind"] == "teachers" else {})
