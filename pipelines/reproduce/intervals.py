"""Coverage and width of 95 % intervals over many small lakes: two classes, a number, three classes.

    python pipelines/reproduce/intervals.py --lakes 1000

Every lake is drawn anew from a population of 48 kinds of patients, so that true weights are known; learners are run
as they are, with real noise on integer sums, and only the ledger is left out. The oracle knows the law of the noise
and of the rows: its interval is 2 x 1.96 standard deviations, over all lakes, of how far estimates are off.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from scipy.optimize import minimize

from daskrado.jobs.learn import LearnJob
from daskrado.lake.collect import open_passes
from daskrado.lake.scan import open_lake
from daskrado.learners.base import Learned
from daskrado.learners.on_passes.iterative import IterativeLearner, Session
from daskrado.learners.on_release.identified import Identified
from daskrado.losses.margin import Huber, HuberLogistic, Loss
from daskrado.privacy.release import release
from daskrado.table.domain import Domain
from daskrado.table.encoding import encode_table
from daskrado.table.lattice import row_norms
from daskrado.table.yaml_file import parse

DELTA, NORMAL = 1e-6, 1.959964
AGES, WARDS, VISITS = (25.0, 40.0, 60.0, 85.0), ("eye", "heart", "skin"), (1.0, 6.0)
SHARES = ((0.2, 0.3, 0.3, 0.2), (0.5, 0.3, 0.2), (0.7, 0.3), (0.6, 0.4))
COLUMNS: dict[str, Any] = {
    "age": {"kind": "numeric", "lower": 0, "upper": 100},
    "ward": {"kind": "categorical", "values": list(WARDS), "other": False},
    "smoker": {"kind": "boolean"},
    "visits": {"kind": "numeric", "lower": 0, "upper": 10},
}
CLASSES = ["none", "mild", "severe"]
LABELS: dict[str, dict[str, Any]] = {
    "two classes": {"column": "y", "positive": "yes", "negative": "no"},
    "a number": {"column": "y", "kind": "number", "bounds": [-20, 20]},
    "three classes": {"column": "y", "classes": CLASSES},
}
SPREAD = 2.0  # of the number around its mean


class Population:
    """48 kinds of patients, their shares, and what is likely for each."""

    def __init__(self, target: str) -> None:
        places = list(itertools.product(*(range(len(share)) for share in SHARES)))
        columns = np.array(places).T
        age, ward, smoker, visits = columns
        self.kinds = pd.DataFrame(
            {
                "age": np.array(AGES)[age],
                "ward": np.array(WARDS)[ward],
                "smoker": smoker == 1,
                "visits": np.array(VISITS)[visits],
            }
        )
        tilt = 1 + 0.5 * (ward == age % 3) + 0.4 * smoker * visits  # columns depend on each other
        self.chance = tilt * np.prod([np.array(share)[at] for share, at in zip(SHARES, columns, strict=True)], axis=0)
        self.chance /= self.chance.sum()
        lift = (self.kinds["age"] - 50) / 30 + np.array([0.0, 0.8, -0.8])[ward] + 0.6 * smoker - 0.1 * visits
        self.target, self.mean = target, 3.0 * lift.to_numpy()
        scores = np.column_stack([np.zeros(len(lift)), lift, 1.5 * lift - 0.5])
        self.yes = 1 / (1 + np.exp(-lift.to_numpy()))
        self.likely = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        self.domain = parse(Domain, {"label": LABELS[target], "columns": COLUMNS}, target)

    def lake(self, rows: int, random: np.random.Generator) -> pd.DataFrame:
        """So many patients."""
        at = random.choice(len(self.chance), rows, p=self.chance)
        y: Any
        if self.target == "two classes":
            y = np.where(random.random(rows) < self.yes[at], "yes", "no")
        elif self.target == "a number":
            y = self.mean[at] + random.normal(0, SPREAD, rows)
        else:
            y = np.array(CLASSES)[(random.random(rows)[:, None] > self.likely[at].cumsum(axis=1)).sum(axis=1)]
        return self.kinds.iloc[at].reset_index(drop=True).assign(y=y)

    def truth(self, domain: Domain, learned: Learned) -> np.ndarray:
        """The weights of the whole population, under the Domain that a learner made of ours."""
        encoded = encode_table(domain, pa.Table.from_pandas(self.kinds), label=False)
        x = encoded.block(0, encoded.length, np.empty((encoded.length, domain.width), order="F"))
        x = x / np.maximum(row_norms(x), domain.norm_bound)[:, None]
        second = (x * self.chance[:, None]).T @ x
        space = Identified.of(domain, np.diag(second), np.diag(second) > 1e-12)
        z = x @ space.basis
        told = space.centre @ space.basis / domain.norm_bound
        least = np.linalg.solve((z * self.chance[:, None]).T @ z, (z * self.chance[:, None]).T)
        loss = learned.details.get("loss")
        if self.target == "a number":  # residuals are even: Huber's loss and least squares have one minimiser
            return np.asarray(told @ least @ (self.mean / domain.label.span[1]))
        if self.target == "three classes":
            if loss is None:
                return np.asarray((told @ least @ self.likely).T.ravel())
            return np.asarray((told @ self._softmax(z)).T.ravel())
        return np.asarray(told @ (least @ (2 * self.yes - 1) if loss is None else self._best(z, _loss(learned))))

    def _best(self, z: np.ndarray, loss: Loss) -> np.ndarray:
        yes, no = self.chance * self.yes, self.chance * (1 - self.yes)

        def risk(u: np.ndarray) -> tuple[float, np.ndarray]:
            m = z @ u
            return float(yes @ loss.value(m) + no @ loss.value(-m)), z.T @ (yes * loss.slope(m) - no * loss.slope(-m))

        return np.asarray(minimize(risk, np.zeros(z.shape[1]), jac=True, method="BFGS", options={"gtol": 1e-8}).x)

    def _softmax(self, z: np.ndarray) -> np.ndarray:
        """Weights against their mean over the classes."""

        def risk(u: np.ndarray) -> tuple[float, np.ndarray]:
            scores = z @ u.reshape(-1, 3)
            top = scores.max(axis=1, keepdims=True)
            total = np.log(np.exp(scores - top).sum(axis=1)) + top[:, 0]
            slope = self.chance[:, None] * (np.exp(scores - total[:, None]) - self.likely)
            value = float(self.chance @ (total - (self.likely * scores).sum(axis=1)))
            return value, (z.T @ slope).ravel()

        start = np.zeros(3 * z.shape[1])
        found = minimize(risk, start, jac=True, method="BFGS", options={"gtol": 1e-8}).x.reshape(-1, 3)
        return np.asarray(found - found.mean(axis=1, keepdims=True))


def _loss(learned: Learned) -> Loss:
    details = learned.details
    return (
        Huber(details["h"]) if "huber_share" not in details else HuberLogistic(details["huber_share"], details["h"])
    )


def learned_from(frame: pd.DataFrame, domain: Domain, learner: str, epsilon: float) -> Learned:
    """What the learner finds, with all its noise."""
    content = {
        "dataset": "d", "lake": frame, "domain": domain, "output": ".", "learner": learner, "rows": len(frame),
        "protect": {"relation": "add_remove", "unit": "one patient"}, "budget": {"epsilon": epsilon, "delta": DELTA},
    }  # fmt: skip
    job = parse(LearnJob, content, "here")
    with open_passes(open_lake(frame, domain), domain, job.lattice) as passes:
        if isinstance(job.learner, IterativeLearner):
            return job.learner.learn(Session(passes, lambda: None), job.facts)
        chosen, (charge,) = job.calibrated(), job.charges()
        assert chosen is not None
        assert job.chosen_statistic is not None
        summary = passes.sum(job.chosen_statistic)
        grant = SimpleNamespace(event=charge.event, relation=charge.relation)
        return job.learner.fit_columns(release(summary, chosen, grant, lambda: None, charge.statement), domain)


def coverage(target: str, learner: str, rows: int, epsilon: float, lakes: int, seed: int) -> dict[str, Any]:
    """Mean and worst coverage, and the mean width beside the oracle's."""
    population, random, begun = Population(target), np.random.default_rng(seed), time.process_time()
    held, widths, off = [], [], []
    for _ in range(lakes):
        learned = learned_from(population.lake(rows, random), population.domain, learner, epsilon)
        truth, bars = population.truth(learned.domain or population.domain, learned), learned.bars
        assert bars is not None
        size = np.abs(truth)  # a Domain that was scaled anew has weights of another size
        unit = np.where(size > 1e-9, size, 1.0) if learned.domain is not None else 1.0
        known = np.isfinite(bars.low)
        held.append(np.where(known, (bars.low <= truth) & (truth <= bars.high), np.nan))
        widths.append((bars.high - bars.low) / unit)
        off.append(((bars.low + bars.high) / 2 - truth) / unit)
    told = np.nanmean(held, axis=0)
    oracle = 2 * NORMAL * np.nanstd(off, axis=0)
    return {
        "target": target, "learner": learner, "rows": rows, "epsilon": epsilon, "lakes": lakes,
        "weights": int(np.isfinite(told).sum()), "with_intervals": float(np.isfinite(widths).mean()),
        "mean": float(np.nanmean(told)), "worst": float(np.nanmin(told)),
        "width": float(np.nanmean(np.nanmean(widths, axis=0) / oracle)), "cpu": time.process_time() - begun,
    }  # fmt: skip


def main() -> None:
    """Print a table, or JSON."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--lakes", type=int, default=1000)
    options.add_argument("--rows", type=int, default=10_000)
    options.add_argument("--epsilon", type=float, default=1.0)
    options.add_argument("--targets", default=",".join(LABELS))
    options.add_argument("--learners", default="moments,gradient")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--json", action="store_true")
    asked = options.parse_args()
    found = []
    for target, learner in itertools.product(asked.targets.split(","), asked.learners.split(",")):
        found.append(coverage(target, learner, asked.rows, asked.epsilon, asked.lakes, asked.seed))
        if not asked.json:
            row = "| {target} | `{learner}` | {weights} | {mean:.3f} | {worst:.3f} | {width:.2f} | {cpu:.0f} s |"
            print(row.format(**found[-1]), flush=True)
    if asked.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
