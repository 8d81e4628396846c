"""Private answers from teachers: answered share, misclassification, students, for all mechanisms over a grid of k.

    python pipelines/reproduce/teachers.py --json            (needs DASKRADO_DATA; progress on stderr)

Every cell is the mean of what five engines would publish, each with its whole budget. The grid as a whole answers
from one set of votes many times over and is for comparison on public data only: no private guarantee covers it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

import numpy as np
import pyarrow as pa
from teacher_data import NAMES, Problem, load

import daskrado
from daskrado.bounds.teachers import CONFIDENCE, published_teachers
from daskrado.engines.answers import Terms, answering
from daskrado.errors import UsageError
from daskrado.lake.ensemble import train
from daskrado.lake.scan import open_lake
from daskrado.lake.shards import Sharding, encode_queries
from daskrado.lake.teachers import Course
from daskrado.learners.black_box import Logistic
from daskrado.statistics.votes import leaders, margins

ENGINES = 5  # for each cell of the grid
MECHANISMS: tuple[str, ...] = ("gaussian", "sparse_vector", "stability")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def encoded(problem: Problem, frame: Any) -> np.ndarray:
    return encode_queries(
        problem.domain, pa.Table.from_pandas(frame[list(problem.domain.columns)], preserve_index=False)
    )


def learner(regularisation: float) -> Logistic:
    return Logistic(regularisation, steps=12)


def affordable_refusals(terms: Terms, teachers: int) -> Terms:
    """As many refusals as still let teachers be heard of whom 95 % agree: a public rule, between 1 and m / 10."""
    low, high = 1, max(1, terms.queries // 10)
    while low < high:
        middle = (low + high + 1) // 2
        changed = Terms(terms.epsilon, terms.delta, terms.queries, middle)
        heard = answering("sparse_vector", changed).chance(int(0.9 * teachers)) >= CONFIDENCE
        low, high = (middle, high) if heard else (low, middle - 1)
    return Terms(terms.epsilon, terms.delta, terms.queries, low)


def cell(problem: Problem, name: str, terms: Terms, counts: np.ndarray, x: dict[str, np.ndarray]) -> dict[str, Any]:
    """Several engines on the same votes: answer, score, teach a student; means over the engines' noise."""
    row: dict[str, Any] = {
        "mechanism": name,
        "queries": terms.queries,
        "refusals_allowed": terms.refusals if name == "sparse_vector" else None,
        "margin_needed": answering(name, terms).needed_margin(),
    }
    runs = [one_engine(problem, name, terms, counts, x) for _ in range(ENGINES)]
    for key in runs[0]:
        known = [run[key] for run in runs if run[key] is not None]
        row[key] = round(float(np.mean(known)), 4) if len(known) == ENGINES else None
    students = [run["student_error"] for run in runs]
    row["student_std"] = None if row["student_error"] is None else round(float(np.std(students, ddof=1)), 4)
    return row


def one_engine(
    problem: Problem, name: str, terms: Terms, counts: np.ndarray, x: dict[str, np.ndarray]
) -> dict[str, float | None]:
    labels = answering(name, terms).release(counts)
    labels = np.concatenate([labels, np.full(len(counts) - len(labels), -2)])
    truth = problem.truth(problem.public)[: len(labels)]
    given = labels >= 0
    student_error = None
    if len(np.unique(labels[given])) == 2:
        student = learner(1e-3).make(problem.domain, 0).fit(x["public"][: len(labels)][given], labels[given])
        student_error = float((student.predict(x["test"]) != problem.truth(problem.test)).mean())
    return {
        "answered": float(given.mean()),
        "refused": float((labels == -1).sum()),
        "error_of_answers": float((labels[given] != truth[given]).mean()) if given.any() else None,
        "misclassified_or_refused": float((labels != truth).mean()),
        "student_error": student_error,
    }


def baselines(problem: Problem, epsilon: float, delta: float, x: dict[str, np.ndarray]) -> dict[str, Any]:
    """Non-private logistic regression, and objective perturbation at the same (epsilon, delta)."""
    truth = problem.truth(problem.test)
    rows = encoded(problem, problem.private)
    best = learner(1e-5).make(problem.domain, 0).fit(rows, problem.truth(problem.private))
    found = {"nonprivate_error": round(float((best.predict(x["test"]) != truth).mean()), 4)}
    try:
        result = daskrado.fit(
            problem.private,
            problem.domain,
            dataset=f"{problem.name}-{time.time_ns()}",
            epsilon=epsilon,
            delta=delta,
            relation="replace_one",
            learner="objective_perturbation",
            ledger=_ledger(),
            first_limit=(50.0, 0.1),
            workers=0,
        )
        margins_ = result.model.margins(problem.test)
        found["objective_perturbation_error"] = round(float(((margins_ >= 0) != truth).mean()), 4)
    except UsageError as error:
        found["objective_perturbation_error"] = None
        say(f"{problem.name}: objective perturbation refused: {error}")
    return found


def _ledger() -> str:
    import tempfile

    return f"{tempfile.mkdtemp()}/ledger.sqlite"


def best_by_queries(blocks: list[dict[str, Any]]) -> dict[str, dict[int, dict[str, Any]]]:
    """For each mechanism and number of queries, the least share that is not answered rightly, over the grid of k.

    Theorem 3.4 says for the realisable case: about V / (epsilon n) up to epsilon n / V queries, then growing with m.
    """
    best: dict[str, dict[int, dict[str, Any]]] = {}
    for block in blocks:
        for row in block["cells"]:
            found = {"rate": row["misclassified_or_refused"], "teachers": block["teachers"]}
            known = best.setdefault(row["mechanism"], {}).get(row["queries"])
            if known is None or found["rate"] < known["rate"]:
                best[row["mechanism"]][row["queries"]] = found
    return best


def study(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    if (
        name in ("realisable", "separated") and max(arguments.queries) >= 1000
    ):  # the law of theorem 3.4 wants a longer grid
        arguments = argparse.Namespace(**vars(arguments))
        arguments.teachers, arguments.queries = [*arguments.teachers, 6000], [*arguments.queries, 10_000]
    problem = load(name, max(arguments.queries), arguments.rows)
    x = {"public": encoded(problem, problem.public), "test": encoded(problem, problem.test)}
    report: dict[str, Any] = {
        "rows": len(problem.private),
        "features": problem.domain.width,
        **baselines(problem, arguments.epsilon, arguments.delta, x),
        "by_teachers": [],
    }
    truth = problem.truth(problem.public)
    lake = open_lake(problem.private, problem.domain)
    for teachers in arguments.teachers:
        if len(problem.private) < 4 * teachers:
            continue
        start = time.perf_counter()
        course = Course(problem.domain, _classes(problem), Sharding(teachers, by_id=False), learner(1e-2))
        with train(course, lake) as ensemble:
            counts = ensemble.votes(x["public"]).counts
        wide = margins(counts) / teachers
        block: dict[str, Any] = {
            "teachers": teachers,
            "rows_per_teacher": round(len(problem.private) / teachers, 1),
            "train_seconds": round(time.perf_counter() - start, 1),
            "plurality_error": round(float((leaders(counts) != truth).mean()), 4),
            "margin_quantiles": [round(float(q), 3) for q in np.quantile(wide, (0.05, 0.25, 0.5))],
            "cells": [],
        }
        for queries in arguments.queries:
            terms = Terms(arguments.epsilon, arguments.delta, queries)
            for mechanism in MECHANISMS:
                chosen = affordable_refusals(terms, teachers) if mechanism == "sparse_vector" else terms
                block["cells"].append(cell(problem, mechanism, chosen, counts[:queries], x))
        report["by_teachers"].append(block)
        say(f"{name}: {teachers} teachers, {block['train_seconds']} s")
    report["best_by_queries"] = best_by_queries(report["by_teachers"])
    report["paper_prescribes"] = {
        queries: published_teachers(queries, max(1, queries // 20), arguments.epsilon, arguments.delta)
        for queries in arguments.queries
    }
    return report


def _classes(problem: Problem) -> tuple[Any, Any]:
    return (problem.domain.label.negative, problem.domain.label.positive)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--data", nargs="*", default=list(NAMES), choices=NAMES)
    parser.add_argument("--teachers", nargs="*", type=int, default=[100, 300, 1000, 3000])
    parser.add_argument("--queries", nargs="*", type=int, default=[100, 300, 1000, 3000])
    parser.add_argument("--rows", type=int, default=200_000, help="at most so many private rows")
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--delta", type=float, default=1e-6)
    arguments = parser.parse_args()
    report = {
        "epsilon": arguments.epsilon,
        "delta": arguments.delta,
        "relation": "replace_one",
        **{name: study(name, arguments) for name in arguments.data},
    }
    if arguments.json:
        print(json.dumps(report))
        return
    for name in arguments.data:
        found = report[name]
        print(
            f"{name}: {found['rows']:,} rows; error without privacy {found['nonprivate_error']}, "
            f"by objective perturbation {found['objective_perturbation_error']}"
        )
        for block in found["by_teachers"]:
            for row in block["cells"]:
                print(
                    f"  k {block['teachers']:>5} m {row['queries']:>5} {row['mechanism']:<14} "
                    f"answered {row['answered']:.3f} error {row['error_of_answers']} "
                    f"student {row['student_error']}"
                )


if __name__ == "__main__":
    main()
