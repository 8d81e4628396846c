"""A teacher for each hospital, or source of admission, beside teachers on shards by a hash of the record id.

    python pipelines/reproduce/teacher_places.py --json                      # heart: four hospitals
    python pipelines/reproduce/teacher_places.py --data diabetes130 --json   # eight sources of admission

Teachers vote on held-out rows of all sites. Errors of private answers are exact expectations over the noise of the
Gaussian mechanism: nothing here depends on a draw. Votes without noise are for comparison on public data only.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from sites import DATA, DELTA, Example, diabetes130, heart

from daskrado.engines.answers import Terms, answering
from daskrado.lake.ensemble import train
from daskrado.lake.scan import open_lake
from daskrado.lake.shards import Sharding, encode_queries
from daskrado.lake.teachers import Course
from daskrado.learners.black_box import Logistic
from daskrado.statistics.votes import leaders, margins

SHARDS = {"heart": (4, 20, 60), "diabetes130": (8, 100, 400)}
EPSILONS = (1.0, 3.0, 10.0, 30.0)
QUERIES = 100


def lake_of(example: Example, place: Path) -> tuple[Path, Any]:
    """A tree of folders site=..., with a record id, and its Domain."""
    first = 0
    for site, rows in example.train.items():
        folder = place / f"site={site}"
        folder.mkdir(parents=True)
        rows.assign(record=np.arange(first, first + len(rows))).to_parquet(folder / "rows.parquet", index=False)
        first += len(rows)
    return place, example.domain.model_copy(update={"id": "record"})


def figures(example: Example, sharding: Sharding, lake: Any, domain: Any) -> dict[str, Any]:
    """What one way to cut the lake gives."""
    label, rows = domain.label, pd.concat(example.test.values(), ignore_index=True)
    x = encode_queries(domain, pa.Table.from_pandas(rows[[*domain.columns]], preserve_index=False))
    truth = (rows[label.column] == label.positive).to_numpy().astype(int)
    course = Course(domain, label.pair, sharding, Logistic(0.01, steps=12))
    with train(course, open_lake(str(lake), domain, ids=True)) as ensemble:
        votes = ensemble.votes(x)
    counts, right, apart = votes.counts, leaders(votes.counts) == truth, margins(votes.counts)
    found: dict[str, Any] = {
        "teachers": sharding.count,
        "error_of_a_teacher": round(1 - float(counts[np.arange(len(truth)), truth].mean()) / sharding.count, 4),
        "error_of_votes_without_noise": round(1 - float(right.mean()), 4),
        "error_of_private_answers": {},
    }
    for epsilon in EPSILONS:
        mechanism = answering("gaussian", Terms(epsilon, DELTA, QUERIES))
        chance = np.array([mechanism.chance(int(margin)) for margin in apart])
        expected = np.where(right, chance, 1 - chance).mean()
        found["error_of_private_answers"][f"{epsilon:g}"] = round(1 - float(expected), 4)
    return found


def compare(example: Example) -> dict[str, Any]:
    """Places beside hashes."""
    with tempfile.TemporaryDirectory() as folder:
        lake, domain = lake_of(example, Path(folder) / "lake")
        places = tuple(sorted(example.train))
        by = {"site": Sharding(len(places), 0, True, 0.0, None, "site", places)}
        by |= {f"hash, {count}": Sharding(count) for count in SHARDS[example.name]}
        found = {name: figures(example, sharding, lake, domain) for name, sharding in by.items()}
    sizes = {site: len(rows) for site, rows in example.train.items()}
    return {"data": example.name, "delta": DELTA, "queries": QUERIES, "rows": sizes, "shards": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", choices=["heart", "diabetes130"], default="heart")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout and nothing else")
    given = parser.parse_args()
    if not DATA.is_dir():
        parser.error(f"no data at {DATA}; set DASKRADO_DATA")
    found = compare({"heart": heart, "diabetes130": diabetes130}[given.data]())
    if given.json:
        print(json.dumps(found))
        return
    for name, one in found["shards"].items():
        print(name, one)


if __name__ == "__main__":
    main()
