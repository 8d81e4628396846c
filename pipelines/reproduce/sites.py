"""Several sites that may not pool rows: pooled, per-site and federated models side by side, with a plot.

    python pipelines/reproduce/sites.py --json                      # heart: four hospitals
    python pipelines/reproduce/sites.py --data diabetes130 --json   # diabetes130 by admission_source_id
    python pipelines/reproduce/sites.py --learner gradient --json   # a study of many steps beside the pooled lake
    python pipelines/reproduce/sites.py --figure pipelines/sites_heart.png
    python pipelines/reproduce/sites.py --lakes lakes/              # only write a Parquet lake for each site

Every federated model comes out of the whole protocol: keys, masks, signed bundles, ledgers of the sites. Models are
tested on rows that no site used for learning (a fixed fifth of each site). Needs DASKRADO_DATA.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import rankdata

import daskrado
from daskrado.ledger.ledger import Ledger
from daskrado.models.linear import LinearModel
from daskrado.parties.coordinator import open_study
from daskrado.parties.serving import serve
from daskrado.parties.site import join
from daskrado.parties.steps import run_study
from daskrado.table.domain import Domain
from daskrado.table.yaml_file import parse

HERE = Path(__file__).parent
DATA = Path(os.environ.get("DASKRADO_DATA", HERE.parents[2] / "shared" / "data"))
DELTA = 1e-5
MOMENTS: dict[str, Any] = {"kind": "moments"}
ROOM = 2  # of a limit for one release: its rule keeps a part of delta for events of other kinds


@dataclass(frozen=True)
class Example:
    """Rows by site and their public Domain."""

    name: str
    domain: Domain
    train: dict[str, pd.DataFrame]
    test: dict[str, pd.DataFrame]
    honest: int

    @property
    def guess(self) -> int:
        """A public guess at the rows of all sites: to one digit."""
        return int(float(f"{sum(len(rows) for rows in self.train.values()):.0e}"))


def heart() -> Example:
    """Four hospitals, 920 patients."""
    names = [
        "age",
        "sex",
        "cp",
        "trestbps",
        "chol",
        "fbs",
        "restecg",
        "thalach",
        "exang",
        "oldpeak",
        "slope",
        "ca",
        "thal",
    ]
    files = {"cleveland": "cleveland", "hungary": "hungarian", "switzerland": "switzerland", "longbeach": "va"}
    sites = {}
    for site, file in files.items():
        raw = pd.read_csv(
            DATA / "heart_disease" / f"processed.{file}.data", header=None, names=[*names, "num"], na_values="?"
        )
        sites[site] = pd.DataFrame(
            {
                "age": raw["age"].astype(float),
                "male": raw["sex"] == 1,
                "chest_pain": raw["cp"].astype("int64"),
                "systolic": raw["trestbps"].where(raw["trestbps"] > 0).astype(float),
                "cholesterol": raw["chol"].where(raw["chol"] > 0).astype(float),
                "heart_rate": raw["thalach"].astype(float),
                "angina": (raw["exang"] == 1).astype("boolean").where(raw["exang"].notna()),
                "st_depression": raw["oldpeak"].astype(float),
                "disease": raw["num"] > 0,
            }
        )
    return split("heart", Domain.load(HERE.parent / "studies" / "heart_domain.yaml"), sites, honest=2)


def diabetes130() -> Example:
    """One row a patient (the first encounter); a site for each source of admission, the rare ones together."""
    with zipfile.ZipFile(DATA / "diabetes130" / "dataset_diabetes.zip") as archive:
        raw = pd.read_csv(
            archive.open("dataset_diabetes/diabetic_data.csv"),
            keep_default_na=False,
            na_values="?",
            dtype={"payer_code": "str"},
        )
    first = raw.sort_values("encounter_id").drop_duplicates("patient_nbr")
    frame = pd.DataFrame(
        {
            "age": first["age"].str.extract(r"\[(\d+)-")[0].astype(float) + 5,
            "female": first["gender"] == "Female",
            "days": first["time_in_hospital"].astype(float),
            "lab_procedures": first["num_lab_procedures"].astype(float),
            "procedures": first["num_procedures"].astype(float),
            "medications": first["num_medications"].astype(float),
            "outpatient_visits": first["number_outpatient"].astype(float),
            "emergency_visits": first["number_emergency"].astype(float),
            "inpatient_visits": first["number_inpatient"].astype(float),
            "diagnoses": first["number_diagnoses"].astype(float),
            "discharge": first["discharge_disposition_id"].astype("int64"),
            "a1c": first["A1Cresult"],
            "insulin": first["insulin"],
            "changed": first["change"] == "Ch",
            "medicated": first["diabetesMed"] == "Yes",
            "early": first["readmitted"] == "<30",
        }
    )
    columns: dict[str, Any] = {
        "age": {"kind": "numeric", "lower": 0, "upper": 100},
        "female": {"kind": "boolean"},
        "days": {"kind": "numeric", "lower": 1, "upper": 14},
        "lab_procedures": {"kind": "numeric", "lower": 0, "upper": 100},
        "procedures": {"kind": "numeric", "lower": 0, "upper": 6},
        "medications": {"kind": "numeric", "lower": 0, "upper": 50},
        "outpatient_visits": {"kind": "numeric", "lower": 0, "upper": 20, "transform": "log1p"},
        "emergency_visits": {"kind": "numeric", "lower": 0, "upper": 10, "transform": "log1p"},
        "inpatient_visits": {"kind": "numeric", "lower": 0, "upper": 10, "transform": "log1p"},
        "diagnoses": {"kind": "numeric", "lower": 1, "upper": 16},
        "discharge": {"kind": "categorical", "values": [1, 2, 3, 5, 6, 11, 18, 22]},
        "a1c": {"kind": "categorical", "values": ["None", "Norm", ">7", ">8"], "other": False},
        "insulin": {"kind": "categorical", "values": ["No", "Steady", "Up", "Down"], "other": False},
        "changed": {"kind": "boolean"},
        "medicated": {"kind": "boolean"},
    }
    label = {"column": "early", "positive": True, "negative": False}
    domain = parse(Domain, {"label": label, "columns": columns, "norm_bound": 3.5, "intercept": 1.0}, "domain")
    source = first["admission_source_id"]
    common = {7: "emergency", 1: "referral", 17: "unknown", 4: "transfer", 6: "care", 2: "clinic", 5: "nursing"}
    names = source.map(common).fillna("rest")
    return split("diabetes130", domain, {str(n): g for n, g in frame.groupby(names)}, honest=4)


def split(name: str, domain: Domain, sites: dict[str, pd.DataFrame], *, honest: int) -> Example:
    """A public fifth of every site is for testing."""
    train, test = {}, {}
    for site, rows in sites.items():
        part = np.random.default_rng(11).random(len(rows)) < 0.2
        train[site], test[site] = rows[~part].reset_index(drop=True), rows[part].reset_index(drop=True)
    return Example(name, domain, train, test, honest)


def auc(model: LinearModel, rows: pd.DataFrame) -> float:
    """Area under the ROC curve; 0.5 where a class is missing."""
    truth = (rows[model.domain.label.column] == model.domain.label.positive).to_numpy()
    positive, negative = int(truth.sum()), int((~truth).sum())
    if not positive or not negative:
        return 0.5
    ranks = rankdata(model.margins(rows))
    return float((ranks[truth].sum() - positive * (positive + 1) / 2) / (positive * negative))


def federated(
    example: Example,
    place: Path,
    noise: dict[str, Any] | None,
    epsilon: float,
    mark: str,
    learner: dict[str, Any] = MOMENTS,
) -> LinearModel:
    """One model through the whole protocol: each site in a thread of its own, and the coordinator."""
    box = place / f"box-{mark}"
    private: dict[str, Any] = {"private": False}
    if noise is not None:
        private = {
            "noise": noise,
            "protect": {"relation": "add_remove", "unit": "one patient"},
            "budget": {"epsilon": epsilon, "delta": DELTA},
        }
    for site in example.train:
        join(box, site=site, keys=place / "keys" / site)
    study = f"{example.name}-{mark}"
    terms = {
        "study": study,
        "domain": example.domain,
        "minimum": max(2, example.honest),
        "learner": learner,
        **private,
    }
    if learner != MOMENTS:
        terms["rows"] = example.guess
    mine = open_study({**terms, "sites": dict.fromkeys(example.train)}, box, keys=place / "keys" / "coordinator")
    with ThreadPoolExecutor(len(example.train)) as pool:
        answers = []
        for site, rows in example.train.items():
            ledger = place / f"{site}-{mark}.sqlite"
            with Ledger.open(ledger) as opened:
                opened.set_limit(example.name, "add_remove", ROOM * epsilon, DELTA)
            own = {"keys": place / "keys" / site, "ledger": ledger, "roster": mine.roster_fingerprint}
            answers.append(pool.submit(serve, box, site=site, lake=rows, dataset=example.name, timeout=600, **own))
        boss = {"keys": place / "keys" / "coordinator", "ledger": place / f"coordinator-{mark}.sqlite"}
        done = run_study(box, timeout=600, **boss)
        for answer in answers:
            answer.result()
    return done.model


def alone(
    example: Example,
    rows: pd.DataFrame,
    place: Path,
    epsilon: float | None,
    mark: str,
    learner: dict[str, Any] = MOMENTS,
) -> LinearModel:
    """One model from rows in one place."""
    if epsilon is None:
        return daskrado.fit(rows, example.domain, dataset=example.name, private=False).model
    return daskrado.fit(
        rows,
        example.domain,
        dataset=example.name,
        epsilon=epsilon,
        delta=DELTA,
        unit="one patient",
        learner=learner,
        rows=None if learner == MOMENTS else example.guess,
        ledger=place / f"alone-{mark}.sqlite",
        first_limit=(ROOM * epsilon, DELTA),
    ).model


KINDS = ("pooled, no noise", "pooled", "per site", "federated, central noise", "federated, distributed noise")


def compare(example: Example, epsilon: float, repeats: int) -> dict[str, Any]:
    """Mean AUC of every kind of model, at every site and over all test rows."""
    pooled = pd.concat(example.train.values(), ignore_index=True)
    tests = {**example.test, "all sites": pd.concat(example.test.values(), ignore_index=True)}
    scores: dict[str, dict[str, list[float]]] = {kind: {name: [] for name in tests} for kind in KINDS}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        exact = alone(example, pooled, place, None, "exact")
        same = federated(example, place, None, epsilon, "exact")
        for repeat in range(repeats):
            print(f"{example.name}: noise {repeat + 1} of {repeats}", file=sys.stderr)
            models = {
                "pooled, no noise": exact,
                "pooled": alone(example, pooled, place, epsilon, f"pooled-{repeat}"),
                "federated, central noise": federated(example, place, {"kind": "central"}, epsilon, f"c{repeat}"),
                "federated, distributed noise": federated(
                    example, place, {"kind": "distributed", "honest": example.honest}, epsilon, f"d{repeat}"
                ),
            }
            own = {s: alone(example, r, place, epsilon, f"{s}-{repeat}") for s, r in example.train.items()}
            for name, rows in tests.items():
                for kind, model in models.items():
                    scores[kind][name].append(auc(model, rows))
                # A site's own model where it was made; over all rows, the mean of the sites' models.
                mine = [own[name]] if name in own else [*own.values()]
                scores["per site"][name].append(float(np.mean([auc(model, rows) for model in mine])))
    return {
        "data": example.name,
        "epsilon": epsilon,
        "delta": DELTA,
        "repeats": repeats,
        "honest": example.honest,
        "same_model_as_pooled": bool(np.array_equal(exact.weights, same.weights)),
        "train_rows": {name: len(rows) for name, rows in example.train.items()},
        "auc": {k: {n: round(float(np.mean(v)), 4) for n, v in by.items()} for k, by in scores.items()},
        "auc_std": {k: {n: round(float(np.std(v)), 4) for n, v in by.items()} for k, by in scores.items()},
    }


def compare_descents(example: Example, epsilon: float, repeats: int, learner: dict[str, Any]) -> dict[str, Any]:
    """Mean AUC over all test rows of a learner of many steps: pooled, and as studies."""
    pooled, tests = (pd.concat(rows.values(), ignore_index=True) for rows in (example.train, example.test))
    noises = {"federated, central noise": {"kind": "central"}}
    noises["federated, distributed noise"] = {"kind": "distributed", "honest": example.honest}
    scores: dict[str, list[float]] = {kind: [] for kind in ("pooled", *noises)}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        for repeat in range(repeats):
            print(f"{example.name}: noise {repeat + 1} of {repeats}", file=sys.stderr)
            model = alone(example, pooled, place, epsilon, f"p{repeat}", learner)
            scores["pooled"].append(auc(model, tests))
            for kind, noise in noises.items():
                model = federated(example, place, noise, epsilon, f"{noise['kind'][0]}{repeat}", learner)
                scores[kind].append(auc(model, tests))
    facts = {"data": example.name, "learner": learner, "epsilon": epsilon, "delta": DELTA, "repeats": repeats}
    errors = {k: round(float(np.std(v, ddof=1) / np.sqrt(repeats)), 4) for k, v in scores.items()}
    return facts | {"auc": {k: round(float(np.mean(v)), 4) for k, v in scores.items()}, "standard_error": errors}


def plot(figures: dict[str, Any], path: Path) -> None:
    """Bars of AUC by place and kind of model, with the spread over draws of noise."""
    from matplotlib.figure import Figure

    places = list(figures["auc"][KINDS[0]])
    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.add_subplot()
    colours = ("#a0aec0", "#2b6cb0", "#c05621", "#2f855a", "#68d391")
    for at, (kind, colour) in enumerate(zip(KINDS, colours, strict=True)):
        middle = np.arange(len(places)) + (at - 2) * 0.16
        heights = [figures["auc"][kind][place] for place in places]
        spread = [figures["auc_std"][kind][place] for place in places]
        axes.bar(middle, heights, 0.15, yerr=spread, color=colour, label=kind, error_kw={"linewidth": 0.8})
    rows = figures["train_rows"]
    axes.set_xticks(range(len(places)), [f"{p}\n{rows[p]:,} rows" if p in rows else p for p in places], fontsize=8)
    axes.axhline(0.5, color="#2d3748", linewidth=0.8, linestyle=":")
    axes.set_ylim(0.4, min(1.0, max(max(by.values()) for by in figures["auc"].values()) + 0.1))
    axes.set_ylabel("AUC on held-out rows")
    axes.set_title(f"{figures['data']}: epsilon {figures['epsilon']:g}, delta {figures['delta']:g}", fontsize=10)
    axes.legend(fontsize=8, frameon=False, ncols=3, loc="upper left")
    figure.savefig(path, dpi=110)


def main() -> None:
    """Compare, print, plot."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", choices=["heart", "diabetes130"], default="heart")
    parser.add_argument("--learner", choices=["moments", "gradient"], default="moments")
    parser.add_argument("--steps", type=int, default=20, help="of the gradient")
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--lakes", type=Path, help="write a Parquet lake for each site into this folder, and stop")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout and nothing else")
    given = parser.parse_args()
    if not DATA.is_dir():
        parser.error(f"no data at {DATA}; set DASKRADO_DATA")
    example = {"heart": heart, "diabetes130": diabetes130}[given.data]()
    if given.lakes is not None:
        for site, rows in example.train.items():
            (given.lakes / site).mkdir(parents=True, exist_ok=True)
            rows.to_parquet(given.lakes / site / "part-0.parquet", index=False)
        return
    if given.learner == "gradient":
        learner = {"kind": "gradient", "steps": given.steps}
        print(json.dumps(compare_descents(example, given.epsilon, given.repeats, learner)))
        return
    figures = compare(example, given.epsilon, given.repeats)
    if given.figure is not None:
        plot(figures, given.figure)
    if given.json:
        print(json.dumps(figures))
    else:
        print(pd.DataFrame(figures["auc"]).round(3).to_string())


if __name__ == "__main__":
    main()
