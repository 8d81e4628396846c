"""Shared pieces: small clinic lakes, ledgers in temporary folders, one two-worker cluster for the session."""

from __future__ import annotations

import itertools
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import seeded_noise
from hypothesis import HealthCheck, settings
from long_lived import NO_SPILLING, SharedCluster

from daskrado.cluster import ClusterConfig, connect
from daskrado.lake.make import make_lake
from daskrado.table.domain import Domain

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it, and so would children
# The same examples in every run, however slow the machine; `--hypothesis-profile=default` searches anew.
settings.register_profile("repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("repeatable")
seeded_noise.install()
SLOW_FIXTURES = {"two_workers", "forge", "shared_cluster"}


# Processes that are killed at a chosen moment, forked from one that has imported everything: they start at once.
FORGE = """
import json, os, sys, traceback
import daskrado.api, daskrado.cli.main, daskrado.jobs.load, daskrado.parties.coordinator, daskrado.parties.site
import distributed, matplotlib.figure, pandas, scipy.linalg, scipy.special
from daskrado.jobs.base import Job
from daskrado.registry import kinds
kinds(Job, "daskrado.jobs")
for line in sys.stdin:
    asked = json.loads(line)
    child = os.fork()
    if child == 0:
        os.environ.update(asked["environ"])
        os.dup2(2, 1)  # what it prints is not an answer
        try:
            exec(asked["code"], {"__name__": "child"})
            code = 0
        except BaseException:
            traceback.print_exc()
            code = 1
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="session")
def ledgers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Paths of ledgers that are not there yet, for tests that need no folder of their own."""
    folder = tmp_path_factory.mktemp("ledgers")
    return (folder / f"{number}.sqlite" for number in itertools.count())


@pytest.fixture(autouse=True)
def own_ledger(request: pytest.FixtureRequest, ledgers: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test ever touches the ledger of the person who runs it. Where there is a ``tmp_path``, it lies there."""
    beside = "tmp_path" in request.fixturenames
    path = request.getfixturevalue("tmp_path") / "ledger.sqlite" if beside else next(ledgers)
    monkeypatch.setenv("DASKRADO_LEDGER", str(path))
    return path


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever starts workers, or processes that are killed, is slow."""
    for item in items:
        if item.get_closest_marker("cluster") or SLOW_FIXTURES & {*getattr(item, "fixturenames", ())}:
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> None:
    """What a fixture of a module or session draws does not depend on the tests that ran before it."""
    if fixturedef.scope != "function":
        seeded_noise.reseed()


@pytest.fixture(autouse=True)
def repeatable_noise(request: pytest.FixtureRequest) -> Iterator[None]:
    """The same noise and signature keys in every run; tests marked ``real_noise`` draw real ones."""
    seeded_noise.reseed()
    if request.node.get_closest_marker("real_noise") is None:
        yield
        return
    seeded_noise.uninstall()
    yield
    seeded_noise.install()


@pytest.fixture
def fixed_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of runs and files are the same in every run, too: what a test reads in published text is no luck."""
    monkeypatch.setattr(secrets, "token_bytes", seeded_noise.random_bytes)
    monkeypatch.setattr(os, "urandom", seeded_noise.random_bytes)


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
def shared_cluster() -> Iterator[SharedCluster]:
    """A scheduler and two workers of 1 GB that live as long as the session, as those of a shared cluster do."""
    cluster = SharedCluster(**NO_SPILLING)
    try:
        cluster.worker()
        cluster.worker()
        yield cluster
    finally:
        cluster.close()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data sets, where there is one."""
    path = Path(os.environ.get("DASKRADO_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not path.is_dir():
        pytest.skip(f"no real data sets at {path}; set DASKRADO_DATA")
    return path


@pytest.fixture(scope="session")
def forge() -> Iterator[Callable[[str], int]]:
    """``forge(code)``: run a program in a process of its own; returns its exit code, negative for a signal."""
    with subprocess.Popen(
        [sys.executable, "-c", FORGE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def run(code: str) -> int:
            environ = {"DASKRADO_LEDGER": os.environ["DASKRADO_LEDGER"]}
            process.stdin.write(json.dumps({"code": code, "environ": environ}) + "\n")
            process.stdin.flush()
            return int(process.stdout.readline())

        yield run
        process.stdin.close()


@pytest.fixture
def killed(forge: Callable[[str], int]) -> Callable[[str], None]:
    """``killed(code)``: run a program that kills itself, and see that it did."""

    def run(code: str) -> None:
        assert forge(f"import os, signal\n{code}") == -signal.SIGKILL

    return run
