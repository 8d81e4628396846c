"""Shared pieces: small clinic lakes, ledgers in temporary folders, one two-worker cluster for the session."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from daskrado.cluster import ClusterConfig, connect
from daskrado.domain import Domain
from daskrado.lake.make import make_lake

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# The same examples in every run, however slow the machine; `--hypothesis-profile=default` searches anew.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def own_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test ever touches the ledger of the person who runs it."""
    path = tmp_path / "ledger.sqlite"
    monkeypatch.setenv("DASKRADO_LEDGER", str(path))
    return path


@pytest.fixture(scope="session")
def clinic(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Path, Domain]]:
    """``clinic(rows, partitions)``: a lake and its Domain, made once for each pair."""
    made: dict[tuple[int, int, int], tuple[Path, Domain]] = {}

    def get(rows: int = 3000, partitions: int = 3, features: int = 12) -> tuple[Path, Domain]:
        key = (rows, partitions, features)
        if key not in made:
            path = tmp_path_factory.mktemp("lake") / "clinic"
            domain = make_lake(path, rows=rows, features=features, partitions=partitions, seed=7)
            made[key] = (path, Domain.load(domain))
        return made[key]

    return get


@pytest.fixture(scope="session")
def two_workers() -> Iterator[Any]:
    """A real LocalCluster with two worker processes."""
    with connect(ClusterConfig(kind="local", workers=2)) as client:
        yield client


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data sets, where there is one."""
    path = Path(os.environ.get("DASKRADO_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not path.is_dir():
        pytest.skip(f"no real data sets at {path}; set DASKRADO_DATA")
    return path
