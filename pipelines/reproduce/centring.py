"""Plain numbers between wide bounds, centred in private or not: error, AUC, average precision and log-loss.

python pipelines/reproduce/centring.py --json [--learners] [--tables mails,frauds,eeg,...] [--draws 5]

Domains are what an owner can write down: the next power of 10 above a column's values, an intercept, the usual norm.
With --learners, also those that minimise: what ``auto`` has to choose from. Constants were chosen on magic, covertype
and mails, two of them also with a look at eeg, kdd and frauds; diabetes130 judges them.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import pandas as pd
from dp_erm import say
from peers import rows_of
from tables import LOADERS, wide_domain

from daskrado.lake.collect import open_passes
from daskrado.lake.scan import open_lake
from daskrado.learners.on_passes.erm import ObjectivePerturbation, OutputPerturbation
from daskrado.learners.on_passes.gradient import PrivateGradient
from daskrado.learners.on_passes.iterative import IterativeLearner, Session
from daskrado.losses.margin import Huber
from daskrado.privacy.perturbation import PublicFacts
from daskrado.privacy.relations import Relation
from daskrado.table.columns import plain_numbers
from daskrado.table.domain import Domain
from daskrado.table.lattice import Lattice

LABEL = {"column": "label", "positive": "yes", "negative": "no"}
METRICS = ("error", "auc", "average_precision", "log_loss")


def mails(rows: int) -> tuple[pd.DataFrame, Domain]:
    """Frequencies of 54 words, most of them 0, and three lengths of runs; 39 % are spam; at most 4,600."""
    rows = min(rows, 4_600)
    draw = np.random.default_rng(3)
    spam, found = draw.random(rows) < 0.39, {}
    for word in range(54):
        often, effect, size = draw.uniform(0.04, 0.3), 0.5 * draw.normal(), draw.lognormal(-0.5, 0.6)
        there = draw.random(rows) < np.clip(often * np.exp(np.where(spam, effect, -effect)), 0, 0.95)
        found[f"w{word:02d}"] = np.where(there, draw.exponential(size, rows), 0.0)
    for run in range(3):
        found[f"run{run}"] = np.exp(draw.normal(1.5 + run, 1, rows) + np.where(spam, 0.5, -0.2))
    columns = {name: {"kind": "numeric", "lower": 0, "upper": 1000, "transform": "log1p"} for name in found}
    frame = pd.DataFrame({**found, "label": np.where(spam, "yes", "no")})
    return frame, Domain.model_validate({"label": LABEL, "columns": columns})


def frauds(rows: int) -> tuple[pd.DataFrame, Domain]:
    """Components with tails between bounds of a hundred, and an amount; 0.17 % are frauds, off in half of them."""
    rows = max(rows, 200_000)
    draw = np.random.default_rng(4)
    fraud, found = draw.random(rows) < 0.0017, {}
    for place in range(28):
        spread, shift = 1.9 * 0.93**place, draw.normal() * (2.0 if place < 14 else 0.2)
        found[f"v{place:02d}"] = spread * (draw.standard_t(5, rows) + shift * draw.gamma(2.0, 0.5, rows) * fraud)
    found["amount"] = np.exp(draw.normal(3, 1.6, rows))
    columns = {name: {"kind": "numeric", "lower": -100, "upper": 100} for name in found}
    columns["amount"] = {"kind": "numeric", "lower": 0, "upper": 30_000}
    frame = pd.DataFrame({**found, "label": np.where(fraud, "yes", "no")})
    return frame, Domain.model_validate({"label": LABEL, "columns": columns})


def real(name: str, rows: int) -> tuple[pd.DataFrame, Domain]:
    """A table with plain numbers between wide bounds, and an intercept of 1."""
    table, categories = LOADERS[name]()
    domain = wide_domain(name, table, categories)
    return table.sample(min(rows, len(table)), random_state=0).reset_index(drop=True), domain


MADE = {"mails": mails, "frauds": frauds}
VARIANTS: dict[str, IterativeLearner] = {"plain": PrivateGradient(centre=False), "centred": PrivateGradient()}
MINIMISING: dict[str, IterativeLearner] = {
    "objective": ObjectivePerturbation(Huber(0.5)),
    "objective_logistic": ObjectivePerturbation(),
    "output": OutputPerturbation(Huber(0.5)),
}
TABLES = ("magic", "covertype", "mails", "eeg", "kdd", "diabetes130", "frauds")


def scores(positive: np.ndarray, margins: np.ndarray) -> tuple[float, ...]:
    from sklearn.metrics import average_precision_score, roc_auc_score

    wrong = float(((margins > 0) != positive).mean())
    loss = float(np.logaddexp(0, -np.where(positive, margins, -margins)).mean())
    return wrong, roc_auc_score(positive, margins), average_precision_score(positive, margins), loss


def reference(train: pd.DataFrame, test: pd.DataFrame, domain: Domain) -> tuple[float, ...]:
    """scikit-learn's logistic regression on standardised rows of the Domain, none of them clipped."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    whole = domain.model_copy(update={"norm_bound": domain.largest_norm})
    (x, y), (held, sides) = rows_of(train, whole), rows_of(test, whole)
    model = make_pipeline(StandardScaler(), LogisticRegression(C=10.0, max_iter=500)).fit(x, y)
    return scores(sides > 0, model.decision_function(held))


def learn(
    train: pd.DataFrame, test: pd.DataFrame, domain: Domain, learner: IterativeLearner, facts: PublicFacts
) -> Any:
    """The scores of one draw."""
    with open_passes(open_lake(train, domain), domain, Lattice(domain.norm_bound, learner.secret_bits)) as passes:
        found = learner.learn(Session(passes, lambda: None), facts)
    held, sides = rows_of(test, found.domain or domain)
    return scores(sides > 0, held @ found.weights)


def run(name: str, options: argparse.Namespace) -> dict[str, Any]:
    table, domain = MADE[name](options.rows) if name in MADE else real(name, options.rows)
    parts = np.array_split(np.random.default_rng(0).permutation(len(table)), 5)
    train, test = table.iloc[np.concatenate(parts[1:])], table.iloc[parts[0]]
    best = reference(train, test, domain)
    found: dict[str, Any] = {"rows": len(train), "features": domain.width, "scikit_learn": np.round(best, 4).tolist()}
    for epsilon in map(float, options.epsilons.split(",")):
        for text, learner in (VARIANTS | (MINIMISING if options.learners else {})).items():
            known = PublicFacts(
                len(train), domain.width, domain.norm_bound, Relation(options.relation), epsilon, 1e-6,
                numbers=len(plain_numbers(domain)),
            )  # fmt: skip
            each = [learn(train, test, domain, learner, known) for _ in range(options.draws)]
            mean, spread = np.mean(each, axis=0), np.std(each, axis=0, ddof=1) / np.sqrt(len(each))
            cell = {key: round(float(value), 4) for key, value in zip(METRICS, mean, strict=True)}
            cell |= {f"se_{key}": round(float(value), 4) for key, value in zip(METRICS, spread, strict=True)}
            found.setdefault(f"{epsilon:g}", {})[text] = cell
            say(f"{name} epsilon {epsilon:g} {text}: {cell}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--learners", action="store_true", help="also those that minimise")
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--epsilons", default="0.1,0.3,1,10,50")
    parser.add_argument("--relation", choices=["add_remove", "replace_one"], default="add_remove")
    options = parser.parse_args()
    result = {name: run(name, options) for name in options.tables.split(",")}
    print(json.dumps(result) if options.json else json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
