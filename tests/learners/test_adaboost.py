"""AdaBoost over partitions is AdaBoost in memory, on any partitioning and on workers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daskrado.errors import UsageError
from daskrado.lake.audit_rows import read_rows
from daskrado.lake.collect import open_passes
from daskrado.lake.scan import open_lake
from daskrado.lake.seeds import SignatureKey
from daskrado.learners import RadoBoost
from daskrado.learners.on_passes.adaboost import AdaBoost
from daskrado.table.domain import Domain
from daskrado.table.lattice import Lattice

Clinic = Callable[..., tuple[Path, Domain]]
KEY = SignatureKey.from_seed(1)


def boosted(path: Path, domain: Domain, learner: AdaBoost, client: Any = None, watch: Any = None) -> Any:
    lake = open_lake(path, domain)
    lattice = Lattice(domain.norm_bound)
    with open_passes(lake, domain, lattice, placed=True, key=KEY, client=client) as passes:
        return learner.fit(passes.sum, domain.width, watch=watch)


def test_it_is_boosting_on_edge_vectors(clinic: Clinic) -> None:
    path, domain = clinic(900, 2)
    rows = read_rows(path, domain, Lattice(domain.norm_bound), most=900)
    edges = rows.edges(20)
    expected, details = RadoBoost(rounds=25, update="exponential", keep="last").learn(edges)
    risks: list[float] = []
    found, facts = boosted(path, domain, AdaBoost(rounds=25, keep="last"), watch=risks.append)
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-9)
    assert facts["examples"] == 900
    assert facts["dropped_features"] == details["dropped_features"]
    assert all(b < a for a, b in zip(risks, risks[1:], strict=False))  # noqa: RUF007
    assert risks[-1] == pytest.approx(details["log_rado_risk"], abs=1e-9)


@pytest.mark.cluster
def test_workers_and_partitionings_agree(clinic: Clinic, two_workers: Any) -> None:
    learner = AdaBoost(rounds=6, keep="last", clamp=0.8)
    expected, _ = boosted(*clinic(900, 2), learner)
    for parts in (1, 7):
        assert boosted(*clinic(900, parts), learner, two_workers)[0] == pytest.approx(expected, rel=1e-9)


def test_a_sample_has_exactly_its_size_and_is_the_same_in_every_round(clinic: Clinic) -> None:
    path, domain = clinic(900, 2)
    theta, facts = boosted(path, domain, AdaBoost(rounds=10, sample=77))
    assert facts["examples"] == 77
    again, _ = boosted(*clinic(900, 7), AdaBoost(rounds=10, sample=77))
    assert theta == pytest.approx(again, rel=1e-9)
    with pytest.raises(UsageError, match="sample must be between 1 and the lake's 900 rows, got 901"):
        boosted(path, domain, AdaBoost(rounds=2, sample=901))


def test_keeping_by_training_error_keeps_the_fewest_mistakes(clinic: Clinic) -> None:
    path, domain = clinic(900, 2)
    rows = read_rows(path, domain, Lattice(domain.norm_bound), most=900)

    def mistakes(theta: np.ndarray) -> int:
        return int(((rows.x @ theta >= 0) != (rows.labels > 0)).sum())

    kept, _ = boosted(path, domain, AdaBoost(rounds=30, keep="training_error", oracle="median"))
    path_of = RadoBoost(rounds=30, update="exponential", oracle="median").path(rows.edges(20))
    assert mistakes(kept) <= min(mistakes(theta) for theta in path_of)
