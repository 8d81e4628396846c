"""Faults against real processes, files and disks: each ends in the right answer or in one clear line."""

from __future__ import annotations

import logging
import os
import random
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from distributed import LocalCluster

import daskrado
import daskrado.runs.job
from daskrado.cluster import ClusterConfig, connect
from daskrado.domain import Domain, parse
from daskrado.errors import ClusterError, DataError
from daskrado.lake.make import make_lake
from daskrado.lake.scan import open_lake
from daskrado.privacy.ledger import Ledger
from daskrado.runs.resume import resume

Clinic = Callable[..., tuple[Path, Domain]]


def fit(lake: Path, domain: Domain, **options: Any) -> daskrado.RunResult:
    given = {"dataset": "clinic", "epsilon": 1.0, "delta": 1e-6, "first_limit": (50.0, 1e-5), **options}
    return daskrado.fit(lake, domain, **given)


def states(ledger: Path) -> list[str]:
    return [str(entry.state) for entry in Ledger.open(ledger, create=False).entries()]


class Observed:
    """The exact sums that runs collected, noted on their way to the mechanism."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sums: list[Any] = []
        genuine = daskrado.runs.job.collect

        def noting(*positional: Any, **named: Any) -> Any:
            summary = genuine(*positional, **named)
            self.sums.append(summary.vector)
            return summary

        monkeypatch.setattr(daskrado.runs.job, "collect", noting)


@pytest.fixture
def observed(monkeypatch: pytest.MonkeyPatch) -> Observed:
    return Observed(monkeypatch)


NURSERY = """
import asyncio, os, sys
import distributed, daskrado.lake.collect

async def live(address):
    async with distributed.Worker(address, nthreads=1, memory_limit="1GiB", dashboard=False) as worker:
        await worker.finished()

for address in sys.stdin:
    if os.fork() == 0:
        os.close(0)
        asyncio.run(live(address.strip()))
        os._exit(0)
"""


class Nursery:
    """Worker processes without a nanny: forked from one that has imported everything, so that they start at once."""

    def __init__(self, cluster: Any) -> None:
        self.client = cluster.get_client()
        self.process = subprocess.Popen(
            [sys.executable, "-c", NURSERY], stdin=subprocess.PIPE, text=True, env=os.environ
        )

    def fill(self, count: int) -> list[int]:
        """Start workers until there are ``count``; returns their process ids."""
        assert self.process.stdin is not None
        here = len(self.client.scheduler_info(n_workers=-1)["workers"])
        self.process.stdin.write(f"{self.client.scheduler.address}\n" * (count - here))
        self.process.stdin.flush()
        self.client.wait_for_workers(count, timeout=60)
        return sorted(self.client.run(os.getpid, on_error="ignore").values())


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with LocalCluster(n_workers=0, dashboard_address=":0", silence_logs=logging.CRITICAL) as cluster:
        born = Nursery(cluster)
        with born.client:
            yield born
    born.process.communicate()


@pytest.mark.cluster
def test_workers_killed_at_random_moments_change_no_bit_and_cost_one_charge(
    clinic: Clinic, own_ledger: Path, observed: Observed, nursery: Nursery
) -> None:
    path, domain = clinic(60_000, 30)
    fit(path, domain, workers=0)
    there = ClusterConfig(kind="scheduler", address=nursery.client.scheduler.address)
    moments = random.Random(20)
    for _ in range(20):
        pids = nursery.fill(3)
        victim = threading.Timer(moments.uniform(0.0, 0.5), os.kill, [moments.choice(pids), signal.SIGKILL])
        victim.start()
        fit(path, domain, cluster=there)
        victim.join()
    assert len(observed.sums) == 21
    assert all(np.array_equal(observed.sums[0], found) for found in observed.sums)
    assert states(own_ledger) == ["spent"] * 21


@pytest.mark.cluster
def test_a_worker_that_hangs_is_given_up(clinic: Clinic, own_ledger: Path, observed: Observed) -> None:
    path, domain = clinic(60_000, 30)
    fit(path, domain, workers=0)
    with connect(ClusterConfig(kind="local", workers=2, worker_ttl=1.0)) as client:
        assert client is not None
        alive = [client.submit(os.getpid).result()]

        def hang(done: int, total: int) -> None:
            if alive:
                os.kill(alive.pop(), signal.SIGSTOP)

        there = ClusterConfig(kind="scheduler", address=client.scheduler.address)
        fit(path, domain, cluster=there, progress=hang)
    assert np.array_equal(*observed.sums)
    assert states(own_ledger) == ["spent", "spent"]


@pytest.mark.cluster
def test_a_lost_scheduler_is_one_clear_error_and_no_charge(clinic: Clinic, own_ledger: Path, tmp_path: Path) -> None:
    path, domain = clinic(60_000, 30)
    file = tmp_path / "scheduler.json"
    start = [sys.executable, "-m", "dask"]
    options: Any = {"env": os.environ, "stderr": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    where = ["--scheduler-file", str(file), "--no-dashboard"]
    scheduler = subprocess.Popen([*start, "scheduler", *where, "--host", "127.0.0.1", "--port", "0"], **options)
    worker = subprocess.Popen([*start, "worker", *where, "--nthreads", "1", "--no-nanny"], **options)
    try:
        while not file.exists():
            assert scheduler.poll() is None
        cluster = ClusterConfig(kind="scheduler", scheduler_file=str(file), connect_timeout=3)
        with pytest.raises(ClusterError, match="the scheduler was lost"):
            fit(path, domain, cluster=cluster, output=tmp_path / "out", progress=lambda *_: scheduler.kill())
    finally:
        for process in (scheduler, worker):
            process.kill()
            process.wait()
    assert states(own_ledger) == ["void"]
    assert not [p for p in tmp_path.iterdir() if "out" in p.name]


@pytest.mark.cluster
def test_a_worker_out_of_memory_is_one_clear_error_and_no_charge(own_ledger: Path, tmp_path: Path) -> None:
    names = [f"x{i:02d}" for i in range(60)]
    column = pa.array(np.zeros(1_200_000))  # one row group: small on disk, 600 MB in a worker
    table = pa.table({**dict.fromkeys(names, column), "y": pa.array(np.zeros(len(column), dtype=bool))})
    (tmp_path / "lake").mkdir()
    pq.write_table(table, tmp_path / "lake" / "part.parquet", row_group_size=len(column))
    domain = parse(
        Domain,
        {
            "label": {"column": "y", "positive": True, "negative": False},
            "norm_bound": 1.0,
            "columns": {name: {"kind": "numeric", "lower": -1, "upper": 1} for name in names},
        },
        "test",
    )
    cluster = ClusterConfig(kind="local", workers=1, memory_limit="350MB")
    with dask.config.set({"distributed.scheduler.allowed-failures": 0}), pytest.raises(ClusterError) as caught:
        fit(tmp_path / "lake", domain, cluster=cluster)
    assert "ran out of memory" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert states(own_ledger) == ["void"]


@pytest.mark.parametrize("what", ["vanishes", "grows", "is overwritten"])
def test_a_file_that_changes_during_a_run_is_named_and_nothing_is_charged(
    own_ledger: Path, tmp_path: Path, what: str
) -> None:
    domain = Domain.load(make_lake(tmp_path / "lake", rows=3000, features=12, partitions=3, seed=1))
    last = tmp_path / "lake" / "part-00002.parquet"

    def change(done: int, total: int) -> None:
        if done != 1:
            return
        if what == "vanishes":
            last.unlink()
        elif what == "grows":
            with last.open("ab") as file:
                file.write(b"more")
        else:
            last.write_bytes(last.read_bytes())

    with pytest.raises(DataError, match=r"part-00002\.parquet: changed or vanished"):
        fit(tmp_path / "lake", domain, workers=0, output=tmp_path / "out", progress=change)
    assert states(own_ledger) == ["void"]
    assert list(own_ledger.with_name(own_ledger.name + ".runs").iterdir()) == []  # nothing to resume
    assert not [p for p in tmp_path.iterdir() if "out" in p.name]


def test_a_file_overwritten_while_it_is_being_read_is_noticed(tmp_path: Path) -> None:
    domain = Domain.load(make_lake(tmp_path / "lake", rows=3000, features=12, partitions=1, seed=1))
    (partition,) = open_lake(tmp_path / "lake", domain).partitions
    tables = partition.tables(["age"])
    next(tables)
    other = tmp_path / "lake" / "part-00000.parquet"
    other.write_bytes(other.read_bytes())
    with pytest.raises(DataError, match="changed or vanished"):
        next(tables)


class Namespace:
    """Runs the command line where some folder is a small disk or a read-only mount that nobody else sees."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        alone = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
        self.alone = alone
        tried = subprocess.run([*alone, "mount", "-t", "tmpfs", "none", str(folder)], capture_output=True)
        if tried.returncode:
            pytest.skip("this machine lets nobody mount a file system of their own")

    def __call__(self, mount: str, *words: str) -> subprocess.CompletedProcess[str]:
        command = f'set -e; {mount}; exec "$@"'
        program = [sys.executable, "-c", "from daskrado.cli import main; main()", *words]
        return subprocess.run(
            [*self.alone, "sh", "-c", command, "sh", *program],
            env=os.environ,
            capture_output=True,
            text=True,
            timeout=60,
        )


@pytest.fixture
def pipeline(clinic: Clinic, tmp_path: Path) -> str:
    path, _ = clinic(3000, 3)
    (tmp_path / "disk").mkdir()
    content = {
        "dataset": "clinic",
        "lake": str(path),
        "domain": f"{path}.yaml",
        "output": str(tmp_path / "disk" / "out"),
        "protect": {"relation": "add_remove", "unit": "one patient"},
        "budget": {"epsilon": 1.0, "delta": 1e-6},
        "ledger": {"first_limit": {"epsilon": 5, "delta": 1e-5}},
    }
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(content))
    return str(tmp_path / "p.yaml")


def test_a_full_disk_loses_nothing_that_was_paid_for(pipeline: str, tmp_path: Path, own_ledger: Path) -> None:
    disk = tmp_path / "disk"
    small = f"mount -t tmpfs -o size=64k none {disk}"
    done = Namespace(disk)(small, "run", pipeline)
    assert done.returncode == 1
    (line,) = done.stderr.strip().splitlines()
    assert "No space left on device; the release is kept: daskrado run --resume " in line
    assert states(own_ledger) == ["spent"]
    assert list(disk.iterdir()) == []
    resume(line.split()[-1])  # outside that name space there is room
    assert sorted(p.name for p in (disk / "out").iterdir()) == ["manifest.json", "model.json", "report.html"]
    assert states(own_ledger) == ["spent"]


def test_a_ledger_on_a_full_disk_debits_nothing(pipeline: str, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    fill = f"cp {tmp_path}/l.sqlite {disk}; cat /dev/zero > {disk}/z 2> /dev/null || true"
    full = f"mount -t tmpfs -o size=256k none {disk}; {fill}"
    Ledger.open(tmp_path / "l.sqlite")
    done = Namespace(disk)(full, "run", pipeline, "--output", str(tmp_path / "o"), "--ledger", f"{disk}/l.sqlite")
    assert done.returncode == 1, done.stderr
    (line,) = done.stderr.strip().splitlines()
    assert re.match(r"daskrado: error: .*(nothing was debited|disk is full)", line)
    assert not (tmp_path / "o").exists()


def test_a_ledger_on_a_read_only_mount_is_named(pipeline: str, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    Ledger.open(disk / "l.sqlite").set_limit("clinic", "add_remove", 5, "1e-5")
    before = (disk / "l.sqlite").read_bytes()
    frozen = f"mount --bind {disk} {disk}; mount -o remount,ro,bind {disk}"
    words = ("run", pipeline, "--output", str(tmp_path / "o"), "--ledger", f"{disk}/l.sqlite")
    done = Namespace(disk)(frozen, *words)
    assert done.returncode == 1
    (line,) = done.stderr.strip().splitlines()
    assert f"{disk}/l.sqlite" in line
    assert "writ" in line or "read-only" in line.lower()
    assert (disk / "l.sqlite").read_bytes() == before
    assert not (tmp_path / "o").exists()
