"""Private learners side by side, on real tables, at several epsilons: ours, scikit-learn without privacy, and peers.

python pipelines/reproduce/peers.py --json [--tables adult,adult_bins,kdd,covertype,magic,diabetes130]
(adult_paper: scaled by the columns' maxima, as in Chaudhuri et al. 2011; any name with _bins: cut at public edges by
one rule; adult_classes: cut where statistical offices cut; any name with _wide: plain numbers and an intercept, so
that numbers are placed in private)
diffprivlib and interpret take part where they are installed. All choices of ours come from public facts.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import pandas as pd
import pyarrow as pa
from dp_erm import draw, errors, folds, say
from public_bins import CLASSES, by_rule, rule
from tables import LOADERS, paper_domain, public_domain, wide_domain

from daskrado.errors import UsageError
from daskrado.lake.collect import Passes
from daskrado.learners.on_passes.auto import Auto
from daskrado.learners.on_passes.erm import ObjectivePerturbation, OutputPerturbation
from daskrado.learners.on_passes.gradient import PrivateGradient
from daskrado.learners.on_passes.iterative import IterativeLearner, Session
from daskrado.losses.margin import Huber
from daskrado.privacy.perturbation import PublicFacts
from daskrado.privacy.relations import Relation
from daskrado.statistics.slopes import SECRET_ROW_BITS
from daskrado.table.domain import Domain, NumericColumn
from daskrado.table.encoding import encode_table
from daskrado.table.lattice import Lattice, clip_rows

EPSILONS = (0.1, 0.3, 1.0, 3.0)
DELTA = 1e-6
OURS: dict[str, tuple[IterativeLearner, float]] = {
    "gradient": (PrivateGradient(), DELTA),
    "auto": (Auto(), DELTA),
    "objective, (epsilon, delta)": (ObjectivePerturbation(Huber(0.5)), DELTA),
    "objective, pure": (ObjectivePerturbation(Huber(0.5)), 0.0),
    "output, pure": (OutputPerturbation(Huber(0.5)), 0.0),
}


def load(name: str, most: int) -> tuple[pd.DataFrame, Callable[[float], Domain]]:
    """A table, and its Domain at an epsilon: bins are finer where there is more budget."""
    base = name.partition("_")[0]
    table, categories = LOADERS[base]()
    rows = min(most, len(table))

    def domain(epsilon: float) -> Domain:
        if name.endswith("_paper"):
            return paper_domain(base, table, categories)
        if name.endswith("_wide"):
            return wide_domain(base, table, categories)
        edges = CLASSES[base] if name.endswith("_classes") else None
        if name.endswith("_bins"):
            edges = by_rule(base, *rule(rows * 9 // 10, epsilon))
        return public_domain(base, table, categories, edges=edges)

    return table.sample(rows, random_state=0).reset_index(drop=True) if len(table) > most else table, domain


def rows_of(table: pd.DataFrame, domain: Domain) -> tuple[np.ndarray, np.ndarray]:
    """Encoded and clipped, for learners that take arrays."""
    made = encode_table(domain, pa.Table.from_pandas(table, preserve_index=False))
    assert made.labels is not None
    x = made.block(0, len(table), np.empty((len(table), domain.width), order="F"))
    return np.ascontiguousarray(clip_rows(x, domain.norm_bound)), made.labels.astype(int)


@dataclass(frozen=True)
class Split:
    """One fold as peers take it: encoded rows, and the table's own columns for those that encode by themselves."""

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    frame: pd.DataFrame
    frame_test: pd.DataFrame
    domain: Domain


def scikit_learn(split: Split) -> np.ndarray:
    from sklearn.linear_model import LogisticRegression

    return np.asarray(LogisticRegression(C=100.0, max_iter=500).fit(split.x, split.y).predict(split.x_test))


def diffprivlib(split: Split, epsilon: float) -> np.ndarray:
    """C = 0.01 is the better of its settings on Adult."""
    from diffprivlib.models import LogisticRegression

    model = LogisticRegression(epsilon=epsilon, data_norm=1.0, C=0.01, max_iter=500)
    return np.asarray(model.fit(split.x, split.y).predict(split.x_test))


def interpret(split: Split, epsilon: float) -> np.ndarray:
    """On the same encoded rows."""
    from interpret.privacy import DPExplainableBoostingClassifier

    bounds = dict.fromkeys(range(split.x.shape[1]), (-1.0, 1.0))
    model = DPExplainableBoostingClassifier(epsilon=epsilon, delta=DELTA, privacy_bounds=bounds)
    return np.asarray(model.fit(split.x, split.y).predict(split.x_test))


def interpret_columns(split: Split, epsilon: float) -> np.ndarray:
    """On the table's own columns within the same public bounds, which it bins by itself."""
    from interpret.privacy import DPExplainableBoostingClassifier

    numeric = {name: c for name, c in split.domain.columns.items() if isinstance(c, NumericColumn)}
    model = DPExplainableBoostingClassifier(
        epsilon=epsilon,
        delta=DELTA,
        privacy_bounds={name: (column.lower, column.upper) for name, column in numeric.items()},
        feature_types=["continuous" if name in numeric else "nominal" for name in split.domain.columns],
    )
    columns = list(split.domain.columns)
    return np.asarray(model.fit(split.frame[columns], split.y).predict(split.frame_test[columns]))


def peers() -> dict[str, Callable[[Split, float], np.ndarray]]:
    """Those that are installed."""
    found: dict[str, Callable[[Split, float], np.ndarray]] = {}
    if importlib.util.find_spec("diffprivlib"):
        found["diffprivlib"] = diffprivlib
    if importlib.util.find_spec("interpret"):
        found |= {"interpret": interpret, "interpret, own columns": interpret_columns}
    return found


def ours(
    learner: IterativeLearner, delta: float, train: Passes, rows: int, epsilon: float, relation: Relation
) -> Any:
    """What was learned, or None where the public rule refuses the budget."""
    domain = train.domain
    known = (rows, domain.width, domain.norm_bound, relation, epsilon, delta)
    facts = PublicFacts(*known, numbers=learner.numbers(domain))
    try:
        learner.guarantee(facts)
    except UsageError as error:
        say(str(error))
        return None
    return learner.learn(Session(train, lambda: None), facts)


def under(test: Passes, domain: Domain | None) -> Passes:
    """The rows to test on, as a learner placed their numbers."""
    return test if domain is None else test.under(domain, Lattice(domain.norm_bound, test.lattice.bits))


def run(name: str, options: argparse.Namespace) -> dict[str, Any]:
    table, domain_at = load(name, options.rows)
    chosen = {key: value for key, value in OURS.items() if key in options.learners or not options.learners}
    epsilons = [float(text) for text in options.epsilons.split(",")]
    widths = {epsilon: domain_at(epsilon).width for epsilon in epsilons}
    kept: dict[str, dict[str, list[float]]] = {}

    def note(who: str, epsilon: float, error: float) -> None:
        kept.setdefault(who, {}).setdefault(f"{epsilon:g}", []).append(error)

    for width in sorted(set(widths.values())):
        group = [epsilon for epsilon in epsilons if widths[epsilon] == width]
        domain = domain_at(group[0])
        for fold, (train, test, rows) in enumerate(folds(table, domain, options.folds, bits=SECRET_ROW_BITS)):
            for relation in (Relation.ADD_REMOVE, Relation.REPLACE_ONE):
                if options.relation not in ("both", relation):
                    continue
                for who, (learner, delta) in chosen.items():
                    for epsilon in group:
                        for _ in range(options.runs):
                            learned = ours(learner, delta, train, rows, epsilon, relation)
                            if learned is not None:
                                held = under(test, learned.domain)
                                note(f"{who} [{relation}]", epsilon, float(errors(held, [learned.weights])[0]))
            if not options.no_peers:
                beside(table, domain, fold, group, note)
            say(f"{name}, {domain.width} features: fold {fold + 1} of {options.folds} done")
    means = {who: {e: round(float(np.mean(v)), 4) for e, v in by.items()} for who, by in kept.items()}
    full = {who: [by[f"{e:g}"] for e in epsilons] for who, by in means.items() if len(by) == len(epsilons)}
    if full:
        draw(options.out, name, epsilons, full, "epsilon", "test error", logarithmic=True)
    positive = float((table[domain.label.column] == domain.label.positive).mean())
    return {
        "rows": len(table),
        "features": {f"{epsilon:g}": width for epsilon, width in widths.items()},
        "constant": round(min(positive, 1 - positive), 4),
        "mean_test_error": means,
    }


def beside(
    table: pd.DataFrame, domain: Domain, fold: int, epsilons: list[float], note: Callable[[str, float, float], None]
) -> None:
    """The peers on the same fold."""
    parts = np.array_split(np.random.default_rng(0).permutation(len(table)), 10)
    frame = table.iloc[np.concatenate([part for i, part in enumerate(parts) if i != fold])]
    frame_test = table.iloc[parts[fold]]
    x_test, y_test = rows_of(frame_test, domain)
    split = Split(*rows_of(frame, domain), x_test, frame, frame_test, domain)
    bare = float((scikit_learn(split) != y_test).mean())
    for epsilon in epsilons:
        note("scikit-learn, not private", epsilon, bare)
        for who, predict in peers().items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                note(who, epsilon, float((predict(split, epsilon) != y_test).mean()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--tables", default="adult,adult_bins,kdd,covertype,magic,diabetes130")
    parser.add_argument("--epsilons", default=",".join(f"{e:g}" for e in EPSILONS))
    parser.add_argument("--learners", nargs="*", default=[], help=f"of {', '.join(OURS)}")
    parser.add_argument("--relation", default="both", choices=("both", "add_remove", "replace_one"))
    parser.add_argument("--folds", type=int, default=3, help="of 10")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--rows", type=int, default=100_000, help="the most rows of a table, sampled in public")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("runs/peers"))
    options = parser.parse_args()
    result: dict[str, Any] = {
        "delta": DELTA,
        "folds": options.folds,
        "runs": options.runs,
        "absent": [p for p in ("diffprivlib", "interpret") if not importlib.util.find_spec(p)],
        "tables": {name: run(name, options) for name in options.tables.split(",")},
    }
    print(json.dumps(result) if options.json else json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
