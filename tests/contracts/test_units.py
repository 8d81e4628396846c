"""One contract over all kinds that protect people: the same bits in any partitioning, and stated where enforced.

A person with forty rows in a lake counts as one row of it, whatever the kind. That no sum moves further than its
noise was made for is fuzzed by whole units in ``tests/statistics/test_bounded.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import seeded_noise

import daskrado
from daskrado.jobs.load import load_job
from daskrado.ledger.ledger import Ledger
from daskrado.models.linear import LinearModel
from daskrado.privacy.statement import PrivacyStatement
from daskrado.table.domain import Domain
from daskrado.table.yaml_file import parse

DOMAIN = parse(
    Domain,
    {
        "id": "visit",
        "label": {"column": "y", "positive": 1, "negative": 0},
        "norm_bound": 2.0,
        "columns": {
            "a": {"kind": "numeric", "lower": -2, "upper": 2},
            "smoker": {"kind": "boolean"},
            "ward": {"kind": "categorical", "values": ["north", "south", "east"]},
        },
    },
    "here",
)
DRAFT = {
    "id": "visit",
    "label": {"column": "y", "positive": 1, "negative": 0},
    "columns": {
        "a": {"kind": "numeric", "lower": "...", "upper": "...", "bins": "..."},
        "smoker": {"kind": "boolean"},
        "ward": {"kind": "categorical", "values": "..."},
    },
}
WARDS = ["north", "south", "east"]
UNIT = {"column": "patient", "name": "one patient"}
BOTH, PURE = {"epsilon": 1.0, "delta": 1e-6}, {"epsilon": 1.0}
Values = Callable[[Any], Any]


def people(rows: int = 400) -> pd.DataFrame:
    """Visits of patients who have 1 to some 60 of them, in no order."""
    draw = np.random.default_rng(12)
    a = draw.normal(size=rows)
    return pd.DataFrame(
        {
            "visit": np.arange(rows),
            "patient": (draw.pareto(1.2, rows) * 20).astype(np.int64) % 97,
            "a": a,
            "smoker": draw.integers(0, 2, rows).astype(bool),
            "ward": draw.choice(["north", "south", "east"], rows),
            "y": (a + draw.normal(size=rows) > 0).astype(int),
        }
    )


def protecting(relation: str, **unit: Any) -> dict[str, Any]:
    return {"protect": {"relation": relation, "unit": UNIT | unit}, "budget": BOTH}


def one_set(relation: str, **keys: Any) -> dict[str, Any]:
    return {"kind": "rados", "sets": [{"name": "s", "count": 16, **protecting(relation), **keys}]}


def released(found: Any) -> list[Any]:
    return [(name, values.tolist()) for name, values in sorted(found.release.values.items())]


def found_facts(found: Any) -> list[Any]:
    return [found.value.facts, found.value.values, found.value.nulls, found.value.rows]


def weights(found: Any) -> list[Any]:
    return [*released(found), found.model.weights.tolist()]


def rados(found: Any) -> list[Any]:
    return [(one.rados.rados.tolist(), one.model and one.model.weights.tolist()) for one in found.value.sets]


def answers(found: Any) -> list[Any]:
    return [(answer.count, answer.lazy) for answer in found.value.answers]


QUERIES = {
    "kind": "queries",
    "universe": ["ward", "smoker", "y"],
    "updates": 4,
    "threshold": 1,
    "queries": [{"ward": "north"}, {"smoker": True, "y": 1}, {}],
    "budget": {"epsilon": 8.0, "delta": 1e-6},
}
TEACHERS = {
    "kind": "teachers",
    "teachers": {"count": 40},
    "answers": {"mechanism": "gaussian", "queries": 20, "agreement": 0.99},
    "budget": {"epsilon": 8.0, "delta": 1e-6},
}
KINDS: dict[str, tuple[dict[str, Any], Values]] = {
    "moments": ({"kind": "learn", **protecting("add_remove")}, released),
    "sampled": ({"kind": "learn", **protecting("replace_one", bound=3, how="sample")}, released),
    "describe": ({"kind": "describe", **protecting("add_remove")}, released),
    "discover": ({"kind": "discover", "domain": DRAFT, **protecting("add_remove", how="sample")}, found_facts),
    "discover, three rows": (
        {"kind": "discover", "domain": DRAFT, **protecting("replace_one", bound=3, how="sample")},
        found_facts,
    ),
    "margins": ({"kind": "margins", **protecting("replace_one"), "bins": 20}, released),
    "margins of labels": ({"kind": "margins", **protecting("label_flip", bound=2), "bins": 20}, released),
    "held out, weighted": (
        {"kind": "learn", **protecting("add_remove"), "holdout": 0.3, "class_weight": {"positive": 2, "negative": 1}},
        weights,
    ),
    "evaluate": ({"kind": "evaluate", **protecting("add_remove"), "by": ["ward"]}, released),
    "evaluate, replaced": ({"kind": "evaluate", **protecting("replace_one", bound=2), "bins": 6}, released),
    "queries": ({**protecting("add_remove"), **QUERIES}, answers),
    "queries, fixed units": ({**protecting("replace_one", bound=2), **QUERIES}, answers),
    "labels": ({"kind": "labels", "protect": {"unit": UNIT}, "budget": PURE}, weights),
    "some labels": (
        {
            "kind": "labels",
            "protect": {"unit": UNIT | {"bound": 2, "how": "sample"}},
            "budget": BOTH,
            "mechanism": "gaussian",
            "supervision": {"kind": "missing", "strata": {"column": "ward", "values": WARDS}},
        },
        weights,
    ),
    "randomised labels": (
        {
            "kind": "labels",
            "protect": {"unit": UNIT | {"how": "sample"}},
            "supervision": {"kind": "randomised_response", "epsilon": 1.0},
        },
        weights,
    ),
    "bags": (
        {
            "kind": "bags",
            "protect": {"unit": UNIT},
            "budget": PURE,
            "bags": "ward",
            "values": WARDS,
            "estimator": {"kind": "alternating", "rounds": 2},
        },
        weights,
    ),
    "hadamard": (one_set("add_remove", kind="hadamard"), rados),
    "balanced": (one_set("replace_one", kind="balanced"), rados),
    "choice": (
        one_set("add_remove", kind="uniform", learn={"kind": "radoboost", "rounds": 5}, keep_epsilon=0.2),
        rados,
    ),
    "column": (
        {
            "kind": "rados",
            "accept_no_privacy": True,
            "sets": [
                {
                    "name": "s",
                    "count": 16,
                    "kind": "noisy_column",
                    "features": ["smoker"],
                    "unit": UNIT,
                    "budget": BOTH,
                }
            ],
        },
        rados,
    ),
}
SAMPLED = UNIT | {"bound": 2, "how": "sample"}
GRID = [{"kind": "output_perturbation", "regularisation": r} for r in (0.1, 0.01)]
SMOKER = {"kind": "columns", "columns": {"smoker": {"kind": "binary", "epsilon": 0.5}}}


def labels_of(found: Any) -> list[Any]:
    return found.value.labels.tolist()


def estimates(found: Any) -> list[Any]:
    return [(name, estimate.values.tolist()) for name, (_, estimate) in found.value.estimates.items()]


KINDS |= {
    "tuning": (
        {
            "kind": "learn",
            "rows": 100_000,
            "learner": {"kind": "tuning", "grid": GRID},
            **protecting("add_remove"),
        },
        lambda found: found.model.weights.tolist(),
    ),
    "rows counted first": (
        {
            "kind": "learn",
            "learner": {"kind": "gradient", "steps": 3},
            **protecting("add_remove"),
            "budget": {"epsilon": 20.0, "delta": 1e-6},
        },
        lambda found: [found.facts["counted"], *found.model.weights.tolist()],
    ),
    "local labels": (
        {
            "kind": "local",
            **protecting("label_flip", bound=3, how="sample"),
            "reports": {"kind": "labels", "epsilon": 0.3},
        },
        released,
    ),
    "local columns": ({"kind": "local", **protecting("replace_one", how="sample"), "reports": SMOKER}, estimates),
    "teachers": (protecting("add_remove") | TEACHERS, labels_of),
    "teachers of fixed units": (protecting("replace_one") | TEACHERS, labels_of),
    "edges": (
        one_set(
            "label_flip",
            kind="noisy_edges",
            protect={"relation": "label_flip", "unit": SAMPLED},
            budget={"epsilon": 8.0, "delta": 1e-6},
        ),
        rados,
    ),
    "randomised columns": (
        {
            "kind": "rados",
            "accept_no_privacy": True,
            "sets": [
                {
                    "name": "s",
                    "count": 16,
                    "kind": "randomised_response",
                    "features": ["smoker"],
                    "unit": SAMPLED,
                    "budget": PURE,
                }
            ],
        },
        rados,
    ),
}
AT_THE_SOURCE = {"randomised labels"}  # nothing is charged: the labels arrived randomised
every_kind = pytest.mark.parametrize("name", list(KINDS))


@pytest.fixture(scope="module")
def lakes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same rows in 1, 2 and 7 files, and a model."""
    folder, frame = tmp_path_factory.mktemp("units"), people()
    for parts in (1, 2, 7):
        (folder / str(parts)).mkdir()
        for number, rows in enumerate(np.array_split(np.arange(len(frame)), parts)):
            table = pa.Table.from_pandas(frame.iloc[rows], preserve_index=False)
            pq.write_table(table, folder / str(parts) / f"{number}.parquet")
    copies, once = 2 ** np.random.default_rng(2).integers(0, 6, 300), frame[:300].assign(patient=np.arange(300))
    for name, owned in (("once", once), ("copies", once.loc[np.repeat(once.index, copies)])):
        (folder / name).mkdir()
        table = pa.Table.from_pandas(owned.assign(visit=np.arange(len(owned))), preserve_index=False)
        pq.write_table(table, folder / name / "part.parquet")
    queries = pa.Table.from_pandas(frame[:20][["a", "smoker", "ward"]], preserve_index=False)
    pq.write_table(queries, folder / "queries.parquet")
    weights = np.linspace(-1, 1, DOMAIN.width)
    LinearModel(DOMAIN, weights, PrivacyStatement.none(), "test", {}).save(folder / "model.json")
    return folder


def run(name: str, lakes: Path, parts: int | str, tmp_path: Path) -> Any:
    keys, _ = KINDS[name]
    models = {"models": [str(lakes / "model.json")]} if keys["kind"] == "margins" else {}
    queries = {"queries": str(lakes / "queries.parquet")} if keys["kind"] == "teachers" else {}
    models |= {"model": str(lakes / "model.json")} if keys["kind"] == "evaluate" else {}
    limit = {"ledger": {"first_limit": {"epsilon": 50, "delta": 1e-2}}}
    common = {"dataset": "visits", "lake": str(lakes / str(parts)), "domain": DOMAIN, "output": str(tmp_path / "out")}
    seeded_noise.reseed()
    job = load_job({**common, **limit, **keys, **models, **queries})
    return daskrado.run(job, ledger=tmp_path / f"{parts}.sqlite", write=False)


@every_kind
def test_every_kind_gives_the_same_bits_in_any_partitioning(name: str, lakes: Path, tmp_path: Path) -> None:
    found = [KINDS[name][1](run(name, lakes, parts, tmp_path)) for parts in (1, 2, 7)]
    assert found[0] == found[1] == found[2]


def _bound(keys: dict[str, Any]) -> int:
    return int(keys["protect"]["unit"].get("bound", 1))


# Not sets of rados: each record has a signature of its own. Not teachers: a unit's rows are all in one shard.
@pytest.mark.parametrize(
    "name",
    [name for name, (keys, _) in KINDS.items() if keys["kind"] not in ("rados", "teachers") and _bound(keys) == 1],
)
def test_a_patient_with_many_equal_rows_counts_as_one_row(name: str, lakes: Path, tmp_path: Path) -> None:
    """The weights 2^-n are exact: what is released is the same to the last bit, and so is the noise."""
    once, copies = (KINDS[name][1](run(name, lakes, which, tmp_path)) for which in ("once", "copies"))
    assert once == copies


@every_kind
def test_every_kind_states_and_charges_the_whole_unit(name: str, lakes: Path, tmp_path: Path) -> None:
    found = run(name, lakes, 2, tmp_path)
    assert found.statement.column == "patient"
    assert "one patient" in found.statement.whom
    assert any("patient" in text for text in found.statement.assumptions)
    entries = Ledger.open(tmp_path / "2.sqlite").entries()
    assert entries or name in AT_THE_SOURCE
    assert {entry.whose.column for entry in entries} <= {"patient"}
