"""What a model is for, and how it is best learned: losses and class weights under each goal.

python pipelines/reproduce/goals.py --json [--tables loans,frauds,...] [--draws 3]

Variants of the noisy gradient: the rule's loss (from Huber's to the logistic one as noise falls), the logistic loss,
Huber's, and rows that count by class (the true share of positives stands in for a declared one); and the moments. For
each: error, AUC, average precision, log-loss of its own probabilities, and the mean cost where a missed positive
costs as much as ten false alarms, with yes from where those probabilities say so. The cap of Huber's
share was chosen on all tables here, so that none judges it from outside. Huber's margins are taken as if they were
log-odds.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import pandas as pd
from centring import scores
from dp_erm import say
from forecast import table_of
from peers import rows_of

from daskrado import fit
from daskrado.jobs.class_weight import ClassWeight
from daskrado.lake.collect import open_passes
from daskrado.lake.scan import open_lake
from daskrado.learners.on_passes.gradient import PrivateGradient
from daskrado.learners.on_passes.iterative import Session
from daskrado.losses.margin import Huber, Logistic
from daskrado.privacy.perturbation import PublicFacts
from daskrado.privacy.relations import Relation
from daskrado.table.columns import plain_numbers
from daskrado.table.domain import Domain
from daskrado.table.lattice import Lattice

COST = 10.0
METRICS = ("error", "auc", "average_precision", "log_loss", "cost")
VARIANTS = {
    "rule": (PrivateGradient(), False),
    "logistic": (PrivateGradient(Logistic()), False),
    "huber": (PrivateGradient(Huber(1.0)), False),
    "weighted": (PrivateGradient(), True),
    "weighted logistic": (PrivateGradient(Logistic()), True),
    "weighted, rows by weight": (PrivateGradient(), None),
}


def learn(
    train: pd.DataFrame,
    test: pd.DataFrame,
    domain: Domain,
    learner: PrivateGradient,
    epsilon: float,
    weighted: bool | None,
) -> tuple[float, ...]:
    """The metrics of one draw."""
    label = domain.label
    rate = min(0.999, max(0.001, float((train[label.column] == label.positive).mean())))
    pair = None if weighted is False else ClassWeight(rate=rate).pair(None)
    offset = math.log(pair[0] / pair[1]) if pair else 0.0  # weights move log-odds
    rows = len(train)
    if pair is not None and weighted is None:  # as many as the weights of all rows add up to
        rows = round(rows * (pair[0] * (1 - rate) + pair[1] * rate) / 2**14)
    known = (rows, domain.width, domain.norm_bound, Relation.ADD_REMOVE, epsilon, 1e-6)
    facts = PublicFacts(*known, numbers=len(plain_numbers(domain)), weighted=pair is not None)
    lattice = Lattice(domain.norm_bound, learner.secret_bits)
    with open_passes(open_lake(train, domain), domain, lattice, class_weights=pair) as passes:
        found = learner.learn(Session(passes, lambda: None), facts)
    held, sides = rows_of(test, found.domain or domain)
    margins, positive = held @ found.weights + offset, sides > 0
    yes = margins >= -math.log(COST)
    cost = float((COST * (positive & ~yes) + (~positive & yes)).mean())
    return (*scores(positive, margins), cost)


def by_moments(train: pd.DataFrame, test: pd.DataFrame, domain: Domain, epsilon: float) -> tuple[float, ...]:
    """The metrics of one draw of learner moments, whose margins are 2 p - 1."""
    with tempfile.TemporaryDirectory() as folder:
        how: dict[str, Any] = {"dataset": "d", "ledger": f"{folder}/ledger.sqlite", "first_limit": (50.0, 1e-3)}
        model = fit(train, domain, learner="moments", epsilon=epsilon, delta=1e-6, **how).model
    assert model is not None
    held, sides = rows_of(test, domain)
    chance = np.clip((1 + held @ model.weights) / 2, 1e-3, 1 - 1e-3)
    margins, positive = np.log(chance / (1 - chance)), sides > 0
    yes = margins >= -math.log(COST)
    return (*scores(positive, margins), float((COST * (positive & ~yes) + (~positive & yes)).mean()))


def run(name: str, options: argparse.Namespace) -> dict[str, Any]:
    table, domain = table_of(name, options.rows)
    parts = np.array_split(np.random.default_rng(0).permutation(len(table)), 5)
    train, test = table.iloc[np.concatenate(parts[1:])], table.iloc[parts[0]]
    found: dict[str, Any] = {"rows": len(train), "features": domain.width}
    for epsilon in map(float, options.epsilons.split(",")):
        for text in (*VARIANTS, "moments"):
            each = [
                learn(train, test, domain, VARIANTS[text][0], epsilon, VARIANTS[text][1])
                if text in VARIANTS
                else by_moments(train, test, domain, epsilon)
                for _ in range(options.draws)
            ]
            mean, spread = np.mean(each, axis=0), np.std(each, axis=0, ddof=1) / np.sqrt(len(each))
            cell = {key: round(float(value), 4) for key, value in zip(METRICS, mean, strict=True)}
            cell |= {f"se_{key}": round(float(value), 4) for key, value in zip(METRICS, spread, strict=True)}
            found.setdefault(f"{epsilon:g}", {})[text] = cell
            say(f"{name} epsilon {epsilon:g} {text}: {[cell[key] for key in METRICS]}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--tables", default="magic,covertype,mails,kdd,frauds,loans,diabetes130,wages,stops")
    parser.add_argument("--rows", type=int, default=25_000)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--epsilons", default="0.1,1,10")
    options = parser.parse_args()
    result = {name: run(name, options) for name in options.tables.split(",")}
    print(json.dumps(result) if options.json else json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
