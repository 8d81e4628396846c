"""A person's forty rows, in or out of the lake: nobody tells more than was charged, and a planted bug is seen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from daskrado.audit.people import audit_person, lower_mu
from daskrado.jobs.load import load_job
from daskrado.lake.collect import collect, open_passes
from daskrado.lake.scan import open_lake
from daskrado.lake.units import units_of
from daskrado.learners.on_passes.iterative import Session
from daskrado.privacy.accountant import GaussianEvent
from daskrado.table.domain import Domain
from daskrado.table.yaml_file import parse

KEY = bytes(range(32))
UNIT = {"column": "patient", "name": "one patient"}
DOMAIN = parse(
    Domain,
    {
        "label": {"column": "y", "positive": 1, "negative": 0},
        "norm_bound": 1.5,
        "columns": {name: {"kind": "numeric", "lower": -1, "upper": 1} for name in "ab"},
    },
    "here",
)


def lakes() -> tuple[pd.DataFrame, pd.DataFrame]:
    """A few people of one or two rows, with and without one of forty, all of them alike and as long as can be."""
    draw = np.random.default_rng(1)
    rest = pd.DataFrame({"patient": np.arange(60) // 2, "a": draw.uniform(-1, 1, 60), "b": draw.uniform(-1, 1, 60)})
    rest["y"] = (rest.a > 0).astype(int)
    one = pd.DataFrame({"patient": [1000] * 40, "a": [1.0] * 40, "b": [1.0] * 40, "y": [0] * 40})
    return pd.concat([rest, one], ignore_index=True), rest


def job_of(frame: pd.DataFrame, **keys: Any) -> Any:
    protect = {"relation": "add_remove", "unit": UNIT}
    common = {"dataset": "d", "lake": frame, "domain": DOMAIN, "output": "unused", "protect": protect}
    return load_job({**common, "budget": {"epsilon": 6.0, "delta": 1e-6}, **keys})


@pytest.mark.parametrize("mu", [0.5, 1.0, 2.0])
def test_an_attack_shows_nearly_the_mu_of_gaussians_and_never_more(mu: float) -> None:
    draw = np.random.default_rng(3)
    found = audit_person(lambda: draw.normal(mu, 1, 1), lambda: draw.normal(0, 1, 1), 4000)
    assert 0.6 * mu < found.mu <= mu < found.reach
    assert lower_mu(np.ones(10, bool), np.ones(10, bool)) == -np.inf


@pytest.mark.slow
@pytest.mark.parametrize("forgets", [False, True])
def test_moments_of_people_hide_forty_rows(forgets: bool) -> None:
    """``forgets``: the rows of a person are summed as they are, with noise for one."""
    frames, sums = lakes(), []
    for frame in frames:
        job = job_of(frame)
        lake, mechanism = open_lake(frame, DOMAIN), job.calibrated()
        units = None if forgets else units_of(lake, job.protect, KEY, None)
        statistic = mechanism.target.statistic
        found = collect(statistic.plain, lake, DOMAIN, job.lattice, units=units).vector
        sums.append(found)
    noise = np.concatenate(
        [np.full(b.size, mechanism.noise_std()[b.name] / b.step(job.lattice)) for b in statistic.blocks]
    )

    def release(exact: np.ndarray) -> np.ndarray:
        return job_of(frames[1]).calibrated().perturb(exact) / noise

    found = audit_person(lambda: release(sums[0]), lambda: release(sums[1]), 3000)
    charged = mechanism.event
    assert isinstance(charged, GaussianEvent)
    if forgets:
        assert found.mu > charged.mu
    else:
        assert 0.5 * charged.mu < found.mu <= charged.mu < found.reach


@pytest.mark.slow
@pytest.mark.parametrize("forgets", [False, True])
def test_the_gradient_of_people_hides_forty_rows(forgets: bool) -> None:
    frames = lakes()
    learner = {"kind": "gradient", "steps": 4}
    job = job_of(frames[0], learner=learner, rows=60)
    charged = job.charges()[0].event
    assert isinstance(charged, GaussianEvent)
    passes = []
    for frame in frames:
        lake = open_lake(frame, DOMAIN)
        units = None if forgets else units_of(lake, job.protect, KEY, None)
        passes.append(open_passes(lake, DOMAIN, job.lattice, units=units, secret_rows=True))
    with passes[0] as inside, passes[1] as outside:

        def release(opened: Any) -> np.ndarray:
            return job.learner.learn(Session(opened, lambda: None), job.facts).weights

        found = audit_person(lambda: release(inside), lambda: release(outside), 400)
    assert found.reach > charged.mu
    if forgets:
        assert found.mu > charged.mu
    else:
        assert 0.1 * charged.mu < found.mu <= charged.mu
