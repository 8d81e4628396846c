"""``daskrado audit units``: a person's forty rows in or out of a made-up lake, and whether releases tell.

Whoever attacks knows all other rows, and those of the person, which are alike and as long as they can be. He sees
many releases of both lakes, each of which is charged alone.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from daskrado.audit.people import audit_person
from daskrado.jobs.learn import LearnJob
from daskrado.jobs.load import load_job
from daskrado.lake.collect import collect, open_passes
from daskrado.lake.scan import Lake, open_lake
from daskrado.lake.units import Units, units_of
from daskrado.learners.on_passes.iterative import IterativeLearner, Session
from daskrado.privacy.accountant import GaussianEvent
from daskrado.privacy.mechanisms import Mechanism

ROWS_OF_THE_PERSON = 40
_KEY = bytes(range(32))
_STEPS = 4
_DOMAIN = {
    "label": {"column": "y", "positive": 1, "negative": 0},
    "norm_bound": 1.5,
    "columns": {name: {"kind": "numeric", "lower": -1, "upper": 1} for name in "ab"},
}

Bounds = Callable[[Lake, LearnJob], Units | None]


def bound_people(lake: Lake, job: LearnJob) -> Units | None:
    """How a run counts the rows of a lake."""
    return units_of(lake, job.protect, _KEY, None)


def audit_units(releases: int, epsilon: float, bounds: Bounds = bound_people) -> dict[str, dict[str, Any]]:
    """The mu that was charged, the mu that an attack shows, and the most it could show, for moments and gradient.

    A tenth as many models are learned by the gradient, which takes several passes for each. ``bounds`` says how rows
    are weighted, for tests that leave it out.
    """
    return {
        "moments": _shown(_moments(epsilon, bounds), releases),
        "gradient": _shown(_gradient(epsilon, bounds), max(100, releases // 10)),
    }


Attack = tuple[LearnJob, Callable[[], NDArray[Any]], Callable[[], NDArray[Any]], ExitStack]


def _shown(attack: Attack, releases: int) -> dict[str, Any]:
    job, inside, outside, opened = attack
    event = job.charges()[0].event
    assert isinstance(event, GaussianEvent)
    with opened:
        found = audit_person(inside, outside, releases)
    return {
        "releases": releases,
        "charged_mu": event.mu,
        "shown_mu": found.mu if found.mu > 0 else None,
        "most_that_could_be_shown": found.reach,
        "holds": bool(found.mu <= event.mu),
    }


def _lakes() -> tuple[pa.Table, pa.Table]:
    """Thirty people of two rows each, with the person and without."""
    draw = np.random.default_rng(1)
    a, b = draw.uniform(-1, 1, (2, 60))
    rest = pa.table({"patient": np.arange(60) // 2, "a": a, "b": b, "y": (a > 0).astype(int)})
    n = ROWS_OF_THE_PERSON
    one = pa.table({"patient": [1000] * n, "a": [1.0] * n, "b": [1.0] * n, "y": [0] * n})
    return pa.concat_tables([rest, one]), rest


def _job(epsilon: float, **keys: Any) -> LearnJob:
    unit = {"column": "patient", "name": "one patient"}
    job = load_job(
        {
            "dataset": "audit",
            "lake": _lakes()[1],
            "domain": _DOMAIN,
            "output": "unused",
            "protect": {"relation": "add_remove", "unit": unit},
            "budget": {"epsilon": epsilon, "delta": 1e-6},
            **keys,
        }
    )
    return cast(LearnJob, job)


def _moments(epsilon: float, bounds: Bounds) -> Attack:
    job = _job(epsilon)
    mechanism = _mechanism(job)
    statistic = mechanism.target.statistic
    sums = []
    for table in _lakes():
        lake = open_lake(table, job.domain)
        units = bounds(lake, job)
        sums.append(collect(statistic.plain, lake, job.domain, job.lattice, units=units).vector)
    std = mechanism.noise_std()
    noise = np.concatenate([np.full(b.size, std[b.name] / b.step(job.lattice)) for b in statistic.blocks])

    def release(exact: NDArray[np.int64]) -> NDArray[Any]:
        return np.asarray(_mechanism(job).perturb(exact) / noise)  # a mechanism draws once

    return job, lambda: release(sums[0]), lambda: release(sums[1]), ExitStack()


def _mechanism(job: LearnJob) -> Mechanism:
    found = job.calibrated()
    assert found is not None
    return found


def _gradient(epsilon: float, bounds: Bounds) -> Attack:
    # Numbers stay where the domain has them: weights for scales that differ from release to release tell less.
    learner = {"kind": "gradient", "steps": _STEPS, "centre": False}
    job, stack = _job(epsilon, learner=learner, rows=60), ExitStack()
    lakes = [open_lake(table, job.domain) for table in _lakes()]
    inside, outside = (
        stack.enter_context(open_passes(lake, job.domain, job.lattice, units=bounds(lake, job), secret_rows=True))
        for lake in lakes
    )

    def release(opened: Any) -> NDArray[Any]:
        return np.asarray(cast(IterativeLearner, job.learner).learn(Session(opened, lambda: None), job.facts).weights)

    return job, lambda: release(inside), lambda: release(outside), stack
